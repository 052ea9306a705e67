"""What is shown of plain code holds, needs what it assumes, breaks with bugs, and is not overstated."""

from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.policies.base import Router
from fairsched.policies.registry import CLUSTER_POLICIES
from fairsched.policies.routers import SAL, RoundRobin
from fairsched.policies.routers.load_based import NoRouterState
from fairsched.verify import proofs
from fairsched.verify.logic import ArithmeticClaim, Bug, Claim, Condition, SampledClaim, changed
from fairsched.verify.logic.claims import DRAWN
from fairsched.verify.proofs.routers import load_based as router_proofs
from fairsched.verify.report import Deployment, registry
from fairsched.verify.report import text as report_text
from fairsched.verify.report.scope import subject
from fairsched.verify.report.values import plan, run
from fairsched.verify.solvers import Proved, Refuted, prove
from fairsched.verify.solvers.cross_check import questions
from fairsched.verify.solvers.prover import Unknown

pytestmark = pytest.mark.kept

BUGS = [(module, bug) for module in proofs.MODULES for bug in proofs.bugs(module)]
CLAIMS = [claim for claim in proofs.claims() if not isinstance(claim, Claim)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.theorem.id)
def test_the_claim_holds(claim: ArithmeticClaim | SampledClaim) -> None:
    """In every world, if it is tried in worlds, for solvers prove the others; the bound is what a run attains."""
    assert isinstance(claim, ArithmeticClaim) or isinstance(prove(claim), Proved)
    if claim.attained is not None:
        reached, bound = claim.attained()
        assert reached == bound


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.theorem.id)
def test_each_assumption_about_the_world_is_needed(claim: ArithmeticClaim | SampledClaim) -> None:
    """Without any one there are integers that break it; what is about the configuration is no condition."""
    for assumption in claim.droppable:
        assert assumption in claim.theorem.assumptions
        assert isinstance(prove(claim, dropped=frozenset({assumption})), Refuted), assumption.name


@pytest.mark.parametrize(("module", "bug"), BUGS, ids=lambda each: getattr(each, "what", ""))
def test_a_seeded_bug_is_refuted(module: ModuleType, bug: Bug) -> None:
    """It breaks the very theorem that the module proves of what ships."""
    assert bug.claim.theorem in [claim.theorem for claim in module.claims()]
    assert isinstance(prove(bug.claim), Refuted)


def test_theorems_have_bugs_and_runs_that_attain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lacks either is a breach, by name."""
    assert list(registry.unseeded(proofs.MODULES)) == []
    bare = ModuleType("bare")
    vars(bare)["claims"] = lambda: (attrs.evolve(router_proofs.round_robin(), attained=None),)
    assert list(registry.unseeded([bare])) == [
        "bare: no bug is seeded against P-RR-1",
        "bare: nothing attains the bound of P-RR-1",
    ]


# --- the machinery ----------------------------------------------------------------------------------------------------

EXERCISE = Theorem("exercise", "an exercise", "no source", ())


def arithmetic(shows: Any, *conditions: Condition, relaxed: bool = False) -> ArithmeticClaim:
    """A claim about two integers."""
    return ArithmeticClaim(EXERCISE, ("a", "b"), conditions, shows, relaxed)


def test_every_path_is_taken() -> None:
    """A branch is taken both ways, and what is shown on one of them only has to be reached there."""
    seen = []

    def shows(w: SimpleNamespace) -> dict[str, Any]:
        if w.a > w.b and w.b > 0:
            seen.append("both")
            return {"a is positive": w.a > 0}
        seen.append("else")
        return {}

    assert isinstance(prove(arithmetic(shows)), Proved)
    assert sorted(seen) == ["both", "else", "else"]


def test_what_is_never_reached_is_not_proved() -> None:
    """Neither a statement on a path that nothing takes, nor a claim without statements."""
    positive = Condition(lambda w: w.a > 0)
    never = arithmetic(lambda w: {"reached": w.a > 0} if w.a > 0 else {"never": w.a > 1}, positive)
    for claim in (never, arithmetic(lambda w: {})):
        verdict = prove(claim)
        assert isinstance(verdict, Unknown)
        assert verdict.reason.startswith("vacuous")
    assert prove(never).obligation == "never"  # type: ignore[union-attr]


def test_what_is_false_of_reals_alone_is_still_proved_of_integers() -> None:
    """Both solvers are asked about reals first; a countermodel counts only in integers."""
    between = arithmetic(lambda w: {"nothing is between": (w.a <= 0) | (w.a >= 1)}, relaxed=True)
    assert isinstance(prove(between), Proved)
    product = arithmetic(lambda w: {"products": w.a * w.b <= w.b * w.b}, Condition(lambda w: w.a < w.b), relaxed=True)
    assert isinstance(prove(product), Refuted)
    assert {question.script.logic for question in questions(product)} == {"QF_NRA", "QF_LIA"}


def test_a_statement_may_rest_on_those_before_it() -> None:
    """And a false one is found however much rests on it."""
    chain = arithmetic(lambda w: {"first": w.a + 1 > w.a, "second": w.a + 2 > w.a})
    assert isinstance(prove(chain), Proved)
    wrong = arithmetic(lambda w: {"first": w.a > w.b, "second": w.a > w.b})
    verdict = prove(wrong)
    assert isinstance(verdict, Refuted)
    assert verdict.world.broken == ("first", "second")


def test_worlds_are_tried_and_the_smallest_that_breaks_is_found() -> None:
    """Of listed worlds the first, of drawn ones the one to which Hypothesis shrinks; none to show is no proof."""
    drawn, listed = (attrs.evolve(EXERCISE, scope=scope) for scope in (Scope.TESTED, Scope.BOUNDED))
    few = SampledClaim(listed, lambda: [{"a": a} for a in range(9)], lambda w: {"small": w.a < 5})
    many = SampledClaim(drawn, st.fixed_dictionaries({"a": st.integers(0, 1_000)}), lambda w: {"small": w.a < 500})
    for claim, smallest in ((few, 5), (many, 500)):
        verdict = prove(claim)
        assert isinstance(verdict, Refuted)
        assert verdict.world.values == {"a": smallest}
    assert isinstance(prove(attrs.evolve(few, shows=lambda w: {})), Unknown)
    with pytest.raises(ValueError, match="claims all n, which its worlds cannot show"):
        SampledClaim(EXERCISE, lambda: [], lambda w: {})


def test_a_bug_that_is_none_is_an_error() -> None:
    """The text that is changed has to be there, once."""
    with pytest.raises(ValueError, match="occurs 0 times"):
        changed(RoundRobin, "route", "placed + 2", "placed + 3")


# --- what a report says -----------------------------------------------------------------------------------------------


def test_a_configuration_has_what_it_fulfils() -> None:
    """SAL that foresees growth has no P-SAL-1, which is proved without."""
    planned = plan([subject("sal", SAL(decode_step_us=7))])
    assert ("sal", "P-SAL-1", "no NoGrowth") in planned.unclaimed
    assert "P-SAL-2" in {each.theorem.id for each in planned.planned}


def test_a_router_that_changes_a_method_has_no_theorem() -> None:
    """Unless it changes parameters only."""

    @attrs.frozen
    class Patient(SAL):
        """Another default."""

        poll_us: int = 1

    @attrs.frozen
    class Blind(SAL):
        """Sees no memory."""

        def terms(self, tokens: Any, estimate: Any, steps: Any, ratio: Any) -> Any:
            return super().terms(tokens, estimate, steps, ratio)

    class Last(Router[NoRouterState]):
        """A router of a user's own."""

        state_type = NoRouterState
        name = "last"

        def init(self) -> NoRouterState:
            return NoRouterState()

        def route(self, state: NoRouterState, request: Request, view: ClusterView) -> Any:
            raise NotImplementedError

    assert subject("patient", Patient()).theorems == SAL.theorems
    with pytest.raises(ValueError, match=r"overrides Blind\.terms: it inherits no theorem"):
        subject("blind", Blind())
    assert subject("last", Last()).theorems == ()


def test_what_was_tried_is_said_to_be_tested() -> None:
    """In another word than what was proved, with the number of worlds, and it is no failure."""
    theorem = Theorem("tried", "integers are integers", "an exercise", (), scope=Scope.TESTED)
    strategy = st.fixed_dictionaries({"a": st.integers()})
    holder = SimpleNamespace(claims=lambda: (SampledClaim(theorem, strategy, lambda w: {"same": w.a == w.a}),))
    globals()["TRIED"] = holder
    outcome = run("0", [subject(f"{__name__}:TRIED", holder)], Deployment(), self_checks=False)
    (entry,) = outcome.report.theorems
    assert (entry.verdict, entry.scope, entry.solvers, entry.worlds) == ("tested", "tested", (), DRAWN)
    assert outcome.failures == []
    shown = report_text.as_text(outcome, Deployment())
    assert "0 of 0 theorems proved" in shown
    assert "1 more held in all worlds that were drawn, which is no proof" in shown


def test_assumptions_about_the_world_are_named_once() -> None:
    """Two routers mean the same by an assumption of one name."""
    known: dict[str, Assumption] = {}
    for router in CLUSTER_POLICIES.values():
        for theorem in router.theorems:
            for assumption in theorem.assumptions:
                assert known.setdefault(assumption.name, assumption) == assumption
