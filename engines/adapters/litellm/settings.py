"""What the queue inside LiteLLM's proxy is told: a TOML file that an environment variable names.  Unknown keys are
refused."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from fairsched.engines.adapters.common import read_file
from fairsched.engines.adapters.endpoint_picker import CallWindow, QueueLimits, QueueSettings
from fairsched.engines.settings import ConfigError

VARIABLE = "FAIRSCHED_LITELLM_CONFIG"
"""The environment variable that names the file."""
Level = Literal["team", "user", "key"]


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
