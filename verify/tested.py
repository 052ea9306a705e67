"""Claims that are tried in worlds one after the other: in all of some size, or in drawn ones.

For what no solver decides: trees, sorted lists, whole runs.  What was tried in every world up to a size is proved for
that size (scope `n <= k`).  What was tried in drawn worlds is *tested* and no more (scope `tested`); the draws are the
same in every run.  Worlds are plain values by name, so one that breaks a claim is saved and tried again.
"""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from fairsched.model.theorem import Scope, Theorem
from fairsched.verify.arithmetic import Shows
from fairsched.verify.counterexample import Counterexample
from fairsched.verify.prover import Proved, Refuted, Unknown, Verdict

World = Mapping[str, Any]
"""Values of JSON by name: integers, texts, lists and mappings of such."""

DRAWN = 200
"""How many worlds are drawn unless the claim says otherwise."""


@attrs.frozen
class TestedClaim:
    """In each of `worlds` every statement of `shows` is true; it shows nothing where a world is of no interest.

    `worlds` is a function that lists all worlds of some size, the smallest first (for the scope `n <= k`), or a
    strategy from which `drawn` worlds are drawn (for the scope `tested`).  `attained` is as in `ArithmeticClaim`.
    """

    __test__ = False  # No test of pytest's.

    theorem: Theorem
    worlds: Callable[[], Iterable[World]] | SearchStrategy[World]
    shows: Shows
    drawn: int = DRAWN
    attained: Callable[[], tuple[int, int]] | None = None

    def __attrs_post_init__(self) -> None:
        sampled = isinstance(self.worlds, SearchStrategy)
        if self.theorem.scope is not (Scope.TESTED if sampled else Scope.BOUNDED):
            raise ValueError(f"{self.theorem.id} claims {self.theorem.scope.value}, which its worlds cannot show")


def prove(claim: TestedClaim) -> Verdict:
    """Tries the claim in its worlds; `Proved.obligations` is in how many of them there was something to show."""
    begun = perf_counter()
    if isinstance(claim.worlds, SearchStrategy):
        counted, broken = _sampled(claim, claim.worlds)
    else:
        counted, broken = _listed(claim, claim.worlds())
    spent = (perf_counter() - begun) * 1e3
    if broken is not None:
        found = Counterexample("worlds", "tried", confirmed(claim, broken), 0, dict(broken), claim.theorem.id)
        return Refuted(claim.theorem, found, spent)
    if not counted:
        return Unknown(claim.theorem, "worlds", "vacuous: there was nothing to show in any world", spent)
    return Proved(claim.theorem, counted, spent)


def confirmed(claim: TestedClaim, values: World) -> tuple[str, ...]:
    """The statements that fail in a world."""
    return tuple(name for name, holds in claim.shows(SimpleNamespace(**values)).items() if not holds)


def _listed(claim: TestedClaim, worlds: Iterable[World]) -> tuple[int, World | None]:
    counted = 0
    for world in worlds:
        shown = claim.shows(SimpleNamespace(**world))
        if not all(shown.values()):
            return counted, world
        counted += bool(shown)
    return counted, None


def _sampled(claim: TestedClaim, worlds: SearchStrategy[World]) -> tuple[int, World | None]:
    """With the smallest world that Hypothesis finds, if it finds one."""
    counted, broken = 0, list[World]()

    @settings(
        max_examples=claim.drawn,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(worlds)
    def attempt(world: World) -> None:
        nonlocal counted
        shown = claim.shows(SimpleNamespace(**world))
        if not all(shown.values()):
            broken.append(world)
            raise _BrokenError
        counted += bool(shown)

    try:
        attempt()
    except _BrokenError:
        return counted, broken[-1]
    return counted, None


class _BrokenError(Exception):
    """A statement is false in a world."""
