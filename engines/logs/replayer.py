"""One worker and its policy's state, rebuilt from the events of a log: the worker's own transitions tell them again.

A log holds what happened, not the plans.  But a plan can be read off its events: preemptions and admissions are events
of their own, chunks are what was prefilled at one time, and a decode run says how many steps it took.  So the worker's
transitions are run again, whatever they tell must be the next events of the log, and the policy observes it all.  A
worker that lost its memory reads as one that preempted everybody and evicted everything.

The log sums decode runs.  What a run covers is taken apart into the step that completed a prefill and pure decode
steps, one by one while somebody watches the decisions between them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from fairsched.engines.log import line_of, merged
from fairsched.model import worker as transitions
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cached,
    Cancelled,
    Decoded,
    Event,
    Evicted,
    Finished,
    HostLost,
    Migrated,
    Preempted,
    Prefilled,
    Settled,
    SwappedIn,
    SwappedOut,
    Transferred,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.host import NO_HOST, Host
from fairsched.model.latency import LatencyModel
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.worker_host import land, lose_host
from fairsched.model.worker_state import WorkerState
from fairsched.model.workload import Job
from fairsched.policies.base import LocalPolicy

DECIDED = (Preempted, SwappedOut, SwappedIn, Admitted, Settled, Evicted)
"""What a decision does at once: these events follow it at the same time, and a step begins after them."""


class DifferenceError(ValueError):
    """The log holds an event that this worker would not have told."""


class Retrace:
    """A worker in the middle of its log.

    `state` is the worker, `policy_state` its policy's state.  `since_ns` is when it last decided.  `on_decision` is
    called after each decision (with everything that it did in both states), while it is set; decode runs are then
    taken step by step.
    """

    def __init__(self, worker: int, policy: LocalPolicy[Any], jobs: Mapping[int, Job], latency: LatencyModel) -> None:
        self.worker = worker
        self.policy = policy
        self.policy_state = policy.init()
        self.state = WorkerState(worker, 0)
        self.since_ns = 0
        self.on_decision: Callable[[], None] | None = None
        self._jobs = jobs
        self._latency = latency
        self._swapping: SwappedIn | None = None  # Whose admission must come next.
        self._deciding = False  # The worker is idle, or decides what comes next: no step has begun.
        self._step: list[Event] = []  # Prefilled and Cached of a step whose end is not told yet.
        self._due: deque[Event] = deque()  # What the transitions told and the log must hold next.

    def feed(self, event: Event) -> None:
        """The worker's next event.  Raises `DifferenceError` if it cannot be."""
        try:
            self._feed(event)
        except DifferenceError:
            raise
        except Exception as error:
            # The log is input: what it makes a worker or a policy raise is said of its line.
            why = f"{type(error).__name__}: {error}"
            raise DifferenceError(f"{_text(event)} cannot happen here ({why})") from error

    def end(self) -> None:
        """The log ends: tell what is still open.  Raises `DifferenceError` if something is missing."""
        if self._step:
            self._end_chunks(decode=False)
        if self._due:
            raise DifferenceError(f"the log ends, and {_text(self._due[0])} is missing")
        self._decided()

    def _feed(self, event: Event) -> None:
        if self._step and not self._same_step(event):
            self._end_chunks(decode=False)
        kind = type(event)
        if self._due:
            self._expect(event, self._due.popleft())
        elif kind in _FEEDS:
            if kind not in DECIDED:
                self._decided()
            _FEEDS[kind](self, event)
        elif kind is Settled:
            raise DifferenceError(f"the worker would not tell {_text(event)}")
        if kind is not Decoded:
            self.policy_state = self.policy.observe(self.policy_state, event)
        if not self.state.in_flight:
            self._decides_at(event.time_ns)

    # --- time -------------------------------------------------------------------------------------------------------

    def _decides_at(self, time_ns: int) -> None:
        self.since_ns = time_ns
        self._deciding = True

    def _decided(self) -> None:
        """A step begins, or idling goes on: whatever was decided is done."""
        if self._deciding and self.on_decision is not None:
            self.on_decision()
        self._deciding = False

    # --- transitions ------------------------------------------------------------------------------------------------

    def _expect(self, event: Event, told: Event) -> None:
        if told != event:
            raise DifferenceError(f"the worker would tell {_text(told)}, not {_text(event)}")

    def _joined(self, event: WorkerJoined) -> None:
        host = Host(event.host_capacity_tokens) if event.host_capacity_tokens else NO_HOST
        self.state = WorkerState(self.worker, event.kv_capacity_tokens, host=host)

    def _left(self, _: WorkerLeft) -> None:
        self.state = WorkerState(self.worker, 0)

    def _arrived(self, event: Arrived) -> None:
        request, generated, kv = event.request, event.generated_tokens, event.kv_tokens
        output_tokens = self._jobs[request.id].output_tokens
        self.state, told = transitions.arrive(self.state, request, output_tokens, event.time_ns, generated, kv)
        self._expect(event, told[0])

    def _admitted(self, event: Admitted) -> None:
        admission = Admission(
            event.request_id,
            event.client,
            event.extend_tokens,
            event.cached_prefix_tokens,
            event.reserved_output_tokens,
        )
        swapping, self._swapping = self._swapping, None
        comes = () if swapping is None else (event.request_id,)
        self._begun(StepPlan(admit=(admission,), decode=False, swap_in=comes), event, swapping)

    def _preempted(self, event: Preempted) -> None:
        self._begun(StepPlan(preempt=(event.request_id,), decode=False), event)

    def _swapped_out(self, event: SwappedOut) -> None:
        self._begun(StepPlan(swap_out=(event.request_id,), decode=False), event)

    def _swapped_in(self, event: SwappedIn) -> None:
        # How it is admitted is told next.
        self._swapping = event

    def _begun(self, plan: StepPlan, event: Event, before: Event | None = None) -> None:
        # Room is made once, for the whole plan: what went is told by events of its own.
        self.state, told = transitions.change_batch(self.state, plan, event.time_ns)
        if before is not None:
            self._expect(before, told.pop(0))
        self._expect(event, told[0])
        self._due.extend(told[1:])
        self._decides_at(event.time_ns)

    def _transferred(self, event: Transferred) -> None:
        """The end of a step, told before what it computed; of one that computed nothing, all of it."""
        self.state, told = land(self.state, event.time_ns)
        self._expect(event, told)
        if not self.state.decoding:
            self._decides_at(event.time_ns)

    def _host_lost(self, event: HostLost) -> None:
        self.state, told = lose_host(self.state, event.time_ns)
        self._expect(event, told)
        self._decides_at(event.time_ns)

    def _evicted(self, event: Evicted) -> None:
        cache, evictions = self.state.cache.evicted(event.prompt, event.keep_blocks)
        blocks = sum(eviction.blocks for eviction in evictions)
        if blocks != event.blocks:
            raise DifferenceError(f"{event.blocks} blocks are evicted where {blocks} are cached")
        self.state = replace(self.state, cache=cache)

    def _gone(self, event: Cancelled | Migrated) -> None:
        leave = transitions.cancel if isinstance(event, Cancelled) else transitions.depart
        self.state, told = leave(self.state, event.request_id, event.time_ns)
        self._expect(event, told[0])
        if event.was_running:
            self._decides_at(event.time_ns)

    def _stopped(self, event: Finished) -> None:
        """A finish that no step foresaw: the output ended early."""
        self.state, told = transitions.stop(self.state, event.request_id, event.time_ns)
        self._expect(event, told[0])
        self._decides_at(event.time_ns)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _chunk(self, event: Prefilled | Cached) -> None:
        self._step.append(event)

    def _same_step(self, event: Event) -> bool:
        """Whether the event may belong to the step of the chunks seen so far."""
        if isinstance(event, Decoded):
            return True
        if event.time_ns != self._step[0].time_ns or not isinstance(event, Prefilled | Cached):
            return False
        seen = {told.request_id for told in self._step if isinstance(told, Prefilled)}
        return isinstance(event, Cached) or event.request_id not in seen

    def _end_chunks(self, decode: bool) -> Decoded | None:
        """Compute the chunks seen; what the step decoded is returned and not observed yet."""
        chunks = tuple((told.request_id, told.tokens) for told in self._step if isinstance(told, Prefilled))
        seen, time_ns = len(self._step), self._step[0].time_ns
        self.state, told = transitions.finish(self.state, StepPlan(chunks=chunks, decode=decode), 1, time_ns)
        if told[:seen] != self._step:
            raise DifferenceError(f"the worker would tell {_texts(told[:seen])}, not {_texts(self._step)}")
        self._step = []
        self._decides_at(time_ns)
        decoded = told[seen] if len(told) > seen else None
        self._due.extend(told[seen + 1 :])
        if decoded is not None and not isinstance(decoded, Decoded):
            raise DifferenceError(f"the worker would tell {_text(decoded)} before it decodes")
        return decoded

    def _decodes_beside(self, run: Decoded) -> bool:
        """Whether the step of the chunks seen decoded too: `run` covers that step and the pure ones after it."""
        done = [told for told in self._step if isinstance(told, Prefilled) and not told.remaining_tokens]
        if not done:
            return run.steps > 1 or run.time_ns == self._step[0].time_ns
        joining = 0
        for told in done:
            waiting = self.state.running[told.request_id].waiting
            joining += waiting.output_tokens > waiting.generated_tokens + 1
        alone = len(done) + (run.steps - 1) * (self.state.decoding + joining)
        return sum(run.tokens) != alone

    def _decode_run(self, run: Decoded) -> None:
        """Take the run apart into steps, tell them to the policy, and compare their sum."""
        told: Decoded | None = None
        if self._step:
            told = self._end_chunks(self._decodes_beside(run))
            if told is not None:
                self.policy_state = self.policy.observe(self.policy_state, told)
        for part in self._pure_steps(run, run.steps - (told is not None)):
            self.policy_state = self.policy.observe(self.policy_state, part)
            told = part if told is None else merged(told, part)
        if told != run:
            raise DifferenceError(f"the worker would tell {_text(told) if told else 'nothing'}, not {_text(run)}")

    def _pure_steps(self, run: Decoded, steps: int) -> Iterator[Decoded]:
        """Decode for `steps` steps up to the run's time, one by one if somebody watches."""
        start_ns, decoding, context = self.since_ns, self.state.decoding, self.state.context
        if steps and (not decoding or steps > self.state.ends.first()[0] - self.state.clock):
            raise DifferenceError(f"the worker has not {steps} steps to decode, as {_text(run)} says")
        # The time is shared out as the latency model has it, which is exact for a simulated run.
        whole = max(self._latency.decode_run_ns(decoding, context, steps), 1) if steps else 1
        left = steps
        while left:
            self._decided()
            taken = left if self.on_decision is None else 1
            left -= taken
            part = whole if not left else self._latency.decode_run_ns(decoding, context, steps - left)
            time_ns = start_ns + (run.time_ns - start_ns) * part // whole
            self.state, told = transitions.finish(self.state, StepPlan(), taken, time_ns)
            self._due.extend(told[1:])
            self._decides_at(time_ns)
            assert isinstance(told[0], Decoded)
            yield told[0]


_FEEDS: dict[type, Callable[[Retrace, Any], None]] = {
    WorkerJoined: Retrace._joined,
    WorkerLeft: Retrace._left,
    Arrived: Retrace._arrived,
    Admitted: Retrace._admitted,
    Preempted: Retrace._preempted,
    SwappedOut: Retrace._swapped_out,
    SwappedIn: Retrace._swapped_in,
    Transferred: Retrace._transferred,
    HostLost: Retrace._host_lost,
    Evicted: Retrace._evicted,
    Prefilled: Retrace._chunk,
    Cached: Retrace._chunk,
    Decoded: Retrace._decode_run,
    Cancelled: Retrace._gone,
    Migrated: Retrace._gone,
    Finished: Retrace._stopped,
}


def _text(event: Event) -> str:
    return line_of(event).decode()


def _texts(events: list[Event]) -> str:
    return " ".join(map(_text, events)) or "nothing"
