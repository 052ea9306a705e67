"""The window of tokens in flight before servers that schedule themselves. Read `window` first."""

from fairsched.engines.gateway.window.flight import request_of
from fairsched.engines.gateway.window.leased import LeasedWindow
from fairsched.engines.gateway.window.pool import Share
from fairsched.engines.gateway.window.queue_share import QueueShare
from fairsched.engines.gateway.window.reasons import credit, waits
from fairsched.engines.gateway.window.slots import SLOT_PATHS, Slots, load_at, load_in, slot_warnings
from fairsched.engines.gateway.window.window import Window

__all__ = [
    "SLOT_PATHS", "LeasedWindow", "QueueShare", "Share", "Slots", "Window", "credit", "load_at", "load_in",
    "request_of", "slot_warnings", "waits"
]  # fmt: skip
