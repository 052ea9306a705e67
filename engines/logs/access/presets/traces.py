"""Traces of what was asked, which have no times of answers: they are refused with what can be done with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fairsched.engines.logs.access.presets.preset import keys
from fairsched.engines.logs.access.rows import Kind
from fairsched.engines.logs.access.sources import Lines
from fairsched.engines.workloads import FORMATS, TraceError

_NEEDED = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "arena": {"req_id", "arrival_s", "input_tokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "mooncake": {"timestamp", "input_length", "output_length"},
    "bailian": {"chat_id", "input_length", "output_length"},
    "agentx": {"block_size", "requests"},
}
"""The columns that make a trace one, by its format; it has none that its format does not know."""
_ANSWERS = {"Elapsed time"}
"""Columns that say when answers were complete."""


def trace(head: Sequence[str]) -> Kind | None:
    """Return a kind that refuses its log, if it is a trace without answers; None if it is not."""
    names = keys(head) or {name.strip().strip('"') for name in head[0].split(",")}
    if names & _ANSWERS:
        return None
    for name, needed in _NEEDED.items():
        if needed <= names <= set(FORMATS[name].fields):
            return Kind(f"{name} trace", _refuse)
    return None


def _refuse(path: Path, lines: Lines) -> NoReturn:
    expected = f"times of answers (policies are compared on a trace with `fairsched compare --trace {path}`)"
    raise TraceError(path, None, None, expected, "a trace of what was asked, of which nothing has waited yet")
