"""Claims about plain Python on integers: shipped functions are run on unknown integers, once along each path.

For what is no kernel but small enough to be proved as it stands: prices, a worker's books, a router's choice.  Whatever
holds on every path for unknown integers holds for all of them.  What a claim shows is named; statements are shown in
their order, and each may rest on those before it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import attrs
import z3

from fairsched.model.theorem import Assumption, Theorem
from fairsched.verify.counterexample import Counterexample
from fairsched.verify.prover import RLIMIT, Proved, Refuted, Unknown, Verdict
from fairsched.verify.smtlib import script
from fairsched.verify.symbolic import Paths, explore, truth

Shows = Callable[[SimpleNamespace], Mapping[str, Any]]
"""Runs shipped code in a world, and says what has to follow, by name; nothing where the world is of no interest."""


@attrs.frozen
class Condition:
    """A hypothesis about named integers, which an audit may drop if it is an assumption."""

    holds: Callable[[SimpleNamespace], Any]
    assumption: Assumption | None = None


@attrs.frozen
class ArithmeticClaim:
    """For all integers `names` under `conditions`, every statement of `shows` is true.

    `relaxed`: solvers are asked about all real numbers first, which are easier to multiply and include the integers.
    `attained` runs the shipped code to where the theorem's bound is reached, and gives what was reached and the bound.
    """

    theorem: Theorem
    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    shows: Shows
    relaxed: bool = False
    attained: Callable[[], tuple[int, int]] | None = None


@attrs.frozen
class Path:
    """One way through the code of a claim: what is known on it, and what has to follow, by name and in this order."""

    known: tuple[Any, ...]
    shown: Mapping[str, Any]

    def goals(self) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """Each statement with all that is known when it is shown."""
        known = self.known
        for name, goal in self.shown.items():
            yield name, known, goal
            known = (*known, goal)


def prove(
    claim: ArithmeticClaim,
    *,
    dropped: frozenset[Assumption] = frozenset(),
    rlimit: int = RLIMIT,
    built: Iterable[Path] | None = None,
) -> Verdict:
    """Decides the claim on every path through the code that it runs; `built` are the paths, if they are known."""
    begun = perf_counter()

    def spent() -> float:
        return (perf_counter() - begun) * 1e3

    count, reached, named = 0, set[str](), set[str]()
    for path in paths(claim, dropped) if built is None else built:
        if not reached.issuperset(path.shown) and _answer(rlimit, *path.known)[0] == z3.sat:
            reached |= set(path.shown)
        for name, known, goal in path.goals():
            named.add(name)
            count += 1
            if claim.relaxed and _holds_for_reals(rlimit, *known, z3.Not(goal)):
                continue
            answer, solver = _answer(rlimit, *known, z3.Not(goal))
            if answer == z3.unknown:
                return Unknown(claim.theorem, name, "budget exhausted", spent())
            if answer == z3.sat:
                return _refuted(claim, dropped, name, solver.model(), spent())
    if not named or named - reached:
        missing = ", ".join(sorted(named - reached)) or "conditions"
        return Unknown(claim.theorem, missing, "vacuous: its hypotheses contradict each other", spent())
    return Proved(claim.theorem, count, spent())


def paths(claim: ArithmeticClaim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Path]:
    """Every path through the code that the claim runs."""
    kept = [condition for condition in claim.conditions if condition.assumption not in dropped]
    for path, (assumed, shown) in explore(lambda paths: _run(paths, claim, kept)):
        yield Path((*path, *assumed), shown)


def confirmed(
    claim: ArithmeticClaim, values: Mapping[str, Any], dropped: frozenset[Assumption] = frozenset()
) -> tuple[str, ...]:
    """The statements that fail in a world of numbers; raises `ValueError` if a condition of the claim does."""
    w = SimpleNamespace(**values)
    if set(values) != set(claim.names):
        raise ValueError(f"{claim.theorem.id} is about {', '.join(claim.names)}, not {', '.join(values)}")
    kept = [condition for condition in claim.conditions if condition.assumption not in dropped]
    if not all(condition.holds(w) for condition in kept):
        raise ValueError(f"{claim.theorem.id}: the world does not fulfil a condition of the claim")
    return tuple(name for name, holds in claim.shows(w).items() if not holds)


def _run(paths: Paths, claim: ArithmeticClaim, kept: list[Condition]) -> tuple[list[Any], dict[str, Any]]:
    w = SimpleNamespace(**{name: paths.integer(name) for name in claim.names})
    shown = {name: truth(goal) for name, goal in claim.shows(w).items()}
    return [truth(condition.holds(w)) for condition in kept], shown


def _answer(rlimit: int, *terms: Any) -> tuple[Any, Any]:
    solver = z3.Solver()
    solver.set("rlimit", rlimit)
    solver.add(*terms)
    return solver.check(), solver


def _holds_for_reals(rlimit: int, *terms: Any) -> bool:
    """Whether the terms have no model even among the real numbers."""
    solver = z3.Solver()
    solver.set("rlimit", rlimit)
    solver.from_string(script(terms, "unsat", relaxed=True).text)
    return bool(solver.check() == z3.unsat)


def _refuted(claim: ArithmeticClaim, dropped: frozenset[Assumption], name: str, model: Any, ms: float) -> Verdict:
    """The countermodel, once the functions confirm it on Python's own integers."""
    values = {n: model.eval(z3.Int(n), model_completion=True).as_long() for n in claim.names}
    try:
        broken = confirmed(claim, values, dropped)
    except (ValueError, ZeroDivisionError):
        broken = ()
    if name not in broken:
        return Unknown(claim.theorem, name, "a countermodel did not replay", ms)
    without = tuple(sorted(assumption.name for assumption in dropped))
    return Refuted(
        claim.theorem, Counterexample("integers", "arithmetic", broken, 0, values, claim.theorem.id, without), ms
    )
