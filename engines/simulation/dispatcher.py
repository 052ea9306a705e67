"""Where the requests of a simulation are, and what becomes of them: the driver of a cluster's transitions.

`model.cluster` says where each request is, which moves, and what follows when a worker or a link fails; this module
knows the workers, and how long it takes.

The cluster's policy chooses a worker for each request.  If that worker takes no requests (it is gone, and the policy
does not know yet), the request goes to the worker with the fewest.  A migrating request leaves at once if it waits,
and after the current step if it runs.  KV is sent when the target has memory for it, first come first served, and
frees its memory at the source when it has come.  A request that was dispatched for its prefill alone is staged by its
worker; the policy may have named the target before.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

import attrs
import msgspec
from msgspec.structs import replace

from fairsched.engines.simulation.calls import CallGraph
from fairsched.engines.simulation.control_plane import ControlPlane
from fairsched.engines.simulation.event_loop import CALLER_GIVES_UP, REQUEST_COMES, REQUEST_LANDS, EventLoop
from fairsched.engines.simulation.predictors import Prediction
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.engines.workloads import KvLink
from fairsched.model import cluster
from fairsched.model import events as ev
from fairsched.model import worker as transitions
from fairsched.model.cluster import Move
from fairsched.model.decision import Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.worker import NoRoomError, Waiting

_ROOT = 1
"""A request that comes at its own time, as the next of the workload."""


class Unplaced(msgspec.Struct, frozen=True, gc=False):
    """A request at no worker, with its output so far; the KV of its first `kv_tokens` is in the checkpoint."""

    request: Request
    generated_tokens: int = 0
    kv_tokens: int = 0
    prefill_only: bool = False


@attrs.define(eq=False, slots=False)
class Dispatcher:
    """The requests of a run, each at its place.

    `counts` says how often requests changed their worker: `placed_again` when it died, `redirected` when the chosen one
    took none, `migrated`, how many dispatches and migrations could not be executed (`refused`), and how many requests
    waited at the end for a transfer that nothing would begin (`stranded`).
    `on_events` learns what happens to requests at no worker.  `progress` is called with the number of requests that
    have ended, now and then.
    """

    _loop: EventLoop
    _pool: WorkerPool
    _control: ControlPlane
    _calls: CallGraph
    _link: KvLink
    _checkpoint: KvLink | None
    _prediction: Prediction | None
    _on_events: Callable[[list[ev.Event]], object]
    _progress: Callable[[int], None] | None
    _unplaced: dict[int, Unplaced] = attrs.field(init=False, factory=dict)
    """Requests that are held, or come to a worker without the KV of another."""
    _moved_ns: dict[int, int] = attrs.field(init=False, factory=dict)
    """When each request moved last."""
    _busy_ns: dict[int, int] = attrs.field(init=False, factory=dict)
    """Until when a worker's link is busy, where transfers contend."""

    def __attrs_post_init__(self) -> None:
        self.counts = dict.fromkeys(("placed_again", "redirected", "migrated", "refused", "stranded"), 0)
        roots = sorted([job.request for job in self._calls.roots()], key=attrgetter("id"))
        roots.sort(key=attrgetter("arrival_ns"))  # requests of one time stay in order of ids
        self._roots = iter(roots)
        self._pool.on_end = self._end
        self._pool.on_step = self.let_go
        self._pool.on_hand_over = self._handed_over

    # --- requests that come and end ---------------------------------------------------------------------------------

    def schedule_next(self) -> None:
        """Schedule the next request that depends on no other: one at a time, which keeps the agenda short."""
        for request in islice(self._roots, 1):
            self._loop.at(request.arrival_ns, REQUEST_COMES, request.id, _ROOT)

    def request_comes(self, request_id: int, root: int) -> None:
        if root:
            self.schedule_next()
        job = self._calls.jobs[request_id]
        if self._prediction is not None:
            request = replace(job.request, predicted_output_tokens=self._prediction.of(job))
            job = self._calls.jobs[request_id] = replace(job, request=request)
        self.place(Unplaced(self._now(job.request)))
        if job.cancel_after_ns is not None and request_id not in self._calls.over:
            self._loop.at(self._loop.now_ns + job.cancel_after_ns, CALLER_GIVES_UP, request_id)

    def caller_gives_up(self, request_id: int, _: int) -> None:
        """Cancel a request that has not ended, at a worker after the current step."""
        if request_id in self._calls.over:
            return
        number = self._pool.cluster.at[request_id]
        if number == ev.NOWHERE:
            gone = self._unplaced.get(request_id) or self._known(self._worker_of(request_id), request_id)
            self._do(cluster.end(self._pool.cluster, request_id))
            client, done = gone.request.client, gone.generated_tokens
            self._nowhere(ev.Cancelled(self._loop.now_ns, ev.NOWHERE, request_id, client, False, 0, done))
            return
        worker = self._pool.workers[number]
        self._pool.interrupt(worker)
        if request_id in worker.state.transit.outgoing:
            worker.cancelling.append(request_id)  # until its first token leaves the pipeline
        elif request_id not in worker.state.queue and request_id not in worker.state.running:
            return  # its only token is about to come
        elif request_id in worker.state.queue or worker.plan is None:
            self._pool.apply(worker, transitions.cancel(worker.state, request_id, self._loop.now_ns))
        else:
            worker.cancelling.append(request_id)
        self._pool.wake(worker)

    def _end(self, request_id: int, finished: bool) -> None:
        """Release the calls that depend on a request that ended, or drop them if it did not finish."""
        calls, now_ns = self._calls, self._loop.now_ns
        self._moved_ns.pop(request_id, None)
        self._unplaced.pop(request_id, None)
        if request_id in self._pool.cluster.at:
            self._do(cluster.end(self._pool.cluster, request_id))
        if finished and self._prediction is not None:
            self._prediction.finished(calls.jobs[request_id])
        due, lost = calls.end(request_id, finished)
        for child in due:
            self._loop.at(now_ns + calls.jobs[child].think_ns, REQUEST_COMES, child)
        for child in lost:
            client = calls.jobs[child].request.client
            self._on_events([ev.Cancelled(now_ns, ev.NOWHERE, child, client, False, 0, 0)])
        if self._progress is not None:
            ended = len(calls.over)
            for count in range(ended - len(lost), ended + 1):
                if not count % 256:
                    self._progress(count)

    def _now(self, request: Request) -> Request:
        now_ns = self._loop.now_ns
        return request if request.arrival_ns == now_ns else replace(request, arrival_ns=now_ns)

    def _nowhere(self, event: ev.Arrived | ev.Cancelled | ev.Rejected) -> None:
        """Publish an event of a request at no worker; a router that holds nothing need not know."""
        if not self._control.places:
            self._control.happened([event])
        self._on_events([event])
        if not isinstance(event, ev.Arrived):
            self._end(event.request_id, False)

    # --- placing ----------------------------------------------------------------------------------------------------

    def place(self, unplaced: Unplaced) -> None:
        """Send a request where the router says, or hold it: for a policy that decides later, or for a worker."""
        request, control = unplaced.request, self._control
        if control.places:
            takers = self._pool.takers(request)
            if takers:
                self.follow_decoding()
                view = control.view(self._pool, takers)
                if view.workers:
                    chosen = control.route(request, view)
                    self._deliver(self._taker(chosen.worker, takers), unplaced, chosen.prefill_only)
                    return
            if not takers and not self._pool.joining:
                self._reject(request, f"request {request.id} finds no worker that takes requests, and none is to come")
                return
        self._unplaced[request.id] = unplaced
        self._pool.cluster = cluster.hold(self._pool.cluster, request.id)
        self._nowhere(ev.Arrived(self._loop.now_ns, ev.NOWHERE, self._now(request), unplaced.generated_tokens))

    def place_held(self) -> None:
        """Place a router's requests that no worker took, once a worker is seen and takes requests."""
        if self._control.places and self._unplaced:
            takers = self._pool.takers()
            if takers and self._control.view(self._pool, takers).workers:
                for request_id in self._held():
                    self.place(self._unplaced.pop(request_id))

    def _held(self) -> list[int]:
        moves = self._pool.cluster.moves
        return sorted(request_id for request_id in self._unplaced if request_id not in moves)

    def place_again(self, unplaced: Unplaced) -> None:
        """Place a request whose worker lost it, with the output that it has, and the prompt's KV from a checkpoint."""
        self.counts["placed_again"] += 1
        if self._checkpoint is not None and unplaced.generated_tokens:
            unplaced = replace(unplaced, kv_tokens=unplaced.request.prompt.tokens)
        self.place(unplaced)

    def dispatch(self, plan: Dispatch) -> None:
        """Deliver a held request where the cluster's policy says."""
        unplaced = self._unplaced.get(plan.request_id)
        if unplaced is None or plan.request_id in self._pool.cluster.moves:
            self.counts["refused"] += 1
        else:
            del self._unplaced[plan.request_id]
            worker = self._taker(plan.worker, self._pool.takers(unplaced.request))
            self._deliver(worker, unplaced, plan.prefill_only)

    def reject_held(self) -> None:
        """Reject the requests that are still held when nothing will happen any more."""
        why = "no worker takes requests" if self._control.places else "its policy sends it nowhere"
        for request_id in self._held():
            self._reject(self._unplaced[request_id].request, f"request {request_id} is held for ever: {why}")

    def follow_decoding(self) -> None:
        """Publish the finished steps of leaps before a policy that follows decoding decides."""
        if self._control.follows_decoding and self._control.reports is None:
            for worker in self._pool.workers:
                self._pool.settle(worker)

    def _reject(self, request: Request, reason: str) -> None:
        self._nowhere(ev.Rejected(self._loop.now_ns, ev.NOWHERE, request.id, request.client, reason))

    def _taker(self, number: int, takers: list[SimulatedWorker]) -> SimulatedWorker:
        """Return the worker of that number, or the one with the fewest requests if that takes none."""
        workers = self._pool.workers
        if len(takers) == len(workers) and 0 <= number < len(takers):
            return workers[number]
        for worker in takers:
            if worker.state.worker == number:
                return worker
        self.counts["redirected"] += 1
        self._control.unanswered(number)
        return min(takers, key=lambda each: (len(each.state.queue) + len(each.state.in_flight), each.state.worker))

    def _deliver(self, worker: SimulatedWorker, unplaced: Unplaced, prefill_only: bool = False) -> None:
        """Let a request arrive at a worker, for its prefill alone or for all of it."""
        pool, now_ns = self._pool, self._loop.now_ns
        pool.interrupt(worker)
        request = self._now(unplaced.request)
        refusal = pool.policy.refuses(request)
        if refusal is not None:
            pool.publish(worker, [ev.Rejected(now_ns, worker.state.worker, request.id, request.client, refusal)])
            return
        output_tokens = self._calls.jobs[request.id].output_tokens
        worker.prefills_for_others |= prefill_only
        if unplaced.kv_tokens and self._fetch(worker, replace(unplaced, prefill_only=prefill_only)):
            return
        pool.cluster = cluster.place(pool.cluster, request.id, worker.state.worker)
        self._control.sent(worker.state.worker, request.prompt.tokens + unplaced.generated_tokens)
        came = (unplaced.generated_tokens, prefill_only)
        pool.apply(worker, transitions.arrive(worker.state, request, output_tokens, now_ns, *came))
        if request.id not in self._calls.over:
            pool.wake(worker)

    # --- requests that come without the KV of a worker ---------------------------------------------------------------

    def request_lands(self, request_id: int, number: int) -> None:
        """Deliver a request that has come to a worker, or place it anew if that takes none any more."""
        move = self._pool.cluster.moves.get(request_id)
        if number:
            if move is not None and move.number == number:
                self._kv_arrives(move)
            return
        unplaced = self._unplaced.pop(request_id, None)
        if unplaced is None or move is None:
            return
        worker = self._pool.workers[move.target]
        takes = bool(move.reserved) or (not unplaced.kv_tokens and worker in self._pool.takers())
        self._pool.cluster = cluster.arrive(self._pool.cluster, request_id, takes)
        if move.reserved:
            self._fetched(worker, unplaced)
        elif takes:
            self._deliver(worker, unplaced)
        else:
            self.place(Unplaced(unplaced.request, unplaced.generated_tokens))

    def _fetch(self, worker: SimulatedWorker, unplaced: Unplaced) -> bool:
        """Bring a request's KV from the checkpoint to a worker; whether that has room for it."""
        assert self._checkpoint is not None
        request_id, now_ns = unplaced.request.id, self._loop.now_ns
        tokens = unplaced.request.prompt.tokens + unplaced.generated_tokens
        try:
            worker.become(transitions.reserve(worker.state, request_id, tokens, worker.growth[1]))
        except NoRoomError:
            return False
        self._unplaced[request_id] = unplaced
        self._pool.cluster = cluster.fetch(self._pool.cluster, request_id, worker.state.worker, tokens)
        self._loop.at(now_ns + self._checkpoint.transfer_ns(unplaced.kv_tokens), REQUEST_LANDS, request_id)
        return True

    def _fetched(self, worker: SimulatedWorker, unplaced: Unplaced) -> None:
        """Let a request arrive whose KV has come from the checkpoint."""
        self._pool.interrupt(worker)
        request, now_ns = self._now(unplaced.request), self._loop.now_ns
        done = (unplaced.generated_tokens, unplaced.kv_tokens, worker.growth[0], unplaced.prefill_only)
        output_tokens = self._calls.jobs[request.id].output_tokens
        self._pool.apply(worker, transitions.receive(worker.state, request, output_tokens, now_ns, *done))
        self._pool.wake(worker)

    # --- requests that change their worker ---------------------------------------------------------------------------

    def migrate(self, plan: Migration) -> None:
        """Move a request now if it waits or is staged, after the current step if it runs; leave it if it cannot move.

        A request that computes its prompt for another worker moves when its first token is out.
        """
        request_id, state = plan.request_id, self._pool.cluster
        number, move = state.at.get(request_id, ev.NOWHERE), state.moves.get(request_id)
        prefill_only = False
        if number == ev.NOWHERE:
            takes = move is not None and move.is_staged and self._can_reach(plan)
        elif takes := move is None and self._can_move(plan, self._pool.workers[number]):
            worker = self._pool.workers[number]
            self._pool.interrupt(worker)
            prefill_only = self._known(worker, request_id).prefill_only
            leaves = not (plan.with_kv and prefill_only)
            if leaves and request_id not in worker.state.queue and worker.plan is not None:
                worker.migrating[request_id] = plan
                return
        step = cluster.migrate(self._pool.cluster, plan, takes=takes, prefill_only=prefill_only)
        if step is None:
            self.counts["refused"] += 1
            return
        self.counts["migrated"] += number == ev.NOWHERE and plan.target != plan.source
        self._do(step)

    def _can_move(self, plan: Migration, worker: SimulatedWorker) -> bool:
        request_id = plan.request_id
        if request_id in worker.migrating or request_id in worker.cancelling:
            return False
        if worker.state.worker != plan.source or plan.target == plan.source:
            return False
        state = worker.state
        here = request_id in state.queue or request_id in state.running
        if not here and not (plan.with_kv and request_id in state.transit.outgoing):
            return False  # its first token is in the pipeline, and it goes on with its KV or not at all
        # A request moves once at one instant, so that it cannot go round in circles.
        return self._moved_ns.get(request_id) != self._loop.now_ns and self._can_reach(plan)

    def _can_reach(self, plan: Migration) -> bool:
        """Return whether the target takes requests, and could hold this one and what is to be reserved for it."""
        workers = self._pool.workers
        if not 0 <= plan.target < len(workers) or plan.reserved_output_tokens < 0:
            return False
        target = workers[plan.target]
        if plan.target == plan.source:
            return plan.target in self._pool.cluster.workers
        request = self._known(self._worker_of(plan.request_id), plan.request_id).request
        fits = target.state.fits_alone(request)
        fits = fits and request.prompt.tokens + plan.reserved_output_tokens <= target.state.capacity
        return fits and target in self._pool.takers()

    def _worker_of(self, request_id: int) -> SimulatedWorker:
        """The worker where a request is, or is staged."""
        number = self._pool.cluster.at[request_id]
        return self._pool.workers[self._pool.cluster.moves[request_id].source if number == ev.NOWHERE else number]

    def _known(self, worker: SimulatedWorker, request_id: int) -> Waiting:
        state = worker.state
        waiting = state.queue.get(request_id)
        if waiting is not None:
            return waiting
        running = state.running.get(request_id)
        return state.transit.outgoing[request_id].waiting if running is None else running.waiting

    def _handed_over(self, worker: SimulatedWorker, request_id: int, prefill_ns: int, last_tokens: int) -> None:
        """Hand over a request that was dispatched for its prefill alone and has its first token: send it where the
        policy said."""
        kv_tokens = worker.state.transit.outgoing[request_id].waiting.kv_tokens
        move = self._pool.cluster.moves.get(request_id)
        takes = False
        if move is not None and move.plan is not None:
            self.counts["migrated"] += 1
            self._moved_ns[request_id] = self._loop.now_ns
            takes = bool(move.reserved) or self._can_reach(move.plan)
        prefill = {"prefill_ns": prefill_ns, "last_tokens": last_tokens}
        self._do(cluster.left(self._pool.cluster, request_id, kv_tokens, takes=takes, **prefill))
        if move is not None and move.number and not move.reserved and takes:
            self._serve(self._pool.workers[move.target])

    # --- what follows from transitions of the cluster -----------------------------------------------------------------

    def _do(self, step: cluster.Transition) -> None:
        """Take a transition of the cluster, and do what follows from it."""
        pool, now_ns = self._pool, self._loop.now_ns
        pool.cluster, effects = step
        for number, effect in effects:
            worker, request_id = pool.workers[number], effect.request_id
            match effect:
                case cluster.LeaveBatch(with_kv=with_kv):
                    self._depart(worker, request_id, with_kv)
                case cluster.ReserveKv():
                    worker.transfer_queue.append(effect)
                    self._serve(worker)
                case cluster.ReleaseKv():
                    self._release(worker, request_id)
                case cluster.SendKv():
                    self._send(worker, pool.cluster.moves[request_id])
                case cluster.FreeKv():
                    self._free(worker, request_id)
                case cluster.ResumeRequest():
                    pool.interrupt(worker)
                    pool.apply(worker, transitions.resume(worker.state, request_id, now_ns))
                    pool.wake(worker)
                case cluster.GoWithoutKv():
                    self._loop.at(now_ns, REQUEST_LANDS, request_id)
                case cluster.TellFailed(target=target):
                    client = self._calls.jobs[request_id].request.client
                    pool.settle(worker)
                    pool.publish(worker, [ev.TransferFailed(now_ns, number, request_id, client, target)])

    def _depart(self, worker: SimulatedWorker, request_id: int, with_kv: bool) -> None:
        """Let a request leave batch or queue; its KV stays until it is sent, if it is to be."""
        state, now_ns = worker.state, self._loop.now_ns
        waiting = state.queue.get(request_id)
        landed = request_id in state.transit.landed or state.host.kept(request_id) > 0
        with_kv = with_kv and (landed if waiting else transitions.kv_tokens(state, request_id) > 0)
        self.counts["migrated"] += 1
        self._moved_ns[request_id] = now_ns
        kv_tokens = 0
        if with_kv:
            self._pool.apply(worker, transitions.stage(state, request_id, now_ns))
            kv_tokens = worker.state.transit.outgoing[request_id].waiting.kv_tokens
        else:
            request = self._known(worker, request_id).request
            done = waiting.generated_tokens if waiting else transitions.generated(state, request_id)
            self._unplaced[request_id] = Unplaced(request, done)
            self._pool.apply(worker, transitions.depart(state, request_id, now_ns))
        self._do(cluster.left(self._pool.cluster, request_id, kv_tokens, takes=True))
        self._pool.wake(worker)

    def _serve(self, target: SimulatedWorker) -> None:
        """Begin the transfers to a worker for which it has room, in order, except from sources that are cut off."""
        if not target.transfer_queue or target.state.worker in self._pool.cluster.cut:
            return
        for asked in tuple(target.transfer_queue):
            state, request_id = self._pool.cluster, asked.request_id
            move = state.moves.get(request_id)
            if move is None or move.number != asked.number or move.source in state.cut or not self._is_there(move):
                continue
            assert move.plan is not None
            tokens = self._kv_tokens(move) + move.plan.reserved_output_tokens
            self._pool.interrupt(target)
            try:
                target.become(transitions.reserve(target.state, request_id, tokens, target.growth[1]))
            except NoRoomError:
                break
            target.transfer_queue.remove(asked)
            self._do(cluster.grant(state, request_id, tokens, self._loop.now_ns))

    def _is_there(self, move: Move) -> bool:
        """Return whether there will be KV to send: a request whose only token is about to come is over."""
        state, request_id = self._pool.workers[move.source].state, move.request_id
        return any(request_id in place for place in (state.queue, state.running, state.transit.outgoing))

    def _kv_tokens(self, move: Move) -> int:
        """Return tokens of KV that are sent, or will be."""
        if move.is_staged:
            return move.kv_tokens
        source = self._pool.workers[move.source]
        known = self._known(source, move.request_id)
        return known.kv_tokens if move.request_id in source.state.transit.outgoing else known.context_tokens

    def _release(self, target: SimulatedWorker, request_id: int) -> None:
        """Free what a worker keeps for a request, or take that out of the line before it."""
        if request_id in target.state.transit.incoming:
            self._pool.interrupt(target)
            target.become(transitions.unreserve(target.state, request_id))
            self._pool.wake(target)
        else:
            target.transfer_queue = deque(asked for asked in target.transfer_queue if asked.request_id != request_id)
        self._serve(target)

    def _free(self, source: SimulatedWorker, request_id: int) -> None:
        """Free the KV of a staged request at its source."""
        if request_id in self._pool.cluster.moves:
            waiting = source.state.transit.outgoing[request_id].waiting
            self._unplaced[request_id] = Unplaced(waiting.request, waiting.generated_tokens)
        self._pool.interrupt(source)
        source.become(transitions.sent(source.state, request_id))
        self._pool.wake(source)
        self._serve(source)

    def _send(self, source: SimulatedWorker, move: Move) -> None:
        """Send the KV of a staged request to where memory is reserved for it."""
        assert move.plan is not None
        now_ns, link, plan, kv_tokens = self._loop.now_ns, self._link, move.plan, move.kv_tokens
        along_ns = min(move.prefill_ns, now_ns - move.reserved_ns)
        took_ns = link.visible_ns(kv_tokens, plan.overlap, along_ns, move.last_tokens)
        start_ns = now_ns
        if link.contended:
            start_ns = max(now_ns, self._busy_ns.get(plan.source, 0), self._busy_ns.get(plan.target, 0))
            self._busy_ns[plan.source] = self._busy_ns[plan.target] = start_ns + took_ns
        client = self._calls.jobs[move.request_id].request.client
        sent = (now_ns, plan.source, move.request_id, client, plan.target, kv_tokens, move.reserved)
        self._pool.settle(source)
        self._pool.publish(source, [ev.TransferStarted(*sent)])
        self._loop.at(start_ns + took_ns, REQUEST_LANDS, move.request_id, move.number)

    def _kv_arrives(self, move: Move) -> None:
        """Land the KV of a request: it waits at the target, and the source frees its own."""
        request_id, pool, now_ns = move.request_id, self._pool, self._loop.now_ns
        target, waiting = pool.workers[move.target], self._known(pool.workers[move.source], request_id)
        pool.cluster = cluster.pass_on(pool.cluster, request_id)
        self._moved_ns[request_id] = now_ns
        pool.interrupt(target)
        request = replace(waiting.request, arrival_ns=now_ns)
        done = (waiting.generated_tokens, waiting.kv_tokens)
        came = transitions.receive(target.state, request, waiting.output_tokens, now_ns, *done, target.growth[0])
        pool.apply(target, came)
        self._do(cluster.land(pool.cluster, request_id))
        pool.wake(target)

    # --- failures ---------------------------------------------------------------------------------------------------

    def worker_lost(self, worker: SimulatedWorker, *, is_gone: bool) -> list[Unplaced]:
        """Let a worker lose its memory, and its queue if it is gone; returns the requests that are to be placed again.

        What waited or ran comes in order of ids; without it, the staged requests in order, then those in the pipeline.
        """
        now_ns, number, state = self._loop.now_ns, worker.state.worker, worker.state
        left, _ = transitions.lose(state, now_ns)
        unplaced: dict[int, Unplaced] = {}
        for waiting in (*(each.waiting for each in state.transit.outgoing.values()), *left.queue.values()):
            unplaced[waiting.request.id] = Unplaced(waiting.request, waiting.generated_tokens)
        pipelined = [e for _, events in worker.pipeline for e in events if isinstance(e, ev.Finished | ev.Migrated)]
        gone = [event.request_id for event in pipelined] + (list(left.queue) if is_gone else [])
        after, effects, lost = cluster.lose(self._pool.cluster, number, gone)
        worker.transfer_queue.clear()
        self._do((after, effects))
        worker.pipeline_losses += 1
        for event in pipelined:
            # The token that did not leave the last stage is lost.
            made = event.output_tokens if isinstance(event, ev.Finished) else event.generated_tokens
            unplaced[event.request_id] = Unplaced(self._calls.jobs[event.request_id].request, made - 1)
            event = ev.Migrated(now_ns, number, event.request_id, event.client, True, 0, made - 1)
            self._pool.publish(worker, [event])
        worker.pipeline.clear()
        worker.resident.clear()
        worker.stages_free_ns = [0] * len(worker.stages_free_ns)
        last = {} if is_gone else {request_id: i for i, request_id in enumerate(gone)}
        return [unplaced[request_id] for request_id in sorted(lost, key=lambda each: (last.get(each, -1), each))]

    def link_fails(self, number: int, until_ns: int | None) -> None:
        """Call off the transfers over a worker's link, which is down until then (None: for ever)."""
        self._do(cluster.link_fails(self._pool.cluster, number, until_ns))

    def link_is_back(self, number: int) -> None:
        """Begin what waited for a worker's link."""
        if self._pool.cluster.cut.get(number) == self._loop.now_ns:
            self._pool.cluster = cluster.link_back(self._pool.cluster, number)
            for worker in self._pool.workers:
                self._serve(worker)

    def drains(self, worker: SimulatedWorker) -> None:
        """Call off the transfers to a worker that takes no more requests and has reserved nothing for them yet."""
        number = worker.state.worker
        for request_id in cluster.unreserved(self._pool.cluster, number):
            if request_id in cluster.unreserved(self._pool.cluster, number):
                self._do(cluster.fail(self._pool.cluster, request_id))

    def go_on(self) -> bool:
        """When nothing can happen any more, let a request go on that waits for a target or for room; return whether."""
        if (step := cluster.unstrand(self._pool.cluster)) is not None:
            self.counts["stranded"] += 1
        elif (step := cluster.release_early(self._pool.cluster)) is None:
            for worker in self._pool.workers:
                if self._pool.drop_landed(worker):
                    self._pool.wake(worker)
                    return True
            return False
        self._do(step)
        return True

    # --- after steps ------------------------------------------------------------------------------------------------

    def stay(self, worker: SimulatedWorker) -> None:
        """Call off the migrations that wait for the end of a worker's step."""
        self.counts["refused"] += len(worker.migrating)
        worker.migrating.clear()

    def let_go(self, worker: SimulatedWorker) -> None:
        """After a step, cancel the requests whose callers gave up, let others go to their next worker, and begin
        transfers for which there is room now."""
        leaving, worker.cancelling = worker.cancelling, []
        for request_id in leaving:
            here = self._pool.cluster.at.get(request_id) == worker.state.worker
            if request_id in self._calls.over:
                continue
            if here and worker.plan is not None and request_id not in worker.state.transit.outgoing:
                worker.cancelling.append(request_id)  # it is in the step under way
            elif not here or request_id in worker.state.transit.outgoing:
                self.caller_gives_up(request_id, 0)
            else:
                self._pool.apply(worker, transitions.cancel(worker.state, request_id, self._loop.now_ns))
        moving = worker.migrating if worker.plan is None else {}
        for request_id, plan in moving.items():
            step = None
            if request_id in worker.state.queue or request_id in worker.state.running:
                takes = not plan.with_kv or self._can_reach(plan)
                step = cluster.migrate(self._pool.cluster, plan, takes=takes)
            if step is None:
                self.counts["refused"] += 1
            else:
                self._do(step)
        moving.clear()
        self._serve(worker)
