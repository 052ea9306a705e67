"""A batch of offline jobs read row by row: of each prompt only what grouping needs, so that a million fit into memory.

A batch knows no order among its jobs, so a job that waits for another is refused.  Times are not looked at.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

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


class BatchJobs:
    """Of each job its id, prompt tokens, output tokens, block size, and the chain of its keys.

    `key_bytes` is how long a key is in the chains.  About `blocks * key_bytes + 100` bytes a job.
    """

    def __init__(self) -> None:
        self.chains: list[bytes] = []
        self.key_bytes = NARROW_BYTES
        self._ids, self._tokens, self._outputs, self._blocks = (array("q") for _ in range(4))

    @property
    def ids(self) -> Column:
        """Ids of the jobs."""
        return np.frombuffer(self._ids, dtype=np.int64)

    @property
    def tokens(self) -> Column:
        """Prompt tokens."""
        return np.frombuffer(self._tokens, dtype=np.int64)

    @property
    def output_tokens(self) -> Column:
        """Output tokens, as the file says."""
        return np.frombuffer(self._outputs, dtype=np.int64)

    @property
    def block_tokens(self) -> Column:
        """Tokens of a block."""
        return np.frombuffer(self._blocks, dtype=np.int64)

    def add(self, job: int, keys: bytes, tokens: int, output_tokens: int, block_tokens: int) -> None:
        """One more job, with eight bytes a key.  O(keys), amortised."""
        wide = np.frombuffer(keys, dtype="<u8")
        if self.key_bytes == NARROW_BYTES and wide.size and int(wide.max()) >= 1 << 32:
            self.chains = [np.frombuffer(chain, "<u4").astype("<u8").tobytes() for chain in self.chains]
            self.key_bytes = KEY_BYTES
        self.chains.append(wide.astype("<u4").tobytes() if self.key_bytes == NARROW_BYTES else keys)
        self._ids.append(job)
        self._tokens.append(tokens)
        self._outputs.append(output_tokens)
        self._blocks.append(block_tokens)


def read_batch(path: Path, progress: Progress, format: str | None = None) -> BatchJobs:
    """The jobs of a file in any trace format (None: recognised).

    Raises `WorkloadError`, and its kind `TraceError` for what is wrong in the file: also an id that comes twice, and a
    job that waits for another.
    """
    form = format_of(path, format)
    jobs, seen = BatchJobs(), set[int]()
    for row in form.read(path):
        if row.id in seen:
            raise TraceError(path, row.row, form.id_field, "an id no earlier row has", row.id)
        if row.parents:
            expected = "no parent, since a batch knows no order among its jobs"
            raise TraceError(path, row.row, "parent", expected, list(row.parents))
        seen.add(row.id)
        prompt = row.prompt
        jobs.add(row.id, prompt.keys, prompt.tokens, row.output_tokens, prompt.block_tokens)
        if len(seen) % SAY_EVERY == 0:
            progress(len(seen))
    if not seen:
        raise TraceError(path, None, None, "at least one job", "none")
    progress(len(seen))
    return jobs
