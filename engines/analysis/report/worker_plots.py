"""The plots of a cluster: what each worker was sent, computed, held and kept waiting, and how even that was."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fairsched.engines.analysis.figures import Compared, shortened
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.report import canvas
from fairsched.engines.analysis.series import Floats
from fairsched.engines.analysis.worker_figures import WORKERS_NAMED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Course = Callable[[Run, int], tuple[Floats, Any]]


def worker_plots(comparison: Compared) -> list[canvas.Plot]:
    """The plots of workers; none where no run has several."""
    if all(len(run.workers) < 2 for run in comparison.runs):
        return []
    return [
        _balance(comparison),
        _panels(
            comparison,
            "sent",
            "Requests of each worker over time",
            "Requests sent to each worker so far: how the router spread them, whatever they cost.",
            "requests",
            lambda run, i: (run.worker_series.seconds, run.worker_series.sent[:, i]),
        ),
        _panels(
            comparison,
            "work",
            "Work of each worker over time",
            "Prompt tokens computed plus twice the output tokens, so far: lines that spread are an uneven cluster; a "
            "router that finds more in the caches ends lower with the same requests.",
            "work, tokens",
            lambda run, i: (run.worker_series.seconds, run.worker_series.work[:, i]),
        ),
        _panels(
            comparison,
            "queue",
            "Queue of each worker over time",
            "Requests that wait at each worker: one queue far above the others is a hot spot that the router made.",
            "waiting requests",
            lambda run, i: (run.worker_series.seconds, run.worker_series.waiting[:, i]),
            linewidth=1.1,
        ),
        _panels(
            comparison,
            "worker-kv",
            "KV memory of each worker",
            "KV memory that running requests hold; what is left to the prefix cache is above the line. Where a line "
            "stays at the top, memory is what that worker's requests wait for.",
            "% of a worker's KV memory",
            _kv,
            top=100,
            linewidth=1.1,
        ),
    ]


def _panels(
    comparison: Compared,
    name: str,
    title: str,
    caption: str,
    ylabel: str,
    course: "Course",
    top: float | None = None,
    **style: object,
) -> canvas.Plot:
    """One panel a run, one line a worker; of many workers the busiest and the idlest in colour, others grey."""

    def lines_of(run: Run) -> Iterator[tuple[Floats, Any, canvas.Style]]:
        last = len(run.worker_series.workers) - 1
        for i in range(last, -1, -1):
            place = i if len(run.workers) <= WORKERS_NAMED else {0: 0, last: 1}.get(i, len(canvas.COLOURS))
            seconds, values = course(run, i)
            if len(seconds):
                yield seconds, values, canvas.line_style(place) | style

    def finish(axes: "Axes") -> None:
        axes.set_ylim(0, top)
        if top is None:
            axes.yaxis.set_major_formatter(canvas.cost_tick)

    workers = max(len(run.workers) for run in comparison.runs[: canvas.PANELS_MAX])
    keys = [canvas.Key(f"worker {i}", canvas.line_style(i)) for i in range(workers)]
    if workers > WORKERS_NAMED:
        names = (("most work", 0), ("least work", 1), ("other workers", len(canvas.COLOURS)))
        keys = [canvas.Key(text, canvas.line_style(place)) for text, place in names]
    return canvas.run_panels(comparison, name, title, caption, ylabel, lines_of, finish, keys)


def _kv(run: Run, i: int) -> tuple[Floats, Floats]:
    """KV memory of a worker's running requests, in per cent."""
    rows = run.series.kv.get(run.worker_series.workers[i], np.ones((0, 4)))
    return rows[:, 0], 100 * rows[:, 1] / rows[:, 3]


def _balance(comparison: Compared) -> canvas.Plot:
    """How even the workers' shares were, a row a run."""
    labels = [label if run.imbalance is None else f"{label} ({run.imbalance:.2f})" for label, run in comparison.named()]

    def picture(figure: "Figure") -> None:
        grid = list(figure.subplots(3, 1, sharey=True).flat)
        columns: tuple[tuple[str, Callable[[Run], list[float]]], ...] = (
            ("work, % of the mean", lambda run: _relative([worker.work for worker in run.workers])),
            ("busy, % of the run", lambda run: [100 * (worker.busy_share or 0) for worker in run.workers]),
            ("cache hits, %", lambda run: [100 * (worker.prefix_hit_ratio or 0) for worker in run.workers]),
        )
        for axes, (xlabel, values_of) in zip(grid, columns, strict=True):
            for row, run in enumerate(comparison.runs):
                values = values_of(run)
                colour = canvas.line_style(row)["color"]
                axes.scatter(values, [row] * len(values), color=colour, s=28, alpha=0.6, linewidths=0)
                axes.plot([min(values), max(values)], [row, row], color=colour, linewidth=1)
            axes.set(xlabel=xlabel, xlim=(0, None))
        grid[1].set_xlim(0, 103)
        grid[2].set_xlim(0, 103)
        grid[0].set_xlim(right=max(grid[0].get_xlim()[1], 110))
        grid[0].set_yticks(range(len(labels)), [shortened(label, canvas.LABEL, len) for label in labels])
        grid[0].set_ylim(len(labels) - 0.4, -0.6)

    return canvas.drawn(
        "balance",
        "How even the workers were",
        "A dot is a worker; dots far apart in one row are a router that loads some and leaves others idle. Behind a "
        "run's name: the most work of a worker over the mean of all, 1 when all did the same.",
        3 * (0.8 + 0.3 * len(labels)),
        picture,
    )


def _relative(values: list[int]) -> list[float]:
    """Each value in per cent of their mean."""
    mean = float(np.mean(values))
    return [100 * value / mean if mean else 0.0 for value in values]
