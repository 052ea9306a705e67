"""What runs is what was proved: a gate or composition that runs anything beside its declaration is refused by name."""

import functools
from copy import copy
from types import MappingProxyType
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import events
from fairsched.model.algebra import EXACT, NUMPY, Algebra, Mask, Point, Scalar, Vector
from fairsched.policies.base import Limits
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import DeficitGate, Kernel, KernelAdmissions
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import AgeingOrder, Arrival, LongestPrefix, Order
from fairsched.verify.authoring import FairGate, of
from fairsched.verify.report.scope import subject
from fairsched.verify.solvers import Proved, prove
from tests.support.authors.allowance import Allowance
from tests.support.authors.stride import Stride

FAVOURED = [0]
COUNT = 0


class Mixed:
    """Gives nothing back and charges nothing later."""

    def settled(self, state: Any, *_: Any) -> Any:
        return state


class Twice:
    """Gives one kernel to the proof and another to the run."""

    def __get__(self, gate: object, kind: type) -> Any:
        return (lambda o, q, charge: q) if gate is not None else Allowance.decode


class Metaclass(type(FairGate)):  # type: ignore[misc]
    """Makes classes in its own way."""


def _branching(o: Algebra, w: Any) -> Any:
    return 1 if o is EXACT else w.allowance + w.allowance - 2 + of(o, w.U, w.f) + of(o, w.U, w.g)


class _Other(tuple):  # type: ignore[type-arg]
    """Could say another thing to each that asks."""


def _boxed(box: list[int]) -> Any:
    return lambda o, w: w.allowance + w.allowance + of(o, w.U, w.f) + of(o, w.U, w.g) + box[0]


class CountsQuestions(Allowance):
    """Says at each question that less is lacking, and gives nothing."""

    @staticmethod
    def refill(o: Algebra, q: Vector) -> Vector:  # type: ignore[override]
        return q

    @classmethod
    def shortfall(cls, o: Algebra, w: Any) -> Any:
        FAVOURED[0] -= 1
        return 1_000 + FAVOURED[0]


def _made(**members: Any) -> type[FairGate]:
    """Return a gate with these members."""
    made: type[FairGate] = type("Mine", (Allowance,), {**members, "__module__": __name__})
    return made


def _promising(most: Any) -> type[FairGate]:
    return _made(promises=(attrs.evolve(Allowance.gap, most=most),))


REFUSED = {
    "admissions that cost nothing": _made(
        admissions=type("Admissions", (KernelAdmissions,), {"admit": lambda *_: None})
    ),
    "a state whose vectors no charge changes": _made(
        state_type=type("State", (Allowance.state_type,), {"q": property(lambda self: np.zeros(9, np.int64))})
    ),
    "a constant that is computed": _made(allowance=property(lambda self: 1)),
    "answers of its own": _made(__getattribute__=object.__getattribute__),
    "a kernel that sees its class": _made(decode=classmethod(lambda cls, o, q, charge: q)),
    "methods from elsewhere": type("Mine", (Mixed, Allowance), {"__module__": __name__}),
    "one kernel for proofs and one for runs": _made(decode=Twice()),
    "a class of classes": Metaclass("Mine", (Allowance,), {"__module__": __name__}),
    "promises of a type of their own": _made(promises=_Other(Allowance.promises)),
    "other promises where it runs": _made(promises=property(lambda self: ())),
    "a number that is not what is proved": _promising(_branching),
    "a bound that changes": _promising(lambda o, w: FAVOURED[0] + of(o, w.U, w.f) + of(o, w.U, w.g)),
    "a bound in a box": _promising(_boxed(FAVOURED)),
    "a share below zero": _made(promises=(attrs.evolve(Allowance.gap, shares=lambda o, w: (-1, -1)),)),
    "counted questions": CountsQuestions,
}


@pytest.mark.parametrize("gate", REFUSED.values(), ids=REFUSED)
def test_a_gate_that_is_more_than_its_declaration_is_refused(gate: type[FairGate]) -> None:
    """Methods, mixins, properties, types of states, metaclasses, and formulas that tell numbers from terms."""
    with pytest.raises(ValueError, match=f"{gate.__name__}|Mixed"):
        gate.claims()
    with pytest.raises(ValueError, match=f"{gate.__name__}|Mixed"):
        subject("mine", ComposedPolicy("mine", LongestPrefix(), gate()))


def _favours(kernel: Any) -> Any:
    @functools.wraps(kernel)
    def run(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q if o is NUMPY else kernel(o, q, charge)

    return run


class Wrapped(Allowance):
    """Decodes for nothing where it runs."""

    @staticmethod
    @_favours
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q - charge


class Defaulted(Allowance):
    """Has a kernel with a list as a default."""

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector, more: Any = FAVOURED) -> Vector:
        return q - charge


class Global(Allowance):
    """Reads a list."""

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q - o.put(charge, FAVOURED[0], 0)


class ByAlgebra(Allowance):
    """Tells the run from the proof."""

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q - charge if "numpy" not in repr(o).lower() else q


class ForgetsDebtOnReturn(Allowance):
    """A client that leaves and returns owes nothing: DLPM's printed flaw."""

    @staticmethod
    def join(o: Algebra, q: Vector, p: Point) -> Vector:
        return o.put(q, p, o.maximum(o.pick(q, p, 0), 0))


class ForgetsCredit(Allowance):
    """A client in credit that joins starts with none, and is behind for it."""

    @staticmethod
    def join(o: Algebra, q: Vector, queued: Mask, p: Point, allowance: Scalar) -> Vector:
        return o.put(q, p, o.minimum(o.pick(q, p, 0), 0 - allowance - allowance))


@pytest.mark.parametrize(
    "gate", [Wrapped, Defaulted, Global, ByAlgebra, ForgetsDebtOnReturn, ForgetsCredit], ids=lambda gate: gate.__name__
)
def test_a_kernel_that_runs_otherwise_than_it_reads_is_not_proved(gate: type[FairGate]) -> None:
    """Decorators, defaults, globals and algebras that are told apart; and what a client gains by leaving."""
    assert not all(isinstance(prove(claim), Proved) for claim in gate.claims())


@attrs.frozen
class DropsEvents(ComposedPolicy):
    """Forgets outputs before the gate sees them."""

    def observe(self, state: Any, event: Any) -> Any:
        return state if isinstance(event, events.Decoded) else super().observe(state, event)


@attrs.frozen
class CountsDecisions(ComposedPolicy):
    """Counts decisions in a global."""

    def decide(self, state: Any, view: Any) -> Any:
        global COUNT  # noqa: PLW0603
        COUNT += 1
        return super().decide(state, view)


@attrs.frozen
class ByMissingName(ComposedPolicy):
    """Answers for itself."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@attrs.frozen
class SaysItIsOurs(ComposedPolicy):
    """Answers for itself, under the name of a module of the library."""

    __module__ = "fairsched.policies.local.policy"

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "kind", [DropsEvents, CountsDecisions, ByMissingName, SaysItIsOurs], ids=lambda kind: kind.__name__
)
def test_a_composition_that_decides_otherwise_is_refused(kind: type[ComposedPolicy]) -> None:
    """What a theorem of a gate says is about the composition that ships."""
    with pytest.raises(ValueError, match=kind.__name__):
        subject("mine", kind("mine", LongestPrefix(), Allowance()))


@attrs.frozen
class OwnFastPath(DeficitGate):
    """Lets a client go on for any number of steps."""

    fast: ClassVar[dict[str, Kernel]] = {**DeficitGate.fast, "stays": lambda o, q, charge: q + q + charge}


def test_a_shipped_gate_with_data_of_an_authors_is_refused() -> None:
    """A value of a name that the library reads runs beside what was proved, as a method does."""
    with pytest.raises(ValueError, match=r"OwnFastPath\.fast"):
        subject("mine", ComposedPolicy("mine", LongestPrefix(), OwnFastPath()))


@attrs.frozen
class Counting(Arrival):
    """Reads and changes a list that is no part of any state."""

    def rank(self, *given: Any) -> Any:
        FAVOURED[0] += 1
        return super().rank(*given)


@attrs.frozen
class Clocked(Arrival):
    """Asks for the time."""

    def rank(self, *given: Any) -> Any:
        import time

        return super().rank(*given) if time.time() else None


class _Hidden:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


HIDDEN = _Hidden()


@attrs.frozen
class Alternating(Arrival):
    """Ranks by a number that each question changes, behind an object that no text shows."""

    def rank(self, *given: Any) -> Any:
        return HIDDEN() * 7919 % 1009


@pytest.mark.parametrize("order", [Counting, Clocked, Alternating], ids=lambda order: order.__name__)
def test_a_part_that_decides_by_anything_but_its_state_is_refused(order: type[Order]) -> None:
    """Seen in the text: globals, the clock.  Seen in two runs of the same world: whatever else."""
    with pytest.raises(ValueError, match=f"{order.__name__}|outside its state"):
        subject("mine", ComposedPolicy("mine", order(), Allowance()))


def test_honest_parts_of_an_author_are_taken() -> None:
    """A gate with constants of its own, an order and a batching rule without effects."""

    class Larger(Allowance):
        allowance = 100
        note = MappingProxyType({"why": "a value of the author's own"})

    @attrs.frozen
    class Backwards(Arrival):
        def rank(self, *given: Any) -> Any:
            return -super().rank(*given)

    found = subject("mine", ComposedPolicy("mine", Backwards(), Larger(), Chunked()))
    assert {"always", "gap", "progress"} <= {theorem.id for theorem in found.theorems}


def test_a_statement_is_rendered_from_its_formula() -> None:
    """No text of an author's says more than what is proved: there is none."""
    (gap,) = Allowance.promises
    assert gap.statement == "W_f - W_g <= 2 allowance - 2 + U_f + U_g while g waits, whatever f does"
    always = next(claim.theorem for claim in Allowance.claims() if claim.theorem.id == "always")
    assert always.statement == "always: q - R >= 1 - U and q <= allowance; R >= 0 and R <= U"


def test_the_number_that_is_printed_is_the_one_that_is_proved() -> None:
    """A promise says what holds or the most that a gap is; the formula is made from the number, and so it falls."""
    with pytest.raises(ValueError, match="one follows from the other"):
        attrs.evolve(Allowance.gap, holds=lambda o, w: w.U >= 1)

    class Less(Allowance):
        promises = (attrs.evolve(Allowance.gap, most=lambda o, w: 1),)

    verdicts = {claim.theorem.id: prove(claim) for claim in Less.claims()}
    assert not isinstance(verdicts["gap"], Proved)


@pytest.mark.parametrize(
    ("gate", "number", "said"),
    [
        *((Allowance, number, "is no integer of at least 1") for number in (0, -3, 2.5, True)),
        (Allowance, 1 << 62, "64 bits"),
        (Stride, 1 << 58, "64 bits"),
    ],
)
def test_a_constant_is_an_integer_with_which_runs_stay_within_64_bits(
    gate: type[FairGate], number: Any, said: str
) -> None:
    """Proofs know of it that it is an integer of at least 1, and nothing of 64 bits; products have less room."""
    with pytest.raises(ValueError, match=f"Odd.{(gate.constants + gate.over_weight)[0]} = {number} .*{said}"):
        type("Odd", (gate,), {(gate.constants + gate.over_weight)[0]: number, "__module__": __name__})().claims()


@pytest.mark.parametrize("gate", [Allowance(), DeficitGate()], ids=lambda gate: type(gate).__name__)
@pytest.mark.parametrize("member", ["decoded", "calls"])
def test_an_object_has_no_methods_of_its_own(gate: Any, member: str) -> None:
    """What is set on one gate runs in place of what its class has."""
    patched = attrs.evolve(gate)
    try:
        object.__setattr__(patched, member, copy(gate.calls) if member == "calls" else lambda state, *_: state)
    except AttributeError:
        pytest.skip("its class leaves no room for it")
    with pytest.raises(ValueError, match=rf"overrides {type(gate).__name__}\.{member}"):
        subject("mine", ComposedPolicy("mine", Arrival(), patched))


@attrs.frozen
class Tight(Chunked):
    """Says that memory is smaller than it is, and so that less can be charged."""

    def limits(self, kv_capacity_tokens: int, output_tokens_max: int) -> Limits:
        return super().limits(4, 1)


@attrs.frozen
class Younger(AgeingOrder):
    """Has the theorems of an order that it is not."""

    def rank(self, *given: Any) -> Any:
        return -super().rank(*given)


def test_what_an_author_changes_has_no_theorem_of_its_parent() -> None:
    """What bounds read of a batching rule is not said anew, and a changed order inherits nothing."""
    with pytest.raises(ValueError, match=r"overrides Tight\.limits"):
        subject("mine", ComposedPolicy("mine", Arrival(), Allowance(), Tight()))
    named = {theorem.id for theorem in AgeingOrder().theorems}
    assert named
    found = subject("mine", ComposedPolicy("mine", Younger(), DeficitGate()))
    assert not named & {theorem.id for theorem in found.theorems}


@given(member=st.sampled_from(sorted(name for name in vars(FairGate) | vars(FairGate.__mro__[1]) if name[0] != "_")))
def test_no_member_of_the_library_can_be_replaced(member: str) -> None:
    """Each method, property and class that a gate has from the library is refused where an author defines it anew."""
    from fairsched.verify.authoring import DATA

    kernels = {"choose", "shortfall", "state_type", *DATA}
    value = getattr(FairGate, member, None)
    if member in kernels or not (callable(value) or isinstance(value, property)):
        return
    made = type("Replaced", (Allowance,), {member: lambda *_, **__: None, "__module__": __name__})
    with pytest.raises(ValueError, match=f"Replaced.{member}|is_about|asks"):
        FairGate.claims.__func__(made)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="Replaced"):
        subject("mine", ComposedPolicy("mine", Arrival(), made()))


def test_states_carry_only_what_a_declaration_says() -> None:
    """The type of an author's states is made by the library: its fields and nothing else."""
    assert Allowance.state_type.__bases__ == (msgspec.Struct,)
