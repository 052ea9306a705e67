"""The gateway in front of OpenAI-compatible servers. Read `gateway` first, then `window`."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.gateway.config import (
        CLIENT_HEADER,
        GatewayConfig,
        LimitConfig,
        StoreConfig,
        hashed_key,
        read_config,
    )
    from fairsched.engines.gateway.identity import CallerNames, access_warnings
    from fairsched.engines.gateway.openai import (
        CallError,
        StreamReader,
        Usage,
        error_document,
        has_prompt,
        sized,
        usage_of,
    )
    from fairsched.engines.gateway.policy import (
        bound_text,
        gateway_policy,
        leased_policy,
        quota_lines,
        window_policy,
        window_router,
    )
    from fairsched.engines.gateway.server import UNEXPLAINED, Spec, build, listening, log_to_stderr, serve, supervise
    from fairsched.engines.gateway.tls import check_files
    from fairsched.engines.gateway.window import LeasedWindow, Share, Slots, Window, load_at, request_of, slot_warnings
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "CLIENT_HEADER", "UNEXPLAINED", "CallError", "CallerNames", "GatewayConfig", "LeasedWindow", "LimitConfig", "Share",
    "Slots", "Spec", "StoreConfig", "StreamReader", "Usage", "Window", "access_warnings", "bound_text", "build",
    "check_files", "error_document", "gateway_policy", "has_prompt", "hashed_key", "leased_policy", "listening",
    "load_at", "log_to_stderr", "quota_lines", "read_config", "request_of", "serve", "sized", "slot_warnings",
    "supervise", "usage_of", "window_policy", "window_router"
]  # fmt: skip
