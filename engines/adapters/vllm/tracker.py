"""vLLM's requests as fairsched sees them: which wait, which is let in next, what was computed for which client.

All that vLLM does becomes events, in order, for the policy and for the event bus.  Service is exact: an admission is
charged what vLLM really has to compute beside what it found in its cache, chunks are what was scheduled, and outputs
are what came back.  Each step's events are told when its results are there, also where vLLM runs a step ahead.

A request that vLLM took out of the batch is told to be out once nothing of it is in flight any more.

A request of a client that the policy pauses is held: it is not scheduled, as if vLLM's pace of decoding kept it back,
and keeps its blocks.  With the results of the first step without it, it is told to be paused.  Where the request that
is next has no room, held ones are taken out, of the client that the policy names first the youngest first, if that
makes room or nothing else runs.

Where outputs are reserved, a request reserves what its client's last requests had, and more when more comes; what a
client's requests declare beyond that is limited (`policies.guarantees.Reservations`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import attrs

from fairsched.engines import serving
from fairsched.engines.adapters.common import RequestTracker, TrackedRequest
from fairsched.engines.adapters.vllm.memory import KvMemory, Prefixes
from fairsched.engines.adapters.vllm.protocol import VllmRequest, ended_well
from fairsched.model.decision import Admission
from fairsched.model.events import Admitted, Event, Paused, Resumed
from fairsched.policies.guarantees import Reservations, grown_outputs

NEVER = 1 << 62
"""A step that does not come."""
LOOKS_MAX = 16
"""How often a decision is repeated since what it believed to be cached was not."""


@attrs.define(eq=False, kw_only=True)
class TrackedVllm(TrackedRequest):
    """A request.  `stint` counts its admissions; of this one's tokens so many are `scheduled`.

    Of its outputs in all so many are `reserved`.  One that is held would else be scheduled from step `held` on, and is
    `paused` when that has been told.
    """

    request: VllmRequest
    running: bool = False
    stint: int = 0
    scheduled: int = 0
    reserved: int = 0
    held: int | None = None
    paused: bool = False

    @property
    def decodes(self) -> bool:
        """Whether it is let in, and its prompt is computed."""
        return self.running and self.computed == self.extend

    @property
    def stands(self) -> bool:
        """Whether it is held, and all results of it are back."""
        return self.held is not None and not self.request.num_output_placeholders

    @property
    def unreserved(self) -> int:
        """The outputs that may come and are not reserved."""
        return self.known.max_output_tokens - self.reserved


Step = list[tuple[TrackedVllm, int, int]]
"""What a step computes of prompts: the call, its stint, and so many tokens."""


class VllmTracker(RequestTracker[TrackedVllm]):
    """The requests of one engine, and the decision which is next.

    `model_tokens_max` is the longest sequence of the model; requests say their client under `client_key`.
    """

    memory: KvMemory

    def __init__(
        self,
        guard: serving.AdmissionGuard,
        memory: KvMemory,
        clients: serving.ClientRegistry,
        prefixes: Prefixes,
        bus: serving.EventBus,
        model_tokens_max: int,
        clock: Callable[[], int],
        client_key: str = "client",
        unreserved_max: int = 0,
    ) -> None:
        self._reservations, self._unreserved_max = Reservations(), unreserved_max
        self._prefixes = prefixes
        self._model_max = model_tokens_max
        self._clock = clock
        self._client_key = client_key
        self._calls: dict[str, TrackedVllm] = {}
        self._steps: deque[tuple[int, Step, list[tuple[TrackedVllm, int]]]] = deque()
        self._asked = False
        self._next: tuple[TrackedVllm, serving.AdmissionChoice | None, int] | None = None
        self._short: int | None = None
        self._pausing: tuple[int, ...] = ()
        super().__init__(guard, memory, clients, bus, clock())

    def knows(self, request: VllmRequest) -> bool:
        """Return whether the request has come here and has not ended."""
        return request.request_id in self._calls

    # --- queue ------------------------------------------------------------------------------------------------------

    def arrive(self, request: VllmRequest) -> None:
        """Queue a request.  Raises `ValueError` for one that is no request of ours."""
        extra = getattr(request.sampling_params, "extra_args", None)
        said = extra.get(self._client_key) if isinstance(extra, Mapping) else None
        most = max(min(request.max_tokens, self._model_max - request.num_prompt_tokens), 1)
        self.now_ns = self._clock()
        prompt = self._prefixes.prompt(request)
        call = self._arrived(said, prompt, most, lambda known: TrackedVllm(request=request, known=known))
        self._calls[request.request_id] = call

    def requeue(self, request: VllmRequest) -> None:
        """Queue a request again that was let in, and nothing of which is in flight."""
        call = self._calls[request.request_id]
        self.now_ns = self._clock()
        self._delivered([call])
        call.running = call.paused = False
        self._goes_on(call)
        self._release(call)
        self._preempted(call)

    def next(self) -> VllmRequest | None:
        """Return the request that is let in next, if one is; asking again changes nothing until something happens."""
        if not self._waiting:
            return None
        if not self._asked:
            self._next, self._asked = self._decided(), True
        return None if self._next is None else self._next[0].request

    def look_again(self) -> None:
        """Decide anew: memory may have changed."""
        self._asked = False

    def _decided(self) -> tuple[TrackedVllm, serving.AdmissionChoice | None, int] | None:
        """Return the call that is next, the decision that says so, if any does, and the outputs that it reserves."""
        self._short = None
        try:
            decision = self._by_policy()
            if decision is None and self._running:
                return None
            if decision is None:
                why = f"{len(self._waiting)} requests wait, none runs, and none is let in"
                self.guard.failed("stalled", why)
        except serving.NoDecisionError:
            decision = None
        call = self._waiting[min(self._waiting) if decision is None else decision.admission.request_id]
        # A request that is alone fits; should the numbers say otherwise, vLLM has the last word.
        reserved = self._reserves(call)
        need = call.known.prompt_tokens + reserved
        if self._running and not self.memory.fits(call.request, need, self._held()):
            self._short = need
            return None
        return call, decision, reserved

    def _by_policy(self) -> serving.AdmissionChoice | None:
        now, capacity = self._clock(), self.memory.capacity_tokens
        for _ in range(LOOKS_MAX):
            decision = self.guard.decide(serving.empty_worker(now, capacity, capacity), self._admissible)
            if decision is None or not self._prefixes.follows:
                return decision
            call, believed = self._waiting[decision.admission.request_id], decision.admission.cached_prefix_tokens
            wrong = self._prefixes.corrected(call.request, call.known.id, call.known.prompt, believed, now)
            if wrong is None:
                return decision
            self._tell(wrong)
        return decision

    def _admissible(self, admission: Admission) -> bool:
        return admission.request_id in self._waiting

    # --- pauses -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold those requests in the step to come whose clients the policy pauses, and let the others go on."""
        if not self.guard.pauses:
            return
        decoding = [call for call in self._running.values() if call.decodes]
        self._pausing = self.guard.paused_clients(sorted({call.known.client for call in decoding}))
        for call in decoding:
            if call.known.client not in self._pausing:
                self._goes_on(call)
            elif call.held is None:
                call.held = call.request.next_decode_eligible_step
                call.request.next_decode_eligible_step = NEVER

    @staticmethod
    def _goes_on(call: TrackedVllm) -> None:
        if call.held is not None:
            call.request.next_decode_eligible_step = call.held
            call.held = None

    def in_the_way(self, seats: int) -> VllmRequest | None:
        """Return the held request that is to be taken out for the next one, for which there is no room, or no seat.

        Where none enters and all that run are held, the first goes on.
        """
        held = [call for call in self._running.values() if call.stands]
        if not held or not self._waiting:
            return None
        self.look_again()
        entering = self.next()
        if entering is not None and seats > 0:
            return None
        if len(held) == len(self._running):
            if entering is None and self._short is None:
                self._goes_on(held[0])
                return None
        elif self._short is not None:
            others = [self._holds(call) for call in self._running.values() if not call.stands]
            if not self.memory.would_fit(self._short, others, [call.request.request_id for call in held]):
                return None
        elif entering is None:
            return None
        return min(reversed(held), key=lambda call: self._pausing.index(call.known.client)).request

    # --- reservations -----------------------------------------------------------------------------------------------

    @property
    def unreserved_tokens(self) -> Counter[int]:
        """Outputs that running requests declared and did not reserve, by client; clients without any are left out."""
        return +self._reservations.unreserved

    def _held(self) -> Iterable[tuple[str, int]]:
        return map(self._holds, self._running.values())

    @staticmethod
    def _holds(call: TrackedVllm) -> tuple[str, int]:
        """Return what a running request may come to hold."""
        return call.request.request_id, call.known.prompt_tokens + call.reserved

    def _reserves(self, call: TrackedVllm) -> int:
        client, most = call.known.client, call.known.max_output_tokens
        if not self._unreserved_max:
            return most
        predicted = max(self._reservations.predicted(client, most), min(call.request.num_output_tokens + 1, most))
        return self._reservations.reserves(client, most, predicted, self._unreserved_max)

    def _release(self, call: TrackedVllm) -> None:
        self._reservations.unreserved[call.known.client] -= call.unreserved

    # --- batch ------------------------------------------------------------------------------------------------------

    def enter(self, request: VllmRequest) -> None:
        """Count a request that vLLM has let in; `num_computed_tokens` says what of it was cached."""
        call, following = self._calls[request.request_id], self._next
        known, cached = call.known, request.num_computed_tokens
        extend = request.num_tokens - cached
        decision, reserved = following[1:] if following and following[0] is call else (None, self._reserves(call))
        call.reserved = reserved
        self._reservations.unreserved[known.client] += call.unreserved
        left = max(known.prompt_tokens + reserved - request.num_tokens, 0) if self.memory.reserves else 0
        event = Admitted(self._clock(), 0, known.id, known.client, extend, cached, left)
        self._entered(call, event)
        call.running, call.scheduled = True, 0
        call.stint += 1
        if decision is not None and _as_planned(decision, event):
            self.guard.commit(decision)
            self._announce(event)
        else:
            self._tell(event)

    def scheduled(self, step_id: int, tokens: Mapping[str, int]) -> None:
        """Note a step that begins, and computes so many tokens of each request."""
        step: Step = []
        for name, count in tokens.items():
            call = self._calls.get(name)
            if call is not None and call.running and call.scheduled < call.extend:
                chunk = min(count, call.extend - call.scheduled)
                call.scheduled += chunk
                step.append((call, call.stint, chunk))
        held = [(call, call.stint) for call in self._running.values() if call.held is not None]
        self._steps.append((step_id, step, held))

    def delivered(self, step_id: int, names: Iterable[str]) -> None:
        """Take the results of a step, which vLLM has given to its requests."""
        self.now_ns = self._clock()
        fresh: list[TrackedVllm] = []
        while self._steps:
            known_id, step, held = self._steps.popleft()
            self._tell_pauses(held, names if known_id == step_id else ())
            for call, stint, chunk in step:
                if call.running and call.stint == stint:
                    self._prefilled(call, chunk)
            if known_id == step_id:
                fresh = [call for call, _, _ in step]
                break
        there = [self._calls[name] for name in names if name in self._calls]
        self._delivered(there)
        # As our worker tells ends: first those of outputs of one token, then the others by number.
        for call in sorted(there, key=lambda call: (call not in fresh, call not in fresh and call.known.id)):
            if call.request.is_finished():
                self._ended(call)

    def _tell_pauses(self, held: Iterable[tuple[TrackedVllm, int]], names: Iterable[str]) -> None:
        """Tell which requests were held in a step, and which of those that were have a result in it."""
        for call, stint in held:
            if call.running and call.stint == stint and not call.paused:
                call.paused = True
                self._tell(Paused(self.now_ns, 0, call.known.id, call.known.client, call.produced))
        for call in [self._calls[name] for name in names if name in self._calls]:
            if call.paused:
                call.paused = False
                self._tell(Resumed(self.now_ns, 0, call.known.id, call.known.client))

    def leave(self, request: VllmRequest) -> None:
        """End a request, however it ended; doing so twice changes nothing."""
        call = self._calls.get(request.request_id)
        if call is not None:
            self.now_ns = self._clock()
            self._ended(call)

    def _ended(self, call: TrackedVllm) -> None:
        del self._calls[call.request.request_id]
        if call.running:
            # What is being computed is computed, although it is not needed any more.
            if call.scheduled > call.computed:
                self._prefilled(call, call.scheduled - call.computed)
            self._delivered([call])
            call.running = False
            self._release(call)
        if ended_well(call.request):
            self._reservations.learn(call.known.client, call.produced)
        self._left(call, whole=ended_well(call.request))

    # --- events -----------------------------------------------------------------------------------------------------

    def _prefilled(self, call: TrackedVllm, tokens: int) -> None:
        super()._prefilled(call, tokens)
        if call.computed == call.extend:
            for event in self._prefixes.computed(call.known.id, call.known.prompt, call.request, self.now_ns):
                self._tell(event)

    def _delivered(self, calls: Iterable[TrackedVllm]) -> None:
        calls = list(calls)
        self._decoded((call, call.request.num_output_tokens - call.produced) for call in calls)
        for call in calls:
            if call.running and call.produced > call.reserved:
                more = grown_outputs(call.reserved, call.produced, call.known.max_output_tokens) - call.reserved
                call.reserved += more
                self._reservations.unreserved[call.known.client] -= more

    def _announce(self, event: Event) -> None:
        self._asked = False
        super()._announce(event)


def _as_planned(decision: serving.AdmissionChoice, event: Admitted) -> bool:
    """Return whether vLLM computes and reserves what the policy planned."""
    plan = decision.admission
    return (plan.extend_tokens, plan.cached_prefix_tokens, plan.reserved_output_tokens) == (
        event.extend_tokens,
        event.cached_prefix_tokens,
        event.reserved_output_tokens,
    )
