"""Credit that a window has on lease of an account that it shares with others, and the store of that. Read `leasing`."""

from fairsched.engines.gateway.window.leases.leasing import leasing_of, open_store
from fairsched.engines.gateway.window.leases.store import MemoryStore, Store, StoreError

__all__ = ["MemoryStore", "Store", "StoreError", "leasing_of", "open_store"]
