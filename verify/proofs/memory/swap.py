"""Swapping: host memory never overflows, the worker's text keeps its books, and what P-SWAP says of who is swapped out.

KV-host is about any number of requests.  On the device a swap is what KV-sum knows already: some of what a request was
promised is given back at once, and the rest when its transfer is over.  That the worker's functions do just this is run
on symbolic integers, one request beside any others, as in `fairsched.verify.proofs.memory.memory`.
"""

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from immutables import Map
from msgspec.structs import replace

from fairsched.model import worker as workers
from fairsched.model.decision import Admission, Host
from fairsched.model.worker import InfeasiblePlanError, Waiting, violations
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import AdmissionPass, ComposedPolicy
from fairsched.policies.orders import SkipJoin
from fairsched.policies.orders.abilities import P_SWAP
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import host_memory, preemption, swapping, worker
from fairsched.verify.proofs.memory.memory import LENGTHS, MEMORY, NAMES, Cache, flying, request_of, state_of
from fairsched.verify.proofs.orders import WORLDS, ScenarioStep, steps

# --- any number of requests -----------------------------------------------------------------------------------------


def _events() -> tuple[v.Event, ...]:
    def out(o: Any, w: v.World) -> Mapping[str, Any]:
        return {"kv": o.bump(w.kv, w.r, w.x), "used": w.used + w.x}

    def comes(o: Any, w: v.World) -> Mapping[str, Any]:
        return {"kv": o.put(w.kv, w.r, 0), "vacated": w.vacated + o.pick(w.kv, w.r, 0)}

    def dropped(o: Any, w: v.World) -> Mapping[str, Any]:
        return {"kv": o.put(w.kv, w.r, 0), "used": w.used - o.pick(w.kv, w.r, 0)}

    def landed(o: Any, w: v.World) -> Mapping[str, Any]:
        return {"used": w.used - w.vacated, "vacated": w.vacated - w.vacated}

    fits = v.Need(lambda o, w: (w.x >= 1) & (w.x <= w.H - w.used))
    return (
        v.of_one("swapped out", out, fits, facts="x"),
        v.of_one("swapped in", comes),
        v.of_one("dropped", dropped),
        v.Event("transfers are over", landed, {}, ()),
    )


def _host_claim() -> v.Claim:
    system = v.System(
        "host memory of a worker",
        parameters={"H": v.SCALAR},
        laws=(lambda o, w: w.H >= 0,),
        fields={"kv": v.VECTOR, "used": v.SCALAR, "vacated": v.SCALAR},
        events=_events(),
        derived={"sum": lambda o, w: v.total(o, w.kv)},
    )
    start = (
        v.Clause("nothing is there", lambda o, w: v.same(w.kv, 0) & v.same(w.used, 0)),
        v.Clause("nothing leaves", lambda o, w: v.same(w.vacated, 0)),
    )
    books = (
        v.Clause("kv >= 0", lambda o, w: w.kv >= 0),
        v.Clause("vacated >= 0", lambda o, w: w.vacated >= 0),
        v.Clause("used is the sum of kv and what leaves", lambda o, w: v.same(w.used, w.sum + w.vacated)),
        v.Clause("used <= H", lambda o, w: w.used <= w.H),
    )
    fits = v.Clause("sum of kv + vacated <= H", lambda o, w: w.sum + w.vacated <= w.H)
    return v.Claim(workers.theorems.KV_HOST, system, start, books, (fits,))


# --- the worker's text ----------------------------------------------------------------------------------------------


def _host(w: SimpleNamespace, **fields: Any) -> Host:
    return Host(w.host, w.host_used, **fields)


def _swaps_out(w: SimpleNamespace) -> v.Shown:
    """`swap_out` of a request that decodes, and `land` after it."""
    state = replace(flying(w, w.clock_start, remaining=0), host=_host(w))
    swapped = host_memory.swap_out(state, 0, 0)
    if isinstance(swapped, str):
        return {}
    done = swapped[0]
    landed, _ = host_memory.land(done, 0)
    grew = 0 if w.is_reserved else 1 + w.clock - w.clock_start
    return {
        "the device holds what it held": done.used == w.used,
        "nothing more is promised": done.promised <= w.promised,
        "all but the last token is on the host": done.host.kv[0] == done.queue[0].context_tokens - 1,
        "the host has room": done.host.used_tokens <= w.host,
        "then all of its memory is free": landed.promised == w.promised - w.kv - grew,
        "and it uses none": landed.used == w.used - (w.extend + 1 + w.clock - w.clock_start),
        "the host keeps it": landed.host.used_tokens == w.host_used + done.host.kv[0],
    }


def _swaps_in(w: SimpleNamespace) -> v.Shown:
    """`_admit` of a request that counts on its KV on the host, and `land` after it."""
    context = w.prompt + w.generated
    waiting = Waiting(request_of(w), w.output, w.generated)
    cache: Any = Cache(w.before, w.after, w.cached)
    state = state_of(w, cache, queue=Map({0: waiting}), queue_tokens=context)
    state = replace(state, host=_host(w, kv=Map({0: w.kept})))
    extend = context - max(w.cached, w.kept)
    try:
        done = worker._admit(state, Admission(0, 0, extend, w.cached, w.reserved), 0, [], True)
    except InfeasiblePlanError:
        return {}
    landed, _ = host_memory.land(done, 0)
    return {
        "it computes what is neither cached nor there": done.in_flight[0].remaining_tokens == extend,
        "promised is all of its own": done.promised == w.promised + context - w.cached + w.reserved,
        "protected + promised <= C": done.cache.tree.protected_tokens + done.promised <= w.capacity,
        "what comes is used at once": done.used == w.used + context - w.cached - extend,
        "no more comes than was there": done.host.in_tokens <= w.kept,
        "the host holds it until it has come": done.host.used_tokens == w.host_used,
        "and then no more": landed.host.used_tokens == w.host_used - w.kept,
    }


def _arithmetic_claims() -> tuple[v.ArithmeticClaim, ...]:
    """Return the worker's functions on symbolic integers."""
    names = (*NAMES, "host", "host_used", "kept")
    conditions = (
        *MEMORY,
        *LENGTHS,
        *v.at_least(0, "after", "cached"),
        v.Condition(lambda w: w.cached < w.prompt + w.generated),
        *v.at_least(0, "reserved"),
        v.Condition(lambda w: w.clock >= w.clock_start),
        # No request uses more than it was promised (`worker_invariants`).
        *v.at_least(1, "extend"),
        v.Condition(lambda w: w.kv >= w.extend + 1 + w.clock - w.clock_start),
        v.Condition(lambda w: w.host_used >= w.kept),
        *v.at_least(1, "kept"),
        v.Condition(lambda w: w.kept < w.prompt + w.generated),
    )
    parts = {workers.theorems.KV_SWAP_OUT: _swaps_out, workers.theorems.KV_SWAP_IN: _swaps_in}
    return tuple(v.ArithmeticClaim(theorem, names, conditions, shows) for theorem, shows in parts.items())


# --- step by step ---------------------------------------------------------------------------------------------------

_SWAPPING = st.fixed_dictionaries(
    {
        "host": st.integers(1, 90),
        "percent": st.sampled_from([0, 10, 30]),
        "moves": st.sampled_from([1, 6, 100]),
        "reserve": st.sampled_from(["static", "optimistic"]),
    }
)


def _policy(w: SimpleNamespace, kind: type[ComposedPolicy]) -> ComposedPolicy:
    order = SkipJoin(
        quantum_us=1,
        step_us=3,
        promote_ms=1,
        prefill_token_ns=500,
        prefill_constant_us=0,
        swap_free_percent=w.percent,
        swap_step_tokens=w.moves,
    )
    return kind("swaps", order, OpenGate(), Chunked(reserve=w.reserve))


def _at_every_token() -> tuple[int, int]:
    """Return how often a request of three tokens is swapped out, for whom one seat is wanted after each but the
    last."""
    rows = [[0, 6, 3, 1], [1, 1, 1, 1], [3, 1, 1, 1]]
    world = SimpleNamespace(capacity=30, seats=1, host=30, percent=0, moves=100, reserve="static", rows=rows)
    plans = [step.plan for step in steps(_policy(world, ComposedPolicy), world)]
    return sum(plan.swap_out.count(0) for plan in plans), rows[0][2] - 1


@v.sampled(P_SWAP, st.builds(lambda world, swap: {**world, **swap}, WORLDS, _SWAPPING), attained=_at_every_token)
def swapped(w: SimpleNamespace, kind: type[ComposedPolicy] = ComposedPolicy) -> v.Shown:
    """FastServe's order, with levels of the size of a small world."""
    try:
        moving = [step for step in steps(_policy(w, kind), w) if step.plan.swap_out or step.plan.swap_in]
    except InfeasiblePlanError:
        return {"feasible": False}
    times = Counter(i for step in moving for i in step.plan.swap_out)
    shown = {
        "a token each": all(step.worker.view(0).decoded_tokens(i) for step in moving for i in step.plan.swap_out),
        "fewer times than tokens": all(count < w.rows[i][2] for i, count in times.items()),
        "one token again": all(map(_one_token, moving)),
        "feasible": not any(violations(step.plan, step.worker.view(0)) for step in moving),
    }
    return shown if moving else {}


def _one_token(step: ScenarioStep) -> bool:
    return all(a.extend_tokens == 1 for a in step.plan.admit if a.request_id in step.plan.swap_in)


def claims() -> tuple[v.Claim | v.ArithmeticClaim | v.SampledClaim, ...]:
    """About what ships."""
    return (_host_claim(), *_arithmetic_claims(), swapped())


# --- seeded bugs ----------------------------------------------------------------------------------------------------


def _deciding(**names: Any) -> type[ComposedPolicy]:
    """Return a policy in whose swapping these names mean something else."""
    step = v.with_names(swapping.swapping_step, **names)
    return type("Swaps", (ComposedPolicy,), {"step": v.with_names(ComposedPolicy.step, swapping_step=step)})


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    everyone = v.with_names(
        preemption.standings, displaceable=lambda flight: flight.remaining_tokens < flight.context_tokens
    )
    any_behind = v.with_names(preemption.behind, standings=everyone)
    hasty = _deciding(_victims=v.with_names(swapping._victims, behind=any_behind), standings=everyone)
    forgetful = _deciding(
        AdmissionPass=v.changed(AdmissionPass, "admit", ", entry.kv_tokens, kept)", ", entry.kv_tokens)")
    )
    return (
        v.Bug("who has produced nothing is swapped out", swapped(hasty)),
        v.Bug("who comes back computes all again", swapped(forgetful)),
    )
