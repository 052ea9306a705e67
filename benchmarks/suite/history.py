"""What was measured at which commit, and the rule that says when a figure has fallen for good.

A record is a line of JSON.  A ratio is the other side's time divided by ours in the same round, so that it falls when
our code becomes slower; its interval is that of all rounds.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

OURS = "ours"
ROUNDS = 7
"""The median of what is measured lies between the least and the largest of so many runs with 98.4 % (1 - 2 / 2^7)."""
KEPT = 0.8
"""The share of a ratio that has to be kept: below it, the ratio has fallen."""
IN_A_ROW = 3


class Record(msgspec.Struct, frozen=True):
    """One figure at one commit: microseconds of CPU time of each round, by side."""

    figure: str
    commit: str
    date: str
    machine: str
    load: tuple[float, float]
    """The load average of the last minute, before and after; the measurement itself adds up to 1."""
    us: dict[str, tuple[float, ...]]
    versions: dict[str, str] = {}
    """Versions of the peers that have one."""

    def ratios(self, beside: str) -> tuple[float, ...]:
        """The other side's time divided by ours, by round."""
        return tuple(theirs / ours for theirs, ours in zip(self.us[beside], self.us[OURS], strict=True))


def read(path: Path) -> list[Record]:
    """Read all records in the order in which they were written; a line that is none is named."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), start=1):
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return records


def append(path: Path, record: Record) -> None:
    """Add a record at the end."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def series(records: Iterable[Record], beside: str) -> dict[str, list[float]]:
    """Return the median ratio of each record that has this side, by figure, in the order of the records."""
    found: dict[str, list[float]] = {}
    for record in records:
        if beside in record.us:
            found.setdefault(record.figure, []).append(statistics.median(record.ratios(beside)))
    return found


def level(ratios: Sequence[float]) -> float:
    """Return the ratio that was reached for good: the highest that three records in a row have, and at least 1.

    At its own commit the pinned twin is as fast as we were, hence the 1.  One lucky record raises no level.
    """
    reached = (min(ratios[i : i + IN_A_ROW]) for i in range(len(ratios) - IN_A_ROW + 1))
    return max(1.0, *reached, 1.0)


def has_fallen(ratios: Sequence[float]) -> bool:
    """Whether each of the last three ratios is more than 20 % below what was reached for good before them."""
    last = ratios[-IN_A_ROW:]
    return len(last) == IN_A_ROW and max(last) < KEPT * level(ratios[:-IN_A_ROW])


def fallen(records: Iterable[Record], twin: str) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Return the figures that have fallen beside the pinned twin: what was reached for good, and the last ratios."""
    return {
        figure: (level(ratios[:-IN_A_ROW]), tuple(ratios[-IN_A_ROW:]))
        for figure, ratios in series(records, twin).items()
        if has_fallen(ratios)
    }
