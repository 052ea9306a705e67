"""Engines on a clock of their own: a fake executor whose steps take exactly what a latency model says, or nearly."""

from collections.abc import Callable

from fairsched.engines.calibration.meter import StepShape
from fairsched.model.decision import StepPlan
from fairsched.model.machine import LatencyModel
from tests.support.engines.fake_executor import FakeExecutor


class FakeClock:
    """Time that only passes when somebody says so."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def wait_until(self, at_ns: int) -> None:
        self.time_ns = max(self.time_ns, at_ns)


class PricedExecutor(FakeExecutor):
    """Each step takes the model's time for what its own books say, times `noise`."""

    def __init__(self, clock: FakeClock, latency: LatencyModel, noise: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__()
        self.clock = clock
        self.latency = latency
        self.noise = noise

    def execute(self, plan: StepPlan) -> dict[int, int]:
        chunks = tuple((tokens, self.computed[request_id]) for request_id, tokens in plan.chunks)
        decoding = [len(self.contexts[request_id]) for request_id in self.decoding] if plan.decode else []
        shape = StepShape(chunks, len(decoding), sum(decoding))
        self.clock.time_ns += round(shape.ns(self.latency) * self.noise())
        return super().execute(plan)
