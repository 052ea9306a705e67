"""The plots of a report, each a function from a comparison to a picture and the sentence that says what to look for."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairsched.engines.analysis.figures import Compared, number, shortened, who
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.phases import PHASES
from fairsched.engines.analysis.report import canvas
from fairsched.engines.analysis.report.player import important
from fairsched.engines.analysis.verdict import others_wait_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def balance(comparison: Compared) -> canvas.Plot | None:
    """Return how even the workers' shares were, a row a run; None where no run has several."""
    if all(len(run.workers) < 2 for run in comparison.runs):
        return None
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
        grid[0].set_yticks(range(len(labels)), [shortened(label, canvas.LABEL) for label in labels])
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
    """Return each value in per cent of their mean."""
    mean = float(np.mean(values))
    return [100 * value / mean if mean else 0.0 for value in values]


def response(comparison: Compared) -> canvas.Plot:
    """Mean TTFT of each client by time of arrival: one panel a run, the first of `important` in colour, others grey."""
    shown, names = important(comparison), comparison.runs[0].names
    pairs = comparison.named()[: canvas.PANELS_MAX]

    def picture(figure: "Figure") -> None:
        labels = [label for label, _ in pairs]
        panels = canvas.panels_of(figure, labels, "mean TTFT, seconds (log)", canvas.run_axis(comparison))
        for axes, (_, run) in zip(panels, pairs, strict=True):
            column = {client: i for i, client in enumerate(run.series.clients)}
            for i in reversed([i for i, client in enumerate(shown) if client in column]):
                style, means = canvas.line_style(i), run.series.response_us[:, column[shown[i]]] / 1e6
                markers: canvas.Style = {} if style["color"] == canvas.GREY else {"marker": ".", "markersize": 3}
                known = ~np.isnan(means)
                axes.plot(run.series.response_s[known], means[known], **style | markers)
        for axes in panels:
            # Only when everything is drawn: limits that are set no longer follow what comes.
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")

    caption = (
        "Mean time to the first token of the requests that arrived at each moment: a fair policy keeps the line of "
        "a client that asks for little low, whatever the others do."
    )
    if len(names) > len(canvas.COLOURS):
        caption += " In colour: the clients of the largest gaps, then those that ask for most."
    if len(comparison.runs) > len(pairs):
        caption += f" Of {len(comparison.runs)} runs the first {len(pairs)} are shown."
    return canvas.drawn(
        "response",
        "Response time of each client over time",
        caption,
        canvas.panel_height(len(pairs)),
        picture,
        canvas.client_keys([who(names[client]) for client in shown], len(names) - len(shown)),
    )


def ttft(comparison: Compared) -> canvas.Plot:
    """Distribution of the TTFT."""

    def picture(figure: "Figure") -> None:
        xlabel = "time to the first token, seconds (log)"
        canvas.distribution(
            figure, xlabel, ((run.series.ttft_us / 1e6, canvas.line_style(i)) for i, run in enumerate(comparison.runs))
        )

    return canvas.drawn(
        "ttft",
        "Distribution of the time to the first token",
        "Further left is faster; where two lines cross, one policy is better for most and worse for the slowest.",
        3.4,
        picture,
        _run_keys(comparison.labels()),
    )


def _run_keys(labels: Sequence[str]) -> list[canvas.Key]:
    return [canvas.Key(label, canvas.line_style(i)) for i, label in enumerate(labels)]


def phases(comparison: Compared) -> canvas.Plot | None:
    """Mean time of finished requests in each phase, a bar a run; None where no KV went from worker to worker."""
    if not any(run.measures.transfers for run in comparison.runs):
        return None
    labels = comparison.labels()

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        ends, rows = np.zeros(len(labels)), range(len(labels))
        for i, phase in enumerate(PHASES):
            means = [getattr(run.measures.phases_us, phase).mean or 0.0 for run in comparison.runs]
            seconds = np.array(means) / 1e6
            axes.barh(rows, seconds, left=ends, color=canvas.COLOURS[i], height=0.6)
            ends += seconds
        axes.set_yticks(rows, [shortened(label, canvas.LABEL) for label in labels])
        axes.set(xlabel="mean time of a request, seconds", xlim=(0, None), ylim=(len(labels) - 0.5, -0.5))

    return canvas.drawn(
        "phases",
        "Where requests spent their time",
        "Until the first token a request waits and is prefilled; its KV waits for room and goes to another worker; "
        "there it waits and is decoded. The widest part is the phase that wants more workers, or a faster link.",
        1.0 + 0.35 * len(labels),
        picture,
        [
            canvas.Key(phase.replace("_", " "), {"color": canvas.COLOURS[i], "bar": True})
            for i, phase in enumerate(PHASES)
        ],
    )


def kv(comparison: Compared) -> canvas.Plot | None:
    """KV memory over time, one panel a run; None where no run was sampled, or one has several workers."""
    if any(len(run.workers) > 1 for run in comparison.runs):
        return None
    runs = [(label, run) for label, run in comparison.named() if run.series.kv][: canvas.PANELS_MAX]
    if not runs:
        return None

    def picture(figure: "Figure") -> None:
        panels = canvas.panels_of(
            figure, [label for label, _ in runs], "% of a worker's KV memory", canvas.run_axis(comparison)
        )
        for axes, (_, run) in zip(panels, runs, strict=True):
            for rows in run.series.kv.values():
                seconds, used, cached, capacity = rows.T
                axes.plot(seconds, 100 * (used + cached) / capacity, color=canvas.COLOURS[0], linewidth=0.8, alpha=0.8)
                axes.plot(seconds, 100 * used / capacity, color=canvas.COLOURS[1], linewidth=0.8, alpha=0.8)
            axes.set_ylim(0, 100)

    return canvas.drawn(
        "kv",
        "KV memory in use",
        "Where running requests reach the top, memory is what requests wait for; the space "
        "between the lines is prefix cache that the order can use.",
        canvas.panel_height(len(runs)),
        picture,
        [
            canvas.Key("with the prefix cache", {"color": canvas.COLOURS[0]}),
            canvas.Key("running requests alone", {"color": canvas.COLOURS[1]}),
        ],
    )


def sweep(comparison: Compared) -> canvas.Plot | None:
    """Throughput, gap and bound against the one parameter that was swept; None where none was."""
    name = comparison.swept()
    if name is None:
        return None
    families: dict[str, list[tuple[float, Run]]] = {}
    for run in comparison.runs:
        value = number(run.params.get(name))
        if value is not None:
            rest = [f"{key}={text}" for key, text in run.params.items() if key != name]
            router = [run.router] if len({other.router for other in comparison.runs}) > 1 else []
            rate = [f"rate x{run.rate_scale:g}"] if len({other.rate_scale for other in comparison.runs}) > 1 else []
            families.setdefault(" ".join([run.policy, *router, *rest, *rate]), []).append((value, run))
    for rows in families.values():
        rows.sort(key=lambda row: row[0])
    ticks = sorted({value for rows in families.values() for value, _ in rows})

    def picture(figure: "Figure") -> None:
        left, right = canvas.pair_of(figure)
        for i, rows in enumerate(families.values()):
            values, style = [value for value, _ in rows], canvas.line_style(i)
            rates = [run.measures.throughput_rps or 0 for _, run in rows]
            left.plot(values, rates, marker="o", markersize=4, **style)
            right.plot(values, [run.gap.cost for _, run in rows], marker="o", markersize=4, **style)
            bounds = [(value, run.service_gap_bound) for value, run in rows if run.service_gap_bound is not None]
            if bounds:
                right.plot(*zip(*bounds, strict=True), **style | canvas.DOTTED)
        for axes, ylabel in ((left, "throughput, requests/s"), (right, "service gap, cost units (log)")):
            if ticks[0] > 0 and ticks[-1] >= 8 * ticks[0]:
                axes.set_xscale("log", base=2)
                axes.set_xticks(ticks, minor=False)
            axes.xaxis.set_major_formatter("{x:,.10g}")
            axes.set(xlabel=name, ylabel=ylabel)
        left.set_ylim(0, 1.08 * left.get_ylim()[1])
        right.set_yscale("log")
        right.yaxis.set_major_formatter(canvas.cost_tick)

    return canvas.drawn(
        "sweep",
        f"Throughput and gap against {name}",
        f"What a larger {name} does to throughput, and to the gap and the bound on it, dotted.",
        5.2,
        picture,
        _run_keys(list(families)),
    )


def pareto(comparison: Compared) -> canvas.Plot | None:
    """Throughput against the waits of the clients beside the one that asks for most, a point a run; None for fewer than
    two runs that have both."""
    rows = [
        (wait / 1e6, run.measures.throughput_rps, i)
        for i, run in enumerate(comparison.runs)
        if (wait := others_wait_us(run)) and run.measures.throughput_rps is not None
    ]
    if len(rows) < 2:
        return None
    labels = comparison.labels()
    policies = list(dict.fromkeys(run.policy for run in comparison.runs))

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        front = [row for row in rows if not any(o != row and o[0] <= row[0] and o[1] >= row[1] for o in rows)]
        front.sort()
        axes.plot([row[0] for row in front], [row[1] for row in front], color=canvas.GREY, linewidth=1, zorder=1)
        for wait, throughput, i in rows:
            style = canvas.line_style(policies.index(comparison.runs[i].policy))
            axes.scatter([wait], [throughput], color=style["color"], s=36, zorder=2)
        if max(row[0] for row in rows) > 5 * min(row[0] for row in rows):
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(0.12, 0.15)
        most = max(row[1] for row in rows)
        if most - min(row[1] for row in rows) < 0.1 * most:
            axes.set_ylim(0.9 * most, 1.02 * most)  # a difference of less looks like one
        canvas.point_labels(axes, [(row[0], row[1], labels[row[2]]) for row in rows])
        axes.set(xlabel="others' p99 TTFT, seconds", ylabel="throughput, requests/s")

    return canvas.drawn(
        "pareto",
        "Throughput against waits",
        "How long the clients beside the one that asks for most wait for a first token, and how many requests are "
        "answered: up and to the left is better on both; the line joins the runs that no other beats on both at once.",
        4.2,
        picture,
    )


def capacity(comparison: Compared) -> canvas.Plot | None:
    """p50 and p95 of the TTFT against the rate scale, a line a policy; None where there is one rate only."""
    scales = sorted({run.rate_scale for run in comparison.runs})
    if len(scales) < 2:
        return None
    families: dict[str, list[Run]] = {}
    for name, run in zip(comparison.families(), comparison.runs, strict=True):
        families.setdefault(name, []).append(run)

    def picture(figure: "Figure") -> None:
        panels = canvas.pair_of(figure, sharey=True)
        for axes, percentile in zip(panels, ("p50", "p95"), strict=True):
            for i, runs in enumerate(families.values()):
                points = [(run.rate_scale, getattr(run.measures.ttft_us, percentile)) for run in runs]
                points = sorted((scale, us / 1e6) for scale, us in points if us is not None)
                x, y = ([point[k] for point in points] for k in (0, 1))
                axes.plot(x, y, marker="o", markersize=4, **canvas.line_style(i))
            axes.set(yscale="log", xticks=scales, xlabel="rate scale", ylabel=f"{percentile} TTFT, seconds (log)")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
            axes.tick_params(labelleft=True)

    return canvas.drawn(
        "capacity",
        "Waiting against load",
        "Time to the first token of half of the requests (p50) and of all but one in twenty (p95) as requests come "
        "faster: a line that stays low further to the right bears more load before requests wait.",
        5.2,
        picture,
        _run_keys(list(families)),
    )


def is_served(comparison: Compared) -> bool:
    """Return whether any client was served."""
    return any(len(run.series.ttft_us) and run.series.service_s[-1] for run in comparison.runs)


def plots(comparison: Compared) -> list[canvas.Plot]:
    """Return all plots that the runs allow, in the order in which they are read; none if no client was served."""
    if not is_served(comparison):
        return []
    found = [plot(comparison) for plot in (pareto, response, ttft, phases, capacity, kv, balance, sweep)]
    return [plot for plot in found if plot is not None]
