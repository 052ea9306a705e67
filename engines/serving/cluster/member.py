"""What a cluster knows of one worker: what it was sent, what it has reported, and the policy state of its number.

A policy is a fold over events, so the events of a worker lead to its policy's state: `StateReplica` keeps that state
for the number of the worker, through the deaths of the processes that had it.  `LiveWorker` is one such process.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, get_args

import attrs
from msgspec.structs import replace

from fairsched.engines.serving.answers import Answer
from fairsched.engines.serving.cluster import worker as wire
from fairsched.engines.serving.cluster.worker import ServingReport
from fairsched.model.cluster import WorkerPhase
from fairsched.model.decision import Role, WorkerLoad
from fairsched.model.events import ClientConfigured, Event
from fairsched.model.request import Client, Request
from fairsched.policies.base import AnyLocalPolicy, SharesCredit

_log = logging.getLogger("fairsched.cluster")


@attrs.frozen
class Timeouts:
    """When a cluster gives up: on a worker without a report for `silent_s` seconds (`start_s` for the first report), on
    a number whose workers died `restarts_max` times since one finished a request, on a request that was at `deaths_max`
    workers that died."""

    silent_s: float = 60.0
    start_s: float = 600.0
    restarts_max: int = 3
    deaths_max: int = 3


@attrs.frozen
class WorkerStatus:
    """A worker as it stands: its load, the requests that it has, and its guard's interventions since it came."""

    worker: int
    phase: WorkerPhase
    process_id: int | None
    requests: int
    load: WorkerLoad
    interventions: Mapping[str, int]
    set_aside: str | None


def split_roles(ratio: str) -> tuple[Role, ...]:
    """Return the roles of a split cluster: "2:1" is two workers that prefill and one that decodes.

    Raises `ValueError` for what is no ratio of two numbers of at least 1.
    """
    numbers = ratio.split(":")
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) for number in numbers):
        raise ValueError(f"a split is PREFILL:DECODE, two numbers of workers from 1 on such as 1:1, not {ratio!r}")
    phases: tuple[Role, ...] = ("prefill", "decode")
    return tuple(role for role, number in zip(phases, numbers, strict=True) for _ in range(int(number)))


def check_roles(roles: Sequence[Role], workers: int, workers_max: int) -> None:
    """Raise `ValueError` unless the first `workers` of these roles can serve a request from its prompt to its end."""
    if len(roles) > workers_max:
        raise ValueError(f"{len(roles)} roles for at most {workers_max} workers")
    for role in roles:
        if role not in get_args(Role):
            raise ValueError(f"a worker's role is {', '.join(get_args(Role))}, not {role!r}")
    first = {*roles[:workers], *(("both",) if workers > len(roles) else ())}
    for phase in ("prefill", "decode"):
        if not first & {"both", phase}:
            raise ValueError(
                f"no worker is there to {phase}: the {workers} first workers' roles are {', '.join(roles)}"
            )


@attrs.define(eq=False)
class OpenRequest:
    """A request that is open: its answer so far, and at how many workers it was when they died.

    With `prefill_only` its worker was asked for its next token only.
    """

    request: Request
    prompt_ids: bytes
    output_tokens: int | None
    answer: Answer
    deaths: int = 0
    cancelled: bool = False
    prefill_only: bool = False


class SharedCredit:
    """The credit that the policies of all workers share, as the reports so far lead to it: its `value`.

    It is kept as a simulation keeps it (`policies.base.SharesCredit`), with a report in the place of a decision or the
    end of a step.  A worker that `knows` it needs not be told: nothing but its own reports has changed what it sees.
    """

    def __init__(self, sharing: SharesCredit) -> None:
        self.sharing = sharing
        self.value = sharing.credit()
        self._known: dict[int, Any] = {}

    def knows(self, worker: int) -> bool:
        """Return whether the worker sees the value as it is."""
        return self._known.get(worker) is self.value

    def told(self, worker: int) -> dict[str, Any] | None:
        """Return what the worker is to be told before it decides: None if it knows; from now on it does."""
        if self.knows(worker):
            return None
        self._known[worker] = self.value
        return self.sharing.seen_to_json(self.value, worker)

    def forget(self, worker: int) -> None:
        """Forget what the worker knows: it is another one, or is gone."""
        self._known.pop(worker, None)

    def becomes(self, value: object, worker: int) -> None:
        """Tell how what a worker did, or that it rests, changed the value."""
        knew, self.value = self.knows(worker), value
        if knew:
            self._known[worker] = value


class StateReplica:
    """The policy state of a worker's number, as its reported events lead to it, and the time of the last of them.

    An event that the policy refuses is left out, and counted in `refused`: the state before it is as good as it gets.
    With `credit`, that is part of the state of every number.
    """

    def __init__(self, policy: AnyLocalPolicy, worker: int = 0, credit: SharedCredit | None = None) -> None:
        self.policy = policy
        self.worker = worker
        self._credit = credit
        self._own = policy.init()
        self.is_new = True
        self.last_ns = 0
        self.refused = 0
        self._weights: dict[int, int] = {}

    @property
    def state(self) -> Any:
        """The state, with the credit that is shared as it is now."""
        credit = self._credit
        return self._own if credit is None else credit.sharing.checkout(self._own, credit.value, self.worker)

    def observe(self, events: Sequence[Event]) -> None:
        """Observe what the worker did, in order."""
        observe, state = self.policy.observe, self.state
        for event in events:
            try:
                state = observe(state, event)
            except Exception:
                self.refused += 1
                if self.refused == 1:
                    _log.exception("worker %d: its policy refuses %s", event.worker, type(event).__name__)
            if type(event) is ClientConfigured:
                self._weights[event.client] = event.weight
        self._own = state
        if self._credit is not None:
            self._credit.becomes(self._credit.sharing.commit(self._credit.value, state, self.worker), self.worker)
        if events:
            self.is_new = False
            self.last_ns = max(self.last_ns, events[-1].time_ns)

    def missed(self, clients: Sequence[Client]) -> list[Client]:
        """Return the clients that went back to weight 1 while no worker served here: a new engine learns all others."""
        return [client for client in clients if client.weight == 1 and self._weights.get(client.id, 1) != 1]


class LiveWorker:
    """A worker that was started: its calls under way, the requests that it has, and its load.

    `deaths` counts how often a worker of this number died since one finished a request.
    """

    def __init__(
        self,
        worker: int,
        link: wire.Worker,
        replica: StateReplica,
        kv_capacity_tokens: int,
        deaths: int,
        role: Role = "both",
        credit: SharedCredit | None = None,
    ) -> None:
        self.worker = worker
        self.role = role
        self.link = link
        self.replica = replica
        self.deaths = deaths
        self.calls: dict[int, OpenRequest] = {}
        self.outbox: list[wire.Command] = []
        self.last: ServingReport | None = None
        self._load = WorkerLoad(worker, 0, 0, 0, kv_capacity_tokens, kv_capacity_tokens, role)
        self._pending: deque[Future[ServingReport]] = deque()
        self._sent = 0
        self._unheard: deque[tuple[int, int]] = deque()
        self._moved_s = time.monotonic()
        self.rests = False
        self._credit = credit

    @property
    def head(self) -> "Future[ServingReport] | None":
        return self._pending[0] if self._pending else None

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do and nothing to tell."""
        return not (self.calls or self.outbox or self._pending)

    def left_s(self, timeouts: Timeouts) -> float:
        """Return for how long it may still be silent; below 0 it is taken to be dead."""
        most = timeouts.start_s if self.last is None else timeouts.silent_s
        return most - (time.monotonic() - self._moved_s) if self._pending else most

    @property
    def is_starting(self) -> bool:
        """Whether it has never reported."""
        return self.last is None

    def status(self, phase: WorkerPhase) -> WorkerStatus:
        """Return how it stands in this phase."""
        load, last = self.load(), self.last
        if last is None:
            return WorkerStatus(self.worker, phase, None, len(self.calls), load, {}, None)
        told = last.interventions, last.set_aside
        return WorkerStatus(self.worker, phase, last.process_id, len(self.calls), load, *told)

    def load(self) -> WorkerLoad:
        """Return what it last reported, with what it was sent and has not heard of yet."""
        if not self._unheard:
            return self._load
        return replace(
            self._load,
            waiting_requests=self._load.waiting_requests + len(self._unheard),
            waiting_tokens=self._load.waiting_tokens + sum(tokens for _, tokens in self._unheard),
        )

    @property
    def waits(self) -> bool:
        """Whether it has nothing to do before it is told something: nothing was sent that it has not answered."""
        return not (self.outbox or self._pending or self.decided or self._works) and not self.is_starting

    def submit(self, call: OpenRequest, command: wire.Submit | wire.Land) -> None:
        """Submit the request, which is this worker's from now on."""
        self.calls[call.request.id] = call
        self.outbox.append(command)
        tokens = call.request.prompt.tokens + len(call.answer.tokens)
        self._unheard.append((self._sent + len(self.outbox), tokens))

    @property
    def _works(self) -> bool:
        credit = self._credit
        return bool(self.calls) and not (self.rests and (credit is None or credit.knows(self.worker)))

    @property
    def decided(self) -> bool:
        """Whether it has decided a step that it was not asked to compute yet."""
        return self.last is not None and self.last.decided and not self._pending

    @property
    def is_to_decide(self) -> bool:
        """Whether it has anything to decide about, and nothing to do before."""
        return not self._pending and not self.decided and (self._works or bool(self.outbox))

    def decide(self, credit: SharedCredit, pace: wire.Cadence, *, may_idle: bool) -> None:
        """Call it to decide a step with the credit that is shared, and what it has not been told yet."""
        self._moved_s = time.monotonic()
        self._call([wire.Decide(credit.told(self.worker), may_idle), *self._unsent()], pace)

    def hear(self, pace: wire.Cadence) -> None:
        """Call it to hear what it has not been told yet, and no more."""
        self._moved_s = time.monotonic()
        self._call([wire.ListenOnly(), *self._unsent()], pace)

    def compute(self, pace: wire.Cadence) -> None:
        """Call it to compute what it decided."""
        self._moved_s = time.monotonic()
        self._call([wire.Compute()], pace)

    def send(self, pace: wire.Cadence, ahead: int) -> None:
        """Call it, if it has anything to do, with what it has not been told yet; at most `ahead` calls at a time."""
        while len(self._pending) < ahead and (self._works or self.outbox or self.is_starting):
            if not self._pending:
                self._moved_s = time.monotonic()
            elif self.is_starting:
                return
            self._call(self._unsent(), pace)

    def _unsent(self) -> list[wire.Command]:
        commands, self.outbox, self.rests = self.outbox, [], False
        self._sent += len(commands)
        return commands

    def _call(self, commands: list[wire.Command], pace: wire.Cadence) -> None:
        try:
            call = self.link.serve(commands, pace)
        except Exception as error:
            call = Future()
            call.set_exception(error)
        self._pending.append(call)

    def report(self) -> ServingReport | None:
        """Return its next report, if it is there; raises whatever the call came to, and then the worker is gone."""
        if not self._pending or not self._pending[0].done():
            return None
        report = self._pending[0].result()
        self._pending.popleft()
        self._moved_s = time.monotonic()
        self.last, self._load = report, report.load
        self.rests = report.rests and report.heard == self._sent
        while self._unheard and self._unheard[0][0] <= report.heard:
            self._unheard.popleft()
        return report
