"""The report of an audit: its sentences and tables, what each client got, waited for and lost over time, and the
requests that waited longest, so that a figure leads to a request, and a request to its life; and its requests as
parquet files.

Needs the `cli` extra (jinja2, matplotlib) or the `frame` extra (pyarrow), imported when they are written.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from fairsched.engines.analysis.series import cumulative, thinned
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


_WAITS_SHOWN = 5
_STARVED_SHOWN = 16
_BARS_MAX = 2_000
_LEAST_NS = 10**6
"""Shorter waits are drawn as one of a millisecond."""


def courses(audit: Audit) -> list[report.Part]:
    """Return the player and the plots, in the order in which they are read; none where no client was served."""
    if not audit.evidence.charged["position"].size or audit.evidence.last_ns <= audit.evidence.origin_ns:
        return []
    shown = _shown(audit)
    drawn = [_waits(audit, shown), _starved(audit)]
    return [_played(audit, shown), *(report.plot_part(plot) for plot in drawn if plot is not None)]


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
    return tuple(dict.fromkeys(each for each in found if each is not None))[: len(report.COLOURS)]


def _most(clients: Sequence[ClientFindings], of: Callable[[ClientFindings], float]) -> list[int]:
    """Return the clients in order of a figure, the largest first."""
    return sorted(range(len(clients)), key=lambda i: -of(clients[i]))


def _axis(audit: Audit) -> report.TimeAxis:
    """Return the time of the log."""
    clock = audit.evidence.clock
    return report.TimeAxis((clock.last_ns - clock.origin_ns) / 1e9, clock.date(clock.origin_ns) if clock.wall else None)


def _keys(audit: Audit, shown: Sequence[int]) -> list[report.Key]:
    return report.client_keys([audit.who(client) for client in shown], len(audit.clients) - len(shown))


def _played(audit: Audit, shown: tuple[int, ...]) -> report.Part:
    """Return the part that plays what each client waited for, got and gained, and how the largest gap grew."""
    evidence, gap, division = audit.evidence, audit.bounded_gap, audit.shares
    calls, charged, span = evidence.calls, evidence.charged, evidence.last_ns - evidence.origin_ns
    seconds, received = cumulative(
        np.maximum(charged["time_ns"] - evidence.origin_ns, 0), charged["client"], evidence.costs(), shown, span
    )
    at = (seconds * 1e9).round().astype(np.int64)
    waiting = []
    for client in shown:
        mine, left = calls.client == client, calls.left_ns
        ends = (calls.arrival_ns[mine], left[mine & (left != UNKNOWN)])
        came, gone = (np.searchsorted(np.sort(each - evidence.origin_ns), at, side="right") for each in ends)
        waiting.append(came - gone)
    lead = np.vstack((np.zeros((1, len(shown))), division.lead[:, list(shown)])).round().astype(np.int64)
    grown = None
    caption = (
        "A client whose requests wait while its service stays flat starves. The fair share is what a client would have "
        "by then, had all that was served been divided by weight among those who asked: who is ahead of it made others "
        "wait."
    )
    if gap.ahead is not None and gap.behind is not None:
        between = f"{audit.who(gap.ahead)} and {audit.who(gap.behind)}"
        caption += f" The gap is between {between} while both waited: a policy with a bound keeps it below (dotted)."
        times = gap.progress[:, 0] - evidence.origin_ns
        grown = np.concatenate(([0], gap.progress[:, 1]))[np.searchsorted(times, at, side="right")]
    if more := len(audit.clients) - len(shown):
        caption += f" The clients of the findings and those with the most service are drawn, {more:,} are not."
    measures = {
        "waiting requests": np.array(waiting).T,
        "service, cost units": received,
        "cost units ahead of the fair share": lead[np.minimum(at // division.window_ns, len(lead) - 1)],
    }
    said = [evidence.clock.at(evidence.origin_ns + ns) if evidence.clock.wall else "" for ns in at.tolist()]
    course = report.Samples("the log", seconds, measures, grown, evidence.bound, said)
    return report.played("What each client had over time", caption, [audit.who(each) for each in shown], [course])


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
            *courses(audit),
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
