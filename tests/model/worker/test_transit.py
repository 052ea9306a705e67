"""KV between two workers: whatever becomes of transfers, both workers' sums are those of their requests."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, Host, StepPlan
from fairsched.model.events import Arrived, Event, Finished, Migrated, Preempted, Rejected
from fairsched.model.worker import NoRoomError, Step, WorkerState
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.strategies import requests, step_plans

TRANSFERS = ("stage", "reserve", "reserve", "receive", "receive", "receive", "unreserve", "resume")
RARE = ("cancel", "lose")


class Pair:
    """Two workers that send each other requests."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.workers = [WorkerState(i, draw(st.integers(12, 30)), host=Host(20 * i)) for i in range(2)]
        self.came = 0
        self.now_ns = 0

    def take(self, at: int, step: Step) -> list[Event]:
        """The worker after a transition."""
        self.workers[at], events = step
        return events

    def act(self) -> None:
        """Let something happen that can: most of the time the workers work, or a transfer goes on."""
        self.now_ns += 1
        often = ("arrive", "step", *TRANSFERS) if self.draw(st.integers(0, 9)) != 6 else RARE
        may = [(name, at) for name in often for at in range(2) if self.whose(name, at)]
        if may:
            name, at = self.draw(st.sampled_from(may))
            chosen = self.draw(st.sampled_from(sorted(self.whose(name, at))))
            getattr(self, f"_{name}")(at, self.workers[at], self.workers[1 - at], chosen)

    def whose(self, name: str, at: int) -> set[int]:
        """The requests of which this can happen at a worker; what is of no single one can if this is not empty."""
        here, there = self.workers[at], self.workers[1 - at]
        match name:
            case "arrive":
                return {0} if len(here.queue) < 3 else set()
            case "stage":
                ready = {i for i in here.running if transitions.kv_tokens(here, i)}
                ready |= {i for i, waiting in here.queue.items() if waiting.kv_tokens or here.host.kept(i)}
                return ready - {i for i, _ in here.host.outgoing}
            case "reserve":
                return set(there.transit.outgoing) - set(here.transit.incoming)
            case "receive" | "unreserve":
                return set(here.transit.incoming)
            case "resume":
                return set(here.transit.outgoing) - set(there.transit.incoming)
            case "cancel":
                return {*here.queue, *here.running}
        return {0} if here.queue or here.running or here.transit.outgoing else set()

    def check(self) -> None:
        """Both workers' sums; and each request is at one place, or it is on its way from one to the other."""
        for worker in self.workers:
            worker_invariants.check(worker)
        one, other = ({*worker.queue, *worker.running, *worker.transit.outgoing} for worker in self.workers)
        assert not one & other
        for worker, there in zip(self.workers, (other, one), strict=True):
            assert set(worker.transit.incoming) <= there
            # A request that is here for its first token leaves with it, unless that is all.
            decoding = [worker.running[i].waiting for i, flight in worker.in_flight.items() if flight.decodes]
            assert not any(waiting.prefill_only for waiting in decoding)
            for outgoing in worker.transit.outgoing.values():
                assert outgoing.waiting.generated_tokens < outgoing.waiting.output_tokens

    def _arrive(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        request = replace(self.draw(requests(0, self.now_ns)), id=self.came)
        outputs = self.draw(st.integers(1, request.max_output_tokens))
        alone = self.draw(st.booleans())
        events = self.take(at, transitions.arrive(here, request, outputs, self.now_ns, prefill_only=alone))
        self.came += not isinstance(events[0], Rejected)

    def _step(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        """Requests that came with their KV enter with it where there is room, or without as any other."""
        plan = self.draw(step_plans(here))
        for landed in sorted(here.transit.landed) if self.draw(st.booleans()) else ():
            waiting = here.queue[landed]
            cached = max(here.cache.cached_tokens(waiting.request.prompt), waiting.kv_tokens)
            left = waiting.request.max_output_tokens - waiting.generated_tokens
            admission = Admission(landed, waiting.request.client, waiting.context_tokens - cached, cached, left)
            counting = StepPlan(admit=(admission,), chunks=((landed, admission.extend_tokens),))
            try:
                transitions.begin(here, counting, self.now_ns)
                plan = counting
            except transitions.InfeasiblePlanError:
                pass
        came = {admission.request_id: here.queue[admission.request_id].kv_tokens for admission in plan.admit}
        self.take(at, transitions.begin(here, plan, self.now_ns))
        begun = self.workers[at]
        worker_invariants.check(begun)
        for admission in plan.admit:
            # A request computes what its plan says, unless less than that came with it.
            if admission.request_id not in plan.swap_in and not came[admission.request_id]:
                assert begun.in_flight[admission.request_id].remaining_tokens == admission.extend_tokens
        events = self.take(at, transitions.finish(begun, plan, 1, self.now_ns))
        gone = {event.request_id for event in events if isinstance(event, Finished | Migrated)}
        assert gone == set(begun.running) - set(self.workers[at].running)

    def _stage(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        self.take(at, transitions.stage(here, chosen, self.now_ns))

    def _reserve(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        waiting = there.transit.outgoing[chosen].waiting
        tokens = waiting.context_tokens + waiting.request.max_output_tokens - waiting.generated_tokens
        try:
            self.workers[at] = transitions.reserve(here, chosen, tokens)
            assert self.workers[at].free == here.free - tokens
        except NoRoomError:
            assert here.free < tokens

    def _receive(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        waiting = there.transit.outgoing[chosen].waiting
        known = (waiting.request, waiting.output_tokens, self.now_ns, waiting.generated_tokens, waiting.kv_tokens)
        self.take(at, transitions.receive(here, *known))
        self.workers[1 - at] = transitions.sent(there, chosen)
        assert (self.workers[at].free, self.workers[at].queue[chosen].kv_tokens) == (here.free, waiting.kv_tokens)

    def _unreserve(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        self.workers[at] = transitions.unreserve(here, chosen)
        assert self.workers[at].free == here.free + here.transit.incoming[chosen]

    def _resume(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        events = self.take(at, transitions.resume(here, chosen, self.now_ns))
        after, outgoing = self.workers[at], here.transit.outgoing[chosen]
        assert (after.used, after.free) == (here.used, here.free)
        assert [type(event) for event in events] == [Arrived]
        waiting = after.queue[chosen]
        assert (waiting.request.arrival_ns, waiting.prefill_only) == (self.now_ns, False)
        assert waiting.kv_tokens == (0 if chosen in here.host.kv else outgoing.waiting.kv_tokens)

    def _cancel(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        self.take(at, transitions.cancel(here, chosen, self.now_ns))

    def _lose(self, at: int, here: WorkerState, there: WorkerState, chosen: int) -> None:
        """What waited with KV of its own comes again without; what was to be sent is lost, here and on its way."""
        for request_id in here.transit.outgoing:
            if request_id in there.transit.incoming:
                self.workers[1 - at] = transitions.unreserve(self.workers[1 - at], request_id)
        events = self.take(at, transitions.lose(here, self.now_ns))
        lost, kinds = self.workers[at], Counter(map(type, events))
        assert lost.free == lost.room == lost.capacity
        assert set(lost.queue) == {*here.queue, *here.running}
        assert not any(waiting.kv_tokens for waiting in lost.queue.values())
        assert all(lost.queue[i].request.arrival_ns == self.now_ns for i in here.transit.landed)
        assert kinds[Migrated] == kinds[Arrived] == len(here.transit.landed)
        assert kinds[Preempted] == len(here.running)


@given(st.data())
def test_memory_is_where_requests_are(data: st.DataObject) -> None:
    """Requests are staged, sent, received, kept where they were, given up and lost with a worker: after each of it both
    workers' memory is that of their requests, and once all are gone both are empty."""
    pair = Pair(data.draw)
    for _ in range(data.draw(st.integers(20, 60))):
        pair.act()
        pair.check()
    for at in range(2):
        for request_id in pair.workers[at].transit.incoming:
            pair.workers[at] = transitions.unreserve(pair.workers[at], request_id)
        for request_id in (*pair.workers[at].queue, *pair.workers[at].running):
            pair.take(at, transitions.cancel(pair.workers[at], request_id, 0))
        for request_id in pair.workers[at].transit.outgoing:
            pair.workers[at] = transitions.sent(pair.workers[at], request_id)
        empty = transitions.land(pair.workers[at], 0)[0]
        assert empty.free == empty.capacity
        assert (empty.used, empty.promised, empty.queue_tokens, empty.host) == (0, 0, 0, Host(20 * at))
        assert not empty.cache.pins
