"""The trace formats there are, and how a file's is recognised: by the names in its header or its first object.

A new format is a `TraceFormat` beside its reader, and its name here.
"""

from pathlib import Path

import msgspec

from fairsched.engines.workloads.errors import TraceError, unknown
from fairsched.engines.workloads.readers.csv_formats import ARENA, AZURE, BURSTGPT
from fairsched.engines.workloads.readers.json_formats import BAILIAN, MOONCAKE
from fairsched.engines.workloads.readers.rows import TraceFormat, lines

FORMATS: dict[str, TraceFormat] = {form.name: form for form in (AZURE, ARENA, BURSTGPT, MOONCAKE, BAILIAN)}
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
