"""Which evidence a certificate has for each theorem: a proof that was read step by step, two solvers' word, or samples.

A theorem is shown no better than the weakest of all that it rests on.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import attrs

from fairsched.verify.logic import SampledClaim
from fairsched.verify.proofs import claims_of
from fairsched.verify.report.scope import below
from fairsched.verify.report.values import Planned


class Evidence(Enum):
    """What there is to believe a theorem by, from the strongest on."""

    PROOF = "checked proof"
    """Each goal has a proof that the checker accepts: no solver need be believed about it."""
    SOLVERS = "two solvers"
    """Both say so of each goal, and one goal at least has no such proof."""
    SAMPLED = "sampled"
    """It was tried in worlds: those that were drawn, or all of a size, as its scope says."""


@attrs.frozen
class Goals:
    """How many goals a theorem has, and how many of them a proof that was accepted."""

    asked: int = 0
    proved: int = 0


@attrs.frozen
class TheoremEvidence:
    """The evidence for a theorem, its own goals, and if it rests on what is shown less well, on which theorems."""

    theorem: str
    evidence: Evidence
    goals: Goals
    because_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.theorem:<24}{self.evidence.value}"
        if self.goals.asked:
            said = f"{said:<40}{self.goals.proved} of {self.goals.asked} goals"
        return f"{said}, rests on {', '.join(self.because_of)}" if self.because_of else said


def standings(rows: Iterable[Planned], goals: Mapping[tuple[str, str], Goals]) -> Iterator[TheoremEvidence]:
    """Yield the evidence for each theorem once, whichever policies have it; `goals` are by policy and theorem."""
    found = dict[TheoremEvidence, None]()
    for row in rows:
        own = {name: _own(row, name, goals) for name in (row.theorem.id, *below(row.theorem, row.subject.theorems))}
        weakest = max(own.values(), key=_STRONGEST.index)
        weaker = () if weakest is own[row.theorem.id] else tuple(name for name in own if own[name] is weakest)
        found[
            TheoremEvidence(row.theorem.id, weakest, goals.get((row.subject.name, row.theorem.id), Goals()), weaker)
        ] = None
    yield from found


_STRONGEST = tuple(Evidence)


def _own(row: Planned, theorem: str, goals: Mapping[tuple[str, str], Goals]) -> Evidence:
    """Return the evidence for a theorem of the same subject, apart from what it rests on."""
    if isinstance(claims_of(row.subject.source)[theorem], SampledClaim):
        return Evidence.SAMPLED
    had = goals.get((row.subject.name, theorem), Goals())
    return Evidence.PROOF if had.asked == had.proved > 0 else Evidence.SOLVERS
