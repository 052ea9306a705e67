"""What an engine makes of a plan that it does not execute as it is."""

from msgspec.structs import replace

from fairsched.model.plan import Admission, StepPlan


def misjudged(admissions: tuple[Admission, ...], more: int) -> tuple[Admission, ...]:
    """The admissions, the last of them for so many more tokens to compute, at least 1 and at most all."""
    last = admissions[-1]
    context = last.extend_tokens + last.cached_prefix_tokens
    planned = min(max(last.extend_tokens + more, 1), context)
    wrong = replace(last, extend_tokens=planned, cached_prefix_tokens=context - planned)
    return (*admissions[:-1], wrong)


CHANGES = (
    *("no-admissions", "not-the-first", "not-the-last", "half-chunks", "no-chunks"),
    *("no-swaps", "no-pauses", "idle"),
)
"""How `changed` may change a plan."""


def changed(plan: StepPlan, change: str) -> StepPlan:
    """The plan as an engine might change it."""
    if change == "idle":
        return StepPlan(plan.preempt, decode=False, swap_out=plan.swap_out)
    if change == "no-swaps":
        return replace(plan, preempt=plan.preempt + plan.swap_out, swap_out=(), swap_in=())
    if change == "no-pauses":
        return replace(plan, pause=(), resume=())
    dropped = {"no-admissions": plan.admit, "not-the-first": plan.admit[:1], "not-the-last": plan.admit[-1:]}
    gone = {admission.request_id for admission in dropped.get(change, ())}
    halves = tuple((i, (tokens + 1) // 2) for i, tokens in plan.chunks)
    chunks = {"half-chunks": halves, "no-chunks": ()}.get(change, plan.chunks)
    return StepPlan(
        plan.preempt,
        tuple(admission for admission in plan.admit if admission.request_id not in gone),
        tuple(chunk for chunk in chunks if chunk[0] not in gone),
        plan.decode,
        swap_out=plan.swap_out,
        swap_in=tuple(request_id for request_id in plan.swap_in if request_id not in gone),
        pause=plan.pause,
        resume=plan.resume,
    )
