"""The queue of a proxy: which calls wait, for which window, and as which client, by a TOML file that an environment
variable names.  Unknown keys are refused."""

import asyncio
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import msgspec

from fairsched.engines.adapters.common import read_file
from fairsched.engines.adapters.endpoint_picker import (
    CallWindow,
    EndpointPool,
    Picker,
    PickerConfig,
    QueueLimits,
    QueueSettings,
)
from fairsched.engines.adapters.litellm.request import current
from fairsched.engines.gateway.openai import BY_PATH, Endpoint
from fairsched.engines.settings import ConfigError

VARIABLE = "FAIRSCHED_LITELLM_CONFIG"
"""The environment variable that names the file."""
Level = Literal["team", "user", "key"]
_TYPES = {
    "/v1/chat/completions": "completion acompletion",
    "/v1/completions": "text_completion atext_completion",
    "/v1/responses": "responses aresponses",
    "/v1/messages": "anthropic_messages aanthropic_messages",
    "/v1/embeddings": "embedding embeddings aembedding",
    "/v1/rerank": "rerank arerank",
}
# Whether a call may outlive its answer is LiteLLM's to say.
ENDPOINTS: Mapping[str, Endpoint] = {
    name: attrs.evolve(BY_PATH[path], refused=()) for path, names in _TYPES.items() for name in names.split()
}
"""What waits, by LiteLLM's types of calls."""


class LiteLlmSettings(QueueSettings, frozen=True, kw_only=True):
    """How calls wait, for which windows, and how callers are named."""

    pool: CallWindow
    """The window of all models together that have none of their own."""
    identify: tuple[Level, ...] = ("team", "user", "key")
    """What of LiteLLM's names a client, the first that the caller's key has: `team:` with the team's alias or id,
    `user:` with the id of the key's user, `key:` with the key's alias or hash."""
    limits: QueueLimits = QueueLimits()
    model: dict[str, CallWindow] = msgspec.field(default_factory=dict)
    """Models with a window and an account of their own, by `model_name`."""

    def __post_init__(self) -> None:
        if not self.identify:
            raise ValueError("identify names none of team, user and key")
        for name in self.client:
            if name.partition(":")[0] not in self.identify or not name.partition(":")[2]:
                ways = ", ".join(f'"{level}:NAME"' for level in self.identify)
                raise ValueError(f'client."{name}" is no client of these: {ways}')


def from_environment() -> LiteLlmSettings:
    """Return the settings of this process.  Raises `ConfigError`."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"{VARIABLE} names no file")
    return read_file(Path(path), VARIABLE, LiteLlmSettings)


class ProxyQueue:
    """A window for each model that has one, and one for all others; each shares itself between clients.

    Raises `ValueError` for settings that cannot be used.
    """

    def __init__(self, settings: LiteLlmSettings) -> None:
        self.settings = settings
        self.other_models = _picker(settings, settings.pool)
        self.models = {name: _picker(settings, window, name) for name, window in settings.model.items()}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pickers(self) -> tuple[Picker, ...]:
        """All windows."""
        return self.other_models, *self.models.values()

    async def stop(self) -> None:
        """Charge no more, and return what is on lease; a loop that ends does it, too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def promises(self) -> Iterator[str]:
        """Yield what is promised for each window, and its cautions, a line each."""
        others = "all other models" if self.models else "all models"
        for name, picker in {others: self.other_models, **self.models}.items():
            yield from (f"{name}: {line}" for line in picker.promises())

    async def place(self, key: Any, call_type: str, data: Mapping[str, Any]) -> None:
        """Return when a call may go: at once where it is of a kind that does not wait, or of no request.

        `key` is what LiteLLM knows of the caller, `data` the fields of its body.  Raises `CallError`.
        """
        endpoint, request = ENDPOINTS.get(call_type), current()
        if endpoint is None or request is None:
            return
        if not self._tasks:
            self._tasks = [asyncio.create_task(picker.run()) for picker in self.pickers]
        names = {*endpoint.inputs, *endpoint.needs, *endpoint.most, *endpoint.answers, *endpoint.prompts}
        body = msgspec.json.encode({name: data[name] for name in names & data.keys()}, enc_hook=str)
        picker = self.models.get(str(data.get("model")), self.other_models)
        await request.place(picker, self._client(key), body, endpoint)

    def _client(self, key: Any) -> str:
        """Return the name of a caller by what LiteLLM knows of its key; empty if it knows nothing."""
        known = {
            "team": key.team_alias or key.team_id,
            "user": key.user_id,
            "key": key.key_alias or key.token,
        }
        return next((f"{level}:{known[level]}" for level in self.settings.identify if known[level]), "")


def _picker(settings: LiteLlmSettings, window: CallWindow, model: str = "") -> Picker:
    """Return a picker whose only endpoint is what LiteLLM routes to."""
    common: dict[str, Any] = {name: getattr(settings, name) for name in QueueSettings.__struct_fields__}
    if settings.store is not None and model:
        # Models may have any names, and stores not.
        name = f"{settings.store.name}.{hashlib.sha256(model.encode()).hexdigest()[:16]}"
        common["store"] = msgspec.structs.replace(settings.store, name=name)
    common["limits"] = settings.limits
    pool = EndpointPool(window.window_tokens, window.window_requests, endpoints=("litellm",))
    picker = Picker(PickerConfig(pool=pool, **common))
    picker.see(pool.endpoints)
    return picker
