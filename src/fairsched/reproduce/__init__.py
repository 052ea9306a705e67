"""Results of papers, each run again on its paper's terms: platform, composition, workload, metric, sweep and load.

A row (`row.py`, read it first) is a panel of a paper with what the paper claims in it; `runs.py` has the runs that rows
are made of, `harness.py` runs rows over seeds and cores.  Rows stand in a file for each paper; `ROWS` holds all.
"""

import re

from fairsched.reproduce import batchllm, preble
from fairsched.reproduce.harness import Progress, Result, RowError, reproduce
from fairsched.reproduce.row import PAPERS, Claim, Control, Interval, Judged, Panel, Paper, Platform, Row, Verdict

__all__ = [
    "PANELS",
    "PAPERS",
    "ROWS",
    "Claim",
    "Control",
    "Interval",
    "Judged",
    "Panel",
    "Paper",
    "Platform",
    "Progress",
    "Result",
    "Row",
    "RowError",
    "Verdict",
    "reproduce",
]

_FILES = {"batchllm": batchllm, "preble": preble}


def _place(row: Row) -> tuple[int, int, str]:
    """By paper in the order of the page, then by number: ids are numbers, some with letters."""
    number, letter = re.fullmatch(r"(\d+)([a-z]*)", row.id).groups()  # type: ignore[union-attr]
    return list(PAPERS).index(row.paper), int(number), letter


_FOUND = (each for file in _FILES.values() for each in vars(file).values() if isinstance(each, Row))
ROWS: dict[str, Row] = {row.id: row for row in sorted(_FOUND, key=_place)}
"""By id, paper by paper."""
PANELS: dict[str, tuple[Panel, ...]] = {name: file.PANELS for name, file in _FILES.items()}
"""All figures and tables of each paper's evaluation, by the paper's key."""
