"""The metrics of a policy inside an engine for Prometheus, at a port of the scheduler's own process."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairsched.engines.inside.status import Status

TEXTS = {
    "client_service_tokens_total": "Tokens computed for a client, or taken from the cache.",
    "guard_interventions_total": "Decisions that the policy did not take.",
    "requests_total": "Requests that ended.",
    "policy_set_aside": "1 while the oldest goes first for good.",
    "waiting_requests": "Requests in the queue.",
    "running_requests": "Requests in the batch.",
    "kv_free_tokens": "KV memory that nobody uses.",
    "service_gap_tokens": "Largest service gap between two clients that both waited.",
    "service_gap_bound_tokens": "What the policy promises of the service gap.",
    "bound_violations_total": "Events at which a gap exceeded its bound.",
    "assumption_violations_total": "Events that broke an assumption.",
}


class StatusMetrics(Collector):
    """What a status says, at a scrape."""

    def __init__(self, status: Status, worker: int) -> None:
        self._status = status
        self._worker = str(worker)

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        families: dict[str, Metric] = {}
        for name, labels, value in self._status.samples():
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                full = f"fairsched_{name.removesuffix('_total')}"
                family = families[name] = kind(full, TEXTS[name], labels=["worker", *labels])
            family.add_metric([self._worker, *labels.values()], value)  # type: ignore[attr-defined]
        yield from families.values()


def serve(status: Status, host: str, port: int, worker: int) -> Callable[[], None]:
    """Answer scrapes at that port; what is returned stops it.  Raises `OSError` for a port that is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusMetrics(status, worker))
    server, thread = start_http_server(port, host, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
