"""The cluster's policy in a live cluster: what it is told, when it is asked, and the requests that are at no worker.

A router places a request at once, and may be asked for migrations.  Any other policy is told that a request came
(`Arrived` at `NOWHERE`), and dispatches it later.  With a `decide_every_us` it is asked at those times, or as soon
afterwards as a report comes; otherwise after each report, and when it wakes.

Where a policy fails, its requests go to the shortest queue.  So do those that it still holds when nothing else can
happen, after `FRUITLESS_MAX` of its times if it has such or wakes: the guard counts that as `stalled`.
"""

import logging
import time
from collections.abc import Callable, Sequence

from sortedcontainers import SortedDict

from fairsched.engines.serving.cluster.member import OpenRequest, StateReplica
from fairsched.engines.serving.guard import RouterGuard
from fairsched.model.decision import ClusterView, Dispatch, Migration
from fairsched.model.events import NOWHERE, Arrived, Event
from fairsched.policies.base import AnyClusterPolicy

FRUITLESS_MAX = 1_000
"""So many times a policy may leave everything as it is while it holds requests and nothing else happens."""
NAP_NS = 10_000_000
"""The longest sleep of an idle cluster whose policy will be asked later; what comes meanwhile waits for its end."""

_log = logging.getLogger("fairsched.cluster")


class LiveControl:
    """The guarded policy, and the requests that it, or a worker that is starting, is waited for with: `held`.

    `tell` reports events, those of requests at no worker without a policy state; `send` brings a request to a worker as
    a dispatch says, and `want` does what a migration says.
    """

    def __init__(
        self,
        policy: AnyClusterPolicy,
        clock: Callable[[], int],
        tell: Callable[[StateReplica | None, list[Event]], None],
        send: Callable[[OpenRequest, Dispatch], None],
        want: Callable[[Migration], None],
    ) -> None:
        self.guard = RouterGuard(policy, _log)
        self.held: SortedDict[int, OpenRequest] = SortedDict()
        self.refused = 0
        self._every_ns = None if policy.decide_every_us is None else policy.decide_every_us * 1_000
        self._next_ns = 0
        self._fruitless = 0
        self._clock = clock
        self._tell = tell
        self._send = send
        self._want = want

    def hear(self, events: Sequence[Event], *, nowhere: bool) -> None:
        """Tell the policy what happened; a router holds nothing, and need not know what happens `nowhere`."""
        if self.guard.learns and not (nowhere and self.guard.places):
            for event in events:
                self.guard.observe(event)

    def place(self, call: OpenRequest, view: ClusterView | None) -> None:
        """Send a request where the router says, or hold it: for a policy that decides later, or for a worker (None:
        there are no workers for it yet)."""
        request = call.request
        if self.guard.places and view is not None:
            self._send(call, self.guard.route(request, view))
        elif request.id not in self.held:
            self.held[request.id] = call
            if not self.guard.places:
                self._tell(None, [Arrived(self._clock(), NOWHERE, request, len(call.answer.tokens))])

    def place_held(self, place: Callable[[OpenRequest], None]) -> None:
        """Place again what is held, in order of ids; what still finds no place is held again."""
        held = [*self.held.values()]
        if self.guard.places:
            self.held.clear()
        for call in held:
            place(call)

    def decide(self, view: ClusterView) -> None:
        """Ask the policy, if it is time, and do what it says."""
        if not (view.workers and self._is_due()):
            return
        plan = self.guard.decide(view)
        if plan is None:
            self._send_all(view)
            return
        for dispatch in plan.dispatches:
            call = self.held.pop(dispatch.request_id, None)
            if call is None:
                self.refused += 1
                continue
            if all(load.worker != dispatch.worker for load in view.workers):
                self.refused += 1
                dispatch = self.guard.shortest(call.request.id, view)
            self._send(call, dispatch)
        for migration in plan.migrations:
            self._want(migration)
        if plan.dispatches or plan.migrations:
            self._fruitless = 0

    def _is_due(self) -> bool:
        if self._every_ns is None:
            return True
        now_ns = self._clock()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns - now_ns % self._every_ns + self._every_ns
        return True

    def go_on(self, view: ClusterView) -> bool:
        """When nothing else can happen, wait until the policy is asked again, or do without it; whether it holds any
        request."""
        if self.guard.places or not self.held or not view.workers:
            return False
        wakes_ns, now_ns = self.guard.wakes_ns(), self._clock()
        if wakes_ns is not None and wakes_ns > now_ns:
            time.sleep(min(wakes_ns - now_ns, NAP_NS) / 1e9)
            self._fruitless = 0
            return True
        self._fruitless += 1
        if not (self._every_ns is None and wakes_ns is None) and self._fruitless <= FRUITLESS_MAX:
            time.sleep(max(self._next_ns - self._clock(), 0) / 1e9)
        else:
            self.guard.failed("stalled", f"{len(self.held)} requests are held, request {self.held.keys()[0]} first")
            self._send_all(view)
        return True

    def _send_all(self, view: ClusterView) -> None:
        if not self.guard.places:
            while self.held:
                _, call = self.held.popitem(0)
                self._send(call, self.guard.shortest(call.request.id, view))
