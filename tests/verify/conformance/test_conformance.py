"""Every local policy under every batching rule passes the conformance battery."""

from itertools import product
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import Phase, settings
from immutables import Map

from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.machine import LatencyModel
from fairsched.model.monitor import Promise
from fairsched.model.pricing import RATE_MAX, Rates
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.service import ServiceCurve
from fairsched.model.worker import InfeasiblePlanError
from fairsched.policies import orders
from fairsched.policies.base import Guarantee, Limits
from fairsched.policies.batching import BATCHINGS, RESERVES_BY, FairBatching
from fairsched.policies.catalog import FCFS
from fairsched.policies.gates import AnyGate, CounterGate, DeficitGate, HierarchicalGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, local_policy
from fairsched.verify.conformance import strategies
from fairsched.verify.conformance.local import PolicyMachine, World, check_local_policy
from tests.support.authors.allowance import Allowance
from tests.support.authors.least_served import LeastServed
from tests.support.policies.misbehaving import wrong
from tests.support.policies.pausing import RandomPauses

pytestmark = pytest.mark.kept

SMALL: dict[str, Any] = {"max_batched_tokens": 7, "max_running": 4}
LARGE: dict[str, Any] = {"max_batched_tokens": 1_500, "max_running": 4}
BIG_BLOCKS = World(block_tokens=512, capacity_blocks=(7, 20))
"""Here an eviction frees some of the cache; in a world of small blocks it frees all that may go."""

EXAMPLES = 6
STEPS = 30


def tiny(policy: ComposedPolicy, **changes: Any) -> ComposedPolicy:
    """The policy with its gate's credit and cap of the size of a tiny world."""
    gate = policy.gate
    if isinstance(gate, DeficitGate | HierarchicalGate):
        gate = attrs.evolve(gate, **{"quantum": 5, **changes})
    return attrs.evolve(policy, gate=gate)


def budget(full_budget: bool) -> settings:
    """Few examples, or the night's."""
    return settings(max_examples=200 if full_budget else EXAMPLES, stateful_step_count=STEPS)


def reservations(full_budget: bool, *which: str) -> tuple[Any, ...]:
    """Both ways to reserve, or one of them in turn: all policies and rules see both, and each pair one."""
    both = ("static", "optimistic")
    return both if full_budget else (both[sum(map(len, which)) % 2],)


NAMES = [name for name in LOCAL_POLICIES if name not in ("no-preempt", "fcfs-optimistic")]
"""The two are FCFS under batching rules of their own, which are replaced here."""


PROMPTS = ("capped-prefill", "padded", "whole-prompts")
"""Rules of workers that compute prompts for others."""
GENERAL = [name for name in BATCHINGS if name not in PROMPTS]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "batching"),
    [*product(NAMES, GENERAL), *product(("fcfs", "lpm", "vtc", "dlpm", "tetriinfer", "splitwise-machine"), PROMPTS)],
)
def test_every_policy_conforms(name: str, batching: str, full_budget: bool) -> None:
    """Whatever the policy, the batching rule and the reservation: pure, folded, feasible, kept, served."""
    for reserve in reservations(full_budget, name, batching):
        rule = BATCHINGS[batching](**SMALL, reserve=reserve)
        check_local_policy(attrs.evolve(tiny(LOCAL_POLICIES[name]), batching=rule), settings=budget(full_budget))


@pytest.mark.nightly
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
@pytest.mark.parametrize("name", ["fcfs", "dlpm"])
def test_policies_that_pause_conform(name: str, reserve: Any, full_budget: bool) -> None:
    """With pauses at random: pure, folded, feasible, kept, served, and a leap is its steps; the bound holds as well."""
    inner = attrs.evolve(tiny(LOCAL_POLICIES[name]), batching=BATCHINGS["chunked"](**SMALL, reserve=reserve))
    check_local_policy(RandomPauses(inner), settings=budget(full_budget))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_every_policy_conforms_with_large_blocks(name: str, full_budget: bool) -> None:
    """The same where an eviction takes part of the cache only."""
    for reserve in reservations(full_budget, name):
        rule = BATCHINGS["chunked"](**LARGE, reserve=reserve)
        check_local_policy(attrs.evolve(tiny(LOCAL_POLICIES[name]), batching=rule), BIG_BLOCKS, budget(full_budget))


NEAR = FairBatching(**SMALL, ttft_ns=8, tpot_ns=2, step_ns=0, token_ns=1, request_ns=1, context_token_ns=0)
"""Steps whose budget changes from one to the next."""
DISPLACING: tuple[tuple[orders.Order, str], ...] = (
    (orders.ShortestRemaining(60), "chunked"),
    (orders.ShortestPredicted(starve_steps=3, period_steps=2), "iteration-level"),
    (
        orders.SkipJoin(quantum_us=2, promote_ms=1, step_us=250, prefill_token_ns=1_000, prefill_constant_us=0),
        "eager-prefill",
    ),
)
GATES: tuple[AnyGate, ...] = (OpenGate(), DeficitGate(quantum=5))
VARIANTS = {
    "cap": tiny(LOCAL_POLICIES["dlpm"], in_flight_cap_tokens=12),
    "elastic cap": tiny(LOCAL_POLICIES["dlpm"], in_flight_cap_tokens=6, cap_holds="contended"),
    "cap, rejoin reset": tiny(LOCAL_POLICIES["dlpm"], in_flight_cap_tokens=9, rejoin="reset"),
    "quantum 1": tiny(LOCAL_POLICIES["dlpm"], quantum=1),
    "quantum 1000": tiny(LOCAL_POLICIES["dlpm"], quantum=1_000),
    "counter without lift": attrs.evolve(LOCAL_POLICIES["vtc"], gate=CounterGate(lift="none")),
    "one seat": attrs.evolve(LOCAL_POLICIES["lpm"], batching=BATCHINGS["chunked"](max_running=1)),
    "one token a step": attrs.evolve(LOCAL_POLICIES["dlpm"], batching=BATCHINGS["chunked"](max_batched_tokens=1)),
    "shortest prompt x deficit": attrs.evolve(LOCAL_POLICIES["shortest-prompt"], gate=DeficitGate(quantum=3)),
    "fair batching, deadlines near": attrs.evolve(LOCAL_POLICIES["dlpm"], gate=DeficitGate(quantum=5), batching=NEAR),
    "quantum 1, cap": tiny(LOCAL_POLICIES["dlpm"], quantum=1, in_flight_cap_tokens=12),
    "per use": tiny(LOCAL_POLICIES["dlpm"], cached_percent=30),
    "three priority groups x deficit": attrs.evolve(
        LOCAL_POLICIES["preble"], order=orders.PriorityGroups(3), gate=DeficitGate(quantum=5)
    ),
    "longest prefix x counter": attrs.evolve(LOCAL_POLICIES["lpm"], gate=CounterGate()),
    **{
        name: tiny(local_policy(name))
        for name in (
            "larry+counter",
            "ageing+deficit",
            "edf+deficit",
            "least-slack+counter",
            "trail+deficit",
            "s3+deficit",
            "pia+counter",
            "tetriinfer+deficit",
        )
    },
    **{
        f"{order.name}, displaces, {gate.name} gate": ComposedPolicy(order.name, order, gate, BATCHINGS[rule](**SMALL))
        for (order, rule), gate in product(DISPLACING, GATES)
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_conform(name: str, full_budget: bool) -> None:
    """Caps, small and large quanta, variants of gates, and compositions that no shipped policy is."""
    policy = VARIANTS[name]
    for reserve in reservations(full_budget, name):
        composed = attrs.evolve(policy, batching=attrs.evolve(policy.batching, reserve=reserve))
        check_local_policy(composed, World(block_tokens=2), budget(full_budget))


CROWD = World(capacity_blocks=(60, 120), clients=12, came=(1 << 16) - 3)
"""More than eight clients decode at once, where vectors are filled in another way; and the 65,536th request comes."""
HUGE = World(block_tokens=1 << 19, clients=3, came=(1 << 39) - 3)
"""The largest rates that are accepted, quanta of 2^40, and numbers of requests near that."""
DEAR = Rates(1 << 15, RATE_MAX)
WORLDS: dict[str, tuple[World, int, tuple[AnyGate, ...]]] = {
    "crowd": (CROWD, 24, (DeficitGate(quantum=5), CounterGate(), HierarchicalGate(quantum=5), Allowance())),
    "huge": (
        HUGE,
        3 << 19,
        (DeficitGate(DEAR, quantum=1 << 40), CounterGate(DEAR), HierarchicalGate(DEAR, quantum=3), LeastServed(DEAR)),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "which"), [*product(WORLDS, range(4))])
def test_gates_conform_in_a_crowd_and_with_large_numbers(kind: str, which: int, full_budget: bool) -> None:
    """All that is claimed of a policy, where a dozen clients decode at once, and where charges are near 2^40."""
    world, tokens, gates = WORLDS[kind]
    rule = BATCHINGS["chunked"](max_batched_tokens=tokens, max_running=16)
    policy = ComposedPolicy("played", orders.LongestPrefix() if which % 2 else orders.Arrival(), gates[which], rule)
    examples = settings(max_examples=200 if full_budget else 8, stateful_step_count=STEPS)
    check_local_policy(policy, world, examples)


FORESEEING = [reserve for reserve in RESERVES_BY if reserve not in ("static", "optimistic")]


@pytest.mark.nightly
@pytest.mark.parametrize("reserve", FORESEEING)
@pytest.mark.parametrize("batching", [*GENERAL, "padded"])
def test_admission_by_predictions_conforms(batching: str, reserve: Any, full_budget: bool) -> None:
    """What an admission needs by predicted outputs is the same in a leap as in single steps, under every rule; each
    pair with a gate or without, and at night with both."""
    both = ("tetriinfer", "dlpm")
    for name in both if full_budget else (both[len(batching + reserve) % 2],):
        rule = BATCHINGS[batching](**SMALL, reserve=reserve)
        check_local_policy(attrs.evolve(tiny(LOCAL_POLICIES[name]), batching=rule), settings=budget(full_budget))


def forgetful() -> Any:
    """It keeps a mutable list beside its state, so deciding twice differs."""
    seen = list[int]()

    def decide(self: Any, own: Any, state: Any, view: WorkerView) -> Any:
        seen.append(view.clock)
        return own(self, state, view) if len(seen) % 2 else (StepPlan(), state)

    return wrong(FCFS, decide=decide)


def greedy(self: Any, own: Any, state: Any, view: WorkerView) -> Any:
    """It believes that the worker has more memory than it has."""
    return own(self, state, msgspec.structs.replace(view, kv_free_tokens=view.kv_free_tokens + 2))


def sleepy(self: Any, own: Any, state: Any, view: WorkerView) -> Any:
    """It says that a plan which only decodes holds until something happens, and then admits at even clocks."""
    plan, after = own(self, state, view)
    if plan.admit and view.clock % 2 and view.decoding and not view.prefilling:
        return StepPlan(valid_steps=None), state
    return plan, after


def picky(self: Any, own: Any, state: Any, view: WorkerView) -> Any:
    """A request with more than four tokens in front blocks the line for ever."""
    if state.queue.entries and state.queue.best(0).request.prompt.tokens > 4:
        return StepPlan(chunks=tuple(self.batching.open(view, state.flights).chunks)), state
    return own(self, state, view)


def amnesiac(self: Any, own: Any, document: dict[str, Any]) -> Any:
    """It loses what runs when its state is read."""
    return msgspec.structs.replace(own(self, document), flights=Map())


BAD: dict[str, tuple[Any, set[str]]] = {
    "forgetful": (forgetful(), {"decide", "look_back"}),
    # The state is that in which its plan has not happened.
    "unfolded": (
        wrong(FCFS, decide=lambda self, own, state, view: (own(self, state, view)[0], state)),
        {"begin_decided", "serve"},
    ),
    "greedy": (wrong(FCFS, decide=greedy), {"begin", "decide"}),
    "sleepy": (wrong(FCFS, decide=sleepy), {"_stepped"}),
    "picky": (wrong(FCFS, decide=picky), {"teardown"}),
    "amnesiac": (wrong(FCFS, state_from_json=amnesiac), {"restart"}),
}
"""Policies that are wrong in one way each, and the check (a function of the battery) that finds it."""


@pytest.mark.parametrize("bad", BAD)
def test_battery_finds_bad_policies(bad: str) -> None:
    """Six policies, each wrong in one way, are found out, each by the check that is meant for it."""
    kind, checks = BAD[bad]
    generate = settings(
        max_examples=1_000,
        stateful_step_count=STEPS,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, InfeasiblePlanError)) as found:
        check_local_policy(kind(batching=BATCHINGS["chunked"](**SMALL)), settings=generate)
    assert checks & {entry.name for entry in found.traceback}


class Boast(Guarantee):
    """That no client is ever ahead of another by more than one unit."""

    def promise(
        self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel | ServiceCurve | None = None
    ) -> Promise | None:
        """A bound of one, whatever admissions cost."""
        promise = LOCAL_POLICIES["vtc"].guarantee.promise(clients, limits)
        assert promise is not None
        return attrs.evolve(promise, gap_bound=1, reweighted=None)


@pytest.mark.parametrize("guarantee", [tiny(LOCAL_POLICIES["dlpm"]).guarantee, Boast()], ids=["unfair", "boastful"])
def test_battery_finds_broken_promises(guarantee: Guarantee) -> None:
    """A policy that lets in whom its gate would not, or whose bound is too small, is found by what it promises."""
    policy = type("Promising", (FCFS,), {"guarantee": guarantee})(batching=BATCHINGS["chunked"](**SMALL))
    generate = settings(max_examples=400, phases=(Phase.generate,), report_multiple_bugs=False)
    with pytest.raises(AssertionError) as found:
        check_local_policy(policy, settings=generate)
    assert "_check_promise" in {entry.name for entry in found.traceback}


@pytest.mark.parametrize("given", [None, settings(max_examples=3, deadline=1)])
def test_authors_get_sensible_settings(given: settings | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word the loaded profile decides how much is run; nothing is judged by its time, whatever was said."""
    used: list[settings] = []
    monkeypatch.setattr(strategies, "run_state_machine_as_test", lambda _, settings: used.append(settings))
    check_local_policy(LOCAL_POLICIES["fcfs"], settings=given)
    wanted = given or settings()
    assert used[0].deadline is None
    assert (used[0].max_examples, used[0].derandomize) == (wanted.max_examples, wanted.derandomize)


def test_a_leap_ends_where_a_client_was_withdrawn_for_want_of_a_slot() -> None:
    """Two clients and one slot, whose heads lack it in turn: the withdrawn one does not count as waiting, so a
    step may give the other credit."""
    machine = type("Pinned", (PolicyMachine,), {"policy": VARIANTS["quantum 1"], "world": World(block_tokens=2)})()
    machine._open(share=0, tail=0, host=0, slots=1)
    for prompts, outputs in (
        (((4, 0, 1), (6, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1), (1, 1, 5)), 1),
        (((1, 1, 1),) * 6, 0),
    ):
        drawn = [Request(0, client, 0, Prompt(tokens, 2), most) for tokens, client, most in prompts]
        machine.arrive(drawn=drawn, early=0)
        machine.sound()
        if outputs:
            machine.refuse(change="no-admissions")
            machine.sound()
    machine.teardown()
