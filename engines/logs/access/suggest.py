"""A map for a log whose columns are not known: found by names, and where names say nothing by what holds in the rows.

What is looked at: whether values are moments, lengths of time, numbers of tokens, or names; which column comes before
which in all rows; sums (a prompt and an output make a total); and which columns rise and fall together (an output with
the time it takes).  Each line of the map has its reason.  What the rows leave open is said as a doubt, and what they
cannot tell at all is left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import combinations, islice
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import columns as access_columns
from fairsched.engines.logs.access import values as vals
from fairsched.engines.logs.access.identity import chosen
from fairsched.engines.logs.access.presets import recognise
from fairsched.engines.logs.access.row_reader import RowReader
from fairsched.engines.logs.access.rows import LogKind, Source, rows_of
from fairsched.engines.logs.access.values import Ending, Unit, date_of, is_null, names_unit, outcome_of
from fairsched.engines.workloads import TraceError
from fairsched.model.request import TOKENS_MAX

MOMENT_NS = (10**18, 4 * 10**18)
"""Moments from 2001 to 2096; a number of tokens is far below in any unit."""
ALMOST = 0.99
"""The share of rows in which something must hold."""
CLOCK, CLOCK_RISES = 0.5, 0.8
"""What rises from row to row (by rank correlation), all above this part of its largest value, is a clock, no length."""
TIE_S = 2e-3
"""Differences of times up to this are rounding."""
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
        """Return its values as text."""
        return [str(value) for value in self.values if not vals.is_null(value)]


def columns_of(rows: Sequence[Mapping[str, object]]) -> Iterator[Sampled]:
    """Yield all columns with a value in some row, and a name that a map can say."""
    filled = access_columns.filled_paths(rows)
    for path, any_value in filled.items():
        # A path of several keys is written with dots between them, which no key may have.
        is_sayable = all(path) and (len(path) == 1 or "." not in "".join(path))
        if any_value and is_sayable and len({path, tuple(".".join(path).split("."))} & set(filled)) == 1:
            values = [vals.value_at(row, path) for row in rows]
            there = np.array([not vals.is_null(value) for value in values])
            yield Sampled(path, values, there, _numbers(values, there))


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
    """Return whether something holds in nearly all rows in which it is known."""
    return bool(known.any()) and float(holds[known].mean()) >= ALMOST


def moment_unit(column: Sampled) -> vals.Unit | None:
    """Return the unit in which all values are moments of this century; None if there is none."""
    if column.numbers is None:
        texts = column.texts()
        return "iso" if texts and all(vals.date_of(text) is not None for text in texts) else None
    values = column.numbers[column.there]
    for unit in LENGTH_UNITS:
        if ((values * vals.NS[unit] >= MOMENT_NS[0]) & (values * vals.NS[unit] <= MOMENT_NS[1])).all():
            return unit
    return None


def moments_ns(column: Sampled, unit: vals.Unit) -> npt.NDArray[np.int64]:
    """Return a column's moments; 0 where there is none."""
    read = vals.moment_reader(unit)
    return np.array(
        [read(value) if there else 0 for value, there in zip(column.values, column.there, strict=True)], dtype=np.int64
    )


def is_length(column: Sampled) -> bool:
    """Return whether a column may be lengths of time: numbers that differ, or text with units; rather not whole
    numbers."""
    if any(map(vals.names_unit, column.values)):
        return all(map(vals.names_unit, (value for value in column.values if not vals.is_null(value))))
    values = None if column.numbers is None else column.numbers[column.there]
    if values is None or (values < 0).any() or len(np.unique(values)) < 3:
        return False
    rises = correlation(values, np.arange(len(values), dtype=np.float64)) > CLOCK_RISES
    is_clock = rises and values.min() > CLOCK * values.max()
    return bool((values != np.floor(values)).any()) and not is_clock


def same_clock(one: Sampled, other: Sampled) -> bool:
    """Return whether two columns of numbers are close to each other for what they are, as moments of one clock."""
    if one.numbers is None or other.numbers is None:
        return False
    low, high = np.fmin(one.numbers, other.numbers), np.fmax(one.numbers, other.numbers)
    return mostly(low > CLOCK * high, one.there & other.there)


def count_of(column: Sampled) -> Floats | None:
    """Return a column as numbers of tokens; None if it is none."""
    values = None if column.numbers is None else column.numbers[column.there]
    if values is None or any(isinstance(value, bool) for value in column.values):
        return None
    whole = (values == np.floor(values)) & (values >= 0) & (values <= TOKENS_MAX)
    return column.numbers if whole.all() else None


def is_status(column: Sampled) -> bool:
    """Return whether a column may say how requests ended."""
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
    """Return whether a column may name clients: text, with at least two values that come again."""
    texts = column.texts()
    return column.numbers is None and 2 <= len(set(texts)) <= max(len(texts) // 2, 2)


def in_order(times: Floats) -> bool:
    """Return whether times do not fall, from row to row."""
    known = times[~np.isnan(times)]
    return len(known) > 2 and float((np.diff(known) >= -TIE_S).mean()) >= ALMOST


def lengths_s(column: Sampled, unit: vals.Unit) -> Floats | None:
    """Return a column as lengths of time in seconds; None if it is none."""
    read = vals.length_reader(unit)
    found = np.full(len(column.values), np.nan)
    for place in map(int, np.flatnonzero(column.there)):
        try:
            found[place] = read(column.values[place]) / 1e9
        except vals.ValueFault:
            return None
    return found


ROWS = 2_000
"""Rows that are looked at."""
TOKEN_S_MAX = 2.0
"""No server takes longer for a token, half of the time."""
CLEAR = 0.1
"""By how much one rank correlation must be above another to be believed."""


def suggest_map(path: str | Path) -> access_columns.Suggestion:
    """Return a map for the log at `path`, by its first rows.

    Raises `TraceError` for what is no log, and where no map can be found: it says what no column seems to be.
    """
    path = Path(path)
    with closing(Source(path)) as source:
        found = rows_of(path, source.lines(), recognise)
        rows = [] if found is None else [row for _, row in islice(found[1], ROWS)]
    dicts = [row for row in rows if isinstance(row, dict)]
    if found is None or not dicts:
        fault = next((row for row in rows if isinstance(row, TraceError)), None)
        raise fault or TraceError(path, None, None, "at least one request", "none")
    return suggestion_of(path, dicts, found[0])


def suggestion_of(path: Path, rows: Sequence[dict[str, object]], kind: LogKind) -> access_columns.Suggestion:
    """Return a map for these rows of a log.  Raises `TraceError` where none can be found."""
    search = _Search(rows)
    search.by_name(kind.columns, kind.name)
    search.times()
    search.tokens()
    search.names()
    return search.suggestion(path)


# --- the search -------------------------------------------------------------------------------------------------------


class _Search:
    """What is found so far; `open` are questions that the rows do not answer, `doubts` are about answers."""

    def __init__(self, rows: Sequence[dict[str, object]]) -> None:
        self.rows = rows
        self.seen = {column.path: column for column in columns_of(rows)}
        self.found: dict[str, access_columns.LogColumn] = {}
        self.reasons: dict[str, str] = {}
        self.doubts: list[str] = []
        self.open: list[str] = []
        self.clocks: list[Sampled] = []
        self.ok = frozenset[str]()
        self.levels: dict[str, access_columns.LogColumn] = {}

    def take(self, field: str, column: Sampled, unit: Unit | None, reason: str) -> None:
        """Take a column for a field."""
        self.found[field] = access_columns.LogColumn(column.path, unit)
        self.reasons[field] = reason

    def free(self) -> list[Sampled]:
        """Return columns that are nothing yet."""
        taken = {column.path for column in self.found.values()}
        return [column for column in self.seen.values() if column.path not in taken]

    def by_name(self, known: access_columns.Columns | None, kind: str) -> None:
        """Take what the kind of log is known to have, and what names say, if values can be that."""
        for field, column in (known.of if known else {}).items():
            path = next((path for path in (column.path, tuple(column.name.split("."))) if path in self.seen), None)
            if path is not None:
                self.take(field, self.seen[path], column.unit, f"a log of {kind} has it there")
        for field, column in access_columns.guesses(self.rows, self.found).items():
            seen = self.seen.get(column.path)
            if seen is None:
                continue
            if self._fits(field, seen, column.unit):
                self.take(field, seen, column.unit, "by its name")
            else:
                self.doubts.append(f"{seen.name} is called like {field}, but its values are none.")
        moments = {field: self.seen[self.found[field].path] for field in access_columns.MOMENTS if field in self.found}
        for field, seen in moments.items():
            if "arrival" in moments and (moment_unit(seen) is None) != (moment_unit(moments["arrival"]) is None):
                self.open.append(f"{seen.name} is on another clock than {moments['arrival'].name}.")
                self.clocks.append(seen)
                del self.found[field]

    def _fits(self, field: str, column: Sampled, unit: Unit | None) -> bool:
        """Return whether the values can be what a name says."""
        if field in access_columns.MOMENTS:
            return column.numbers is not None or all(map(date_of, column.texts()))
        if field in access_columns.DURATIONS:
            return lengths_s(column, unit or "s") is not None
        return not field.endswith("_tokens") or count_of(column) is not None

    # --- times ---

    def times(self) -> None:
        """Find moments and lengths of time."""
        moments = self._moments()
        self._order_moments(moments)
        lengths = [column for column in self.free() if column.path not in {each.path for each, _, _ in moments}]
        lengths = [
            column
            for column in lengths
            if is_length(column) and not any(column is clock or same_clock(column, clock) for clock in self.clocks)
        ]
        missing = {"latency", "ttft"} - set(self.found)
        if {"arrival", "end"} <= set(self.found):
            missing.discard("latency")
        if "first_token" in self.found:
            missing.discard("ttft")
        if missing and lengths:
            self._lengths(lengths, missing)
        self._which_end(moments)

    def _moments(self) -> list[tuple[Sampled, Unit, Floats]]:
        """Return columns that are moments, with unit, and in seconds from the first."""
        named = {self.found[field].path for field in access_columns.MOMENTS if field in self.found}
        found = []
        for column in (*self.free(), *(self.seen[path] for path in named)):
            unit = moment_unit(column)
            if unit is not None:
                found.append((column, unit, moments_ns(column, unit)))
        zero = min((int(times[column.there].min()) for column, _, times in found), default=0)
        return [(column, unit, np.where(column.there, (times - zero) / 1e9, np.nan)) for column, unit, times in found]

    def _order_moments(self, moments: list[tuple[Sampled, Unit, Floats]]) -> None:
        """Arrival, first token and end are moments in this order, in all rows."""
        named = {self.found[field].path: field for field in access_columns.MOMENTS if field in self.found}
        fresh = [each for each in moments if each[0].path not in named]
        if "latency" in self.found or "ttft" in self.found:
            fresh = fresh[:1] if not named else []
        for column, unit, at in fresh:
            others = [(each, times) for each, _, times in moments if each is not column]
            before = [self._before(at, times) for _, times in others]
            after = [self._before(times, at) for _, times in others]
            if not others:
                self.take("arrival", column, unit, "the only moment")
            elif all(before) and not any(after) and "arrival" not in self.found:
                self.take("arrival", column, unit, _than("a moment before", others))
            elif all(after) and not any(before) and "end" not in self.found:
                self.take("end", column, unit, _than("a moment after", others))
        left = [each for each in fresh if each[0].path not in {column.path for column in self.found.values()}]
        if {"arrival", "end"} <= set(self.found) and "first_token" not in self.found and "ttft" not in self.found:
            if len(left) == 1:
                column, unit, _ = left[0]
                self.take("first_token", column, unit, "a moment between arrival and end")
                self.doubts.append(f"{column.name} lies between arrival and end; it may be when a wait was over.")
            elif left:
                names = ", ".join(column.name for column, _, _ in left)
                self.open.append(f"{names} lie between arrival and end: which is the first token is not told.")
        elif left and "arrival" not in self.found:
            names = ", ".join(column.name for column, _, _ in left)
            self.open.append(f"Which of {names} is the arrival is not told: none comes before the others throughout.")

    @staticmethod
    def _before(one: Floats, other: Floats) -> bool:
        known = ~(np.isnan(one) | np.isnan(other))
        return mostly(one <= other + TIE_S, known) and bool((one < other)[known].any())

    def _lengths(self, columns: list[Sampled], missing: set[str]) -> None:
        """Take the longest length of time as the latency, and a part of it as the time to the first token."""
        outputs = self._named_numbers("output_tokens")
        if "latency" in missing:
            whole = self._longest(columns)
            if whole is None:
                names = ", ".join(column.name for column in columns)
                self.open.append(f"Which of {names} is the latency is not told: none is the longest throughout.")
                return
            unit = self._unit(whole)
            self.take(
                "latency", whole, unit, f"the longest length of time in each row; {unit}, {self._why_unit(whole, unit)}"
            )
            columns = [column for column in columns if column is not whole]
        took = self._took_s()
        if "ttft" not in missing or took is None:
            return
        fit: list[tuple[Sampled, Unit, Floats]] = []
        for column in columns:
            part = self._part_unit(column, took)
            seconds = lengths_s(column, part) if part else None
            if part and seconds is not None and not np.allclose(seconds, took, rtol=1e-3, atol=TIE_S, equal_nan=True):
                fit.append((column, part, seconds))
        counts = [count for column in self.free() if (count := count_of(column)) is not None]
        scored = sorted(((self._decoding(seconds, took, outputs, counts), i) for i, (_, _, seconds) in enumerate(fit)))
        if not scored:
            return
        column, unit, seconds = fit[scored[0][1]]
        self.take("ttft", column, unit, "a length of time within the latency, in each row")
        share = float(np.nanmedian(seconds / np.where(took > 0, took, np.nan)))
        if len(fit) > 1:
            names = ", ".join(each.name for each, _, _ in fit if each is not column)
            self.doubts.append(
                f"{column.name} may not be the time to the first token: {names} lie within the latency too."
            )
        elif scored[0][0] > 0.8 or share > 0.9:
            self.doubts.append(f"{column.name} may be the time after the first token, not the one up to it.")

    def _longest(self, columns: list[Sampled]) -> Sampled | None:
        """Return the column that is above all others in each row, in some unit of each."""
        seconds = [(column, lengths_s(column, self._unit(column))) for column in columns]
        known = [(column, length) for column, length in seconds if length is not None]
        for column, length in known:
            others = [other for each, other in known if each is not column]
            if all(mostly(other <= length + TIE_S, ~(np.isnan(other) | np.isnan(length))) for other in others):
                return column
        return None

    def _unit(self, column: Sampled) -> Unit:
        """Return the unit of a whole latency: the largest in which half of all tokens take no longer than
        `TOKEN_S_MAX`."""
        if any(map(names_unit, column.values)):
            return "s"
        outputs = self._named_numbers("output_tokens")
        if outputs is None:
            counts = [
                count for each in self.seen.values() if each is not column and (count := count_of(each)) is not None
            ]
            spread = [count for count in counts if len(np.unique(count[~np.isnan(count)])) > 2]
            outputs = min(spread, key=lambda count: float(np.nanmedian(count)), default=None)
        for unit in LENGTH_UNITS:
            seconds = lengths_s(column, unit)
            if seconds is not None:
                a_token = seconds / np.maximum(1 if outputs is None else outputs, 1)
                if float(np.nanmedian(a_token)) <= TOKEN_S_MAX:
                    return unit
        return "ns"

    def _why_unit(self, column: Sampled, unit: Unit) -> str:
        if any(map(names_unit, column.values)):
            return "where values name none"
        return (
            f"since a token would take longer than {TOKEN_S_MAX:g} s otherwise" if unit != "s" else "the largest unit"
        )

    def _part_unit(self, column: Sampled, took: Floats) -> Unit | None:
        """Return the largest unit in which a length is a part of the whole, in each row, and not nearly nothing of
        it."""
        if any(map(names_unit, column.values)):
            return "s"
        for unit in LENGTH_UNITS:
            seconds = lengths_s(column, unit)
            if seconds is None:
                return None
            known = ~(np.isnan(seconds) | np.isnan(took))
            if mostly(seconds <= took + TIE_S, known):
                share = float(np.median((seconds / np.where(took > 0, took, np.nan))[known & (took > 0)]))
                return unit if share > 2e-3 else None
        return None

    def _decoding(self, seconds: Floats, took: Floats, outputs: Floats | None, counts: Sequence[Floats]) -> float:
        """Return how much a length rises with a number of tokens, beyond what the rest of the latency does: what is
        generated takes its time after the first token."""
        candidates = [outputs] if outputs is not None else list(counts)
        return max(
            (correlation(seconds, count) - correlation(took - seconds, count) for count in candidates), default=0.0
        )

    def _which_end(self, moments: list[tuple[Sampled, Unit, Floats]]) -> None:
        """Decide whether the only moment is an arrival or an end: rows are written when requests end, so ends are in
        order."""
        took = self._took_s()
        if (
            "arrival" not in self.found
            or "end" in self.found
            or took is None
            or self.reasons["arrival"] == "by its name"
        ):
            return
        at = next((times for column, _, times in moments if column.path == self.found["arrival"].path), None)
        if at is None:
            return
        given, later = in_order(at), in_order(at + took)
        name = self.found["arrival"].name
        if later and not given:
            self.reasons["arrival"] = "the only moment; with the latency added rows are in order, as ends are"
        elif given and not later:
            del self.reasons["arrival"]
            self.found["end"] = self.found.pop("arrival")
            self.reasons["end"] = "the only moment; rows are in its order, as they are written when requests end"
            self.doubts.append(f"{name} is the arrival if the log was sorted by arrivals.")
        else:
            self.doubts.append(f"Whether {name} is the arrival or the end is not told by the order of rows.")

    # --- tokens ---

    def tokens(self) -> None:
        """Find prompts and outputs."""
        wanted = [field for field in ("prompt_tokens", "output_tokens") if field not in self.found]
        counts = {column.path: count for column in self.free() if (count := count_of(column)) is not None}
        counts = {path: count for path, count in counts.items() if not is_status(self.seen[path])}
        took, first = self._took_s(), self._elapsed_s("ttft", "first_token")
        decode = took if took is None or first is None else took - np.nan_to_num(first)
        sides = {path: access_columns.side(".".join(path)) for path in counts}
        fixed = {path for path, count in counts.items() if len(np.unique(count[~np.isnan(count)])) < 3}
        moving = {path: count for path, count in counts.items() if path not in fixed}
        total = self._total(moving, wanted)
        if total is not None:
            moving = {path: moving[path] for path in total}
            why = "which adds up to a total with the other"
        else:
            why = "of all numbers"
        outputs = {path: count for path, count in moving.items() if sides[path] != "prompt_tokens"}
        if "output_tokens" in wanted and outputs:
            self._output(outputs, decode, why)
        if "prompt_tokens" in wanted and moving:
            taken = self.found.get("output_tokens")
            left = {path: count for path, count in moving.items() if taken is None or path != taken.path}
            self._prompt({path: count for path, count in left.items() if sides[path] != "output_tokens"}, first, why)

    def _total(
        self, counts: Mapping[tuple[str, ...], Floats], wanted: Sequence[str]
    ) -> tuple[tuple[str, ...], ...] | None:
        """Return two columns that add up to a third."""
        known = [self._named_numbers(field) for field in ("prompt_tokens", "output_tokens") if field not in wanted]
        for one, other in combinations(counts, 2):
            if len(wanted) < 2:
                break
            for third, count in counts.items():
                both = counts[one] + counts[other]
                if third not in (one, other) and mostly(both == count, ~(np.isnan(both) | np.isnan(count))):
                    return (one, other)
        if len(wanted) == 1 and known[0] is not None:
            for one, third in ((a, b) for a in counts for b in counts if a != b):
                both = counts[one] + known[0]
                if mostly(both == counts[third], ~(np.isnan(both) | np.isnan(counts[third]))):
                    return (one,)
        return None

    def _output(self, counts: Mapping[tuple[str, ...], Floats], decode: Floats | None, why: str) -> None:
        """Find the output, which rises and falls with the time after the first token."""
        if len(counts) == 1 and "prompt_tokens" not in self.found:
            self.doubts.append(f"{'.'.join(next(iter(counts)))} may be the prompt's tokens as well as the output's.")
        if decode is None:
            order = sorted(counts, key=lambda path: float(np.nanmedian(counts[path])))
            self.take(
                "output_tokens", self.seen[order[0]], None, f"the smallest {why}: without a latency there is no more"
            )
            self.doubts.append(f"{'.'.join(order[0])} is taken for the output's tokens only because it is smallest.")
            return
        scores = {path: correlation(count, decode) for path, count in counts.items()}
        best = max(scores, key=lambda path: scores[path])
        near = [path for path in scores if scores[path] > scores[best] - CLEAR]
        chosen = min(near, key=lambda path: float(np.nanmedian(counts[path])))
        reason = f"it rises with the time after the first token, {why} (rank correlation {scores[chosen]:.2f})"
        self.take("output_tokens", self.seen[chosen], None, reason)
        if len(near) > 1:
            names = ", ".join(".".join(path) for path in near if path != chosen)
            self.doubts.append(
                f"{'.'.join(chosen)} may not be the output's tokens: {names} rise with the time as well."
            )
        elif scores[chosen] < 3 * CLEAR:
            self.doubts.append(f"{'.'.join(chosen)} hardly rises with the time that answers took.")

    def _prompt(self, counts: Mapping[tuple[str, ...], Floats], first: Floats | None, why: str) -> None:
        """Find the prompt, which rises and falls with the time to the first token, and is long."""
        if not counts:
            return
        largest = max(counts, key=lambda path: float(np.nanmedian(counts[path])))
        if len(counts) == 1:
            self.take("prompt_tokens", self.seen[largest], None, f"the only other number of tokens, {why}")
            return
        scores = {path: 0.0 if first is None else correlation(count, first) for path, count in counts.items()}
        best = max(scores, key=lambda path: (scores[path], path == largest))
        names = ", ".join(".".join(path) for path in counts if path != best)
        reason = f"it rises with the time to the first token (rank correlation {scores[best]:.2f})"
        if first is None or scores[best] < CLEAR:
            best, reason = largest, "the largest number of tokens that is left"
            names = ", ".join(".".join(path) for path in counts if path != best)
        self.take("prompt_tokens", self.seen[best], None, reason)
        self.doubts.append(f"{'.'.join(best)} may not be the prompt's tokens: it may be one of {names}.")

    # --- names ---

    def names(self) -> None:
        """Find status and client."""
        texts = {column.path: column for column in self.free() if moment_unit(column) is None}
        if "status" not in self.found:
            codes = [column for column in texts.values() if is_status(column)]
            if len(codes) == 1:
                self.take("status", codes[0], None, "numbers or words that say how a request ended")
                del texts[codes[0].path]
        self._statuses()
        if "client" in self.found:
            return
        levels = access_columns.levels(access_columns.filled_paths(self.rows), self.found)
        said = Counter(tuple(vals.name(vals.value_at(row, each.path)) for each in levels.values()) for row in self.rows)
        columns = {level: column.name for level, column in levels.items()}
        identity = chosen((columns, names, count) for names, count in said.items())
        if identity is not None:
            others = "".join(f", {count:,} by {columns[level]}" for level, count in identity.others.items())
            reason = f"the first level with names throughout: {identity.clients:,}{others}"
            self.take("client", self.seen[levels[identity.level].path], None, reason)
            self.levels = levels
            return
        few = [column for column in texts.values() if is_name(column)]
        few.sort(key=lambda column: -len(set(column.texts())))
        if few:
            self.take("client", few[0], None, f"{len(set(few[0].texts())):,} names that come again and again")
            others = ", ".join(column.name for column in few[1:])
            self.doubts.append(
                f"{few[0].name} may be no client but a model or a server"
                + (f"; the client may be {others}." if others else ".")
            )
        else:
            self.doubts.append("No column seems to name clients.")

    def _statuses(self) -> None:
        """Take a word that is not understood, and stands at most answers, as success."""
        column = self.found.get("status")
        if column is None:
            return
        texts = [str(value).lower() for value in self.seen[column.path].values if not is_null(value)]
        strange = {text for text in texts if outcome_of(text, frozenset()) == Ending.ERROR and not text.isdecimal()}
        often = max(strange, key=texts.count, default="")
        if often and texts.count(often) > len(self.rows) / 2:
            self.ok, self.reasons["ok"] = frozenset({often}), "most requests ended so"
            self.doubts.append(f"{column.name} {often!r} is taken for success only because it is most common.")

    # --- the end ---

    def _named_numbers(self, field: str) -> Floats | None:
        column = self.found.get(field)
        return None if column is None else self.seen[column.path].numbers

    def _took_s(self) -> Floats | None:
        """Return how long requests took, as far as that is found."""
        return self._elapsed_s("latency", "end")

    def _elapsed_s(self, length: str, moment: str) -> Floats | None:
        """Return a length of time, or else that from arrival to a moment."""
        if length in self.found:
            column = self.found[length]
            return lengths_s(self.seen[column.path], column.unit or "s")
        ends = [self._found_moment(field) for field in ("arrival", moment)]
        return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]

    def _found_moment(self, field: str) -> Floats | None:
        column = self.found.get(field)
        seen = None if column is None else self.seen[column.path]
        unit = None if column is None or seen is None else column.unit or moment_unit(seen)
        if seen is None or unit is None:
            return None
        whole = moments_ns(seen, unit) - MOMENT_NS[0]
        return np.where(seen.there, whole / 1e9, np.nan)

    def suggestion(self, path: Path) -> access_columns.Suggestion:
        """Return the map; raises `TraceError` if it lacks what a log must have."""
        if missing := access_columns.lacking(self.found):
            doubts = f" ({' '.join(self.open)})" if self.open else ""
            names = ", ".join(sorted(each.name for each in self.seen.values()))
            raise TraceError(path, None, None, f"columns that look like {missing}{doubts}", f"only {names}")
        found = {field: self.found[field] for field in access_columns.FIELDS if field in self.found}
        levels = {"client": found["client"]} if "client" in found else {}
        columns = access_columns.Columns(found, self.ok, self.levels or levels)
        reader = RowReader(path, columns, self.rows)
        faults = []
        for place, row in enumerate(self.rows):
            try:
                reader.row(place + 1, row)
            except TraceError as error:
                faults.append(str(error))
        if faults:
            self.doubts.append(f"{len(faults):,} of {len(self.rows):,} rows cannot be read so; the first: {faults[0]}.")
        return access_columns.Suggestion(
            columns, self.reasons, tuple(map(access_columns.printable, (*self.open, *self.doubts)))
        )


def _than(what: str, others: Sequence[tuple[Sampled, Floats]]) -> str:
    return f"{what} {', '.join(column.name for column, _ in others)}, in each row"
