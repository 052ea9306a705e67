"""Claims about plain Python in worlds of plain values: prices, a worker's accounts, a router's choice, whole runs.

Shipped functions are run in a world, and what must follow is named; statements are shown in their order, and each may
rest on those before it.  An `ArithmeticClaim` is proved: its functions are run on unknown integers, once along each
path.  A `SampledClaim` is tried in worlds one after the other, for what no solver decides: trees, sorted lists, whole
runs.  Trying every world up to a size proves it for that size (scope `n <= k`).  Trying drawn worlds, the same in every
run, *tests* it and no more (scope `tested`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import msgspec

from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.verify.logic import counterexample, system
from fairsched.verify.logic.patching import reworded

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

PlainWorld = Mapping[str, Any]
"""A world as JSON has it: integers, texts, lists and mappings of such, by name."""

Shown = Mapping[str, Any]
"""The statements that must be true of a world, by name; none where the world is of no interest."""

Shows = Callable[[SimpleNamespace], Shown]
"""Runs shipped code in a world and returns the statements about it."""

Attained = Callable[[], tuple[int, int]]
"""Runs the shipped code to where a theorem's bound is reached; returns what was reached and the bound."""

DRAWN = 200
"""How many worlds are drawn unless the claim says otherwise."""


@attrs.frozen
class Condition:
    """A hypothesis about named integers, which an audit may drop if it is an assumption."""

    holds: Callable[[SimpleNamespace], Any]
    assumption: Assumption | None = None


def at_least(least: int, *names: str) -> tuple[Condition, ...]:
    """Return the conditions that each of these integers is at least so much."""
    return tuple(Condition(lambda w, name=name: getattr(w, name) >= least) for name in names)  # type: ignore[misc]


@attrs.frozen
class ArithmeticClaim:
    """For all integers `names` under `conditions`, every statement of `shows` is true.

    `relaxed`: solvers are asked about all real numbers first, which are easier to multiply and include the integers.
    `pruned`: ways through the code that the conditions exclude are not gone, for code that asks a lot.
    """

    theorem: Theorem
    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    shows: Shows
    relaxed: bool = False
    pruned: bool = False
    attained: Attained | None = None

    @property
    def droppable(self) -> frozenset[Assumption]:
        """Every assumption that the claim can be decided without."""
        return frozenset(condition.assumption for condition in self.conditions if condition.assumption)


@attrs.frozen
class SampledClaim:
    """In each of `worlds` every statement of `shows` is true.

    `worlds` is a function that lists all worlds of some size, the smallest first (for the scope `n <= k`), or a
    strategy from which `drawn` worlds are drawn (for the scope `tested`).
    """

    theorem: Theorem
    worlds: "Callable[[], Iterable[PlainWorld]] | SearchStrategy[Any]"
    shows: Shows
    drawn: int = DRAWN
    attained: Attained | None = None
    droppable: ClassVar[frozenset[Assumption]] = frozenset()

    def __attrs_post_init__(self) -> None:
        if self.theorem.scope is not (Scope.BOUNDED if callable(self.worlds) else Scope.TESTED):
            raise ValueError(f"{self.theorem.id} claims {self.theorem.scope.value}, which its worlds cannot show")


WorldClaim = ArithmeticClaim | SampledClaim
"""A claim about shipped code in worlds of plain values."""


@attrs.frozen
class Bug:
    """A theorem about code that is wrong in this way: the claim, with the theorem's id, that has to be refuted."""

    what: str
    claim: WorldClaim


def reworded_bugs(functions: ModuleType, *rows: tuple[str, Callable[..., Any], str, str, str]) -> tuple[Bug, ...]:
    """Return bugs of one changed word each: a name, the claim, the function of the module, its text, and the other."""
    return tuple(
        Bug(name, claim(**{function: reworded(getattr(functions, function), old, new)}))
        for name, claim, function, old, new in rows
    )


@attrs.frozen
class RefutedClaim:
    """A statement that is false of a variant, a world that shows it, and the id of the theorem that is true instead.

    `claim` holds the statement, about the variant; `text` says the world in words.
    """

    claim: WorldClaim
    variant: str
    shipped: str
    text: str
    world: PlainWorld


def refuted(
    name: str,
    statement: str,
    source: str,
    shows: Shows,
    world: PlainWorld,
    *,
    variant: str,
    instead: str,
    text: str,
    worlds: Callable[[], Iterable[PlainWorld]] | None = None,
) -> RefutedClaim:
    """Return a statement that is false in `world`, looked for in all of `worlds` (default: in this one)."""
    theorem = Theorem(name, statement, source, (), scope=Scope.BOUNDED)
    return RefutedClaim(SampledClaim(theorem, worlds or (lambda: (world,)), shows), variant, instead, text, world)


def broken(claim: WorldClaim, values: PlainWorld, dropped: frozenset[Assumption] = frozenset()) -> tuple[str, ...]:
    """Return the statements that fail in a world; raises `ValueError` for a world that the claim is not about."""
    w = SimpleNamespace(**values)
    if isinstance(claim, ArithmeticClaim):
        if set(values) != set(claim.names):
            raise ValueError(f"{claim.theorem.id} is about {', '.join(claim.names)}, not {', '.join(values)}")
        if not all(each.holds(w) for each in claim.conditions if each.assumption not in dropped):
            raise ValueError(f"{claim.theorem.id}: the world does not fulfil a condition of the claim")
    return tuple(name for name, holds in claim.shows(w).items() if not holds)


ShowsVariant = Callable[..., Shown]
"""What is shown in a world, of what ships unless other arguments say of which variant."""


def arithmetic(
    theorem: Theorem, names: tuple[str, ...], *conditions: Condition, **more: Any
) -> Callable[[ShowsVariant], Callable[..., ArithmeticClaim]]:
    """Make of what is shown the claim about all integers `names` under these conditions; `more` as the claim has it."""

    def claim(shows: ShowsVariant) -> Callable[..., ArithmeticClaim]:
        @wraps(shows)
        def about(*variant: Any, **variants: Any) -> ArithmeticClaim:
            return ArithmeticClaim(theorem, names, conditions, _about(shows, *variant, **variants), **more)

        return about

    return claim


def _about(shows: ShowsVariant, *variant: Any, **variants: Any) -> Shows:
    """Return what is shown of a variant; what is no parameter of `shows` is in place of one of its `functions`."""
    known = signature(shows).parameters
    changed = {name: variants.pop(name) for name in list(variants) if name not in known}
    if changed:
        variants["functions"] = system.updated(known["functions"].default, changed)
    return lambda w: shows(w, *variant, **variants)


def sampled(theorem: Theorem, worlds: Any, **more: Any) -> Callable[[ShowsVariant], Callable[..., SampledClaim]]:
    """Make of what is shown the claim that is tried in these worlds; `more` as the claim has it."""

    def claim(shows: ShowsVariant) -> Callable[..., SampledClaim]:
        @wraps(shows)
        def about(*variant: Any, **variants: Any) -> SampledClaim:
            return SampledClaim(theorem, worlds, _about(shows, *variant, **variants), **more)

        return about

    return claim


def claim_named(theorem: str, claims: Iterable[Any]) -> system.Claim:
    """Return the claim about kernels of that theorem among these."""
    claim = next(each for each in claims if each.theorem.id == theorem)
    assert isinstance(claim, system.Claim)
    return claim


# --- worlds as files --------------------------------------------------------------------------------------------------


class WorldFile(counterexample.SavedDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A world as it is saved.

    `broken` are the statements that fail there; `without` names the assumptions that were not made.
    """

    fairsched_world: int = counterexample.SCHEMA
    theorem: str
    claims: str
    broken: tuple[str, ...]
    values: dict[str, Any]
    without: tuple[str, ...] = ()


@attrs.frozen
class WorldReplay(counterexample.Tried):
    """What trying a saved world again gave: the statements that fail there now."""

    document: WorldFile
    claim: WorldClaim
    broken: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the statement, the world, and what breaks in it."""
        saved = self.document
        yield f"{saved.theorem}: {self.claim.theorem.statement}"
        if saved.without:
            yield f"without {', '.join(saved.without)}"
        yield from (f"   {name} = {msgspec.json.encode(value).decode()}" for name, value in saved.values.items())
        yield f"broken there: {'; '.join(self.broken)}" if self.broken else "nothing is broken"
        if not self.confirmed:
            yield f"saved as breaking: {'; '.join(saved.broken)}"


def replay_saved(path: Path) -> counterexample.CounterexampleReplay | WorldReplay | None:
    """Return a saved counterexample or world, tried again; None for any other file, such as a log.

    Raises `ValueError` when it is none that this version reads, does not fit the claim, or the claim is not found.
    """
    with path.open("rb") as file:
        begins = file.read(256)
    if b'"fairsched_counterexample"' in begins:
        return counterexample.replay_counterexample(counterexample.read_counterexample(path))
    if b'"fairsched_world"' not in begins:
        return None
    saved = counterexample.decoded(path, WorldFile, "world")
    claim = _claim(saved)
    return WorldReplay(saved, claim, _broken(claim, saved.values, saved.without))


def world_document(claim: WorldClaim, claims: str, values: PlainWorld, without: tuple[str, ...] = ()) -> WorldFile:
    """Return what is to be saved of a world; `claims` names where the claim is found."""
    return WorldFile(
        theorem=claim.theorem.id,
        claims=claims,
        broken=_broken(claim, values, without),
        values=dict(values),
        without=without,
    )


def _broken(claim: WorldClaim, values: PlainWorld, without: tuple[str, ...]) -> tuple[str, ...]:
    return broken(claim, values, frozenset(each for each in claim.droppable if each.name in without))


def _claim(saved: WorldFile) -> WorldClaim:
    holder = counterexample.holder_of(saved.claims)
    for claim in (*holder.claims(), *(each.claim for each in getattr(holder, "refutations", tuple)())):
        if claim.theorem.id == saved.theorem and isinstance(claim, WorldClaim):
            return claim
    raise ValueError(f"{saved.claims!r} has no theorem {saved.theorem!r} about worlds")
