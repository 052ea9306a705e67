"""Theorems about the shipped gates, which `tests/verify/solvers` proves, need each of their assumptions."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from fairsched.model.theorem import REJOIN_KEEPS_DEBT
from fairsched.policies.gates import counter, deficit, hierarchical, in_batch
from fairsched.policies.orders.abilities import weighted_round_robin
from fairsched.verify.logic import Claim, Event, Kind, Need, System, closure
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.proofs.orders import admission
from fairsched.verify.proofs.suite import gate_claims
from fairsched.verify.solvers import Broken, Proved, prove
from fairsched.verify.solvers.prover import Unknown, audit, prove_changed

pytestmark = pytest.mark.kept("docs/reference/theorems.md")

CLAIMS = {claim.theorem.id: claim for claim in gate_claims()}
BY_NIGHT = ("D-pause-lag", "D-pause-weighted", "D-pause-debt", "J-busy")
"""Audited by night: those about pairs rest on the events of D-pause-gap, and J-busy sums over calls in each step."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.theorem.assumptions])
def test_each_assumption_is_needed(name: str, full_budget: bool) -> None:
    """Without any single assumption there is a counterexample of at most 3 clients that replays."""
    if name in BY_NIGHT and not full_budget:
        pytest.skip("runs with --full-budget")
    for assumption, verdict in audit(CLAIMS[name]).items():
        assert isinstance(verdict, Broken), (assumption.name, verdict)
        assert 1 <= verdict.world.clients <= 3


@pytest.mark.parametrize("name", CLAIMS)
def test_the_list_of_assumptions_is_complete(name: str) -> None:
    """Without everything that the theorem does not list the proof still holds, so nothing unlisted is used."""
    claim = CLAIMS[name]
    unlisted = claim.droppable - set(claim.theorem.assumptions)
    assert not unlisted or isinstance(prove_changed(claim, unlisted), Proved), sorted(a.name for a in unlisted)


def test_the_printed_rejoin_rule_breaks_the_balance() -> None:
    """Starting at zero forgives debt, which is a debit without service: D-A.1 and D-4.2 fall; of D-4.1 and D-range the
    proofs do, and others, in which that rule may be followed, do not."""
    printed = frozenset({REJOIN_KEEPS_DEBT})
    for name in ("D-4.1-rejoin", "D-range-rejoin"):
        happens = {event.name for event in CLAIMS[name].system.events if event.excluded_by is None}
        assert {"arrive", "arrive as printed, at zero", "preempt as printed, at zero"} <= happens
        assert REJOIN_KEEPS_DEBT not in CLAIMS[name].theorem.assumptions
    for name in ("D-A.1", "D-4.2"):
        verdict = prove(CLAIMS[name], dropped=printed)
        assert isinstance(verdict, Broken)
        assert verdict.world.obligation == "arrive as printed, at zero"
        assert "W + q = q0 + P" in verdict.world.broken


def test_a_contradiction_in_the_hypotheses_is_no_proof() -> None:
    """An event that can never happen makes the claim Unknown, however many clauses it would keep."""
    claim = CLAIMS["D-range"]
    never = Event("never", lambda o, w: {}, {"p": Kind.POINT}, (Need(lambda o, w: w.U <= 0),))
    verdict = prove(_with_event(claim, never))
    assert isinstance(verdict, Unknown)
    assert "vacuous" in verdict.reason


def test_an_exhausted_budget_is_no_proof() -> None:
    """With next to no budget the answer is Unknown, neither Proved nor Refuted."""
    assert isinstance(prove(CLAIMS["V-4.4"], rlimit=1), Unknown)


def test_an_event_that_writes_what_is_no_field_is_an_error() -> None:
    """A state field that no clause could speak about cannot slip in."""
    stray = Event("stray", lambda o, w: {"secret": w.q})
    with pytest.raises(ValueError, match="secret is no field"):
        prove(_with_event(CLAIMS["D-range"], stray))


def test_every_kernel_function_is_run_by_some_event() -> None:
    """The event tables are complete: each kernel is declared, closed forms are proved equal to one or used as one."""
    declared = set(closure(kernel for claim in CLAIMS.values() for kernel in claim.system.kernels()))
    for module in (deficit, in_batch, hierarchical, counter, weighted_round_robin):
        shipped = {
            function
            for function in vars(module).values()
            if getattr(function, "__annotations__", {}).get("o") is not None and function.__module__ == module.__name__
        }
        # Closed forms beside the kernel.
        beside = {deficit.refill_rounds, deficit.credit_lasts, counter.rescaled, counter.stays_ahead}
        assert shipped - beside <= declared


def _with_event(claim: Claim, event: Event) -> Claim:
    system = claim.system
    widened = System(system.name, system.parameters, system.laws, system.fields, (*system.events, event))
    return Claim(claim.theorem, widened, claim.start, claim.invariants, claim.conclusions)


def test_the_page_of_theorems_has_an_entry_for_each() -> None:
    """Every theorem is taken up by a directive of the page, once, and no directive names what there is not."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "theorems.md").read_text()
    every = set(claims_of(SUITE))
    entries: list[str] = []
    for families in re.findall(r"^```\{theorems\} (.*)$", page, flags=re.MULTILINE):
        left_out = {name.removeprefix("-") for name in families.split() if name.startswith("-")}
        for family in families.split():
            named = [name for name in every if fnmatchcase(name, family.removeprefix("-"))]
            assert named, family
            entries += [name for name in named if not family.startswith("-") and name not in left_out]
    assert sorted(entries) == sorted(every)


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_a_decision_of_three_requests_is_steps_of_the_kernel() -> None:
    """Under the deficit gate with a cap, in all eight orders of arrival."""
    assert isinstance(prove(admission.deficits(requests=3)), Proved)
