"""How much load each policy bears: the plot of a comparison at several arrival rates."""

from typing import TYPE_CHECKING

from fairsched.engines.comparison import Comparison
from fairsched.engines.metrics import RunResult
from fairsched.engines.report.canvas import WIDTH, Plot, drawn, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def capacity(comparison: Comparison) -> Plot | None:
    """p50 and p95 of the TTFT against the rate scale, a line a policy; None where there is one rate only."""
    scales = sorted({run.rate_scale for run in comparison.runs})
    if len(scales) < 2:
        return None
    families: dict[str, list[RunResult]] = {}
    for name, run in zip(comparison.families(), comparison.runs, strict=True):
        families.setdefault(name, []).append(run)

    def picture(figure: "Figure") -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, percentile in zip(panels, ("p50", "p95"), strict=True):
            for i, (name, runs) in enumerate(families.items()):
                points = [(run.rate_scale, getattr(run.measures.ttft_us, percentile)) for run in runs]
                points = sorted((scale, us / 1e6) for scale, us in points if us is not None)
                axes.plot(
                    [scale for scale, _ in points],
                    [seconds for _, seconds in points],
                    marker="o",
                    markersize=4,
                    label=name,
                    **line_style(i),
                )
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xticks(scales)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("rate scale")
            axes.set_ylabel(f"{percentile} TTFT, seconds (log)")
            axes.tick_params(labelleft=True)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=9)

    return drawn(
        "capacity",
        "Waiting against load",
        "Time to the first token of half of the requests (left) and of all but one in twenty (right) as requests come "
        "faster: a line that stays low further to the right bears more load before requests wait.",
        (WIDTH, 3.6),
        picture,
    )
