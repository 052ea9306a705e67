"""An access log as columns: what it says of each request, and UNKNOWN where it does not."""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access.identity import Identity
from fairsched.model.service import Ints

NAMES = {"client": "clients", "worker": "workers", "model": "models", "status": "statuses"}
"""Columns that number names, and where the names are."""


@attrs.frozen(eq=False)
class AccessLog:
    """The rows as columns of equal length; times in nanoseconds, `UNKNOWN` (-1) where the log does not say.

    `path` names what was read.  `client`, `worker` (the server that had the request: its upstream), `model` and
    `status` (as the log writes it) number the names of `clients`, `workers`, `models` and `statuses`; a row without a
    model has UNKNOWN.

    `first_ns` is the first token; UNKNOWN where the log has none, whether or not there was one.  `served_ns` is when
    the wait is known to have ended: when the request left the queue, else its first token; UNKNOWN where the row has
    neither, as a request that was refused.  `end_ns` is never UNKNOWN.

    `streamed` is 1, 0 or UNKNOWN.  `measured` is 0 for a request that finished and does not say its tokens: what it
    leaves out is 0.  `outcome` is an `Ending`.  `attempt` counts the tries of one request from 0: rows with the same
    request id, in order of arrival (0 without an id; equal rows are one try).

    `file` numbers the names of `files`, and `line` is where the row ends in it, from 1.

    `fields` are the fields that the log has, `reading` says which column was read as what, `notes` what else must be
    known.  `utc_offset_s` is what the log's clock is ahead of UTC, in seconds; None where it counts from some time
    that is not known.  `identity` is what clients are; None where no row names one.  `opening` are the
    sentences to be read first.
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
    measured: Ints
    attempt: Ints
    file: Ints
    line: Ints
    files: tuple[Path, ...]
    fields: frozenset[str]
    reading: tuple[str, ...]
    notes: tuple[str, ...]
    utc_offset_s: int | None
    identity: Identity | None
    opening: tuple[str, ...]

    def rows(self, kept: npt.NDArray[np.bool_] | Ints) -> "AccessLog":
        """Return some of the rows; names stay, so that numbers mean the same."""
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in COLUMNS}
        return attrs.evolve(self, **columns)


COLUMNS = tuple(field.name for field in attrs.fields(AccessLog) if field.type is Ints)
"""The columns."""
