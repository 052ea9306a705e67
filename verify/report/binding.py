"""What of the shipped code a proof runs: found by running it, not by what the proof says of itself.

The rules of each claim are run once on numbers, or its functions on unknown integers, while calls are watched.  So each
theorem has a level:

- `code`: its proof runs shipped functions, and a wrong text of one breaks it.
- `follows`: it runs none, and takes of shipped functions just what theorems that it rests on show of them: each
  contract of its steps (`logic.Contract`) is shown by one of these.
- `model`: an induction over events that the proof writes itself.  No change of shipped code could break it; what holds
  the model to the code are tests.
- `arithmetic`: about the statement only.

A theorem is worth no more than what it rests on: `effective_scope` is the weakest scope of all of these.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from itertools import islice
from types import FrameType, SimpleNamespace
from typing import Any

import attrs

from fairsched.model.algebra import EXACT
from fairsched.model.theorem import Scope, Theorem
from fairsched.verify import logic as v
from fairsched.verify.proofs import AnyClaim, claims_of
from fairsched.verify.report.scope import below
from fairsched.verify.solvers import prove

_SHIPPED = ("fairsched.model.", "fairsched.policies.")
_WORDS = frozenset({"fairsched.model.algebra", "fairsched.model.theorem", "fairsched.model"})
"""What every proof runs: the words themselves, and values."""
_PATHS, _DRAWN = 64, 2
"""Paths of a function that are looked at, and drawn worlds of a claim that is tried."""
_WORLDS = 8
"""Worlds of those that are listed."""
_SHOWN = v.Contract.shown.__code__


class BindingLevel(Enum):
    """What stands between a theorem and the code that ships."""

    CODE = "code"
    FOLLOWS = "follows"
    MODEL = "model"
    ARITHMETIC = "arithmetic"


APART = {
    BindingLevel.MODEL: "about a model of events, which tests hold to shipped code",
    BindingLevel.ARITHMETIC: "about the statement only, no shipped code",
}
"""What is said of theorems whose proofs run none."""


@attrs.frozen
class Traced:
    """What stating a claim ran: shipped functions by their full names, and promises of contracts."""

    functions: frozenset[str]
    promises: frozenset[Any]


@cache
def traced_of(source: str, theorem: str) -> Traced:
    """Return what the claim of a theorem runs."""
    return traced(claims_of(source)[theorem])


def traced(claim: AnyClaim) -> Traced:
    """Return what is run when the claim is stated."""
    functions: set[str] = set()
    promises: set[Any] = set()
    with _watching(functions, promises):
        match claim:
            case v.Claim():
                _stated(claim)
            case v.ArithmeticClaim():
                for _ in islice(v.explore(lambda paths: _shown(claim, paths), pruned=True), _PATHS):
                    pass
            case v.SampledClaim() if callable(claim.worlds):
                for world in islice(claim.worlds(), _WORLDS):
                    claim.shows(SimpleNamespace(**world))
            case v.SampledClaim():
                prove(attrs.evolve(claim, drawn=_DRAWN))
    return Traced(frozenset(functions), frozenset(promises))


@contextmanager
def _watching(functions: set[str], promises: set[Any]) -> Iterator[None]:
    before = sys.getprofile()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code, home = frame.f_code, frame.f_globals.get("__name__", "")
        if code is _SHOWN:
            promises.update(frame.f_locals["self"].promises.values())
        elif home.startswith(_SHIPPED) and home not in _WORDS and not code.co_name.startswith(("__", "<")):
            functions.add(f"{home}.{code.co_qualname}")

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _stated(claim: v.Claim) -> None:
    """Run every rule and every clause of a claim."""
    system = claim.system
    world = v.ones(system, {})
    for clause in (*claim.start, *claim.invariants, *claim.conclusions, *system.hints):
        clause.holds(EXACT, world, *(0 for _ in range(clause.points)))
    for event in system.events:
        world = v.decided(EXACT, event, v.ones(system, event.facts))
        event.step(EXACT, world)
        for need in event.needs:
            need.holds(EXACT, world)


def _shown(claim: v.ArithmeticClaim, paths: Any) -> None:
    claim.shows(SimpleNamespace(**{name: paths.integer(name) for name in claim.names}))


# --- levels, and what a theorem is worth ----------------------------------------------------------------------------


def level_of(source: str, theorem: Theorem) -> BindingLevel:
    """Return the level of a theorem of a source."""
    own = traced_of(source, theorem.id)
    if own.functions:
        return BindingLevel.CODE
    below_it = [traced_of(source, each.id) for each in rested(source, theorem)]
    shown = frozenset().union(*(each.promises for each in below_it if each.functions))
    if own.promises and own.promises <= shown:
        return BindingLevel.FOLLOWS
    claim = claims_of(source)[theorem.id]
    return BindingLevel.MODEL if isinstance(claim, v.Claim) and claim.system.events else BindingLevel.ARITHMETIC


def rested(source: str, theorem: Theorem) -> tuple[Theorem, ...]:
    """Return all that a theorem rests on, and that rests on."""
    known = {claim.theorem.id: claim.theorem for claim in claims_of(source).values()}
    return tuple(known[name] for name in below(theorem, known.values()))


_WEAKEST = (Scope.TESTED, Scope.BOUNDED, Scope.ALL_N)


def effective_scope(source: str, theorem: Theorem) -> Scope:
    """Return the scope of a theorem with all that it rests on: the weakest of them."""
    return min((theorem.scope, *(each.scope for each in rested(source, theorem))), key=_WEAKEST.index)


@attrs.frozen
class Bound:
    """A theorem's level, and its scope with all that it rests on."""

    level: BindingLevel
    scope: Scope


def bound_of(source: str, theorem: str) -> Bound:
    """Return the level and the scope of a theorem of a source, by its id."""
    found = claims_of(source)[theorem].theorem
    return Bound(level_of(source, found), effective_scope(source, found))


def counted(bounds: Iterable[Bound]) -> str:
    """Return how many theorems there are of each scope, those without shipped code apart; in words."""
    kinds = list(bounds)
    of_code = Counter(each.scope for each in kinds if each.level not in APART)
    said = [f"{of_code[scope]} {words}" for scope, words in SCOPES.items() if of_code[scope]]
    apart = Counter(each.level for each in kinds if each.level in APART)
    return "; ".join([", ".join(said), *(f"{count} {APART[level]}" for level, count in apart.items())])


SCOPES = {Scope.ALL_N: "for any number", Scope.BOUNDED: "up to a size", Scope.TESTED: "tested in drawn worlds"}
"""Scopes in words."""
