"""The serving loop of one worker: a guarded policy decides each step, the worker's transitions keep the books, and an
executor computes exactly what was decided.

Everything that happens is an event of `model.worker`, told in order to policy, executor, log and listeners.  A plan
that says so (`valid_steps`) is repeated without asking again, as long as nothing but decoding happens.

Every request ends exactly once: finished, cancelled, or rejected with a reason.  A policy that fails is the guard's
business.  An executor that fails has lost its memory: what ran waits again with the tokens that it had, and goes on in
a new executor if the engine can make one, and otherwise everything is rejected.  What runs at the third failure since a
request last finished is rejected, since it may be the cause.  A caller whose callback raises is taken to have gone; a
listener that raises is not called again.

An engine belongs to one thread; `engines.serving_thread` is the front for many.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import msgspec

from fairsched.engines.executor import Executor, Sampling
from fairsched.engines.guard import Guard
from fairsched.engines.serving_request import Answer, BlockKeys, Clients, Outcome
from fairsched.model import worker as transitions
from fairsched.model.events import (
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Rejected,
    WorkerJoined,
)
from fairsched.model.plan import StepPlan
from fairsched.model.request import Client, Request
from fairsched.model.worker_state import WorkerState
from fairsched.model.workload import Job
from fairsched.policies.base import LocalPolicy

_OUTCOMES: dict[type, Outcome] = {Finished: "finished", Cancelled: "cancelled", Rejected: "rejected"}
_FAILURES_MAX = 3
"""At so many failures of the executor since a request last finished, what runs is rejected."""

_log = logging.getLogger("fairsched.engine")

Listener = Callable[[list[Event]], None]
"""Receives the events of each transition, in order.  It must not call the engine."""


class ExecutorError(RuntimeError):
    """An executor that did not answer with the tokens that the plan asks for."""


class EventLog(Protocol):
    """Where a live engine writes what happens; clients and requests before the events that name them."""

    def define_client(self, client: Client) -> None:
        """The next client."""

    def define_request(self, job: Job) -> None:
        """The next request; its `output_tokens` are those that it produces unless it stops earlier."""

    def record(self, events: list[Event]) -> None:
        """The events of a transition."""


class Times:
    """Where the time of an engine went, in nanoseconds: `decide_ns` in policy and guard, `execute_ns` in the executor,
    `books_ns` in everything else of a step; and the number of `steps` and `decisions`."""

    __slots__ = ("books_ns", "decide_ns", "decisions", "execute_ns", "steps")

    def __init__(self) -> None:
        self.decide_ns = self.execute_ns = self.books_ns = self.steps = self.decisions = 0

    @property
    def scheduler_share(self) -> float:
        """What is not the executor's, as a share of the time of all steps."""
        own = self.decide_ns + self.books_ns
        return own / (own + self.execute_ns) if own else 0.0


class Engine:
    """One worker that serves.

    `kv_capacity_tokens` is what the executor holds.  `fallback` decides where the policy fails (an order that needs no
    history, such as FCFS).  `decision_budget_ns` bounds a decision (see `engines.guard_advisor`).  `make_executor`
    replaces an executor that failed.  `now_ns` is a clock that never runs backwards; by default time since the start.
    """

    def __init__(
        self,
        policy: LocalPolicy[Any],
        executor: Executor,
        *,
        kv_capacity_tokens: int,
        worker: int = 0,
        clients: Sequence[Client] = (),
        fallback: LocalPolicy[Any] | None = None,
        decision_budget_ns: int | None = None,
        policy_state: Any = None,
        make_executor: Callable[[], Executor] | None = None,
        block_keys: BlockKeys | None = None,
        log: EventLog | None = None,
        listeners: Sequence[Listener] = (),
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        if kv_capacity_tokens < 2:
            raise ValueError(f"a worker needs room for a prompt and an output token, not for {kv_capacity_tokens}")
        self.clients = Clients(clients)
        self.block_keys = BlockKeys() if block_keys is None else block_keys
        self.times = Times()
        self.state = WorkerState(worker, kv_capacity_tokens)
        self.answers: dict[int, Answer] = {}
        self.listeners = list(listeners) if log is None else [log.record, *listeners]
        self.guard = Guard(
            policy,
            fallback,
            state=policy_state,
            budget_ns=decision_budget_ns,
            clients=lambda: self.clients.all,
        )
        self._executor: Executor | None = executor
        self._make_executor = make_executor
        self._log = log
        self._clock = _since_now() if now_ns is None else now_ns
        self._last_ns = 0
        self._plan = StepPlan()
        self._leap = 0
        self._used_ids = _UsedIds()
        self.executor_failures = 0
        self._failure: Exception | None = None
        self._failures = 0
        self._calls: list[tuple[Answer, int | None]] = []
        self._calling = False
        now = self._now()
        self._publish([WorkerJoined(now, worker, kv_capacity_tokens)])
        for client in clients:
            self._client_is_known(client)

    def _now(self) -> int:
        self._last_ns = max(self._clock(), self._last_ns)
        return self._last_ns

    # --- callers ----------------------------------------------------------------------------------------------------

    def request(self, client: str, prompt_ids: Sequence[int], max_output_tokens: int, **labels: Any) -> Request:
        """A request of a client by name, to be submitted; `labels` are further fields (priority, session, ...)."""
        known = len(self.clients.all)
        who = self.clients.intern(client)
        if who.id == known:
            self._client_is_known(who)
        return self.block_keys.request(self._used_ids.next, who.id, prompt_ids, max_output_tokens, **labels)

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
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Take a request on.  With `output_tokens` it produces exactly so many, whatever the tokens are; otherwise
        until a stop token of `sampling`, or `max_output_tokens`.

        What can never be served is rejected at once, and the answer says why.  Raises `ValueError` for what is no
        request: another number of tokens than its prompt has, an unknown client, an id that was used before, a token
        outside the vocabulary.
        """
        sampling = Sampling() if sampling is None else sampling
        self._check(request, prompt_ids, output_tokens)
        if output_tokens is not None:
            sampling = attrs.evolve(sampling, stop_tokens=frozenset())
        now = self._now()
        request = msgspec.structs.replace(request, arrival_ns=now)
        refusal = self._refusal(request)
        if refusal is None and self._executor is not None:
            try:
                self._executor.submit(request.id, prompt_ids, sampling)
            except ValueError:
                raise
            except Exception as error:
                self._failure = error
        self._used_ids.add(request.id)
        answer = Answer(request.id, request.client, prompt_ids, sampling, on_token, on_end)
        self.answers[request.id] = answer
        output = request.max_output_tokens if output_tokens is None else output_tokens
        self._define(lambda log: log.define_request(Job(request, output)))
        if refusal is not None:
            self._publish([Rejected(now, self.state.worker, request.id, request.client, refusal)], follow=False)
            self._call_back()
        else:
            self.state, events = transitions.arrive(self.state, request, output, now)
            self._publish(events)
        return answer

    def _check(self, request: Request, prompt_ids: Sequence[int], output_tokens: int | None) -> None:
        if len(prompt_ids) != request.prompt.tokens:
            raise ValueError(
                f"request {request.id} has a prompt of {request.prompt.tokens} tokens, and {len(prompt_ids)} are given"
            )
        if request.client >= len(self.clients.all):
            raise ValueError(f"request {request.id} is of client {request.client}; {len(self.clients.all)} are known")
        if request.id in self._used_ids:
            raise ValueError(f"request {request.id} was submitted before")
        if output_tokens is not None and not 1 <= output_tokens <= request.max_output_tokens:
            raise ValueError(
                f"request {request.id} produces 1 to max_output_tokens = {request.max_output_tokens} tokens, "
                f"not {output_tokens}"
            )

    def _refusal(self, request: Request) -> str | None:
        """Why the request could never be served, or None."""
        if self._executor is None:
            return self._without_executor()
        if not self.state.fits_alone(request):
            _, (rejected,) = transitions.arrive(self.state, request, 1, request.arrival_ns)
            assert isinstance(rejected, Rejected)
            return rejected.reason
        try:
            return self.guard.policy.refuses(request)
        except Exception:
            _log.exception("request %d: the policy cannot say whether it refuses it", request.id)
            return None

    def cancel(self, request_id: int) -> bool:
        """The caller gave up.  Returns whether the request was still open."""
        if request_id not in self.answers:
            return False
        self.state, events = transitions.cancel(self.state, request_id, self._now())
        self._publish(events)
        self._call_back()
        return True

    def configure_client(self, client: str, weight: int) -> None:
        """Set a client's weight: a positive integer share."""
        known = len(self.clients.all)
        who = self.clients.configure(client, weight)
        if who.id == known:
            self._define(lambda log: log.define_client(who))
        self._publish([ClientConfigured(self._now(), self.state.worker, who.id, weight)])

    def _client_is_known(self, client: Client) -> None:
        self._define(lambda log: log.define_client(client))
        if client.weight != 1:
            self._publish([ClientConfigured(self._now(), self.state.worker, client.id, client.weight)])

    def _define(self, define: Callable[[EventLog], None]) -> None:
        if self._log is not None:
            try:
                define(self._log)
            except Exception:
                _log.exception("worker %d: the log failed, and is not written any more", self.state.worker)
                self.listeners = [listener for listener in self.listeners if listener != self._log.record]
                self._log = None

    # --- policy -----------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> LocalPolicy[Any]:
        """The policy that decides."""
        return self.guard.policy

    @property
    def policy_state(self) -> Any:
        """The policy's state, up to date."""
        return self.guard.policy_state

    def replace_policy(self, policy: LocalPolicy[Any], state: Any = None) -> None:
        """Another policy decides from the next step on, with `state`; with None it is told what waits and runs."""
        self.guard.replace(policy, state, self.state, self._now())
        self._leap = 0

    # --- steps ------------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Serve until nothing waits and nothing runs."""
        while self.step():
            pass

    def step(self) -> bool:
        """Decide and compute one step.  Returns False, and does nothing, when nothing waits and nothing runs."""
        if not (self.state.in_flight or self.state.queue):
            return False
        started = self._clock()
        if not self._leap:
            self._decide()
        decided = computed = self._clock()
        if self._leap and self._failure is None:
            tokens = self._execute()
            computed = self._clock()
            if tokens is not None:
                self._finish(tokens)
        if self._failure is not None:
            self._lose()
        self._call_back()
        times = self.times
        times.steps += 1
        times.decide_ns += decided - started
        times.execute_ns += computed - decided
        times.books_ns += self._clock() - computed
        return True

    def _decide(self) -> None:
        """Ask for a plan, begin it, and note for how many steps it holds (0: it computes nothing)."""
        begun = self.guard.begin(self.state, self._now())
        self.state, self._plan = begun.state, begun.plan
        self.times.decisions += 1
        if begun.events:
            self._publish(begun.events, told=True)
        valid = begun.plan.valid_steps
        if not begun.computes:
            self._leap = 0
        elif begun.plan.chunks or begun.events or valid == 1:
            self._leap = 1
        else:
            most = self.state.decode_steps_max()
            self._leap = max(most if valid is None else min(most, valid), 1)

    def _execute(self) -> dict[int, int] | None:
        """The tokens of the step; None if the executor failed."""
        state, plan, executor = self.state, self._plan, self._executor
        assert executor is not None  # Without one, nothing waits and nothing runs.
        try:
            tokens = executor.execute(plan)
            expected = state.decoding if plan.decode else 0
            for request_id, chunk in plan.chunks:
                expected += state.in_flight[request_id].remaining_tokens == chunk
            if len(tokens) != expected or not tokens.keys() <= self.answers.keys():
                raise ExecutorError(f"worker {state.worker}: {len(tokens)} tokens where the plan makes {expected}")
            return tokens
        except Exception as error:
            self._failure = error
            return None

    def _finish(self, tokens: dict[int, int]) -> None:
        """The step is over: the books follow, tokens go out, and outputs end that a stop token ends."""
        now = self._now()
        stopping: list[int] = []
        for request_id, token in tokens.items():
            answer = self.answers[request_id]
            answer.tokens.append(token)
            if answer.on_token is not None:
                self._calls.append((answer, token))
            if token in answer.sampling.stop_tokens:
                stopping.append(request_id)
        self._leap -= 1
        self.state, events = transitions.finish(self.state, self._plan, 1, now)
        self._publish(events)
        for request_id in sorted(stopping):
            if request_id in self.answers:  # It may have ended with this token anyway.
                self.state, events = transitions.stop(self.state, request_id, now)
                self._publish(events)

    # --- what happened ----------------------------------------------------------------------------------------------

    def _publish(self, events: list[Event], *, told: bool = False, follow: bool = True) -> None:
        """Everybody learns the events: the policy unless it is `told` already, the executor if it is to `follow`."""
        if not told:
            self.guard.observe(events)
        if follow and self._executor is not None:
            try:
                self._executor.follow(events)
            except Exception as error:
                self._failure = error
        for listener in self.listeners:
            self._tell(listener, events)
        for event in events:
            kind = type(event)
            if kind is not Decoded:
                self._leap = 0
                if kind in _OUTCOMES:
                    self._end(event)  # type: ignore[arg-type]

    def _tell(self, listener: Listener, events: list[Event]) -> None:
        try:
            listener(events)
        except Exception:
            _log.exception("worker %d: a listener failed, and is not called again", self.state.worker)
            self.listeners = [other for other in self.listeners if other != listener]

    def _end(self, event: Finished | Cancelled | Rejected) -> None:
        answer = self.answers.pop(event.request_id)
        answer.outcome = _OUTCOMES[type(event)]
        if isinstance(event, Finished):
            self._failures = 0
        elif isinstance(event, Rejected):
            answer.reason = event.reason
        if answer.on_end is not None:
            self._calls.append((answer, None))

    def _call_back(self) -> None:
        """Call callers, once the books are in order: they may submit and cancel, which adds to what is to be called."""
        if self._calling:
            return
        self._calling = True
        while self._calls:
            calls, self._calls = self._calls, []
            for answer, token in calls:
                try:
                    answer.call(token)
                except Exception:
                    _log.exception("request %d: its caller failed, and is taken to have gone", answer.request_id)
                    answer.on_token = None
                    self.cancel(answer.request_id)
        self._calling = False

    # --- failure ----------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The executor failed: what ran waits again, and a new executor is told what waits."""
        _log.error("worker %d: the executor failed: %r", self.state.worker, self._failure)
        self.executor_failures += 1
        self._failures += 1
        failed, self._executor = self._executor, None
        ran = sorted(self.state.in_flight) if self._failures >= _FAILURES_MAX else []
        self.state, events = transitions.lose(self.state, self._now())
        self._publish(events)
        self._reject(ran, f"the executor of worker {self.state.worker} failed {self._failures} times: {self._failure}")
        try:
            if failed is not None:
                failed.close()
            if self._make_executor is not None:
                self._restart(self._make_executor())
        except Exception as error:
            _log.exception("worker %d: there is no new executor", self.state.worker)
            self._failure = error
        if self._executor is None:
            self._reject(sorted(self.state.queue), self._without_executor())

    def _restart(self, executor: Executor) -> None:
        """A new executor learns what waits, with the tokens that it had produced."""
        for request_id in sorted(self.state.queue):
            answer = self.answers[request_id]
            executor.submit(request_id, answer.prompt_ids, answer.sampling, answer.tokens)
            request = self.state.queue[request_id].request
            executor.follow([Arrived(self._last_ns, self.state.worker, request)])
        self._executor, self._failure = executor, None

    def _reject(self, request_ids: list[int], reason: str) -> None:
        for request_id in request_ids:
            self.state, events = transitions.reject(self.state, request_id, reason, self._now())
            self._publish(events)

    def _without_executor(self) -> str:
        return f"worker {self.state.worker} has no executor any more: {self._failure}"

    def close(self) -> None:
        """Cancel what is open and give back what is held.  The engine takes no requests afterwards."""
        for request_id in sorted(self.answers):
            self.cancel(request_id)
        if self._executor is not None:
            self._executor.close()
        self._executor, self._failure = None, ExecutorError("the engine was closed")
        self.guard.close()


def _since_now() -> Callable[[], int]:
    start = time.perf_counter_ns()
    return lambda: time.perf_counter_ns() - start


class _UsedIds:
    """Which request ids were used: all below `next` less none, and a few above; O(1) memory for dense ids."""

    def __init__(self) -> None:
        self.next = 0
        self._above: set[int] = set()

    def __contains__(self, request_id: int) -> bool:
        return request_id < self.next or request_id in self._above

    def add(self, request_id: int) -> None:
        self._above.add(request_id)
        while self.next in self._above:
            self._above.remove(self.next)
            self.next += 1
