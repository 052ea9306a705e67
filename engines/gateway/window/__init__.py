"""The window of tokens in flight before servers that schedule themselves. Read `window` first."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.gateway.window.shadow import Shadow
    from fairsched.engines.gateway.window.window import WINDOW, Share, Window, request_of
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WINDOW", "Shadow", "Share", "Window", "request_of"]
