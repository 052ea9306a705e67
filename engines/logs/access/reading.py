"""Access logs of any server, read row by row into columns: one line for each request that ended, in any order.

Several logs are read as one.  A row that cannot be read is a `TraceError` that names it; with `skip` such rows are left
out and counted.  Numbers of a row that contradict each other by a millisecond or less were rounded, and are set right.
A log is read once, in O(rows) and about seventeen integers each, twice that while rows are put in order; neither the
order of rows nor that of logs matters.
"""

from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access.access_log import NAMES, AccessLog
from fairsched.engines.logs.access.columns import Columns, resolved
from fairsched.engines.logs.access.filters import Filters, kept
from fairsched.engines.logs.access.identity import Identity, Names, chosen, names_at
from fairsched.engines.logs.access.presets import recognise
from fairsched.engines.logs.access.row_reader import ALL_CLIENTS, NO_NAME, ROW, RowReader
from fairsched.engines.logs.access.rows import LogKind, Row, Rows, Source, expanded, rows_of, title
from fairsched.engines.logs.access.suggest import suggestion_of
from fairsched.engines.logs.access.values import UNKNOWN, Ending
from fairsched.engines.workloads import TraceError
from fairsched.model.service import Ints

SAMPLE_ROWS = 200
_LENGTH_S_TYPICAL_MAX = 600
_BLOCK_ROWS = 1 << 15
PLACE = ("file", "line")
"""Where a row stood."""
_PACKED = (*ROW, *PLACE)

Progress = Callable[[int, int], None]
"""Is told how many bytes were read so far, and how many there are (0: that is not known)."""
Paths = str | Path | Sequence[str | Path]
"""One log or several: files, patterns as `logs/*.gz`, and `-` for standard input."""


def read_access_log(
    paths: Paths,
    columns: Columns | None = None,
    *,
    skip: bool = False,
    filters: Filters | None = None,
    progress: Progress | None = None,
) -> AccessLog:
    """Return the access log in one file or several, with the given columns, and guesses for the rest.

    `skip` leaves out rows that cannot be read.  Raises `ValueError`, and its kind `TraceError` for what is wrong in a
    file.
    """
    files = expanded([paths] if isinstance(paths, str | Path) else paths)
    name = title(files)
    table = _Table(skip)
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(Source(path))) for path in files]
        logs = [sampled for source in sources if (sampled := _sampled(source)) is not None]
        told = _told(sources, progress)
        readers = [(kind, table.read(kind, several, columns, told)) for kind, several in _alike(logs)]
    if not table.rows:
        raise table.fault or TraceError(name, None, None, "at least one request", "an empty file")
    several = len(readers) > 1
    reading = [
        f"in {reader.path}: {text}" if several and not i else text
        for kind, reader in readers
        for i, text in enumerate((kind.name, *reader.reading()))
    ]
    notes = [note for kind, reader in readers for note in (*kind.notes, *reader.notes())]
    if len(logs) < len(files):
        notes.append(f"Empty files: {len(files) - len(logs):,} of {len(files):,}.")
    log = table.log(
        path=name,
        fields=frozenset(field for _, reader in readers for field in reader.columns.of) - {"client"},
        reading=tuple(reading),
        notes=tuple(dict.fromkeys(notes)),
        utc_offset_s=readers[0][1].utc_offset_s,
    )
    return log if filters is None else kept(log, filters)


def looks_like_access_log(path: Path) -> bool:
    """Return whether a file can be read as an access log, as far as its first rows show; a pipe is left alone."""
    if not path.is_file():
        return False
    try:
        with closing(Source(path)) as source:
            log = _sampled(source)
            return log is not None and bool(resolved(path, log.dicts(), None, log.kind.columns))
    except TraceError:
        return False


@attrs.frozen
class _Sampled:
    """A log of which the first rows were read."""

    path: Path
    kind: LogKind
    sample: list[Row]
    rest: Rows

    def dicts(self) -> list[dict[str, object]]:
        """Return the rows of the sample that are some."""
        return [row for _, row in self.sample if isinstance(row, dict)]


def _sampled(source: Source) -> _Sampled | None:
    """Return the log in a file; None if it is empty."""
    found = rows_of(source.path, source.lines(), recognise)
    if found is None:
        return None
    kind, rows = found
    return _Sampled(source.path, kind, list(islice(rows, SAMPLE_ROWS)), rows)


def _alike(logs: Sequence[_Sampled]) -> list[tuple[LogKind, list[_Sampled]]]:
    """Return the logs by kind: those of one are read alike, though the first rows of each may not have all columns."""
    found: dict[tuple[str, str], list[_Sampled]] = {}
    for log in logs:
        found.setdefault((log.kind.name, log.kind.header), []).append(log)
    return [(several[0].kind, several) for several in found.values()]


def _told(sources: Sequence[Source], progress: Progress | None) -> Callable[[], None]:
    """Return what is called now and then, and tells how far reading is."""
    if progress is None:
        return lambda: None
    told, sizes = progress, [source.size for source in sources]
    total = sum(sizes) if all(sizes) else 0
    return lambda: told(sum(source.done for source in sources), total)


class _Table:
    """The rows of all logs, packed, and the names in them."""

    def __init__(self, skip: bool) -> None:
        self.rows = self.others = 0
        self.fault: TraceError | None = None
        self._skip = skip
        self._faults = 0
        self.suggested: list[str] = []
        self._clients: dict[tuple[int, Names], int] = {}
        self._levels: list[dict[str, str]] = []
        self._names: tuple[dict[str | None, int], ...] = tuple({} for _ in range(len(NAMES) - 1))
        self._blocks: dict[str, list[Ints]] = {name: [] for name in _PACKED}
        self._files: list[Path] = []

    def read(
        self, kind: LogKind, logs: Sequence[_Sampled], columns: Columns | None, told: Callable[[], None]
    ) -> RowReader:
        """Read logs of one kind, by columns that are found in their first rows."""
        path, sample = logs[0].path, [row for log in logs for row in log.dicts()]
        if not sample or not self._skip:
            for log in logs:
                for _, row in log.sample:
                    if isinstance(row, TraceError):
                        raise row
        if not sample:
            raise TraceError(path, None, None, "at least one request", "none")
        reader = RowReader(path, self._columns(path, sample, columns, kind), sample)
        start, block = self.rows, array("q")
        clients, (workers, models, statuses) = self._clients, self._names
        self._levels.append({level: column.name for level, column in reader.columns.levels.items()})
        kinds = len(self._levels) - 1
        for log in logs:
            reader.path = log.path
            self._files.append(log.path)
            file = len(self._files) - 1
            for number, row in chain(log.sample, log.rest):
                if isinstance(row, dict):
                    try:
                        client, worker, model, status, *numbers = reader.row(number, row)
                    except TraceError as error:
                        self._leave_out(error)
                        continue
                elif row is None:
                    self.others += 1
                    continue
                else:
                    self._leave_out(row)
                    continue
                block.extend(
                    (
                        clients.setdefault((kinds, client), len(clients)),
                        workers.setdefault(worker, len(workers)),
                        models.setdefault(model, len(models)),
                        statuses.setdefault(status, len(statuses)),
                        *numbers,
                        file,
                        number,
                    )
                )
                self.rows += 1
                if not self.rows % _BLOCK_ROWS:
                    self._pack(block)
                    told()
        reader.path = path
        self._pack(block)
        told()
        self._check_lengths(reader, start)
        return reader

    def _columns(self, path: Path, sample: list[dict[str, object]], given: Columns | None, kind: LogKind) -> Columns:
        """Return the columns by their names, else by a suggested map of which nothing is in doubt."""
        try:
            return resolved(path, sample, given, kind.columns, kind.advice)
        except TraceError as error:
            if given is not None or kind.columns is not None:
                raise
            try:
                found = suggestion_of(path, sample, kind)
            except TraceError:
                raise error from None
            if found.doubts:
                raise error from None
            names = ", ".join(f"{field} = {column.name}" for field, column in found.columns.of.items())
            self.suggested.append(f"Read by a map that the rows suggest (`--suggest-map` has the reasons): {names}.")
            return found.columns

    def _leave_out(self, fault: TraceError) -> None:
        if not self._skip:
            raise fault
        self.fault = self.fault or fault
        self._faults += 1

    def _pack(self, block: "array[int]") -> None:
        """Keep the rows of a block as columns."""
        for name, values in zip(_PACKED, np.array(block, dtype=np.int64).reshape(-1, len(_PACKED)).T, strict=True):
            self._blocks[name].append(values.copy())
        del block[:]

    def _column(self, name: str) -> Ints:
        """Return the rows so far, which are kept in one piece from now on."""
        blocks = self._blocks[name]
        blocks[:] = [np.concatenate(blocks)]
        return blocks[0]

    def _check_lengths(self, reader: RowReader, start: int) -> None:
        """Check that lengths of time without a unit look like seconds, in the rows from `start` on."""
        if not reader.guessed or self.rows == start:
            return
        typical = float(np.median((self._column("end_ns") - self._column("arrival_ns"))[start:])) / 1e9
        if typical > _LENGTH_S_TYPICAL_MAX:
            field = reader.guessed[-1]
            name = reader.columns.of[field].name
            expected = f'its unit in a map, as {field} = {{ column = "{name}", unit = "ms" }}'
            found = f"half of all requests above {typical:,.0f} if these are seconds"
            raise TraceError(reader.path, None, name, expected, found)

    def log(
        self,
        *,
        path: Path,
        fields: frozenset[str],
        reading: tuple[str, ...],
        notes: tuple[str, ...],
        utc_offset_s: int | None,
    ) -> AccessLog:
        """Return the log: names in order, and rows by what they say."""
        columns: dict[str, Any] = {name: self._column(name) for name in _PACKED}
        self._blocks.clear()  # so that each column is there once while rows are put in order
        identity, known_clients = self._identity(columns["client"])
        if identity is not None:
            fields, reading = fields | {"client"}, (*reading, f"client = {identity.column}")
        names: dict[str, Any] = {}
        for known, (column, field) in zip((known_clients, *self._names), NAMES.items(), strict=True):
            there = names[field] = tuple(sorted(name for name in known if name is not None))
            place = np.full(len(known), UNKNOWN, dtype=np.int64)
            place[[known[name] for name in there]] = np.arange(len(there))
            columns[column] = place[columns[column]]
        keys = [name for name in reversed(_PACKED) if name != "arrival_ns"]
        order = np.lexsort([*(columns[key] for key in keys), columns["arrival_ns"]])
        for name in _PACKED:
            columns[name] = columns[name][order]
        again = np.append(False, np.ones(self.rows - 1, dtype=np.bool_))
        for name in ROW:
            again[1:] &= columns[name][1:] == columns[name][:-1]
        if same := int(again.sum()):
            notes += (f"Rows that say the same as another, which count like any: {same:,}.",)
        if self.others:
            notes += (f"Rows that are no requests for tokens, or were never sent, and are left out: {self.others:,}.",)
        if self._faults:
            notes += (f"Rows that could not be read and are left out: {self._faults:,}; the first: {self.fault}.",)
        attempt = _attempts(columns.pop("request"), again)
        opening = self._opening(identity)
        if unmeasured := len(columns["measured"]) - int(columns["measured"].sum()):
            finished = int((columns["outcome"] == Ending.FINISHED).sum())
            if unmeasured == finished:
                raise TraceError(path, None, "prompt_tokens, output_tokens", "values in some row", "nothing")
            part = _unmeasured_share(columns)
            opening += (
                f"Requests that finished and do not say their tokens: {unmeasured:,} of {finished:,}. They count with "
                f"their waits and are charged nothing; about {part:.1%} of the load is missing, if they are like the "
                "others of their clients. A stream says its tokens if it is asked to (stream_options.include_usage).",
            )
        return AccessLog(
            path=path, files=tuple(self._files), fields=fields, reading=reading, notes=notes,
            utc_offset_s=utc_offset_s, identity=identity, opening=opening, attempt=attempt,
            **names, **columns,
        )  # fmt: skip

    def _opening(self, identity: Identity | None) -> tuple[str, ...]:
        """Return what is to be said first."""
        said = [] if identity is None else [identity.sentence]
        return (" ".join((*said, *self.suggested)),) if said or self.suggested else ()

    def _identity(self, column: Ints) -> tuple[Identity | None, dict[str | None, int]]:
        """Return the level that names clients, and the clients; `column` is numbered anew by these."""
        counts = np.bincount(column, minlength=len(self._clients)).tolist()
        found = chosen(
            (self._levels[kind], said, count) for (kind, said), count in zip(self._clients, counts, strict=True)
        )
        known: dict[str | None, int] = {}
        again = []
        for kind, said in self._clients:
            name = ALL_CLIENTS if found is None else names_at(found.level, self._levels[kind], said) or NO_NAME
            again.append(known.setdefault(name, len(known)))
        column[:] = np.array(again, dtype=np.int64)[column]
        return found, known


def _unmeasured_share(columns: dict[str, Any]) -> float:
    """Return what part of the load requests without tokens are, if each is as its client's others are in the mean."""
    finished = columns["outcome"] == Ending.FINISHED
    told, untold = finished & (columns["measured"] == 1), columns["measured"] == 0
    cost = columns["prompt"] + 2 * columns["output"]
    clients = int(columns["client"].max()) + 1
    total, count, lost = (
        np.bincount(columns["client"][rows], weights, clients)
        for rows, weights in ((told, cost[told]), (told, None), (untold, None))
    )
    mean = np.where(count > 0, total / np.maximum(count, 1), total.sum() / max(count.sum(), 1))
    missing = float((lost * mean).sum())
    return missing / max(missing + float(total.sum()), 1)


def _attempts(request: Ints, again: npt.NDArray[np.bool_]) -> Ints:
    """Return the number of each try among those of its request; rows are in order of time, and `again` says which are
    copies of the row before."""
    order = np.argsort(request, kind="stable")
    new = np.append(True, np.diff(request[order]) != 0)[: len(order)]
    tries = np.cumsum(~again[order])
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    attempt = np.empty(len(order), dtype=np.int64)
    attempt[order] = tries - tries[first]
    attempt[request == UNKNOWN] = 0
    return attempt
