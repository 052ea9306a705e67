"""A live cluster in simulated time: the code that serves, with steps that take as long as a latency model says.

Workers serve within the call, and their reports come when the step is over.  So the same requests can be given to a
cluster and to a simulator, and what both tell can be compared event for event.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from fairsched.engines.serving import BlockKeys
from fairsched.engines.serving.cluster import LiveCluster, Recipe
from fairsched.engines.serving.cluster import cluster as live
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence, Command, ServingReport, WorkerConfig, WorkerHost
from fairsched.engines.serving.log import EventLog
from fairsched.engines.simulation import Simulator
from fairsched.engines.simulation.simulated_worker import SimulatedWorker
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.decision import StepPlan
from fairsched.model.events import Event
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Workload
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy
from tests.support.engines.fake_executor import FakeExecutor

BURST_NS = 1_000_000_000_000
"""From one burst to the next: every request of the former has ended."""
_MODEL = PRESETS["llama-3.1-8b-a100"]


def specs_of(workers: int, capacity: int) -> tuple[WorkerSpec, ...]:
    """Workers of which each is a little slower than the one before, so that no two steps end at one instant."""
    return tuple(
        WorkerSpec(
            attrs.evolve(
                _MODEL,
                name=f"worker-{i}",
                prefill_constant_ns=_MODEL.prefill_constant_ns + 1_370_003 * i,
                decode=tuple(
                    attrs.evolve(piece, constant_ns=piece.constant_ns + 2_110_067 * i) for piece in _MODEL.decode
                ),
            ),
            capacity,
        )
        for i in range(workers)
    )


@attrs.define
class _Clock:
    """A worker's time: when it was called, and later while it computes."""

    now_ns: int = 0


class _TimedExecutor(FakeExecutor):
    """Takes the time of a step."""

    def __init__(self, clock: _Clock, spec: WorkerSpec) -> None:
        super().__init__()
        self._clock, self._spec = clock, spec
        self.host: WorkerHost | None = None

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert self.host is not None
        step = SimulatedWorker(self._spec, self.host.engine.state, None)
        self._clock.now_ns = step.start(plan, False, self._clock.now_ns)
        return super().execute(plan)


@attrs.frozen
class _TimedConfig(WorkerConfig):
    time: _Clock = attrs.field(factory=_Clock)

    def clock(self) -> Callable[[], int]:
        return lambda: self.time.now_ns


class _TimedWorker:
    def __init__(self, policy: AnyLocalPolicy, config: WorkerConfig, spec: WorkerSpec, world: "LiveWorld") -> None:
        self._world, self._clock = world, _Clock(world.now_ns)
        executor = _TimedExecutor(self._clock, spec)
        fields = {field.name: getattr(config, field.name) for field in attrs.fields(WorkerConfig)}
        recipe = Recipe(policy, lambda: executor, spec.capacity)
        self.number = config.worker
        self.host = executor.host = WorkerHost(recipe, _TimedConfig(**fields, time=self._clock))

    def serve(self, commands: Sequence[Command], pace: Cadence) -> "Future[ServingReport]":
        future: Future[ServingReport] = Future()
        self._clock.now_ns = self._world.now_ns
        self._world.calls += 1
        report = self.host.serve(commands, pace)
        if self._clock.now_ns == self._world.now_ns:
            future.set_result(report)
        else:
            self._world.due.append((self._clock.now_ns, self.number, lambda: future.set_result(report)))
        return future

    def stop(self) -> None:
        self.host.close()


class _Jobs(EventLog):
    """Keeps the requests as they were told."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def define_client(self, client: Client) -> None:
        pass

    def define_request(self, job: Job) -> None:
        self.jobs.append(job)

    def record(self, events: list[Event]) -> None:
        pass


Asked = tuple[int, Sequence[int], int]
"""A request of a client: its prompt, and so many output tokens."""


class LiveWorld:
    """A live cluster, run through bursts of requests; `events` are those that it told, `jobs` its requests."""

    def __init__(
        self, policy: AnyLocalPolicy, router: AnyClusterPolicy, specs: Sequence[WorkerSpec], clients: Sequence[Client]
    ) -> None:
        self.now_ns = 0
        self.calls = 0
        self.due: list[tuple[int, int, Callable[[], None]]] = []
        self.events: list[Event] = []
        self.workers: list[_TimedWorker] = []
        self._log = _Jobs()
        self._arrivals: dict[int, int] = {}
        self._clients, self._specs = clients, specs

        def start(config: WorkerConfig) -> _TimedWorker:
            self.workers.append(_TimedWorker(policy, config, specs[config.worker], self))
            return self.workers[-1]

        options: dict[str, Any] = {"kv_capacity_tokens": specs[0].capacity, "workers": len(specs), "clients": clients}
        self.cluster = LiveCluster(
            policy,
            router,
            start,
            log=self._log,
            listeners=[self.events.extend],
            block_keys=BlockKeys(1),
            pace=Cadence(1e9, 1),
            timeouts=Timeouts(1e9, 1e9),
            now_ns=lambda: self.now_ns,
            **options,
        )
        self._settle()

    def run(self, bursts: Iterable[Sequence[Asked]]) -> None:
        """Ask for every burst at its time, and serve until all requests have ended."""
        for i, burst in enumerate(bursts):
            assert self.now_ns <= i * BURST_NS
            self.now_ns = i * BURST_NS
            for client, prompt, output in burst:
                answer = self.cluster.ask(self._clients[client].name, prompt, output, output_tokens=output)
                self._arrivals[answer.request_id] = self.now_ns
            self._settle()
            while self.due:
                self.due.sort(key=lambda entry: entry[:2])
                self.now_ns, _, report = self.due.pop(0)
                report()
                self._settle()
            assert not self.cluster.answers

    def _settle(self) -> None:
        """Let the cluster do all that it can do now."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live, "wait", lambda *_, **__: None)
            idle = 0
            while idle < 3:
                before = self.calls, len(self.events)
                self.cluster.step()
                idle = 0 if (self.calls, len(self.events)) != before else idle + 1

    @property
    def workload(self) -> Workload:
        """The same requests, for a simulator."""
        jobs = [replace(job, request=replace(job.request, arrival_ns=self._arrivals[job.request.id]))
                for job in self._log.jobs]  # fmt: skip
        return Workload("live", tuple(jobs), tuple(self._clients))


def simulated(world: LiveWorld, policy: AnyLocalPolicy, router: AnyClusterPolicy) -> tuple[list[Event], Simulator]:
    """The events of a simulation of the same requests on the same workers, and the simulator in its last state."""
    events: list[Event] = []
    simulator = Simulator(
        world.workload, policy, router, _MODEL, workers=world._specs, on_events=events.extend, leap=False
    )
    simulator.run()
    return events, simulator
