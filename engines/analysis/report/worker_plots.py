"""The plots of a cluster: what each worker was sent, computed, held and kept waiting, and how even that was."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fairsched.engines.analysis.figures import Compared
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.report.canvas import (
    COLOURS,
    GREY,
    PANELS_MAX,
    WIDTH,
    Plot,
    cost_tick,
    drawn,
    left_out,
    line_style,
    panel_size,
    panels_of,
)
from fairsched.engines.analysis.worker_figures import WORKERS_NAMED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Draw = Callable[[Axes, Run, int, dict[str, Any]], None]


def worker_plots(comparison: Compared) -> list[Plot]:
    """The plots of workers; none where no run has several."""
    if all(len(run.workers) < 2 for run in comparison.runs):
        return []
    return [_balance(comparison), _sent(comparison), _work(comparison), _waiting(comparison), _kv(comparison)]


def _panels(
    comparison: Compared, name: str, title: str, caption: str, ylabel: str, draw: "Draw", top: float | None = None
) -> Plot:
    """One panel a run, one line a worker; of many workers the busiest and the idlest in colour, others grey."""
    runs = comparison.runs[:PANELS_MAX]
    labels = comparison.labels()[:PANELS_MAX]
    most = max((len(run.workers) for run in runs), default=0)

    def picture(figure: "Figure") -> None:
        panels = panels_of(figure, labels, "seconds since the first arrival", ylabel, sharex=True, sharey=True)
        for axes, run in zip(panels, runs, strict=True):
            for i in reversed(range(len(run.worker_series.workers))):
                draw(axes, run, i, _style(run, i))
        for axes in panels:
            # Only when everything is drawn: limits that are set no longer follow what comes.
            axes.set_ylim(0, top)
            if top is None:
                axes.yaxis.set_major_formatter(cost_tick)
        lines, names = _legend(panels[0], most)
        figure.legend(lines, names, loc="outside upper left", ncols=min(len(names), 8), fontsize=9)

    return drawn(name, title, caption + left_out(comparison), panel_size(len(runs)), picture)


def _style(run: Run, i: int) -> dict[str, Any]:
    """How the i-th of a run's workers is drawn."""
    if len(run.workers) <= WORKERS_NAMED:
        return line_style(i)
    last = len(run.worker_series.workers) - 1
    return line_style({0: 0, last: 1}.get(i, len(COLOURS)))


def _legend(axes: "Axes", workers: int) -> tuple[list[Any], list[str]]:
    """Lines and what they mean."""
    named = workers <= WORKERS_NAMED
    names = [f"worker {i}" for i in range(workers)] if named else ["most work", "least work", "other workers"]
    styles = [line_style(i if named or i < 2 else len(COLOURS)) for i in range(len(names))]
    return [axes.plot([], [], **style)[0] for style in styles], names


def _sent(comparison: Compared) -> Plot:
    """Requests sent to each worker."""

    def draw(axes: "Axes", run: Run, i: int, style: dict[str, Any]) -> None:
        axes.plot(run.worker_series.seconds, run.worker_series.sent[:, i], **style)

    caption = "Requests sent to each worker so far: how the router spread them, whatever they cost."
    return _panels(comparison, "sent", "Requests of each worker over time", caption, "requests", draw)


def _work(comparison: Compared) -> Plot:
    """What each worker computed."""

    def draw(axes: "Axes", run: Run, i: int, style: dict[str, Any]) -> None:
        axes.plot(run.worker_series.seconds, run.worker_series.work[:, i], **style)

    caption = (
        "Prompt tokens computed plus twice the output tokens, so far: lines that spread are an uneven cluster; a "
        "router that finds more in the caches ends lower with the same requests."
    )
    return _panels(comparison, "work", "Work of each worker over time", caption, "work, tokens", draw)


def _waiting(comparison: Compared) -> Plot:
    """Queues over time."""

    def draw(axes: "Axes", run: Run, i: int, style: dict[str, Any]) -> None:
        axes.plot(run.worker_series.seconds, run.worker_series.waiting[:, i], **style | {"linewidth": 1.1})

    caption = "Requests that wait at each worker: one queue far above the others is a hot spot that the router made."
    return _panels(comparison, "queue", "Queue of each worker over time", caption, "waiting requests", draw)


def _kv(comparison: Compared) -> Plot:
    """KV memory of each worker's running requests."""

    def draw(axes: "Axes", run: Run, i: int, style: dict[str, Any]) -> None:
        rows = run.series.kv.get(run.worker_series.workers[i])
        if rows is not None:
            seconds, used, _, capacity = rows.T
            axes.plot(seconds, 100 * used / capacity, **style | {"linewidth": 1.1})

    caption = (
        "KV memory that running requests hold; what is left to the prefix cache is above the line. Where a line stays "
        "at the top, memory is what that worker's requests wait for."
    )
    ylabel = "% of a worker's KV memory"
    return _panels(comparison, "worker-kv", "KV memory of each worker", caption, ylabel, draw, top=100)


def _balance(comparison: Compared) -> Plot:
    """How even the workers' shares were, a row a run."""
    labels = [
        label if run.imbalance is None else f"{label} ({run.imbalance:.2f})"
        for label, run in zip(comparison.labels(), comparison.runs, strict=True)
    ]

    def picture(figure: "Figure") -> None:
        grid = figure.subplots(1, 3, sharey=True)
        columns: tuple[tuple[str, Callable[[Run], list[float]]], ...] = (
            ("work, % of the mean", lambda run: _relative([worker.work for worker in run.workers])),
            ("busy, % of the run", lambda run: [100 * (worker.busy_share or 0) for worker in run.workers]),
            ("cache hits, %", lambda run: [100 * (worker.prefix_hit_ratio or 0) for worker in run.workers]),
        )
        for axes, (xlabel, values_of) in zip(grid, columns, strict=True):
            for row, run in enumerate(comparison.runs):
                values = values_of(run)
                colour = line_style(row)["color"] if row < len(COLOURS) else GREY
                axes.scatter(values, [row] * len(values), color=colour, s=28, alpha=0.6, linewidths=0)
                axes.plot([min(values), max(values)], [row, row], color=colour, linewidth=1)
            axes.set_xlabel(xlabel)
            axes.set_xlim(left=0)
        grid[1].set_xlim(0, 103)
        grid[2].set_xlim(0, 103)
        grid[0].set_xlim(right=max(grid[0].get_xlim()[1], 110))
        grid[0].set_yticks(range(len(labels)), labels)
        grid[0].set_ylim(len(labels) - 0.4, -0.6)

    return drawn(
        "balance",
        "How even the workers were",
        "A dot is a worker; dots far apart in one row are a router that loads some and leaves others idle. Behind a "
        "run's name: the most work of a worker over the mean of all, 1 when all did the same.",
        (WIDTH, 1.1 + 0.3 * len(labels)),
        picture,
    )


def _relative(values: list[int]) -> list[float]:
    """Each value in per cent of their mean."""
    mean = float(np.mean(values))
    return [100 * value / mean if mean else 0.0 for value in values]
