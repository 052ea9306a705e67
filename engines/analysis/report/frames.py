"""Runs as frames: Arrow tables of requests and events, in memory or as parquet files.

`RequestRow` and `EventRow` are the columns.  Any data frame library reads them: `table.to_pandas()`,
`polars.from_arrow(table)`, or `read_parquet` of the file.

Needs the `frame` extra (pyarrow), imported when a frame is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, get_args, get_type_hints

import attrs
import numpy as np

from fairsched.engines.analysis.figures import Compared
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.outcomes import OUTCOMES
from fairsched.engines.files import whole_file
from fairsched.engines.logs.access import UNKNOWN
from fairsched.model import extra_named
from fairsched.model.service import Ints, Table, Tables

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

REQUESTS, EVENTS = "requests.parquet", "events.parquet"
_ROWS_MAX = 1 << 20
"""Rows that are turned into a table at a time."""


@attrs.frozen
class RequestRow:
    """A request of a run; times are on the clock of the log or trace, and absent where there is none."""

    run: str
    """The run's name in the table of the comparison; of an audit the models', or the log's."""
    request: int
    """Its number: the trace's, or in an access log its place in order of arrival."""
    client: str
    """The name of its client."""
    worker: int | None
    """The worker that admitted it first; absent for access logs."""
    arrival_ns: int
    """When it came, in nanoseconds."""
    admitted_ns: int | None
    """When its wait was over: it first entered a batch; in an access log when it was served, as `audit` counts it."""
    first_token_ns: int | None
    """The end of the step that completed its prompt; in an access log its first token, as logged or inferred."""
    end_ns: int | None
    """When it finished, was given up or was refused."""
    outcome: str
    """`finished`, `cancelled`, `rejected`, `unfinished`, and `error` in an access log."""
    prompt_tokens: int | None
    """Tokens of its prompt; absent for access logs."""
    cached_tokens: int | None
    """Tokens of its prompt that the prefix cache had at the first admission; absent for access logs."""
    output_tokens: int | None
    """Output tokens that it had at its end; absent for access logs."""
    cost: int | None
    """What it was charged in all, in cost units; for audits."""


@attrs.frozen
class EventRow:
    """An event of a run; a step in which several clients produce is a row for each."""

    run: str
    """The run's name, as in the requests."""
    position: int
    """Its place among all events of the run; kinds without a column here (caching, joining) take places, too."""
    time_ns: int
    """When it happened, in nanoseconds."""
    kind: str
    """What happened: the name of the event."""
    worker: int | None
    """The worker; absent where a request is at none."""
    request: int | None
    """The request; absent where an event is about a client's requests together."""
    client: str | None
    """The name of the client; absent where a worker leaves."""
    tokens: int | None
    """Tokens: computed (`Prefilled`), to be computed (`Admitted`, `Settled`), produced (`Decoded`), produced so far
    (`Preempted`, `Paused`, `Finished`, `Cancelled`, `Migrated`), held (`Held`), of KV (transfers and swaps)."""
    cached_tokens: int | None
    """Of `Admitted`: tokens from the prefix cache."""
    uncomputed_tokens: int | None
    """Of `Preempted`, `Cancelled` and `Migrated`: tokens that were charged at the admission and never computed."""
    steps: int | None
    """Of `Decoded`: how many steps of the engine the row sums up."""
    target: int | None
    """Of a transfer: the worker to which KV goes."""


_SOURCES = {
    "worker": ("worker",),
    "request": ("request_id",),
    "tokens": ("tokens", "extend_tokens", "output_tokens", "generated_tokens", "kv_tokens"),
    "cached_tokens": ("cached_prefix_tokens",),
    "uncomputed_tokens": ("uncomputed_tokens",),
    "steps": ("steps",),
    "target": ("target",),
}
"""For each column of events the columns of `model.service.Tables` that it is, the first that is there."""


def _schema(row: type) -> "pa.Schema":
    import pyarrow as pa

    fields = []
    for name, hint in get_type_hints(row).items():
        kinds = get_args(hint) or (hint,)
        text = str in kinds
        fields.append(
            pa.field(name, pa.dictionary(pa.int32(), pa.string()) if text else pa.int64(), nullable=type(None) in kinds)
        )
    return pa.schema(fields)


def _ints(values: Ints) -> "pa.Array":
    """Return numbers, absent where they are `UNKNOWN`."""
    import pyarrow as pa

    return pa.array(values, mask=values == UNKNOWN)


def _names(codes: Ints, names: Sequence[str]) -> "pa.Array":
    """Return names by their numbers, absent where a number is `UNKNOWN`."""
    import pyarrow as pa

    indices = pa.array(codes.astype(np.int32), mask=codes == UNKNOWN)
    # Half a surrogate pair, which a name may have from JSON, has no place in UTF-8.
    texts = [name.encode("utf-8", "backslashreplace").decode("utf-8") for name in names]
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))


def _table(row: type, columns: Mapping[str, "pa.Array"]) -> "pa.Table":
    import pyarrow as pa

    schema = _schema(row)
    return pa.table([columns[name] for name in schema.names], schema=schema)


@extra_named()
def requests_frame(of: Run | Compared) -> "pa.Table":
    """Return the requests of a run, or of all runs of a comparison, as an Arrow table: a row each.

    `RequestRow` has the columns.  Raises `ModuleNotFoundError` without pyarrow (the extra `frame`).
    """
    import pyarrow as pa

    named = [(of.policy, of)] if isinstance(of, Run) else of.named()
    frames = [_requests(label, run.requests, run.names) for label, run in named]
    return pa.concat_tables(frames).unify_dictionaries() if frames else _schema(RequestRow).empty_table()


def _requests(run: str, requests: Table, clients: Sequence[str], outcomes: Sequence[str] = OUTCOMES) -> "pa.Table":
    """Return the requests of a run (`Run.requests`), whose clients and outcomes have these names."""
    count = len(requests["request"])
    none = np.full(count, UNKNOWN)
    columns = {name: _ints(requests.get(name, none)) for name in get_type_hints(RequestRow)}
    columns["run"] = _names(np.zeros(count, dtype=np.int64), [run])
    columns["client"] = _names(requests["client"], clients)
    columns["outcome"] = _names(requests["outcome"], outcomes)
    return _table(RequestRow, columns)


def events_frames(run: str, trace: Tables, clients: Sequence[str]) -> Iterator["pa.Table"]:
    """Yield the events of a run in order, a table for at most `_ROWS_MAX` rows at a time."""
    kinds = list(trace)
    position = np.concatenate([trace[kind]["position"] for kind in kinds])
    code = np.concatenate([np.full(len(trace[kind]["position"]), i) for i, kind in enumerate(kinds)])
    order = np.argsort(position, kind="stable")
    whole = {"position": position, "time_ns": np.concatenate([trace[kind]["time_ns"] for kind in kinds])}
    for name, sources in {"client": ("client",), **_SOURCES}.items():
        whole[name] = np.concatenate([_column(trace[kind], sources) for kind in kinds])
    names = [kind.__name__ for kind in kinds]
    for start in range(0, len(order), _ROWS_MAX):
        rows = order[start : start + _ROWS_MAX]
        columns = {name: _ints(values[rows]) for name, values in whole.items()}
        columns["run"] = _names(np.zeros(len(rows), dtype=np.int64), [run])
        columns["kind"] = _names(code[rows], names)
        columns["client"] = _names(whole["client"][rows], clients)
        yield _table(EventRow, columns)


def _column(table: Table, sources: Sequence[str]) -> Ints:
    found = next((table[name] for name in sources if name in table), None)
    return np.full(len(table["position"]), UNKNOWN) if found is None else found


class FrameWriter:
    """Writes the requests and events of runs, one after the other, as parquet files.

    A `target` that ends in `.parquet` gets the requests; any other is a folder, made if need be, with
    `requests.parquet` and `events.parquet`.  A file has its name when it is whole: on leaving, with the runs until
    then.  Raises `OSError` where it cannot be written, and `ModuleNotFoundError` without pyarrow, on entering.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        one = target.suffix == ".parquet"
        self._paths: dict[type, Path] = (
            {RequestRow: target} if one else {RequestRow: target / REQUESTS, EventRow: target / EVENTS}
        )
        self._writers: dict[type, pq.ParquetWriter] = {}
        self._stack = ExitStack()

    @extra_named()
    def __enter__(self) -> "FrameWriter":
        import pyarrow.parquet as pq

        with ExitStack() as stack:
            for row, path in self._paths.items():
                if path != self.target:
                    path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(whole_file(path))
                self._writers[row] = stack.enter_context(pq.ParquetWriter(file, _schema(row), compression="zstd"))
            self._stack = stack.pop_all()
        return self

    @property
    def has_events(self) -> bool:
        """Whether events are written, too."""
        return EventRow in self._paths

    def add(
        self,
        run: str,
        requests: Table,
        trace: Tables | None,
        clients: Sequence[str],
        outcomes: Sequence[str] = OUTCOMES,
    ) -> None:
        """Write a run: its requests (`Run.requests`), its events if it has any, and the names of its clients."""
        self._writers[RequestRow].write_table(_requests(run, requests, clients, outcomes))
        if self.has_events and trace is not None:
            for piece in events_frames(run, trace, clients):
                self._writers[EventRow].write_table(piece)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)
