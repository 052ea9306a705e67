"""Each fast path that a declaration has beside its kernels is proved to be what it stands for, or falls."""

from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar

import pytest

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.policies.gates import CounterGate, DeficitGate, Kernel, KernelGate, counter, deficit
from fairsched.verify.authoring import FairGate
from fairsched.verify.events import fast_claims
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates.deficit import KNOWN
from fairsched.verify.solvers import Proved, prove


@pytest.mark.parametrize(("gate", "proved"), [(DeficitGate, ["stays", "sparse"]), (CounterGate, ["leads", "sparse"])])
def test_the_shipped_fast_paths_are_what_they_stand_for(gate: type[KernelGate], proved: list[str]) -> None:
    """For any number of clients: the kernels choose the same client while steps are left, and then no longer."""
    claims = fast_claims(gate, given=(KNOWN,) if gate is DeficitGate else ())
    assert [claim.theorem.id for claim in claims] == [f"fast-{name}" for name in proved]
    assert all(isinstance(prove(claim), Proved) for claim in claims)


@pytest.mark.parametrize(
    ("gate", "module", "function", "old", "new"),
    [
        (DeficitGate, deficit, "in_credit", "(q > 0)", "(q > 1)"),
        (CounterGate, counter, "stays_ahead", "o.where(ahead, 1, 0)", "0"),
        (CounterGate, counter, "stays_ahead", "+ 1", "+ 2"),
        (CounterGate, counter, "stays_ahead", " + 1", ""),
        (DeficitGate, deficit, "credit_lasts", " + 1", ""),
        (CounterGate, counter, "decode", "c + charge", "c + charge + charge"),
        (CounterGate, counter, "decode", "c + charge", "c + charge + 1"),
    ],
)
def test_a_seeded_bug_breaks_a_fast_path(
    gate: type[KernelGate], module: ModuleType, function: str, old: str, new: str
) -> None:
    """In the closed form, or in the kernel for which it stands."""
    claims = fast_claims(gate, variant(module, function, old, new))
    assert not all(isinstance(prove(claim), Proved) for claim in claims)


def _too_long(o: Algebra, q: Vector, charge: Vector) -> Vector:
    return q // charge + 1


class Spends(FairGate):
    """Whoever has anything left may go."""

    state = ("q",)
    sparse = True
    fast: ClassVar[Mapping[str, Kernel]] = {"stays": deficit.credit_lasts}

    @staticmethod
    def choose(o: Algebra, q: Vector, queued: Mask, ready: Mask, score: Vector) -> Point:
        return o.argmax(score, queued & ready & (q > 0))

    @staticmethod
    def admit(o: Algebra, q: Vector, p: Point, charge: Scalar) -> Vector:
        return o.bump(q, p, -charge)

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q - charge


def _too_short(o: Algebra, q: Vector, charge: Vector) -> Vector:
    return (q - 1) // charge


class SpendsTooShort(Spends):
    """Its fast path says one step less."""

    fast: ClassVar[Mapping[str, Kernel]] = {"stays": _too_short}


class SpendsTooLong(Spends):
    """Its fast path says one step more where a charge divides what is left."""

    fast: ClassVar[Mapping[str, Kernel]] = {"stays": _too_long}


@pytest.mark.parametrize(("gate", "sound"), [(Spends, True), (SpendsTooLong, False), (SpendsTooShort, False)])
def test_an_author_s_fast_path_is_proved_or_refused(gate: type[FairGate], sound: bool) -> None:
    """It is among the claims of the gate."""
    claims = {claim.theorem.id: claim for claim in gate.claims()}
    assert isinstance(prove(claims["fast-stays"]), Proved) is sound
    assert isinstance(prove(claims["fast-sparse"]), Proved)
