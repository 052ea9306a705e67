"""Results of papers, each run again on its paper's terms: platform, composition, workload, metric, sweep and load.

A row (`row.py`, read it first) is a panel of a paper with what the paper claims in it; `runs.py` has the runs that rows
are made of, `harness.py` has all rows and runs them over seeds and cores.  Rows stand in a file for each paper.
"""

from fairsched.reproduce.harness import PANELS, ROWS, Result, reproduce
from fairsched.reproduce.row import PAPERS, Judged, PanelRow, Verdict

__all__ = ["PANELS", "PAPERS", "ROWS", "Judged", "PanelRow", "Result", "Verdict", "reproduce"]
