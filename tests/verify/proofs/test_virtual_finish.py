"""Calls by virtual finish times end within a constant of an ideal machine, and not of the one that is claimed."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from fairsched.verify.logic import Claim, Clause, Need
from fairsched.verify.proofs.orders import virtual_finish as proofs
from fairsched.verify.solvers import Broken, prove

pytestmark = pytest.mark.kept

CLAIMS = {claim.theorem.id: claim for claim in proofs.claims()}


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_calls_take_no_more_memory_and_steps_than_the_constants_say() -> None:
    """Started with any, the proof fails."""
    claim: Any = CLAIMS["J-busy"]
    events = [
        attrs.evolve(each, needs=()) if each.name == "an early call is started" else each
        for each in claim.system.events
    ]
    without: Claim = attrs.evolve(claim, system=attrs.evolve(claim.system, events=tuple(events)))
    assert isinstance(prove(without), Broken)


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_a_machine_of_all_memory_is_too_fast() -> None:
    """With a rate of M - m + 2 the proof fails, and with M the claim of F-J-1."""
    claim: Any = CLAIMS["J-busy"]
    faster = Need(lambda o, w: (w.m >= 1) & (w.m <= w.M) & (w.d >= 1) & (w.r <= w.M - w.m + 2) & (w.r >= w.M - w.m + 2))
    assert isinstance(prove(attrs.evolve(claim, system=attrs.evolve(claim.system, laws=(faster,)))), Broken)


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_old_calls_may_take_all_their_steps() -> None:
    """With d - 1 in place of d what was worked off is less."""
    claim: Any = CLAIMS["J-busy"]
    sooner = Clause(
        claim.invariants[4].name,
        lambda o, w: claim.invariants[4].holds(o, SimpleNamespace(**{**vars(w), "d": w.d - 1})),
    )
    invariants = (*claim.invariants[:4], sooner, *claim.invariants[5:])
    assert isinstance(prove(attrs.evolve(claim, invariants=invariants)), Broken)


def test_lateness_grows_with_all_work_against_a_machine_of_all_memory() -> None:
    """By a third of a step with each program of F-J-1, so no constant bounds it; against r = M - m + 1 it does not."""
    worlds = [SimpleNamespace(memory=3, programs=[[0, [[1, 1]]] for _ in range(count)]) for count in (15, 30, 60)]
    assert [max(proofs.lateness(w, 3)) for w in worlds] == [5, 10, 20]
    assert [max(proofs.lateness(w, 2)) for w in worlds] == [0, 0, 0]


def test_the_bound_is_nearly_reached() -> None:
    """Long late calls fill the memory; then a program comes with one long call of least memory."""
    steps, memory = 6, 700
    late = [0, [[1, steps]] * (memory // (steps + 1))]
    w = SimpleNamespace(memory=memory, programs=[late, [1, [[1, steps]]]])
    assert 2 * steps - 2 <= max(proofs.lateness(w, memory - steps)) < 2 * steps - 1
