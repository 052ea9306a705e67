"""The requests of an engine as fairsched sees them, and the events that say what the engine did with them.

`RequestTracker` is what vLLM's and SGLang's trackers share: requests that wait and that run, clients, and the events
of each transition, for the policy and for the event bus.  How an engine shows what it did is each tracker's own.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import attrs

from fairsched.engines.serving import AdmissionGuard, ClientRegistry, EventBus, client_name
from fairsched.model import events as ev
from fairsched.model.request import Client, Job, Prompt, Request

C = TypeVar("C", bound="TrackedRequest")


class Memory(Protocol):
    """An engine's KV memory."""

    @property
    def capacity_tokens(self) -> int:
        """The tokens that it holds in all."""

    @property
    def free_tokens(self) -> int:
        """The tokens that are not in use."""

    @property
    def reserves(self) -> bool:
        """Whether a request that is let in is sure of room for its output."""


@attrs.define(eq=False, kw_only=True)
class TrackedRequest:
    """A request as we know it, and how far it is; each tracker adds the engine's own.

    Of its `extend` tokens that this admission must compute, so many are `computed`; `produced` output tokens were told.
    """

    known: Request
    extend: int = 0
    computed: int = 0
    produced: int = 0


class RequestTracker(Generic[C]):
    """Requests that wait and run, by number.  `bus` hears every event; its log knows the clients and requests.

    One thread only.
    """

    def __init__(
        self, guard: AdmissionGuard, memory: Memory, clients: ClientRegistry, bus: EventBus, now_ns: int
    ) -> None:
        self.guard = guard
        self.memory = memory
        self.clients = clients
        self.bus = bus
        self.now_ns = now_ns
        self._waiting: dict[int, C] = {}
        self._running: dict[int, C] = {}
        self._count = 0
        self._tell(ev.WorkerJoined(now_ns, 0, memory.capacity_tokens))
        for client in clients.all:
            self._greet(client)

    @property
    def waiting(self) -> Mapping[int, C]:
        """Requests that wait, by number."""
        return self._waiting

    @property
    def running(self) -> Mapping[int, C]:
        """Requests that were let in and have not ended, in the order in which they were let in."""
        return self._running

    # --- transitions ------------------------------------------------------------------------------------------------

    def _arrived(self, said: object, prompt: Prompt, output_tokens: int, make: Callable[[Request], C]) -> C:
        """Queue a request of the client that it names; `make` is given it with its number."""
        client, new = self.clients.resolve(client_name(said))
        if new:
            self._greet(client)
        known = Request(self._count, client.id, self.now_ns, prompt, output_tokens)
        call = make(known)
        self._count += 1
        self._waiting[known.id] = call
        self.bus.request(Job(known, output_tokens))
        self._tell(ev.Arrived(self.now_ns, 0, known))
        return call

    def _entered(self, call: C, event: ev.Admitted) -> None:
        """Count a request as running, as the admission says; telling the policy is the caller's."""
        call.extend, call.computed = event.extend_tokens, 0
        self._running[call.known.id] = self._waiting.pop(call.known.id)

    def _prefilled(self, call: C, tokens: int) -> None:
        call.computed += tokens
        left = call.extend - call.computed
        self._tell(ev.Prefilled(self.now_ns, 0, call.known.id, call.known.client, tokens, left))

    def _decoded(self, produced: Iterable[tuple[C, int]]) -> None:
        """Tell new output tokens of requests, as one step."""
        fresh: dict[int, int] = {}
        for call, tokens in produced:
            if tokens:
                call.produced += tokens
                fresh[call.known.client] = fresh.get(call.known.client, 0) + tokens
        if fresh:
            clients = tuple(sorted(fresh))
            self._tell(ev.Decoded(self.now_ns, 0, 1, clients, tuple(fresh[client] for client in clients)))

    def _preempted(self, call: C) -> None:
        known = call.known
        self._waiting[known.id] = self._running.pop(known.id)
        uncomputed = call.extend - call.computed
        self._tell(ev.Preempted(self.now_ns, 0, known.id, known.client, call.produced, uncomputed))

    def _left(self, call: C, *, whole: bool) -> None:
        """End a request, whose output is `whole` or was given up."""
        known = call.known
        running = self._running.pop(known.id, None) is not None
        if running and whole:
            self._tell(ev.Finished(self.now_ns, 0, known.id, known.client, call.produced))
            return
        uncomputed = call.extend - call.computed if running else 0
        self._waiting.pop(known.id, None)
        self._tell(ev.Cancelled(self.now_ns, 0, known.id, known.client, running, uncomputed, call.produced))

    # --- events -----------------------------------------------------------------------------------------------------

    def _greet(self, client: Client) -> None:
        self.bus.client(client)
        if client.weight != 1:
            self._tell(ev.ClientConfigured(self.now_ns, 0, client.id, client.weight))

    def _tell(self, event: ev.Event) -> None:
        self.guard.observe(event)
        self._announce(event)

    def _announce(self, event: ev.Event) -> None:
        self.bus.tell([event])
