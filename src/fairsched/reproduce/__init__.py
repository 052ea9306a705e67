"""Results of papers, each run again on its paper's terms: platform, composition, workload, metric, sweep and load.

A row (`row.py`, read it first) is a panel of a paper with what the paper claims in it; `runs.py` has the runs that rows
are made of, `harness.py` runs rows over seeds and cores.  Rows stand in a file for each paper; `rows.py` has all.
"""

from fairsched.reproduce.harness import Progress, Result, RowError, reproduce
from fairsched.reproduce.row import PAPERS, Claim, Control, Interval, Judged, Panel, Paper, Platform, Row, Verdict
from fairsched.reproduce.rows import PANELS, ROWS

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
