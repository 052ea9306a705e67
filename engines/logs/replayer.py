"""Rebuilding states from a log: a `LogReplayer` follows the events with a replica, and lets the policy observe them.

A log holds what happened, not the plans.  But a plan can be read off its events: preemptions and admissions are events
of their own, chunks are what was prefilled at one time, and a decode run says how many steps it took.  So a
`WorkerReplica` runs the worker's transitions again, and their events must be the next ones of the log.  A worker that
lost its memory reads as one that preempted all requests and evicted all blocks.  The log sums decode runs: a run is
taken apart into the step that completed a prefill and pure decode steps, one by one while `on_decision` is set.

KV that goes from worker to worker has memory at both ends.  So a replica also `hears` the events at other workers that
end or begin a transfer of its own.  That an early target kept memory before the transfer began is not told.

A gateway's `WindowReplica` has no steps: calls arrive, are admitted where there is room, produce, are settled and end.
A log does not say which server took a call, so room is that of all servers together.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
from msgspec.structs import replace

from fairsched.engines.logs.log_file import RunInfo, line_of, merged
from fairsched.engines.logs.log_reader import LogReader
from fairsched.model import events as ev
from fairsched.model import worker as transitions
from fairsched.model.decision import NO_HOST, Admission, Host, StepPlan
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Client, Job, Request, floors_of
from fairsched.model.worker import WorkerState, land, lose_host
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.guarantees import charged_at_once, held_tokens


class DifferenceError(ValueError):
    """The log holds an event that this worker would not have told."""


class Replica(Protocol):
    """What a log drives: a worker or a gateway's window."""

    def follow(self, event: ev.Event) -> Iterator[ev.Event]:
        """Take the next event; yields what the policy observes, in order.  Raises an error if it cannot be."""

    def hears(self, event: ev.Event) -> None:
        """Take an event of another worker, or of none."""

    def end(self) -> None:
        """Note that the log ends.  Raises `DifferenceError` if something is missing."""

    def counts(self) -> tuple[int, int, int]:
        """Return the waiting requests, the running requests, and the cached tokens."""


@attrs.define
class _Flight:
    request: Request
    tokens: int
    begun: bool = False
    settled: bool = False


class WindowReplica(Replica):
    """A gateway's window in the middle of its log.

    Reservations grow with outputs, which a log counts by client; what was reserved at admission is held to the windows,
    which a large call may exceed where some room is left.
    Of servers that join later a log says what all make together, and not how large each is.
    """

    def __init__(self, run: RunInfo) -> None:
        self._on_lease = run.lease is not None
        self._most = max(run.windows)
        self._windows = self._free = sum(run.windows)
        self._queue: dict[int, Request] = {}
        self._flights: dict[int, _Flight] = {}
        self._produced: dict[int, int] = {}

    def hears(self, event: ev.Event) -> None:
        """Pass over calls from window to window, of which there are none."""

    def counts(self) -> tuple[int, int, int]:
        """Return the waiting calls, the calls at servers, and 0: what servers cache is unknown."""
        return len(self._queue), len(self._flights), 0

    def end(self) -> None:
        """Leave open what is open."""

    def follow(self, event: ev.Event) -> Iterator[ev.Event]:
        why = self._take(event)
        if why is not None:
            raise impossible(event, why)
        yield event

    def _take(self, event: ev.Event) -> str | None:
        """Take the event; returns why it cannot be, if it cannot."""
        match event:
            case ev.Arrived(request=request):
                if held_tokens(request.prompt_tokens, request.max_output_tokens) > self._most:
                    return f"no server takes more than {self._most} tokens"
                self._queue[request.id] = request
            case ev.Admitted():
                return self._admitted(event)
            case ev.Prefilled() | ev.Settled():
                return self._happened(event)
            case ev.Decoded():
                self._decoded(event)
            case ev.Finished():
                return self._ended(event.request_id, event.client, event.output_tokens)
            case ev.Cancelled() | ev.Migrated(was_running=False):
                return self._gone(event)
            case ev.WorkerJoined(kv_capacity_tokens=tokens):
                if tokens > self._windows:
                    self._free += tokens - self._windows
                    self._windows = self._most = tokens
            case ev.Lent() if not self._on_lease:
                return "its clients' credit is not on lease"
            case ev.Held() | ev.Lent() | ev.ClientConfigured():
                pass
            case _:
                return "a window tells no such thing"
        return None

    def _decoded(self, event: ev.Decoded) -> None:
        """Pass over decoded tokens, of which the log does not say whose they are: the totals at the ends are held to
        the client's sum."""
        for client, count in zip(event.clients, event.tokens, strict=True):
            self._produced[client] = self._produced.get(client, 0) + count

    def _gone(self, event: ev.Cancelled | ev.Migrated) -> str | None:
        if event.was_running:
            return self._ended(event.request_id, event.client, event.generated_tokens)
        return None if self._queue.pop(event.request_id, None) else "it does not wait"

    def _admitted(self, event: ev.Admitted) -> str | None:
        request = self._queue.pop(event.request_id, None)
        if request is None:
            return "it does not wait"
        at_once = charged_at_once(request.prompt_tokens)
        planned = (at_once, request.prompt_tokens - at_once)
        if (event.extend_tokens, event.cached_prefix_tokens) != planned:
            return f"half of {request.prompt_tokens} tokens is {at_once}"
        most, reserved = request.max_output_tokens, event.reserved_output_tokens
        if reserved > most:
            return f"{reserved} outputs are more than the {most} declared"
        flight = self._flights[request.id] = _Flight(request, held_tokens(request.prompt_tokens, reserved))
        free, self._free = self._free, self._free - flight.tokens
        return "the windows are full" if free < 1 else None

    def _happened(self, event: ev.Prefilled | ev.Settled) -> str | None:
        flight = self._flights.get(event.request_id)
        if flight is None:
            return "it is not in flight"
        if flight.settled or (isinstance(event, ev.Prefilled) and flight.begun):
            return "it was told already"
        flight.begun |= isinstance(event, ev.Prefilled)
        flight.settled = isinstance(event, ev.Settled)
        return None

    def _ended(self, request_id: int, client: int, output_tokens: int) -> str | None:
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return "it is not in flight"
        self._free += flight.tokens
        left = self._produced.get(client, 0) - output_tokens
        self._produced[client] = left
        return f"its client produced {-left} tokens less" if left < 0 else None


def impossible(event: ev.Event, why: str) -> DifferenceError:
    """Return the error of an event that cannot be, with why."""
    return DifferenceError(f"{text(event)} cannot happen here ({why})")


def text(event: ev.Event) -> str:
    """Return the event as the log has it."""
    return line_of(event).decode()


def texts(events: list[ev.Event]) -> str:
    """Return some events as the log has them."""
    return " ".join(map(text, events)) or "nothing"


_DECIDED = ev.Preempted | ev.Paused | ev.Resumed | ev.SwappedOut | ev.SwappedIn | ev.Admitted | ev.Settled | ev.Evicted
"""What a decision does at once: these events follow it at the same time, and a step begins after them."""
_ELSEWHERE = ev.Rejected | ev.WorkerDraining | ev.ClientConfigured | ev.TransferStarted | ev.TransferFailed
"""What changes nothing at the worker that tells it."""
_HEARD = frozenset({ev.TransferStarted, ev.TransferFailed, ev.Arrived, ev.Cancelled, ev.Rejected})
"""What may change memory for transfers at other workers."""


class LogReplayer:
    """A replica in the middle of its log, and the state that the events give its policy.

    From its `init` on the policy is held to its theorems' transition system: each event is a step of that, and the
    state after it the same.  `alone`: no other worker shares the policy's credit.
    """

    def __init__(
        self, policy: AnyLocalPolicy, replica: Replica, policy_state: Any = None, *, alone: bool = True
    ) -> None:
        self.policy = policy
        self.policy_state = policy.init() if policy_state is None else policy_state
        self.replica = replica
        self._relation = policy.guarantee.relation() if policy_state is None and alone else None

    def feed(self, event: ev.Event) -> None:
        """Take the next event of the worker or window.  Raises `DifferenceError` if it cannot be."""
        try:
            for told in self.replica.follow(event):
                self.policy_state = self.policy.observe(self.policy_state, told)
                self._hold(told)
        except DifferenceError:
            raise
        except Exception as error:
            # The log is input: an error that it causes in a worker or a policy is reported with its line.
            raise impossible(event, f"{type(error).__name__}: {error}") from error

    def _hold(self, told: ev.Event) -> None:
        """Hold policy and kernels together."""
        if self._relation is None:
            return
        self._relation.observe(told)
        why = self._relation.difference(self.policy_state)
        if why is not None:
            raise DifferenceError(f"after {text(told)} {why}")

    def hears(self, event: ev.Event) -> None:
        """Take an event of another worker, or of none.  Raises `DifferenceError` if it cannot be."""
        if type(event) in _HEARD:
            try:
                self.replica.hears(event)
            except Exception as error:
                raise impossible(event, f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Note that the log ends.  Raises `DifferenceError` if something is missing."""
        self.replica.end()


def replayers_of(log: LogReader, policy: AnyLocalPolicy) -> list[LogReplayer]:
    """Return a replayer for each worker of a log, by number; a gateway's window is worker 0."""
    run = log.header.run
    if run.windows:
        state = None if run.state is None else policy.state_from_json(run.state)
        return [LogReplayer(policy, WindowReplica(run), state)]
    alone = run.workers == 1 or policy.shared_credit is None
    replicas = [
        WorkerReplica(WorkerState(worker, 0), log.jobs, run.latency_of(worker), clients=log.clients)
        for worker in range(run.workers)
    ]
    return [LogReplayer(policy, replica, alone=alone) for replica in replicas]


class WorkerReplica(Replica):
    """A worker in the middle of its log.

    `state` is the worker, and `since_ns` when it last decided.  `on_decision` is called after each decision (with all
    its effects in the states of worker and policy), while it is set; decode runs are then taken step by step.
    """

    def __init__(
        self,
        state: WorkerState,
        jobs: Mapping[int, Job],
        latency: LatencyModel,
        since_ns: int = 0,
        clients: Sequence[Client] = (),
    ) -> None:
        self.state = state
        self._clients = clients
        self.since_ns = since_ns
        self.on_decision: Callable[[], None] | None = None
        self._jobs = jobs
        self._latency = latency
        self._swapping: ev.SwappedIn | None = None  # The admission of this request must come next.
        self._deciding = False  # The worker is idle, or decides what comes next: no step has begun.
        self._step: list[ev.Event] = []  # Prefilled and Cached of a step whose end is not told yet.
        self._due: deque[ev.Event] = deque()  # Events of the transitions that the log must hold next.

    def counts(self) -> tuple[int, int, int]:
        return len(self.state.queue), len(self.state.in_flight), self.state.cache.tree.cached_tokens

    def end(self) -> None:
        if self._step:
            self._end_chunks(decode=False)
        if self._due:
            raise DifferenceError(f"the log ends, and {text(self._due[0])} is missing")
        self._decided()

    def follow(self, event: ev.Event) -> Iterator[ev.Event]:
        if self._step and not self._same_step(event):
            self._end_chunks(decode=False)
        if self._due and not (isinstance(event, ev.Migrated) and event.kv_tokens):
            self._expect(event, self._due.popleft())
        elif isinstance(event, ev.Decoded):
            self._decided()
            yield from self._decode_run(event)
        elif isinstance(event, _DECIDED):
            self._decide(event)
        elif not isinstance(event, _ELSEWHERE):
            self._decided()
            self._happen(event)
        elif isinstance(event, ev.ClientConfigured):
            self.state = self.state.with_floors(floors_of(self._clients))
        if not isinstance(event, ev.Decoded):
            yield event
        if not self.state.in_flight:
            self._decides_at(event.time_ns)

    def hears(self, event: ev.Event) -> None:
        request_id = event.request.id if isinstance(event, ev.Arrived) else getattr(event, "request_id", None)
        assert request_id is not None
        transit, worker = self.state.transit, self.state.worker
        if isinstance(event, ev.TransferStarted):
            if event.target == worker:
                self._with_room(lambda: transitions.reserve(self.state, request_id, event.reserved_tokens))
            return
        # A request that failed to come, came elsewhere or ended keeps no memory here.
        if request_id in transit.incoming and not (isinstance(event, ev.TransferFailed) and event.target != worker):
            self.state = transitions.unreserve(self.state, request_id)
        elif request_id in transit.outgoing and not isinstance(event, ev.TransferFailed):
            self.state = transitions.sent(self.state, request_id)
        else:
            return
        if not self.state.in_flight:
            self._decided()
            self._decides_at(event.time_ns)

    # --- time -------------------------------------------------------------------------------------------------------

    def _decides_at(self, time_ns: int) -> None:
        self.since_ns = time_ns
        self._deciding = True

    def _decided(self) -> None:
        """Note that the decision is complete: a step begins, or idling goes on."""
        if self._deciding and self.on_decision is not None:
            self.on_decision()
        self._deciding = False

    # --- transitions ------------------------------------------------------------------------------------------------

    def _expect(self, event: ev.Event, told: ev.Event) -> None:
        if told != event:
            raise DifferenceError(f"the worker would tell {text(told)}, not {text(event)}")

    def _ran(self, event: ev.Event, after: tuple[WorkerState, Sequence[ev.Event]]) -> None:
        self.state, told = after
        self._expect(event, told[0])

    def _decide(self, event: ev.Event) -> None:
        """Run the part of a decision that the event tells of."""
        match event:
            case ev.Admitted():
                admission = Admission(
                    event.request_id,
                    event.client,
                    event.extend_tokens,
                    event.cached_prefix_tokens,
                    event.reserved_output_tokens,
                )
                swapping, self._swapping = self._swapping, None
                comes = () if swapping is None else (event.request_id,)
                self._begin(StepPlan(admit=(admission,), decode=False, swap_in=comes), event, swapping)
            case ev.Preempted():
                self._begin(StepPlan(preempt=(event.request_id,), decode=False), event)
            case ev.Paused():
                self._begin(StepPlan(pause=(event.request_id,), decode=False), event)
            case ev.Resumed():
                self._begin(StepPlan(resume=(event.request_id,), decode=False), event)
            case ev.SwappedOut():
                self._begin(StepPlan(swap_out=(event.request_id,), decode=False), event)
            case ev.SwappedIn():
                # How it is admitted is told next.
                self._swapping = event
            case ev.Evicted():
                self._with_room(lambda: self._evicted(event))
            case _:
                raise DifferenceError(f"the worker would not tell {text(event)}")

    def _evicted(self, event: ev.Evicted) -> WorkerState:
        cache, evictions = self.state.cache.evicted(event.prompt, event.keep_blocks)
        blocks = sum(eviction.blocks for eviction in evictions)
        if blocks != event.blocks:
            raise DifferenceError(f"{event.blocks} blocks are evicted where {blocks} are cached")
        return replace(self.state, cache=cache)

    def _with_room(self, change: Callable[[], WorkerState]) -> None:
        """Take a change that needs room.

        That a restart lost what was to be sent is not told: it shows where the change would have no room otherwise.
        """
        while True:
            try:
                self.state = change()
                return
            except ValueError:
                if not self.state.transit.outgoing:
                    raise
                self.state = transitions.sent(self.state, min(self.state.transit.outgoing))

    def _begin(self, plan: StepPlan, event: ev.Event, before: ev.Event | None = None) -> None:
        # Room is made once, for the whole plan: evictions have events of their own.
        told: list[ev.Event] = []

        def change() -> WorkerState:
            state, told[:] = transitions.change_batch(self.state, plan, event.time_ns)
            return state

        self._with_room(change)
        if before is not None:
            self._expect(before, told.pop(0))
        self._expect(event, told[0])
        self._due.extend(told[1:])
        self._decides_at(event.time_ns)

    def _happen(self, event: ev.Event) -> None:
        """Run what no decision brought about; a finish here is one that no step foresaw: the output ended early."""
        state, time_ns = self.state, event.time_ns
        match event:
            case ev.Prefilled() | ev.Cached():
                self._step.append(event)
            case ev.Arrived():
                self._arrives(event)
            case ev.Finished():
                self._ran(event, transitions.stop(state, event.request_id, time_ns))
                self._decides_at(time_ns)
            case ev.Cancelled() | ev.Migrated():
                leave = transitions.cancel if isinstance(event, ev.Cancelled) else transitions.depart
                if isinstance(event, ev.Migrated) and event.kv_tokens:
                    leave = transitions.stage
                self._ran(event, leave(state, event.request_id, time_ns))
                if event.was_running:
                    self._decides_at(time_ns)
            case ev.Transferred():
                # The end of a step, told before what it computed; of one that computed nothing, all of it.
                self.state, landed = land(state, time_ns)
                self._expect(event, landed)
                if not self.state.decoding:
                    self._decides_at(time_ns)
            case ev.HostLost():
                self.state, lost = lose_host(state, time_ns)
                self._expect(event, lost)
                self._decides_at(time_ns)
            case ev.WorkerJoined(
                kv_capacity_tokens=capacity, host_capacity_tokens=host, keep_ns=keep, adapter_slots=slots
            ):
                memory = Host(host) if host else NO_HOST
                joined = WorkerState(state.worker, capacity, host=memory, keep_ns=keep, adapter_slots=slots)
                self.state = joined.with_floors(floors_of(self._clients))
            case ev.WorkerLeft():
                self.state = WorkerState(state.worker, 0)

    def _arrives(self, event: ev.Arrived) -> None:
        """Run an arrival: with KV into memory that was kept for it, back from those that leave, or without."""
        state, request, time_ns = self.state, event.request, event.time_ns
        output_tokens, generated = self._jobs[request.id].output_tokens, event.generated_tokens
        if request.id in state.transit.incoming and event.kv_tokens:
            self._with_room(lambda: self._received(event, output_tokens))
            return
        if request.id in state.transit.outgoing:
            if event.kv_tokens:
                self._ran(event, transitions.resume(state, request.id, time_ns))
                return
            state = transitions.sent(state, request.id)
        self._ran(event, transitions.arrive(state, request, output_tokens, time_ns, generated))

    def _received(self, event: ev.Arrived, output_tokens: int) -> WorkerState:
        known = (output_tokens, event.time_ns, event.generated_tokens, event.kv_tokens)
        state, told = transitions.receive(self.state, event.request, *known)
        self._expect(event, told[0])
        return state

    # --- steps ------------------------------------------------------------------------------------------------------

    def _same_step(self, event: ev.Event) -> bool:
        """Return whether the event may belong to the step of the chunks seen so far."""
        if isinstance(event, ev.Decoded):
            return True
        if event.time_ns != self._step[0].time_ns or not isinstance(event, ev.Prefilled | ev.Cached):
            return False
        seen = {told.request_id for told in self._step if isinstance(told, ev.Prefilled)}
        return isinstance(event, ev.Cached) or event.request_id not in seen

    def _end_chunks(self, decode: bool) -> ev.Decoded | None:
        """Compute the chunks seen; what the step decoded is returned and not observed yet."""
        chunks = tuple((told.request_id, told.tokens) for told in self._step if isinstance(told, ev.Prefilled))
        seen, time_ns = len(self._step), self._step[0].time_ns
        self.state, told = transitions.finish(self.state, StepPlan(chunks=chunks, decode=decode), 1, time_ns)
        if told[:seen] != self._step:
            raise DifferenceError(f"the worker would tell {texts(told[:seen])}, not {texts(self._step)}")
        self._step = []
        self._decides_at(time_ns)
        decoded = told[seen] if len(told) > seen else None
        self._due.extend(told[seen + 1 :])
        if decoded is not None and not isinstance(decoded, ev.Decoded):
            raise DifferenceError(f"the worker would tell {text(decoded)} before it decodes")
        return decoded

    def _decodes_beside(self, run: ev.Decoded) -> bool:
        """Return whether the step of the chunks seen decoded too: `run` covers that step and the pure ones after it."""
        done = [told for told in self._step if isinstance(told, ev.Prefilled) and not told.remaining_tokens]
        if not done:
            return run.steps > 1 or run.time_ns == self._step[0].time_ns
        joining = 0
        for told in done:
            waiting = self.state.running[told.request_id].waiting
            joining += waiting.output_tokens > waiting.generated_tokens + 1
        alone = len(done) + (run.steps - 1) * (self.state.decoding + joining)
        return sum(run.tokens) != alone

    def _decode_run(self, run: ev.Decoded) -> Iterator[ev.Event]:
        """Take the run apart into steps, yield them for the policy, and compare their sum."""
        told: ev.Decoded | None = None
        if self._step:
            told = self._end_chunks(self._decodes_beside(run))
            if told is not None:
                yield told
        for part in self._pure_steps(run, run.steps - (told is not None)):
            yield part
            told = part if told is None else merged(told, part)
        if told != run:
            raise DifferenceError(f"the worker would tell {text(told) if told else 'nothing'}, not {text(run)}")

    def _pure_steps(self, run: ev.Decoded, steps: int) -> Iterator[ev.Decoded]:
        """Decode for `steps` steps up to the run's time, one by one while `on_decision` is set."""
        start_ns, decoding, context = self.since_ns, self.state.decoding, self.state.context
        if steps and (not decoding or steps > self.state.ends.first()[0] - self.state.clock):
            raise DifferenceError(f"the worker has not {steps} steps to decode, as {text(run)} says")
        # The time is shared out as the latency model has it, which is exact for a simulated run.
        ends = self.state.context_range() if self._latency.skewed else (0, 0)
        whole = max(self._latency.decode_run_ns(decoding, context, steps, *ends), 1) if steps else 1
        left = steps
        while left:
            self._decided()
            taken = left if self.on_decision is None else 1
            left -= taken
            part = whole if not left else self._latency.decode_run_ns(decoding, context, steps - left, *ends)
            time_ns = start_ns + (run.time_ns - start_ns) * part // whole
            self.state, told = transitions.finish(self.state, StepPlan(), taken, time_ns)
            self._due.extend(told[1:])
            self._decides_at(time_ns)
            assert isinstance(told[0], ev.Decoded)
            yield told[0]
