"""What policies and routers return, looked at: only values of the right types, all through, come out.

Types are compared and not asked for (`isinstance`), so that no code of a policy runs when the values are used later.
"""

from types import CoroutineType, GeneratorType
from typing import Any

from fairsched.engines.serving.guard.advisor import FaultError
from fairsched.engines.serving.guard.budget import text_of
from fairsched.model.decision import Admission, ClusterPlan, Dispatch, Migration, StepPlan

SIZE_MAX = 1 << 62
"""No number of a decision is larger."""


def plan_of(answer: object) -> tuple[StepPlan, Any]:
    """Return a policy's plan and state.  Raises `FaultError`.  O(plan)."""
    plan, state = _pair(answer)
    if type(plan) is not StepPlan or not _is_plan(plan):
        raise unfit(plan, "a plan")
    return plan, state


def dispatch_of(answer: object) -> tuple[Dispatch, Any]:
    """Return a router's dispatch and state.  Raises `FaultError`."""
    dispatch, state = _pair(answer)
    if type(dispatch) is not Dispatch or not (
        _sizes(dispatch.request_id, dispatch.worker) and type(dispatch.prefill_only) is bool
    ):
        raise unfit(dispatch, "a dispatch")
    return dispatch, state


def cluster_plan_of(answer: object) -> tuple[ClusterPlan, Any]:
    """Return the plan of a cluster's policy, and its state.  Raises `FaultError`."""
    plan, state = _pair(answer)
    if type(plan) is not ClusterPlan or type(plan.migrations) is not tuple or type(plan.dispatches) is not tuple:
        raise unfit(plan, "a cluster's plan")
    for one in plan.dispatches:
        dispatch_of((one, state))
    for each in plan.migrations:
        if type(each) is not Migration or not (
            _sizes(each.request_id, each.source, each.target, each.reserved_output_tokens)
            and type(each.with_kv) is bool
            and type(each.overlap) is str
            and each.overlap in ("none", "chunks", "layers")
        ):
            raise unfit(each, "a migration")
    return plan, state


def unfit(what: object, wanted: str) -> FaultError:
    """Return the error of an answer that is not what was wanted."""
    if isinstance(what, CoroutineType | GeneratorType):
        what.close()
    return FaultError("infeasible", f"{text_of(what)} is not {wanted}")


def _pair(answer: object) -> tuple[Any, Any]:
    if type(answer) is not tuple or len(answer) != 2:
        raise unfit(answer, "a pair of a decision and a state")
    return answer


def _is_plan(plan: StepPlan) -> bool:
    named = (plan.preempt, plan.swap_out, plan.swap_in, plan.pause, plan.resume)
    return (
        all(type(each) is tuple for each in (*named, plan.admit, plan.chunks))
        and all(_sizes(*requests) for requests in named)
        and _sizes(plan.padding_tokens)
        and all(map(_is_admission, plan.admit))
        and all(type(chunk) is tuple and len(chunk) == 2 and _sizes(*chunk) for chunk in plan.chunks)
        and type(plan.decode) is bool
        and (plan.valid_steps is None or _sizes(plan.valid_steps))
    )


def _is_admission(each: object) -> bool:
    return type(each) is Admission and _sizes(
        each.request_id, each.client, each.extend_tokens, each.cached_prefix_tokens, each.reserved_output_tokens
    )


def _sizes(*numbers: object) -> bool:
    return all(type(each) is int and -SIZE_MAX < each < SIZE_MAX for each in numbers)
