"""Kinds of logs that are known by their first lines, one a file."""

from collections.abc import Sequence

from fairsched.engines.logs.access.rows import Kind


def recognise(head: Sequence[str]) -> Kind | None:
    """Return the kind of a log by its first lines; None for one that is not known."""
    return None
