"""What is written of runs: HTML reports and frames. Read `report` first, then `frames`."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.report.canvas import (
        COLOURS,
        DOTTED,
        GREY,
        SECONDS,
        WIDTH,
        Plot,
        client_lines,
        cost_tick,
        distribution,
        drawn,
        end_labels,
        legend,
        line_style,
        point_labels,
    )
    from fairsched.engines.analysis.report.frames import EventRow, FrameWriter, RequestRow, requests_frame
    from fairsched.engines.analysis.report.page import Table, write_sheet
    from fairsched.engines.analysis.report.report import summary_html, write_report
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "COLOURS", "DOTTED", "GREY", "SECONDS", "WIDTH", "EventRow", "FrameWriter", "Plot", "RequestRow", "Table",
    "client_lines", "cost_tick", "distribution", "drawn", "end_labels", "legend", "line_style", "point_labels",
    "requests_frame", "summary_html", "write_report", "write_sheet"
]  # fmt: skip
