"""Where the requests of a simulated cluster are: held for its policy, at a worker, or on the way to another.

A request is sent where the cluster's policy says.  Where that is a worker which takes no requests (it is gone, and the
policy has not heard), it goes to the one with the fewest.  A request that is migrated leaves at once if it waits, after
the step under way if it runs, and lands when its KV has come over.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from fairsched.engines.changes import WorkerSpec
from fairsched.engines.head import Head
from fairsched.engines.lane import Lane
from fairsched.engines.moves import KvLink, Move, Tally
from fairsched.engines.predictors import Predictor
from fairsched.engines.timeline import CALLER_GIVES_UP, CLUSTER_DECIDES, REQUEST_COMES, REQUEST_LANDS, Timeline
from fairsched.model import worker as transitions
from fairsched.model.events import NOWHERE, Arrived, Cancelled, Event, Rejected
from fairsched.model.plan import Migration
from fairsched.model.request import Request
from fairsched.model.worker_batch import generated, kv_tokens
from fairsched.model.workload import Workload
from fairsched.policies.base import LocalPolicy

_ROOT = 1
"""A request that comes by its own time, as the next of the workload."""


class Placing(Timeline):
    """The requests of a run, each at its place."""

    def __init__(
        self,
        workload: Workload,
        policy: LocalPolicy[Any],
        specs: Sequence[WorkerSpec],
        head: Head,
        link: KvLink,
        on_events: Callable[[list[Event]], None] | None,
        progress: Callable[[int], None] | None,
        leap: bool,
        predictor: Predictor | None,
    ) -> None:
        super().__init__(workload, policy, specs, on_events, progress, leap)
        self._prediction = None if predictor is None else predictor.start()
        self.head = head
        self._informs = head.learns
        self.link = link
        self.tally = Tally()
        self._coming = 0  # workers that will join
        self._up: list[Lane] | None = None
        self._uneven = len({spec.capacity for spec in specs}) > 1
        self._home: dict[int, Lane] = {}
        self._held: dict[int, Move] = {}
        self._under_way: dict[int, Move] = {}
        self._asked = False
        self._roots = iter(sorted([(job.request.arrival_ns, job.request.id) for job in self.calls.roots()]))

    # --- what the cluster's policy knows ----------------------------------------------------------------------------

    def _inform(self, events: list[Event]) -> None:
        if self.head.happened(events):
            self._ask()

    def _ask(self) -> None:
        """The cluster's policy decides after everything else that happens now."""
        if self.head.decides and not self._asked and self.head.policy.decide_every_us is None:
            self._asked = True
            self._at(self.now_ns, CLUSTER_DECIDES, 0)

    def _follow_decoding(self) -> None:
        """Steps of leaps that are over are told before anything is asked."""
        if self.head.reports is None:
            for lane in self.lanes:
                self._settle(lane)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _next_root(self) -> None:
        """Of the requests that follow nobody the agenda holds the next only, which keeps it short."""
        for arrival_ns, request_id in islice(self._roots, 1):
            self._at(arrival_ns, REQUEST_COMES, request_id, _ROOT)

    def _request_comes(self, request_id: int, root: int) -> None:
        if root:
            self._next_root()
        job = self.calls.jobs[request_id]
        if self._prediction is not None:
            request = replace(job.request, predicted_output_tokens=self._prediction.of(job))
            job = self.calls.jobs[request_id] = replace(job, request=request)
        self._place(Move(self._now(job.request)))
        if job.cancel_after_ns is not None and request_id not in self.calls.over:
            self._at(self.now_ns + job.cancel_after_ns, CALLER_GIVES_UP, request_id)

    def _end(self, request_id: int, finished: bool) -> None:
        if finished and self._prediction is not None:
            self._prediction.finished(self.calls.jobs[request_id])
        super()._end(request_id, finished)

    def _now(self, request: Request) -> Request:
        """The request as it comes to somewhere now."""
        return request if request.arrival_ns == self.now_ns else replace(request, arrival_ns=self.now_ns)

    def _place(self, move: Move) -> None:
        """Send a request where the router says, or hold it: for a policy that decides later, or for a worker."""
        request = move.request
        if self.head.places:
            takers = self._takers(request)
            if takers:
                if self.head.follows_decoding:
                    self._follow_decoding()
                view = self.head.view(takers, self.now_ns, self.credit.known)
                if view.workers:
                    self._deliver(self._taker(self.head.route(request, view).worker, takers), move)
                    return
            if not takers and not self._coming:
                reason = f"request {request.id} finds no worker that takes requests, and none is to come"
                self._nowhere(Rejected(self.now_ns, NOWHERE, request.id, request.client, reason))
                return
        self._held[request.id] = move
        self._nowhere(Arrived(self.now_ns, NOWHERE, self._now(request), move.generated_tokens))

    def _takers(self, request: Request | None = None) -> list[Lane]:
        """The workers that take requests: those that are up, all if none is; and that the request fits, if it does."""
        takers = self._up
        if takers is None:
            serving = [lane for lane in self.lanes if lane.phase == "serving"]
            takers = [lane for lane in serving if lane.down_until_ns <= self.now_ns]
            if len(takers) == len(serving):
                self._up = takers  # until a worker changes
            takers = takers or serving
        if self._uneven and request is not None:
            takers = [lane for lane in takers if lane.state.fits_alone(request)] or takers
        return takers

    def _taker(self, worker: int, takers: list[Lane]) -> Lane:
        """The worker of that number, or the one with the fewest requests if that takes none."""
        if len(takers) == len(self.lanes) and 0 <= worker < len(takers):
            return self.lanes[worker]
        for lane in takers:
            if lane.state.worker == worker:
                return lane
        self.tally.redirected += 1
        self.head.gone(worker)
        return min(takers, key=lambda lane: (len(lane.state.queue) + len(lane.state.in_flight), lane.state.worker))

    def _deliver(self, lane: Lane, move: Move) -> None:
        """The request is at the worker."""
        self._interrupt(lane)
        request, worker = self._now(move.request), lane.state.worker
        refusal = self.policy.refuses(request)
        if refusal is not None:
            self._publish(lane, [Rejected(self.now_ns, worker, request.id, request.client, refusal)])
            return
        output_tokens = self.calls.jobs[request.id].output_tokens
        lane.state, events = transitions.arrive(
            lane.state, request, output_tokens, self.now_ns, move.generated_tokens, move.kv_tokens
        )
        self._home[request.id] = lane
        self._publish(lane, events)
        if request.id not in self.calls.over:
            self._wake(lane)

    def _caller_gives_up(self, request_id: int, _: int) -> None:
        if request_id in self.calls.over:
            return
        move = self._held.pop(request_id, None) or self._under_way.pop(request_id, None)
        if move is not None:
            client = move.request.client
            self._nowhere(Cancelled(self.now_ns, NOWHERE, request_id, client, False, 0, move.generated_tokens))
            return
        lane = self._home[request_id]
        self._interrupt(lane)
        if request_id in lane.state.queue or lane.plan is None:
            self._cancel(lane, request_id)
        else:
            lane.leaving.append(request_id)
        self._wake(lane)

    def _nowhere(self, event: Arrived | Cancelled | Rejected) -> None:
        """Something happens to a request that is at no worker; a router that holds nothing need not know."""
        if not self.head.places:
            self._inform([event])
        if self.on_events is not None:
            self.on_events([event])
        if not isinstance(event, Arrived):
            self._end(event.request_id, False)

    # --- migrations -------------------------------------------------------------------------------------------------

    def _migrate(self, plan: Migration) -> None:
        """Move a request now if it waits, after the step under way if it runs; leave it where it cannot move."""
        lane = self._home.get(plan.request_id)
        if lane is None or not self._can_move(plan, lane):
            self.tally.refused += 1
            return
        self._interrupt(lane)
        if plan.request_id in lane.state.queue or lane.plan is None:
            self._depart(lane, plan)
            self._wake(lane)
        else:
            lane.moving[plan.request_id] = plan

    def _can_move(self, plan: Migration, lane: Lane) -> bool:
        request_id, target = plan.request_id, plan.target
        if request_id in self.calls.over or request_id in lane.moving or request_id in lane.leaving:
            return False
        if lane.state.worker != plan.source or target == plan.source or not 0 <= target < len(self.lanes):
            return False
        # It has come just now: nothing goes round in circles at one instant.
        if self.tally.moved_ns.get(request_id) == self.now_ns:
            return False
        other, request = self.lanes[target], self.calls.jobs[request_id].request
        return other in self._takers() and other.state.fits_alone(request)

    def _depart(self, lane: Lane, plan: Migration) -> None:
        """The request leaves its worker, and comes to the other when its KV has."""
        request_id, state = plan.request_id, lane.state
        waiting = state.queue.get(request_id)
        if waiting is not None:
            done, kv = waiting.generated_tokens, waiting.kv_tokens or state.host.kept(request_id)
        else:
            done, kv = generated(state, request_id), kv_tokens(state, request_id)
        kv = kv if plan.with_kv else 0
        move = Move(self.calls.jobs[request_id].request, done, kv, plan.target)
        del self._home[request_id]
        self._under_way[request_id] = move
        self.tally.migrated += 1
        self.tally.moved_ns[request_id] = self.now_ns
        lane.state, events = transitions.depart(state, request_id, self.now_ns)
        self._publish(lane, events)
        self._at(self.now_ns + self.link.transfer_ns(kv), REQUEST_LANDS, request_id)

    def _request_lands(self, request_id: int, _: int) -> None:
        move = self._under_way.pop(request_id, None)
        if move is None:
            return
        lane = self.lanes[move.target]
        if lane in self._takers():
            self.tally.moved_ns[request_id] = self.now_ns
            self._deliver(lane, move)
        else:
            self._place(Move(move.request, move.generated_tokens))

    def _let_go(self, lane: Lane) -> None:
        super()._let_go(lane)
        for request_id, plan in lane.moving.items():
            if self._home.get(request_id) is lane and request_id not in self.calls.over:
                self._depart(lane, plan)
            else:
                self.tally.refused += 1
        lane.moving.clear()
