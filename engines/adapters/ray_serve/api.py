"""What a user of Ray Serve calls: the configuration of a deployment, and what its actor is asked and told."""

import asyncio
from functools import lru_cache
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from fairsched.engines.adapters.ray_serve.actor import actor_name, found
from fairsched.engines.adapters.ray_serve.coordinator import parts
from fairsched.engines.adapters.ray_serve.extract import extractor_of, usage_said
from fairsched.engines.adapters.ray_serve.settings import settings_of
from fairsched.engines.serving import Document

ROUTER_CLASS = "fairsched.integrations.ray_serve.FairRouter"


def request_router_config(**settings: Any) -> RequestRouterConfig:
    """Return the configuration of a deployment, checked now.  Raises `ValueError` for settings that cannot be.

    `settings` are those of `engines.adapters.ray_serve.settings.RouterSettings`; `window_tokens` is needed.
    """
    checked = settings_of(settings)
    parts(checked)
    extractor_of(checked)
    values: Any = {"request_router_class": ROUTER_CLASS, "request_router_kwargs": settings}
    return RequestRouterConfig(**values)


def status(deployment: str, app: str = "default") -> Document:
    """Return what the actor of a deployment says of itself.  Raises `ValueError` if there is none."""
    answer: Document = ray.get(found(actor_name(app, deployment)).status.remote())
    return answer


def configure(deployment: str, app: str = "default", *, weights: dict[str, int]) -> None:
    """Set the weights; a client that is not named has 1.  Raises `ValueError` for a bad one, or without an actor."""
    settings_of({"window_tokens": 2, "weights": weights})
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
