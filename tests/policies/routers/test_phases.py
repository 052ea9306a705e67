"""Split phases: where requests go between two routers, what happens without workers for one, and DistServe's rules."""

from collections import Counter, defaultdict
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads.fleet import Change, Crash, KvLink, LinkDown, WorkerSpec
from fairsched.model import events as ev
from fairsched.model.decision import ClusterView, Migration, Role, WorkerLoad
from fairsched.model.events import Event
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import CappedPrefill, EagerPrefill
from fairsched.policies.catalog import DistServeLocal, DistServeLocalReleased
from fairsched.policies.routers import (
    D2LPM,
    DistServe,
    DistServeReleased,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    SplitPhases,
)
from fairsched.policies.routers.phases import saturating_prompt
from fairsched.policies.routers.phases.split import AnyState

MODEL = PRESETS["opt-13b-a100"]
LINK = KvLink(819_200, 300_000_000_000)
CAPACITY = 1_000
SPLIT: tuple[SplitPhases, ...] = (DistServe(), DistServeReleased(), SplitJSQ(), SplitP2C(), SplitD2LPM())
NAMES = [router.name for router in SPLIT]


def view(*roles: Role, free: int = CAPACITY, waiting_tokens: int = 0) -> ClusterView:
    """Equal workers of these roles."""
    loads = (WorkerLoad(i, 0, 0, waiting_tokens, free, CAPACITY, role) for i, role in enumerate(roles))
    return ClusterView(0, tuple(loads))


def request(request_id: int, prompt: int = 10, output: int = 5) -> Request:
    """A request."""
    return Request(request_id, 0, 0, Prompt(prompt), output)


def staged(router: SplitPhases, count: int, source: int = 0, prompt: int = 10) -> AnyState:
    """The state in which so many requests are staged at a worker."""
    state = router.init()
    for i in range(count):
        _, state = router.route(state, request(i, prompt), view("prefill", "decode"))
        state = router.observe(state, ev.Migrated(1, source, i, 0, True, 0, 1, prompt))
    router.check(state)
    return state


def decided(router: SplitPhases, state: AnyState, seen: ClusterView) -> tuple[list[Migration], AnyState]:
    """What moves, and the state afterwards, which is sound."""
    plan, state = router.decide(state, seen)
    router.check(state)
    return list(plan.migrations), state


# --- where requests go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", SPLIT, ids=NAMES)
@pytest.mark.parametrize(
    ("roles", "taken", "splits"),
    [
        (("prefill", "decode"), {0}, True),
        (("decode", "prefill", "both"), {1, 2}, True),
        (("prefill", "prefill"), {0, 1}, False),
        (("decode", "decode"), {0, 1}, False),
        (("both",), {0}, False),
        (("both", "both"), {0, 1}, True),
    ],
    ids=str,
)
def test_prompts_go_to_workers_that_compute_them(
    router: SplitPhases, roles: tuple[Role, ...], taken: set[int], splits: bool
) -> None:
    """To the prefill pool, for the prefill alone; where a phase has no worker, to the other pool for all of it."""
    state = router.init()
    for i in range(6):
        dispatch, state = router.route(state, request(i), view(*roles))
        assert dispatch.worker in taken
        assert dispatch.prefill_only == splits


@pytest.mark.parametrize("router", [DistServe(), SplitJSQ()], ids=lambda router: router.name)
@given(count=st.integers(1, 12), workers=st.integers(1, 4))
def test_the_requests_of_one_batch_spread(router: SplitPhases, count: int, workers: int) -> None:
    """Requests that are staged together go to equal decode workers in equal numbers, up to one, and in their order."""
    decoding: list[Role] = ["decode"]
    moves, _ = decided(router, staged(router, count), view("prefill", *decoding * workers))
    assert [move.request_id for move in moves] == list(range(count))
    at = Counter(move.target for move in moves)
    assert max(at.values()) - min([at[i + 1] for i in range(workers)]) <= 1
    assert all(move.with_kv and move.reserved_output_tokens == 4 for move in moves)


def test_optimistic_transfers_reserve_nothing_for_outputs() -> None:
    """With `reserve=optimistic` the target keeps room for the KV alone."""
    router = SplitJSQ(reserve="optimistic")
    (move,), _ = decided(router, staged(router, 1), view("prefill", "decode"))
    assert move.reserved_output_tokens == 0


@pytest.mark.parametrize("router", SPLIT, ids=NAMES)
def test_without_workers_for_decode_a_staged_request_goes_on(router: SplitPhases) -> None:
    """It stays where it is, and so does one that no worker for decode could hold whole."""
    moves, state = decided(router, staged(router, 2), view("prefill", "prefill"))
    assert [(move.source, move.target) for move in moves] == [(0, 0)] * 2
    assert not state.handovers.requests
    moves, _ = decided(router, staged(router, 1, prompt=CAPACITY), view("prefill", "decode"))
    assert [(move.source, move.target) for move in moves] == [(0, 0)]


@pytest.mark.parametrize("router", SPLIT, ids=NAMES)
def test_what_failed_is_sent_again(router: SplitPhases) -> None:
    """After a failed transfer, and after its target has left, to another worker; lost KV is not sent."""
    seen = view("prefill", "decode", "decode")
    (move,), state = decided(router, staged(router, 1), seen)
    assert decided(router, state, seen)[0] == []
    state = router.observe(state, ev.TransferStarted(2, 0, 0, 0, move.target, 10, 14))
    assert not state.handovers.owed
    failed = router.observe(state, ev.TransferFailed(3, 0, 0, 0, move.target))
    assert len(decided(router, failed, seen)[0]) == 1
    left = router.observe(state, ev.WorkerLeft(3, move.target))
    (again,), _ = decided(
        router, left, replace(seen, workers=tuple(w for w in seen.workers if w.worker != move.target))
    )
    assert again.target not in (move.target, 0)
    lost = router.observe(router.observe(state, ev.WorkerLeft(3, 0)), ev.TransferFailed(3, 0, 0, 0, move.target))
    assert decided(router, lost, seen)[0] == []
    there = router.observe(state, ev.Arrived(3, move.target, request(0), 1, 10))
    assert not there.handovers.requests


@pytest.mark.parametrize("router", SPLIT, ids=NAMES)
def test_what_waits_for_a_worker_that_drains_is_sent_elsewhere(router: SplitPhases) -> None:
    """A worker that drains keeps what it has reserved memory for, and gets nothing else."""
    seen = view("prefill", "decode", "decode")
    (move,), state = decided(router, staged(router, 1), seen)
    draining = router.observe(state, ev.WorkerDraining(2, move.target))
    others = tuple(load for load in seen.workers if load.worker != move.target)
    (again,), _ = decided(router, draining, replace(seen, workers=others))
    assert again.target not in (move.target, 0)
    reserved = router.observe(state, ev.TransferStarted(2, 0, 0, 0, move.target, 10, 14))
    assert decided(router, router.observe(reserved, ev.WorkerDraining(3, move.target)), seen)[0] == []


def test_states_of_routers_with_routers_inside_are_kept() -> None:
    """A document holds the states of both, and of a router inside of one."""
    router = SplitPhases(prefill=D2LPM(), decode=SplitP2C().decode)
    state = staged(router, 3)
    kept = router.state_from_json(router.state_to_json(state))
    assert router.state_to_json(kept) == router.state_to_json(state)
    assert decided(router, kept, view("prefill", "decode"))[0] == decided(router, state, view("prefill", "decode"))[0]


# --- whole runs -------------------------------------------------------------------------------------------------------


def fleet(prefill: int, decode: int, capacity: int = 4_000) -> list[WorkerSpec]:
    """Workers of both roles."""
    computing = [WorkerSpec(MODEL, capacity, role="prefill")] * prefill
    return computing + [WorkerSpec(MODEL, capacity, role="decode")] * decode


def work(drawn: list[tuple[int, int, int]]) -> Workload:
    """Requests of (gap in ms, prompt, output)."""
    jobs, at = [], 0
    for i, (gap, prompt, output) in enumerate(drawn):
        at += gap * 1_000_000
        jobs.append(Job(Request(i, 0, at, Prompt(prompt), output), output))
    return Workload("drawn", tuple(jobs), (Client(0, "a"),))


def run(jobs: Workload, router: SplitPhases, workers: list[WorkerSpec], local: Any = None, **more: Any) -> list[Event]:
    """All events of a run."""
    return simulate_events(jobs, local or DistServeLocal(), router, MODEL, workers=workers, link=LINK, **more)


drawn_work = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 900), st.integers(1, 60)), min_size=1, max_size=25)


@settings(max_examples=20)
@given(drawn_work, st.sampled_from(SPLIT), st.integers(1, 2), st.integers(1, 2))
def test_prompts_are_computed_here_and_outputs_there(
    drawn: list[tuple[int, int, int]], router: SplitPhases, prefill: int, decode: int
) -> None:
    """Every request ends once; prefill workers compute prompts and first tokens, decode workers the rest."""
    # With room for all: a preempted output would be computed again where it is.
    events = run(work(drawn), router, fleet(prefill, decode, 60_000))
    ended = [event for event in events if isinstance(event, ev.Finished)]
    assert sorted(event.request_id for event in ended) == list(range(len(drawn)))
    assert all((event.worker < prefill) == (event.output_tokens == 1) for event in ended)
    computed = Counter[bool]()
    for event in events:
        if isinstance(event, ev.Prefilled):
            computed[event.worker < prefill] += event.tokens
            assert event.worker < prefill or event.tokens == 1
    assert computed[True] == sum(prompt for _, prompt, _ in drawn)


@settings(max_examples=10)
@given(drawn_work)
def test_a_run_with_tight_memory_is_the_same_step_by_step(drawn: list[tuple[int, int, int]]) -> None:
    """Transfers that wait for room, outputs that grow and preemptions do not depend on leaps."""
    local = DistServeLocal(batching=EagerPrefill(max_batched_tokens=512, reserve="optimistic"))
    router = DistServe(reserve="optimistic")
    logs = [
        [
            event
            for event in run(work(drawn), router, fleet(2, 1, 1_100), local, leap=leap)
            if type(event) is not ev.Decoded
        ]
        for leap in (True, False)
    ]
    assert logs[0] == logs[1]


@settings(max_examples=20)
@given(drawn_work, st.sampled_from(SPLIT), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2_000)), max_size=4))
def test_every_request_ends_once_whatever_fails(
    drawn: list[tuple[int, int, int]], router: SplitPhases, faults: list[tuple[int, int]]
) -> None:
    """Workers that die and come back, and links that fail, at any moment."""
    changes: list[Change] = []
    for worker, at in faults:
        kinds = (Crash(worker, at * 1_000_000, 50_000_000), LinkDown(worker, at * 1_000_000, 20_000_000))
        changes.append(kinds[at % 2])
    events = run(work(drawn), router, fleet(1, 2), changes=changes)
    ended = Counter(event.request_id for event in events if isinstance(event, ev.Finished | ev.Rejected))
    assert ended == Counter(range(len(drawn)))


# --- DistServe's own rules --------------------------------------------------------------------------------------------


def test_the_shortest_prompt_that_saturates() -> None:
    """It is computed at 88 % of the highest rate, and a shorter one is not; of OPT-13B it is near the paper's 512."""
    for model in PRESETS.values():
        tokens = saturating_prompt(model)
        rates = [n / model.step_ns(((n, 0),), 0, 0) for n in range(1, 40_000, 7)]
        rate, less = (n / model.step_ns(((n, 0),), 0, 0) for n in (tokens, max(tokens - 2, 1)))
        assert rate >= 0.8799 * max(rates)
        assert less < 0.8801 * max(rates) or tokens == 1
    assert saturating_prompt(MODEL) == 501


@settings(max_examples=25)
@given(drawn_work)
def test_batches_of_prompts_are_filled_in_order(drawn: list[tuple[int, int, int]]) -> None:
    """Steps compute whole prompts in order of arrival, up to 512 tokens or one alone, and stop only where the next does
    not fit or has not come."""
    events = run(work(drawn), DistServe(), fleet(1, 1, 60_000))
    steps = defaultdict(list)
    arrived = {
        event.request.id: event.time_ns for event in events if isinstance(event, ev.Arrived) and not event.worker
    }
    began: dict[int, int] = {}
    for event in events:
        if isinstance(event, ev.Admitted) and not event.worker:
            began[event.request_id] = event.time_ns
            steps[event.time_ns].append(event.request_id)
    assert [i for each in sorted(steps) for i in steps[each]] == list(range(len(drawn)))
    for at, batch in steps.items():
        tokens = sum(drawn[i][1] for i in batch)
        assert tokens <= 512 or len(batch) == 1
        following = batch[-1] + 1
        if following < len(drawn) and arrived[following] < at:
            assert tokens + drawn[following][1] > 512


def test_the_released_workers_refuse_what_they_would_never_compute() -> None:
    """A prompt above the budget is rejected with both numbers when it comes, and the line goes on."""
    local = DistServeLocalReleased(batching=CappedPrefill(max_batched_tokens=100))
    events = run(work([(0, 101, 5), (0, 100, 5)]), DistServeReleased(), fleet(1, 1), local)
    (rejected,) = [event for event in events if isinstance(event, ev.Rejected)]
    assert (rejected.request_id, rejected.reason) == (
        0,
        "a prompt of 101 tokens is longer than a batch may be (max_batched_tokens = 100)",
    )
    assert [event.request_id for event in events if isinstance(event, ev.Finished)] == [1]


def test_the_released_rule_accepts_kv_while_little_waits_and_it_fits() -> None:
    """Below 5 % of the memory may wait, and the KV must fit now; otherwise all that is staged waits."""
    roles: tuple[Role, ...] = ("prefill", "decode")
    router = DistServeReleased()
    state = staged(router, 3)
    for seen, sent in (
        (view(*roles, waiting_tokens=49, free=10_000), 3),
        (view(*roles, waiting_tokens=50), 0),
        (view(*roles, free=9), 0),
        (view(*roles, free=10), 1),
        (view(*roles, free=30), 2),
    ):
        moves, after = decided(attrs.evolve(router), state, seen)
        assert len(moves) == sent
        assert after.handovers.staged == tuple(range(sent, 3))
