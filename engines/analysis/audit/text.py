"""An audit in words: the sentence that is read first, what its waits rest on, the sentences that terminal and report
share, and the tables that both show."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fairsched.engines.analysis import figures, table
from fairsched.engines.analysis.audit.findings import SECOND_NS, Audit, AuditFigures, ClientFindings
from fairsched.engines.analysis.audit.inference import Inference
from fairsched.engines.analysis.figures import count, digits, safe_text, share, time
from fairsched.model.service import overlap

if TYPE_CHECKING:
    from rich.console import Console

FAILED_MIN = 0.01
"""Failures below this share of all requests are not told first."""


def verdict(audit: Audit) -> str:
    """Return the sentence that is read first: which clients starved, the p99 wait, failures, and a broken bound."""
    said = [_starved(audit), _wait(audit.total), *_failed(audit.total)]
    if audit.within_bound is False:
        bound = count(audit.evidence.bound)
        over = f"the service gap of {count(audit.bounded_gap.cost)} BREAKS its bound of {bound}"
        if audit.evidence.excuses:
            over += f", which rests on {', '.join(audit.evidence.excuses)}"
        elif audit.unexplained:
            over += ", and no assumption is broken: an error in fairsched"
        said.append(over)
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _starved(audit: Audit) -> str:
    after = digits(audit.starved_after_ns / SECOND_NS)
    if not audit.starved:
        if audit.may_starve:
            return f"no client is seen to starve for {after} s"
        return f"no client starved for {after} s"
    worst = next(iter(audit.starved))
    longest = f"{at_least(audit, worst)}{time(audit.clients[worst].starved_us_max)}"
    of = f"{len(audit.starved):,} of {len(audit.clients):,} clients starved"
    return f"{of}, {audit.who(worst)} {'longest, ' * (len(audit.starved) > 1)}for {longest}"


def _wait(total: AuditFigures) -> str:
    if total.wait_us.p99 is None:
        return "nothing tells how long requests waited" if total.kept_out else "no request was served"
    said = f"p99 wait {time(total.wait_us.p99)}"
    if total.wait_range_us is None:
        return said
    low, high = (time(each.p99) for each in (total.wait_range_us.low, total.wait_range_us.high))
    return said if low == high else f"{said}, between {low} and {high}"


def _failed(total: AuditFigures) -> list[str]:
    """Return how many requests failed in which way, where that is not seldom."""
    ways = {"ended in an error": total.errors, "were rejected": total.rejected, "were cancelled": total.cancelled}
    found = [
        f"{share(many / total.requests)} {way}" for way, many in ways.items() if many >= FAILED_MIN * total.requests > 0
    ]
    return [f"of all requests {', '.join(found)}"] if found else []


def basis(audit: Audit) -> list[str]:
    """Return what waits rest on, where the log has not all first tokens: a sentence for each model."""
    return [_inferred(said, len(audit.evidence.models) > 1) for said in audit.evidence.inferences]


def _inferred(said: Inference, several: bool) -> str:
    of = f" of {safe_text(said.model)}" if several and said.model is not None else ""
    calls = f"{said.calls:,} calls{of} have no time of a first token"
    if not said.done:
        return f"{calls}, and it cannot be inferred: {said.reason}. They are kept out of all waits."
    held = (
        f"the error on these, each held out, is {time(said.error_p50_us)} (p50) and {time(said.error_p95_us)} (p95), "
        f"and their p99 wait comes out as {time(said.wait_p99_inferred_us)} where it is {time(said.wait_p99_us)}"
    )
    return f"{calls}: it is inferred from {said.streaming:,} calls that stream; {held}."


def at_least(audit: Audit, client: int) -> str:
    """Return the words before a time that a client starved, which is the least that it can be where waits are
    inferred."""
    return "at least " if audit.clients[client].inferred else ""


SHOWN = 8
CLIENTS_SHOWN = 32
GROUP_COLUMNS: dict[str, Callable[[AuditFigures], str]] = {
    "requests": lambda group: f"{group.requests:,}",
    "errors": lambda group: f"{group.errors:,}" if group.errors else "",
    "rejected": lambda group: f"{group.rejected:,}" if group.rejected else "",
    "cancelled": lambda group: f"{group.cancelled:,}" if group.cancelled else "",
    "retries": lambda group: f"{group.retries:,}" if group.retries else "",
    "wait\np50": lambda group: time(group.wait_us.p50),
    "wait\np99": lambda group: time(group.wait_us.p99),
    "longest\nwait": lambda group: time(group.wait_us_max),
    "latency\np99": lambda group: time(group.latency_us.p99),
}
COLUMNS: dict[str, Callable[[ClientFindings], str]] = {
    "client": lambda client: figures.who(client.name),
    "weight": lambda client: f"{client.weight}",
    **GROUP_COLUMNS,
    "service": lambda client: count(client.service),
    "share": lambda client: share(client.service_share),
    "ahead of\nfair share": lambda client: count(round(client.ahead)),
    "behind\nit": lambda client: count(round(client.behind)),
    "starved": lambda client: (
        f"{client.starved:,} x, {time(client.starved_us_max)}" if client.starved else figures.NOTHING
    ),
}
SELDOM = ("errors", "rejected", "cancelled", "retries")
"""Columns that are left out where no row has anything there."""
SPARE = {
    "client": 0,
    "requests": 2,
    "wait\np99": 0,
    "longest\nwait": 3,
    "service": 1,
    "share": 1,
    "errors": 1,
    "starved": 0,
}
"""How early a narrow terminal goes without a column: the largest first (`Column.spare`)."""
SPARE_OTHERS = 5
LEGEND = (
    "Service: 1 cost unit a computed prompt token, 2 an output token, unless the run's own gate charged otherwise.",
    "Service gap: the largest difference of service, by weight, between two clients while both waited.",
    "Fair share: what each client would have by then, had all that was served been divided by weight among those who "
    "asked; ahead and behind: how far its service was from that at worst.",
    "Starved: how often the client waited so long without any service while others got some; the longest time.",
)


def title(audit: Audit) -> str:
    """Return what was audited, in a line."""
    evidence = audit.evidence
    span, when = (evidence.last_ns - evidence.origin_ns) / 1e3, evidence.clock.span()
    return (
        f"{safe_text(evidence.path.name)}, {evidence.about}: {len(evidence.calls.client):,} requests of "
        f"{len(evidence.clients):,} client{'s' * (len(evidence.clients) != 1)} in {time(span)}"
        + (f", {when}" if when else "")
    )


def gap_sentence(audit: Audit) -> str:
    """Return the largest gap: who got how much more than whom, when, and how that stands to the bound."""
    gap, evidence = audit.bounded_gap, audit.evidence
    if gap.ahead is None or gap.behind is None:
        same = "clients that waited at the same time received the same"
        return (same if overlap(evidence.waited) else "no two clients ever waited at the same time") + _bound(audit)
    where = (
        ""
        if evidence.workers == 1
        else " on all workers"
        if gap.worker is None
        else f" on {_worker(audit, gap.worker)}"
    )
    unit = "" if max(client.weight for client in evidence.clients) == 1 else ", by weight"
    ahead, behind = (audit.clients[client].name for client in (gap.ahead, gap.behind))
    return figures.gap_between(gap, ahead, behind, f"{unit}{where},", evidence.clock.at) + _bound(audit)


def _worker(audit: Audit, worker: int | None) -> str:
    """Return a worker by its name, where the log has one."""
    if worker is None:
        return "all workers"
    names = audit.evidence.upstreams
    return safe_text(names[worker]) if names and names[worker] else f"worker {worker}"


def _bound(audit: Audit) -> str:
    bound = audit.evidence.bound
    if bound is None:
        return "; nothing was promised about it" if audit.evidence.kind == "run log" else ""
    if not audit.within_bound:
        return f"; the bound of {count(bound)} is BROKEN"
    if bound >= audit.busiest:
        return f"; the bound of {count(bound)} is more than any client got, so nothing here could break it"
    return f"; that is within the bound of {count(bound)} ({share(audit.bounded_gap.cost / bound)})"


def starved_sentences(audit: Audit) -> list[str]:
    """Return a sentence for each client that starved, the longest first."""
    at, said = audit.evidence.clock.at, []
    for client, several in list(audit.starved.items())[:SHOWN]:
        worst = max(several, key=lambda stretch: stretch.length_ns)
        more = len(several) - 1
        said.append(
            f"{audit.who(client)} waited {at_least(audit, client)}{time(worst.length_ns / 1e3)} "
            f"(from {at(worst.start_ns)}) for nothing, while others got {count(worst.others_cost)} cost units"
            + (f"; {more:,} more such stretch{'es' * (more > 1)}" if more else "")
        )
    hidden = len(audit.starved) - SHOWN
    if hidden > 0:
        said.append(f"{hidden:,} more clients starved")
    return said or [
        f"no client waited {digits(audit.starved_after_ns / SECOND_NS)} s for nothing while others were served"
    ]


def gain_sentences(audit: Audit) -> list[str]:
    """Say who gained, and at whose cost."""
    said = []
    for i in audit.gainers()[:SHOWN]:
        amount, at = audit.clients[i].ahead, audit.evidence.clock.at(audit.worst_window_ns(i, True))
        said.append(
            f"{audit.who(i)} had got {count(amount)} cost units beyond its fair share by {at}, while others waited"
        )
    for i in audit.losers()[:SHOWN] if said else ():
        amount, at = audit.clients[i].behind, audit.evidence.clock.at(audit.worst_window_ns(i, False))
        said.append(f"{audit.who(i)} was {count(amount)} behind at {at}")
    return said or ["no client got far ahead of a fair share while others waited"]


def sections(audit: Audit) -> list[tuple[str, list[str]]]:
    """Return headings with their sentences; nothing of assumptions where there is no theorem."""
    found = [
        ("Largest gap", [gap_sentence(audit)]),
        ("Starved", starved_sentences(audit)),
        ("Gained", gain_sentences(audit)),
    ]
    if assumptions := audit.evidence.assumptions:
        broke = figures.broken(assumptions, [client.name for client in audit.clients], audit.evidence.origin_ns)
        found.append(("Assumptions of the theorems", broke or [figures.UNBROKEN]))
    return found


def scope(audit: Audit) -> list[str]:
    """Return how the log was read, what it cannot tell, and what else belongs to the figures."""
    evidence = audit.evidence
    reading = [f"Read as: {', '.join(evidence.reading)}."] if evidence.reading else []
    return [*reading, *evidence.limits, *audit.notes]


def _columns(heads: Iterable[str]) -> list[table.Column]:
    """Return the columns under these heads, the first of which names the rows."""
    return [
        table.Column(name, SPARE.get(name, SPARE_OTHERS), "figure" if i else "name") for i, name in enumerate(heads)
    ]


def client_table(audit: Audit) -> tuple[list[table.Column], list[list[str]], str]:
    """Return columns and rows of the clients with the most service, and what is said of the others.

    Columns without any value are left out: equal weights, no failures.
    """
    clients = sorted(audit.clients, key=lambda client: (-client.service, client.name))
    idle = {"weight"} if len({client.weight for client in clients}) == 1 else set()
    idle |= {name for name in SELDOM if not any(COLUMNS[name](client) for client in clients)}
    kept = {name: text for name, text in COLUMNS.items() if name not in idle}
    hidden = len(clients) - CLIENTS_SHOWN
    more = f"{hidden:,} clients with less service are in the JSON document." if hidden > 0 else ""
    return _columns(kept), [[text(client) for text in kept.values()] for client in clients[:CLIENTS_SHOWN]], more


def group_tables(audit: Audit) -> list[tuple[str, list[table.Column], list[list[str]]]]:
    """Return a heading, columns and rows for models, upstreams and statuses, where the log names several of them."""
    found = []
    for heading, groups in (("Models", audit.models), ("Upstreams", audit.upstreams), ("Statuses", audit.statuses)):
        if groups:
            ordered = sorted(groups, key=lambda group: (-group.requests, group.name))
            kept = {
                name: text
                for name, text in GROUP_COLUMNS.items()
                if name not in SELDOM or any(text(group) not in ("", figures.NOTHING) for group in groups)
            }
            rows = [
                [safe_text(group.name), *(text(group) for text in kept.values())] for group in ordered[:CLIENTS_SHOWN]
            ]
            found.append((heading, _columns([heading.lower().removesuffix("s").removesuffix("e"), *kept]), rows))
    return found


def print_audit(audit: Audit, console: "Console | None" = None) -> None:
    """Print it; needs the `cli` extra (rich)."""
    if console is None:
        console = table.open_console()
    table.print_lines(console, (safe_text(line, None) for line in audit.evidence.opening))
    table.print_lines(console, [verdict(audit)], style="bold")
    table.print_lines(console, [title(audit), *basis(audit)])
    console.print()
    columns, shown, hidden = client_table(audit)
    table.print_table(console, columns, shown, elsewhere="--json and --report have them")
    if hidden:
        table.print_lines(console, [hidden, ""])
    for heading, of_group, rows in group_tables(audit):
        table.print_table(console, of_group, rows, title=heading, elsewhere="the document of --json has all")
    for heading, sentences in sections(audit):
        table.print_section(console, heading, sentences)
    console.print()
    table.print_small(console, (*LEGEND, *scope(audit)))
