"""`fairsched replay` and `fairsched explain`: read the event log of a run."""

from typing import Any


def add_replay(commands: Any) -> None:
    """Declare the command."""


def add_explain(commands: Any) -> None:
    """Declare the command."""
