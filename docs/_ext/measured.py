"""The directives `measured` and `bench`: tables of measured figures, which are data and not text."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown import directive, table

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "measured.json"
"""By the name of a table its rows, the head first; cells are Markdown."""


def measured(names: Sequence[str]) -> str:
    """Return the table of that name."""
    (name,) = names
    found = json.loads(FIGURES.read_text())
    if name not in found:
        raise ValueError(f"no table {name}; known: {', '.join(found)}")
    head, *rows = found[name]
    return table(head, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def bench(_: Sequence[str]) -> str:
    """Return the figures that `make bench` recorded last, and the machines."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.suite import page
    from benchmarks.suite.history import read

    history = read(ROOT / "benchmarks" / "history.jsonl")
    return f"{page.table(history)}\n\n{page.machines(history)}"


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("measured", directive(measured))
    app.add_directive("bench", directive(bench))
    return {"parallel_read_safe": True}
