"""`litellm_settings: {callbacks: fairsched.integrations.litellm.fair_queue}`: a fair queue inside LiteLLM's proxy.

`FAIRSCHED_LITELLM_CONFIG` names a TOML file with its settings.
"""

import logging
import sys
from functools import cache
from typing import Any

from fastapi import FastAPI, HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.proxy_server import app

from fairsched.engines.adapters.litellm import LiteLlmSettings, ProxyQueue, QueuedRequests, from_environment
from fairsched.engines.gateway import CallError

__all__ = ["FairQueue"]

_log = logging.getLogger("fairsched.litellm")


class FairQueue(CustomLogger):  # type: ignore[misc]
    """A fair queue in a proxy whose application is `app`.  Raises `ValueError` for settings that cannot be used."""

    def __init__(self, settings: LiteLlmSettings, app: FastAPI) -> None:
        super().__init__()
        self.queue = ProxyQueue(settings)
        for line in self.queue.promises():
            # At a level that LiteLLM shows.
            _log.warning("%s", line)
        if app.middleware_stack is None:
            app.add_middleware(QueuedRequests)
        else:
            # LiteLLM reads its configuration when the application has started, which then takes no middleware.
            app.middleware_stack = QueuedRequests(app.middleware_stack)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> None:
        """Wait for a place.  Raises `HTTPException`."""
        try:
            await self.queue.place(user_api_key_dict, call_type, data)
        except CallError as error:
            after = error.retry_after_seconds
            headers = None if after is None else {"retry-after": str(after)}
            raise HTTPException(error.status, error.message, headers) from None


@cache
def _made() -> FairQueue:
    """Return the queue of this process.

    What cannot be used stops the proxy with one line: a proxy that should be fair must not serve without.
    """
    try:
        return FairQueue(from_environment(), app)
    except ValueError as error:
        sys.exit(f"fairsched: {error}")


def __getattr__(name: str) -> FairQueue:
    # LiteLLM asks for an instance by its name.
    if name == "fair_queue":
        return _made()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
