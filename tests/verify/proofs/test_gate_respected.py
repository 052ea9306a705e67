"""GateRespected, tested: a decision admits exactly what its gate chose, and nothing that the gate holds back.

The theorems assume it of every admission.  For the shipped decision loop it is checked in every decision that the
conformance machine provokes, for each gate, order and batching rule; it is not proved.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import settings

from fairsched.model.algebra import NO_GROUP, Ints
from fairsched.model.plan import StepPlan
from fairsched.model.view import WorkerView
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.gates import AdmissionTransaction, AnyGate, CounterGate, DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival, LongestPrefix, Order, ShortestPrompt
from fairsched.verify.conformance.local import World, check_local_policy

pytestmark = pytest.mark.kept

ORDERS: dict[str, type[Order]] = {order.name: order for order in (Arrival, ShortestPrompt, LongestPrefix)}
GATES: dict[str, AnyGate] = {
    "deficit": DeficitGate(quantum=5),
    "capped": DeficitGate(quantum=5, in_flight_cap_tokens=14),
    "elastic": DeficitGate(quantum=5, in_flight_cap_tokens=6, cap_holds="contended"),
    "counter": CounterGate(),
}


class WatchedAdmissions(AdmissionTransaction):
    """A decision of a gate, and a protocol: choose, then admit or skip the chosen, then choose again."""

    def __init__(self, inner: AdmissionTransaction) -> None:
        self.inner = inner
        self.chosen = NO_GROUP
        self.skipped: set[int] = set()

    def choose(self, heads: Ints) -> int:
        """Notes the answer."""
        self.chosen = self.inner.choose(heads)
        assert self.chosen not in self.skipped
        return self.chosen

    def skip(self, group: int) -> None:
        """Only the chosen is skipped, and it is not chosen again."""
        assert group == self.chosen
        self.skipped.add(group)
        self.inner.skip(group)

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        """Only the chosen enters, once a choice, with at least one token, in credit, under the cap."""
        assert group == self.chosen != NO_GROUP
        assert input_tokens >= 1
        assert not self.inner.lacks_credit(group)
        assert not self.inner.capped(group, kv_tokens)
        self.chosen = NO_GROUP
        self.inner.admit(group, input_tokens, kv_tokens, emptied)

    def counted(self, client: int, output_tokens: int) -> int:
        """As the gate says."""
        return self.inner.counted(client, output_tokens)

    def capped(self, client: int, kv_tokens: int) -> bool:
        """As the gate says."""
        return self.inner.capped(client, kv_tokens)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """As the gate says."""
        return self.inner.stays(group, clients, counts)


class WatchedGate:
    """A gate whose decisions are watched; everything else is the gate's."""

    def __init__(self, inner: AnyGate) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self, state: Any, heads: Ints) -> AdmissionTransaction:
        """A watched decision."""
        return WatchedAdmissions(self.inner.begin(state, heads))

    def after(self, state: Any, admissions: AdmissionTransaction) -> Any:
        """The state after the decision that is watched."""
        assert isinstance(admissions, WatchedAdmissions)
        return self.inner.after(state, admissions.inner)


@attrs.frozen
class Watched(ComposedPolicy):
    """A policy that decides under a watched gate."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        """The same decision."""
        gate: Any = WatchedGate(self.gate)
        return ComposedPolicy(self.name, self.order, gate, self.batching).decide(state, view)


def _budget(full_budget: bool) -> settings:
    return settings(max_examples=200 if full_budget else 6, stateful_step_count=25)


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", GATES)
def test_decide_admits_only_what_choose_gave(gate: str, order: str, batching: str, full_budget: bool) -> None:
    """Whatever order prefers and however a step is filled."""
    rule = BATCHINGS[batching](max_batched_tokens=7, max_running=4)
    policy = Watched("watched", ORDERS[order](), GATES[gate], rule)
    check_local_policy(policy, World(block_tokens=2), settings=_budget(full_budget))


class _Pushy(WatchedAdmissions):
    """Lets the next client in instead of the chosen one."""

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        """Another client."""
        super().admit(group + 1, input_tokens, kv_tokens, emptied)


def test_admitting_another_is_noticed() -> None:
    """The watch can fail."""
    gate = GATES["deficit"]
    heads = np.array([1, 1])
    state = gate.joined(gate.joined(gate.init(), 0, heads, False), 1, heads, False)
    turn = _Pushy(gate.begin(state, heads))
    with pytest.raises(AssertionError):
        turn.admit(turn.choose(heads), 1, 1, False)
