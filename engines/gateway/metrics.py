"""Metrics of a gateway for Prometheus, under the names of `engines.prometheus`; its worker is "gateway".

At most `CLIENTS_SHOWN` clients have a label of their own, those that were served most; what others get goes to "other"
and stays there, so that no series falls.  Prompts are counted as they are charged: what is given back is made up for by
what comes next.

    fairsched_client_service_tokens_total{worker,client,phase}   tokens of prompts ("prefill") and outputs ("decode")
    fairsched_service_gap_tokens{worker}, fairsched_service_gap_bound_tokens{worker}
    fairsched_bound_violations_total{worker}, fairsched_assumption_violations_total{worker,assumption}
    fairsched_decision_seconds{worker}                           whom to let in, all at a time (histogram)
    fairsched_policy_set_aside{worker}
    fairsched_requests_total{worker,outcome}, fairsched_retries_total{worker}
    fairsched_waiting_requests{worker}, fairsched_running_requests{worker}, fairsched_window_free_tokens{worker}
    fairsched_overrun_tokens_total{worker}                       computed beyond what the window held
    fairsched_server_up{worker,server}
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.prometheus import DECISION_SECONDS, OTHER

CLIENTS_SHOWN = 20
WORKER = "gateway"


class GatewayMetrics(Collector):
    """A registry of its own for one gateway."""

    def __init__(self, gateway: Gateway, books: Books) -> None:
        self._gateway = gateway
        self._books = books
        self._seen: Counter[tuple[int, str]] = Counter()
        self._told: Counter[tuple[str, str]] = Counter()
        self._registry = CollectorRegistry()
        decisions = Histogram(
            "fairsched_decision_seconds",
            "Time to let in all that may go on.",
            ["worker"],
            buckets=DECISION_SECONDS,
            registry=self._registry,
        )
        gateway.decided = decisions.labels(WORKER).observe
        self._registry.register(self)

    def text(self) -> bytes:
        """What a scrape reads.  Called in the gateway's event loop."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield self._service()
        yield from self._promise()
        yield from self._calls()

    def _service(self) -> Metric:
        phases = {"prefill": self._books.prompt_tokens, "decode": self._books.output_tokens}
        served: Counter[int] = Counter()
        for counts in phases.values():
            served.update(counts)
        names = self._gateway.clients.all
        shown = {client: names[client].name for client, _ in served.most_common(CLIENTS_SHOWN)}
        for phase, counts in phases.items():
            for client, count in counts.items():
                fresh = count - self._seen[client, phase]
                if fresh > 0:
                    self._seen[client, phase] = count
                    self._told[shown.get(client, OTHER), phase] += fresh
        family = _counter("client_service_tokens", "Tokens charged to a client.", "client", "phase")
        kept = {*shown.values(), OTHER}
        for (name, phase), count in sorted(self._told.items()):
            if name in kept:
                family.add_metric([WORKER, name, phase], count)
        return family

    def _promise(self) -> Iterator[Metric]:
        if self._books.monitor is None:
            return
        report, charging = self._books.monitor.report(), self._books.monitor.promise.charging
        unit = charging.rates.output * min(charging.multipliers, default=1)
        for name, text, cost in (
            ("service_gap_tokens", "Largest service gap between two clients that both waited.", report.gap),
            ("service_gap_bound_tokens", "What the policy promises of the service gap.", report.gap_bound),
        ):
            if cost is not None:
                gauge = _gauge(name, text)
                gauge.add_metric([WORKER], (cost if isinstance(cost, int) else cost.cost) / unit)
                yield gauge
        violations = _counter("bound_violations", "Events at which a gap exceeded its bound.")
        violations.add_metric([WORKER], report.bound_violations or 0)
        broken = _counter("assumption_violations", "Events that broke an assumption.", "assumption")
        for name, finding in sorted(report.assumptions.items()):
            if finding.theorems and finding.violated is not None:
                broken.add_metric([WORKER, name], finding.violated)
        yield from (violations, broken)

    def _calls(self) -> Iterator[Metric]:
        gateway, window = self._gateway, self._gateway.window
        requests = _counter("requests", "Calls that ended, and tries of them.", "outcome")
        for outcome, count in sorted(gateway.outcomes.items()):
            requests.add_metric([WORKER, outcome], count)
        yield requests
        for family, value in (
            (_counter("retries", "Calls that were tried at another server."), gateway.retries),
            (_counter("overrun_tokens", "Tokens computed beyond what the window held."), window.overrun_tokens),
            (_gauge("waiting_requests", "Calls that wait."), window.waiting),
            (_gauge("running_requests", "Calls at servers."), window.in_flight),
            (_gauge("window_free_tokens", "Tokens of the windows that are free."), _free(gateway)),
            (_gauge("policy_set_aside", "1 while the oldest goes first for good."), window.set_aside is not None),
        ):
            family.add_metric([WORKER], value)
            yield family
        up = _gauge("server_up", "Whether a server takes calls.", "server")
        for server, is_up in zip(gateway.config.servers, window.up, strict=True):
            up.add_metric([WORKER, server.url], is_up)
        yield up


def _free(gateway: Gateway) -> int:
    return gateway.window.tokens - gateway.window.in_flight_tokens


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"fairsched_{name}", text, labels=["worker", *labels])


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairsched_{name}", text, labels=["worker", *labels])
