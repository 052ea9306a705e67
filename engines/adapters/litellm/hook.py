"""The class that LiteLLM's proxy calls before each call."""

import logging
from typing import Any

from fastapi import FastAPI, HTTPException
from litellm.integrations.custom_logger import CustomLogger

from fairsched.engines.adapters.litellm.queue import ProxyQueue
from fairsched.engines.adapters.litellm.request import QueuedRequests
from fairsched.engines.adapters.litellm.settings import LiteLlmSettings
from fairsched.engines.gateway import CallError

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
