"""A row: one result of a paper, how it is run again, and the verdict."""

from collections.abc import Callable, Mapping
from typing import Literal

import attrs

Tier = Literal["A", "B", "C"]
"""A: exact arithmetic or queueing, comes out as printed.  B: a ratio or a sign with a calibrated cost model.  C: it
depends on GPUs and kernels, and only its direction is looked at."""

Say = Callable[[str], None]
"""Called with what is being run now."""


@attrs.frozen
class Ours:
    """What came out: in words with figures, whether it lies in the band, and every figure by name."""

    text: str
    held: bool
    figures: Mapping[str, object] = attrs.field(factory=dict)


@attrs.frozen
class Row:
    """One result of a paper; `@partial(Row, ...)` before a function makes a row that is measured by it.

    `source` is the paper with its figure or section, `paper` what it says, `band` what is looked for here.  `why` says
    what differs from the paper's setting, and, where the band is known to be missed, for which reason.  `seconds` is
    about how long it takes on one core.
    """

    measure: Callable[[Say], Ours]
    id: str
    about: str
    source: str
    paper: str
    band: str
    why: str
    seconds: int
    tier: Tier = "B"

    def to_json(self, ours: Ours) -> dict[str, object]:
        """The row's entry of `fairsched reproduce --json`."""
        return {
            "id": self.id,
            "about": self.about,
            "source": self.source,
            "paper": self.paper,
            "ours": ours.text,
            "band": self.band,
            "tier": self.tier,
            "held": ours.held,
            "why": self.why,
            "figures": dict(ours.figures),
        }
