"""What an author of an order, a gate or a policy gets wrong is refused where it arises, with one line."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import fairsched as fs
from fairsched.model import algebra as al
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.request import Request
from fairsched.policies.gates import AdmissionTransaction, DeficitGate, DeficitState, KernelFault, KernelGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival, Order, QueuedRequest
from fairsched.policies.orders.abilities import RanksByKey


class _NoSteps(ComposedPolicy):
    """Says of a plan that only decodes that it holds for no step."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        plan, after = super().decide(state, view)
        return (plan if plan.chunks or plan.changes_batch else replace(plan, valid_steps=0)), after


class _StaysForNothing(DeficitGate):
    """Says that its choice stays for no step."""

    def begin(self, state: DeficitState, heads: al.Ints) -> AdmissionTransaction:
        turn = super().begin(state, heads)
        turn.stays = lambda *_: 0  # type: ignore[method-assign]
        return turn


class _Ranked(Order):
    """Ranks each request by what it is given."""

    name = "ranked"

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    def rank(self, request: Request, cached_tokens: int) -> int:
        return self._rank  # type: ignore[no-any-return]


class _Keyed(RanksByKey):
    """Ranks the queue by keys made of waits and prompts."""

    name = "keyed"

    def __init__(self, key: Any) -> None:
        self._key = key

    def number(self, queued: QueuedRequest) -> int:
        return queued.request.prompt.tokens

    def keys(self, waiting: int, kv_capacity_tokens: int) -> Any:
        return self._key


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_NoSteps("mine", Arrival(), DeficitGate()), "worker 0: the plan is valid for 0 steps"),
        (ComposedPolicy("mine", Arrival(), _StaysForNothing()), "gate deficit says that its choice .* stays for 0"),
        (ComposedPolicy("mine", _Ranked(10**9), DeficitGate()), "order ranked ranked a request 1000000000: a rank is"),
        (ComposedPolicy("mine", _Ranked(2**70), DeficitGate()), "a rank is a whole number from -4,194,304"),
        (ComposedPolicy("mine", _Ranked(1.5), DeficitGate()), "order ranked ranked a request 1.5: a rank is"),
        (ComposedPolicy("mine", _Ranked(float("nan")), DeficitGate()), "ranked a request nan"),
        (
            ComposedPolicy("mine", _Keyed(lambda wait, number: number / 3), DeficitGate()),
            "by .*: a key is a whole number",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_author_gets_wrong_is_refused_where_it_arises(policy: ComposedPolicy, message: str) -> None:
    """Plans for no step, and ranks that are no whole numbers of their range: one line, and no run that goes on."""
    with pytest.raises(ValueError, match=message):
        fs.simulate(fs.generate("demo"), policy)


# --- what a gate declares ---------------------------------------------------------------------------------------------


def _last(o: al.Algebra, q: al.Vector, queued: al.Mask, ready: al.Mask, score: al.Vector) -> al.Point:
    return o.argmin(score, queued & ready & (q > 0))


def _divides(o: al.Algebra, q: al.Vector, p: al.Point, charge: al.Scalar) -> al.Vector:
    return o.bump(q, p, charge // 0)


def _halves(o: al.Algebra, q: al.Vector, charge: al.Vector) -> al.Vector:
    return q // 2 - charge


def test_a_closed_form_is_not_inherited_beside_another_kernel() -> None:
    """Rule and run are the same: what stood for the parent's kernel is asked no more, all else is."""

    class LastFirst(DeficitGate):
        choose = staticmethod(_last)

    assert set(LastFirst.fast) == {"due", "refill_q"}
    assert LastFirst.sparse
    gate, heads = LastFirst(), np.array([7, 3])
    state = gate.joined(gate.joined(gate.init(), 0, heads[:0], False), 1, heads[:1], False)
    assert gate.begin(state, heads).choose(heads) == 1

    class Free(DeficitGate):
        admit_q = staticmethod(_divides)

    assert not Free.sparse


def test_a_bound_is_not_inherited_beside_another_kernel() -> None:
    """A theorem is about the parent's kernel: a run of the gate prints no bound, and nothing is promised in seconds."""

    class Halves(DeficitGate):
        decode_q = staticmethod(_halves)

    policy = ComposedPolicy("halves", Arrival(), Halves())
    run = fs.simulate(fs.generate("demo", limit=40), policy)
    assert (run.service_gap_bound, run.bound_over_busiest) == (None, None)
    assert policy.guarantee.no_wait(policy.guarantee.limits(10_000, 100), fs.latency_model("llama-3.2-3b-a10g"))
    assert fs.simulate(fs.generate("demo", limit=40), fs.FCFS(gate=DeficitGate())).service_gap_bound is not None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"state": ("c",), "fast": {"chose": _last}}, "Wrong: fast chose: there are only choose, due"),
        ({"state": ("a", "b"), "admit": staticmethod(_divides)}, "which vector does admit change.* admit_a, admit_b"),
    ],
)
def test_a_kernel_that_would_not_be_asked_is_refused(declared: dict[str, Any], message: str) -> None:
    """A closed form of nothing, and a kernel of two vectors that does not say which, are refused with the class."""
    with pytest.raises(ValueError, match=message):
        type("Wrong", (KernelGate,), declared)


def test_a_kernel_that_fails_is_named() -> None:
    """The message has the gate, the kernel, its file and its line."""
    gate = type("Halves", (DeficitGate,), {"admit_q": staticmethod(_divides)})()
    heads = np.array([7])
    turn = gate.begin(gate.joined(gate.init(), 0, heads[:0], False), heads)
    assert turn.choose(heads) == 0
    with pytest.raises(
        KernelFault, match=r"gate Halves, _divides \(.*test_authors_mistakes.py:\d+\): ZeroDivisionError"
    ):
        turn.admit(0, 1, 2, False)
