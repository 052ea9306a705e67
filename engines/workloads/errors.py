"""What is wrong with a trace or with the parameters of a workload, in one line that names the place."""

from collections.abc import Iterable
from pathlib import Path

from fairsched.policies.validators import meant

FOUND_CHARS_MAX = 80


class WorkloadError(ValueError):
    """A workload cannot be had as asked; the message is one line for the person who asked."""


class TraceError(WorkloadError):
    """A trace file breaks its format.

    `row` is the 1-based line of the file (None: the file as a whole), `field` the column or key (None: the whole
    row), `expected` what the format demands and `found` what stands there, cut to `FOUND_CHARS_MAX` characters.
    """

    def __init__(self, path: Path, row: int | None, field: str | None, expected: str, found: object) -> None:
        self.path = path
        self.row = row
        self.field = field
        self.expected = expected
        text = found if isinstance(found, str) else repr(found)
        self.found = text if len(text) <= FOUND_CHARS_MAX else text[: FOUND_CHARS_MAX - 3] + "..."
        place = str(path)
        if row is not None:
            place += f", row {row}"
        if field is not None:
            place += f", field {field}"
        super().__init__(_printable(f"{place}: expected {expected}, found {self.found}"))


def _printable(text: str) -> str:
    """Return the text with line ends and other control characters, which a file may have anywhere, as they are
    escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unknown(kind: str, name: str, known: Iterable[str]) -> WorkloadError:
    """Return the error for an unknown name, with the nearest known names (all of them when none is near)."""
    return WorkloadError(meant(kind, name, sorted(known)))
