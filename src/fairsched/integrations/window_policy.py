"""A policy by its name as a window before servers needs it: outputs reserved, and one request a decision."""

from typing import Any

from fairsched.policies.base import Router
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, local_policy, unknown, with_parameters


def window_policy(name: str, quantum: int) -> ComposedPolicy:
    """The policy of that name, in a window; `quantum` is for gates that have one.

    Raises `ValueError` for one that cannot be used there.
    """
    policy = local_policy(name)
    values = {"batching": "iteration-level", "max_running": "1", "reserve": "static"}
    if hasattr(policy.gate, "quantum"):
        values["quantum"] = str(quantum)
    policy = with_parameters(policy, values)
    if policy.order.displaces:
        raise ValueError(f"{name} preempts, which a window before servers cannot")
    rates = policy.gate.rates
    if policy.promises_bound and rates.input > rates.output:
        raise ValueError("its bound needs input tokens that are not dearer than output tokens")
    return policy


def window_router(name: str) -> Router[Any]:
    """The router of that name.  Raises `ValueError` for one that is not there."""
    router = ROUTERS.get(name)
    if router is None:
        raise unknown("router", name, ROUTERS)
    return router
