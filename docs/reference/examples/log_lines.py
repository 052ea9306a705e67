"""Write what LiteLLM knows of each call as a line of JSON: `litellm_settings: {callbacks: log_lines.logger}`."""

import json
from typing import Any

from litellm.integrations.custom_logger import CustomLogger


class Lines(CustomLogger):
    """A logger without prompts, answers and prices."""

    def write(self, kwargs: dict[str, Any]) -> None:
        """Append the standard payload of a call."""
        payload = dict(kwargs["standard_logging_object"])
        for text in ("messages", "response", "model_map_information"):
            payload.pop(text, None)
        with open("/var/log/litellm/calls.jsonl", "a") as file:
            file.write(json.dumps(payload, default=str) + "\n")

    async def async_log_success_event(self, kwargs: dict[str, Any], *_: object) -> None:
        """Write a call that ended well."""
        self.write(kwargs)

    async_log_failure_event = async_log_success_event


logger = Lines()
