"""Where calls wait for a server and are charged. Read `account` first: a window, its clients, and what listens to it.

The life of a call (`engines.gateway.gateway`) knows an account and nothing behind it.  `quota` has the budgets.
"""

from fairsched.engines.gateway.account.account import Account, Placed, PlaceRequest
from fairsched.engines.gateway.account.quota import quota_store
from fairsched.engines.gateway.account.recorded import Recorded

__all__ = ["Account", "PlaceRequest", "Placed", "Recorded", "quota_store"]
