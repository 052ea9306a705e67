"""A bug in a kernel's text is refuted by a small world, and never passes for proved or stays undecided."""

from types import ModuleType

import pytest

from fairsched.model import pricing
from fairsched.policies import counter, deficit
from fairsched.verify import counter_proofs, deficit_kernel_proofs, deficit_proofs, pricing_proofs, prover
from fairsched.verify.prover import Proved, Refuted, Verdict
from fairsched.verify.variants import variant

DEFICIT_BUGS = [
    ("admit", "-charge", "1 - charge"),
    ("correct", "-charge", "1 - charge"),
    ("decode", "q - charge", "q"),
    ("in_credit", "q > 0", "q >= 0"),
    ("choose", " & ready", ""),
    ("choose", "argmax", "argmin"),
    ("refill", " & due", ""),
    ("refill", "known & ", ""),
    ("refill", "(q <= 0)", "(q < 0)"),
    ("refill", "q + quantum", "quantum"),
    ("refill", "q + quantum", "q + quantum + quantum"),
    ("refund", "minimum", "maximum"),
    ("refund", " + amount", ""),
    ("refill_rounds", "-q // quantum + 1", "-q // quantum"),
]
COUNTER_BUGS = [
    ("admit", "charge)", "charge - 1)"),
    ("decode", "c + charge", "c"),
    ("choose", "argmin", "argmax"),
    ("lift", "argmin", "argmax"),
    ("lift", "o.pick(c, last, 0)", "0"),
    ("lift", "o.maximum(o.pick(c, p, 0), floor)", "floor"),
    ("lift", "o.maximum(o.pick(c, p, 0), floor)", "o.pick(c, p, 0)"),
    ("refund", "o.maximum(held - amount, lowest)", "held - amount"),
    ("refund", "held - amount", "held - amount - 1"),
]


def _verdicts(kernel: ModuleType, function: str) -> list[Verdict]:
    """Verdicts up to the first that is not Proved."""
    if kernel.__name__ == counter.__name__:
        claims = counter_proofs.claims(kernel)
    elif function == "refill_rounds":
        claims = deficit_kernel_proofs.claims(kernel)
    else:
        claims = deficit_proofs.claims(kernel) + deficit_kernel_proofs.claims(kernel)
    verdicts: list[Verdict] = []
    for claim in claims:
        verdicts.append(prover.prove(claim))
        if not isinstance(verdicts[-1], Proved):
            break
    return verdicts


@pytest.mark.parametrize(
    ("module", "function", "old", "new"),
    [(deficit, *bug) for bug in DEFICIT_BUGS] + [(counter, *bug) for bug in COUNTER_BUGS],
)
def test_a_seeded_bug_is_refuted(module: ModuleType, function: str, old: str, new: str) -> None:
    """One change to the shipped text, and a world of at most 3 clients breaks some theorem in both interpretations."""
    last = _verdicts(variant(module, function, old, new), function)[-1]
    assert isinstance(last, Refuted), last
    assert 1 <= last.world.clients <= 3


def test_charging_less_is_refuted_although_all_books_of_the_kernel_agree() -> None:
    """Service is priced by the model, not reported by the gate, so q alone gives the missing unit away."""
    kernel = variant(deficit, "admit", "-charge", "1 - charge")
    balance = next(claim for claim in deficit_proofs.claims(kernel) if claim.theorem is deficit.D_A1)
    verdict = prover.prove(balance)
    assert isinstance(verdict, Refuted)
    assert "W + q = q0 + P" in verdict.world.broken


def test_a_change_that_changes_nothing_is_no_variant() -> None:
    """A variant whose text is not found, or found twice, is an error."""
    with pytest.raises(ValueError, match="0 times"):
        variant(deficit, "admit", "nothing of the kind", "")


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("charge_max_reserved", lambda rates, memory, longest: rates.output * memory),
        (
            "charge_max_optimistic",
            lambda rates, longest, output, k: rates.input * longest + rates.output * k * output + 1,
        ),
        ("price", lambda tokens, rate, multiplier=1: tokens * rate * multiplier - 1),
    ],
)
def test_a_wrong_price_is_refuted(function: str, wrong: object) -> None:
    """A constant that is too small fails to bound, one that is too large is not attained."""
    functions = ModuleType("pricing")
    vars(functions).update({**vars(pricing), function: wrong})
    verdicts = [pricing_proofs.prove(claim) for claim in pricing_proofs.claims(functions)]
    assert any(isinstance(verdict, Refuted) for verdict in verdicts)
    assert all(isinstance(verdict, Refuted | Proved) for verdict in verdicts)
