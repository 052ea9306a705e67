"""Who is preempted: P-NP-1, P-FC-1, P-DISPLACED, and TRAIL's, FastServe's, learning to rank's and Splitwise's theorems.

Levels and standings are functions of few integers, and are tried for all up to a size.  The others are about what
happens step by step, and are tried in drawn worlds of the shipped policies.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import attrs
import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.model.worker import InfeasiblePlanError, WorkerState
from fairsched.policies import orders
from fairsched.policies.batching import BATCHINGS, P_FC_1, P_NP_1, Chunked, RequestLevel
from fairsched.policies.catalog import FCFSOptimistic, LearningToRank, NoPreempt
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, changed, refuted, sampled, with_names
from fairsched.verify.proofs.kernels import preemption
from fairsched.verify.proofs.orders.scenarios import WORLDS, ScenarioStep, steps

ORDERS: tuple[orders.Order, ...] = (
    orders.ShortestRemaining(100),
    orders.ShortestPredicted(starve_steps=4, period_steps=2),
    orders.SkipJoin(quantum_us=1, step_us=3, promote_ms=1, prefill_token_ns=500, prefill_constant_us=0),
)
"""Orders that displace, with parameters of the size of a small world."""


# --- levels and standings -------------------------------------------------------------------------------------------

QUANTA, PREFILLS, SERVICES = range(1, 6), range(1, 70), 80
"""Up to which quantum, prefill and further service levels are tried."""


def _levels() -> Iterator[Mapping[str, Any]]:
    for quantum, prefill in product(QUANTA, PREFILLS):
        yield {"quantum": quantum, "prefill": prefill}


@sampled(orders.P_FS_1, _levels)
def levels(
    w: SimpleNamespace, join: Callable[[int, int], int] = orders.join_level, after: Any = orders.level_after
) -> Shown:
    """Against the rule taken by its word: time is served one by one, and each level's quantum runs out."""
    first = next(p for p in range(99) if w.quantum * 2**p >= w.prefill)
    level, here, right = first, w.prefill, join(w.prefill, w.quantum) == first
    for service in range(w.prefill, w.prefill + SERVICES):
        while here > w.quantum * 2**level:
            here, level = here - w.quantum * 2**level, level + 1
        right &= after(first, service, w.quantum) == level
        right &= orders.service_left(first, level, service, w.quantum) == w.quantum * 2**level - here
        here += 1
    return {"level by level": right}


def _predictions() -> Iterator[Mapping[str, Any]]:
    for predicted, percent in product(range(1, 13), range(0, 101, 5)):
        yield {"predicted": predicted, "percent": percent}


@sampled(orders.P_TRAIL, _predictions)
def withstands(w: SimpleNamespace, order: type[orders.ShortestRemaining] = orders.ShortestRemaining) -> Shown:
    """Return a copy with up to twelve predicted tokens of fourteen, and any limit."""
    request = Request(0, 0, 0, Prompt(1), 14, w.predicted)
    stands = [order(w.percent).preemption_rank(request, generated, None) for generated in range(1, 15)]
    later = pairwise(stands)
    return {"no less": all(b is None or (a is not None and b >= a) for a, b in later)}


# --- step by step ---------------------------------------------------------------------------------------------------


def _played(kind: Callable[[], ComposedPolicy], w: SimpleNamespace) -> Iterator[ScenarioStep]:
    """Yield the policy's steps under the world's batching rule."""
    policy = kind()
    rule = BATCHINGS[w.batching](reserve=policy.batching.reserve)
    return steps(attrs.evolve(policy, batching=rule), w)


_RULES = st.builds(lambda world, rule: {**world, "batching": rule}, WORLDS, st.sampled_from(sorted(BATCHINGS)))


@sampled(P_NP_1, _RULES, drawn=100)
def none_preempted(w: SimpleNamespace, policy: type[ComposedPolicy] = NoPreempt) -> Shown:
    """No-preempt under every batching rule."""
    return {"none preempted": not any(step.plan.preempt for step in _played(policy, w))}


@sampled(P_FC_1, _RULES, drawn=100)
def oldest_stays(w: SimpleNamespace, policy: type[ComposedPolicy] = FCFSOptimistic) -> Shown:
    """First come, first served under every batching rule, with outputs that grow."""
    found = [_first(step) for step in _played(policy, w) if step.worker.running]
    return {
        "stays": all(stays for stays, _, _ in found),
        "the oldest": all(oldest for _, _, oldest in found),
        "computes": w.batching != Chunked.name or all(computes for _, computes, _ in found),
    }


def _first(step: ScenarioStep) -> tuple[bool, bool, bool]:
    """Return whether the first of the batch stays, computes, and is the oldest of all."""
    first = step.worker.ranks.first()[1]
    flights, entries = step.before.flights, step.before.queue.entries
    ages = [flight.entry.age for flight in flights.values()] + [entry.age for entry in entries.values()]
    before, after = step.worker.in_flight[first], step.after.in_flight.get(first)
    computes = after is None or (
        after.remaining_tokens < before.remaining_tokens
        or step.after.view(0).decoded_tokens(first) > step.worker.view(0).decoded_tokens(first)
    )
    return first not in step.plan.preempt, computes, flights[first].entry.age == min(ages)


def _at_every_token() -> tuple[int, int]:
    """Return how often a request of three tokens is displaced, of which nine were predicted."""
    world = SimpleNamespace(capacity=30, seats=1, rows=[[0, 2, 3, 9], [1, 1, 1, 1], [2, 1, 1, 1]])
    policy = ComposedPolicy("displaces", ORDERS[0], OpenGate(), Chunked())
    return sum(step.plan.preempt.count(0) for step in steps(policy, world)), world.rows[0][2] - 1


@sampled(
    orders.abilities.P_DISPLACED,
    st.builds(lambda world, order: {**world, "order": order}, WORLDS, st.integers(0, len(ORDERS) - 1)),
    attained=_at_every_token,
)
def displacing(w: SimpleNamespace, kind: type[ComposedPolicy] = ComposedPolicy) -> Shown:
    """Outputs are reserved, so a preempted request is displaced."""
    policy = kind("displaces", ORDERS[w.order], OpenGate(), Chunked())
    try:
        taken = [step for step in steps(policy, w) if step.plan.preempt]
    except InfeasiblePlanError:
        return {"feasible": False}
    times = Counter(request_id for step in taken for request_id in step.plan.preempt)
    return {
        "a token each": all(step.worker.view(0).decoded_tokens(i) for step in taken for i in step.plan.preempt),
        "behind": all(_ranks_behind(step) for step in taken),
        "fewer times than tokens": all(count < w.rows[i][2] for i, count in times.items()),
    }


def _ranks_behind(step: ScenarioStep) -> bool:
    """Return whether the one that enters ranked before those who wait again for it, as they are ranked then."""
    (admission,) = step.plan.admit
    rank = step.before.queue.scores[admission.request_id] >> orders.AGE_BITS
    return all(step.decided.queue.scores[i] >> orders.AGE_BITS < rank for i in step.plan.preempt)


STARVE = 4


@sampled(orders.P_LTR_1, WORLDS)
def promoted_first(w: SimpleNamespace, order: type[orders.ShortestPredicted] = orders.ShortestPredicted) -> Shown:
    """Return one client, outputs that grow.  How long each waits is counted here, anew."""
    policy = LearningToRank(order=order(starve_steps=STARVE, period_steps=3))
    waited: Counter[int] = Counter()
    fair = True
    for step in steps(policy, w):
        admitted = {admission.request_id for admission in step.plan.admit}
        left = set(step.worker.queue) - admitted
        starving = any(waited[i] >= STARVE for i in left)
        fair &= not starving or all(waited[i] >= STARVE for i in admitted)
        produced = step.after.clock > step.worker.clock or len(step.after.prefilling) < len(
            {*(i for i, _ in step.worker.prefilling), *admitted} - set(step.plan.preempt)
        )
        waited = Counter({i: waited[i] + produced if i in left else int(produced) for i in step.after.queue})
    return {"the starving first": fair}


# --- what is false --------------------------------------------------------------------------------------------------


def _served_in_time(w: SimpleNamespace) -> Shown:
    """Return one seat, and requests of one token, two a step, and a long one that comes when some of them are
    promoted."""
    order, rule = orders.ShortestPredicted(w.starve, w.period), RequestLevel(max_running=1)
    play, came = WorkerPlay(LearningToRank(order=order, batching=rule), WorkerState(0, 40)), 0
    for now in range(w.late + w.steps):
        for _ in range(w.coming + (now == w.late)):
            came += 1
            late = now == w.late and came == 1 + w.coming * w.late
            outputs = 9 if late else 1
            play.arrive(Request(0 if late else came, 0, now, Prompt(1), outputs), outputs, now)
        play.step(now, took_ns=1)
    return {"in time": w.steps <= w.starve + w.period or 0 not in play.worker.queue}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return what is said of promotions."""
    return (
        refuted(
            "F-LTR-1",
            "no request waits through more than starve_steps + period_steps steps",
            "learning to rank, as it is told",
            _served_in_time,
            {"starve": 5, "period": 5, "coming": 2, "late": 20, "steps": 100},
            variant="the order that ships: promoted requests are ordered by their predictions, too",
            instead=orders.P_LTR_1.id,
            text="two requests of one token come in a step, and one is served: one of nine that comes later waits for "
            "ever",
        ),
    )


CAP = 1


def _as_often_as_the_cap() -> tuple[int, int]:
    """Return how often a request is displaced by a prompt whenever it may be."""
    world = SimpleNamespace(capacity=30, seats=1, rows=[[0, 2, 12, 12], *([3, 2, 1, 1] for _ in range(CAP + 2))])
    policy = ComposedPolicy("displaces", orders.PromptsFirst(CAP), OpenGate(), Chunked())
    return sum(step.plan.preempt.count(0) for step in steps(policy, world)), CAP


@sampled(orders.P_SW_2, WORLDS, attained=_as_often_as_the_cap)
def capped(w: SimpleNamespace, order: type[orders.PromptsFirst] = orders.PromptsFirst) -> Shown:
    """Outputs are reserved, so a preempted request is displaced."""
    policy = ComposedPolicy("displaces", order(CAP), OpenGate(), Chunked())
    try:
        taken = Counter(request_id for step in steps(policy, w) for request_id in step.plan.preempt)
    except InfeasiblePlanError:
        return {"feasible": False}
    return {"at most so often": max(taken.values(), default=0) <= CAP}


def claims() -> tuple[SampledClaim, ...]:
    """About what ships."""
    return (none_preempted(), oldest_stays(), displacing(), withstands(), levels(), promoted_first(), capped())


# --- seeded bugs ----------------------------------------------------------------------------------------------------


def _hasty() -> type[ComposedPolicy]:
    """Displace also requests that have produced nothing yet."""
    everyone = with_names(preemption.standings, displaceable=lambda flight: True)
    behind = with_names(preemption.behind, standings=everyone)
    hasty = with_names(preemption.displaced, behind=behind, standings=everyone)
    step = with_names(ComposedPolicy.step, displaced=hasty)
    return type("Hasty", (ComposedPolicy,), {"step": step})


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    longest = changed(orders.ShortestRemaining, "rank_after", "- generated_tokens", "+ generated_tokens")
    unpromoted = changed(orders.ShortestPredicted, "rank_after", "TOKENS_MAX if promoted", "0 if promoted")
    from_the_front = changed(FCFSOptimistic, "_preempt", "reversed(view.running_ranks)", "view.running_ranks")
    aged, capped_at = "cap + queued.preemptions", "None if queued.preemptions >= cap else "
    uncapped = changed(orders.PromptsFirst, "preemption_rank_queued", capped_at + aged, "cap")
    return (
        Bug("a request yields however often it did", capped(changed(uncapped, "rank_queued", "3 * cap", "cap"))),
        Bug("outputs are not reserved", none_preempted(FCFSOptimistic)),
        Bug("the oldest is preempted first", oldest_stays(from_the_front)),
        Bug("who has produced nothing is displaced", displacing(_hasty())),
        Bug("what is left grows", withstands(longest)),
        Bug("a prefill of exactly a quantum joins the next level", levels(lambda t, q: (t // q).bit_length())),
        Bug("a level is left when its quantum is over", levels(after=lambda j, s, q: orders.level_after(j, s + 1, q))),
        Bug("no request is promoted", promoted_first(unpromoted)),
    )
