"""The events of a run as columns: a table of integer arrays for each kind of event that metrics ask about.

A row's `position` counts all events of the run in the order in which they happened, so that rows of different tables,
and events with equal times, stay ordered.  A run is recorded in pieces (`tables` on a batch of events, `concatenate`
in the end), which keeps its memory at a few integers an event.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from fairsched.model import events as ev

Ints = npt.NDArray[np.int64]
Table = dict[str, Ints]
"""Columns of equal length, rows in order of `position`."""
Tables = Mapping[type[ev.Event], Table]

_HEAD = ("time_ns", "worker", "request_id", "client")
_WHOLE = (
    *(ev.Settled, ev.Prefilled, ev.Preempted, ev.Paused, ev.Resumed, ev.SwappedOut, ev.SwappedIn),
    *(ev.Finished, ev.Cancelled, ev.Migrated, ev.WorkerLeft),
)
_MOVES = (ev.TransferStarted, ev.TransferFailed)
_FIELDS: dict[type[ev.Event], dict[str, str]] = {
    ev.Arrived: {"time_ns": "time_ns", "worker": "worker", "request_id": "request.id", "client": "request.client"},
    ev.Admitted: {name: name for name in (*_HEAD, "extend_tokens", "cached_prefix_tokens")},
    ev.Rejected: {name: name for name in _HEAD},
}
_FIELDS.update((kind, {name: name for name in kind.__struct_fields__}) for kind in (*_WHOLE, *_MOVES))
"""Column and attribute of each kind but `Decoded` and `Held`, whose tables have a row a client."""
_HELD = ("position", "time_ns", "worker", "client", "tokens")
_DECODED = (*_HELD, "steps")


def _integers(values: Iterable[int], count: int) -> Ints:
    return np.fromiter(values, dtype=np.int64, count=count)


def _by_client(rows: Sequence[ev.Event], position: Ints, kind: type[ev.Event]) -> Table:
    """Return one row for each client of each event `Decoded` or `Held`."""
    clients = list(map(attrgetter("clients"), rows))
    sizes = _integers(map(len, clients), len(rows))
    total = int(sizes.sum())
    each = ("time_ns", "worker", "steps") if kind is ev.Decoded else ("time_ns", "worker")
    return {
        "position": np.repeat(position, sizes),
        **{name: np.repeat(_integers(map(attrgetter(name), rows), len(rows)), sizes) for name in each},
        "client": _integers(chain.from_iterable(clients), total),
        "tokens": _integers(chain.from_iterable(map(attrgetter("tokens"), rows)), total),
    }


def tables(events: Sequence[ev.Event], position: int = 0) -> Tables:
    """Return columns of `events`, the first of which is the run's event number `position`.

    Kinds without a table (`Cached`, `Evicted`, ...) only take up positions.  O(events), about half a microsecond each.
    """
    kinds = list(map(type, events))
    found: dict[type[ev.Event], Table] = {}
    codes = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
    code_of = np.fromiter(map(codes.__getitem__, kinds), dtype=np.int8, count=len(events))
    for kind, code in codes.items():
        where = np.flatnonzero(code_of == code)
        rows = [events[i] for i in where.tolist()]
        if kind in (ev.Decoded, ev.Held):
            found[kind] = _by_client(rows, where + position, kind)
        elif kind in _FIELDS:
            found[kind] = {"position": where + position} | {
                column: _integers(map(attrgetter(name), rows), len(rows)) for column, name in _FIELDS[kind].items()
            }
    return found


def concatenate(pieces: Sequence[Tables]) -> Tables:
    """Return the tables of a whole run from those of its consecutive pieces; every kind that has a table is there."""
    whole: dict[type[ev.Event], Table] = {}
    columns = {kind: ("position", *fields) for kind, fields in _FIELDS.items()} | {ev.Decoded: _DECODED, ev.Held: _HELD}
    for kind, names in columns.items():
        parts = [piece[kind] for piece in pieces if kind in piece]
        whole[kind] = {
            name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0, dtype=np.int64)
            for name in names
        }
    return whole
