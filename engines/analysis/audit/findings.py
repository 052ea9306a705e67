"""What an audit finds: service, waits and losses of each client, the gap and its bound, who starved, and who gained."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fairsched.engines.analysis.audit.evidence import Evidence
from fairsched.engines.analysis.audit.shares import Shares, shares
from fairsched.engines.analysis.audit.starvation import Stretch, by_client, stretches
from fairsched.engines.analysis.figures import who
from fairsched.engines.analysis.metrics import gaps, most_charged
from fairsched.engines.analysis.outcomes import Summary, summary
from fairsched.engines.logs.access import UNKNOWN
from fairsched.model.service import Gap, Ints

SECOND_NS = 10**9
GAIN_SHARE_MIN = 0.01
"""A lead below this share of all service is not told as a gain."""
_UNNAMED = attrs.filters.exclude("name")


@attrs.frozen
class ClientFindings:
    """What became of one client; times in microseconds, service in cost units (of weight 1).

    `wait_us` is over requests that were served (`wait_us_max` the longest); `ahead` and `behind` are how far its
    service was beyond and below its fair share at worst (`engines.analysis.audit.shares`); `starved` counts stretches,
    `starved_us_max` is the longest.
    """

    name: str
    weight: int
    requests: int
    finished: int
    failed: int
    unfinished: int
    wait_us: Summary
    wait_us_max: float | None
    latency_us: Summary
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
    the one that `evidence.scope` says.
    """

    evidence: Evidence
    clients: tuple[ClientFindings, ...]
    gap: Gap
    cluster_gap: Gap | None
    shares: Shares
    starved: Mapping[int, Sequence[Stretch]]
    starved_after_ns: int
    notes: tuple[str, ...]

    @property
    def bounded_gap(self) -> Gap:
        """The gap that the bound is about."""
        return self.cluster_gap if self.evidence.scope == "cluster" and self.cluster_gap is not None else self.gap

    @property
    def within_bound(self) -> bool | None:
        """Whether the gap is within the bound; None without one."""
        bound = self.evidence.bound
        return None if bound is None else self.bounded_gap.cost <= bound

    @property
    def busiest(self) -> int:
        """The most that one client was charged, by weight, where the bound is about."""
        return most_charged(self.evidence.charged, self.evidence.scope)

    def gainers(self) -> list[int]:
        """Clients that gained something to speak of, most first."""
        return self._most([client.ahead for client in self.clients])

    def losers(self) -> list[int]:
        """Clients that lost something to speak of, most first."""
        return self._most([client.behind for client in self.clients])

    def _most(self, amounts: Sequence[float]) -> list[int]:
        """Clients with an amount that is worth telling, the largest first."""
        least = GAIN_SHARE_MIN * sum(client.service for client in self.clients)
        return [i for i in sorted(range(len(amounts)), key=lambda i: -amounts[i]) if amounts[i] > least]

    def worst_window_s(self, client: int, ahead: bool) -> float:
        """When the client was farthest ahead, or behind, in seconds from the first arrival."""
        lead = self.shares.lead[:, client]
        k = int(lead.argmax() if ahead else lead.argmin())
        end_ns = min((k + 1) * self.shares.window_ns, self.evidence.last_ns - self.evidence.origin_ns)
        return end_ns / SECOND_NS

    def who(self, client: int) -> str:
        """A client's name for a sentence."""
        return who(self.clients[client].name)

    def to_json(self) -> dict[str, Any]:
        """The document of `fairsched audit --json`: plain values, None where there is nothing to say."""
        evidence = self.evidence
        origin = evidence.origin_ns
        return {
            "log": str(evidence.path),
            "kind": evidence.kind,
            "about": evidence.about,
            "requests": len(evidence.calls.client),
            "duration_s": (evidence.last_ns - origin) / SECOND_NS,
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
                    "others_got": stretch.others_cost,
                }
                for several in self.starved.values()
                for stretch in several
            ],
            "window_s": self.shares.window_ns / SECOND_NS,
            "gained": [
                {"client": self.clients[i].name, "cost": self.clients[i].ahead, "at_s": self.worst_window_s(i, True)}
                for i in self.gainers()
            ],
            "lost": [
                {"client": self.clients[i].name, "cost": self.clients[i].behind, "at_s": self.worst_window_s(i, False)}
                for i in self.losers()
            ],
            "assumptions": {name: attrs.asdict(finding) for name, finding in evidence.assumptions.items()},
            "assumptions_broken": self.broken_assumptions(),
            "clients": {client.name: attrs.asdict(client, filter=_UNNAMED) for client in self.clients},
            "reading": list(evidence.reading),
            "limits": list(evidence.limits),
            "notes": list(self.notes),
        }

    def broken_assumptions(self) -> list[str]:
        """Names of the assumptions that the run broke and on which a theorem of its policy rests."""
        found = self.evidence.assumptions
        return [name for name, finding in found.items() if finding.first is not None and finding.matters]

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
            "waited_together_s": gap.together_ns / SECOND_NS,
        }


def findings(evidence: Evidence, *, starved_after_ns: int = 10 * SECOND_NS, window_ns: int = 10 * SECOND_NS) -> Audit:
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
    return Audit(
        evidence=evidence,
        clients=_clients(evidence, service, division, starved),
        gap=gap,
        cluster_gap=cluster,
        shares=division,
        starved=starved,
        starved_after_ns=starved_after_ns,
        notes=tuple(notes),
    )


def waits_ns(evidence: Evidence, rows: Ints) -> Ints:
    """How long each of these requests waited, those that were served."""
    calls = evidence.calls
    rows = rows[calls.served_ns[rows] != UNKNOWN]
    waited: Ints = calls.served_ns[rows] - calls.arrival_ns[rows]
    return waited


def _clients(
    evidence: Evidence, service: Ints, division: Shares, starved: Mapping[int, Sequence[Stretch]]
) -> tuple[ClientFindings, ...]:
    calls, total = evidence.calls, int(service.sum())
    ahead, behind = division.ahead.tolist(), division.behind.tolist()
    order = np.argsort(calls.client, kind="stable")
    edges = np.searchsorted(calls.client[order], np.arange(len(evidence.clients) + 1)).tolist()
    found = []
    for client in evidence.clients:
        rows = order[edges[client.id] : edges[client.id + 1]]
        waits = waits_ns(evidence, rows)
        over = calls.end_ns[rows] != UNKNOWN
        done = rows[over & (calls.failed[rows] == 0)]
        lengths = [stretch.length_ns for stretch in starved.get(client.id, ())]
        found.append(
            ClientFindings(
                name=client.name,
                weight=client.weight,
                requests=len(rows),
                finished=len(done),
                failed=int(calls.failed[rows].sum()),
                unfinished=int((~over & (calls.failed[rows] == 0)).sum()),
                wait_us=summary(waits),
                wait_us_max=int(waits.max()) / 1e3 if len(waits) else None,
                latency_us=summary(calls.end_ns[done] - calls.arrival_ns[done]),
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
