"""Where the requests of a simulation are: held for the cluster's policy, at a worker, or on the way to another.

The cluster's policy chooses a worker for each request.  If that worker takes no requests (it is gone, and the policy
does not know yet), the request goes to the worker with the fewest.  A migrating request leaves at once if it waits,
after the current step if it runs, and arrives when its KV has been transferred.
"""

from collections.abc import Callable
from itertools import islice
from operator import attrgetter

import attrs
import msgspec
from msgspec.structs import replace

from fairsched.engines.fleet import KvLink
from fairsched.engines.simulation.calls import CallGraph
from fairsched.engines.simulation.control_plane import ControlPlane
from fairsched.engines.simulation.event_loop import CALLER_GIVES_UP, REQUEST_COMES, REQUEST_LANDS, EventLoop
from fairsched.engines.simulation.predictors import Prediction
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.engines.simulation.transfers import Transfers
from fairsched.model import worker as transitions
from fairsched.model.events import NOWHERE, Arrived, Cancelled, Decoded, Event, Finished, Migrated, Rejected
from fairsched.model.plan import Dispatch
from fairsched.model.request import Request

_ROOT = 1
"""A request that comes at its own time, as the next of the workload."""


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """A request at no worker, or on its way to one, with its output so far.

    The KV of its first `kv_tokens` is in the checkpoint and comes from there; at `target` memory is reserved for it.
    """

    request: Request
    generated_tokens: int = 0
    target: int = -1
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
    _on_events: Callable[[list[Event]], object]
    _progress: Callable[[int], None] | None
    home: dict[int, SimulatedWorker] = attrs.field(init=False, factory=dict)
    _held: dict[int, Transfer] = attrs.field(init=False, factory=dict)
    _under_way: dict[int, Transfer] = attrs.field(init=False, factory=dict)
    transfers: Transfers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = dict.fromkeys(("placed_again", "redirected", "migrated", "refused", "stranded"), 0)
        self.transfers = Transfers(self._loop, self._pool, self._link, self)
        roots = sorted([job.request for job in self._calls.roots()], key=attrgetter("id"))
        roots.sort(key=attrgetter("arrival_ns"))  # requests of one time stay in order of ids
        self._roots = iter(roots)
        self._pool.on_end = self._end
        self._pool.on_step = self.let_go
        self._pool.on_hand_over = self.transfers.handed_over

    # --- requests that come and end ---------------------------------------------------------------------------------

    def schedule_next(self) -> None:
        """Schedule the next request that depends on no other: one at a time, which keeps the agenda short."""
        for request in islice(self._roots, 1):
            self._loop.at(request.arrival_ns, REQUEST_COMES, request.id, _ROOT)

    def request_comes(self, request_id: int, root: int) -> None:
        """Place a request whose time has come."""
        if root:
            self.schedule_next()
        job = self._calls.jobs[request_id]
        if self._prediction is not None:
            request = replace(job.request, predicted_output_tokens=self._prediction.of(job))
            job = self._calls.jobs[request_id] = replace(job, request=request)
        self.place(Transfer(self._now(job.request)))
        if job.cancel_after_ns is not None and request_id not in self._calls.over:
            self._loop.at(self._loop.now_ns + job.cancel_after_ns, CALLER_GIVES_UP, request_id)

    def caller_gives_up(self, request_id: int, _: int) -> None:
        """Cancel a request that has not ended, at a worker after the current step."""
        if request_id in self._calls.over:
            return
        transfer = self._held.pop(request_id, None) or self._under_way.pop(request_id, None)
        if transfer is None and request_id not in self.home:
            waiting = self.transfers.forget(request_id)
            assert waiting is not None
            transfer = Transfer(waiting.request, waiting.generated_tokens)
        if transfer is not None:
            self._unreserve(transfer)
            client, done = transfer.request.client, transfer.generated_tokens
            self._nowhere(Cancelled(self._loop.now_ns, NOWHERE, request_id, client, False, 0, done))
            return
        worker = self.home[request_id]
        self._pool.interrupt(worker)
        if request_id in worker.state.transit.outgoing:
            worker.leaving.append(request_id)  # until its first token leaves the pipeline
        elif request_id not in worker.state.queue and request_id not in worker.state.running:
            return  # its only token is about to come
        elif request_id in worker.state.queue or worker.plan is None:
            self._pool.apply(worker, transitions.cancel(worker.state, request_id, self._loop.now_ns))
        else:
            worker.leaving.append(request_id)
        self._pool.wake(worker)

    def _end(self, request_id: int, finished: bool) -> None:
        """Release the calls that depend on a request that ended, or drop them if it did not finish."""
        calls, now_ns = self._calls, self._loop.now_ns
        self.transfers.forget(request_id)
        if finished and self._prediction is not None:
            self._prediction.finished(calls.jobs[request_id])
        self.home.pop(request_id, None)
        due, lost = calls.end(request_id, finished)
        for child in due:
            self._loop.at(now_ns + calls.jobs[child].think_ns, REQUEST_COMES, child)
        for child in lost:
            client = calls.jobs[child].request.client
            self._on_events([Cancelled(now_ns, NOWHERE, child, client, False, 0, 0)])
        if self._progress is not None:
            ended = len(calls.over)
            for count in range(ended - len(lost), ended + 1):
                if not count % 256:
                    self._progress(count)

    def over(self, request_id: int) -> bool:
        """Whether the request has ended."""
        return request_id in self._calls.over

    def _now(self, request: Request) -> Request:
        """Return the request as one that arrives now."""
        now_ns = self._loop.now_ns
        return request if request.arrival_ns == now_ns else replace(request, arrival_ns=now_ns)

    def _nowhere(self, event: Arrived | Cancelled | Rejected) -> None:
        """Publish an event of a request at no worker; a router that holds nothing need not know."""
        if not self._control.places:
            self._control.happened([event])
        self._on_events([event])
        if not isinstance(event, Arrived):
            self._end(event.request_id, False)

    # --- placing ----------------------------------------------------------------------------------------------------

    def place(self, transfer: Transfer) -> None:
        """Send a request where the router says, or hold it: for a policy that decides later, or for a worker."""
        request, control = transfer.request, self._control
        if control.places:
            takers = self._pool.takers(request)
            if takers:
                self.follow_decoding()
                view = control.view(self._pool, takers)
                if view.workers:
                    chosen = control.route(request, view)
                    self._deliver(self._taker(chosen.worker, takers), transfer, chosen.prefill_only)
                    return
            if not takers and not self._pool.joining:
                self._reject(request, f"request {request.id} finds no worker that takes requests, and none is to come")
                return
        self._held[request.id] = transfer
        self._nowhere(Arrived(self._loop.now_ns, NOWHERE, self._now(request), transfer.generated_tokens))

    def place_held(self) -> None:
        """Place a router's requests that no worker took, once a worker is seen and takes requests."""
        if self._control.places and self._held:
            takers = self._pool.takers()
            if takers and self._control.view(self._pool, takers).workers:
                held, self._held = self._held, {}
                for _, transfer in sorted(held.items()):
                    self.place(transfer)

    def place_again(self, transfer: Transfer) -> None:
        """Place a request whose worker lost it, with the output that it has, and the prompt's KV from a checkpoint."""
        self.home.pop(transfer.request.id, None)
        self.counts["placed_again"] += 1
        if self._checkpoint is not None and transfer.generated_tokens:
            transfer = replace(transfer, kv_tokens=transfer.request.prompt.tokens)
        self.place(transfer)

    def dispatch(self, plan: Dispatch) -> None:
        """Deliver a held request where the cluster's policy says."""
        transfer = self._held.pop(plan.request_id, None)
        if transfer is None:
            self.counts["refused"] += 1
        else:
            worker = self._taker(plan.worker, self._pool.takers(transfer.request))
            self._deliver(worker, transfer, plan.prefill_only)

    def reject_held(self) -> None:
        """Reject the requests that are still held when nothing will happen any more."""
        why = "no worker takes requests" if self._control.places else "its policy sends it nowhere"
        for request_id, transfer in sorted(self._held.items()):
            self._reject(transfer.request, f"request {request_id} is held for ever: {why}")

    def follow_decoding(self) -> None:
        """Publish the finished steps of leaps before a policy that follows decoding decides."""
        if self._control.follows_decoding and self._control.reports is None:
            for worker in self._pool.workers:
                self._pool.settle(worker)

    def _reject(self, request: Request, reason: str) -> None:
        self._nowhere(Rejected(self._loop.now_ns, NOWHERE, request.id, request.client, reason))

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

    def _deliver(self, worker: SimulatedWorker, transfer: Transfer, prefill_only: bool = False) -> None:
        """Let a request arrive at a worker, for its prefill alone or for all of it."""
        pool, now_ns = self._pool, self._loop.now_ns
        pool.interrupt(worker)
        request = self._now(transfer.request)
        refusal = pool.policy.refuses(request)
        if refusal is not None:
            pool.publish(worker, [Rejected(now_ns, worker.state.worker, request.id, request.client, refusal)])
            return
        output_tokens = self._calls.jobs[request.id].output_tokens
        self.home[request.id] = worker
        worker.hands_over |= prefill_only
        if transfer.kv_tokens and self._fetch(worker, replace(transfer, prefill_only=prefill_only)):
            return
        came = (transfer.generated_tokens, prefill_only)
        pool.apply(worker, transitions.arrive(worker.state, request, output_tokens, now_ns, *came))
        if request.id not in self._calls.over:
            pool.wake(worker)

    # --- requests that change their worker ---------------------------------------------------------------------------

    def departs(self, request: Request, generated_tokens: int, target: int) -> None:
        """Note a request that has left its worker, without KV, for another one."""
        self._under_way[request.id] = Transfer(request, generated_tokens, target)
        self._loop.at(self._loop.now_ns, REQUEST_LANDS, request.id)

    def request_lands(self, request_id: int, run: int) -> None:
        """Deliver a request that has come to a worker, or place it anew if that takes none any more."""
        if run:
            self.transfers.lands(request_id, run)
            return
        transfer = self._under_way.pop(request_id, None)
        if transfer is None:
            return
        worker = self._pool.workers[transfer.target]
        if transfer.kv_tokens and request_id in worker.state.transit.incoming:
            self._fetched(worker, transfer)
        elif transfer.kv_tokens or worker not in self._pool.takers():
            self.place(Transfer(transfer.request, transfer.generated_tokens))
        else:
            self._deliver(worker, transfer)

    def _fetch(self, worker: SimulatedWorker, transfer: Transfer) -> bool:
        """Bring a request's KV from the checkpoint to a worker; whether that has room for it."""
        assert self._checkpoint is not None
        request_id, now_ns = transfer.request.id, self._loop.now_ns
        tokens = transfer.request.prompt.tokens + transfer.generated_tokens
        try:
            worker.become(transitions.reserve(worker.state, request_id, tokens, worker.growth[1]))
        except transitions.NoRoomError:
            return False
        self._under_way[request_id] = replace(transfer, target=worker.state.worker)
        self._loop.at(now_ns + self._checkpoint.transfer_ns(transfer.kv_tokens), REQUEST_LANDS, request_id)
        return True

    def _fetched(self, worker: SimulatedWorker, transfer: Transfer) -> None:
        """Let a request arrive whose KV has come from the checkpoint."""
        self._pool.interrupt(worker)
        request, now_ns = self._now(transfer.request), self._loop.now_ns
        self.home[request.id] = worker
        done = (transfer.generated_tokens, transfer.kv_tokens, worker.growth[0], transfer.prefill_only)
        output_tokens = self._calls.jobs[request.id].output_tokens
        self._pool.apply(worker, transitions.receive(worker.state, request, output_tokens, now_ns, *done))
        self._pool.wake(worker)

    def _unreserve(self, transfer: Transfer) -> None:
        """Free what is reserved for KV that comes from the checkpoint, if it is still."""
        if transfer.kv_tokens and transfer.target >= 0:
            worker = self._pool.workers[transfer.target]
            if transfer.request.id in worker.state.transit.incoming:
                self._pool.interrupt(worker)
                worker.become(transitions.unreserve(worker.state, transfer.request.id))
                self._pool.wake(worker)

    def worker_lost(self, worker: SimulatedWorker) -> list[Transfer]:
        """Call off the transfers from and to a worker that loses its memory; the requests that it had staged."""
        lost = [Transfer(each.request, each.generated_tokens) for each in self.transfers.worker_lost(worker)]
        worker.losses += 1
        for _, events in worker.pipeline:
            for event in events:
                # The token that did not leave the last stage is lost.
                if isinstance(event, Decoded):
                    continue
                assert isinstance(event, Finished | Migrated)
                made = event.output_tokens if isinstance(event, Finished) else event.generated_tokens
                lost.append(Transfer(self._calls.jobs[event.request_id].request, made - 1))
                gone = (event.request_id, event.client, True, 0, made - 1)
                self._pool.publish(worker, [Migrated(self._loop.now_ns, worker.state.worker, *gone)])
        worker.pipeline.clear()
        worker.stages_free_ns = [0] * len(worker.stages_free_ns)
        return lost

    def let_go(self, worker: SimulatedWorker) -> None:
        """After a step, cancel the requests whose callers gave up, and let others go to their next worker."""
        leaving, worker.leaving = worker.leaving, []
        for request_id in leaving:
            here = self.home.get(request_id) is worker
            if request_id in self._calls.over:
                continue
            if here and worker.plan is not None and request_id not in worker.state.transit.outgoing:
                worker.leaving.append(request_id)  # it is in the step under way
            elif not here or request_id in worker.state.transit.outgoing:
                self.caller_gives_up(request_id, 0)
            else:
                self._pool.apply(worker, transitions.cancel(worker.state, request_id, self._loop.now_ns))
        self.transfers.let_go(worker)
