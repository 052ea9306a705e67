"""What the gate monitor tells the rules that it asks, event by event, and what it says of what they answer."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import simulate_events
from fairsched.model import events
from fairsched.model.algebra import NO_GROUP
from fairsched.model.events import Event
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Groups, Job, Prompt, Request, Workload
from fairsched.policies.base import ChargingRule
from fairsched.policies.catalog import VTC
from fairsched.policies.gates import (
    AnyGate,
    CounterGate,
    DeficitGate,
    GateInterpreter,
    InBatchGate,
    counter,
    interpreter,
)
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.interpreters import DeclaredRules
from fairsched.policies.guarantees import GateMonitor
from fairsched.policies.routers import RoundRobin
from tests.support.scenarios import latency_of

CHARGING = ChargingRule(Rates(2, 3), "extend", 50)


@attrs.define(eq=False)
class Rules(GateInterpreter):
    """Write down what they are told.  They let in the client that asks unless another one is `chosen`, and let the
    clients that `stopped` names decode no more."""

    chosen: int | None = None
    stopped: frozenset[int] = frozenset()
    told: list[tuple[Any, ...]] = attrs.field(factory=list)

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self.told.append(("joined", client, sorted(waiting)))

    def left(self, client: int) -> None:
        self.told.append(("left", client))

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        self.told.append(("choose", client, sorted(waiting), skips))
        return client if self.chosen is None else self.chosen

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self.told.append(("admitted", client, tokens, sorted(waiting), emptied, kv_tokens))

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        self.told.append(("decoded", *clients, *tokens))

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        self.told.append(("settled", client, tokens, sorted(waiting)))

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self.told.append(("configured", client, weight, groups))

    def settle(self, waiting: Collection[int]) -> None:
        self.told.append(("settle", sorted(waiting)))

    def may_decode(self, client: int) -> bool:
        return client not in self.stopped


def arrived(request_id: int, client: int, most: int = 9, generated: int = 0, **fields: Any) -> events.Arrived:
    """A request of five tokens."""
    return events.Arrived(0, 0, Request(request_id, client, 0, Prompt(5), most, **fields), generated)


def admitted(request_id: int, client: int, extend: int = 5, cached: int = 0) -> events.Admitted:
    """A request enters."""
    return events.Admitted(0, 0, request_id, client, extend, cached, 0)


def follow(rules: Rules, *happened: Event, skips: bool = False) -> list[str | None]:
    """What a monitor says of each event."""
    monitor = GateMonitor(rules, CHARGING, skips)
    return [monitor.observe(event) for event in happened]


LIFE: list[tuple[Event, list[tuple[Any, ...]]]] = [
    (events.ClientConfigured(0, 0, 1, 3, (("a", 2),)), [("configured", 1, 3, (("a", 2),)), ("settle", [])]),
    (arrived(7, 1, generated=2), [("joined", 1, []), ("settle", [1])]),
    (arrived(8, 1), [("joined", 1, [1]), ("settle", [1])]),
    (arrived(9, 2), [("joined", 2, [1]), ("settle", [1, 2])]),
    # A cached token is charged at half, and 4 tokens with 9 - 2 of output may be held.
    (
        admitted(7, 1, 4, 4),
        [("choose", 1, [1, 2], False), ("admitted", 1, 6, [1, 2], False, 11), ("settle", [1, 2])],
    ),
    # Of 8 tokens 6 were computed: 7 are charged in place of 6; then 2 were, and 5 are.
    (events.Settled(0, 0, 7, 1, 6), [("settled", 1, 1, [1, 2]), ("settle", [1, 2])]),
    (events.Settled(0, 0, 7, 1, 2), [("settled", 1, -2, [1, 2]), ("settle", [1, 2])]),
    (events.Settled(0, 0, 7, 1, 2), [("settle", [1, 2])]),
    (events.Settled(0, 0, 99, 1, 4), [("settle", [1, 2])]),
    (events.Decoded(0, 0, 1, (1, 2), (2, 5)), [("decoded", 1, 2, 2, 5), ("settle", [1, 2])]),
    # Of three steps all but the last are charged first.
    (
        events.Decoded(0, 0, 3, (1, 2), (6, 9)),
        [("decoded", 1, 2, 4, 6), ("settle", [1, 2]), ("decoded", 1, 2, 2, 3), ("settle", [1, 2])],
    ),
    (events.Held(0, 0, (1,), (4,)), [("decoded", 1, 4), ("settle", [1, 2])]),
    (events.Preempted(0, 0, 7, 1, 5, 0), [("joined", 1, [1, 2]), ("settle", [1, 2])]),
    (admitted(9, 2), [("choose", 2, [1, 2], False), ("admitted", 2, 5, [1, 2], True, 14), ("settle", [1])]),
    (admitted(7, 1), [("choose", 1, [1], False), ("admitted", 1, 5, [1], False, 9), ("settle", [1])]),
    (events.Cancelled(0, 0, 9, 2, True, 3, 0), [("settled", 2, -3, [1]), ("settle", [1])]),
    (events.Migrated(0, 0, 7, 1, True, 0, 0), [("settle", [1])]),
    (events.Cancelled(0, 0, 8, 1, False, 0, 0), [("left", 1), ("settle", [])]),
    (arrived(10, 1), [("joined", 1, []), ("settle", [1])]),
    (arrived(11, 1), [("joined", 1, [1]), ("settle", [1])]),
    (events.Migrated(0, 0, 10, 1, False, 0, 0), [("settle", [1])]),
    (events.Rejected(0, 0, 11, 1, "too large"), [("left", 1), ("settle", [])]),
    (events.Rejected(0, 0, 99, 1, "too large"), [("settle", [])]),
    (events.Finished(0, 0, 99, 1, 4), [("settle", [])]),
    (events.Preempted(0, 0, 99, 1, 5, 0), [("settle", [])]),
    (events.Cancelled(0, 0, 99, 1, True, 5, 0), [("settle", [])]),
    (arrived(12, 2), [("joined", 2, []), ("settle", [2])]),
    (admitted(12, 2), [("choose", 2, [2], False), ("admitted", 2, 5, [2], True, 14), ("settle", [])]),
    (events.Finished(0, 0, 12, 2, 9), [("settle", [])]),
    (events.Cancelled(0, 0, 12, 2, True, 5, 0), [("settle", [])]),
    (arrived(13, 2), [("joined", 2, []), ("settle", [2])]),
    (admitted(13, 2), [("choose", 2, [2], False), ("admitted", 2, 5, [2], True, 14), ("settle", [])]),
    (arrived(14, 2), [("joined", 2, []), ("settle", [2])]),
    (arrived(15, 1), [("joined", 1, [2]), ("settle", [1, 2])]),
    # What runs is forgotten, and what waits leaves.
    (events.WorkerLeft(0, 0), [("left", 2), ("left", 1), ("settle", [])]),
    (events.Cancelled(0, 0, 13, 2, True, 5, 0), [("settle", [])]),
    (events.Cancelled(0, 0, 14, 2, False, 5, 0), [("settle", [])]),
    (events.Paused(0, 0, 14, 2, 5), []),
]
"""Events, and what the rules are told of each."""


def test_each_event_tells_the_rules_what_it_is() -> None:
    """Tokens that are charged, of which clients wait, what may be held, corrections, refunds, and who is gone."""
    rules = Rules()
    monitor = GateMonitor(rules, CHARGING, skips=False)
    for event, told in LIFE:
        rules.told.clear()
        assert monitor.observe(event) is None, event
        assert rules.told == told, event


def test_an_admission_of_what_does_not_wait_is_named() -> None:
    """Of a request that never came, runs already, is another client's, or was there when the worker left."""
    known = (arrived(1, 0), arrived(2, 3), arrived(3, 4))
    for before, event in (
        ((), admitted(1, 0)),
        ((admitted(1, 0), arrived(4, 0)), admitted(1, 0)),
        ((), admitted(1, 3)),
        ((), admitted(1, 9)),
        ((events.WorkerLeft(0, 0),), admitted(1, 0)),
    ):
        some = known if before or event.client else ()
        *_, said = follow(Rules(), *some, *before, event)
        assert said == f"request {event.request_id} of client {event.client} is admitted and does not wait"


@pytest.mark.parametrize(("chosen", "name"), [(3, "client 3"), (NO_GROUP, "no client"), (0, None)])
def test_an_admission_past_the_rules_is_named(chosen: int, name: str | None) -> None:
    """With the client that the rules let in, if any; the admission is charged all the same."""
    rules = Rules(chosen)
    *_, said = follow(rules, arrived(1, 0), admitted(1, 0))
    assert said == (None if name is None else f"request 1 of client 0 is admitted where the gate lets in {name}")
    assert ("admitted", 0, 5, [0], True, 14) in rules.told


@pytest.mark.parametrize("skips", [False, True])
def test_clients_may_be_passed_over_from_the_first_adapter_on(skips: bool) -> None:
    """Where the policy says so they may from the beginning."""
    rules = Rules()
    follow(
        rules, arrived(1, 0), admitted(1, 0), arrived(2, 0, adapter="ann"), arrived(3, 0), admitted(3, 0), skips=skips
    )
    assert [each[-1] for each in rules.told if each[0] == "choose"] == [skips, True]


@pytest.mark.parametrize(
    ("steps", "tokens", "prefilled", "stopped", "named"),
    [
        (1, (1, 1), (), frozenset({2}), True),
        (1, (1, 1), (), frozenset(), False),
        (1, (1, 1), (), frozenset({7}), False),
        # The last piece of a prompt brings a token, whatever its client owes; other pieces bring none.
        (1, (1, 1), ((2, 0),), frozenset({2}), False),
        (1, (1, 1), ((1, 0),), frozenset({2}), True),
        (1, (1, 1), ((2, 3),), frozenset({2}), True),
        (1, (1, 2), ((2, 0),), frozenset({2}), True),
        (1, (1, 2), ((2, 0), (2, 0)), frozenset({2}), False),
        (3, (3, 3), (), frozenset({2}), True),
        # In three steps of two requests each has a token a step.
        (3, (3, 3), ((2, 0),), frozenset({2}), False),
        (3, (3, 6), ((2, 0),), frozenset({2}), True),
    ],
)
def test_a_client_that_owes_too_much_decodes_nothing_but_first_tokens(
    steps: int, tokens: tuple[int, int], prefilled: tuple[tuple[int, int], ...], stopped: frozenset[int], named: bool
) -> None:
    """In the last of several steps; and first tokens are those since the step before."""
    pieces = [events.Prefilled(0, 0, 50, client, 4, left) for client, left in prefilled]
    decoded = events.Decoded(0, 0, steps, (1, 2), tokens)
    rules = Rules(stopped=stopped)
    *_, said, again = follow(rules, *pieces, decoded, events.Decoded(0, 0, 1, (2,), (1,)))
    owes = "client 2 owes too much, and decodes while others wait"
    assert said == (owes if named else None)
    assert again == (owes if 2 in stopped else None)


@pytest.mark.parametrize("gate", [DeficitGate(quantum=5), InBatchGate(quantum=5), CounterGate()])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["decoded", "decoded", "decoded", "joined", "admitted", "settled", "configured"]),
            st.integers(0, 3),
            st.integers(1, 5),
        ),
        max_size=20,
    )
)
def test_outputs_in_sums_are_outputs_one_by_one(gate: AnyGate, told: list[tuple[str, int, int]]) -> None:
    """An interpreter whose numbers are looked at after each event, and one that is looked at in the end, agree."""
    looked_at: Any = interpreter(gate)
    summing: Any = interpreter(gate)
    for rules in (looked_at, summing):
        for client in range(4):
            rules.joined(client, ())
        for what, client, amount in told:
            if what == "decoded":
                rules.decoded(*(((client, 3), (amount, 1)) if client < 3 else ((client,), (amount,))))
            elif what == "joined":
                rules.joined(client, {1})
            elif what == "admitted":
                rules.admitted(client, amount, {client}, False, amount)
            elif what == "settled":
                rules.settled(client, amount - 3, {client})
            else:
                rules.configured(client, amount, ())
            assert rules is summing or all(len(vector) >= 4 for vector in rules.vectors.values())
    assert looked_at.vectors == summing.vectors


@given(st.integers(40, 120), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_what_a_counter_s_event_costs_does_not_grow_with_the_clients_that_wait(
    clients: int, outputs: list[int]
) -> None:
    """Kernels are called on the client of the event, the lowest that waits and the last that left, of however many."""
    tokens = [outputs[i % len(outputs)] for i in range(clients)]
    jobs = [Job(Request(i, i, i, Prompt(3), output), output) for i, output in enumerate(tokens)]
    workload = Workload("many", tuple(jobs), tuple(Client(i, str(i)) for i in range(clients)))
    told = simulate_events(workload, VTC(), RoundRobin(), latency_of(50), kv_capacity_tokens=40)
    monitor, on, looked = VTC().guarantee.gate_monitor(), DeclaredRules.on, list[int]()
    assert monitor is not None

    def counted(rules: DeclaredRules, named: Sequence[int], kernel: Kernel, **seen: Any) -> Any:
        # Outputs of several events are charged together, each to its client.
        looked.append(len(named) if kernel is not counter.decode else 0)
        return on(rules, named, kernel, **seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeclaredRules, "on", counted)
        assert [said for event in told if (said := monitor.observe(event)) is not None] == []
    assert looked
    assert max(looked) <= 3


@given(st.integers(2, 60), st.integers(1, 200))
def test_a_refill_looks_at_the_clients_that_owe(clients: int, tokens: int) -> None:
    """However many clients have credit, a refill calls kernels on the one that has none."""
    rules, on, looked = interpreter(DeficitGate(quantum=10)), DeclaredRules.on, list[int]()
    assert isinstance(rules, DeclaredRules)
    for client in range(clients):
        rules.joined(client, ())
        assert rules.choose(client, {client}, False) == client
    assert rules.vectors["q"] == [10] * clients

    def counted(rules: DeclaredRules, named: Sequence[int], kernel: Kernel, **seen: Any) -> Any:
        looked.append(len(named))
        return on(rules, named, kernel, **seen)

    rules.admitted(0, 9 + tokens, {0}, False, 9 + tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeclaredRules, "on", counted)
        assert rules.choose(0, {0}, False) == 0
    assert rules.vectors["q"][0] > 0
    assert rules.vectors["q"][1:] == [10] * (clients - 1)
    assert set(looked) == {1}
