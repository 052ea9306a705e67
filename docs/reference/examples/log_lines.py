import json
from litellm.integrations.custom_logger import CustomLogger


class Lines(CustomLogger):
    def write(self, kwargs):
        payload = dict(kwargs["standard_logging_object"])
        for text in ("messages", "response", "model_map_information"):
            payload.pop(text, None)
        with open("/var/log/litellm/calls.jsonl", "a") as file:
            file.write(json.dumps(payload, default=str) + "\n")

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.write(kwargs)

    async_log_failure_event = async_log_success_event


logger = Lines()
