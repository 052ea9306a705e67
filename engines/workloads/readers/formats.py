"""The trace formats there are, and how a file's is recognised: by the names in its header or its first object.

A new format is a `TraceFormat` beside its reader, and its name here.  A batch of offline jobs is read here too, in any
format, row by row: of each prompt only what grouping needs, so that a million fit into memory.  A batch knows no order
among its jobs, so a job that waits for another is refused.  Times are not looked at.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.engines.workloads.errors import TraceError, unknown
from fairsched.engines.workloads.readers.agentx import AGENTX
from fairsched.engines.workloads.readers.csv_formats import ARENA, AZURE, BURSTGPT, SPLITWISE, VIDUR
from fairsched.engines.workloads.readers.json_formats import BAILIAN, MOONCAKE
from fairsched.engines.workloads.readers.rows import TraceFormat, lines
from fairsched.engines.workloads.readers.sources import STDIN
from fairsched.model.request import KEY_BYTES

FORMATS: dict[str, TraceFormat] = {
    form.name: form for form in (AZURE, ARENA, BURSTGPT, VIDUR, SPLITWISE, MOONCAKE, BAILIAN, AGENTX)
}
"""All formats by name; of two that fit a file equally well the earlier is taken."""

NARROW_BYTES = 4
"""Bytes of a key as long as all are below 2^32, as token ids are."""
SAY_EVERY = 1_000

Progress = Callable[[int], None]
"""Told how many jobs there are so far."""
Column = npt.NDArray[np.int64]


def recognise(path: Path) -> TraceFormat:
    """Return the format that knows most of the names in the file's first line.

    Raises `TraceError` when the file is empty or unreadable, or no format knows any of them, and for a pipe, whose
    first line could not be read again.
    """
    if str(path) == STDIN or (path.exists() and not path.is_file() and not path.is_dir()):
        known = ", ".join(FORMATS)
        raise TraceError(
            path,
            None,
            None,
            f"the format of a trace that can be read once, as `fs.load_trace(format=)` takes it ({known})",
            "none",
        )
    row, text = next(lines(path), (0, ""))
    if row == 0:
        raise TraceError(path, None, None, "at least one request", "an empty file")
    names = _names(path, text)
    best = max(FORMATS.values(), key=lambda form: len(names & set(form.fields)))
    if not names & set(best.fields):
        known = "; ".join(f"{form.name}: {','.join(form.fields[:5])}" for form in FORMATS.values())
        raise TraceError(path, 1, None, f"the header or keys of a known format ({known})", repr(text))
    return best


def format_of(path: Path, name: str | None) -> TraceFormat:
    """Return the format called `name`, or the one recognised when it is None.  Raises `WorkloadError` on an unknown
    name."""
    if name is None:
        return recognise(path)
    if name not in FORMATS:
        raise unknown("trace format", name, FORMATS)
    return FORMATS[name]


def _names(path: Path, text: str) -> set[str]:
    if not text.lstrip().startswith("{"):
        return {name.strip().strip('"') for name in text.split(",")}
    try:
        return set(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError as error:
        raise TraceError(path, 1, None, "a JSON object", f"{text!r} ({error})") from None


# --- batches ----------------------------------------------------------------------------------------------------------


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
