"""Courses to play: samples of runs, of a counterexample or of a gateway that was tried, as one part of a page.

`Samples` are the form that all of them have; `played` makes the part.  A reader without scripts has a table.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from fairsched.engines.analysis.figures import Compared, who
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.report import canvas, page
from fairsched.engines.analysis.series import Floats
from fairsched.engines.analysis.worker_figures import WORKERS_NAMED
from fairsched.model.service import Ints

MOMENTS = 5
"""Rows of the table, of each course."""


@attrs.frozen(eq=False)
class Samples:
    """What was so at each moment of one course.

    `clients[name][k, i]` is of client i at `at[k]`; `gap[k]` the largest gap so far, which `bound` bounds; `said[k]`
    what happened then.
    """

    label: str
    at: Floats
    clients: Mapping[str, Ints]
    gap: Ints | None = None
    bound: int | None = None
    said: Sequence[str] = ()


def played(
    title: str,
    caption: str,
    names: Sequence[str],
    courses: Sequence[Samples],
    *,
    unit: str = "s",
    gap: str = "largest gap so far, cost units",
    shown: Sequence[int] = (0,),
) -> page.Part:
    """Return a part that plays courses, which measure the same of the same clients; those of `shown` at first."""
    drawn = names[: len(canvas.COLOURS)]
    if len(names) > len(drawn):
        caption += f" Of {len(names):,} clients {len(drawn)} are shown."
    data = {
        "unit": unit,
        "shown": list(shown),
        "runs": [_course(each, gap, len(drawn)) for each in courses],
    }
    heads: list[str | page.Heading] = ["course", page.Heading("at", unit)]
    heads += [page.Heading(name, measure) for measure in courses[0].clients for name in drawn]
    heads += [] if courses[0].gap is None else [page.Heading("gap"), page.Heading("bound")]
    rows = [row for each in courses for row in _rows(each, len(drawn))]
    table = page.Folded("The same as a table", [page.Table(heads, rows)])
    return page.Part(title, [page.Player(data, canvas.client_keys(drawn), caption), table])


def _course(given: Samples, gap: str, clients: int) -> dict[str, object]:
    """Return a course as plain values; each line begins with its first value and goes on with differences."""
    panels: list[dict[str, object]] = [
        {"name": name, "lines": np.diff(values[:, :clients].T, prepend=0).tolist()}
        for name, values in given.clients.items()
    ]
    if given.gap is not None:
        line = np.diff(given.gap, prepend=0).tolist()
        panels.append({"name": gap, "lines": [line], "whole": True, "bound": given.bound})
    at = given.at.round(3).tolist()
    said = [canvas.shown_text(each) for each in given.said]
    return {"label": canvas.shown_text(given.label), "at": at, "panels": panels, "said": said}


def _rows(given: Samples, clients: int) -> list[list[str]]:
    rows = []
    for k in np.unique(np.linspace(0, len(given.at) - 1, MOMENTS).astype(int)).tolist():
        row = [given.label, f"{given.at[k]:,.6g}"]
        row += [f"{value:,}" for values in given.clients.values() for value in values[k, :clients].tolist()]
        if given.gap is not None:
            row += [f"{int(given.gap[k]):,}", "none" if given.bound is None else f"{given.bound:,}"]
        rows.append(row)
    return rows


def important(comparison: Compared) -> list[int]:
    """Return the clients that are drawn: where not all have a colour, those of the largest gaps come first."""
    found: dict[int, None] = {}
    if max(len(run.names) for run in comparison.runs) > len(canvas.COLOURS):
        pairs = [(run.bounded_gap.behind, run.bounded_gap.ahead) for run in comparison.runs]
        found = {client: None for pair in pairs for client in pair if client is not None}
    return list(found | {client: None for run in comparison.runs for client in run.series.clients})


def samples_of(run: Run, label: str, clients: Sequence[int]) -> Samples:
    """Return the samples of a run, of these clients of its."""
    series = run.series
    column = [series.clients.index(client) for client in clients]
    grown = np.concatenate(([0], series.gap))[np.searchsorted(series.gap_s, series.service_s, side="right")]
    measures = {"waiting requests": series.queue[:, column], "service, tokens": series.service[:, column]}
    return Samples(label, series.service_s, measures, grown, run.service_gap_bound)


def worker_samples(run: Run, label: str, width: int) -> Samples:
    """Return the samples of a run's workers, of which there are so many; of more than have a colour, the one with the
    most and the one with the least work."""
    series = run.worker_series
    most, least = series.work[-1].argmax(), series.work[-1].argmin()
    column = [most, least] if width > WORKERS_NAMED else range(len(series.workers))
    held = np.zeros((len(series.seconds), len(column)), dtype=np.int64)
    for i, place in enumerate(column):
        seconds, used, _, capacity = np.vstack(
            ([0, 0, 0, 1], run.series.kv.get(series.workers[place], np.ones((0, 4))))
        ).T
        at = np.searchsorted(seconds, series.seconds, side="right") - 1
        held[:, i] = (100 * used[at] / capacity[at]).round()
    measures = {
        "waiting requests": series.waiting[:, column],
        "requests sent so far": series.sent[:, column],
        "work so far, tokens": series.work[:, column],
        "KV memory of running requests, %": held,
    }
    missing = 0 if width > WORKERS_NAMED else width - len(column)
    return Samples(
        label, series.seconds, {name: np.pad(each, ((0, 0), (0, missing))) for name, each in measures.items()}
    )


def played_runs(comparison: Compared) -> list[page.Part]:
    """Return the parts that play the clients and, where there are several, the workers of runs: LPM beside DLPM if both
    are there, or else the first beside the last."""
    pairs = comparison.named()[: canvas.PANELS_MAX]
    clients = [client for client in important(comparison) if all(client in run.series.clients for _, run in pairs)]
    policies = [run.policy for _, run in pairs]
    shown = dict.fromkeys(
        policies.index(name) if name in policies else other for name, other in (("lpm", 0), ("dlpm", len(pairs) - 1))
    )
    if len(shown) == 1:
        shown = dict.fromkeys((0, len(pairs) - 1))
    parts = [
        played(
            "What each client had over time",
            "Requests of each client that wait, its service (prompt plus twice the output tokens, as it sees them), "
            "and for the worst pair of each run the largest difference of charged service so far while both waited at "
            "one worker: a policy with a bound (dotted) stays below it, one without may climb as long as the load "
            "lasts. Policies charge differently; the common gap in the table is comparable.",
            [who(comparison.runs[0].names[client]) for client in clients],
            [samples_of(run, label, clients) for label, run in pairs],
            shown=list(shown),
        )
    ]
    width = max(len(run.workers) for _, run in pairs)
    if width > 1:
        parts.append(
            played(
                "What each worker did over time",
                "Queues: one far above the others is a hot spot that the router made. Requests sent: how the router "
                "spread them, whatever they cost. Work, prompt tokens computed plus twice the output tokens: lines "
                "that spread are an uneven cluster. KV memory: what is left to the prefix cache is above the line; "
                "where it stays at the top, memory is what that worker's requests wait for.",
                ["most work", "least work"] if width > WORKERS_NAMED else [f"worker {i}" for i in range(width)],
                [worker_samples(run, label, width) for label, run in pairs],
                shown=list(shown),
            )
        )
    return parts
