"""One account for several gateways: a store, and what this gateway has of it on lease. Read `leasing` first."""

from fairsched.engines.gateway.account.shared.leasing import Leasing, open_store
from fairsched.engines.gateway.account.shared.store import Change, FileStore, MemoryStore, Store, StoreError

__all__ = ["Change", "FileStore", "Leasing", "MemoryStore", "Store", "StoreError", "open_store"]
