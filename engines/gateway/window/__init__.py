"""The window of tokens in flight before servers that schedule themselves. Read `window` first."""

from fairsched.engines.gateway.window.pool import Share
from fairsched.engines.gateway.window.queue_share import QueueShare
from fairsched.engines.gateway.window.shadow import Shadow
from fairsched.engines.gateway.window.window import WINDOW, Window, request_of

__all__ = ["WINDOW", "QueueShare", "Shadow", "Share", "Window", "request_of"]
