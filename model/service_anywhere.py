"""Service and backlog over all workers of a cluster together, as a policy promises them whose workers share credit."""

import numpy as np
import numpy.typing as npt

from fairsched.model.trace import Table


def anywhere(charged: Table, waited: Table) -> tuple[Table, Table]:
    """The same as if all workers were one: a client is backlogged while it is at any of them.

    The service gap of the result is the left side of D2-global, and is told of worker 0.  O(rows log rows).
    """
    charged = _rows(charged, charged["worker"] >= 0)
    shift = waited["client"] << 44  # positions are below 2^43, so that clients stay apart
    order = np.argsort(shift + waited["start"], kind="stable")
    rows = _rows(waited, order)
    start, stop = (shift[order] + np.minimum(rows[name], 1 << 43) for name in ("start", "stop"))
    latest = np.maximum.accumulate(stop)
    first = np.flatnonzero(np.append(True, start[1:] > latest[:-1])[: len(start)])
    merged = _rows(rows, first)
    if first.size:
        merged |= {name: np.maximum.reduceat(rows[name], first) for name in ("stop", "stop_ns")}
    return charged | {"worker": np.zeros_like(charged["worker"])}, merged | {"worker": np.zeros_like(merged["worker"])}


def _rows(table: Table, which: npt.NDArray[np.generic]) -> Table:
    return {column: values[which] for column, values in table.items()}
