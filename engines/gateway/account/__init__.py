"""Where calls wait for a server and are charged. Read `account` first: a window, its clients, and what listens to it.

The life of a call (`engines.gateway.gateway`) knows an account and nothing behind it.  `quota` has the budgets.
"""

from fairsched.engines.gateway.account.account import Account
from fairsched.engines.gateway.account.calls import Placed, PlaceRequest
from fairsched.engines.gateway.account.quota import quota_store

__all__ = ["Account", "PlaceRequest", "Placed", "quota_store"]
