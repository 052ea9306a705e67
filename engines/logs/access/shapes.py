"""What the columns of a log look like: moments, lengths of time, numbers of tokens, names; and how two go together."""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import values as vals
from fairsched.model.request import TOKENS_MAX

MOMENT_NS = (10**18, 4 * 10**18)
"""Moments from 2001 to 2096; a number of tokens is far below in any unit."""
ALMOST = 0.99
"""The share of rows in which something must hold."""
TIE_S = 2e-3
"""Differences of times up to this are rounding."""
DEPTH_MAX = 4
LENGTH_UNITS: tuple[vals.Unit, ...] = ("s", "ms", "us", "ns")

Floats = npt.NDArray[np.float64]


@attrs.frozen(eq=False)
class Sampled:
    """A column: its values, and as numbers (NaN where there is none) if they are some."""

    path: tuple[str, ...]
    values: Sequence[object]
    there: npt.NDArray[np.bool_]
    numbers: Floats | None

    @property
    def name(self) -> str:
        """As in a map."""
        return ".".join(self.path)

    def texts(self) -> list[str]:
        """Its values as text."""
        return [str(value) for value in self.values if not vals.is_null(value)]


def columns_of(rows: Sequence[Mapping[str, object]]) -> Iterator[Sampled]:
    """All columns with a value in some row, and a name that a map can say."""
    paths: dict[tuple[str, ...], None] = {}
    for row in rows:
        paths |= dict.fromkeys(_paths(row, ()))
    for path in paths:
        values = [vals.value_at(row, path) for row in rows]
        there = np.array([not vals.is_null(value) for value in values])
        named = {path} | {tuple(".".join(path).split("."))}
        if there.any() and len(named & set(paths)) == 1:
            yield Sampled(path, values, there, _numbers(values, there))


def _paths(row: Mapping[str, object], at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _paths(value, (*at, key)) if len(at) < DEPTH_MAX - 1 else ()
        elif not isinstance(value, list) and key and (not at or "." not in "".join((*at, key))):
            yield (*at, key)


def _numbers(values: Sequence[object], there: npt.NDArray[np.bool_]) -> Floats | None:
    found = np.full(len(values), np.nan)
    for place in map(int, np.flatnonzero(there)):
        value = values[place]
        try:
            found[place] = vals.number(value, "")
        except vals.ValueFault:
            return None
    return found


def correlation(one: Floats, other: Floats) -> float:
    """Rank correlation where both are known; 0 where there is nothing to rank."""
    both = ~(np.isnan(one) | np.isnan(other))
    ranks = [np.unique(values[both], return_inverse=True) for values in (one, other)]
    if both.sum() < 3 or any(len(values) < 2 for values, _ in ranks):
        return 0.0
    # Ties get the mean of their ranks.
    means = []
    for _, inverse in ranks:
        counts = np.bincount(inverse)
        means.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(means[0], means[1])[0, 1])


def mostly(holds: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]) -> bool:
    """Whether something holds in nearly all rows in which it is known."""
    return bool(known.any()) and float(holds[known].mean()) >= ALMOST


def moment_unit(column: Sampled) -> vals.Unit | None:
    """The unit in which all values are moments of this century; None if there is none."""
    if column.numbers is None:
        texts = column.texts()
        return "iso" if texts and all(vals.date_of(text) is not None for text in texts) else None
    values = column.numbers[column.there]
    for unit in LENGTH_UNITS:
        if ((values * vals.NS[unit] >= MOMENT_NS[0]) & (values * vals.NS[unit] <= MOMENT_NS[1])).all():
            return unit
    return None


def moments_ns(column: Sampled, unit: vals.Unit) -> npt.NDArray[np.int64]:
    """A column's moments; 0 where there is none."""
    read = vals.moment_reader(unit)
    return np.array(
        [read(value) if there else 0 for value, there in zip(column.values, column.there, strict=True)], dtype=np.int64
    )


def is_length(column: Sampled) -> bool:
    """Whether a column may be lengths of time: numbers that differ, or text with units; rather not whole numbers."""
    if any(map(vals.names_unit, column.values)):
        return all(map(vals.names_unit, (value for value in column.values if not vals.is_null(value))))
    values = None if column.numbers is None else column.numbers[column.there]
    if values is None or (values < 0).any() or len(np.unique(values)) < 3:
        return False
    return bool((values != np.floor(values)).any())


def count_of(column: Sampled) -> Floats | None:
    """A column as numbers of tokens; None if it is none."""
    values = None if column.numbers is None else column.numbers[column.there]
    if values is None or any(isinstance(value, bool) for value in column.values):
        return None
    whole = (values == np.floor(values)) & (values >= 0) & (values <= TOKENS_MAX)
    return column.numbers if whole.all() else None


def is_status(column: Sampled) -> bool:
    """Whether a column may say how requests ended."""
    texts = set(column.texts())
    if len(texts) > 20:
        return False
    if all(len(text) == 3 and text.isdecimal() and "1" <= text[0] <= "5" for text in texts):
        return any(text[0] == "2" for text in texts)
    return all(
        vals.outcome_of(text, frozenset()) != vals.Ending.ERROR or text.lower() in ("error", "failed", "failure")
        for text in texts
    )


def is_name(column: Sampled) -> bool:
    """Whether a column may name clients: text, with at least two values that come again."""
    texts = column.texts()
    return column.numbers is None and 2 <= len(set(texts)) <= max(len(texts) // 2, 2)


def in_order(times: Floats) -> bool:
    """Whether times do not fall, from row to row."""
    known = times[~np.isnan(times)]
    return len(known) > 2 and float((np.diff(known) >= -TIE_S).mean()) >= ALMOST


def lengths_s(column: Sampled, unit: vals.Unit) -> Floats | None:
    """A column as lengths of time in seconds; None if it is none."""
    read = vals.length_reader(unit)
    found = np.full(len(column.values), np.nan)
    for place in map(int, np.flatnonzero(column.there)):
        try:
            found[place] = read(column.values[place]) / 1e9
        except vals.ValueFault:
            return None
    return found
