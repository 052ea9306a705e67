"""vLLM's requests as fairsched sees them: who waits, who is let in, what was computed for whom.

All that vLLM does becomes events, in order, for the policy and for whoever listens.  Service is exact: an admission is
charged what vLLM really has to compute beside what it found in its cache, chunks are what was scheduled, and outputs
are what came back.  Each step's events are told when its results are there, also where vLLM runs a step ahead.

A request that vLLM took out of the batch is told to be out once nothing of it is in flight any more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from fairsched.engines.inside.decider import Decider, Decision, FailedError
from fairsched.engines.serving_audience import Audience
from fairsched.engines.vllm.memory import KvMemory
from fairsched.engines.vllm.names import Names
from fairsched.engines.vllm.prefixes import Prefixes
from fairsched.engines.vllm.protocol import VllmRequest, ended_well
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Preempted,
    Prefilled,
    WorkerJoined,
)
from fairsched.model.request import Client, Request
from fairsched.model.workload import Job

LOOKS_MAX = 16
"""How often a decision is repeated since what it believed to be cached was not."""


@attrs.define(eq=False)
class Call:
    """A request: vLLM's, ours, and how far it is.

    `stint` counts its admissions; of this one's `extend` tokens so many are `scheduled`, and of these `computed`.
    `produced` output tokens were told.
    """

    request: VllmRequest
    known: Request
    running: bool = False
    stint: int = 0
    extend: int = 0
    scheduled: int = 0
    computed: int = 0
    produced: int = 0

    @property
    def most_tokens(self) -> int:
        """What it may come to hold."""
        return self.known.prompt_tokens + self.known.max_output_tokens


Step = list[tuple[Call, int, int]]
"""What a step computes of prompts: the call, its stint, and so many tokens."""


class Desk:
    """The books, and the decision who is next.

    `model_tokens_max` is the longest sequence of the model.  `audience` hears every event; its log knows the clients
    and requests.  One thread only.
    """

    def __init__(
        self,
        decider: Decider,
        memory: KvMemory,
        names: Names,
        prefixes: Prefixes,
        audience: Audience,
        model_tokens_max: int,
        clock: Callable[[], int],
    ) -> None:
        self.decider = decider
        self.memory = memory
        self.names = names
        self.audience = audience
        self._prefixes = prefixes
        self._model_max = model_tokens_max
        self._clock = clock
        self._calls: dict[str, Call] = {}
        self._waiting: dict[int, Call] = {}
        self._running: dict[int, Call] = {}
        self._steps: deque[tuple[int, Step]] = deque()
        self._count = 0
        self._asked = False
        self._next: tuple[Call, Decision | None] | None = None
        self._tell(WorkerJoined(clock(), 0, memory.capacity_tokens))
        for client in names.configured:
            self._greet(client)

    @property
    def waiting(self) -> Mapping[int, Call]:
        """Who waits, by number, in the order in which they came."""
        return self._waiting

    @property
    def running(self) -> Mapping[int, Call]:
        """Who runs, in the order in which they were let in."""
        return self._running

    def knows(self, request: VllmRequest) -> bool:
        """Whether the request has come here and has not ended."""
        return request.request_id in self._calls

    # --- queue ------------------------------------------------------------------------------------------------------

    def arrive(self, request: VllmRequest) -> None:
        """A request waits.  Raises `ValueError` for one that is no request of ours."""
        client, new = self.names.of(request)
        if new:
            self._greet(client)
        now = self._clock()
        most = max(min(request.max_tokens, self._model_max - request.num_prompt_tokens), 1)
        known = Request(self._count, client.id, now, self._prefixes.prompt(request), most)
        self._count += 1
        call = self._calls[request.request_id] = Call(request, known)
        self._waiting[known.id] = call
        self.audience.request(Job(known, most))
        self._tell(Arrived(now, 0, known))

    def requeue(self, request: VllmRequest) -> None:
        """A request that was let in waits again, and nothing of it is in flight."""
        call = self._calls[request.request_id]
        now = self._clock()
        self._produced(call, now)
        del self._running[call.known.id]
        call.running = False
        self._waiting[call.known.id] = call
        uncomputed = call.extend - call.computed
        self._tell(Preempted(now, 0, call.known.id, call.known.client, call.produced, uncomputed))

    def next(self) -> VllmRequest | None:
        """Who is let in next, if anybody is now; asking again changes nothing until something happens."""
        if not self._waiting:
            return None
        if not self._asked:
            self._next, self._asked = self._decided(), True
        return None if self._next is None else self._next[0].request

    def look_again(self) -> None:
        """Memory may have changed."""
        self._asked = False

    def _decided(self) -> tuple[Call, Decision | None] | None:
        try:
            decision = self._by_policy()
            if decision is None and self._running:
                return None
            if decision is None:
                self.decider.failed("stalled", f"{len(self._waiting)} wait, nothing runs, and nobody is let in")
        except FailedError:
            decision = None
        if decision is None:
            call = self._waiting[min(self._waiting)]
        else:
            call = self._waiting[decision.admission.request_id]
        # Whoever is alone fits; should the books say otherwise, vLLM has the last word.
        if self._running and not self.memory.fits(call.request, call.most_tokens, self._held()):
            return None
        return call, decision

    def _by_policy(self) -> Decision | None:
        now = self._clock()
        for _ in range(LOOKS_MAX):
            decision = self.decider.decide(self._waiting, now)
            if decision is None or not self._prefixes.follows:
                return decision
            call, believed = self._waiting[decision.admission.request_id], decision.admission.cached_prefix_tokens
            wrong = self._prefixes.corrected(call.request, call.known.id, call.known.prompt, believed, now)
            if wrong is None:
                return decision
            self._tell(wrong)
        return decision

    def _held(self) -> Iterable[tuple[str, int]]:
        return ((call.request.request_id, call.most_tokens) for call in self._running.values())

    # --- batch ------------------------------------------------------------------------------------------------------

    def enter(self, request: VllmRequest) -> None:
        """vLLM has let the request in, and `num_computed_tokens` says what of it was cached."""
        call, following = self._calls[request.request_id], self._next
        known, cached = call.known, request.num_computed_tokens
        extend = request.num_tokens - cached
        left = known.prompt_tokens + known.max_output_tokens - request.num_tokens
        reserved = max(left, 0) if self.memory.reserves else 0
        event = Admitted(self._clock(), 0, known.id, known.client, extend, cached, reserved)
        decision = following[1] if following is not None and following[0] is call else None
        del self._waiting[known.id]
        self._running[known.id] = call
        call.running, call.extend, call.scheduled, call.computed = True, extend, 0, 0
        call.stint += 1
        if decision is not None and _as_planned(decision, event):
            self.decider.followed(decision)
            self._announce(event)
        else:
            self._tell(event)

    def scheduled(self, step_id: int, tokens: Mapping[str, int]) -> None:
        """A step begins that computes so many tokens of each request."""
        step: Step = []
        for name, count in tokens.items():
            call = self._calls.get(name)
            if call is not None and call.running and call.scheduled < call.extend:
                chunk = min(count, call.extend - call.scheduled)
                call.scheduled += chunk
                step.append((call, call.stint, chunk))
        self._steps.append((step_id, step))

    def delivered(self, step_id: int, names: Iterable[str]) -> None:
        """The results of a step are there, and vLLM has given them to its requests."""
        now = self._clock()
        while self._steps:
            known_id, step = self._steps.popleft()
            for call, stint, chunk in step:
                if call.running and call.stint == stint:
                    self._prefilled(call, chunk, now)
            if known_id == step_id:
                break
        there = [self._calls[name] for name in names if name in self._calls]
        self._decoded(there, now)
        for call in there:
            if call.request.is_finished():
                self._ended(call, now)

    def leave(self, request: VllmRequest) -> None:
        """The request is over, however; telling it twice changes nothing."""
        call = self._calls.get(request.request_id)
        if call is not None:
            self._ended(call, self._clock())

    def _ended(self, call: Call, now: int) -> None:
        known = call.known
        del self._calls[call.request.request_id]
        if not call.running:
            del self._waiting[known.id]
            self._tell(Cancelled(now, 0, known.id, known.client, False, 0, call.produced))
            return
        # What is being computed is computed, whether or not somebody wants it.
        if call.scheduled > call.computed:
            self._prefilled(call, call.scheduled - call.computed, now)
        self._produced(call, now)
        del self._running[known.id]
        call.running = False
        if ended_well(call.request):
            self._tell(Finished(now, 0, known.id, known.client, call.produced))
            return
        uncomputed = call.extend - call.computed
        self._tell(Cancelled(now, 0, known.id, known.client, True, uncomputed, call.produced))

    # --- events -----------------------------------------------------------------------------------------------------

    def _prefilled(self, call: Call, tokens: int, now: int) -> None:
        call.computed += tokens
        known, left = call.known, call.extend - call.computed
        self._tell(Prefilled(now, 0, known.id, known.client, tokens, left))
        if not left:
            for event in self._prefixes.computed(known.id, known.prompt, call.request, now):
                self._tell(event)

    def _produced(self, call: Call, now: int) -> None:
        self._decoded([call], now)

    def _decoded(self, calls: Iterable[Call], now: int) -> None:
        fresh: dict[int, int] = {}
        for call in calls:
            more = call.request.num_output_tokens - call.produced
            if more:
                call.produced += more
                fresh[call.known.client] = fresh.get(call.known.client, 0) + more
        if fresh:
            clients = tuple(sorted(fresh))
            self._tell(Decoded(now, 0, 1, clients, tuple(fresh[client] for client in clients)))

    def _greet(self, client: Client) -> None:
        self.audience.client(client)
        if client.weight != 1:
            self._tell(ClientConfigured(self._clock(), 0, client.id, client.weight))

    def _tell(self, event: Event) -> None:
        self.decider.tell(event)
        self._announce(event)

    def _announce(self, event: Event) -> None:
        self._asked = False
        self.audience.tell([event])


def _as_planned(decision: Decision, event: Admitted) -> bool:
    """Whether vLLM computes and reserves what the policy planned."""
    plan: Any = decision.admission
    return (plan.extend_tokens, plan.cached_prefix_tokens, plan.reserved_output_tokens) == (
        event.extend_tokens,
        event.cached_prefix_tokens,
        event.reserved_output_tokens,
    )
