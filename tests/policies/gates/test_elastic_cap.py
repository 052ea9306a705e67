"""An elastic cap: what it keeps out, what it counts, and that D-elastic holds of runs under it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator
from fairsched.model import events as ev
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate
from fairsched.policies.gates import deficit as kernel
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES
from tests.support.policies.contended import Gaps
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


def served(policy: ComposedPolicy, jobs: list[tuple[int, int, int, int, int]], memory: int = MEMORY) -> list[ev.Event]:
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
    told: list[ev.Event] = []
    workload, router, latency = (
        Workload("drawn", sent, clients),
        CLUSTER_POLICIES["round-robin"],
        PRESETS[DEFAULT_PRESET],
    )
    Simulator(workload, policy, router, latency, kv_capacity_tokens=memory, on_events=told.extend).run()
    return told


def followed(policy: ComposedPolicy, jobs: list[tuple[int, int, int, int, int]], memory: int = MEMORY) -> Gaps:
    """Return what a run's gaps were."""
    assert isinstance(policy.gate, DeficitGate)
    gaps = Gaps(policy.gate, policy.guarantee.limits(memory, 64))
    for event in served(policy, jobs, memory):
        gaps.follow(event)
    gaps.judge(gaps.together)
    return gaps


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
    gaps = followed(elastic(cap, quantum=quantum), jobs)
    assert not gaps.past_cap
    assert gaps.unlikely or not gaps.over


TOGETHER = [(client, 0, 1, 40, 40) for client in (0, 1) for _ in range(40)]
"""Two clients that wait from the start, with 80 requests of 41 tokens; those of the first are older."""


def test_a_gate_that_forgets_its_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients wait together: with the cap gaps keep to its bound, and without it one passes that."""
    policy = elastic(41, quantum=30)
    kept = followed(policy, TOGETHER, 820)
    assert (kept.over, kept.unlikely, kept.past_cap) == (0, 0, 0)
    assert 0 < max(gap for gap, _ in kept.seen) <= kept.bound(0) == 2 * (30 + (2 * 41 - 1) - 1)
    monkeypatch.setattr(kernel, "may_hold", lambda *seen: True)
    forgotten = followed(policy, TOGETHER, 820)
    assert forgotten.over > 0
    assert forgotten.past_cap > 0


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
