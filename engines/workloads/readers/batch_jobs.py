"""A batch of offline jobs read row by row: of each prompt only what grouping needs, so that a million fit into memory.

A batch knows no order among its jobs, so a job that waits for another is refused.  Times are not looked at.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers.formats import format_of
from fairsched.model.request import KEY_BYTES

NARROW_BYTES = 4
"""Bytes of a key as long as all are below 2^32, as token ids are."""
SAY_EVERY = 1_000

Progress = Callable[[int], None]
"""Told how many jobs there are so far."""
Column = npt.NDArray[np.int64]


@attrs.frozen
class BatchJobs:
    """Of each job its chain of keys, `key_bytes` each; id, tokens of prompt, output (as the file says) and block.

    About `blocks * key_bytes + 100` bytes a job.
    """

    chains: list[bytes]
    key_bytes: int
    ids: Column
    tokens: Column
    output_tokens: Column
    block_tokens: Column


def read_batch(path: Path, progress: Progress, format: str | None = None) -> BatchJobs:
    """Return the jobs of a file in any trace format (None: recognised).

    Raises `WorkloadError`, and its kind `TraceError` for what is wrong in the file: also an id that comes twice, and a
    job that waits for another.
    """
    form = format_of(path, format)
    seen, chains, columns, key_bytes = set[int](), list[bytes](), [array("q") for _ in range(4)], NARROW_BYTES
    for row in form.read(path):
        if row.id in seen:
            raise TraceError(path, row.row, form.id_field, "an id no earlier row has", row.id)
        if row.parents:
            expected = "no parent, since a batch knows no order among its jobs"
            raise TraceError(path, row.row, "parent", expected, list(row.parents))
        seen.add(row.id)
        prompt = row.prompt
        wide = np.frombuffer(prompt.keys, dtype="<u8")
        if key_bytes == NARROW_BYTES and wide.size and int(wide.max()) >= 1 << 32:
            chains = [np.frombuffer(chain, "<u4").astype("<u8").tobytes() for chain in chains]
            key_bytes = KEY_BYTES
        chains.append(wide.astype("<u4").tobytes() if key_bytes == NARROW_BYTES else prompt.keys)
        values = (row.id, prompt.tokens, row.output_tokens, prompt.block_tokens)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        if len(seen) % SAY_EVERY == 0:
            progress(len(seen))
    if not seen:
        raise TraceError(path, None, None, "at least one job", "none")
    progress(len(seen))
    return BatchJobs(chains, key_bytes, *(np.frombuffer(column, dtype=np.int64) for column in columns))
