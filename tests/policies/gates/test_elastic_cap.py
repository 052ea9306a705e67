"""An elastic cap: what it keeps out, what it counts, and that D-elastic holds of runs under it."""

from collections import Counter
from itertools import combinations
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import Simulator
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    Decoded,
    Event,
    Finished,
    Migrated,
    Preempted,
    Rejected,
    WorkerLeft,
)
from fairsched.model.latency import DEFAULT_PRESET, PRESETS
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate
from fairsched.policies.gates.deficit import gate as kernel
from fairsched.policies.guarantees import ContendedGaps, ContendedReport
from fairsched.policies.registry import CLUSTER_POLICIES
from tests.support.policy_play import Play

MEMORY = 200


def elastic(cap: int, **params: Any) -> DLPM:
    """DLPM with such a cap."""
    return DLPM(gate=DeficitGate(in_flight_cap_tokens=cap, cap_holds="contended", **params))


def test_a_client_alone_has_the_whole_worker() -> None:
    """Under a cap of 12 a client runs more than two requests of 6 until another one waits, which goes first then."""
    play = Play(elastic(12))
    for _ in range(6):
        play.arrive(0, prompt=4, output=2)
    assert play.admitted() == [0, 1, 2, 3, 4, 5]
    play.arrive(1, prompt=30, output=20)
    play.arrive(1, prompt=30, output=20)
    assert play.admitted()[:3] == [0, 1, 6]
    assert play.policy.refuses(play.worker.queue[6].request) is None


def test_a_request_over_the_cap_goes_when_nothing_of_its_client_runs() -> None:
    """It is not refused, however long others wait: it waits for its own client's requests."""
    play = Play(elastic(12), 60)
    play.arrive(0, prompt=4, output=4)
    play.step()
    large = play.arrive(0, prompt=20, output=3)
    for _ in range(20):
        play.arrive(1, prompt=30, output=2)
    play.step()
    assert play.policy.wait_reason(play.state, play.worker.view(1), large) in ("cap", "memory")
    play.step(12)
    assert large in play.finished()


def test_outputs_count_as_the_last_ones_were() -> None:
    """Declared outputs of 50 count whole until one request ended after 2; from then on 2 of them do."""
    play = Play(elastic(20), 1_000)
    for client in (0, 1) * 9:
        play.arrive(client, prompt=4, output=2, output_max=50)
    play.step()
    assert play.state.gate.in_flight.tolist() == [54, 54]
    play.step(2)
    assert play.state.gate.usual.tolist() == [2, 2]
    assert play.state.gate.in_flight.tolist() == [18, 18]


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=60))
def test_what_is_usual_is_reached_at_once_and_never_left_far_above(outputs: list[int]) -> None:
    """It is at least the last output, at most the largest, falls by a sixteenth of the distance, and so to what all
    outputs are within 15 tokens."""
    usual = 0
    for output in outputs:
        before, usual = usual, kernel.learned(usual, output)
        assert usual == (output if output >= before else before - (before - output) // 16)
        assert output <= usual <= max(outputs)
    for _ in range(400):
        usual = kernel.learned(usual, outputs[-1])
    assert usual - outputs[-1] < 16


def test_what_is_usual_is_each_clients_own() -> None:
    """Of a client that has finished nothing all is counted, whatever others had."""
    gate = DeficitGate(in_flight_cap_tokens=20, cap_holds="contended")
    state = gate.init()
    for client in range(4):
        state = gate.joined(state, client, np.zeros(0, np.int64), False)
    state = gate.released(state, 2, 0, 7)
    assert [gate.begin(state, np.zeros(0, np.int64)).counted(client, 50) for client in range(4)] == [50, 50, 7, 50]


# --- D-elastic of runs ------------------------------------------------------------------------------------------------


def served(policy: DLPM, jobs: list[tuple[int, int, int, int, int]], memory: int = MEMORY) -> list[Event]:
    """A run of (client, milliseconds, prompt, declared, output); of each third prompt all that is even is shared, and
    the caller of each fifth request gives up."""
    sent = [
        Job(
            Request(i, client, at * 10**6, Prompt(prompt) if i % 3 else Prompt.from_keys([0] * prompt), declared),
            min(output, declared),
            cancel_after_ns=None if i % 5 else output * 10**7,
        )
        for i, (client, at, prompt, declared, output) in enumerate(sorted(jobs, key=lambda job: job[1]))
    ]
    clients = tuple(Client(i, str(i)) for i in range(max(client for client, *_ in jobs) + 1))
    told: list[Event] = []
    workload, router, latency = (
        Workload("drawn", sent, clients),
        CLUSTER_POLICIES["round-robin"],
        PRESETS[DEFAULT_PRESET],
    )
    Simulator(workload, policy, router, latency, kv_capacity_tokens=memory, on_events=told.extend).run()
    return told


def watched(policy: DLPM, events: list[Event], memory: int = MEMORY) -> ContendedReport:
    """What the watch of the policy's gate says of a run."""
    watch = ContendedGaps(policy.gate, policy.guarantee.limits(memory, 64))  # type: ignore[arg-type]
    for event in events:
        watch.observe(event)
    return watch.report()


def followed(policy: DLPM, jobs: list[tuple[int, int, int, int, int]], memory: int = MEMORY) -> ContendedReport:
    """A run and what its watch says."""
    return watched(policy, served(policy, jobs, memory), memory)


JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    min_size=1,
    max_size=40,
)


@given(JOBS, st.integers(1, 60), st.integers(1, 40))
def test_no_gap_passes_its_bound_unless_outputs_were_longer_than_counted(
    jobs: list[tuple[int, int, int, int, int]], cap: int, quantum: int
) -> None:
    """No admission passes the cap beside others, and a gap over D-elastic's bound names OutputsLikely."""
    report = followed(elastic(cap, quantum=quantum), jobs)
    assert not report.past_cap
    assert not report.over or report.unlikely


def by_definition(policy: DLPM, events: list[Event], memory: int = MEMORY) -> ContendedReport:
    """The same from what waits and runs after each event, and from the leads of each pair while both wait."""
    gate, limits = policy.gate, policy.guarantee.limits(memory, 64)
    assert isinstance(gate, DeficitGate)
    assert gate.in_flight_cap_tokens is not None
    cap, quantum = gate.in_flight_cap_tokens, gate.quantum
    known: dict[int, tuple[int, int]] = {}
    waiting: dict[int, int] = {}
    running: dict[int, tuple[int, int]] = {}
    usual, served, held, since = (Counter[int]() for _ in range(4))
    together: dict[tuple[int, int], tuple[int, list[int]]] = {}
    largest, unlikely, past_cap = 1, 0, 0
    seen: list[tuple[int, int]] = []

    def charge_max(tokens: int) -> int:
        return limits.charge_max(gate.rates, max(min(tokens, memory), 2))

    def bound(before: int) -> int:
        most = charge_max(max(cap, largest))
        return 2 * (quantum - 1) + most + max(most, before)

    def judged(pair: tuple[int, int]) -> tuple[int, int]:
        before, leads = together[pair]
        return max(leads) - min(leads), bound(before)

    def in_flight(client: int) -> int:
        return sum(tokens for own, tokens in running.values() if own == client)

    for event in events:
        charges: dict[int, int] = {}
        match event:
            case Arrived(request=request):
                known[request.id] = (request.client, request.max_output_tokens - event.generated_tokens)
                waiting[request.id] = request.client
            case Preempted():
                del running[event.request_id]
                waiting[event.request_id] = event.client
                declared = max(job.max_output_tokens for job in requests(events) if job.id == event.request_id)
                known[event.request_id] = (event.client, declared - event.generated_tokens)
            case Admitted():
                client, left = known[event.request_id]
                before = in_flight(client)
                counted = event.extend_tokens + (min(left, usual[client]) if gate.elastic and usual[client] else left)
                if len(set(waiting.values())) > 1:
                    largest = max(largest, counted)
                    past_cap += before > 0 and before + counted + event.cached_prefix_tokens > cap
                del waiting[event.request_id]
                running[event.request_id] = client, counted
                held[client], since[client] = charge_max(before + counted), 0
                charges[client] = gate.rates.input * gate.charged(event.extend_tokens, event.cached_prefix_tokens)
            case Decoded():
                charges = {c: gate.rates.output * count for c, count in zip(event.clients, event.tokens, strict=True)}
            case Finished() | Cancelled() | Migrated() | Rejected():
                waiting.pop(event.request_id, None)
                running.pop(event.request_id, None)
                if isinstance(event, Finished):
                    usual[event.client] = kernel.learned(usual[event.client], event.output_tokens)
            case WorkerLeft():
                waiting.clear()
                running.clear()
        for client, cost in charges.items():
            unlikely += since[client] <= held[client] < since[client] + cost
            since[client] += cost
            served[client] += cost
        for (f, g), (_, leads) in together.items():
            leads.append(served[f] - served[g])
        pairs = set(combinations(sorted(set(waiting.values())), 2))
        seen += [judged(pair) for pair in set(together) - pairs]
        together = {pair: known_pair for pair, known_pair in together.items() if pair in pairs}
        for f, g in pairs - set(together):
            together[f, g] = max(held[f], held[g]), [served[f] - served[g]]
    seen += map(judged, together)
    gap, most = (max(each, default=0) for each in (zip(*seen, strict=True) if seen else ((), ())))
    return ContendedReport(gap, bound(0), most, sum(one > its for one, its in seen), unlikely, past_cap)


def requests(events: list[Event]) -> list[Request]:
    """The requests that came."""
    return [event.request for event in events if isinstance(event, Arrived)]


@given(
    JOBS,
    st.integers(1, 60),
    st.integers(1, 40),
    st.sampled_from([{}, {"in_flight_cap_tokens": 90}]),
    st.sampled_from(["static", "optimistic"]),
    st.sampled_from(["first-toucher", "per-use"]),
    st.integers(0, 3),
)
def test_a_watch_says_what_a_run_was(
    jobs: list[tuple[int, int, int, int, int]],
    cap: int,
    quantum: int,
    other: dict[str, Any],
    reserve: Any,
    sharing: Any,
    lost: int,
) -> None:
    """Of a run under another gate, whose prompts are shared, whose callers give up, which is cut short or whose worker
    is lost: gaps, bounds, charges beyond what was counted and admissions past the cap are those of their definition;
    and to ask for them changes nothing."""
    gate = DeficitGate(Rates(2, 3), quantum, cap, sharing=sharing, cap_holds="always" if cap % 3 == 0 else "contended")
    policy = DLPM(gate=gate, batching=Chunked(reserve=reserve, max_batched_tokens=30))
    events = served(attrs.evolve(policy, gate=DeficitGate(Rates(2, 3), 90, **other)), jobs, 90)
    events = events[: len(events) * (4 - lost) // 4]
    if lost > 1:
        events = [*events, WorkerLeft(events[-1].time_ns, 0), *after(events)] if events else []
    assert watched(policy, events, 90) == by_definition(policy, events, 90)


def after(events: list[Event]) -> list[Event]:
    """The same once more, of requests with other ids: they come again."""
    shift = 1 + max((request.id for request in requests(events)), default=0)
    again: list[Event] = []
    for event in events:
        if isinstance(event, Arrived):
            again.append(replace(event, request=replace(event.request, id=event.request.id + shift)))
        elif hasattr(event, "request_id"):
            again.append(replace(event, request_id=event.request_id + shift))
        else:
            again.append(event)
    return again


TOGETHER = [(client, 0, 1, 40, 40) for client in (0, 1) for _ in range(40)]
"""Two clients that wait from the start, with 80 requests of 41 tokens; those of the first are older."""


def test_a_gate_that_forgets_its_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients wait together: with the cap gaps keep to its bound, and without it one passes that."""
    policy = elastic(41, quantum=30)
    kept = followed(policy, TOGETHER, 820)
    assert (kept.over, kept.unlikely, kept.past_cap) == (0, 0, 0)
    assert 0 < kept.gap <= kept.bound == 2 * (30 + (2 * 41 - 1) - 1)
    monkeypatch.setattr(kernel, "may_hold", lambda *seen: True)
    forgotten = followed(policy, TOGETHER, 820)
    assert forgotten.over > 0
    assert forgotten.past_cap > 0


def test_a_watch_needs_a_cap() -> None:
    """Without one D-elastic says nothing."""
    with pytest.raises(ValueError, match="in-flight cap"):
        ContendedGaps(DeficitGate(), DLPM().guarantee.limits(100, 10))


@pytest.mark.parametrize(
    ("params", "needs", "said"),
    [
        ({}, (90,), ()),
        ({"in_flight_cap_tokens": 100}, (90,), ()),
        (
            {"in_flight_cap_tokens": 30},
            (20, 31, 90),
            ("fewer than 4 clients", "refuses 2 of 3 requests"),
        ),
        ({"in_flight_cap_tokens": 30}, (20, 30), ("fewer than 4 clients",)),
        ({"in_flight_cap_tokens": 30, "cap_holds": "contended"}, (20, 90), ("fewer than 4 clients wait",)),
    ],
)
def test_a_cap_says_what_it_costs(params: dict[str, Any], needs: tuple[int, ...], said: tuple[str, ...]) -> None:
    """How many clients fill a worker of 100 tokens under it, and what it refuses; nothing where it is none."""
    cautions = DLPM(gate=DeficitGate(**params)).guarantee.cautions(100, needs)
    assert len(cautions) == len(said)
    assert all(part in caution for part, caution in zip(said, cautions, strict=True))


def test_a_state_from_before_elastic_caps_is_read() -> None:
    """A document without `usual` is one in which nothing was learned."""
    play = Play(elastic(20))
    play.arrive(0)
    document = play.policy.state_to_json(play.state)
    del document["state"]["gate"]["usual"]
    assert play.policy.state_from_json(document).gate.usual.tolist() == []
