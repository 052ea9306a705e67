"""Drawn worlds in which KV moves and things fail: split fleets, policies that move requests at any moment, crashes,
restarts, drains, joins and failing links at any instant, callers that give up, tiny memories, lost reports.

`fault_world(seed)` is one of them, and `check_world` runs it and holds it to what must be true after every entry of the
agenda.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import msgspec

from fairsched.engines.simulation import Reports, Simulator
from fairsched.engines.workloads.fleet import Change, Crash, Drain, Join, KvLink, LinkDown, Restart, WorkerSpec
from fairsched.model import cluster
from fairsched.model.decision import Role
from fairsched.model.events import Event, Finished
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, parameters, with_parameters
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from tests.support.faults.drifters import Drifter, Harbour
from tests.support.logs import LATENCY

SPAN_NS = 500
"""Most of a world happens in this time; a step takes some tens of nanoseconds."""

SLOW: LatencyModel = attrs.evolve(LATENCY, name="slow", prefill_constant_ns=40, prefill_token_ns=3)
ENTRIES_MAX = 60_000
"""A world that needs more entries of the agenda does not end."""


class FaultJob(msgspec.Struct, frozen=True):
    """A request: its prompt begins with the blocks `keys`, one token each."""

    id: int
    client: int
    at_ns: int
    prompt_tokens: int
    keys: tuple[int, ...]
    declared_tokens: int
    output_tokens: int
    after: tuple[int, ...] = ()
    cancel_after_ns: int | None = None

    def job(self) -> Job:
        """The job."""
        prompt = Prompt.from_keys(self.keys, tokens=self.prompt_tokens) if self.keys else Prompt(self.prompt_tokens)
        request = Request(self.id, self.client, self.at_ns, prompt, self.declared_tokens)
        return Job(request, self.output_tokens, self.after, cancel_after_ns=self.cancel_after_ns)


class FaultWorker(msgspec.Struct, frozen=True):
    """A worker."""

    capacity: int
    role: Role = "both"
    slow: bool = False
    host: int = 0
    stages: int = 1

    def spec(self) -> WorkerSpec:
        """Its kind."""
        latency = attrs.evolve(SLOW if self.slow else LATENCY, stages=self.stages)
        return WorkerSpec(latency, self.capacity, self.host, role=self.role)


class Fault(msgspec.Struct, frozen=True):
    """Something that happens to a worker; `like` is the worker that joins."""

    kind: Literal["crash", "restart", "drain", "link-down", "join"]
    worker: int
    at_ns: int
    down_ns: int | None = None
    like: FaultWorker | None = None

    def change(self) -> Change:
        """The change of the fleet."""
        match self.kind:
            case "crash":
                return Crash(self.worker, self.at_ns, self.down_ns)
            case "restart":
                return Restart(self.worker, self.at_ns, self.down_ns or 0)
            case "drain":
                return Drain(self.worker, self.at_ns)
            case "link-down":
                return LinkDown(self.worker, self.at_ns, self.down_ns)
            case "join":
                return Join(self.at_ns, None if self.like is None else self.like.spec())


class FaultLink(msgspec.Struct, frozen=True):
    """The links: nanoseconds a token, and the rest of a `KvLink`."""

    token_ns: int
    latency_ns: int = 0
    layers: int = 4
    sync_ns: int = 0
    contended: bool = False

    def link(self) -> KvLink:
        """The link."""
        return KvLink(self.token_ns, 1_000_000_000, self.latency_ns, self.layers, self.sync_ns, self.contended)


class FaultRouter(msgspec.Struct, frozen=True):
    """The cluster's policy: its kind, and how it moves requests (see `drifters`)."""

    kind: Literal["drifter", "harbour", "round-robin"]
    seed: int = 0
    calm: int = 4
    odd: int = 4
    every_us: int | None = None

    def policy(self) -> AnyClusterPolicy:
        """The policy."""
        match self.kind:
            case "drifter":
                return Drifter(self.seed, self.calm, self.odd)
            case "harbour":
                return Harbour(self.seed, self.calm, self.odd, every_us=self.every_us)
            case "round-robin":
                return RoundRobin()


class FaultWorld(msgspec.Struct, frozen=True):
    """A world as data: equal worlds run alike, and its JSON is a replay."""

    claim: str
    workers: tuple[FaultWorker, ...]
    jobs: tuple[FaultJob, ...]
    faults: tuple[Fault, ...]
    link: FaultLink
    router: FaultRouter
    policy: str = "fcfs"
    params: dict[str, str] = {}
    reports: tuple[int, int, float, int] | None = None
    leap: bool = True

    def workload(self) -> Workload:
        """The requests, in order of arrival."""
        jobs = sorted((job.job() for job in self.jobs), key=lambda job: (job.request.arrival_ns, job.request.id))
        clients = 1 + max((job.client for job in self.jobs), default=0)
        return Workload("faults", tuple(jobs), tuple(Client(i, f"client-{i}", 1 + i % 2) for i in range(clients)))

    def build(self) -> ComposedPolicy:
        """The policy of the workers."""
        return with_parameters(LOCAL_POLICIES[self.policy], self.params)

    def simulator(self, workload: Workload, **options: Any) -> Simulator:
        """The run; `options` are the simulator's and go first."""
        own: dict[str, Any] = {
            "workers": tuple(worker.spec() for worker in self.workers),
            "changes": tuple(fault.change() for fault in self.faults),
            "link": self.link.link(),
            "reports": None if self.reports is None else Reports(*self.reports),
            "leap": self.leap,
        }
        return Simulator(workload, self.build(), self.router.policy(), LATENCY, **own | options)


# --- drawing ----------------------------------------------------------------------------------------------------------


def fault_world(seed: int) -> FaultWorld:
    """The world of a seed: two to four workers, up to twelve requests, up to five faults."""
    rng = random.Random(seed)
    count = rng.randint(2, 4)
    roles: list[Role] = [rng.choice(("prefill", "decode", "both")) for _ in range(count)]
    if len(set(roles)) == 1:
        roles[0] = "both"
    sizes = rng.choice(((20,), (30, 40), (40,), (25, 60), (200,)))
    host = rng.choice((0, 0, 0, 30))
    stages = rng.choice((1, 1, 1, 3))
    workers = tuple(FaultWorker(rng.choice(sizes), role, rng.random() < 0.2, host, stages) for role in roles)
    jobs = tuple(_job(rng, i) for i in range(rng.randint(1, 12)))
    joins = rng.choice((0, 0, 0, 1))
    kinds: list[Literal["crash", "restart", "drain", "link-down"]] = ["crash", "restart", "drain", "link-down"]
    faults = [
        Fault(rng.choice(kinds), rng.randrange(count + joins), _instant(rng), rng.choice((None, 0, 1, 60, 300)))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))
    ]
    faults += [Fault("join", 0, _instant(rng), None, rng.choice((None, *workers))) for _ in range(joins)]
    name = rng.choice(("fcfs", "fcfs", "lpm", "vtc", "dlpm", "dlpm", *sorted(LOCAL_POLICIES)))
    return FaultWorld(
        claim=f"seed {seed}",
        workers=workers,
        jobs=jobs,
        faults=tuple(faults),
        link=FaultLink(
            token_ns=rng.choice((0, 1, 10, 40)),
            latency_ns=rng.choice((0, 0, 7)),
            layers=rng.choice((1, 4)),
            sync_ns=rng.choice((0, 3)),
            contended=rng.random() < 0.5,
        ),
        router=FaultRouter(
            rng.choice(("drifter", "drifter", "harbour")),
            rng.randrange(1 << 30),
            rng.choice((0, 2, 4, 16)),
            rng.choice((0, 3, 8)),
            rng.choice((None, None, None, None, None, None, None, 1)),
        ),
        policy=name,
        params=params_drawn(rng, name),
        reports=None if rng.random() < 0.9 else (rng.choice((1, 2)), rng.choice((0, 1)), rng.choice((0.0, 0.4)), 1),
        leap=rng.random() < 0.8,
    )


def _instant(rng: random.Random) -> int:
    return rng.choice((0, SPAN_NS // 4, rng.randrange(SPAN_NS), rng.randrange(SPAN_NS)))


def _job(rng: random.Random, i: int) -> FaultJob:
    keys = tuple(rng.randrange(2) for _ in range(rng.choice((0, 0, 3, 6))))
    declared = rng.choice((1, 2, 4, 8, 12))
    follows = i > 0 and rng.random() < 0.15
    return FaultJob(
        id=i,
        client=rng.randrange(3),
        at_ns=rng.choice((0, rng.randrange(SPAN_NS // 2))),
        prompt_tokens=len(keys) + rng.choice((1, 2, 5, 9, 18)),
        keys=keys,
        declared_tokens=declared,
        output_tokens=rng.randint(1, declared),
        after=(rng.randrange(i),) if follows else (),
        cancel_after_ns=rng.randrange(SPAN_NS) if rng.random() < 0.15 else None,
    )


def params_drawn(rng: random.Random, name: str) -> dict[str, str]:
    """Parameters small enough to matter."""
    known = parameters(LOCAL_POLICIES[name])
    drawn = {
        "batching": rng.choice(("chunked", "iteration-level", "eager-prefill", "request-level")),
        "reserve": rng.choice(("static", "optimistic")),
        "max_batched_tokens": rng.choice(("3", "8", "64")),
        "max_running": rng.choice(("2", "16")),
        "quantum": rng.choice(("1", "5", "30")),
    }
    return {key: value for key, value in drawn.items() if key in known}


# --- checking ---------------------------------------------------------------------------------------------------------


class Watch:
    """Holds a run to what must be true between any two entries of its agenda."""

    def __init__(self, world: FaultWorld) -> None:
        self.workload = world.workload()
        self.ledger = EventLedger()
        self.events: list[Event] = []
        self.entries = 0
        self._latest: Counter[int] = Counter()
        self._checked: dict[int, WorkerState] = {}
        self.simulator = world.simulator(self.workload, on_events=self._listen)
        vars(self.simulator.loop)["run"] = self._run

    def _listen(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            self.ledger.record(event)
            assert event.time_ns >= self._latest[event.worker], "a worker's time runs back"
            self._latest[event.worker] = event.time_ns

    def _run(self, handlers: Sequence[Callable[[int, int], None]]) -> None:
        """As the event loop, with a check after each entry."""
        one = type(self.simulator.loop).run
        loop = self.simulator.loop
        watched = [self._watched(handler) for handler in handlers]
        one(loop, watched)

    def _watched(self, handler: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def handle(key: int, run: int) -> None:
            handler(key, run)
            self.entries += 1
            assert self.entries <= ENTRIES_MAX, "the run does not end"
            self.check()

        return handle

    def check(self) -> None:
        """Every worker is in order, and no request and no KV is at two places."""
        changed = False
        for worker in self.simulator.workers:
            state = worker.state
            if self._checked.get(state.worker) is not state:
                changed = True
                worker_invariants.check(state)
                kept = state.promised + state.cache.tree.protected_tokens
                assert kept <= state.capacity, f"worker {state.worker} promised {kept} of {state.capacity} tokens"
                self._checked[state.worker] = state
            if state.worker not in self.simulator.pool.cluster.workers:
                assert state == worker.spec.empty(state.worker), f"worker {state.worker} is gone and has requests or KV"
        if changed:
            check_custody([worker.state for worker in self.simulator.workers])
            cluster.check(self.simulator.pool.cluster)

    def over(self) -> None:
        """At the end every request has ended once, and all memory is free."""
        self.ledger.check_over(job.request.id for job in self.workload.jobs)
        outputs = {job.request.id: job.output_tokens for job in self.workload.jobs}
        assert all(outputs[e.request_id] == e.output_tokens for e in self.events if isinstance(e, Finished))
        for worker in self.simulator.workers:
            state = worker.state
            self.simulator.pool.policy.check(worker.policy_state)
            left = len(state.queue) + len(state.running)
            assert not left, f"worker {state.worker} still has {left} requests"
            kept = state.used + state.promised + state.host.used_tokens
            assert not kept, (
                f"worker {state.worker} keeps {state.promised} tokens, {state.host.used_tokens} on its host"
            )
            assert not state.cache.pins, f"worker {state.worker} keeps pins"


def check_custody(states: Sequence[WorkerState]) -> None:
    """No request is at two workers, no KV is in two memories but a transfer's target's, and that is one."""
    at: dict[int, int] = {}
    staged: dict[int, int] = {}
    targets: dict[int, int] = {}
    for state in states:
        for request_id in (*state.queue, *state.running, *state.transit.outgoing):
            assert request_id not in at, f"request {request_id} is at workers {at[request_id]} and {state.worker}"
            at[request_id] = state.worker
        staged |= dict.fromkeys(state.transit.outgoing, state.worker)
        for request_id in state.transit.incoming:
            before = targets.get(request_id)
            assert before is None, f"workers {before} and {state.worker} keep memory for request {request_id}"
            targets[request_id] = state.worker
    for request_id, target in targets.items():
        assert request_id in at, f"worker {target} keeps memory for request {request_id}, which no worker has"
        assert at[request_id] != target, f"worker {target} keeps memory for request {request_id} of its own"
        if request_id not in staged:
            # Memory is kept before the prefill only for a request that leaves after it.
            state = states[at[request_id]]
            waiting = state.queue.get(request_id) or state.running[request_id].waiting
            assert waiting.prefill_only, f"worker {target} keeps memory for request {request_id}, which stays elsewhere"


def check_world(world: FaultWorld) -> Watch:
    """Run a world to its end; raises whatever shows that something is wrong."""
    watch = Watch(world)
    watch.simulator.run()
    watch.check()
    watch.over()
    return watch


def fails(world: FaultWorld) -> str | None:
    """Why a world fails, in one line; None if all is well."""
    try:
        check_world(world)
    except Exception as error:
        lines = str(error).splitlines()
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        return f"{type(error).__name__}: {lines[0] if lines else ''}{where}"
    return None
