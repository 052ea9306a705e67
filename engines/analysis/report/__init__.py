"""What is written of runs: HTML pages and frames. Read `page` first, what every report is made of, then `report`, that
of a comparison; `frames` has tables for other programs.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.report.canvas import (
        COLOURS,
        DOTTED,
        GREY,
        LABEL,
        Key,
        Plot,
        TimeAxis,
        client_keys,
        cost_tick,
        distribution,
        drawn,
        line_style,
        pair_of,
        point_labels,
    )
    from fairsched.engines.analysis.report.frames import FrameWriter, requests_frame
    from fairsched.engines.analysis.report.page import (
        Block,
        Cell,
        Code,
        Folded,
        Heading,
        Page,
        Part,
        Sentences,
        Table,
        plot_part,
    )
    from fairsched.engines.analysis.report.player import Samples, played
    from fairsched.engines.analysis.report.report import summary_html, write_report
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "COLOURS", "DOTTED", "GREY", "LABEL", "Block", "Cell", "Code", "Folded", "FrameWriter", "Heading", "Key", "Page",
    "Part", "Plot", "Samples", "Sentences", "Table", "TimeAxis", "client_keys", "cost_tick", "distribution", "drawn",
    "line_style", "pair_of", "played", "plot_part", "point_labels", "requests_frame", "summary_html", "write_report"
]  # fmt: skip
