"""An access log of one's own: JSON lines or CSV, a line for each request that ended, read row by row into columns.

A row that cannot be read is a `TraceError` that names it; with `skip` such rows are left out and counted.  Numbers of a
row that contradict each other by a millisecond or less were rounded, and are set right.  O(rows), about ten integers
each.
"""

import csv
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import attrs
import msgspec
import numpy as np

from fairsched.engines.logs.access.columns import Columns, resolved
from fairsched.engines.logs.access.values import (
    UNKNOWN,
    Read,
    ValueFault,
    length_reader,
    moment_reader,
    succeeded,
    tokens,
    unit_of_moment,
    value_at,
    without_zone,
)
from fairsched.engines.workloads import TraceError, lines
from fairsched.model.service import Ints

SAMPLE_ROWS = 200
_ROUNDING_NS = 10**6
_SECONDS_MAX = 600
_PROGRESS_EVERY = 10_000

Progress = Callable[[int], None]
"""Is told how many bytes were read so far."""
Rows = Iterator[tuple[int, dict[str, object] | TraceError]]
"""Each row with its number; one that is none as the error that says so."""


@attrs.frozen(eq=False)
class AccessLog:
    """The rows as columns of equal length; times in nanoseconds, `UNKNOWN` (-1) where there is none.

    `served_ns` is when a request's wait was over: when it left the queue, if the log says so, else its first token,
    else its end; unknown for one that failed without any output.  `first_ns` is its first token, or `served_ns`.
    Clients and workers are numbered by name.  `reading` says which column was read as what, `notes` what else must be
    known.
    """

    path: Path
    clients: tuple[str, ...]
    workers: tuple[str, ...]
    client: Ints
    worker: Ints
    arrival_ns: Ints
    served_ns: Ints
    first_ns: Ints
    end_ns: Ints
    prompt: Ints
    cached: Ints
    output: Ints
    most: Ints
    failed: Ints
    fields: frozenset[str]
    reading: tuple[str, ...]
    notes: tuple[str, ...]


class _Row(NamedTuple):
    """A row as it was understood."""

    client: str
    worker: str
    arrival_ns: int
    served_ns: int
    first_ns: int
    end_ns: int
    prompt: int
    cached: int
    output: int
    most: int
    failed: int


def read_access_log(
    path: Path, given: Columns | None = None, *, skip: bool = False, progress: Progress | None = None
) -> AccessLog:
    """The access log at `path`, with the columns of `given` and guesses for the rest.

    Raises `TraceError` for what is wrong in the file.
    """
    rows = _rows(path, progress)
    sample = list(islice(rows, SAMPLE_ROWS))
    dicts = [row for _, row in sample if isinstance(row, dict)]
    faults = [row for _, row in sample if isinstance(row, TraceError)]
    if faults and not (skip and dicts):
        raise faults[0]
    if not dicts:
        raise TraceError(path, None, None, "at least one request", "none")
    reader = _Reader(path, resolved(path, dicts, given), dicts)
    values = array("q")
    clients: dict[str, int] = {}
    workers: dict[str, int] = {}
    faults = []
    for number, row in chain(sample, rows):
        try:
            if isinstance(row, TraceError):
                raise row
            client, worker, *numbers = reader.row(number, row)
        except TraceError as error:
            if not skip:
                raise
            faults.append(error)
            continue
        values.extend((clients.setdefault(client, len(clients)), workers.setdefault(worker, len(workers)), *numbers))
    if not values:
        raise faults[0]
    columns = np.frombuffer(values, dtype=np.int64).reshape(-1, len(_Row._fields)).T
    arrays: dict[str, Ints] = dict(zip(_Row._fields, columns, strict=True))
    _check_lengths(path, reader, arrays)
    return _in_order(path, reader, clients, workers, arrays, faults)


def _in_order(
    path: Path,
    reader: "_Reader",
    clients: Mapping[str, int],
    workers: Mapping[str, int],
    arrays: dict[str, Ints],
    faults: list[TraceError],
) -> AccessLog:
    """The log with clients and workers by name and rows by what they say: the order of its lines does not matter."""
    for name, known in (("client", clients), ("worker", workers)):
        place = np.empty(len(known), dtype=np.int64)
        place[[known[each] for each in sorted(known)]] = np.arange(len(known))
        arrays[name] = place[arrays[name]]
    keys = ("output", "prompt", "end_ns", "first_ns", "served_ns", "worker", "client", "arrival_ns")
    order = np.lexsort([arrays[key] for key in keys])
    notes = reader.notes()
    same = int(np.all([np.diff(values[order]) == 0 for values in arrays.values()], axis=0).sum())
    if same:
        notes.append(f"Rows that say the same as another, which count like any: {same:,}.")
    if faults:
        notes.append(f"Rows that could not be read and are left out: {len(faults):,}; the first: {faults[0]}.")
    return AccessLog(
        path=path,
        clients=tuple(sorted(clients)),
        workers=tuple(sorted(workers)),
        **{name: values[order] for name, values in arrays.items()},
        fields=frozenset(reader.columns.of),
        reading=reader.reading(),
        notes=tuple(notes),
    )


class _Reader:
    """Reads rows by columns that are known, and counts what is odd."""

    def __init__(self, path: Path, columns: Columns, sample: list[dict[str, object]]) -> None:
        self.path = path
        self.columns = columns
        self.units: dict[str, str] = {}
        self.guessed: list[str] = []
        self.zoneless: list[str] = []
        self.unfinished = self.no_first = 0
        self._read: dict[str, Read] = {}
        for field, column in columns.of.items():
            if field in ("arrival", "first_token", "end"):
                values = [value for row in sample if (value := value_at(row, column.path)) not in (None, "")]
                unit = column.unit or unit_of_moment(values[0] if values else None)
                if unit == "iso" and any(map(without_zone, values)):
                    self.zoneless.append(column.name)
                self.units[field], self._read[field] = unit, moment_reader(unit)
            elif field in ("queue", "ttft", "latency"):
                if column.unit is None:
                    self.guessed.append(field)
                unit = column.unit or "s"
                self.units[field], self._read[field] = unit, length_reader(unit)
            elif field not in ("client", "worker", "status"):
                self._read[field] = tokens
        self._paths = {field: column.path for field, column in columns.of.items()}

    def row(self, number: int, row: Mapping[str, object]) -> _Row:
        """The row, understood; raises `TraceError`."""
        found = {field: self._field(number, row, field) for field in self._read}
        paths = self._paths
        status = value_at(row, paths["status"]) if "status" in paths else ""
        failed = not succeeded(status, self.columns.ok)
        get = found.get
        latency = get("latency", UNKNOWN)
        arrival, end = get("arrival", UNKNOWN), get("end", UNKNOWN)
        if arrival == UNKNOWN and end != UNKNOWN and latency != UNKNOWN:
            arrival = end - latency
        if end == UNKNOWN and latency != UNKNOWN:
            end = arrival + latency
        output, prompt = get("output_tokens", UNKNOWN), get("prompt_tokens", UNKNOWN)
        if arrival == UNKNOWN:
            self._missing(number, "arrival" if "arrival" in found else "latency")
        if not failed:
            for field, value in (("end", end), ("prompt_tokens", prompt), ("output_tokens", output)):
                if value == UNKNOWN:
                    self._missing(number, "latency" if field == "end" and "end" not in found else field)
        first = get("first_token", UNKNOWN)
        if first == UNKNOWN and get("ttft", UNKNOWN) != UNKNOWN:
            first = arrival + found["ttft"]
        served, first, end = self._times(number, arrival, first, end, get("queue", UNKNOWN), failed and output < 1)
        prompt, output, cached = max(prompt, 0), max(output, 0), max(get("cached_tokens", 0), 0)
        if cached > prompt:
            self._refuse(number, "cached_tokens", f"at most the prompt's {prompt} tokens", cached)
        return _Row(
            client=_name(value_at(row, paths["client"])) if "client" in paths else "everybody",
            worker=_name(value_at(row, paths["worker"])) if "worker" in paths else "",
            arrival_ns=arrival,
            served_ns=served,
            first_ns=first,
            end_ns=end,
            prompt=prompt,
            cached=cached,
            output=output,
            most=get("max_output_tokens", UNKNOWN),
            failed=int(failed),
        )

    def _times(
        self, number: int, arrival: int, first: int, end: int, queue: int, nothing: bool
    ) -> tuple[int, int, int]:
        """When the wait was over, the first token and the end; in order, or the row is refused."""
        if end != UNKNOWN:
            end = self._after(number, "end" if "end" in self._read else "latency", end, arrival, "the arrival")
        if nothing:
            self.unfinished += 1
            return UNKNOWN, UNKNOWN, max(end, arrival)
        if end == UNKNOWN:
            self._missing(number, "end" if "end" in self._read else "latency")
        if first == UNKNOWN:
            self.no_first += queue == UNKNOWN
        else:
            field = "first_token" if "first_token" in self._read else "ttft"
            first = self._after(number, field, first, arrival, "the arrival")
            end = self._after(number, field, end, first, "the first token")
        served = first if queue == UNKNOWN else arrival + queue
        if queue != UNKNOWN:
            end = self._after(number, "queue", end, served, "the end of its time in the queue")
            if first != UNKNOWN:
                first = self._after(number, "queue", first, served, "the end of its time in the queue")
        served = end if served == UNKNOWN else served
        return served, served if first == UNKNOWN else first, end

    def _after(self, number: int, field: str, later: int, earlier: int, what: str) -> int:
        if later >= earlier:
            return later
        if earlier - later > _ROUNDING_NS:
            self._refuse(number, field, f"times in order, each at or after {what}", f"{earlier - later} ns before it")
        return earlier

    def _field(self, number: int, row: Mapping[str, object], field: str) -> int:
        value = value_at(row, self._paths[field])
        if value is None or value == "":
            return UNKNOWN
        try:
            return self._read[field](value)
        except ValueFault as fault:
            self._refuse(number, field, str(fault), value)
            raise AssertionError from fault

    def _missing(self, number: int, field: str) -> None:
        self._refuse(number, field, "a value", "nothing")

    def _refuse(self, number: int, field: str, expected: str, found: object) -> None:
        column = self.columns.of.get(field)
        raise TraceError(self.path, number, column.name if column else field, expected, found)

    def reading(self) -> tuple[str, ...]:
        """Which column is what."""
        said = []
        for field, column in self.columns.of.items():
            unit = self.units.get(field)
            moment = field in ("arrival", "first_token", "end")
            text = "" if unit is None else " (ISO 8601)" if unit == "iso" else f" ({unit}{' since 1970' * moment})"
            said.append(f"{field} = {column.name}{text}")
        return tuple(said)

    def notes(self) -> list[str]:
        """What is odd about the rows."""
        said = []
        if self.no_first:
            said.append(
                f"Requests without a time of a first token, which count as waiting until their end: {self.no_first:,}."
            )
        if self.unfinished:
            said.append(f"Requests that failed without any output: {self.unfinished:,}.")
        if "client" not in self.columns.of:
            said.append("The log names no clients: all requests are one client's, and there is nothing to compare.")
        arrival = self.columns.of.get("arrival")
        if arrival is not None and arrival.path[-1].lower().strip("@") in ("timestamp", "ts", "time", "datetime"):
            said.append(
                f"{arrival.name} is taken for the time of arrival; if it is the time at which the answer was complete, "
                "name it as end in a map."
            )
        if self.zoneless:
            said.append(
                f"Times without a zone ({', '.join(self.zoneless)}) are read as UTC; if they are local ones, those of "
                "before and after a change of clocks are an hour off."
            )
        for field in self.guessed:
            said.append(f"{self.columns.of[field].name} has no unit in its name and is read as seconds.")
        return said


def _name(value: object) -> str:
    return "(none)" if value is None or value == "" else value if isinstance(value, str) else str(value)


def _check_lengths(path: Path, reader: _Reader, arrays: Mapping[str, Ints]) -> None:
    """Check that lengths of time without a unit look like seconds."""
    if not reader.guessed:
        return
    typical = float(np.median(arrays["end_ns"] - arrays["arrival_ns"])) / 1e9
    if typical > _SECONDS_MAX:
        field = reader.guessed[-1]
        name = reader.columns.of[field].name
        expected = f'its unit in a map, as {field} = {{ column = "{name}", unit = "ms" }}'
        raise TraceError(path, None, name, expected, f"half of all requests above {typical:,.0f} if these are seconds")


# --- rows as mappings -------------------------------------------------------------------------------------------------


def _rows(path: Path, progress: Progress | None) -> Rows:
    text = _told(lines(path), progress)
    first = next(text, None)
    if first is None:
        raise TraceError(path, None, None, "at least one request", "an empty file")
    if first[1].lstrip().startswith("["):
        raise TraceError(path, 1, None, "one JSON object a line, or CSV with a header", first[1])
    whole = chain((first,), text)
    return _json_rows(path, whole) if first[1].lstrip().startswith("{") else _csv_rows(path, whole)


def _told(text: Iterator[tuple[int, str]], progress: Progress | None) -> Iterator[tuple[int, str]]:
    done = 0
    for number, line in text:
        done += len(line) + 1
        if progress is not None and not number % _PROGRESS_EVERY:
            progress(done)
        yield number, line


def _json_rows(path: Path, text: Iterator[tuple[int, str]]) -> Rows:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    for number, line in text:
        try:
            yield number, decode(line)
        except msgspec.DecodeError:
            yield number, TraceError(path, number, None, "a JSON object", line or "an empty line")


def _csv_rows(path: Path, text: Iterator[tuple[int, str]]) -> Rows:
    reader = csv.reader((line for _, line in text), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        if len(set(header)) < len(header):
            raise TraceError(path, 1, None, "each column once", ",".join(header))
        for values in reader:
            if len(values) == len(header):
                yield reader.line_num, dict(zip(header, values, strict=True))
            else:
                expected = f"{len(header)} values ({','.join(header)})"
                found = f"{len(values)} values" if values else "an empty line"
                yield reader.line_num, TraceError(path, reader.line_num, None, expected, found)
    except csv.Error as error:
        raise TraceError(path, reader.line_num, None, "comma-separated values", str(error)) from None
