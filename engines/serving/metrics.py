"""Metrics of live engines for Prometheus: service by client, the gap against its bound, decisions, the guard.

Counts are kept while the engine serves and read at a scrape.  A gap is in output tokens of a client of the largest
weight.  At most `clients_shown` clients have a label of their own, those that were served most; what others get goes to
"other" and stays there, so that no series ever falls.  The worker of a cluster whose requests move between workers is
"cluster", that of a gateway "gateway".
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairsched.engines.serving.cluster import LiveCluster, TransferCounts
from fairsched.engines.serving.loop import Engine
from fairsched.engines.serving.status import ClientLabels, Sample, ServiceStatus, step_samples, worker_samples
from fairsched.model.monitor import Monitor

DECISION_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 1.0)
"""Upper ends of the histogram of decision times."""

HELP: dict[str, tuple[str, str]] = {
    "decision_seconds": ("worker", "Time of a decision, in policy and guard (histogram)."),
    "client_service_tokens_total": (
        "worker,client,phase",
        "Tokens computed for a client, charged to it, or taken from the cache.",
    ),
    "service_gap_tokens": ("worker", "Largest service gap between two clients that both waited."),
    "service_gap_bound_tokens": ("worker", "What the policy promises of the service gap."),
    "bound_violations_total": ("worker", "Events at which a gap exceeded its bound."),
    "wait_longest_seconds": ("worker", "The longest that a client waited until it was let in."),
    "wait_bound_seconds": ("worker", "What is proved of the longest wait."),
    "assumption_violations_total": ("worker,assumption", "Events that broke an assumption."),
    "guard_interventions_total": ("worker,cause", "Decisions that were not the policy's."),
    "policy_set_aside": ("worker", "1 while the fallback decides for good."),
    "executor_failures_total": ("worker", "Executors that failed."),
    "requests_total": ("worker,outcome", "Requests that ended, and tries of them."),
    "waiting_requests": ("worker", "Requests in the queue."),
    "running_requests": ("worker", "Requests in the batch, or at servers."),
    "pauses_total": ("worker", "Times that a running request was paused."),
    "paused_requests": ("worker", "Requests in the batch that are paused."),
    "kv_free_tokens": ("worker", "KV memory that may still be promised."),
    "step_seconds_total": ("worker,part", "Where steps spend their time."),
    "transfers_total": ("worker,outcome", "Transfers of KV between workers."),
    "transfer_bytes_total": ("worker", "Bytes of KV sent between workers."),
    "retries_total": ("worker", "Calls that were tried at another server."),
    "overrun_tokens_total": ("worker", "Tokens computed beyond what the window held."),
    "window_free_tokens": ("worker", "Tokens of the windows that are free."),
    "server_up": ("worker,server", "Whether a server takes calls."),
    "server_window_requests": ("worker,server", "Calls that a server gets at a time."),
    "uncharged_tokens_total": (
        "worker,server",
        "Tokens that a server says it computed beyond what calls there were charged.",
    ),
    "store_up": ("worker", "Whether the store of the shared account answers."),
    "quota_tokens_total": ("worker,client,kind", "Tokens charged to the clients that have a quota."),
    "quota_refused_total": ("worker,reason", "Calls that a quota had no room for."),
    "quota_used_tokens": (
        "worker,budget,window",
        "Tokens charged in the window of now, or reserved by calls under way.",
    ),
    "quota_most_tokens": ("worker,budget,window", "The quota of that window."),
    "quota_store_up": ("worker", "Whether the store of quotas answers."),
    "quota_unchecked_total": ("worker", "Calls that passed uncounted while that store was away."),
    "quota_overrun_tokens_total": ("worker", "Tokens that calls used beyond what they had reserved."),
    "lease_renewals_total": ("worker,outcome", "Renewals of what the gateway has on lease of the shared account."),
}
"""The labels of each metric, and what it says."""


class Samples(Collector):
    """The samples of some workers, by name, at a scrape, which is in a thread of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.sources: list[tuple[str, Callable[[], Iterable[Sample]]]] = []
        registry.register(self)

    def add(self, worker: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """Add what says a worker's samples."""
        self.sources.append((worker, samples))

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for worker, samples in self.sources:
            for name, labels, value in samples():
                if name not in families:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    full = f"fairsched_{name.removesuffix('_total')}"
                    families[name] = kind(full, HELP[name][1], labels=["worker", *labels])
                families[name].add_metric([worker, *labels.values()], value)
        yield from families.values()


def decision_seconds(registry: CollectorRegistry) -> Histogram:
    """Return the histogram of decision times, by worker."""
    return Histogram(
        "fairsched_decision_seconds",
        HELP["decision_seconds"][1],
        ["worker"],
        buckets=DECISION_SECONDS,
        registry=registry,
    )


def serve(samples: Callable[[], Iterable[Sample]], host: str, port: int, worker: int) -> Callable[[], None]:
    """Answer scrapes at that port; what is returned stops it.  Raises `OSError` for a port that is taken."""
    registry = CollectorRegistry(auto_describe=False)
    Samples(registry).add(str(worker), samples)
    server, thread = start_http_server(port, host, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class EngineMetrics:
    """The metrics of one or more engines of a process: make it, `watch` each engine before it serves."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, clients_shown: int = 20) -> None:
        self._clients_shown = clients_shown
        self._decisions = decision_seconds(registry)
        self._samples = Samples(registry)

    def watch(self, engine: Engine, monitor: Monitor | None = None) -> None:
        """Follow an engine from its first request on; raises `ValueError` for one that has served already.

        `monitor` is fed here and must not be elsewhere (see `status.monitor_of`); without one there are no gaps.
        """
        if engine.next_id:
            raise ValueError(f"worker {engine.state.worker} has served already, and its counts would be wrong")
        status, labels, worker = ServiceStatus(monitor), ClientLabels(self._clients_shown), str(engine.state.worker)
        decided = self._decisions.labels(worker).observe
        engine.bus.listeners.append(status.record)
        engine.decision_listeners.append(lambda spent_ns: decided(spent_ns / 1e9))
        self._samples.add(worker, lambda: _engine_samples(engine, status, labels))


class ClusterMetrics:
    """The transfers of clusters in this process: `watch` each by a name of its own."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._samples = Samples(registry)

    def watch(self, cluster: LiveCluster, name: str = "cluster") -> None:
        """Say what became of the cluster's transfers at every scrape."""
        self._samples.add(name, lambda: _transfer_samples(cluster.transfers))


def _transfer_samples(counts: TransferCounts) -> Iterator[Sample]:
    for outcome in ("started", "landed", "failed", "refused", "stranded"):
        yield "transfers_total", {"outcome": outcome}, getattr(counts, outcome)
    yield "transfer_bytes_total", {}, counts.bytes


def _engine_samples(engine: Engine, status: ServiceStatus, labels: ClientLabels) -> Iterator[Sample]:
    guard = engine.guard
    yield from worker_samples(
        *(status, labels, lambda client: engine.clients.all[client].name),
        *(engine.state.load(), guard.interventions, guard.set_aside),
    )
    yield "pauses_total", {}, status.pauses
    yield "paused_requests", {}, len(engine.state.paused)
    yield from step_samples(engine)
