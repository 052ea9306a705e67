"""`--scheduler-cls fairsched.integrations.vllm.FairScheduler`: a shipped policy inside vLLM's V1 engine."""

from fairsched.engines.inside.settings import SettingsError
from fairsched.engines.vllm.scheduler import Chosen, PolicyScheduler
from fairsched.engines.vllm.settings import Settings
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import local_policy, parameters, with_parameters


def chosen(settings: Settings, step_tokens: int) -> Chosen:
    """The policy of these settings as vLLM needs it: order and gate, one request a decision, no batching of its own.

    Raises `SettingsError` for one that cannot be used there.
    """
    try:
        policy = local_policy(settings.policy)
        given = {name: str(value) for name, value in settings.parameters.items()}
        own = {"batching", "max_running", "max_batched_tokens", "reserve"}
        if taken := sorted(own & given.keys()):
            raise ValueError(f"{taken[0]} is vLLM's, or follows from reserve_outputs")
        policy = with_parameters(policy, given | vllm_parameters(settings, step_tokens))
    except ValueError as error:
        raise SettingsError(f"fairsched: {error}") from None
    if policy.order.displaces:
        raise SettingsError(f"fairsched: {settings.policy} preempts, which vLLM decides itself")
    return Chosen(policy, dict(parameters(policy)), looks_at_cache(policy))


def vllm_parameters(settings: Settings, step_tokens: int) -> dict[str, str]:
    """What vLLM's batching makes of a policy's."""
    return {
        "batching": "iteration-level",
        "max_running": "1",
        "max_batched_tokens": str(step_tokens),
        "reserve": "static" if settings.reserve_outputs else "optimistic",
    }


def looks_at_cache(policy: ComposedPolicy) -> bool:
    """Whether what is cached matters to the policy."""
    return bool(policy.order.follows_cache or policy.order.waits_for_prefix or policy.gate.splits)


class FairScheduler(PolicyScheduler):
    """vLLM's scheduler with the policy that its settings name."""

    @staticmethod
    def choose(settings: Settings, step_tokens: int) -> Chosen:
        return chosen(settings, step_tokens)
