"""Counterexamples: claims about schedulers that sound right and are false, each shown in a small world.

Where the shipped rule differs from the one that fails, the same world shows that the shipped rule holds.  CE1 to CE5
are about the deficit gate (DLPM), CV3 is about the counter gate (VTC).
"""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.generators.demonstrations import CE1_KV_TOKENS, CE1_QUANTUM
from fairsched.model.algebra import NUMPY, Ints, Mask
from fairsched.model.events import Admitted, Finished, Rejected
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt
from fairsched.policies.gates import AdmissionTransaction, DeficitGate, DeficitState, PrintedDeficitGate
from fairsched.policies.gates.deficit import DeficitAdmissions, in_credit, refill, refill_rounds
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival
from fairsched.policies.routers import RoundRobin
from tests.support import scenarios as scenes
from tests.support.scenarios import job, policy, run

PAPER_BOUND = 20
"""2(U + Q) of the DLPM paper (reconstructed) in CE1's world: Q = 1 and U = w_e L + w_q M = 1 + 2 * 4."""


def lead_of_g(rejoin: str, quantum: int, steps: int) -> dict[int, int]:
    """The largest W_g - W_f over intervals in which f waits, by the step (from 1) that raised it, in `ce1`."""
    workload, chosen = generate("ce1", steps=steps), policy("dlpm", rejoin=rejoin, quantum=quantum)
    rows = scenes.lag(workload, chosen, run(workload, chosen, CE1_KV_TOKENS), ahead=1, behind=0)
    return {step: cost for step, cost in rows if step <= steps}


def test_ce1_the_printed_rejoin_rule_breaks_d_4_2() -> None:
    """Forgiving debt at a rejoin lets g lead a waiting f by more than 20, first after 18 steps, and by 403 within 400.

    Theorem D-4.2 as printed says 20 at most.  The step that passes it is number 17, counted from 0.
    """
    lead = lead_of_g("reset", CE1_QUANTUM, 400)
    assert min(step for step, cost in lead.items() if cost > PAPER_BOUND) == 18
    assert max(lead.values()) == 403


def test_ce1_the_printed_rule_s_lead_has_no_bound() -> None:
    """Every four steps g gains four more: twice the steps, twice the lead."""
    leads = [max(lead_of_g("reset", CE1_QUANTUM, steps).values()) for steps in (200, 400, 800)]
    assert leads == [203, 403, 803]


@given(quantum=st.integers(1, 12), steps=st.integers(1, 120))
def test_ce1_the_shipped_rule_keeps_d_4_2(quantum: int, steps: int) -> None:
    """Where debt is kept, g never leads a waiting f by more than 2(Q + U - 1), however long it plays this."""
    chosen = policy("dlpm", quantum=quantum)
    bound = chosen.guarantee.service_gap_bound(
        generate("ce1", steps=steps).clients, chosen.guarantee.limits(CE1_KV_TOKENS, 3)
    )
    assert bound == 2 * (quantum + 7 - 1)
    assert max(lead_of_g("keep", quantum, steps).values()) <= bound


def test_ce1_nothing_shows_in_the_gap_between_backlogged_clients() -> None:
    """D-4.1 speaks of two clients that both wait: g hardly ever does, so that gap stays small while the lead grows."""
    workload, chosen = generate("ce1", steps=400), policy("dlpm", rejoin="reset", quantum=CE1_QUANTUM)
    assert scenes.gap(workload, chosen, run(workload, chosen, CE1_KV_TOKENS)) <= 2 * (CE1_QUANTUM + 7 - 1)


@pytest.mark.parametrize("name", sorted(path.stem for path in scenes.REPLAYS.glob("*.json")))
@pytest.mark.parametrize("leap", [False, True])
def test_replays_give_their_logs_again(name: str, leap: bool) -> None:
    """The worlds kept as data are run event by event as they were recorded, leaping or stepping."""
    replay = scenes.load_replay(name)
    for recorded in replay.runs:
        chosen = policy(recorded.policy, **recorded.params)
        assert scenes.log_lines(run(replay.workload(), chosen, replay.kv_capacity_tokens, leap=leap)) == recorded.log


def test_ce1_s_replay_shows_its_claim() -> None:
    """The replay passes the printed bound after 18 steps under the printed rule, and never under the shipped one."""
    replay = scenes.load_replay("ce1")
    leads = {}
    for recorded in replay.runs:
        workload, chosen = replay.workload(), policy(recorded.policy, **recorded.params)
        rows = scenes.lag(workload, chosen, run(workload, chosen, replay.kv_capacity_tokens), ahead=1, behind=0)
        leads[recorded.params.get("rejoin")] = [step for step, cost in rows if cost > PAPER_BOUND]
    assert leads["reset"][0] == 18
    assert leads[None] == []


def test_ce2_strong_work_conservation_is_false() -> None:
    """A gate cannot promise that what fits is never passed over: g's request fits in every step from 1 to 5 and waits,
    since f has credit and does not fit, and so no refill is due.

    Letting g pass would let small requests starve a large one; without f in the way, g enters at once.
    """
    replay = scenes.load_replay("ce2")
    workload, chosen = replay.workload(), policy("dlpm", quantum=1)
    entered = scenes.admitted(run(workload, chosen, replay.kv_capacity_tokens))
    h, _, f, g = (each.request for each in workload.jobs)
    reserved_by_h = h.prompt.tokens + h.max_output_tokens
    free = replay.kv_capacity_tokens - reserved_by_h
    assert g.prompt.tokens + g.max_output_tokens <= free < f.prompt.tokens + f.max_output_tokens
    assert entered[g.id] == entered[f.id] == h.max_output_tokens
    alone = scenes.world([each for each in workload.jobs if each.request is not f])
    assert scenes.admitted(run(alone, chosen, replay.kv_capacity_tokens))[g.id] == g.arrival_ns + 1


@pytest.mark.parametrize(("gate", "waited"), [(PrintedDeficitGate, 20), (DeficitGate, 1)])
def test_ce3_active_must_mean_queued(gate: type[DeficitGate], waited: int) -> None:
    """If a client that only runs could block the refill, f's request would wait 20 of 20 steps though it fits; with
    queued clients only it waits for the step under way.
    """
    chosen = ComposedPolicy("ce3", Arrival(), gate(quantum=100))
    runs_long, fits = job(0, 1, 0, 1, 21), job(1, 0, 1, 1, 1)
    events = run(scenes.world([runs_long, fits]), chosen, 30)
    assert scenes.admitted(events)[1] - 1 == waited
    assert [event.time_ns for event in events if isinstance(event, Finished) and event.request_id == 0] == [21]


class _OneRound(DeficitAdmissions):
    """A refill is one round, whether that makes a client eligible or not."""

    def give(self) -> None:
        self.before = (self.q,)
        self.q = refill(NUMPY, self.q, self.queued, self.state.known, self.state.quantum)


@attrs.frozen
class OneRound(DeficitGate):
    """The deficit gate with rule 2 changed: one round a decision."""

    def begin(self, state: DeficitState, heads: Ints) -> AdmissionTransaction:
        return _OneRound(self, state, heads)


def test_ce4_one_refill_round_idles() -> None:
    """With U > Q one round is not enough: 24 rounds are due, so a worker that does one a step idles 24 steps while a
    request that fits waits, and one that does one a decision leaves it for ever.

    24 = ceil(U / Q) is exact, and the closed form that ships gives them all at once: the request enters in the step
    in which memory is free.
    """
    # One client with a quantum of 1, whose first request costs all that memory allows, and whose second waits.
    kv, first_ends = 12, 11
    first, second = job(0, 0, 0, 1, first_ends), job(1, 0, 5, 1, 1)
    gate = DeficitGate(rates=Rates(2, 2), quantum=1)
    ships = ComposedPolicy("ce4", Arrival(), gate)
    assert gate.charge_max(ships.guarantee.limits(kv, 11)) == 24
    simulator = Simulator(scenes.world([first]), ships, RoundRobin(), scenes.UNIT, kv_capacity_tokens=kv)
    simulator.run()
    state: DeficitState = simulator.workers[0].policy_state.gate
    queued: Mask = state.known
    q, rounds = state.q, 0
    while not in_credit(NUMPY, q, queued).any():
        q, rounds = refill(NUMPY, q, queued, state.known, state.quantum), rounds + 1
    assert rounds == 24
    assert refill_rounds(NUMPY, state.q, queued, state.known, state.quantum).tolist() == q.tolist()
    both = scenes.world([first, second])
    assert scenes.admitted(run(both, ships, kv))[1] == first_ends
    stalled = run(both, attrs.evolve(ships, gate=OneRound(rates=gate.rates, quantum=1)), kv)
    assert [event.request_id for event in stalled if isinstance(event, Rejected)] == [1]


@pytest.mark.parametrize("steps", [50, 500])
def test_ce5_latency_is_bounded_per_client_not_per_request(steps: int) -> None:
    """D-A.2 holds for clients and not for requests: a client that keeps sending prompts of match 5 is served in every
    step, and its own request of match 0 is never dispatched while they come.
    """
    warm = [
        job(i, 0, max(i - 1, 0), Prompt.from_keys([1, 2, 3, 4, 5, 10 + i], block_tokens=1, tokens=6), 1)
        for i in range(steps + 1)
    ]
    cold = job(steps + 1, 0, 1, Prompt.from_keys([-1, -2, -3, -4, -5, -6], block_tokens=1, tokens=6), 1)
    events = run(scenes.world([*warm, cold]), policy("dlpm", quantum=1), 8)
    entered = scenes.admitted(events)
    assert entered.pop(steps + 1) > steps
    assert sorted(entered.values()) == list(range(steps + 1))
    cached = [event.cached_prefix_tokens for event in events if isinstance(event, Admitted)]
    assert cached == [0, *[5] * steps, 0]


@pytest.mark.parametrize(("lift", "breaks"), [("none", True), ("last-leaver", False)])
def test_cv3_without_the_lift_v_4_4_is_false(lift: str, breaks: bool) -> None:
    """A client that comes to a momentarily empty queue must be lifted too: else g, whose counter stands at 700 when f
    first comes, gets nothing until f has caught up, and the gap passes 600 where the theorem allows 14.
    """
    alone = 100
    history = [job(i, 1, 0, 1, 3, after=(i - 1,) if i else ()) for i in range(alone)]
    together = 3 * alone - 2
    both = [job(alone + i, i % 2, together, 1, 3) for i in range(400)]
    workload, chosen = scenes.world([*history, *both], "fg"), policy("vtc", lift=lift)
    bound = policy("vtc").guarantee.service_gap_bound(workload.clients, chosen.guarantee.limits(4, 3))
    assert bound == 2 * (2 * 4 - 1)
    seen = scenes.gap(workload, chosen, run(workload, chosen, 4))
    assert (seen > 600) == breaks
    assert (seen > bound) == breaks
