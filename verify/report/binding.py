"""What of the shipped code a proof runs: found by running it, not by what the proof says of itself.

The rules of each claim are run once on numbers, or its functions on unknown integers, while calls are watched.  So each
theorem has a level:

- `code`: its proof runs shipped functions, and a wrong text of one breaks it.
- `follows`: it runs none, and is implied by theorems that do: its steps are their conclusions (`rests_on`).
- `arithmetic`: about the statement only.  No change of shipped code could break its proof.

A theorem is worth no more than what it rests on: `effective_scope` is the weakest scope of all of these.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from itertools import islice
from types import FrameType, SimpleNamespace
from typing import Any

import attrs

from fairsched.model.algebra import EXACT
from fairsched.model.theorem import Scope, Theorem
from fairsched.verify.logic import INTERPRETATIONS, ArithmeticClaim, Claim, Kind, SampledClaim, decided, explore
from fairsched.verify.proofs import SUITE, AnyClaim, claims_of
from fairsched.verify.report.scope import below
from fairsched.verify.solvers import prove

_SHIPPED = ("fairsched.model.", "fairsched.policies.")
_WORDS = frozenset({"fairsched.model.algebra", "fairsched.model.theorem", "fairsched.model.lazy"})
"""What every proof runs: the words themselves, and values."""
_PATHS = 64
"""Paths of a function that are looked at, and worlds of a claim that is tried."""


class Level(Enum):
    """What stands between a theorem and the code that ships."""

    CODE = "code"
    FOLLOWS = "follows"
    ARITHMETIC = "arithmetic"


@cache
def code_of(source: str, theorem: str) -> frozenset[str]:
    """Return the shipped functions that the proof of a theorem runs, by their full names."""
    return functions_run(claims_of(source)[theorem])


def functions_run(claim: AnyClaim) -> frozenset[str]:
    """Return the shipped functions that are run when the claim is stated, by their full names."""
    found: set[str] = set()
    with _watching(found):
        match claim:
            case Claim():
                _stated(claim)
            case ArithmeticClaim():
                for _ in islice(explore(lambda paths: _shown(claim, paths)), _PATHS):
                    pass
            case SampledClaim() if callable(claim.worlds):
                for world in islice(claim.worlds(), _PATHS):
                    claim.shows(SimpleNamespace(**world))
            case SampledClaim():
                prove(attrs.evolve(claim, drawn=_PATHS // 8))
    return frozenset(found)


@contextmanager
def _watching(found: set[str]) -> Iterator[None]:
    before = sys.getprofile()

    def note(frame: FrameType, event: str, _: Any) -> None:
        home = frame.f_globals.get("__name__", "") if event == "call" else ""
        if home.startswith(_SHIPPED) and home not in _WORDS and not frame.f_code.co_name.startswith(("__", "<")):
            found.add(f"{home}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _stated(claim: Claim) -> None:
    """Run every rule and every clause of a claim in a world of two clients in which every number is 1."""
    system, run = claim.system, next(run for run in INTERPRETATIONS if run.o is EXACT)
    clauses = (*claim.start, *claim.invariants, *claim.conclusions, *system.hints)
    for event in (None, *system.events):
        kinds = {**system.parameters, **system.fields, **(event.facts if event else {})}
        two = (Kind.VECTOR, Kind.MASK)
        world = run.world(kinds, {name: (1, 1) if kind in two else 1 for name, kind in kinds.items()})
        for name, rule in system.derived.items():
            setattr(world, name, rule(EXACT, world))
        if event is None:
            for clause in clauses:
                clause.holds(EXACT, world, *(0 for _ in range(clause.points)))
            continue
        world = decided(EXACT, event, world)
        event.step(EXACT, world)
        for need in event.needs:
            need.holds(EXACT, world)


def _shown(claim: ArithmeticClaim, paths: Any) -> None:
    claim.shows(SimpleNamespace(**{name: paths.integer(name) for name in claim.names}))


# --- levels, and what a theorem is worth ----------------------------------------------------------------------------


def level_of(source: str, theorem: Theorem) -> Level:
    """Return the level of a theorem of a source."""
    if code_of(source, theorem.id):
        return Level.CODE
    below_it = rested(source, theorem)
    return Level.FOLLOWS if below_it and all(code_of(source, each.id) for each in below_it) else Level.ARITHMETIC


def rested(source: str, theorem: Theorem) -> tuple[Theorem, ...]:
    """Return all that a theorem rests on, and that rests on."""
    known = {claim.theorem.id: claim.theorem for claim in claims_of(source).values()}
    return tuple(known[name] for name in below(theorem, known.values()))


_WEAKEST = (Scope.TESTED, Scope.BOUNDED, Scope.ALL_N)


def effective_scope(source: str, theorem: Theorem) -> Scope:
    """Return the scope of a theorem with all that it rests on: the weakest of them."""
    return min((theorem.scope, *(each.scope for each in rested(source, theorem))), key=_WEAKEST.index)


@attrs.frozen
class Counts:
    """How many theorems there are of each scope and level."""

    of: Mapping[tuple[Level, Scope], int]

    def __getitem__(self, key: tuple[Level, Scope]) -> int:
        return self.of.get(key, 0)

    @property
    def arithmetic(self) -> int:
        """Those that are about their statement only, whatever their scope."""
        return sum(self[Level.ARITHMETIC, scope] for scope in Scope)

    def about_code(self, scope: Scope) -> int:
        """Those of a scope that are about shipped code, themselves or by what they rest on."""
        return self[Level.CODE, scope] + self[Level.FOLLOWS, scope]


def counts(source: str, theorems: Iterable[Theorem]) -> Counts:
    """Return how many of the theorems there are of each scope and level."""
    return Counts(Counter((level_of(source, each), effective_scope(source, each)) for each in theorems))


def unbound(source: str = SUITE) -> Iterator[str]:
    """Yield the theorems of a source that are about their statement only."""
    for claim in claims_of(source).values():
        if level_of(source, claim.theorem) is Level.ARITHMETIC:
            yield claim.theorem.id
