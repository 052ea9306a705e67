"""Where calls wait for a server and are charged: the `Account` protocol, and who keeps it. Read `protocol`.

The life of a call (`engines.gateway.gateway`) knows an account and nothing behind it.  `local` is the window in this
process; `remote` is another process's over a Unix socket, at whose end `host` keeps a local one for all of them.
"""

from fairsched.engines.gateway.account.host import AccountHost, ProcessPeer
from fairsched.engines.gateway.account.local import LocalAccount
from fairsched.engines.gateway.account.messages import Failed, Placed, PlaceRequest
from fairsched.engines.gateway.account.protocol import Account
from fairsched.engines.gateway.account.quota import quota_store
from fairsched.engines.gateway.account.remote import AccountLostError, RemoteAccount, connected

__all__ = [
    "Account", "AccountHost", "AccountLostError", "Failed", "LocalAccount", "PlaceRequest", "Placed", "ProcessPeer",
    "RemoteAccount", "connected", "quota_store"
]  # fmt: skip
