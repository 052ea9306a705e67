"""What a live engine says of itself: service by client, the gap against its bound, and how requests ended.

Everything is said twice: as a document of plain JSON values, in cost units of the policy's rates as in `compare`, and
as samples for Prometheus (`engines.serving.metrics`), whose gaps are in output tokens of a client of the largest
weight.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from fairsched.engines.serving.answers import OUTCOMES
from fairsched.engines.serving.guard import CAUSES
from fairsched.engines.serving.loop import Engine
from fairsched.model.decision import WorkerLoad
from fairsched.model.events import Admitted, Decoded, Event, Paused, Preempted, Prefilled
from fairsched.model.machine import LatencyModel
from fairsched.model.monitor import Monitor, MonitorReport
from fairsched.model.pricing import CAPACITY_TOKENS_MAX
from fairsched.model.request import Client
from fairsched.policies.base import AnyLocalPolicy

Document = dict[str, Any]
"""A document of plain JSON values."""
Sample = tuple[str, dict[str, str], float]
"""A metric's name without the prefix, its labels, and a value."""

PHASES = ("prefill", "decode", "cached")
OTHER = "other"
"""The label of clients that have none of their own."""
TWO_CLIENTS = (Client(0, "a"), Client(1, "b"))


def monitor_of(
    policy: AnyLocalPolicy,
    kv_capacity_tokens: int,
    output_tokens_max: int,
    worker: int = 0,
    *,
    running_max: int | None = None,
    request_tokens_max: int = CAPACITY_TOKENS_MAX,
    unreserved_tokens: int = 0,
    latency: LatencyModel | None = None,
) -> Monitor | None:
    """Return a monitor of what the policy promises on such a worker to clients of weight 1 (weights come by events).

    None if it promises nothing.  No request has more than `output_tokens_max`, and with its prompt than
    `request_tokens_max`; `running_max` is the engine's, where that is not the policy's; a client may leave
    `unreserved_tokens` of its outputs unreserved.  With the worker's `latency` waits are held to what is proved of them
    in seconds.
    """
    limits = policy.guarantee.limits(kv_capacity_tokens, output_tokens_max)
    limits = attrs.evolve(limits, unreserved_tokens=unreserved_tokens, request_tokens_max=request_tokens_max)
    if running_max is not None:
        limits = attrs.evolve(limits, running_max=running_max)
    promise = policy.guarantee.promise(TWO_CLIENTS, limits, latency)
    return None if promise is None else Monitor(promise, policy.guarantee.gate_monitor(), worker=worker)


def promise_document(report: MonitorReport) -> dict[str, object]:
    """Return the gap against its bound, in cost units, the longest wait against its own, and what was broken."""
    waits = {"wait_ns": None if report.wait is None else report.wait.cost, "wait_bound_ns": report.wait_bound_ns}
    return {
        "gap": None if report.gap is None else report.gap.cost,
        "gap_bound": report.gap_bound,
        "bound_violations": report.bound_violations,
        **({} if report.wait_bound_ns is None else waits),
        "unexplained": report.unexplained is not None,
        "broken_assumptions": {name: finding.violated for name, finding in sorted(report.violated().items())},
    }


def promise_samples(monitor: Monitor, report: MonitorReport) -> Iterator[Sample]:
    """Yield the gap against its bound, and what was broken."""
    charging = monitor.promise.charging
    unit = charging.rates.output * min(charging.multipliers, default=1)
    if report.gap is not None:
        yield "service_gap_tokens", {}, report.gap.cost / unit
    if report.gap_bound is not None:
        yield "service_gap_bound_tokens", {}, report.gap_bound / unit
    yield "bound_violations_total", {}, report.bound_violations
    if report.wait is not None and report.wait_bound_ns is not None:
        yield "wait_longest_seconds", {}, report.wait.cost / 1e9
        yield "wait_bound_seconds", {}, report.wait_bound_ns / 1e9
    for name, finding in sorted(report.assumptions.items()):
        if finding.theorems and finding.violated is not None:
            yield "assumption_violations_total", {"assumption": name}, finding.violated


class ClientLabels:
    """Service by client for at most `most` labels: those served most; what others get goes to "other" and stays there,
    so that no series falls."""

    def __init__(self, most: int = 20) -> None:
        self._most = most
        self._seen: Counter[tuple[int, str]] = Counter()
        self._told: Counter[tuple[str, str]] = Counter()

    def samples(self, tokens: Mapping[tuple[int, str], int], name: Callable[[int], str]) -> Iterator[Sample]:
        """Yield the tokens so far by client and phase.  A count that fell is made up for by what comes next."""
        served: Counter[int] = Counter()
        for (client, _), count in tokens.items():
            served[client] += count
        shown = {client: name(client) for client, _ in served.most_common(self._most)}
        for key, count in tokens.items():
            if count > self._seen[key]:
                self._told[shown.get(key[0], OTHER), key[1]] += count - self._seen[key]
                self._seen[key] = count
        labels = {*shown.values(), OTHER}
        for (client_label, phase), count in sorted(self._told.items()):
            if client_label in labels:
                yield "client_service_tokens_total", {"client": client_label, "phase": phase}, count


class ServiceStatus:
    """A listener of an engine's events that counts them, for readers in other threads, and its monitor."""

    def __init__(self, monitor: Monitor | None) -> None:
        self.monitor = monitor
        self.outcomes: Counter[str] = Counter()
        self.preemptions = 0
        self.pauses = 0
        self._tokens: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()

    def record(self, events: list[Event]) -> None:
        with self._lock:
            for event in events:
                match event:
                    case Decoded():
                        for client, tokens in zip(event.clients, event.tokens, strict=True):
                            self._tokens[client, "decode"] += tokens
                    case Prefilled():
                        self._tokens[event.client, "prefill"] += event.tokens
                    case Admitted(cached_prefix_tokens=tokens) if tokens:
                        self._tokens[event.client, "cached"] += tokens
                    case Preempted():
                        self.preemptions += 1
                    case Paused():
                        self.pauses += 1
                    case _ if type(event) in OUTCOMES:
                        self.outcomes[OUTCOMES[type(event)]] += 1
            if self.monitor is not None:
                self.monitor.observe_all(events)

    @property
    def tokens(self) -> Counter[tuple[int, str]]:
        with self._lock:
            return self._tokens.copy()

    def report(self) -> MonitorReport | None:
        """Return what the monitor found so far; None if the policy promises nothing."""
        with self._lock:
            return None if self.monitor is None else self.monitor.report()

    def promised(self) -> Iterator[Sample]:
        """Yield the gap against its bound, and what was broken."""
        report = self.report()
        if report is not None and self.monitor is not None:
            yield from promise_samples(self.monitor, report)


def worker_samples(
    status: ServiceStatus,
    labels: ClientLabels,
    name: Callable[[int], str],
    load: WorkerLoad,
    interventions: Mapping[Any, int],
    set_aside: str | None,
) -> Iterator[Sample]:
    """Yield what is said of any worker: service by client, the gap against its bound, the guard, requests, memory."""
    yield from labels.samples(status.tokens, name)
    yield from status.promised()
    for cause in CAUSES:
        yield "guard_interventions_total", {"cause": cause}, interventions.get(cause, 0)
    for outcome in OUTCOMES.values():
        yield "requests_total", {"outcome": outcome}, status.outcomes[outcome]
    yield "policy_set_aside", {}, set_aside is not None
    yield "waiting_requests", {}, load.waiting_requests
    yield "running_requests", {}, load.running_requests
    yield "kv_free_tokens", {}, load.kv_free_tokens


def step_samples(engine: Engine) -> Iterator[Sample]:
    """Yield where the steps of an engine spend their time, and how often its executor failed."""
    for part in ("decide", "books", "execute"):
        yield "step_seconds_total", {"part": part}, getattr(engine.times, f"{part}_ns") / 1e9
    yield "executor_failures_total", {}, engine.executor_failures
