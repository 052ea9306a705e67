"""What an account tells Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest

from fairsched.engines.serving import Sample, Samples, decision_seconds

WORKER = "gateway"
"""The gateway's name among the metrics of workers."""


class Metrics:
    """The registry of one account; `decided` takes how long a decision took."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._registry = CollectorRegistry()
        self.decided: Callable[[float], object] = decision_seconds(self._registry).labels(WORKER).observe
        Samples(self._registry).add(WORKER, samples)

    def text(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self._registry)
