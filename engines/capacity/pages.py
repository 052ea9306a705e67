"""What `fairsched plan` and `fairsched tune` show: sentences, tables, and plots of attainment against workers and of
throughput against waits.

A plot needs the `cli` extra (matplotlib), imported when a plot is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from fairsched.engines.analysis import Column, count, rate, report, share, time
from fairsched.engines.capacity.planning import CapacityPlan, slo_text
from fairsched.engines.capacity.point import TunedPoint
from fairsched.engines.capacity.sizing import Sizing
from fairsched.engines.capacity.tuning import Tuning
from fairsched.policies.gates import deficit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@attrs.frozen
class Sheet:
    """What is shown of a result: sentences, tables with their headings, what figures are about, and plots if any."""

    title: str
    lines: Sequence[str]
    tables: Sequence[tuple[str, Sequence[Column], Sequence[Sequence[str]]]]
    small: Sequence[str] = ()
    draw: Callable[[], list[report.Plot]] = list


def plan_sheet(found: CapacityPlan) -> Sheet:
    """Return what is shown of a plan."""
    workload, chosen, workers = found.workload, found.chosen.size, found.workers
    with_gpus = f" ({workers * chosen.gpus} GPUs)" if workers is not None and chosen.gpus > 1 else ""
    number = f"more than {found.workers_max} workers" if workers is None else f"{workers} workers{with_gpus}"
    sized = {name: each.workers for name, each in found.placements.items() if each.workers is not None}
    best = min(sized, key=sized.__getitem__, default=None)
    fewer = best is not None and (workers is None or sized[best] < workers)
    lines = [
        f"{workload.name}, {len(workload.jobs):,} requests: {number} of {chosen.name} keep {slo_text(found.slo)} "
        f"for {share(found.attainment)} of the requests, placed as Aladdin does.",
        *([f"Under {best} it takes {sized[best]}."] if best is not None and fewer else []),
        *workload.notes,
        *found.notes,
        f"Outputs are foreseen by {found.predictor.title}; workers run {found.policy} with {found.batching}.",
    ]
    return Sheet(
        "How many workers",
        lines,
        [
            ("Worker sizes", _SIZE_COLUMNS, _size_rows(found)),
            ("Placements", _ROUTER_COLUMNS, _placement_rows(found)),
        ],
        draw=lambda: [attainment_plot(found.placements, found.attainment)],
    )


_SIZE_COLUMNS = (
    Column("size", kind="name"),
    Column("GPUs"),
    Column("tokens/s\nper GPU"),
    Column("bounded\nby", 1, "word"),
    Column("prefill line\noff (mean, worst)", 2),
    Column("decode line\noff", 3),
)
_ROUTER_COLUMNS = (
    Column("placement", kind="name"),
    Column("workers"),
    Column("attains"),
    Column("TTFT\np99", 1),
    Column("TPOT\np99", 2),
    Column("J per\nrequest", 2),
    Column("with aladdin's\nnumber", 3),
)


def _size_rows(found: CapacityPlan) -> list[list[str]]:
    rows = []
    for option in found.options:
        figures, chosen = option.figures, option is found.chosen and len(found.options) > 1
        rows.append(
            [
                option.size.name + (" (chosen)" if chosen else ""),
                f"{option.size.gpus}",
                "none" if figures is None else f"{float(figures.tokens_per_s):,.0f}",
                "" if figures is None else ("memory" if figures.by_memory <= figures.by_target else "tpot"),
                f"{share(option.fit.prefill.mean)}, {share(abs(option.fit.prefill.worst))}",
                f"{share(option.fit.decode.mean)}, {share(abs(option.fit.decode.worst))}",
            ]
        )
    return rows


def _placement_rows(found: CapacityPlan) -> list[list[str]]:
    rows = []
    for name, sizing in found.placements.items():
        at = found.workers_max if sizing.workers is None else sizing.workers
        measures = sizing.tried[at]
        rows.append(
            [
                name,
                f"more than {at}" if sizing.workers is None else f"{at}",
                share(sizing.attainment(at)),
                time(measures.ttft_us.p99),
                time(measures.tpot_us.p99),
                rate(measures.joules_per_request),
                "" if found.workers is None else share(sizing.attainment(found.workers)),
            ]
        )
    return rows


def tuning_sheet(tuning: Tuning) -> Sheet:
    """Return what is shown of a choice of quantum and cap."""
    points = sorted(tuning.points, key=lambda point: (point.cap is not None, -(point.cap or 0), point.quantum))
    rows = [[text(tuning, point) for text in _COLUMNS.values()] for point in points]
    return Sheet(
        "Quantum and in-flight cap",
        _lines(tuning),
        [("Every configuration that was run", list(_COLUMNS), rows)],
        _scope(tuning),
        lambda: [pareto_plot(tuning)],
    )


def _name(point: TunedPoint) -> str:
    return f"quantum {point.quantum}, in_flight_cap_tokens {'none' if point.cap is None else point.cap}"


def _figures(tuning: Tuning, point: TunedPoint) -> str:
    lost = tuning.lost(point)
    return (
        f"measured p99 wait {time(point.wait_us.p99)} ({point.waits_longest}), {rate(point.throughput)} "
        "requests/s, " + (f"{share(lost)} below the best" if lost > 0.0005 else "as much as the best")
    )


def _proof(point: TunedPoint) -> str:
    if point.bound_cost is None:
        return "Nothing is proved about waits in this configuration."
    said = f"Proved ({point.bound_by}): a client is admitted before {point.bound_cost:,} cost units are charged"
    if point.bound_us is None:
        return f"{said}."
    by = "by the latency model" if point.bound_by != deficit.D_A2_TIME.id else f"at {point.rate:,.0f} cost units/s"
    return f"{said}, and within {time(point.bound_us)} {by}."


def _lines(tuning: Tuning) -> list[str]:
    target = time(tuning.max_wait_us)
    chosen = tuning.chosen
    head = f"{tuning.workload}, {tuning.requests:,} requests, {tuning.policy}: "
    if chosen is not None:
        keeps = f"{_name(chosen)} keeps waits within {target}: {_figures(tuning, chosen)}."
        said = [head + keeps, _proof(chosen)]
        if tuning.require == "measured" and tuning.proved is not None and tuning.proved != chosen:
            said.append(f"Proved within {target}, too: {_name(tuning.proved)}; {_figures(tuning, tuning.proved)}.")
        elif tuning.require == "measured" and tuning.proved is None:
            said += _nearest_proof(tuning, target)
        return said
    nearest = tuning.nearest
    what = "is proved to keep" if tuning.require == "proved" else "keeps"
    said = [head + f"nothing {what} a wait of {target}."]
    if tuning.require == "proved":
        said += _nearest_proof(tuning, target)
    return [*said, f"The shortest that was measured: {_name(nearest)}; {_figures(tuning, nearest)}."]


def _nearest_proof(tuning: Tuning, target: str) -> list[str]:
    nearest = tuning.nearest_proved
    if nearest is None or nearest.bound_us is None:
        return ["No wait is proved in any of these configurations."]
    return [
        f"No wait of {target} is proved in any; the shortest is {time(nearest.bound_us)} with {_name(nearest)}: a "
        "proof holds for all traffic, so it counts all clients as they could be at worst."
    ]


_COLUMNS: dict[Column, Callable[[Tuning, TunedPoint], str]] = {
    Column("quantum"): lambda tuning, point: f"{point.quantum:,}",
    Column("cap"): lambda tuning, point: "none" if point.cap is None else f"{point.cap:,}",
    Column("req/s", 1): lambda tuning, point: rate(point.throughput),
    Column("lost", 2): lambda tuning, point: share(tuning.lost(point)),
    Column("wait\np99"): lambda tuning, point: time(point.wait_us.p99),
    Column("TTFT\np99", 5): lambda tuning, point: time(point.measures.ttft_us.p99),
    Column("gap", 4): lambda tuning, point: count(point.gap),
    Column("proved wait\n(cost units)", 3): lambda tuning, point: count(point.bound_cost),
    Column("in time", 1): lambda tuning, point: time(point.bound_us),
    Column("", kind="word"): lambda tuning, point: ", ".join(_marks(tuning, point)),
}


def _marks(tuning: Tuning, point: TunedPoint) -> list[str]:
    marks = ["chosen"] if point == tuning.chosen else []
    if point.keeps(tuning.max_wait_us):
        marks.append("proved" if point.bound_us is not None and point.bound_us <= tuning.max_wait_us else "kept")
    return marks


def _scope(tuning: Tuning) -> list[str]:
    whose = (
        "Wait: of a client with requests waiting, until it is admitted (again); p99, of the client that fares worst."
        if tuning.wait_of == "clients"
        else "Wait: of each request from its arrival until it is admitted; p99 of all."
    )
    stated = (
        "The rate was stated (--rate)."
        if tuning.stated_rate is not None
        else "In time by the latency model (T-wait); where that proves nothing, at the rate that a worker charged on "
        "average while it had work. --rate states one."
    )
    rejected = tuning.points[0].measures.rejected
    return [
        f"{len(tuning.points)} configurations were simulated.",
        whose,
        "Proved wait: what may be charged to all before a waiting client is admitted, on any traffic "
        "(docs/reference/theorems.md).",
        stated,
        "kept: within --max-wait as measured; proved: by theorem, too.",
        *([f"Requests that no worker has memory for, and that were rejected: {rejected:,}."] if rejected else []),
        *tuning.notes,
    ]


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
    """Return the share of requests that kept their targets against workers, a line a policy."""

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
