"""An access log of one's own: JSON lines or CSV, a line for each request that ended, read row by row into columns.

A row that cannot be read is a `TraceError` that names it; with `skip` such rows are left out and counted.  Numbers of a
row that contradict each other by a millisecond or less were rounded, and are set right.  O(rows), about ten integers
each.
"""

import csv
from array import array
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import attrs
import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access.columns import COUNTS, Columns, resolved
from fairsched.engines.logs.access.values import (
    UNKNOWN,
    Outcome,
    Read,
    ValueFault,
    length_reader,
    moment_reader,
    outcome_of,
    streamed_of,
    tokens,
    unit_of_moment,
    value_at,
    without_zone,
)
from fairsched.engines.workloads import TraceError, lines
from fairsched.model.service import Ints

ALL_CLIENTS = "(all)"
"""The client of all requests, where the log names none."""
NO_NAME = "(none)"
"""The client or worker of a row that names none."""
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
    """The rows as columns of equal length; times in nanoseconds, `UNKNOWN` (-1) where the log does not say.

    `path` names what was read.  `client`, `worker` (the server that had the request: its upstream), `model` and
    `status` (as the log writes it) number the names of `clients`, `workers`, `models` and `statuses`; a row without a
    model has UNKNOWN.

    `first_ns` is the first token; UNKNOWN where the log has none, whether or not there was one.  `served_ns` is when
    the wait is known to have ended: when the request left the queue, else its first token; UNKNOWN where the row has
    neither, and for a request that did not finish and has no output.  `end_ns` is never UNKNOWN.

    `streamed` is 1, 0 or UNKNOWN.  `outcome` is an `Outcome`.  `attempt` counts the tries of one request from 0: rows
    with the same request id, in order of arrival (0 without an id; equal rows are one try).

    `fields` are the fields that the log has, `reading` says which column was read as what, `notes` what else must be
    known.
    """

    path: Path
    clients: tuple[str, ...]
    workers: tuple[str, ...]
    models: tuple[str, ...]
    statuses: tuple[str, ...]
    client: Ints
    worker: Ints
    model: Ints
    status: Ints
    arrival_ns: Ints
    served_ns: Ints
    first_ns: Ints
    end_ns: Ints
    prompt: Ints
    cached: Ints
    output: Ints
    most: Ints
    streamed: Ints
    outcome: Ints
    attempt: Ints
    fields: frozenset[str]
    reading: tuple[str, ...]
    notes: tuple[str, ...]


class _Row(NamedTuple):
    """A row as it was understood; names are text, and `request` is a hash of the request's id."""

    client: str
    worker: str
    model: str | None
    status: str
    arrival_ns: int
    served_ns: int
    first_ns: int
    end_ns: int
    prompt: int
    cached: int
    output: int
    most: int
    streamed: int
    outcome: int
    request: int


_NAMED = ("client", "worker", "model", "status")


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
    names: tuple[dict[str | None, int], ...] = ({}, {}, {}, {})
    faults = []
    for number, row in chain(sample, rows):
        try:
            if isinstance(row, TraceError):
                raise row
            client, worker, model, status, *numbers = reader.row(number, row)
        except TraceError as error:
            if not skip:
                raise
            faults.append(error)
            continue
        codes = (
            known.setdefault(name, len(known))
            for known, name in zip(names, (client, worker, model, status), strict=True)
        )
        values.extend((*codes, *numbers))
    if not values:
        raise faults[0]
    columns = np.frombuffer(values, dtype=np.int64).reshape(-1, len(_Row._fields)).T
    arrays: dict[str, Ints] = dict(zip(_Row._fields, columns, strict=True))
    _check_lengths(path, reader, arrays)
    return _in_order(path, reader, dict(zip(_NAMED, names, strict=True)), arrays, faults)


def _in_order(
    path: Path,
    reader: "_Reader",
    names: Mapping[str, Mapping[str | None, int]],
    arrays: dict[str, Ints],
    faults: list[TraceError],
) -> AccessLog:
    """The log with names in order and rows by what they say: the order of its lines does not matter."""
    ordered: dict[str, tuple[str, ...]] = {}
    for field, known in names.items():
        there = ordered[field] = tuple(sorted(name for name in known if name is not None))
        place = np.full(len(known), UNKNOWN, dtype=np.int64)
        place[[known[name] for name in there]] = np.arange(len(there))
        arrays[field] = place[arrays[field]]
    keys = [name for name in reversed(_Row._fields) if name != "arrival_ns"]
    order = np.lexsort([*(arrays[key] for key in keys), arrays["arrival_ns"]])
    arrays = {name: values[order] for name, values in arrays.items()}
    again = np.append(False, np.all([np.diff(values) == 0 for values in arrays.values()], axis=0))
    notes = reader.notes()
    if same := int(again.sum()):
        notes.append(f"Rows that say the same as another, which count like any: {same:,}.")
    if faults:
        notes.append(f"Rows that could not be read and are left out: {len(faults):,}; the first: {faults[0]}.")
    return AccessLog(
        path=path,
        clients=ordered["client"],
        workers=ordered["worker"],
        models=ordered["model"],
        statuses=ordered["status"],
        attempt=_attempts(arrays.pop("request"), again),
        **arrays,
        fields=frozenset(reader.columns.of),
        reading=reader.reading(),
        notes=tuple(notes),
    )


def _attempts(request: Ints, again: npt.NDArray[np.bool_]) -> Ints:
    """The number of each try among those of its request; rows are in order of time, and `again` says which are copies
    of the row before."""
    order = np.argsort(request, kind="stable")
    new = np.append(True, np.diff(request[order]) != 0)[: len(order)]
    tries = np.cumsum(~again[order])
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    attempt = np.empty(len(order), dtype=np.int64)
    attempt[order] = tries - tries[first]
    attempt[request == UNKNOWN] = 0
    return attempt


class _Reader:
    """Reads rows by columns that are known, and counts what is odd."""

    def __init__(self, path: Path, columns: Columns, sample: list[dict[str, object]]) -> None:
        self.path = path
        self.columns = columns
        self.units: dict[str, str] = {}
        self.guessed: list[str] = []
        self.zoneless: list[str] = []
        self.unfinished = 0
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
            elif field in COUNTS:
                self._read[field] = tokens
        self._paths = {field: column.path for field, column in columns.of.items()}

    def row(self, number: int, row: Mapping[str, object]) -> _Row:
        """The row, understood; raises `TraceError`."""
        found = {field: self._field(number, row, field) for field in self._read}
        paths = self._paths
        status = self._text(row, "status", "")
        outcome = outcome_of(status, self.columns.ok)
        failed = outcome != Outcome.FINISHED
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
        if outcome == Outcome.REJECTED and output:
            outcome = Outcome.ERROR  # what has an output was not refused
        if cached > prompt:
            self._refuse(number, "cached_tokens", f"at most the prompt's {prompt} tokens", cached)
        return _Row(
            client=self._text(row, "client", ALL_CLIENTS) or NO_NAME,
            worker=(self._text(row, "worker", "") or NO_NAME) if "worker" in paths else "",
            model=self._text(row, "model", "") or None,
            status=status,
            arrival_ns=arrival,
            served_ns=served,
            first_ns=first,
            end_ns=end,
            prompt=prompt,
            cached=cached,
            output=output,
            most=get("max_output_tokens", UNKNOWN),
            streamed=streamed_of(value_at(row, paths["streamed"])) if "streamed" in paths else UNKNOWN,
            outcome=outcome,
            request=_hash(self._text(row, "request_id", "")),
        )

    def _text(self, row: Mapping[str, object], field: str, missing: str) -> str:
        """A name as text, empty where the row has none; `missing` where the log has no such column."""
        path = self._paths.get(field)
        if path is None:
            return missing
        value = value_at(row, path)
        return "" if value is None else value if isinstance(value, str) else str(value)

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
        if first != UNKNOWN:
            field = "first_token" if "first_token" in self._read else "ttft"
            first = self._after(number, field, first, arrival, "the arrival")
            end = self._after(number, field, end, first, "the first token")
        served = first if queue == UNKNOWN else arrival + queue
        if queue != UNKNOWN:
            end = self._after(number, "queue", end, served, "the end of its time in the queue")
            if first != UNKNOWN:
                first = self._after(number, "queue", first, served, "the end of its time in the queue")
        return served, first, end

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


def _hash(request: str) -> int:
    """A request's id in 63 bits; UNKNOWN without one."""
    return int.from_bytes(blake2b(request.encode(), digest_size=8).digest()) >> 1 if request else UNKNOWN


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
