"""What of the shipped code a proof runs is found by running it, and what runs none is said and counted apart."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.model import pricing
from fairsched.model.events import ClientConfigured, WorkerJoined
from fairsched.model.request import Client
from fairsched.model.theorem import Scope
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import CounterGate, DeficitGate, HierarchicalGate, deficit
from fairsched.policies.gates import hierarchical as hierarchical_gate
from fairsched.verify.logic import Claim, Contract
from fairsched.verify.proofs import SUITE
from fairsched.verify.proofs.gates import hierarchical as hierarchical_proofs
from fairsched.verify.proofs.memory import books, memory
from fairsched.verify.report.binding import APART, BindingLevel, Bound, bound_of, counted, traced_of
from fairsched.verify.solvers import Broken, prove

pytestmark = pytest.mark.kept

ABOUT_CODE = ("D-A.2-time", "V-4.11-time", "D2-A.4", "D2-5.1", "D2-5.2", "H-families", "KV-charge")


@pytest.mark.parametrize("theorem", ABOUT_CODE)
def test_the_proof_runs_shipped_code(theorem: str) -> None:
    """The theorem's transitions or its constant are the functions that ship."""
    assert bound_of(SUITE, theorem).level is BindingLevel.CODE


@pytest.mark.parametrize("theorem", ["KV-sum", "KV-takers", "KV-outputs"])
def test_a_proof_follows_only_from_what_is_shown(theorem: str) -> None:
    """Each contract of its steps is shown by a theorem that runs shipped code; one that nothing shows is arithmetic."""
    assert bound_of(SUITE, theorem).level is BindingLevel.FOLLOWS
    own = traced_of(SUITE, theorem)
    shown = frozenset().union(*(traced_of(SUITE, each.theorem.id).promises for each in memory.claims()))
    assert own.promises
    assert own.promises <= shown
    assert not own.functions


def test_what_runs_no_code_is_counted_apart() -> None:
    """The words of the summary, and a theorem that is such."""
    of_code, following = Bound(BindingLevel.CODE, Scope.TESTED), Bound(BindingLevel.FOLLOWS, Scope.ALL_N)
    alone = bound_of(SUITE, "mem-2")
    assert alone == Bound(BindingLevel.ARITHMETIC, Scope.BOUNDED)
    model = bound_of(SUITE, "U-window")
    assert model == Bound(BindingLevel.MODEL, Scope.ALL_N)
    said = counted([of_code, following, alone, model]).split("; ")
    assert said[0].startswith("1 for any number, 1 tested in drawn worlds")
    assert said[1:] == [f"1 {APART[each.level]}" for each in (alone, model)]


def test_a_weaker_contract_is_not_enough() -> None:
    """Were an admission that does not fit not refused, KV-sum would fall."""
    without = {name: holds for name, holds in books.ADMITTED.promises.items() if name != "protected + promised <= C"}
    weaker = Contract(without)
    whole = books.ADMITTED
    try:
        object.__setattr__(books, "ADMITTED", weaker)
        wrong = next(each for each in books.claims() if each.theorem.id == "KV-sum")
    finally:
        object.__setattr__(books, "ADMITTED", whole)
    assert isinstance(prove(wrong), Broken)


REFILL_BUGS = [("state.known & due", "state.known | due"), ("state.quantum", "state.quantum + 1")]
RLIMIT_FIRST = 1_000_000
"""Where quotients take more than that, numbers for the quanta show the world."""


@pytest.mark.parametrize(("old", "new"), REFILL_BUGS)
def test_a_wrong_refill_of_all_families_is_found(old: str, new: str) -> None:
    """H-families falls with the text of `refilled`, for any number of nodes."""
    text = inspect.getsource(hierarchical_gate.refilled)
    assert text.count(old) == 1
    made = dict(vars(hierarchical_gate))
    exec(text.replace(old, new), made)
    claim = hierarchical_proofs.families_claim(SimpleNamespace(refilled=made["refilled"]), deficit)
    assert isinstance(claim, Claim)
    assert isinstance(prove(claim, rlimit=RLIMIT_FIRST), Broken)


def _weighed(rates: pricing.Rates, weight: int) -> None:
    gate = CounterGate(rates)
    gate.configured(gate.init(), 0, weight)


ACCEPTED = [
    (lambda n: pricing.Rates(input=n), pricing.RATE_MAX, "input"),
    (lambda n: pricing.Rates(output=n), pricing.RATE_MAX, "output"),
    (lambda n: Client(0, "a", n), pricing.WEIGHT_MAX, "a weight"),
    (lambda n: Client(0, "a", 1, (("team", n),)), pricing.WEIGHT_MAX, "the weight of group 'team'"),
    (lambda n: ClientConfigured(0, 0, 0, n), pricing.WEIGHT_MAX, "a weight"),
    (lambda n: WorkerJoined(0, 0, n), pricing.CAPACITY_TOKENS_MAX, "kv_capacity_tokens"),
    (lambda n: DeficitGate(quantum=n), pricing.QUANTUM_MAX, "quantum"),
    (lambda n: HierarchicalGate(quantum=n), pricing.QUANTUM_MAX, "quantum"),
    (lambda n: Chunked(max_running=n), pricing.RUNNING_MAX, "max_running"),
    (
        lambda n: _weighed(pricing.Rates(output=pricing.RATE_MAX), n),
        pricing.UNIT_RATE_MAX // pricing.RATE_MAX,
        "least common multiple",
    ),
]


@pytest.mark.parametrize(("make", "most", "named"), ACCEPTED)
def test_what_could_overflow_is_refused(make: Any, most: int, named: str) -> None:
    """The largest number is taken; one more is refused in a line that names it, so charge-limit's conditions hold."""
    make(most)
    with pytest.raises(ValueError, match=named) as refused:
        make(most + 1)
    assert "\n" not in str(refused.value)
