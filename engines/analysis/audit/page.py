"""The report of an audit: its sentences and tables, what each client got, waited for and lost over time, and the
requests that waited longest, so that a figure leads to a request, and a request to its life; and its requests as
parquet files.

Needs the `cli` extra (jinja2, matplotlib) or the `frame` extra (pyarrow), imported when they are written.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis import report
from fairsched.engines.analysis.audit import text
from fairsched.engines.analysis.audit.evidence import Calls
from fairsched.engines.analysis.audit.findings import Audit, ClientFindings, waits_ns
from fairsched.engines.analysis.audit.text import basis, verdict
from fairsched.engines.analysis.explained import Explanation, explain
from fairsched.engines.analysis.figures import count, shortened, time
from fairsched.engines.analysis.outcomes import EventTables
from fairsched.engines.analysis.series import POINTS_MAX, cumulative, thinned
from fairsched.engines.logs import LogReader
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model.service import Ints, Table, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPLAINED = 3
"""So many requests of different clients are explained: each takes a replay of the log up to its end."""
EXPLAINED_BYTES_MAX = 1 << 24
"""Larger logs take minutes to replay."""


@attrs.frozen
class LongWait:
    """A request that waited long; times in nanoseconds.

    `number` is its id in an event log, and the number of its line in an access log, in that `file` of several.
    `wait_ns` lasts until it was served or, if it never was, until its end or that of the log; `is_over` says whether it
    was served, and `is_inferred` whether that time is.
    """

    client: int
    number: int
    file: int
    arrival_ns: int
    wait_ns: int
    latency_ns: int | None
    cost: int
    outcome: Ending | None
    is_over: bool
    is_inferred: bool


def longest_waits(audit: Audit, client: int, most: int) -> list[LongWait]:
    """Return the requests of a client that waited longest, at most so many, the longest first."""
    calls, last_ns = audit.evidence.calls, audit.evidence.last_ns
    rows = np.flatnonzero((calls.client == client) & ~calls.kept_out)
    left = calls.left_ns[rows]
    waits: Ints = np.where(left == UNKNOWN, last_ns, left) - calls.arrival_ns[rows]
    order = np.lexsort((calls.number[rows], calls.arrival_ns[rows], -waits))[:most]
    found = []
    for row, wait in zip(rows[order].tolist(), waits[order].tolist(), strict=True):
        arrival, end = int(calls.arrival_ns[row]), int(calls.end_ns[row])
        found.append(
            LongWait(
                client=client,
                number=int(calls.number[row]),
                file=int(calls.file[row]),
                arrival_ns=arrival,
                wait_ns=wait,
                latency_ns=None if end == UNKNOWN else end - arrival,
                cost=int(calls.cost[row]),
                outcome=None if end == UNKNOWN else Ending(int(calls.outcome[row])),
                is_over=bool(calls.served_ns[row] != UNKNOWN),
                is_inferred=bool(calls.wait_margin_ns[row]),
            )
        )
    return found


def explained(audit: Audit, waits: Sequence[LongWait]) -> dict[int, Explanation]:
    """Return the lives of requests that waited longest, one of a client, by id; none where a log cannot be replayed.

    An access log does not say why a request waited; nor does the log of a gateway, or of a policy that is not there.
    """
    path = audit.evidence.path
    if audit.evidence.kind != "run log" or path.stat().st_size > EXPLAINED_BYTES_MAX:
        return {}
    found = {}
    longest: dict[int, LongWait] = {}
    for wait in sorted(waits, key=lambda wait: -wait.wait_ns):
        longest.setdefault(wait.client, wait)
    for wait in list(longest.values())[:EXPLAINED]:
        try:
            found[wait.number] = explain(path, wait.number)
        except ValueError:
            break
    return found


_BINS = 240
_WAITS_SHOWN = 5
_ROWS_SHOWN = _STARVED_SHOWN = 16
_BARS_MAX = 2_000
_LEAST_NS = 10**6
"""Shorter waits are drawn as one of a millisecond."""


def plots(audit: Audit) -> list[report.Plot]:
    """Return the plots, in the order in which they are read; none where no client was served."""
    if not audit.evidence.charged["position"].size or audit.evidence.last_ns <= audit.evidence.origin_ns:
        return []
    shown = _shown(audit)
    found = [_service(audit, shown), _waiting(audit, shown), _gained(audit, shown), _gap(audit)]
    found += [_waits(audit, shown), _starved(audit)]
    return [plot for plot in found if plot is not None]


def _shown(audit: Audit) -> tuple[int, ...]:
    """Return the clients that are drawn, the most important first: where not all have a colour, those of the
    findings."""
    clients = audit.clients
    found: list[int | None] = []
    if len(clients) > len(report.COLOURS):
        gap = audit.bounded_gap
        found += [gap.ahead, gap.behind, *audit.gainers()[:2], *list(audit.starved)[:2], *audit.losers()[:2]]
        found += _most(clients, lambda client: client.wait_us.p99 or 0)[:2]
    found += _most(clients, lambda client: client.service)
    return tuple(dict.fromkeys(each for each in found if each is not None))[: text.CLIENTS_SHOWN]


def _most(clients: Sequence[ClientFindings], of: Callable[[ClientFindings], float]) -> list[int]:
    """Return the clients in order of a figure, the largest first."""
    return sorted(range(len(clients)), key=lambda i: -of(clients[i]))


def _axis(audit: Audit) -> report.TimeAxis:
    """Return the time of the log."""
    clock = audit.evidence.clock
    return report.TimeAxis((clock.last_ns - clock.origin_ns) / 1e9, clock.date(clock.origin_ns) if clock.wall else None)


def _keys(audit: Audit, shown: Sequence[int]) -> list[report.Key]:
    return report.client_keys([audit.who(client) for client in shown], len(audit.clients) - len(shown))


def _lines(
    audit: Audit,
    shown: Sequence[int],
    seconds: npt.NDArray[np.float64],
    values: npt.NDArray[Any],
    name: str,
    heading: str,
    caption: str,
    ylabel: str,
    zero: bool = True,
) -> report.Plot:
    """Return a line for each client over time; `values[k, i]` is what belongs to shown[i] at seconds[k]."""

    axis = _axis(audit)

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        for i in reversed(range(len(shown))):
            axes.plot(seconds, values[:, i], **report.line_style(i))
        axes.yaxis.set_major_formatter(report.cost_tick)
        if zero:
            axes.set_ylim(bottom=0)
        else:
            axes.axhline(0, color=report.GREY, linewidth=0.8)
        axes.set(xlim=(0, axis.span_s), xlabel=axis.label(), ylabel=ylabel)
        axis.put_on([axes])

    if len(audit.clients) > len(report.COLOURS):
        caption += " In colour: the clients of the findings above, then those with the most service."
    return report.drawn(name, heading, caption, 3.8, picture, _keys(audit, shown))


def _service(audit: Audit, shown: tuple[int, ...]) -> report.Plot:
    evidence = audit.evidence
    charged, span = evidence.charged, evidence.last_ns - evidence.origin_ns
    time_ns = np.maximum(charged["time_ns"] - evidence.origin_ns, 0)
    seconds, received = cumulative(time_ns, charged["client"], evidence.costs(), shown, span)
    return _lines(
        audit,
        shown,
        seconds,
        received,
        "service",
        "Service of each client over time",
        "Lines that stay together while all want more are fair; one that pulls away takes more than its share, and a "
        "flat one starves or asks for nothing: the next plot tells which.",
        "service, cost units",
    )


def _waiting(audit: Audit, shown: tuple[int, ...]) -> report.Plot:
    """Return a row for each client, as high as it has requests waiting: lines on one axis would hide each other."""
    evidence = audit.evidence
    calls, axis, span = evidence.calls, _axis(audit), evidence.last_ns - evidence.origin_ns
    edges = evidence.origin_ns + np.linspace(0, span, _BINS + 1)
    rows = shown[:_ROWS_SHOWN]
    over, courses = calls.left_ns, []
    for client in rows:
        mine = calls.client == client
        came = np.sort(calls.arrival_ns[mine])
        left = np.sort(over[mine & (over != UNKNOWN)])
        courses.append(np.searchsorted(came, edges, side="right") - np.searchsorted(left, edges, side="right"))
    most = max(1, *(int(course.max()) for course in courses))

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        seconds = (edges - evidence.origin_ns) / 1e9
        for place, course in enumerate(courses):
            style = report.line_style(place)
            foot = len(rows) - 1 - place
            axes.fill_between(seconds, foot, foot + 0.92 * course / most, step="post", color=style["color"], alpha=0.8)
        names = [shortened(audit.who(client), report.LABEL) for client in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, va="bottom")
        axes.set(xlim=(0, axis.span_s), ylim=(-0.05, len(rows)), xlabel=axis.label())
        axis.put_on([axes])

    hidden = len(audit.clients) - len(rows)
    return report.drawn(
        "waiting",
        "Requests that wait",
        f"The height of a row is how many requests of the client wait, up to {most:,} at a time. A client wants more "
        "than it gets as long as it has some; one with a high row and flat service starves."
        + (f" {hidden:,} clients are not drawn." if hidden > 0 else ""),
        0.9 + 0.42 * len(rows),
        picture,
    )


def _gained(audit: Audit, shown: tuple[int, ...]) -> report.Plot:
    division = audit.shares
    course = division.lead[:, list(shown)]
    count = len(course)
    kept = np.unique(np.linspace(0, count - 1, min(count, POINTS_MAX)).round().astype(np.int64))
    values = np.vstack((np.zeros((1, len(shown))), course[kept]))
    span_s = (audit.evidence.last_ns - audit.evidence.origin_ns) / 1e9
    seconds = np.minimum(np.concatenate(([0.0], (kept + 1) * (division.window_ns / 1e9))), span_s)
    return _lines(
        audit,
        shown,
        seconds,
        values,
        "gained",
        "Service beyond the fair share",
        "How far each client is ahead of (or behind) what it would have by then if all that was served had been "
        "divided by weight among those who asked. Who is ahead made others wait; when all is served, all are even.",
        "cost units ahead of the fair share",
        zero=False,
    )


def _gap(audit: Audit) -> report.Plot | None:
    gap, bound = audit.bounded_gap, audit.evidence.bound
    if gap.ahead is None:
        return None
    axis, stop = _axis(audit), (audit.evidence.last_ns - audit.evidence.origin_ns) / 1e9
    progress = thinned(gap.progress)

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        seconds = (progress[:, 0] - audit.evidence.origin_ns) / 1e9
        axes.step([0, *seconds, stop], [0, *progress[:, 1], gap.cost], where="post", color=report.COLOURS[0])
        if bound is not None:
            axes.axhline(bound, **{"color": report.COLOURS[1]} | report.DOTTED)
        axes.set(ylim=(0, 1.08 * max(gap.cost, bound or 0, 1)), xlim=(0, stop))
        axes.yaxis.set_major_formatter(report.cost_tick)
        axes.set(xlabel=axis.label(), ylabel="largest gap so far, cost units")
        axis.put_on([axes])

    assert gap.behind is not None
    keys = [report.Key(f"gap: {count(gap.cost)}", {"color": report.COLOURS[0]})]
    if bound is not None:
        keys.append(report.Key(f"bound: {count(bound)}", {"color": report.COLOURS[1]} | report.DOTTED))
    return report.drawn(
        "gap",
        "The largest service gap" + (" against its bound" if bound is not None else ""),
        f"How the gap between {audit.who(gap.ahead)} and {audit.who(gap.behind)} grew while both waited. A policy with "
        "a bound keeps it below (dotted); without one it may grow as long as both want more than they get.",
        3.2,
        picture,
        keys,
    )


def _waits(audit: Audit, shown: tuple[int, ...]) -> report.Plot:
    calls = audit.evidence.calls

    def sample(client: int) -> npt.NDArray[np.float64]:
        waits: Ints = np.sort(waits_ns(audit.evidence, np.flatnonzero(calls.client == client)))
        return np.maximum(thinned(waits), _LEAST_NS) / 1e9

    def picture(figure: "Figure") -> None:
        order = reversed(range(len(shown)))
        report.distribution(figure, "wait, seconds (log)", ((sample(shown[i]), report.line_style(i)) for i in order))

    return report.drawn(
        "waits",
        "How long requests waited",
        "Further left is faster. Clients that ask for little should not wait as long as one that floods.",
        3.6,
        picture,
        _keys(audit, shown),
    )


def _starved(audit: Audit) -> report.Plot | None:
    """Draw when each client starved; None where no client did."""
    starving = list(audit.starved.items())[:_STARVED_SHOWN]
    if not starving:
        return None
    origin, axis = audit.evidence.origin_ns, _axis(audit)

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        for row, (_, several) in enumerate(reversed(starving)):
            longest = sorted(several, key=lambda stretch: -stretch.length_ns)[:_BARS_MAX]
            bars = [((stretch.start_ns - origin) / 1e9, stretch.length_ns / 1e9) for stretch in longest]
            axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=report.COLOURS[1])
        names = [shortened(audit.who(client), report.LABEL) for client, _ in reversed(starving)]
        axes.set_yticks(range(len(starving)), names)
        axes.set_ylim(-0.6, len(starving) - 0.4)
        axes.set(xlim=(0, axis.span_s), xlabel=axis.label())
        axis.put_on([axes])

    return report.drawn(
        "starved",
        "When clients starved",
        f"Each bar is a time of at least {audit.starved_after_ns / 1e9:g} s in which the client waited and got "
        "nothing, while others were served.",
        1.2 + 0.34 * len(starving),
        picture,
    )


def write_audit(directory: Path, audit: Audit, command: str) -> Path:
    """Write the report and return its path.  Raises `OSError`."""
    return page_of(audit, command).write(directory)


def page_of(audit: Audit, command: str) -> report.Page:
    """Return the report."""
    columns, rows, more = text.client_table(audit)
    order = sorted(range(len(audit.clients)), key=lambda i: (-audit.clients[i].service, audit.clients[i].name))
    listed = order[: len(rows)]
    waits = {client: longest_waits(audit, client, _WAITS_SHOWN) for client in listed}
    clients: list[list[str | report.Cell]] = [
        [report.Cell(row[0], href=f"#client-{client}" if waits[client] else ""), *row[1:]]
        for client, row in zip(listed, rows, strict=True)
    ]
    found = text.sections(audit)
    return report.Page(
        title="Audit of a log",
        subtitle=text.title(audit),
        verdict=[
            verdict(audit),
            *audit.evidence.opening,
            *basis(audit),
            *(f"{lines[0]}." for _, lines in found[:1] + found[2:]),
        ],
        tone="bad" if audit.starved or audit.within_bound is False else "",
        parts=[
            *map(report.plot_part, plots(audit)),
            *(report.Part(heading, [report.Sentences([f"{line}." for line in lines])]) for heading, lines in found),
            report.Part("Clients", [report.Table(columns, clients, more), report.Sentences(text.LEGEND, True)]),
            *(
                report.Part(heading, [report.Table(of_group, lines)])
                for heading, of_group, lines in text.group_tables(audit)
            ),
            *_wait_parts(audit, waits),
        ],
        command=command,
        small=text.scope(audit),
    )


def _wait_parts(audit: Audit, waits: Mapping[int, Sequence[LongWait]]) -> list[report.Part]:
    """Return the longest waits of each client, and the lives of the longest of all where the log tells them."""
    lives = explained(audit, [wait for several in waits.values() for wait in several])
    is_event_log = audit.evidence.kind == "run log"
    folded: list[report.Block] = []
    for client, several in sorted(waits.items(), key=lambda row: -max((wait.wait_ns for wait in row[1]), default=0)):
        if several:
            blocks: list[report.Block] = [_waits_table(audit, several, lives)]
            if is_event_log:
                line = ["fairsched", "audit", str(audit.evidence.path), "--explain", str(several[0].number)]
                blocks.append(report.Code(shlex.join(line)))
            heading = f"{audit.who(client)}: {time(several[0].wait_ns / 1e3)}"
            folded.append(report.Folded(heading, blocks, is_open=not folded, id=f"client-{client}"))
    if not folded:
        return []
    about = (
        "The command under a table says what kept its first request waiting."
        if is_event_log
        else "What kept a request waiting `fairsched audit --explain` says, of its gateway's log."
        if audit.evidence.kind == "run logs"
        else "Why a request waited an access log does not say: an event log of a gateway or engine does."
    )
    parts = [report.Part("Longest waits", [f"The requests of each client that waited longest. {about}", *folded])]
    if lives:
        told: list[report.Block] = []
        for number, life in lives.items():
            heading = f"Request {number} of {audit.who(life.job.request.client)}"
            told.append(report.Folded(heading, [report.Code(life.text())], is_open=True, id=f"request-{number}"))
        parts.append(report.Part("Lives of the requests that waited longest", told))
    return parts


def _waits_table(audit: Audit, waits: Sequence[LongWait], lives: Mapping[int, Explanation]) -> report.Table:
    clock, files = audit.evidence.clock, audit.evidence.files
    rows = []
    for wait in waits:
        href = f"#request-{wait.number}" if wait.number in lives else ""
        how = "" if wait.is_over else "never served"
        rows.append(
            [
                report.Cell(f"{wait.number}", files[wait.file].name if len(files) > 1 else "", href=href),
                report.Cell(clock.at(wait.arrival_ns)),
                report.Cell(time(wait.wait_ns / 1e3), "inferred" if wait.is_inferred else how),
                report.Cell("not over" if wait.latency_ns is None else time(wait.latency_ns / 1e3)),
                report.Cell(count(wait.cost)),
                report.Cell("" if wait.outcome is None else wait.outcome.name.lower()),
            ]
        )
    first = "row of the log" if audit.evidence.kind == "access log" else "request"
    return report.Table([first, "came", "waited", "latency", "cost units", "outcome"], rows)


# --- tables for other programs ----------------------------------------------------------------------------------------

_OUTCOMES = ("unfinished", *(outcome.name.lower() for outcome in Ending))


def write_audit_frames(target: Path, audits: Sequence[Audit]) -> None:
    """Write the requests into `target` if it ends in `.parquet`, else requests and events into that folder.

    Of several audits of a log each is a run of its own, by its models.  Only an event log has events, and is read once
    more for them.  Raises `OSError` and `ModuleNotFoundError`.
    """
    with report.FrameWriter(target) as writer:
        for audit in audits:
            evidence = audit.evidence
            wanted = evidence.kind == "run log" and writer.has_events
            events = _events(evidence.path) if wanted else None
            names = [client.name for client in evidence.clients]
            writer.add(evidence.model or evidence.path.name, _requests(evidence.calls), events, names, _OUTCOMES)


def _requests(calls: Calls) -> Table:
    over = calls.end_ns != UNKNOWN
    return {
        "request": np.arange(len(calls.client)),
        "client": calls.client,
        "arrival_ns": calls.arrival_ns,
        "admitted_ns": calls.served_ns,
        "first_token_ns": calls.first_ns,
        "end_ns": calls.end_ns,
        "outcome": np.where(over | (calls.outcome != Ending.FINISHED), calls.outcome + 1, 0),
        "cost": calls.cost,
    }


def _events(path: Path) -> Tables:
    events = EventTables()
    events.add(event for _, event in LogReader(path))
    return events.whole()
