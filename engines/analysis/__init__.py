"""What a run says: outcomes, metrics, comparisons and explanations. Read `outcomes` first, then `metrics`."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.assumptions import assumption_monitor, run_charging, run_limits
    from fairsched.engines.analysis.comparison import Comparison
    from fairsched.engines.analysis.explained import explain
    from fairsched.engines.analysis.figures import RunName, count, labels_of, rate, safe_text, share, time
    from fairsched.engines.analysis.log_replay import replay
    from fairsched.engines.analysis.metrics import Recorder, Run, organisations
    from fairsched.engines.analysis.outcomes import EventTables, Measures, Outcomes, Summary, summary
    from fairsched.engines.analysis.table import (
        Column,
        open_console,
        output_width,
        print_comparison,
        print_lines,
        print_small,
        print_table,
        print_text,
    )
    from fairsched.engines.analysis.worker_figures import energy_nj, occupied_ns
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Column", "Comparison", "EventTables", "Measures", "Outcomes", "Recorder", "Run", "RunName", "Summary",
    "assumption_monitor", "count", "energy_nj", "explain", "labels_of", "occupied_ns", "open_console",
    "organisations", "output_width", "print_comparison", "print_lines", "print_small", "print_table", "print_text",
    "rate", "replay", "run_charging", "run_limits", "safe_text", "share", "summary", "time"
]  # fmt: skip
