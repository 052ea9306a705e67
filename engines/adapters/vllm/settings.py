"""What the scheduler inside vLLM is told: a table of vLLM's `--additional-config`, or a TOML file that an environment
variable names.  Both reach the engine core in its own process.  An unknown key is refused."""

from collections.abc import Mapping
from pathlib import Path

from fairsched.engines.adapters.common import Chosen, InsideSettings, choose, read_file
from fairsched.engines.settings import ConfigError, Name, NotNegative, made

TABLE = "fairsched"
"""The key of the table in vLLM's additional configuration."""
VARIABLE = "FAIRSCHED_VLLM_CONFIG"
"""The environment variable that names a TOML file instead."""


class VllmSettings(InsideSettings, frozen=True, kw_only=True):
    """What all engines are told, and vLLM's own."""

    policy: Name = "dlpm"
    """Any local policy that does not preempt, or `NAME+GATE`; `+deficit` and `+counter` have a bound."""
    reserve_outputs: bool = True
    """Admit a request only if memory holds what the running requests have reserved; false: vLLM's way."""
    unreserved_tokens: NotNegative | None = None
    """Declared outputs beyond what is predicted that one client's requests may have in the batch; 0: all outputs are
    reserved, as with a certificate; the default: as many tokens as the KV cache has."""
    certificate: Name | None = None
    """Serve only what this file or folder certifies, on this KV capacity and model length."""


def read_settings(additional_config: object, environ: Mapping[str, str]) -> VllmSettings:
    """Return the settings of this engine; the defaults if there are none.  Raises `ConfigError`."""
    table = additional_config.get(TABLE) if isinstance(additional_config, Mapping) else None
    path = environ.get(VARIABLE)
    if table is not None and path:
        raise ConfigError(f"both the additional configuration and {VARIABLE} configure {TABLE}: leave one out")
    if path:
        return read_file(Path(path), VARIABLE, VllmSettings)
    return VllmSettings() if table is None else made(VllmSettings, table, f"--additional-config, {TABLE}")


def chosen(settings: VllmSettings, step_tokens: int) -> Chosen:
    """Return the policy of these settings as vLLM needs it: order and gate, one request a decision.

    Raises `ConfigError` for one that cannot be used there.
    """
    own = vllm_parameters(settings, step_tokens)
    policy = choose(settings, "vLLM", own, "vLLM's, or follows from reserve_outputs", pauses=True)
    if policy.policy.pauses and not settings.reserve_outputs:
        # Where vLLM has no room for the next request, what is paused would keep it for ever.
        raise ConfigError(f"fairsched: {settings.policy} pauses running requests, which needs reserve_outputs")
    return policy


def unreserved_tokens(settings: VllmSettings, capacity_tokens: int) -> int:
    """Return how many outputs a client may leave unreserved.  Raises `ConfigError`."""
    if not settings.reserve_outputs:
        return 0
    if settings.certificate is not None and settings.unreserved_tokens:
        raise ConfigError("unreserved_tokens is 0 with a certificate, which is about reserving all outputs")
    if settings.unreserved_tokens is not None:
        return settings.unreserved_tokens
    return 0 if settings.certificate is not None else capacity_tokens


def vllm_parameters(settings: VllmSettings, step_tokens: int) -> dict[str, str]:
    """Return what vLLM's batching makes of a policy's."""
    return {
        "batching": "iteration-level",
        "max_running": "1",
        "max_batched_tokens": str(step_tokens),
        "reserve": "static" if settings.reserve_outputs else "optimistic",
    }
