"""Claims about gates that sound right and are false, as claims: the prover finds the world that breaks each.

They are about the shipped kernels wherever the claim is false of those (CE2), and about the rule that was printed, or
that one would write first, where the shipped rule is another (CE3, CE4).  What is false because an assumption of a true
theorem is missing (CE1, CV3) needs no claim of its own.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import price
from fairsched.model.theorem import Theorem
from fairsched.policies import deficit
from fairsched.verify.arithmetic import ArithmeticClaim, Condition
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, Rule, System, World, implies, spread

SHIPPED_REFILL = "D-refill-serves"
"""The true statement about the shipped refill that CE3 and CE4 are the false ones of."""

_PARAMETERS = {"Q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK}
_LAWS = (Need(lambda o, w: w.Q >= 1), Need(lambda o, w: implies(o, w.queued, w.known)))


def strong_work_conservation(kernel: Any = deficit) -> Claim:
    """`fits` is whose head memory would hold; the first chosen that does not fit ends the admissions."""

    def decide(o: Algebra, w: World) -> Mapping[str, Any]:
        chosen = kernel.choose(o, w.q, w.queued, w.queued, w.score)
        return {"served": chosen, "entered": o.pick(w.fits, chosen, False)}

    served = Clause(
        "if somebody waits whose head fits, somebody enters", lambda o, w: implies(o, w.queued & w.fits, w.entered)
    )
    return Claim(
        Theorem("CE2", "whoever waits and fits is not passed over for nobody", "strong work conservation", ()),
        System(
            "one admission",
            {**_PARAMETERS, "q": Kind.VECTOR, "score": Kind.VECTOR, "fits": Kind.MASK},
            (*_LAWS, Need(lambda o, w: o.exists(kernel.choose(o, w.q, w.queued, w.queued, w.score)))),
            {"served": Kind.POINT, "entered": Kind.FLAG},
            (Event("decide", decide, kernels=(kernel.choose,)),),
        ),
        (served,),
        (served,),
        (served,),
    )


def _eligible_after(name: str, what: str, refill: Rule, kernels: tuple[Any, ...]) -> Claim:
    """After `refill`, whoever waits includes somebody in credit; before it anything may be."""
    claimed = Clause("if somebody waited, somebody who waits has credit", lambda o, w: spread(w.claimed, w.q))

    def event(o: Algebra, w: World) -> Mapping[str, Any]:
        after = refill(o, w)
        eligible = o.any(deficit.in_credit(o, after["q"], w.queued))
        return {**after, "claimed": o.where(o.any(w.queued), eligible, True)}

    return Claim(
        Theorem(name, f"after {what}, if somebody waits, somebody who waits has credit", "rule 2 of the gate", ()),
        System(
            "one refill",
            {**_PARAMETERS, "running": Kind.MASK},
            _LAWS,
            {"q": Kind.VECTOR, "claimed": Kind.FLAG},
            (Event("refill", event, kernels=kernels),),
            closed_forms=True,
        ),
        (claimed,),
        (claimed,),
        (claimed,),
    )


def one_round(kernel: Any = deficit) -> Claim:
    """A refill of one round, as printed."""

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    return _eligible_after("CE4", "one round of refill", refill, (kernel.refill_due, kernel.refill))


def active_means_running(kernel: Any = deficit) -> Claim:
    """A refill that waits for everybody who is queued or runs."""

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        due = kernel.refill_due(o, w.q, w.queued | w.running)
        topped = kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q)
        return {"q": o.where(spread(due, w.q), topped, w.q)}

    return _eligible_after("CE3", "a refill for which who only runs counts as active", refill, ())


def shipped_refill(kernel: Any = deficit) -> Claim:
    """The same statement about what production runs, which is true."""

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        due = kernel.refill_due(o, w.q, w.queued)
        topped = kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q)
        return {"q": o.where(spread(due, w.q), topped, w.q)}

    return _eligible_after(SHIPPED_REFILL, "the shipped refill", refill, ())


def larger_of_both() -> ArithmeticClaim:
    """U as printed for VTC: the larger of a prompt's price and of the memory's price as outputs (CV2)."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        charged = price(w.input, w.w_p) + price(w.outputs, w.w_q)
        prompts, outputs = price(w.L, w.w_p), price(w.M, w.w_q)
        return {"charge + R <= max(w_p L, w_q M)": charged <= max(prompts, outputs)}

    return ArithmeticClaim(
        Theorem("CV2", "w_p p + w_q O <= max(w_p L, w_q M)", "VTC (OSDI'24), recalled", ()),
        ("M", "L", "w_p", "w_q", "input", "outputs"),
        (
            Condition(lambda w: w.w_p >= 1),
            Condition(lambda w: w.w_q >= 1),
            Condition(lambda w: w.input >= 1),
            Condition(lambda w: w.input <= w.L),
            Condition(lambda w: w.outputs >= 0),
            Condition(lambda w: w.input + w.outputs <= w.M),
        ),
        shows,
    )


def claims(kernel: Any = deficit) -> tuple[Claim, ...]:
    """The false ones, where a saved counterexample finds them."""
    return (strong_work_conservation(kernel), active_means_running(kernel), one_round(kernel))
