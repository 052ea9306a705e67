"""Whether two texts of a kernel mean the same for every number of clients: for all inputs, or wherever they are run.

The running interpretations serve the first of equals, so here the solver's words do, too (clients have positions): two
texts that choose among the same candidates choose the same one.
"""

import ast
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import z3

from fairsched.verify import logic
from fairsched.verify.solvers import RLIMIT, everywhere, instances, solver_of

Kernel = Callable[..., Any]

ILL_TYPED = (TypeError, AttributeError, NameError, z3.Z3Exception)
"""What the interpretation raises for a text that mixes up masks, vectors, scalars and points."""

_KINDS = {"Vector": logic.Kind.VECTOR, "Mask": logic.Kind.MASK, "Scalar": logic.Kind.SCALAR, "Point": logic.Kind.POINT}


class FirstOfEquals(logic.Z3Algebra):
    """The words as running interpretations have them: among equals, the client of the smallest position."""

    def __init__(self) -> None:
        super().__init__()
        self._position = z3.Function("position", logic.CLIENT, z3.IntSort())

    def instances(self) -> list[Any]:
        pairs = combinations(self.clients, 2)
        return super().instances() + [z3.Implies(self._position(a) == self._position(b), a == b) for a, b in pairs]

    def _choose(self, v: Any, m: Any, beats: Callable[[Any, Any], Any]) -> logic.Point:
        best = super()._choose(v, m, beats)

        def first(client: Any) -> Any:
            equal = z3.And(m.at(client), beats(v.at(client), v.at(best.who)))
            return z3.Implies(equal, self._position(best.who) <= self._position(client))

        self.laws.append(first)
        return best


def signature(kernel: Kernel) -> tuple[bool, bool] | type[logic.Point]:
    """Return what a kernel returns: whether truth values, whether one a client; raises one of `ILL_TYPED` for a text
    that mixes up what it is given.
    """
    result = _applied(FirstOfEquals(), kernel)
    return logic.Point if isinstance(result, logic.Point) else (result.boolean, result.vector)


def equal(kernel: Kernel, other: Kernel) -> bool:
    """Return whether two kernels of the same parameters return the same for all inputs."""
    o = FirstOfEquals()
    pair = (_applied(o, kernel), _applied(o, other))
    return _proved(o, [], [pair], o.fresh_client("client"))


def equal_within(step: logic.Step, other: logic.Step) -> bool:
    """Return whether an event is permitted in the same states and comes to the same, in two systems that differ in a
    kernel's text only.

    The claim's invariants, its laws and the event's needs are assumed of the state before.
    """
    proved, alike = _implied(step, other)
    return proved and (alike or _implied(other, step)[0])


def _implied(step: logic.Step, other: logic.Step) -> tuple[bool, bool]:
    """Return whether what `step` permits is permitted in `other`, too, and comes to the same there; and whether the
    needs of both are the same terms, so that neither permits more.
    """
    o, system, event = FirstOfEquals(), step.claim.system, step.event
    symbols = {name: o.symbol(name, kind, system.closed_forms) for name, kind in step.kinds.items()}
    before = logic.with_derived(o, system, SimpleNamespace(**symbols))
    theirs = logic.with_derived(o, other.claim.system, SimpleNamespace(**symbols))
    if event and other.event:
        before, theirs = logic.decided(o, event, before), logic.decided(o, other.event, theirs)
    pairs = _pairs(before, theirs)
    if event and other.event:
        pairs += _pairs(
            logic.state_after(o, system, event, before), logic.state_after(o, other.claim.system, other.event, theirs)
        )
    held = [need.holds(o, before) for need in logic.hypotheses(system, event, step.dropped)]
    needed = [need.holds(o, theirs) for need in logic.hypotheses(other.claim.system, other.event, step.dropped)]
    pairs += [(logic.lifted(True), value) for value in needed]
    point = o.fresh_client("client")
    o.sealed = True
    terms = [term for value in held for term in everywhere(o, value)]
    terms += [term for clause in step.assumed for term in instances(o, clause, before)]
    alike = all(z3.eq(a.at(point), b.at(point)) for a, b in zip(held, needed, strict=True))
    return _proved(o, terms, pairs, point), alike


def _applied(o: FirstOfEquals, kernel: Kernel) -> logic.Value | logic.Point:
    """Return the kernel's result on unknowns of the kinds that its annotations name."""
    definition = logic.definition_of(kernel)
    assert definition is not None
    given = ((each.arg, each.annotation) for each in definition.args.args if each.arg != "o")
    kinds = ((name, _KINDS[ast.unparse(annotation)]) for name, annotation in given if annotation)
    result = kernel(o, *(o.symbol(name, kind, closed_form=True) for name, kind in kinds))
    return result if isinstance(result, logic.Point) else logic.lifted(result)


def _pairs(left: logic.World, right: logic.World) -> list[tuple[Any, Any]]:
    return [(value, getattr(right, name)) for name, value in vars(left).items()]


def _proved(o: FirstOfEquals, terms: list[Any], pairs: list[tuple[Any, Any]], client: Any) -> bool:
    """Return whether all pairs are equal at `client`."""
    differs = z3.Or([z3.Not(_same(a, b, client)) for a, b in pairs if a is not b])
    return bool(solver_of(RLIMIT, *o.instances(), *terms, differs).check() == z3.unsat)


def _same(a: logic.Value | logic.Point, b: logic.Value | logic.Point, client: Any) -> Any:
    if isinstance(a, logic.Point) and isinstance(b, logic.Point):
        return z3.And(a.found == b.found, z3.Implies(a.found, a.who == b.who))
    assert isinstance(a, logic.Value)
    assert isinstance(b, logic.Value)
    return a.at(client) == b.at(client)
