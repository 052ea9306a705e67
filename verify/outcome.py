"""What became of a mutant, and the figures of many."""

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any

import attrs

from fairsched.verify.counterexample import Counterexample
from fairsched.verify.mutants import Mutant


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    UNKNOWN = "unknown"


@attrs.frozen
class Outcome:
    """A mutant's fate; `by` is the theorem that kills it, or under which hypotheses it is equivalent."""

    mutant: Mutant
    fate: Fate
    by: str
    world: Counterexample | None
    ms: float


def row(kernel: str, of: Iterable[Outcome]) -> dict[str, Any]:
    """The figures of some mutants, as they stand in the report."""
    fates = Counter(outcome.fate for outcome in of)
    return {"kernel": kernel, "mutants": fates.total(), **{fate.value: fates[fate] for fate in Fate}}
