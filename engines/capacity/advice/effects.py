"""What a gate changes: a stretch of a log as it was logged, simulated as the server is today, and simulated with gates.

Every case is audited in the same way, as a log with the times of that case, so that figures of one can be held against
those of another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fairsched.engines.analysis import Comparison, Run, Summary, summary
from fairsched.engines.analysis.audit import Audit, audit_log
from fairsched.engines.capacity.advice.window import LogWindow
from fairsched.engines.logs.access import UNKNOWN, AccessLog
from fairsched.model.service import Ints


@attrs.frozen
class Group:
    """What became of the requests of some clients: times to the first token and latencies, how often these clients
    starved, and how long in all; in microseconds."""

    requests: int
    ttft_us: Summary
    latency_us: Summary
    starved: int
    starved_us: float


@attrs.frozen(eq=False)
class AdvisedCase:
    """One way to serve the stretch: its requests as a log, what an audit finds, and the run (None: it was logged)."""

    name: str
    log: AccessLog
    audit: Audit
    run: Run | None

    def group(self, clients: Sequence[int]) -> Group:
        """Return what became of these clients' requests."""
        found = [self.audit.clients[client] for client in clients]
        rows = np.flatnonzero(np.isin(self.log.client, np.array(clients, dtype=np.int64)))
        first = rows[self.log.first_ns[rows] != UNKNOWN]
        return Group(
            requests=len(rows),
            ttft_us=summary(self.log.first_ns[first] - self.log.arrival_ns[first]),
            latency_us=summary(self.log.end_ns[rows] - self.log.arrival_ns[rows]),
            starved=sum(each.starved for each in found),
            starved_us=sum(each.starved_us for each in found),
        )


@attrs.frozen(eq=False)
class Effects:
    """The stretch as it was `logged`, simulated as it is `today`, and simulated with the gate advised (`gated`).

    `others` are clients by number, beside the `harmed` ones, with requests in the stretch.
    """

    window: LogWindow
    comparison: Comparison
    logged: AdvisedCase
    today: AdvisedCase
    gated: AdvisedCase
    harmed: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def throughput(self) -> float:
        """The gate's output tokens a second over today's, both simulated."""
        today, gated = (
            0.0 if case.run is None else case.run.measures.output_tokens_per_s or 0.0
            for case in (self.today, self.gated)
        )
        return gated / today if today else 1.0

    @property
    def speedup(self) -> float:
        """How many times shorter the harmed clients' p99 time to the first token is with the gate, both simulated."""
        today, gated = (case.group(self.harmed).ttft_us.p99 or 0.0 for case in (self.today, self.gated))
        return today / gated if gated else 1.0

    @property
    def misfit(self) -> float:
        """The largest relative error of today's simulation of the stretch.

        It is at p50 and p95 of first tokens and latencies, of all requests and of the harmed clients'.
        """
        errors = [0.0]
        for clients in (self.harmed, (*self.harmed, *self.others)):
            logged, today = self.logged.group(clients), self.today.group(clients)
            known = logged.ttft_us.p50 is not None
            for name in ("ttft_us", "latency_us") if known else ("latency_us",):
                for percent in ("p50", "p95"):
                    seen, said = (getattr(getattr(each, name), percent) for each in (logged, today))
                    errors.append(abs(said - seen) / seen if seen else 0.0)
        return max(errors)

    def groups(self) -> Mapping[str, tuple[Group, Group, Group]]:
        """Return the harmed clients and the others: logged, today, gated."""
        named = {"harmed": self.harmed, "others": self.others}
        return {
            name: (self.logged.group(clients), self.today.group(clients), self.gated.group(clients))
            for name, clients in named.items()
            if clients
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the stretch, what the gate changes, and each group in each case."""
        cases = ("logged", "today", "gated")
        return {
            "requests": self.window.requests,
            "of": self.window.of,
            "speedup": self.speedup,
            "throughput": self.throughput,
            "misfit": self.misfit,
            **{
                name: {case: attrs.asdict(group) for case, group in zip(cases, groups, strict=True)}
                for name, groups in self.groups().items()
            },
        }


def cases(
    window: LogWindow, comparison: Comparison, weights: Mapping[str, int], starved_after_ns: int
) -> tuple[AdvisedCase, dict[str, AdvisedCase]]:
    """Return the stretch as it was logged, and each run of the comparison by its label."""

    def case(name: str, log: AccessLog, run: Run | None) -> AdvisedCase:
        return AdvisedCase(name, log, audit_log(log, weights=weights, starved_after_ns=starved_after_ns), run)

    logged = case("logged", window.as_logged(), None)
    return logged, {
        label: case(label, window.as_simulated(dict(run.requests)), run) for label, run in comparison.named()
    }


def present(window: LogWindow) -> set[int]:
    """Return the clients with requests that count."""
    clients: Ints = window.log.client[window.rows[window.counted]]
    return set(np.unique(clients).tolist())
