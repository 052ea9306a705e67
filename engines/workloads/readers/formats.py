"""The trace formats there are, and how a file's is recognised: by the names in its header or its first object.

A new format is one file with `COLUMNS` and `read`, and one line here.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import msgspec

from fairsched.engines.workloads import arena, azure, bailian, burstgpt, mooncake
from fairsched.engines.workloads.errors import TraceError, unknown
from fairsched.engines.workloads.rows import TraceRow, lines


@attrs.frozen
class TraceFormat:
    """How a kind of trace file is read.

    `fields` are its column names or keys; `time_field` and `id_field` are where times and ids stand, for messages
    (a format without ids numbers its rows).
    """

    name: str
    summary: str
    fields: Sequence[str]
    read: Callable[[Path], Iterator[TraceRow]]
    time_field: str
    id_field: str | None


FORMATS: dict[str, TraceFormat] = {
    form.name: form
    for form in (
        TraceFormat("azure", "Azure LLM inference trace, CSV", azure.COLUMNS, azure.read, "TIMESTAMP", None),
        TraceFormat("arena", "VTC artifact's arena workload, CSV", arena.COLUMNS, arena.read, "arrival_s", "req_id"),
        TraceFormat("burstgpt", "BurstGPT, CSV", burstgpt.COLUMNS, burstgpt.read, "Timestamp", None),
        TraceFormat(
            "mooncake",
            "JSON lines, Mooncake's keys and our optional ones",
            mooncake.COLUMNS,
            mooncake.read,
            "timestamp",
            "id",
        ),
        TraceFormat(
            "bailian", "Qwen-Bailian usage trace, JSON lines", bailian.COLUMNS, bailian.read, "timestamp", "chat_id"
        ),
    )
}
"""All formats by name; of two that fit a file equally well the earlier is taken."""


def recognise(path: Path) -> TraceFormat:
    """The format that knows most of the names in the file's first line.

    Raises `TraceError` when the file is empty or unreadable, or no format knows any of them.
    """
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
    """The format called `name`, or the one recognised when it is None.  Raises `WorkloadError` on an unknown name."""
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
