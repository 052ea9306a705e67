"""The serving loop of one worker: a guarded policy decides each step, the worker's transitions keep its state, and an
executor computes exactly what was decided.

Everything that happens is an event of `model.worker.transitions`, told in order to policy, executor, log and
listeners.  A plan that says so (`valid_steps`) is repeated without asking again, as long as nothing but decoding
happens.

Every request ends exactly once: finished, cancelled, or rejected with a reason.  A policy that fails is the guard's
business.  An executor that fails has lost its memory: what ran waits again and goes on, with the tokens that it had, in
a new executor if one can be made, and otherwise everything is rejected.  What runs at the third failure since a request
last finished is rejected, since it may be the cause.

An engine belongs to one thread; `engines.serving.thread` is the front for many.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.engines.serving.answers import Answer, Answers, End
from fairsched.engines.serving.clients import ClientRegistry
from fairsched.engines.serving.executor import Executor, Sampling
from fairsched.engines.serving.guard import Guard, Rebuild, from_history, require_certificate
from fairsched.engines.serving.log import EventBus, EventLog, Listener
from fairsched.engines.serving.request import BlockKeys, UsedIds, check_request
from fairsched.engines.serving.runner import KvExchange, Runner, Times, goes_on, since_now
from fairsched.model import worker as transitions
from fairsched.model.decision import Role, StepPlan
from fairsched.model.events import Arrived, Decoded, Event, Finished, Migrated, Rejected, WorkerJoined, configured
from fairsched.model.request import Client, Groups, Job, Request
from fairsched.model.theorem import Certificate
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyLocalPolicy

_FAILURES_MAX = 3
"""At so many failures of the executor since a request last finished, what runs is rejected."""

_log = logging.getLogger("fairsched.engine")


class Engine:
    """One worker that serves.

    `kv_capacity_tokens` is what the executor holds.  `fallback` decides where the policy fails (an order that needs no
    history, such as FCFS).  `decision_budget_ns` bounds a decision (see `engines.serving.guard.advisor`), `rebuild`
    makes the state of a policy that lost track (`policies.local.keep_debts` keeps what clients owe).  With a
    `certificate` (a value, or where `fairsched verify` wrote it) only what it is about is served; any other policy is
    refused by `NotCertifiedError`.  `make_executor` replaces an executor that failed.  `now_ns` is a clock that never
    runs backwards; by default time since the start.
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        executor: Executor,
        *,
        kv_capacity_tokens: int,
        worker: int = 0,
        role: Role = "both",
        clients: Sequence[Client] = (),
        fallback: AnyLocalPolicy | None = None,
        decision_budget_ns: int | None = None,
        rebuild: Rebuild = from_history,
        policy_state: Any = None,
        certificate: Certificate | Path | None = None,
        make_executor: Callable[[], Executor] | None = None,
        block_keys: BlockKeys | None = None,
        log: EventLog | None = None,
        listeners: Sequence[Listener] = (),
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        if kv_capacity_tokens < 2:
            raise ValueError(f"a worker needs room for a prompt and an output token, not for {kv_capacity_tokens}")
        self.certified = None
        if certificate is not None:
            self.certified = require_certificate(policy, certificate, kv_capacity_tokens)
        self.clients = ClientRegistry()
        self.block_keys = BlockKeys() if block_keys is None else block_keys
        self.times = Times()
        self.state = WorkerState(worker, kv_capacity_tokens, role=role)
        self.bus = EventBus(log, listeners)
        self.decision_listeners: list[Callable[[int], None]] = []
        self.guard = Guard(
            policy,
            fallback,
            state=policy_state,
            budget_ns=decision_budget_ns,
            clients=lambda: self.clients.all,
            rebuild=rebuild,
        )
        self.runner = Runner(executor, make_executor)
        self.exchange = KvExchange(self.runner)
        self._clock = since_now() if now_ns is None else now_ns
        self.last_ns = 0
        self._plan = StepPlan()
        self._leap = 0
        self._did = True
        self.used_ids = UsedIds()
        self._failures = 0
        self._answers = Answers()
        self._publish([WorkerJoined(self._now(), worker, kv_capacity_tokens)])
        for client in clients:
            self._put(client)

    def _now(self) -> int:
        self.last_ns = max(self._clock(), self.last_ns)
        return self.last_ns

    # --- callers ----------------------------------------------------------------------------------------------------

    def request(self, client: str, prompt_ids: Sequence[int], max_output_tokens: int, **labels: Any) -> Request:
        """Return a request of a client by name, to be submitted; `labels` are further fields (priority, session,
        ...)."""
        if client not in self.clients:
            self._put(self.clients.changed(client, 1))
        number = self.clients[client].id
        return self.block_keys.request(self.used_ids.next, number, prompt_ids, max_output_tokens, **labels)

    def ask(
        self,
        client: str,
        prompt_ids: Sequence[int],
        max_output_tokens: int,
        *,
        sampling: Sampling | None = None,
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Submit a prompt for a client by name: `request` and `submit` in one."""
        request = self.request(client, prompt_ids, max_output_tokens)
        return self.submit(request, prompt_ids, sampling=sampling, on_token=on_token, on_end=on_end)

    def submit(
        self,
        request: Request,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling | None = None,
        output_tokens: int | None = None,
        generated: Sequence[int] = (),
        prefill_only: bool = False,
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Take a request on.  With `output_tokens` it produces exactly so many, whatever the tokens are; otherwise
        until a stop token of `sampling`, or `max_output_tokens`.  The first of them, `generated`, it has already, from
        an engine that is gone; `on_token` hears of the others.  With `prefill_only` it leaves the batch with its next
        token, and its KV stays until `send` and `free` (or `resume`).

        What can never be served is rejected at once, and the answer says why.  Raises `ValueError` for what is no
        request: another number of tokens than its prompt has, an unknown client, an id that was used before, a token
        outside the vocabulary.
        """
        sampling = Sampling() if sampling is None else sampling
        check_request(request, len(prompt_ids), output_tokens, len(generated))
        if request.client >= len(self.clients.all):
            raise ValueError(f"request {request.id} is of client {request.client}; {len(self.clients.all)} are known")
        if request.id in self.used_ids:
            raise ValueError(f"request {request.id} was submitted before")
        if output_tokens is not None:
            sampling = attrs.evolve(sampling, stop_tokens=frozenset())
        now = self._now()
        request = msgspec.structs.replace(request, arrival_ns=now)
        output = request.max_output_tokens if output_tokens is None else output_tokens
        refusal = self._refusal(request)
        events: list[Event]
        if refusal is None:
            state, events = transitions.arrive(self.state, request, output, now, len(generated), prefill_only)
        else:
            state, events = self.state, [Rejected(now, self.state.worker, request.id, request.client, refusal)]
        arrived = isinstance(events[0], Arrived)
        if arrived:
            self.runner.submit(request.id, prompt_ids, sampling, generated)
        answer = Answer(request.id, request.client, prompt_ids, sampling, on_token, on_end)
        answer.tokens += generated
        self._answers.open[request.id] = answer
        self.used_ids.add(request.id)
        self.bus.request(Job(request, output))
        self.state = state
        self._publish(events, follow=arrived)
        if not arrived:
            self._answers.call(self.cancel)
        return answer

    def _refusal(self, request: Request) -> str | None:
        """Return why this engine does not take the request on, or None."""
        if self.runner.is_gone:
            return self._without_executor()
        if self.certified is not None and (refusal := self.certified.refusal(request)) is not None:
            return refusal
        try:
            return self.guard.policy.refuses(request)
        except Exception:
            _log.exception("request %d: the policy cannot say whether it refuses it", request.id)
            return None

    def receive(
        self,
        request: Request,
        prompt_ids: Sequence[int],
        kv: bytes,
        *,
        sampling: Sampling,
        output_tokens: int | None,
        generated: Sequence[int],
        on_token: Callable[[int], None] | None = None,
    ) -> None:
        """Receive a request with the KV of all that it has, for which memory was reserved; it waits for admission.

        With its own KV still here (`kv` empty) it goes on where it is.  KV that cannot be this request's rejects it.
        """
        now, output = self._now(), request.max_output_tokens if output_tokens is None else output_tokens
        if output_tokens is not None:
            sampling = attrs.evolve(sampling, stop_tokens=frozenset())
        if here := not kv:
            kv = self.exchange.kept.pop(request.id, b"")
            state, events = transitions.resume(self.state, request.id, now)
        else:
            come = msgspec.structs.replace(request, arrival_ns=now)
            kv_tokens = request.prompt.tokens + len(generated) - 1
            state, events = transitions.receive(self.state, come, output, now, len(generated), kv_tokens)
        self.used_ids.add(request.id)
        answer = Answer(request.id, request.client, prompt_ids, sampling, on_token)
        answer.tokens += generated
        self._answers.open[request.id] = answer
        self.state = state
        try:
            self.runner.submit(request.id, prompt_ids, sampling, generated, kv)
        except ValueError as error:
            self._publish(events, follow=here)
            self._reject([request.id], str(error))
        else:
            self._publish(events)

    def migrate(self, request_id: int, with_kv: bool) -> None:
        """Let a request leave for another worker: its KV stays until `send` and `free`, if it has any and it is to
        move.

        One that is not here (any more) is left alone.
        """
        if request_id not in self.answers:
            return
        state, waiting = self.state, self.state.queue.get(request_id)
        has_kv = request_id in state.transit.landed if waiting else transitions.kv_tokens(state, request_id) > 0
        leave = transitions.stage if with_kv and has_kv and self.runner.moves_kv else transitions.depart
        self.state, events = leave(state, request_id, self._now())
        self._publish(events)

    def cancel(self, request_id: int) -> bool:
        """Cancel a request.  Returns whether it was still open."""
        if request_id not in self.answers:
            return False
        self.state, events = transitions.cancel(self.state, request_id, self._now())
        self._publish(events)
        self._answers.call(self.cancel)
        return True

    def configure_client(
        self, client: str, weight: int, groups: Groups = (), cache_floor_tokens: int | None = None
    ) -> None:
        """Set a client's weight, a positive integer share, and the groups and the floor that it has (see `Client`).

        Which groups is told before its first request, and stays; without `groups` so do their weights.  A floor is set
        before the engine's first request: raises `ValueError` later, or where floors pass the worker's KV.
        """
        self._put(self.clients.changed(client, weight, groups, cache_floor_tokens))

    def _put(self, client: Client) -> None:
        if self.certified is not None:
            self.certified.check_weight(client)
        is_new = client.name not in self.clients
        if client.cache_floor != self.state.floors.get(client.id, 0):
            self.state = self.state.with_floors({**self.state.floors, client.id: client.cache_floor})
        self.clients.put(client)
        if is_new:
            self.bus.client(client)
        if not (is_new and client.is_plain):
            self._publish([configured(client, self._now(), self.state.worker)])

    # --- policy -----------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> AnyLocalPolicy:
        return self.guard.policy

    @property
    def policy_state(self) -> Any:
        return self.guard.policy_state

    def replace_policy(
        self, policy: AnyLocalPolicy, state: object = None, certificate: Certificate | Path | None = None
    ) -> None:
        """Let another policy decide from the next step on, with `state`; with None it is told what waits and runs.

        An engine that serves certified policies only needs a `certificate` of this one too.
        """
        held = certificate or (None if self.certified is None else self.certified.certificate)
        if held is not None:
            self.certified = require_certificate(policy, held, self.state.capacity)
        self.guard.replace(policy, state, self.state, self._now())
        self._leap = 0

    # --- steps ------------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Serve until nothing waits and nothing runs."""
        while self.step():
            pass

    def step(self) -> bool:
        """Decide and compute one step.  Returns False, and does nothing, when nothing waits and nothing runs, or all
        that waits has no room before a transfer is over."""
        return self._begin(alone=True) and (self.end_step() or self._make_way())

    def begin_step(self, *, may_idle: bool) -> bool:
        """Decide the next step, and return whether there is one to compute, by `end_step`: for a worker whose policy
        shares credit with others, which hear of the decision before it is computed.

        If it `may_idle`, a policy that lets all requests wait has no credit for them; else the guard says it stalls.
        """
        self.guard.may_idle = may_idle
        while self._begin(alone=False):
            if self._leap:
                return True
            if not self.end_step() and ((self.guard.may_idle and not self.state.in_flight) or not self._make_way()):
                return False
            self.guard.may_idle = True
        return False

    def _begin(self, *, alone: bool) -> bool:
        """Decide a step, unless an earlier decision holds and none but this worker changes the policy's state."""
        self._make_room()
        if not (self.state.in_flight or self.state.queue):
            return False
        started, spent = self._clock(), self.times.decide_ns
        if not (self._leap and alone):
            self._decide(leaps=alone)
        self.times.books_ns += self._clock() - started - (self.times.decide_ns - spent)
        return True

    def end_step(self) -> bool:
        """Compute what was decided, if that is anything; whether anything was done."""
        times, clock = self.times, self._clock
        started, spent = clock(), times.execute_ns
        if self._leap:
            executing = clock()
            tokens = self.runner.execute(self._plan, self.state)
            times.execute_ns += clock() - executing
            if tokens is not None:
                self._finish(tokens)
        if self.runner.failure is not None:
            self._lose()
        self._answers.call(self.cancel)
        times.steps += 1
        times.books_ns += clock() - started - (times.execute_ns - spent)
        return self._did

    def _make_room(self) -> None:
        """Reserve memory for KV to come, in order, where there is room now, and leave some for the one that runs."""
        state = self.exchange.serve(self.state)
        if state is not self.state:
            self.state, self._leap = state, 0
        if self.state.in_flight:
            while self._make_way():
                pass

    def _make_way(self) -> bool:
        """Let a request whose KV keeps all others out leave without it, where nothing could be done, to be placed anew;
        whether there was any."""
        request_id = self.exchange.in_the_way(self.state)
        if request_id is None:
            return False
        self.migrate(request_id, with_kv=False)
        return True

    def _decide(self, *, leaps: bool) -> None:
        """Ask for a plan, begin it, and note for how many steps it holds (0: it computes nothing)."""
        asked = self._clock()
        begun = self.guard.begin(self.state, self._now())
        spent = self._clock() - asked
        self.times.decide_ns += spent
        self.times.decisions += 1
        for listener in self.decision_listeners:
            listener(spent)
        self.state, self._plan = begun.state, begun.plan
        if begun.events:
            self._publish(begun.events, told=True)
        valid = begun.plan.valid_steps
        self._did = begun.computes or bool(begun.events)
        if not begun.computes:
            self._leap = 0
        elif begun.plan.chunks or begun.events or valid == 1 or not leaps:
            self._leap = 1
        else:
            most = self.state.decode_steps_max()
            self._leap = max(most if valid is None else min(most, valid), 1)

    def _finish(self, tokens: dict[int, int]) -> None:
        """End the step: states follow, tokens go out, and outputs end that a stop token ends."""
        now = self._now()
        stopping = self._answers.take(tokens)
        self._leap -= 1
        for request_id in stopping:
            self.state = goes_on(self.state, request_id)
        self.state, events = transitions.finish(self.state, self._plan, 1, now)
        self._publish(events)
        for request_id in stopping:
            if request_id in self.answers:  # It may have ended with this token anyway.
                self.state, events = transitions.stop(self.state, request_id, now)
                self._publish(events)

    # --- what happened ----------------------------------------------------------------------------------------------

    def _publish(self, events: list[Event], *, told: bool = False, follow: bool = True) -> None:
        """Report events to the policy unless it is `told` already, to the executor if it is to `follow`, to the bus."""
        if not told:
            self.guard.observe(events)
        self.exchange.keep(events)
        if follow:
            self.runner.follow(events)
        self.bus.tell(events)
        for event in events:
            kind = type(event)
            if kind is not Decoded:
                self._leap = 0
                self._answers.hear(event)
                if isinstance(event, Migrated) and event.request_id not in self.state.queue:
                    del self._answers.open[event.request_id]
                    self.used_ids.leave(event.request_id)
                elif isinstance(event, End):
                    self._answers.end(event)
                    if kind is Finished:
                        self._failures = 0

    @property
    def next_id(self) -> int:
        """The least id that no request has had."""
        return self.used_ids.next

    @property
    def answers(self) -> Mapping[int, Answer]:
        """The requests that are open, by id."""
        return self._answers.open

    def take_over(self, state: WorkerState, answers: Iterable[Answer], next_id: int, now_ns: int = 0) -> None:
        """Go on where another engine stopped: all requests of its worker wait, and keep the tokens that they have.

        Ids below `next_id` are used, and time goes on from `now_ns`.  The policy's state is the constructor's.  Raises
        `ValueError` if this engine has served, the worker has memory in use, or its requests are not those answered.
        """
        waiting = {answer.request_id: answer for answer in answers}
        if self.next_id or state.in_flight or state.capacity != self.state.capacity or set(waiting) != set(state.queue):
            raise ValueError(f"worker {state.worker} cannot be taken over as it is")
        self.state, self.used_ids.next, self.last_ns = state, next_id, max(now_ns, self.last_ns)
        self._answers.open.update(waiting)
        self.runner.enter(state, [waiting[request_id] for request_id in sorted(waiting)], self._now())

    # --- failure ----------------------------------------------------------------------------------------------------

    @property
    def moves_kv(self) -> bool:
        return self.runner.moves_kv

    @property
    def executor_failures(self) -> int:
        return self.runner.failures

    def _lose(self) -> None:
        """Go on after the executor failed: running requests wait again, and a new executor learns what waits."""
        self._failures += 1
        # With nothing in the batch it is what waits that the executor cannot take.
        suspects = sorted(self.state.in_flight or self.state.queue) if self._failures >= _FAILURES_MAX else []
        self.runner.drop()
        reserve_again = self.exchange.lose(self.state)
        state, events = transitions.lose(self.state, self._now())
        self.state = reserve_again(state)
        self._publish(events)
        why = self.runner.failure
        self._reject(suspects, f"the executor of worker {self.state.worker} failed {self._failures} times: {why!r}")
        waiting = sorted(self.state.queue)
        self.runner.restart(self.state, [self.answers[request_id] for request_id in waiting], self._now())
        if self.runner.is_gone:
            self._reject(waiting, self._without_executor())

    def _reject(self, request_ids: list[int], reason: str) -> None:
        for request_id in request_ids:
            self.state, events = transitions.reject(self.state, request_id, reason, self._now())
            self._publish(events)

    def _without_executor(self) -> str:
        return f"worker {self.state.worker} has no executor any more: {self.runner.failure!r}"

    def close(self) -> None:
        """Cancel what is open and give back what is held.  The engine takes no requests afterwards."""
        for request_id in sorted(self.answers):
            self.cancel(request_id)
        self.runner.close()
