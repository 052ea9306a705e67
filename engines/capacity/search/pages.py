"""What a search shows, on a terminal of any width and on a page: sentences, a table, the picture of the frontier."""

from typing import TYPE_CHECKING

from fairsched.engines.analysis import Column, rate, share
from fairsched.engines.analysis.report import COLOURS, GREY, Key, Plot, drawn, point_labels
from fairsched.engines.capacity import Sheet
from fairsched.engines.capacity.search.replanning import Replan
from fairsched.engines.capacity.search.run import Rated, Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {"gpu": "GPU", "cost": "A100 of cost", "dollar": "dollar an hour", "joule": "kJ"}
_COLUMNS = (
    Column("fleet", kind="word"),
    Column("req/s"),
    Column("per unit", 1),
    Column("GPUs", 2),
    Column("for prompts", 5),
    Column("policy", 3, "word"),
    Column("router", 4, "word"),
    Column("", 6, "word"),
)


def search_sheet(search: Search) -> Sheet:
    """Return what is shown of a search."""
    return Sheet(
        "Search for a fleet",
        _lines(search),
        [("Everything that was tried", _COLUMNS, _rows(search))],
        _small(search),
        lambda: [frontier_plot(search)],
    )


def replan_sheet(found: Replan) -> Sheet:
    """Return what is shown of a trace that was followed."""
    return Sheet(
        "When the fleet changes",
        _replan_lines(found),
        [("Steps", _STEP_COLUMNS, _step_rows(found))],
        _REPLAN_SMALL,
    )


def _rows(search: Search) -> list[tuple[str, ...]]:
    front = {found.candidate.text for found in search.frontier}
    made: list[tuple[str, ...]] = []
    for found in search.found:
        candidate = found.candidate
        params = ", ".join(value for _, value in candidate.params)
        marks = ["frontier"] if candidate.text in front else []
        marks += [] if found.goodput.is_monotone else ["not monotone"]
        marks += ["rate open above"] if found.goodput.open_above else []
        made.append(
            (
                candidate.fleet.text,
                rate(found.rate) if found.rate else "none",
                f"{found.value(search.objective):.3g}" if found.rate else "-",
                f"{candidate.fleet.gpus}",
                share(candidate.fleet.prefill_share) if candidate.fleet.is_split else "shared",
                f"{candidate.policy}, {params}",
                candidate.router,
                ", ".join(marks),
            )
        )
    return made


def _lines(search: Search) -> list[str]:
    question = search.question
    asked = "; ".join(target.text for target in question.targets)
    head = f"{question.workload.name}, {len(question.workload.jobs):,} requests, {asked}: "
    best = search.best
    if best is None:
        nearest = search.nearest
        return [
            head + f"no fleet of {len(search.found)} keeps the targets at any rate; the nearest, "
            f"{nearest.candidate.text}, exceeds one {nearest.least_excess:.3g} times."
        ]
    fleet, unit = best.candidate.fleet, UNITS[search.objective]
    shared = f", {share(fleet.prefill_share)} of the GPUs for prompts" if fleet.is_split else ""
    said = [
        head + f"{best.candidate.text} keeps them up to {rate(best.rate)} requests a second: "
        f"{best.value(search.objective):.3g} for each {unit}{shared}.",
    ]
    others = [found for found in search.found if found.rate and found.candidate.fleet.is_split != fleet.is_split]
    if others:
        other, what = others[0], "split" if others[0].candidate.fleet.is_split else "shared"
        ratio = search.found[0].value(search.objective) / other.value(search.objective)
        said.append(f"The best {what} fleet, {other.candidate.text}, keeps {rate(other.rate)}: {ratio:.2f} times less.")
    strange = [found for found in search.found if not found.goodput.is_monotone]
    if strange:
        (low, high), *_ = strange[0].goodput.surprises
        said.append(
            f"Attainment is not monotone for {len(strange)} candidates: {strange[0].candidate.text} misses at "
            f"{rate(low)} and keeps at {rate(high)}. Rates are those below the first miss that was seen."
        )
    return said


def _small(search: Search) -> list[str]:
    return [
        f"{search.simulations:,} simulations of {len(search.found)} candidates; {search.wall_s:.1f} s, "
        f"{search.simulations_per_s:.1f} simulations a second"
        + (f"; {search.resumed} candidates were in the journal." if search.resumed else "."),
        "req/s: the highest rate that keeps all targets, on the same requests at every rate. per unit: for each "
        f"{UNITS[search.objective]}. for prompts: the share of GPUs that only prefill. frontier: none has a higher "
        "rate for less.",
        *search.question.workload.notes,
    ]


def frontier_plot(search: Search) -> Plot:
    """Goodput against what the fleets take, with the frontier."""

    def point(found: Rated) -> tuple[float, float]:
        return found.amount(search.objective), found.rate

    every = (
        (False, "both phases on each worker", COLOURS[0]),
        (True, "phases on workers of their own", COLOURS[1]),
    )
    there = {found.candidate.fleet.is_split for found in search.found}
    kinds = [kind for kind in every if kind[0] in there]

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        front = [point(found) for found in search.frontier]
        axes.plot([x for x, _ in front], [y for _, y in front], color=GREY, linewidth=1, zorder=1)
        for split, _, colour in kinds:
            points = [point(found) for found in search.found if found.candidate.fleet.is_split == split]
            axes.scatter([x for x, _ in points], [y for _, y in points], color=colour, s=30, zorder=2)
        axes.margins(0.1, 0.15)
        amounts = {point(found)[0] for found in search.found}
        if len(amounts) == 1:
            axes.set_xlim(0, 2 * amounts.pop())
        if search.objective == "gpu":
            axes.locator_params(axis="x", integer=True)
        point_labels(axes, [(*point(found), _label(found)) for found in search.frontier])
        axes.set(
            xlabel="kW" if search.objective == "joule" else f"{UNITS[search.objective]}s", ylabel="goodput, requests/s"
        )

    return drawn(
        "search",
        "Goodput against what a fleet takes",
        "Each point is a fleet with what runs on it: the highest rate that keeps all targets. The grey line joins "
        "those than which none has a higher rate for less; the table names the workers.",
        4.2,
        picture,
        [Key(text, {"color": colour, "linestyle": "none"}) for _, text, colour in kinds],
    )


def _label(found: Rated) -> str:
    """Return workers by phase, in the order of the pools: 3 prefill + 1 decode."""
    return " + ".join(f"{pool.workers} {pool.role}" for pool in found.candidate.fleet.pools)


# --- replanning -------------------------------------------------------------------------------------------------------

_STEP_COLUMNS = (
    Column("from"),
    Column("drift", kind="word"),
    Column("fleet", kind="word"),
    Column("loads", 1),
    Column("delayed", 1),
    Column("kept before", 2),
    Column("req/s", 3),
    Column("prompt", 4),
    Column("output", 4),
)


def _step_rows(found: Replan) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []
    for step in found.steps:
        drift = ", ".join(step.changed) or "first"
        fleet = "none keeps the targets" if step.candidate is None else step.candidate.fleet.text
        made.append(
            (
                f"{step.at_s:,.0f} s",
                drift,
                fleet if step.changes or step.candidate is None else "stays",
                f"{step.load_s:.3g} s",
                f"{step.delayed} of {step.arrivals}",
                "-" if step.attained is None else share(step.attained),
                rate(step.means.rate),
                f"{step.means.prompt:,.0f}",
                f"{step.means.output:,.0f}",
            )
        )
    return made


def _replan_lines(found: Replan) -> list[str]:
    changes = found.changes
    delayed = sum(step.delayed for step in found.changes)
    loading = sum(step.load_s for step in found.changes)
    return [
        f"{found.workload}, windows of {found.window_s:g} s: a mean drifted by more than {found.change_percent} % "
        f"{len(found.steps) - 1} times, and the fleet should change {len(changes)} times.",
        f"The changes take {loading:.3g} s of loading weights in all; {delayed} requests that arrive meanwhile miss a "
        "target.",
    ]


_REPLAN_SMALL = (
    "A step is planned on the window that has just ended, and begins at its end. loads: new workers load their "
    "weights, at the same time; a change of roles loads nothing. delayed: requests that arrive meanwhile and miss a "
    "target under the fleet of before. kept before: the share of the window's requests that kept all targets under "
    "that fleet.",
)
