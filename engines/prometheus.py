"""Metrics of live engines for Prometheus: who was served, the service gap against its bound, decisions, the guard.

Counts are kept while the engine serves and read at a scrape.  A gap is in output tokens of a client of the largest
weight.  At most `clients_shown` clients have a label of their own, those that were served most; what others get goes to
"other" and stays there, so that no series ever falls.

    fairsched_client_service_tokens_total{worker,client,phase}   tokens computed ("prefill", "decode") or "cached"
    fairsched_service_gap_tokens{worker}                         the largest gap between two clients that both waited
    fairsched_service_gap_bound_tokens{worker}                   what was promised; no series without a promise
    fairsched_bound_violations_total{worker}                     events at which a bound was exceeded
    fairsched_assumption_violations_total{worker,assumption}     events that broke what theorems assume
    fairsched_decision_seconds{worker}                           policy and guard, a decision (histogram)
    fairsched_guard_interventions_total{worker,cause}            steps that the policy did not decide
    fairsched_policy_set_aside{worker}                           1 while the fallback serves for good
    fairsched_executor_failures_total{worker}
    fairsched_requests_total{worker,outcome}
    fairsched_waiting_requests{worker}, fairsched_running_requests{worker}, fairsched_kv_free_tokens{worker}
    fairsched_step_seconds_total{worker,part}                    where steps spend their time: decide, books, execute
"""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairsched.engines.guard import CAUSES
from fairsched.engines.serving import Engine
from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Prefilled, Rejected
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client
from fairsched.policies.base import LocalPolicy

OTHER = "other"
DECISION_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 1.0)
"""Upper ends of the histogram of decision times."""

_ENDS: dict[type, str] = {Finished: "finished", Cancelled: "cancelled", Rejected: "rejected"}
_TWO = (Client(0, "a"), Client(1, "b"))


def monitor_of(
    policy: LocalPolicy[Any], kv_capacity_tokens: int, output_tokens_max: int, worker: int = 0
) -> Monitor | None:
    """A monitor of what the policy promises on such a worker to clients of weight 1 (weights come by events).

    None if it promises nothing.  `output_tokens_max` matters only where outputs are not reserved.
    """
    promise = policy.promise(_TWO, policy.limits(kv_capacity_tokens, output_tokens_max))
    return None if promise is None else Monitor(promise, policy.gate_check(), worker=worker)


class _Watched:
    """One engine's counts, kept in its thread and read in another's, and its monitor."""

    def __init__(self, engine: Engine, monitor: Monitor | None, clients_shown: int) -> None:
        self.engine = engine
        self.monitor = monitor
        self.worker = str(engine.state.worker)
        self.outcomes: Counter[str] = Counter()
        self._clients_shown = clients_shown
        self._lock = threading.Lock()
        self._served: Counter[int] = Counter()
        self._fresh: Counter[tuple[int, str]] = Counter()
        self._told: Counter[tuple[str, str]] = Counter()

    def record(self, events: list[Event]) -> None:
        """A listener of the engine."""
        with self._lock:
            for event in events:
                match event:
                    case Decoded():
                        for client, tokens in zip(event.clients, event.tokens, strict=True):
                            self._serve(client, "decode", tokens)
                    case Prefilled():
                        self._serve(event.client, "prefill", event.tokens)
                    case Admitted(cached_prefix_tokens=tokens) if tokens:
                        self._serve(event.client, "cached", tokens)
                    case Finished() | Cancelled() | Rejected():
                        self.outcomes[_ENDS[type(event)]] += 1
                    case _:
                        pass
            if self.monitor is not None:
                self.monitor.observe_all(events)

    def _serve(self, client: int, phase: str, tokens: int) -> None:
        self._fresh[client, phase] += tokens
        self._served[client] += tokens

    def service(self) -> dict[tuple[str, str], int]:
        """Tokens so far by client's label and phase."""
        with self._lock:
            shown = {client for client, _ in self._served.most_common(self._clients_shown)}
            for (client, phase), tokens in self._fresh.items():
                name = self.engine.clients.all[client].name if client in shown else OTHER
                self._told[name, phase] += tokens
            self._fresh.clear()
            names = {self.engine.clients.all[client].name for client in shown} | {OTHER}
            return {key: tokens for key, tokens in sorted(self._told.items()) if key[0] in names}

    def promise(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """What the monitor says: metric, labels, value."""
        if self.monitor is None:
            return
        with self._lock:
            report, charging = self.monitor.report(), self.monitor.promise.charging
        unit = charging.rates.output * min(charging.multipliers, default=1)
        if report.gap is not None:
            yield "gap", (self.worker,), report.gap.cost / unit
        if report.gap_bound is not None:
            yield "bound", (self.worker,), report.gap_bound / unit
        yield "violations", (self.worker,), report.bound_violations
        for name, finding in sorted(report.assumptions.items()):
            if finding.theorems and finding.violated is not None:
                yield "assumptions", (self.worker, name), finding.violated


class EngineMetrics(Collector):
    """The metrics of one or more engines of a process: make it, `watch` each engine before it serves."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, clients_shown: int = 20) -> None:
        self._clients_shown = clients_shown
        self._watched: list[_Watched] = []
        self._decisions = Histogram(
            "fairsched_decision_seconds",
            "Time of a decision, in policy and guard.",
            ["worker"],
            buckets=DECISION_SECONDS,
            registry=registry,
        )
        registry.register(self)

    def watch(self, engine: Engine, monitor: Monitor | None = None) -> None:
        """Follow an engine from its first request on; raises `ValueError` for one that has served already.

        `monitor` is fed here and must not be elsewhere (see `monitor_of`); without one there are no gaps.
        """
        if engine.next_id:
            raise ValueError(f"worker {engine.state.worker} has served already, and its counts would be wrong")
        watched = _Watched(engine, monitor, self._clients_shown)
        decided = self._decisions.labels(watched.worker).observe
        engine.audience.listeners.append(watched.record)
        engine.decision_listeners.append(lambda spent_ns: decided(spent_ns / 1e9))
        self._watched.append(watched)

    def collect(self) -> Iterator[Metric]:
        """All metrics but the histogram.  Called at a scrape, in a thread of its own."""
        yield from self._service()
        yield from self._promises()
        yield from self._guards()
        yield from self._engines()

    def _service(self) -> Iterator[Metric]:
        text = "Tokens computed for a client, or taken from the cache."
        tokens = _counter("client_service_tokens", text, "client", "phase")
        for watched in self._watched:
            for (client, phase), count in watched.service().items():
                tokens.add_metric([watched.worker, client, phase], count)
        yield tokens

    def _promises(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {
            "gap": _gauge("service_gap_tokens", "Largest service gap between two clients that both waited."),
            "bound": _gauge("service_gap_bound_tokens", "What the policy promises of the service gap."),
            "violations": _counter("bound_violations", "Events at which a gap exceeded its bound."),
            "assumptions": _counter("assumption_violations", "Events that broke an assumption.", "assumption"),
        }
        for watched in self._watched:
            for metric, labels, value in watched.promise():
                family = found[metric]
                assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
                family.add_metric(labels, value)
        yield from found.values()

    def _guards(self) -> Iterator[Metric]:
        interventions = _counter("guard_interventions", "Steps that the policy did not decide.", "cause")
        aside = _gauge("policy_set_aside", "1 while the fallback serves for good.")
        failures = _counter("executor_failures", "Executors that failed.")
        for watched in self._watched:
            guard, worker = watched.engine.guard, watched.worker
            for cause in CAUSES:
                interventions.add_metric([worker, cause], guard.interventions[cause])
            aside.add_metric([worker], guard.set_aside is not None)
            failures.add_metric([worker], watched.engine.executor_failures)
        yield from (interventions, aside, failures)

    def _engines(self) -> Iterator[Metric]:
        requests = _counter("requests", "Requests that ended.", "outcome")
        waiting = _gauge("waiting_requests", "Requests in the queue.")
        running = _gauge("running_requests", "Requests in the batch.")
        free = _gauge("kv_free_tokens", "KV memory that may still be promised.")
        seconds = _counter("step_seconds", "Where steps spend their time.", "part")
        for watched in self._watched:
            state, times, worker = watched.engine.state, watched.engine.times, watched.worker
            for outcome in _ENDS.values():
                requests.add_metric([worker, outcome], watched.outcomes[outcome])
            waiting.add_metric([worker], len(state.queue))
            running.add_metric([worker], len(state.in_flight))
            free.add_metric([worker], state.free)
            for part in ("decide", "books", "execute"):
                seconds.add_metric([worker, part], getattr(times, f"{part}_ns") / 1e9)
        yield from (requests, waiting, running, free, seconds)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"fairsched_{name}", text, labels=["worker", *labels])


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairsched_{name}", text, labels=["worker"])
