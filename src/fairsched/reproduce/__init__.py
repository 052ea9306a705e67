"""Results of papers, each run again on its paper's terms: platform, composition, workload, metric, sweep and load.

A row (`row.py`, read it first) is a panel of a paper with what the paper claims in it; `runs.py` has the runs that rows
are made of, `harness.py` has all rows and runs them over seeds and cores.  Rows stand in a file for each paper.
"""

from fairsched.reproduce.harness import PANELS, ROWS, Progress, Result, RowError, reproduce
from fairsched.reproduce.row import PAPERS, Control, Interval, Judged, Panel, PanelRow, Platform, Printed, Verdict

__all__ = [
    "PANELS", "PAPERS", "ROWS", "Control", "Interval", "Judged", "Panel", "PanelRow", "Platform", "Printed", "Progress",
    "Result", "RowError", "Verdict", "reproduce"
]  # fmt: skip
