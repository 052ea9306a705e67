"""Ray Serve with a policy of this library, one for all handles of a deployment.

    @serve.deployment(request_router_config=request_router_config(window_tokens=100_000, weights={"gold": 4}))

`FairRouter` is the request router; `status`, `configure` and `report_usage` talk to the actor that decides for it.
docs/ray-serve.md says what is proved of it, and what is not.
"""

import asyncio
from functools import lru_cache
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from fairsched.engines.ray_serve.actor import actor_name, found
from fairsched.engines.ray_serve.extract import Pending, Wanted, extractor_of, usage_said
from fairsched.engines.ray_serve.router import PolicyRouter
from fairsched.engines.ray_serve.settings import Settings, settings_of
from fairsched.integrations.window_policy import window_policy, window_router
from fairsched.policies.base import LocalPolicy, Router

__all__ = ["FairRouter", "Pending", "Wanted", "configure", "report_usage", "request_router_config", "status"]


def parts(settings: Settings) -> tuple[LocalPolicy[Any], Router[Any]]:
    """The policy and the router of settings.  Raises `ValueError` for names that are not there."""
    return window_policy(settings.policy, settings.quantum), window_router(settings.router)


class FairRouter(PolicyRouter):
    """`RequestRouterConfig(request_router_class="fairsched.integrations.ray_serve.FairRouter", ...)`."""

    @staticmethod
    def parts(settings: Settings) -> tuple[LocalPolicy[Any], Router[Any]]:
        return parts(settings)


def request_router_config(**settings: Any) -> RequestRouterConfig:
    """The configuration of a deployment, checked now.  Raises `ValueError` for settings that cannot be.

    `settings` are those of `engines.ray_serve.settings.Settings`; `window_tokens` is needed.
    """
    checked = settings_of(settings)
    parts(checked)
    extractor_of(checked)
    values: Any = {"request_router_class": f"{__name__}.FairRouter", "request_router_kwargs": settings}
    return RequestRouterConfig(**values)


def status(deployment: str, app: str = "default") -> dict[str, Any]:
    """Service by client, the gap against its bound and how calls ended.  Raises `ValueError` if no actor is there."""
    answer: dict[str, Any] = ray.get(found(actor_name(app, deployment)).status.remote())
    return answer


def configure(deployment: str, app: str = "default", *, weights: dict[str, int]) -> None:
    """Weights from now on; who is not named has 1.  Raises `ValueError` if no actor is there, or for a bad weight."""
    Settings(window_tokens=2, weights=weights)
    ray.get(found(actor_name(app, deployment)).configure.remote(weights))


async def report_usage(*, output_tokens: int, computed_prompt_tokens: int | None = None) -> bool:
    """Say, in a replica before it answers, what the call used: this is charged instead of what was declared.

    `computed_prompt_tokens` are those that no cache had; None: the estimate stands.  Returns whether the actor took it;
    it never raises for an actor that is not there.  Raises `ValueError` for what is no number of tokens.
    """
    usage = usage_said(output_tokens, computed_prompt_tokens)
    context = serve.get_replica_context()
    name = serve.context._get_serve_request_context()._internal_request_id
    try:
        # Looking for the actor asks Ray, and must not hold up what else the replica does.
        actor = await asyncio.to_thread(_actor, actor_name(context.app_name, context.deployment))
        taken: bool = await actor.used.remote(name, *usage)
    except (ValueError, ray.exceptions.RayActorError):
        _actor.cache_clear()
        return False
    return taken


@lru_cache(maxsize=16)
def _actor(name: str) -> Any:
    return found(name)
