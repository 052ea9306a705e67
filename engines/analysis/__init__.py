"""What a run says: outcomes, metrics, comparisons and explanations. Read `outcomes` first, then `metrics`."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.assumptions import assumption_monitor, run_charging, run_limits
    from fairsched.engines.analysis.audit import (
        FIELDS,
        Audit,
        Columns,
        audit_log,
        logged_workload,
        print_audit,
        read_map,
        without_service,
        write_audit,
    )
    from fairsched.engines.analysis.comparison import Comparison
    from fairsched.engines.analysis.explainer import explain
    from fairsched.engines.analysis.figures import count, index, rate, share, time
    from fairsched.engines.analysis.grouped import organisations
    from fairsched.engines.analysis.log_replay import replay
    from fairsched.engines.analysis.metrics import Recorder, Run
    from fairsched.engines.analysis.outcomes import Measures, Outcomes, Summary, summary
    from fairsched.engines.analysis.report import (
        COLOURS,
        DOTTED,
        GREY,
        WIDTH,
        Plot,
        Table,
        drawn,
        line_style,
        point_labels,
        write_sheet,
    )
    from fairsched.engines.analysis.table import print_comparison
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "COLOURS", "DOTTED", "FIELDS", "GREY", "WIDTH", "Audit", "Columns", "Comparison", "Measures", "Outcomes",
    "Plot", "Recorder", "Run", "Summary", "Table", "assumption_monitor", "audit_log", "count", "drawn", "explain",
    "index", "line_style", "logged_workload", "organisations", "point_labels", "print_audit", "print_comparison",
    "rate", "read_map", "replay", "run_charging", "run_limits", "share", "summary", "time", "without_service",
    "write_audit", "write_sheet"
]  # fmt: skip
