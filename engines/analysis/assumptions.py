"""What a policy promises about a run: the limits that its bound rests on, how it charges, and a monitor of both."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import attrs

from fairsched.engines.logs import LogReader
from fairsched.model import events as ev
from fairsched.model.monitor import ClusterMonitor, Finding, Monitor, excused, together
from fairsched.model.pricing import multipliers
from fairsched.model.request import Client, Job
from fairsched.model.service import Charging, ServiceCurve
from fairsched.policies.base import AnyLocalPolicy, Limits
from fairsched.policies.guarantees import window_curve, window_limits


def run_limits(policy: AnyLocalPolicy, jobs: Iterable[Job], capacity: int, workers: int) -> Limits:
    """Return what the policy's bound rests on: the declared output limits, the KV capacity, and the batching rule.

    The longest prompt is the longest that fits a worker beside one output token, the longest request that of the jobs.
    `workers` counts only where the workers share credit.  A request that names an adapter may lack a slot.
    """
    requests = [job.request for job in jobs]
    declared = max((request.max_output_tokens for request in requests), default=1)
    named = any(request.adapter for request in requests)
    longest = max((request.prompt.tokens + request.max_output_tokens for request in requests), default=1)
    limits = policy.guarantee.limits(capacity, declared)
    limits = attrs.evolve(limits, slots_lack=named, request_tokens_max=longest)
    return limits if policy.shared_credit is None else attrs.evolve(limits, workers=workers)


def log_limits(log: LogReader, policy: AnyLocalPolicy, workers: int) -> Limits:
    """Return what the policy's bound rests on in the run of a log that was read: in a gateway's, on the most that its
    servers had together, its terms, and its over-run."""
    run = log.header.run
    if run.windows and run.terms is not None:
        tokens = log.capacity_tokens
        return window_limits(policy.guarantee, tokens, run.terms, _overrun(log, tokens))
    return run_limits(policy, log.jobs.values(), run.kv_capacity_tokens, workers)


def _overrun(log: LogReader, tokens: int) -> int:
    """Return the most that a client, or a group, was charged beyond so many tokens from an admission on.

    A log does not tell what calls held when more came of them; this is no more than the over-run of its window.
    """
    payers: dict[int, tuple[Hashable, ...]] = {}
    since: Counter[Hashable] = Counter()
    extends: dict[int, int] = {}
    most = 0
    for _, event in log:
        charged: Iterable[tuple[int, int]] = ()
        match event:
            case ev.ClientConfigured(client=client, groups=groups):
                names = tuple(name for name, _ in groups)
                payers[client] = (client, *(names[: i + 1] for i in range(len(names))))
            case ev.Admitted(request_id=request_id, client=client, extend_tokens=extend):
                for each in payers.get(client, (client,)):
                    since[each] = 0
                charged, extends[request_id] = [(client, extend)], extend
            case ev.Settled(request_id=request_id, client=client, extend_tokens=extend):
                charged, extends[request_id] = [(client, max(extend - extends[request_id], 0))], extend
            case ev.Decoded():
                charged = zip(event.clients, event.tokens, strict=True)
        for client, count in charged:
            for each in payers.get(client, (client,)):
                since[each] += count
                most = max(most, since[each])
    return max(most - tokens, 0)


def run_charging(policy: AnyLocalPolicy, clients: Iterable[Client]) -> Charging | None:
    """Return how the policy charges; None if it charges no client."""
    rule = policy.guarantee.charging
    if rule is None:
        return None
    multiples = multipliers([client.weight for client in clients])
    return Charging(rule.rates, rule.input, multiples, rule.cached_percent)


def assumption_monitor(
    policy: AnyLocalPolicy,
    clients: tuple[Client, ...],
    limits: Limits,
    gate: bool = True,
    gaps: bool = False,
    curve: ServiceCurve | None = None,
) -> ClusterMonitor | None:
    """Return a monitor of the assumptions of the policy's theorems; None if it promises nothing.

    Without `gate` the gate's own decisions are not checked, only with `gaps` are gaps, and only with a `curve` that
    servers are said to keep are waits.
    """
    promise = policy.guarantee.promise(clients, limits, curve)
    if promise is None:
        return None
    check = policy.guarantee.gate_monitors() if gate else lambda: None
    return ClusterMonitor(lambda worker: Monitor(promise, check(), worker=worker, gaps=gaps))


@attrs.frozen
class Watched:
    """What the monitors of a run's workers found: the assumptions by name, and what that means for its gap bound.

    `widening` is what the bound of two clients grows by for what they were given back, `group_widening` that of two
    groups of clients, and `gap_theorems` are the ids of the theorems that say it.  `unexplained` says that a worker's
    gap was over its bound and no assumption of the theorem was broken, where gaps were watched.
    """

    findings: Mapping[str, Finding] = attrs.field(factory=dict)
    widening: int = 0
    group_widening: int = 0
    gap_theorems: tuple[str, ...] = ()
    unexplained: bool = False

    def excuses(self) -> tuple[str, ...]:
        """Return the broken assumptions of those theorems: what excuses a gap over the bound."""
        return excused(self.findings, self.gap_theorems)


def watched(monitor: ClusterMonitor | None, scope: str, group_times: int = 1) -> Watched:
    """Return what a cluster's monitors found; `scope` says whether a gap is one "worker"'s or the whole "cluster"'s.

    `group_times` is the largest multiplier of a group.
    """
    reports = () if monitor is None else monitor.reports()
    if not reports:
        return Watched()
    each = [report.widening for report in reports]
    back = [sum(report.given_back.values()) * group_times if report.widening else 0 for report in reports]
    unexplained = any(report.unexplained is not None for report in reports)
    whole = max if scope == "worker" else sum
    return Watched(together(reports), whole(each), whole(back), reports[0].gap_theorems, unexplained)


def log_assumptions(
    log: LogReader, policy: AnyLocalPolicy, limits: Limits, events: Iterable[ev.Event], *, gaps: bool = False
) -> Watched:
    """Return what a monitor of a log's events finds, of gaps if it watches them; nothing if the policy promises
    nothing."""
    # A gate's monitor must have seen all that the gate did: not so where a run went on from an earlier one's state.
    run, held = log.header.run, log.capacity_tokens + limits.unreserved_tokens
    curve = None if run.terms is None else window_curve(policy.guarantee, held, run.terms)
    monitor = assumption_monitor(policy, tuple(log.clients), limits, run.state is None, gaps, curve)
    if monitor is None:
        return Watched()
    monitor.observe_all(events)
    return watched(monitor, "worker" if limits.workers == 1 else "cluster")
