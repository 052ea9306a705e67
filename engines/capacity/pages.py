"""The plots of `fairsched plan` (attainment against workers) and `fairsched tune` (throughput against waits).

Needs the `cli` extra (matplotlib), imported when a plot is drawn.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairsched.engines.analysis import report, share, time
from fairsched.engines.capacity.point import TunedPoint
from fairsched.engines.capacity.sizing import Sizing
from fairsched.engines.capacity.tuning import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def pareto_plot(tuning: Tuning) -> report.Plot:
    """Throughput against the wait that was measured and the one that is proved."""

    def measured_s(point: TunedPoint) -> float | None:
        return None if point.wait_us.p99 is None else max(point.wait_us.p99, 1_000.0) / 1e6

    def proved_s(point: TunedPoint) -> float | None:
        return None if point.bound_us is None else point.bound_us / 1e6

    def picture(figure: "Figure") -> None:
        left, right = report.pair_of(figure, sharey=True)
        _panel(left, tuning, measured_s, "measured wait, p99, seconds (log)")
        _panel(right, tuning, proved_s, "proved wait, seconds (log)")
        for axes in (left, right):
            axes.set_ylabel("throughput, requests/s")

    return report.drawn(
        "tune",
        "Throughput against waits",
        "Each point is a quantum and a cap; up and to the left is better on both. The grey line joins the points that "
        "no other beats.",
        6.0,
        picture,
        [
            report.Key("a quantum and a cap", {"color": report.COLOURS[0], "linestyle": "none"}),
            *(
                [report.Key("chosen", {"color": report.COLOURS[1], "linestyle": "none"})]
                if tuning.chosen is not None
                else []
            ),
            report.Key(f"asked for: {time(tuning.max_wait_us)}", {"color": report.GREY} | report.DOTTED),
        ],
    )


def _panel(axes: "Axes", tuning: Tuning, wait_s: Callable[[TunedPoint], float | None], xlabel: str) -> None:
    rows = [(wait, point) for point in tuning.points if (wait := wait_s(point)) is not None]
    rows.sort(key=lambda row: (row[0], -row[1].throughput))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(tuning.max_wait_us / 1e6, **{"color": report.GREY} | report.DOTTED)
    front: list[tuple[float, float]] = []
    for wait, point in rows:
        if not front or point.throughput > front[-1][1]:
            front.append((wait, point.throughput))
    axes.plot([row[0] for row in front], [row[1] for row in front], color=report.GREY, linewidth=1, zorder=1)
    for wait, point in rows:
        axes.scatter(
            [wait], [point.throughput], color=report.COLOURS[1 if point == tuning.chosen else 0], s=34, zorder=2
        )
    axes.margins(0.1, 0.15)
    told = [
        (wait, p.throughput, f"Q {p.quantum:,}" + ("" if p.cap is None else f", cap {p.cap:,}"))
        for wait, p in rows
        if p == tuning.chosen or (wait, p.throughput) in (front[0], front[-1])
    ]
    if told:
        report.point_labels(axes, told)
    axes.set_xlabel(xlabel)


def attainment_plot(sizings: Mapping[str, Sizing], aim: float) -> report.Plot:
    """The share of requests that kept their targets against workers, a line a policy."""

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        for i, sizing in enumerate(sizings.values()):
            workers = list(sizing.tried)
            shares = [100 * sizing.attainment(n) for n in workers]
            axes.plot(workers, shares, marker="o", markersize=4, **report.line_style(i))
        axes.axhline(100 * aim, color=report.GREY, linewidth=0.8)
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="workers", ylabel="requests that keep their targets, %")

    return report.drawn(
        "attainment",
        "Attainment against workers",
        "The share of requests that keep their targets with so many workers; the grey line is what is aimed at. Only "
        "the numbers that the search looked at are drawn.",
        3.6,
        picture,
        [
            *(report.Key(name, report.line_style(i)) for i, name in enumerate(sizings)),
            report.Key(f"aimed at: {share(aim)}", {"color": report.GREY, "linewidth": 0.8}),
        ],
    )
