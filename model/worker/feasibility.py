"""What makes a step plan impossible on a worker, as far as the worker shows: one predicate for tests, proofs, guards.

It sees a view, so it cannot know whether a request waits or what the cache really holds;
`model.worker.transitions.begin` checks those too, and refuses whatever is named here.
"""

from collections import Counter
from collections.abc import Iterator

from fairsched.model.decision import Admission, StepPlan, WorkerView


def violations(plan: StepPlan, view: WorkerView) -> tuple[str, ...]:
    """Return every reason why the plan cannot be executed, one sentence each; empty when nothing speaks against it.

    O(size of the plan).
    """
    swaps = _swaps(plan, view) if plan.swap_out or plan.swap_in else ()
    pauses = _pauses(plan, view) if plan.pause or plan.resume else ()
    return (*_requests(plan, view), *pauses, *swaps, *_chunks(plan, view), *_memory(plan, view), *_validity(plan, view))


def _requests(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Check that requests that leave run, requests that enter do not, requests that pause decode, and none is named
    twice."""
    seen: set[int] = set()
    for leaving, how, again in (
        (plan.preempt, "preempted", "preempted twice"),
        (plan.swap_out, "swapped out", "named twice among the requests that leave"),
    ):
        for request_id in leaving:
            if request_id not in view.in_flight:
                yield f"request {request_id} is {how} and does not run"
            if request_id in seen:
                yield f"request {request_id} is {again}"
            seen.add(request_id)
    for request_id in plan.pause + plan.resume:
        if request_id in seen:
            yield f"request {request_id} is named twice among the requests that pause or leave"
        seen.add(request_id)
    for admission in plan.admit:
        if admission.request_id in view.in_flight:
            yield f"request {admission.request_id} is admitted and runs already"
        if admission.request_id in seen:
            yield f"request {admission.request_id} is named twice among the requests that leave or enter"
        if admission.extend_tokens < 1 or admission.cached_prefix_tokens < 0 or admission.reserved_output_tokens < 0:
            yield f"request {admission.request_id} is admitted with {admission.extend_tokens} tokens to compute"
        seen.add(admission.request_id)


def _pauses(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Check that what pauses decodes, and what is resumed is paused."""
    for request_id in plan.pause:
        flight = view.in_flight.get(request_id)
        if flight is None:
            yield f"request {request_id} is paused and does not run"
        elif flight.clock_start is None:
            yield f"request {request_id} is paused and has {flight.remaining_tokens} tokens left to prefill"
        elif flight.clock_paused is not None:
            yield f"request {request_id} is paused already"
    for request_id in plan.resume:
        flight = view.in_flight.get(request_id)
        if flight is None or flight.clock_paused is None:
            yield f"request {request_id} is resumed and is not paused"


def _swaps(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Check that what is swapped out has KV, which fits into host memory; what is swapped in has KV there, and
    enters."""
    need = 0
    for request_id in plan.swap_out:
        if request_id in view.in_flight:
            kv_tokens = view.computed_tokens(request_id)
            need += kv_tokens
            if kv_tokens < 1:
                yield f"request {request_id} is swapped out and has no KV yet"
    if need > view.host.free_tokens:
        yield f"swapping out needs {need} tokens of host memory, and {view.host.free_tokens} are free"
    entering = {admission.request_id for admission in plan.admit}
    for request_id in plan.swap_in:
        if not view.host.kept(request_id):
            yield f"request {request_id} is swapped in and has no KV on the host"
        if request_id not in entering:
            yield f"request {request_id} is swapped in and is not admitted"
    if len(set(plan.swap_in)) < len(plan.swap_in):
        yield "a request is swapped in twice"


def _chunks(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Check that a chunk is of a request that is or enters in the batch, and no longer than what it has left to
    compute."""
    entering = {admission.request_id: admission.extend_tokens for admission in plan.admit}
    entering |= dict.fromkeys(plan.swap_in, 0)
    gone = {*plan.preempt, *plan.swap_out}
    seen: set[int] = set()
    for request_id, tokens in plan.chunks:
        flight = view.in_flight.get(request_id)
        running = 0 if flight is None or request_id in gone else flight.remaining_tokens
        left = entering.get(request_id, running)
        if not 1 <= tokens <= left:
            yield f"request {request_id} has {left} tokens left to compute, and its chunk has {tokens}"
        if request_id in seen:
            yield f"request {request_id} has two chunks"
        seen.add(request_id)


def _memory(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Promised memory fits into free memory, unless a preemption frees an amount that the view does not show."""
    if plan.preempt:
        return
    need = sum(admission.extend_tokens + admission.reserved_output_tokens for admission in plan.admit)
    if view.landed:
        need += sum(_beside_landed(admission, view) for admission in plan.admit)
    if plan.swap_in:
        need += sum(
            max(view.host.kv.get(admission.request_id, 0) - admission.cached_prefix_tokens, 0)
            for admission in plan.admit
            if admission.request_id in plan.swap_in
        )
    # A request that is swapped out takes nothing in this step, and may give back what was reserved for it.
    growing = _growing(plan, view) if plan.decode and not plan.swap_out else 0
    if view.reserves:
        taken = Counter[int]()
        for admission in plan.admit:
            taken[admission.client] += admission.extend_tokens + admission.reserved_output_tokens
        for flight in view.in_flight.values():
            taken[flight.client] += plan.decode and flight.decodes and not flight.reserved
        short = view.free_beside(taken) < 0
    else:
        short = need + growing > view.kv_free_tokens
    if short:
        yield f"admissions and decoding need {need + growing} tokens of KV, and {view.kv_free_tokens} are free"


def _beside_landed(admission: Admission, view: WorkerView) -> int:
    """Return what an admission takes beside what it computes, at least: what it holds already it need not be given, and
    what is cached of that is free."""
    held = view.landed.get(admission.request_id)
    if held is None:
        return 0
    own = max(held.used + 1 - admission.cached_prefix_tokens, admission.extend_tokens)
    return own - admission.extend_tokens - held.promised


def _growing(plan: StepPlan, view: WorkerView) -> int:
    """Return how many requests produce a token into memory that was not reserved, in a step that decodes."""
    if not plan.pause and not plan.resume:
        return view.growing
    stop, go = (
        sum(not view.in_flight[i].reserved for i in requests if i in view.in_flight)
        for requests in (plan.pause, plan.resume)
    )
    return view.growing - stop + go


def _validity(plan: StepPlan, view: WorkerView) -> Iterator[str]:
    """Check that only a step in which no request enters or leaves the batch is repeated without asking again."""
    if plan.valid_steps is not None and plan.valid_steps < 1:
        yield f"the plan is valid for {plan.valid_steps} steps"
    if plan.valid_steps != 1 and plan.changes_batch:
        yield "a plan that preempts, pauses, resumes, swaps or admits is valid for one step only"
    for request_id, tokens in plan.chunks if plan.valid_steps != 1 else ():
        left = view.in_flight[request_id].remaining_tokens if request_id in view.in_flight else 0
        if plan.valid_steps is None or plan.valid_steps * tokens > left:
            steps = "ever" if plan.valid_steps is None else f"{plan.valid_steps} steps"
            yield f"{tokens} tokens of request {request_id} are to be prefilled for {steps}, and {left} are left"
