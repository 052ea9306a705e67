"""What an audit finds: service, waits and losses of each client, the gap and its bound, who starved, and who gained.

A client starves in stretches of time in which it waits, gets nothing at all, and others are served.

Such a stretch begins when the client begins to wait or was last charged while it waited, and ends with its next charge
or when it waits no more.  Workers are taken together: a client that is served anywhere does not starve.  Where tokens
are taken to come evenly, no time in which a request decodes is part of a stretch; where the end of a wait is inferred,
no time within its margin is: a client starved at least so long.

A gain is how far a client's service got ahead of its fair share while others wanted more.

The fair share is what a fluid would have given that served as much as was served, at every time divided by weight among
all clients with unserved requests (max-min: no client is given more than it asked for, and of the rest each gets the
same for its weight; generalised processor sharing).  What a client asks for are its requests, from their arrival on,
each with all that it was charged in the end.  A client's *lead* is what it got so far less its fair share so far: all
leads add up to nothing, they are nothing where no client waits for long, and nothing again when
all is served.  So what a client gained is its largest lead: what others had to wait for.

The run is cut into windows of equal length; turns that clients take within one do not show.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.audit.evidence import AuditRun, Calls, Mask
from fairsched.engines.analysis.figures import share, time, who
from fairsched.engines.analysis.metrics import gaps, most_charged
from fairsched.engines.analysis.outcomes import Summary, summary
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model.service import Gap, Ints, Table, anywhere
from fairsched.model.shown import html_table, short_repr


@attrs.frozen
class Stretch:
    """The client waited over [start_ns, stop_ns) for nothing, while others got `others_cost` cost units."""

    client: int
    start_ns: int
    stop_ns: int
    others_cost: int

    @property
    def length_ns(self) -> int:
        """How long."""
        return self.stop_ns - self.start_ns


def stretches(evidence: AuditRun, at_least_ns: int, certain: bool = True) -> tuple[Stretch, ...]:
    """Return all stretches of at least so long, in order of client and time; `certain` says that others were served.

    O(n log n) for n charges and waits.
    """
    _, waited = anywhere(evidence.charged, evidence.waited)
    last_ns, count = evidence.last_ns, len(evidence.clients)
    order = np.argsort(evidence.charged["time_ns"], kind="stable")
    when, costs = evidence.charged["time_ns"][order], evidence.costs()[order]
    charges = _by_number(evidence.charged["client"][order], count)
    waits = _by_number(waited["client"], count)
    total = _summed(costs)
    outside = _outside(evidence, at_least_ns)
    outsides = _by_number(outside["client"], count)
    found: list[Stretch] = []
    for client, (mine, own, apart) in enumerate(zip(waits, charges, outsides, strict=True)):
        # One that outlives the log ends with it.
        lengths = waited["start_ns"][mine], np.minimum(waited["stop_ns"][mine], last_ns)
        own_when, own_costs = when[own], costs[own]
        spans = outside["start_ns"][apart], outside["stop_ns"][apart]
        start, stop = _stretched(lengths, own_when[own_costs > 0], spans, at_least_ns)
        if start.size:
            others = _between(when, total, start, stop) - _between(own_when, _summed(own_costs), start, stop)
            rows = zip(start.tolist(), stop.tolist(), others.tolist(), strict=True)
            found += [Stretch(client, *row) for row in rows if row[2] > 0 or not certain]
    return tuple(found)


def _outside(evidence: AuditRun, at_least_ns: int) -> Table:
    """Return times that are part of no stretch: margins of inferred waits, and decoding with shorter pauses."""
    calls, decoding = evidence.calls, evidence.decoding
    rows = np.flatnonzero(calls.wait_margin_ns > 0)
    served, margin = calls.served_ns[rows], calls.wait_margin_ns[rows]
    found = {"client": calls.client[rows], "start_ns": served - margin, "stop_ns": served + margin}
    if decoding is None:
        return found
    steady = 2 * decoding["apart_ns"] <= at_least_ns
    return {name: np.concatenate((values, decoding[name][steady])) for name, values in found.items()}


def _by_number(numbers: Ints, count: int) -> list[Ints]:
    """Return for each number below `count` where it stands, in order."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(1, count)))


def _summed(costs: Ints) -> Ints:
    """Return what was charged before each charge, and in all."""
    return np.concatenate(([0], np.cumsum(costs)))


def _between(when: Ints, total: Ints, start: Ints, stop: Ints) -> Ints:
    """Return what was charged over each [start, stop)."""
    charged: Ints = total[np.searchsorted(when, stop)] - total[np.searchsorted(when, start)]
    return charged


def _stretched(waits: tuple[Ints, Ints], served_ns: Ints, spans: tuple[Ints, Ints], least_ns: int) -> tuple[Ints, Ints]:
    """Return what is left of the waits between services, and outside of these spans of time."""
    if not len(spans[0]):
        return without_service(waits, served_ns, least_ns)
    begin, over = map(np.sort, spans)
    start, stop = without_service(waits, np.unique(np.concatenate((served_ns, begin, over))), least_ns)
    outside = np.searchsorted(begin, start, side="right") == np.searchsorted(over, start, side="right")
    return start[outside], stop[outside]


def without_service(waits: tuple[Ints, Ints], served_ns: Ints, at_least_ns: int) -> tuple[Ints, Ints]:
    """Return starts and ends of what is left of the waits when they are cut at these times, those that are long enough.

    Waits are apart and in order, and so are the times.
    """
    start, stop = waits
    first = np.searchsorted(served_ns, start, side="right")
    last = np.searchsorted(served_ns, stop, side="left")
    inside = np.concatenate([served_ns[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)] or [start[:0]])
    which = np.repeat(np.arange(len(start)), np.maximum(last - first, 0))
    edges = np.concatenate((start, inside, stop))
    wait = np.concatenate((np.arange(len(start)), which, np.arange(len(start))))
    order = np.lexsort((edges, wait))
    edges, wait = edges[order], wait[order]
    long = (np.diff(wait) == 0) & (np.diff(edges) >= max(at_least_ns, 1))
    return edges[:-1][long], edges[1:][long]


def by_client(found: Sequence[Stretch]) -> dict[int, list[Stretch]]:
    """Return the stretches of each client that has any, the client with the longest first."""
    clients: dict[int, list[Stretch]] = {}
    for stretch in found:
        clients.setdefault(stretch.client, []).append(stretch)
    return dict(sorted(clients.items(), key=lambda row: -max(each.length_ns for each in row[1])))


Floats = npt.NDArray[np.float64]

WINDOWS_MAX = 1 << 14
CELLS_MAX = 1 << 23


@attrs.frozen(eq=False)
class Shares:
    """`lead[k, i]`: how far client i was ahead of its fair share at the end of window k, in cost units.

    Negative where it was behind.  Windows of `window_ns` begin at the first arrival.
    """

    window_ns: int
    lead: Floats

    @property
    def ahead(self) -> Floats:
        """Each client's largest lead, at least 0."""
        most: Floats = np.maximum(self.lead.max(axis=0, initial=0.0), 0.0)
        return most

    @property
    def behind(self) -> Floats:
        """How far each client fell behind at most, at least 0."""
        most: Floats = np.maximum(-self.lead.min(axis=0, initial=0.0), 0.0)
        return most


def shares(evidence: AuditRun, window_ns: int) -> Shares:
    """Return the leads, in windows of this length, or of a longer one where the run has too many of them.

    O(windows x clients x log clients).
    """
    origin, clients = evidence.origin_ns, len(evidence.clients)
    span = evidence.last_ns - origin + 1
    most = max(1, min(WINDOWS_MAX, CELLS_MAX // max(clients, 1)))
    window_ns = max(min(window_ns, span), -(-span // most))
    count = -(-span // window_ns)
    served, came = np.zeros((count, clients)), np.zeros((count, clients))
    row = (np.maximum(evidence.charged["time_ns"], origin) - origin) // window_ns
    np.add.at(served, (row, evidence.charged["client"]), evidence.costs())
    calls = evidence.calls
    np.add.at(came, ((calls.arrival_ns - origin) // window_ns, calls.client), calls.cost)
    weights = np.array([client.weight for client in evidence.clients], dtype=np.float64)
    return Shares(window_ns, np.cumsum(served - fluid(served.sum(axis=1), came, weights), axis=0))


def fluid(served: Floats, came: Floats, weights: Floats) -> Floats:
    """Return what each client gets in each window of a fluid that serves `served[k]` in window k, where `came[k, i]` is
    asked for in addition."""
    fair = np.zeros_like(came)
    asked = np.zeros(len(weights))
    for k, (total, more) in enumerate(zip(served.tolist(), came, strict=True)):
        asked += more
        fair[k] = fair_division(total, asked, weights)
        asked -= fair[k]
    return fair


def fair_division(total: float, asked: Floats, weights: Floats) -> Floats:
    """Return the max-min fair division by weight of `total`, or of all that is asked for if that is less.  O(n log n).

    Clients are taken in order of what they ask for by weight: as long as that is less than an even share of what is
    left they get it, and the others share the rest.
    """
    need = asked / weights
    order = np.argsort(need, kind="stable")
    below = np.cumsum(asked[order]) - asked[order]
    levels = (total - below) / np.cumsum(weights[order][::-1])[::-1]
    enough = np.flatnonzero(levels <= need[order])
    return np.minimum(asked, max(levels[enough[0]], 0.0) * weights) if enough.size else asked.copy()


SECOND_NS = 10**9
GAIN_SHARE_MIN = 0.01
"""A lead below this share of all service is not told as a gain."""


@attrs.frozen
class Range:
    """What a time could be: its percentiles if every wait that is not known were as short, or as long, as it can be.

    A wait that is inferred may be off by its margin; one of a request that is kept out is at most its latency.
    """

    low: Summary
    high: Summary


@attrs.frozen
class AuditFigures:
    """What became of some requests by name: those of a client, a model, an upstream or a status; times in microseconds.

    Waits and first tokens are over requests that were served and of which they are known or inferred (`inferred` so
    many waits); `kept_out` requests count in no wait.  The ranges are None where everything is known.  Latencies are
    over those that finished.  `failed` are the `cancelled`, the `rejected` and the `errors`; `unfinished` were not over
    when the log ended; `retries` are second and later tries.
    """

    name: str
    requests: int
    finished: int
    failed: int
    cancelled: int
    rejected: int
    errors: int
    unfinished: int
    retries: int
    inferred: int
    untold: int
    kept_out: int
    wait_us: Summary
    wait_us_max: float | None
    wait_range_us: Range | None
    ttft_us: Summary
    ttft_range_us: Range | None
    latency_us: Summary

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self, filter=attrs.filters.exclude("name"))


@attrs.frozen
class ClientFindings(AuditFigures):
    """The same of one client, with its service in cost units (of weight 1).

    `ahead` and `behind` are how far its service was beyond and below its fair share at worst
    (`Shares`); `starved` counts stretches, `starved_us_max` is the longest.
    """

    weight: int
    service: int
    service_share: float | None
    ahead: float
    behind: float
    starved: int
    starved_us: float
    starved_us_max: float


@attrs.frozen(eq=False)
class Audit:
    """All findings; `evidence` is what they rest on, and `shares` has the fair division over time.

    `gap` is the largest of a worker, `cluster_gap` of all workers together (None: there was one); the bound is about
    the one that `evidence.scope` says.  `total` is of all clients together; `models`, `upstreams` and `statuses` are
    there where a log names several.
    """

    __repr__ = short_repr

    evidence: AuditRun
    clients: tuple[ClientFindings, ...]
    total: ClientFindings
    models: tuple[AuditFigures, ...]
    upstreams: tuple[AuditFigures, ...]
    statuses: tuple[AuditFigures, ...]
    gap: Gap
    cluster_gap: Gap | None
    shares: Shares
    starved: Mapping[int, Sequence[Stretch]]
    may_starve: Mapping[int, Sequence[Stretch]]
    """The longest that stretches may be, with requests of which nothing tells when they were served."""
    starved_after_ns: int
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Return a table of the clients with the most service, which notebooks show."""
        most = sorted(self.clients, key=lambda client: -client.service)
        shown = (
            (one.name, f"{one.requests:,}", share(one.service_share), time(one.wait_us.p99), f"{one.starved:,}")
            for one in most
        )
        return html_table(("client", "requests", "share of service", "wait p99", "times starved"), shown)

    @property
    def bounded_gap(self) -> Gap:
        return self.cluster_gap if self.evidence.scope == "cluster" and self.cluster_gap is not None else self.gap

    @property
    def within_bound(self) -> bool | None:
        """Whether the gap is within the bound; None without one."""
        bound = self.evidence.bound
        return None if bound is None else self.bounded_gap.cost <= bound

    @property
    def unexplained(self) -> bool:
        """Whether the gap is over its bound and no assumption of the theorem is broken: an error of this library.

        Where assumptions were not watched it cannot be told.
        """
        return self.within_bound is False and bool(self.evidence.assumptions) and not self.evidence.excuses

    @property
    def busiest(self) -> int:
        """The most that one client was charged, by weight, where the bound is about."""
        return most_charged(self.evidence.charged, self.evidence.scope)

    def gainers(self) -> list[int]:
        """Return clients that gained something to speak of, most first."""
        return self._most([client.ahead for client in self.clients])

    def losers(self) -> list[int]:
        """Return clients that lost something to speak of, most first."""
        return self._most([client.behind for client in self.clients])

    def _most(self, amounts: Sequence[float]) -> list[int]:
        """Return clients with an amount that is worth telling, the largest first."""
        least = GAIN_SHARE_MIN * sum(client.service for client in self.clients)
        return [i for i in sorted(range(len(amounts)), key=lambda i: -amounts[i]) if amounts[i] > least]

    def worst_window_ns(self, client: int, ahead: bool) -> int:
        """Return when the client was farthest ahead, or behind."""
        lead = self.shares.lead[:, client]
        k = int(lead.argmax() if ahead else lead.argmin())
        return min(self.evidence.origin_ns + (k + 1) * self.shares.window_ns, self.evidence.last_ns)

    def who(self, client: int) -> str:
        return who(self.clients[client].name)

    def to_json(self) -> dict[str, Any]:
        """Return the document of `fairsched audit --json`: plain values, None where there is nothing to say."""
        evidence = self.evidence
        origin, clock = evidence.origin_ns, evidence.clock
        return {
            "log": str(evidence.path),
            "kind": evidence.kind,
            "about": evidence.about,
            "model": evidence.model,
            "requests": len(evidence.calls.client),
            "from": clock.iso(origin),
            "to": clock.iso(evidence.last_ns),
            "duration_s": (evidence.last_ns - origin) / SECOND_NS,
            "first_tokens": [said.to_json() for said in evidence.inferences],
            "workers": evidence.workers,
            "service_gap_max": self.gap.cost,
            "service_gap_cluster_max": None if self.cluster_gap is None else self.cluster_gap.cost,
            "service_gap_bound": evidence.bound,
            "gap_scope": evidence.scope,
            "within_bound": self.within_bound,
            "bound_over_busiest": evidence.bound / self.busiest
            if evidence.bound is not None and self.busiest
            else None,
            "gap": self._gap(origin),
            "starved_after_s": self.starved_after_ns / SECOND_NS,
            "starved": [
                {
                    "client": self.clients[stretch.client].name,
                    "from_s": (stretch.start_ns - origin) / SECOND_NS,
                    "to_s": (stretch.stop_ns - origin) / SECOND_NS,
                    "from": clock.iso(stretch.start_ns),
                    "to": clock.iso(stretch.stop_ns),
                    "others_got": stretch.others_cost,
                }
                for several in self.starved.values()
                for stretch in several
            ],
            "window_s": self.shares.window_ns / SECOND_NS,
            "gained": [self._lead(i, True) for i in self.gainers()],
            "lost": [self._lead(i, False) for i in self.losers()],
            "assumptions": {name: attrs.asdict(finding) for name, finding in evidence.assumptions.items()},
            "assumptions_broken": self.broken_assumptions(),
            "total": self.total.to_json(),
            "clients": {client.name: client.to_json() for client in self.clients},
            "models": {each.name: each.to_json() for each in self.models},
            "upstreams": {each.name: each.to_json() for each in self.upstreams},
            "statuses": {each.name: each.to_json() for each in self.statuses},
            "opening": list(evidence.opening),
            "reading": list(evidence.reading),
            "limits": list(evidence.limits),
            "notes": list(self.notes),
        }

    def broken_assumptions(self) -> list[str]:
        """Return names of the assumptions that the run broke and on which a theorem of its policy rests."""
        found = self.evidence.assumptions
        return [name for name, finding in found.items() if finding.first is not None and finding.matters]

    def _lead(self, client: int, ahead: bool) -> dict[str, Any]:
        found, at_ns = self.clients[client], self.worst_window_ns(client, ahead)
        return {
            "client": found.name,
            "cost": found.ahead if ahead else found.behind,
            "at_s": (at_ns - self.evidence.origin_ns) / SECOND_NS,
            "at": self.evidence.clock.iso(at_ns),
        }

    def _gap(self, origin: int) -> dict[str, Any] | None:
        gap = self.bounded_gap
        if gap.ahead is None or gap.behind is None:
            return None
        return {
            "cost": gap.cost,
            "worker": gap.worker,
            "ahead": self.clients[gap.ahead].name,
            "behind": self.clients[gap.behind].name,
            "from_s": (gap.start_ns - origin) / SECOND_NS,
            "to_s": (gap.stop_ns - origin) / SECOND_NS,
            "from": self.evidence.clock.iso(gap.start_ns),
            "to": self.evidence.clock.iso(gap.stop_ns),
            "waited_together_s": gap.together_ns / SECOND_NS,
        }


def findings(evidence: AuditRun, *, starved_after_ns: int = 10 * SECOND_NS, window_ns: int = 10 * SECOND_NS) -> Audit:
    """Return what the evidence of a run shows.

    A client starves when it waits for `starved_after_ns` without any service while others get some; gains are over
    windows of `window_ns`.  Raises `ValueError` unless both are positive.
    """
    if starved_after_ns < 1 or window_ns < 1:
        raise ValueError("starved_after_ns and window_ns are positive")
    charged, waited, count = evidence.charged, evidence.waited, len(evidence.clients)
    gap, cluster, about_gaps = gaps(charged, waited, count)
    division = shares(evidence, window_ns)
    starved = by_client(stretches(evidence, starved_after_ns))
    service = np.zeros(count, dtype=np.int64)
    np.add.at(service, charged["client"], evidence.costs())
    notes = [*evidence.notes, *about_gaps]
    if division.window_ns > window_ns:
        notes.append(f"The run is long: leads are looked at every {division.window_ns / SECOND_NS:,.3g} s.")
    clients = _clients(evidence, service, division, starved)
    calls = evidence.calls
    return Audit(
        evidence=evidence,
        clients=clients,
        total=_total(evidence, clients),
        models=_groups(evidence, evidence.models, calls.model),
        upstreams=_groups(evidence, evidence.upstreams, calls.worker),
        statuses=_groups(evidence, evidence.statuses, calls.status),
        gap=gap,
        cluster_gap=cluster,
        shares=division,
        starved=starved,
        may_starve=_may_starve(evidence, starved, starved_after_ns),
        starved_after_ns=starved_after_ns,
        notes=tuple(notes),
    )


def _may_starve(
    evidence: AuditRun, starved: Mapping[int, Sequence[Stretch]], after_ns: int
) -> Mapping[int, Sequence[Stretch]]:
    most = evidence.at_most
    return starved if most is None or len(most.clients) < 2 else by_client(stretches(most, after_ns, certain=False))


def waits_ns(evidence: AuditRun, rows: Ints) -> Ints:
    """Return how long each of these requests waited, those that were served and whose waits are known or inferred."""
    calls = evidence.calls
    rows = rows[calls.served_ns[rows] != UNKNOWN]
    waited: Ints = calls.served_ns[rows] - calls.arrival_ns[rows]
    return waited


def _figures(evidence: AuditRun, rows: Ints) -> dict[str, Any]:
    """The fields of `AuditFigures` but for the name."""
    calls = evidence.calls
    over, outcome = calls.end_ns[rows] != UNKNOWN, calls.outcome[rows]
    done = over & (outcome == Ending.FINISHED)
    cancelled, rejected, errors = (
        int((outcome == each).sum()) for each in (Ending.CANCELLED, Ending.REJECTED, Ending.ERROR)
    )
    waits, first, whole = waits_ns(evidence, rows), rows[calls.first_ns[rows] != UNKNOWN], rows[done]
    return {
        "requests": len(rows),
        "finished": len(whole),
        "failed": cancelled + rejected + errors,
        "cancelled": cancelled,
        "rejected": rejected,
        "errors": errors,
        "unfinished": int((~over & (outcome == Ending.FINISHED)).sum()),
        "retries": int((calls.attempt[rows] > 0).sum()),
        "inferred": int((calls.wait_margin_ns[rows] > 0).sum()),
        "untold": int(calls.untold[rows].sum()),
        "kept_out": int(calls.kept_out[rows].sum()),
        "wait_us": summary(waits),
        "wait_us_max": int(waits.max()) / 1e3 if len(waits) else None,
        "wait_range_us": _range(calls, rows, calls.served_ns, calls.wait_margin_ns, calls.kept_out),
        "ttft_us": summary(calls.first_ns[first] - calls.arrival_ns[first]),
        "ttft_range_us": _range(calls, rows, calls.first_ns, calls.margin_ns, calls.untold == 1),
        "latency_us": summary(calls.end_ns[whole] - calls.arrival_ns[whole]),
    }


def _range(calls: Calls, rows: Ints, when: Ints, margin: Ints, untold: Mask) -> Range | None:
    """Return the summaries of the shortest and the longest times from arrival to `when` that these may have been."""
    unknown, known = rows[untold[rows]], rows[when[rows] != UNKNOWN]
    doubtful = margin[known] > 0
    if not len(unknown) and not doubtful.any():
        return None
    time, latency = when[known] - calls.arrival_ns[known], (calls.end_ns - calls.arrival_ns)[known]
    low = np.maximum(time - margin[known], 0)
    high = np.where(doubtful, np.minimum(time + margin[known], latency), time)
    longest = (calls.end_ns - calls.arrival_ns)[unknown]
    return Range(summary(np.append(low, np.zeros_like(longest))), summary(np.append(high, longest)))


def _groups(evidence: AuditRun, names: Sequence[str], number: Ints) -> tuple[AuditFigures, ...]:
    """Return figures by name, where several names have requests."""
    rows = {name: np.flatnonzero(number == i) for i, name in enumerate(names)}
    rows = {name: mine for name, mine in rows.items() if len(mine)}
    return tuple(AuditFigures(name, **_figures(evidence, mine)) for name, mine in rows.items()) if len(rows) > 1 else ()


def _total(evidence: AuditRun, clients: Sequence[ClientFindings]) -> ClientFindings:
    """Return all clients as if they were one; leads are the largest of any, stretches those of all."""
    return ClientFindings(
        "(all)",
        **_figures(evidence, np.arange(len(evidence.calls.client))),
        weight=sum(client.weight for client in clients),
        service=sum(client.service for client in clients),
        service_share=None,
        ahead=max((client.ahead for client in clients), default=0.0),
        behind=max((client.behind for client in clients), default=0.0),
        starved=sum(client.starved for client in clients),
        starved_us=sum(client.starved_us for client in clients),
        starved_us_max=max((client.starved_us_max for client in clients), default=0.0),
    )


def _clients(
    evidence: AuditRun, service: Ints, division: Shares, starved: Mapping[int, Sequence[Stretch]]
) -> tuple[ClientFindings, ...]:
    calls, total = evidence.calls, int(service.sum())
    ahead, behind = division.ahead.tolist(), division.behind.tolist()
    order = np.argsort(calls.client, kind="stable")
    edges = np.searchsorted(calls.client[order], np.arange(len(evidence.clients) + 1)).tolist()
    found = []
    for client in evidence.clients:
        rows = order[edges[client.id] : edges[client.id + 1]]
        lengths = [stretch.length_ns for stretch in starved.get(client.id, ())]
        found.append(
            ClientFindings(
                client.name,
                **_figures(evidence, rows),
                weight=client.weight,
                service=int(service[client.id]),
                service_share=int(service[client.id]) / total if total else None,
                ahead=ahead[client.id],
                behind=behind[client.id],
                starved=len(lengths),
                starved_us=sum(lengths) / 1e3,
                starved_us_max=max(lengths, default=0) / 1e3,
            )
        )
    return tuple(found)
