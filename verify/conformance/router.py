"""What every router must do, as one Hypothesis state machine that plays a cluster against it.

Workers of all roles join, drain, leave with what they have and come back under their old number; requests come, are
given up, and go elsewhere when their worker is gone; KV is on its way, and links fail; reports are as old as they
happen to be, and some are untrue.  The claims:

- **Pure.**  `route` and `observe` change nothing that they are given, and the same state, request and view give the
  same dispatch and state, at once and many steps later.
- **There.**  A request is sent to a worker that the view shows, and nothing is held; what moves is where the router
  says, and goes to another worker that the view shows.
- **Once.**  Every request ends once, and all end when nothing more comes and reports are true.  KV of a request is at
  one worker, or on its way to memory that is reserved for it.
- **Kept.**  A state survives JSON, and goes on as if nothing had happened.
- **Sound.**  The router's own `check` holds after everything that happens.

The author of a router calls `check_router(MyRouter())`, that of a policy which holds requests `check_cluster_policy`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from fairsched.model import cluster
from fairsched.model import events as ev
from fairsched.model import worker as transitions
from fairsched.model.decision import ClusterView, Dispatch, Migration, Role
from fairsched.model.request import Request
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyClusterPolicy, AnyRouter
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import FCFS
from fairsched.verify.conformance.cluster import ClusterPlay
from fairsched.verify.conformance.play import WorkerPlay, encoded, restored
from fairsched.verify.conformance.strategies import SAVED_MAX, requests, run_battery

T = TypeVar("T")

WORKERS_MAX = 4
LOCAL = FCFS(batching=Chunked(max_batched_tokens=7, max_running=3))
"""What the workers do with what they are sent."""
PAUSES_NS = (1, 1_000, 50_000_000, 100_000_000, 400_000_000_000)
"""Waits between two rules, from less than any router's period to more than any router remembers."""
REPORTED = ("waiting_requests", "running_requests", "waiting_tokens", "kv_free_tokens", "kv_capacity_tokens")
"""What a worker reports of itself, which may not be so."""
ROUNDS_MAX = 400
"""After so many rounds in which all workers work every request has ended."""
FIGURES = st.one_of(st.integers(0, 3), st.integers(0, 1 << 40))

picks = st.integers(0, 99)
roles: st.SearchStrategy[Role] = st.sampled_from(("both", "prefill", "decode"))


class PlayedServer(WorkerPlay):
    """A worker with its local policy, and what it last reported."""

    def __init__(self, worker: int, capacity: int, role: Role) -> None:
        super().__init__(LOCAL, WorkerState(worker, capacity, role=role))
        self.report = self.worker.load()


def check_router(router: AnyRouter, settings: hypothesis_settings | None = None) -> None:
    """Play the whole battery against a router; raises what it finds, after the shortest way there was printed.

    `settings` says how many runs of how many steps (default: the Hypothesis profile that is loaded).  No run is judged
    by the time that it takes.
    """
    run_battery(type(f"Conformance[{type(router).__name__}]", (RouterMachine,), {"router": router}), settings)


def check_cluster_policy(policy: AnyClusterPolicy, settings: hypothesis_settings | None = None) -> None:
    """Play the battery against a policy that holds requests, in the same way."""
    run_battery(type(f"Conformance[{type(policy).__name__}]", (ClusterMachine,), {"router": policy}), settings)


class RouterMachine(RuleBasedStateMachine):
    """A few workers, one router, and whatever may happen to them."""

    router: Any

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.state: Any = self.router.init()
        self.servers: dict[int, PlayedServer] = {}
        self.outputs: dict[int, int] = {}
        """Output tokens of every request that came."""
        self.requests: dict[int, Request] = {}
        self.cluster = ClusterPlay(self.servers, self.requests, self.outputs)
        self.over: set[int] = set()
        self.misled = False
        """Whether an untrue report made the router send a request where it cannot be."""
        self.saved: list[tuple[Any, bytes, Request, ClusterView, Dispatch, bytes]] = []
        """What was decided, between the states before and after it as they were written then."""

    @initialize(drawn=st.lists(roles, min_size=1, max_size=3), capacity=st.integers(12, 40))
    def open(self, drawn: list[Role], capacity: int) -> None:
        """Open a cluster of one worker or a few."""
        for role in drawn:
            self.start(capacity, role)

    # --- who comes --------------------------------------------------------------------------------------------------

    @rule(drawn=st.lists(requests(output_tokens_max=6), min_size=1, max_size=4), early=st.integers(0, 2))
    def arrive(self, drawn: list[Request], early: int) -> None:
        """Let requests come at one instant, to be placed one after the other."""
        for request in drawn:
            request = replace(request, id=len(self.outputs), arrival_ns=self.now_ns)
            self.outputs[request.id] = max(request.max_output_tokens - early, 1)
            self.requests[request.id] = request
            self.place(request, 0)

    @precondition(lambda m: m.given())
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        there = self.given()
        request_id = there[pick % len(there)]
        worker = self.cluster.state.at[request_id]
        if worker != ev.NOWHERE:
            server = self.servers[worker]
            self.tell(server.follow(transitions.cancel(server.worker, request_id, self.now_ns)))
        else:
            done, client = self.cluster.staged(request_id).generated_tokens, self.requests[request_id].client
            self.tell([ev.Cancelled(self.now_ns, ev.NOWHERE, request_id, client, False, 0, done)])
        self.begin()

    # --- what workers do --------------------------------------------------------------------------------------------

    @rule(pick=picks, count=st.integers(1, 5), asked=st.booleans())
    def work(self, pick: int, count: int, asked: bool) -> None:
        """Take a few steps at a worker, and perhaps ask the router after them."""
        server = self.pick(list(self.servers), pick)
        for _ in range(count):
            self.tell(server.step(self.now_ns))
        self.begin()
        if asked:
            self.decide()

    @precondition(lambda m: m.cluster.moving("sending"))
    @rule(pick=picks)
    def land(self, pick: int) -> None:
        """KV has come where it was sent."""
        there = self.cluster.moving("sending")
        self.tell(self.cluster.land(there[pick % len(there)], self.now_ns))
        self.begin()

    @precondition(lambda m: m.cluster.moving("reserving", "sending"))
    @rule(pick=picks)
    def cut(self, pick: int) -> None:
        """Cut a link while KV is sent, or waits to be."""
        there = self.cluster.moving("reserving", "sending")
        self.tell(self.cluster.do(cluster.fail(self.cluster.state, there[pick % len(there)]), self.now_ns))
        self.begin()

    @rule()
    def decide(self) -> None:
        """Move what the router wants to move, unless it would not fit; most routers want nothing."""
        plan = self.ask(self.router.decide, self.view())
        assert not plan.dispatches, "a router holds nothing that it could dispatch later"
        moved = [migration.request_id for migration in plan.migrations]
        assert len(set(moved)) == len(moved), "a request moves twice at once"
        for migration in plan.migrations:
            self.migrate(migration)

    @rule(pause_ns=st.sampled_from(PAUSES_NS))
    def wait(self, pause_ns: int) -> None:
        self.now_ns += pause_ns

    @rule(pick=picks)
    def report(self, pick: int) -> None:
        """Let a worker say how it stands; all others' reports grow older."""
        server = self.pick(list(self.servers), pick)
        server.report = server.worker.load()

    @rule(pick=picks, figures=st.lists(FIGURES, min_size=5, max_size=5))
    def lie(self, pick: int, figures: list[int]) -> None:
        """Let a worker report what is not so, perhaps more free memory than it has in all; its role is known."""
        server = self.pick(list(self.servers), pick)
        server.report = replace(server.report, **dict(zip(REPORTED, figures, strict=True)))

    # --- what workers are there -------------------------------------------------------------------------------------

    @precondition(lambda m: len(m.servers) < WORKERS_MAX)
    @rule(capacity=st.integers(12, 40), role=roles)
    def join(self, capacity: int, role: Role) -> None:
        """Let a worker come, perhaps under the number of one that left, and in another role."""
        self.start(capacity, role)

    @precondition(lambda m: len(m.serving()) > 1)
    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        worker = self.pick(self.serving(), pick).worker.worker
        self.cluster.state = cluster.enter(self.cluster.state, worker, "draining")
        self.tell([ev.WorkerDraining(self.now_ns, worker)])
        for request_id in cluster.unreserved(self.cluster.state, worker):
            self.tell(self.cluster.do(cluster.fail(self.cluster.state, request_id), self.now_ns))

    @precondition(lambda m: len(m.serving()) > 1)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """Take out a worker, with its memory; what it had is placed again, with the tokens that it has."""
        worker = self.pick(list(self.servers), pick).worker.worker
        events, lost = self.cluster.lose(worker, self.now_ns)
        del self.servers[worker]
        self.tell(events)
        self.tell([ev.WorkerLeft(self.now_ns, worker)])
        for waiting in lost:
            self.place(self.requests[waiting.request.id], waiting.generated_tokens)
        self.begin()

    @rule()
    def settle(self) -> None:
        """Let nothing more come, report the truth, and end all requests."""
        rounds = 0
        while self.unfinished() and rounds < ROUNDS_MAX:
            self.now_ns += PAUSES_NS[-1]
            for server in self.servers.values():
                server.report = server.worker.load()
            self.decide()
            while self.cluster.moving("sending"):
                self.land(0)
            for server in self.servers.values():
                self.tell(server.step(self.now_ns))
                self.tell(self.cluster.makes_room(server, self.now_ns))
            self.begin()
            rounds += 1
        if self.misled:
            # An engine lets a request go on that was sent where it cannot be.
            while (step := cluster.unstrand(self.cluster.state)) is not None:
                self.tell(self.cluster.do(step, self.now_ns))
            self.misled = False
            self.settle()
        assert not self.unfinished(), f"requests {self.unfinished()} never end"

    @invariant()
    def at_one_place(self) -> None:
        """Memory is what the requests there hold, and each request is at one place."""
        self.cluster.check()

    # --- what a router's keeper does ----------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        """Write and read the state, and go on."""
        self.state = restored(self.router, self.state)

    @precondition(lambda m: m.saved)
    @rule(pick=picks)
    def look_back(self, pick: int) -> None:
        """Route again from an old state as it did then."""
        state, before, request, view, dispatch, after = self.saved[pick % len(self.saved)]
        assert self.encoded(state) == before, "a state changed after it was left behind"
        again, after_again = self.router.route(state, request, view)
        assert again == dispatch
        assert self.encoded(after_again) == after

    # --- how all of them do it ----------------------------------------------------------------------------------------

    def place(self, request: Request, generated_tokens: int) -> None:
        """Route a request, check everything that can be checked about it, and let its worker have it."""
        view, state, before = self.view(), self.state, self.encoded(self.state)
        dispatch: Dispatch = self.ask(self.router.route, request, view)
        assert dispatch.request_id == request.id, f"asked about request {request.id}, dispatched {dispatch.request_id}"
        assert dispatch.worker in [load.worker for load in view.workers], f"the view has no worker {dispatch.worker}"
        saved = (state, before, request, view, dispatch, self.encoded(self.state))
        self.saved = [*self.saved[1 - SAVED_MAX :], saved]
        self.deliver(request, generated_tokens, dispatch)

    def ask(self, decision: Callable[..., tuple[T, Any]], *about: Any) -> T:
        """Return what the router decides, each time that it is asked from the same state; it goes on in the new one."""
        before = self.encoded(self.state)
        decided, after = decision(self.state, *about)
        for state in (self.state, restored(self.router, self.state)):
            again, after_again = decision(state, *about)
            assert again == decided, f"the same state and view gave {decided} and {again}"
            assert self.encoded(after_again) == self.encoded(after), "the same decision left two different states"
        assert self.encoded(self.state) == before, f"{decision.__name__} changed the state that it was given"
        self.router.check(after)
        self.state = after
        return decided

    def deliver(self, request: Request, generated_tokens: int, dispatch: Dispatch) -> None:
        """Deliver the request to the worker, which may reject it because it is too large."""
        server, output_tokens = self.servers[dispatch.worker], self.outputs[request.id]
        events = server.arrive(request, output_tokens, self.now_ns, generated_tokens, dispatch.prefill_only)
        self.cluster.state = cluster.place(self.cluster.state, request.id, dispatch.worker)
        self.tell(events)

    def migrate(self, migration: Migration) -> None:
        """Move the request from its worker to the other one; one that is staged with its KV."""
        request_id, source, target = migration.request_id, migration.source, migration.target
        state, move = self.cluster.state, self.cluster.state.moves.get(migration.request_id)
        staged = move is not None and move.is_staged and move.source == source
        assert staged or state.at.get(request_id) == source, f"request {request_id} is not at worker {source}"
        prefill_only = False
        if not (staged and target == source):
            assert target in self.serving(), f"request {request_id} cannot go to worker {target}, which takes none"
            assert target != source, f"request {request_id} is at worker {source} already"
            if not self.servers[target].worker.fits_alone(self.requests[request_id]):
                self.misled |= staged
                return
        if not staged:
            server = self.servers[source].worker
            waiting = server.queue.get(request_id)
            prefill_only = (waiting or server.running[request_id].waiting).prefill_only
        plan = replace(migration, overlap="none")
        step = cluster.migrate(state, plan, takes=True, prefill_only=prefill_only)
        if move is not None and not staged:
            assert step is None, "a request has two targets"
            return
        assert step is not None, f"request {request_id} is on its way already"
        self.tell(self.cluster.do(step, self.now_ns))
        self.begin()

    def begin(self) -> None:
        """Begin transfers for which there is room."""
        self.tell(self.cluster.begin(self.now_ns))

    def unfinished(self) -> list[int]:
        return sorted(self.cluster.state.at)

    def given(self) -> list[int]:
        state = self.cluster.state
        return [i for i in self.unfinished() if state.at[i] != ev.NOWHERE or i in state.moves]

    def tell(self, events: list[ev.Event]) -> None:
        """Tell the router events one by one; what is staged goes where it was planned."""
        for event in events:
            before = self.encoded(self.state)
            after, again = self.router.observe(self.state, event), self.router.observe(self.state, event)
            assert self.encoded(self.state) == before, "observe changed the state that it was given"
            assert self.encoded(after) == self.encoded(again), "the same event left two different states"
            self.router.check(after)
            self.state = after
            if isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected):
                assert event.request_id not in self.over, f"request {event.request_id} ends twice"
                self.over.add(event.request_id)
                self.cluster.do(cluster.end(self.cluster.state, event.request_id), self.now_ns)
        for event in events:
            if isinstance(event, ev.Migrated) and event.kv_tokens:
                move = self.cluster.state.moves.get(event.request_id)
                takes = move is not None and move.target in self.serving()
                left = cluster.left(self.cluster.state, event.request_id, event.kv_tokens, takes=takes)
                self.tell(self.cluster.do(left, self.now_ns))

    def start(self, capacity: int, role: Role = "both") -> None:
        """Start a worker with the lowest number that is free."""
        worker = next(i for i in range(WORKERS_MAX) if i not in self.servers)
        self.servers[worker] = PlayedServer(worker, capacity, role)
        self.cluster.state = cluster.enter(self.cluster.state, worker, "serving")
        joined = ev.WorkerJoined(self.now_ns, worker, capacity)
        self.servers[worker].follow((self.servers[worker].worker, [joined]))
        self.tell([joined])

    def view(self) -> ClusterView:
        return ClusterView(self.now_ns, tuple(self.servers[worker].report for worker in self.serving()))

    def serving(self) -> list[int]:
        return sorted(worker for worker, phase in self.cluster.state.workers.items() if phase == "serving")

    def pick(self, workers: list[int], pick: int) -> PlayedServer:
        return self.servers[sorted(workers)[pick % len(workers)]]

    def encoded(self, state: Any) -> bytes:
        """Return a state as bytes that are equal exactly when the states are."""
        return encoded(self.router, state)


class ClusterMachine(RouterMachine):
    """A few workers, one policy that holds requests, and whatever may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[Request, int]] = {}
        """Requests that are at no worker, with the tokens that they have."""

    @precondition(lambda m: m.held)
    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        """Give up a request that is held."""
        request_id = sorted(self.held)[pick % len(self.held)]
        request, done = self.held.pop(request_id)
        self.tell([ev.Cancelled(self.now_ns, ev.NOWHERE, request_id, request.client, False, 0, done)])

    @rule(times=st.integers(1, 2))
    def decide(self, times: int = 1) -> None:
        """Dispatch what the policy dispatches, and move what it wants to move."""
        for _ in range(times):
            workers = self.serving()
            plan = self.ask(self.router.decide, self.view())
            for dispatch in plan.dispatches:
                assert dispatch.request_id in self.held, f"request {dispatch.request_id} is dispatched and not held"
                assert dispatch.worker in workers, f"the view has no worker {dispatch.worker}"
                self.deliver(*self.held.pop(dispatch.request_id), dispatch)
            for migration in plan.migrations:
                move = self.cluster.state.moves.get(migration.request_id)
                if move is None or move.phase == "staged":
                    self.migrate(migration)

    def place(self, request: Request, generated_tokens: int) -> None:
        """Hold it from now on."""
        self.held[request.id] = (request, generated_tokens)
        self.cluster.state = cluster.hold(self.cluster.state, request.id)
        self.tell([ev.Arrived(self.now_ns, ev.NOWHERE, request, generated_tokens)])
