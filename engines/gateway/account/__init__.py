"""Where calls wait for a server and are charged: the `Account` protocol, and the one in this process. Read `protocol`.

The life of a call (`engines.gateway.gateway`) knows an account and nothing behind it, so that several processes can
share one.
"""

from fairsched.engines.gateway.account.local import LocalAccount, WindowLog
from fairsched.engines.gateway.account.protocol import Account, Placed

__all__ = ["Account", "LocalAccount", "Placed", "WindowLog"]
