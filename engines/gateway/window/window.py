"""The queue before several servers: which request is forwarded next, and where, by a policy's gate over their tokens.

No I/O and no clock.  The window is what may be in flight: each server takes so many tokens and so many requests at a
time.  A request is forwarded when the policy lets it in and one server has room for its prompt and all of its output.
The first request that is chosen and does not fit waits for room, and no other passes it.  Then a router chooses among
the servers that have room.

Charges follow the deficit gate's theorem to the letter.  The length of a prompt is an estimate until the answer says
it, so half of the estimate is charged when a request is forwarded, all of it has room, and `finish` settles the truth.
With an input token not dearer than an output token, what a client may be charged after it was let in is then at most U
of a memory of all servers' tokens together, `tokens` (U-window, `policies.guarantees.window`): D-4.1 with that as M.
Where servers come and go, `tokens` is the largest sum so far.

`accounts` is the policy's state as it would be if everything that waits or is in flight left now, every prompt in
flight charged to its estimate.  A new window with that state goes on from there, and `adopt` adds what is in flight.

Where a policy raises, is late, or decides what cannot be followed, the oldest request goes first; a policy that does so
again and again is set aside.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.window.pool import ServerPool, Share
from fairsched.engines.gateway.window.usage_account import UsageAccount
from fairsched.engines.serving import BUDGET_MS, AdmissionGuard, Document, FailedError, RouterGuard, empty_worker
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Prefilled,
    Settled,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.plan import Admission
from fairsched.model.request import Client, Prompt, Request
from fairsched.policies.base import AnyLocalPolicy, AnyRouter
from fairsched.policies.guarantees import charged_at_once, held_tokens

_log = logging.getLogger("fairsched.gateway")

WINDOW = 0
"""The window as a worker: what the policy and its monitor see."""


@attrs.frozen
class Placement:
    """The request goes to the server now."""

    request_id: int
    server: int


@attrs.define
class _Flight:
    """A request in flight: its server, the tokens that it holds there, what of its prompt was charged, and the output
    tokens so far.  The prompt of a `quiet` one is in the accounts that the window began with: no listener knows it."""

    request: Request
    server: int
    tokens: int
    charged: int
    quiet: bool = False
    produced: int = 0


class Window:
    """Queue, gate and window over servers.

    `policy` lets one request in at a decision (`max_running` of its batching rule is 1) and reserves outputs; `shares`
    are those of servers that are there from the start; `listeners` hear every event; `state` is the policy's to go on
    from, in which nothing waits or is in flight; `budget_ms` is for each decision.  A call costs what the policy and
    the router do, and O(servers).
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        router: AnyRouter,
        shares: Sequence[Share] = (),
        listeners: Sequence[Callable[[Event], object]] = (),
        state: object = None,
        budget_ms: int = BUDGET_MS,
    ) -> None:
        self.guard = AdmissionGuard(policy, _log, state=state, budget_ms=budget_ms)
        self.servers = ServerPool(RouterGuard(router, _log, budget_ms=budget_ms))
        self.overrun_tokens = 0
        self.tokens = sum(share.tokens for share in shares)
        """The most that the servers of one time could hold so far: M of the theorem."""
        self.usage = UsageAccount(policy, self.tokens, resumed=state is not None)
        self._listeners = (*listeners, self.usage.record)
        self._waiting: dict[int, Request] = {}
        self._waiting_of: Counter[int] = Counter()
        self._flights: dict[int, _Flight] = {}
        self._only: dict[int, set[int]] = {}
        self._tell(WorkerJoined(0, WINDOW, self.tokens))
        for share in shares:
            self.servers.join(share, 0)

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that they hold."""
        return sum(server.tokens for server in self.servers)

    @property
    def up(self) -> tuple[bool, ...]:
        """Which servers take requests."""
        return tuple(server.up for server in self.servers)

    @property
    def queue(self) -> Iterator[Request]:
        """The requests that wait, in order of arrival."""
        return iter(self._waiting.values())

    @property
    def flights(self) -> Iterator[tuple[Request, int]]:
        """The requests in flight, each with what of its prompt was charged so far."""
        return ((flight.request, flight.charged) for flight in self._flights.values())

    def holds(self, request_id: int) -> bool:
        """Return whether the request waits or is in flight."""
        return request_id in self._waiting or request_id in self._flights

    def waiting_of(self, client: int) -> int:
        """Requests of a client that wait."""
        return self._waiting_of[client]

    def refuses(self, prompt_tokens: int, max_output_tokens: int) -> str | None:
        """Return why no server that is there could ever take such a request; None also while no server is known."""
        most = self.servers.largest
        if not most or held_tokens(prompt_tokens, max_output_tokens) <= most:
            return None
        return f"{prompt_tokens} prompt and {max_output_tokens} output tokens are over the window of {most}"

    def outgrown(self) -> list[tuple[int, str]]:
        """Requests that wait and that no server could take any more, and why: no other passes the first of them."""
        found = ((each.id, self.refuses(each.prompt_tokens, each.max_output_tokens)) for each in self.queue)
        return [(request_id, why) for request_id, why in found if why is not None]

    def status(self, clients: Iterable[Client]) -> Document:
        """Return what the window says of itself, as plain JSON values.  Gaps are in cost units times lcm / weight."""
        policy = self.guard.policy
        return {
            "policy": str(getattr(policy, "name", type(policy).__name__)),
            "set_aside": self.guard.set_aside,
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            "in_flight_tokens": self.in_flight_tokens,
            "window_tokens": self.tokens,
            "overrun_tokens": self.overrun_tokens,
            "clients": {
                client.name: {**self.usage.of(client), "waiting": self.waiting_of(client.id)} for client in clients
            },
            **self.usage.promise(),
        }

    # --- servers ----------------------------------------------------------------------------------------------------

    def join(self, share: Share, now_ns: int) -> int:
        """Add a server; returns its place, a number that another may have when this one is gone."""
        place = self.servers.join(share, now_ns)
        self.resize(place, share, now_ns)
        return place

    def resize(self, place: int, share: Share, now_ns: int) -> None:
        """Let a server take so much from now on; what is in flight there stays."""
        self.servers[place].share = share
        if self.servers.tokens > self.tokens:
            self.tokens = self.servers.tokens
            self._announce(WorkerJoined(now_ns, WINDOW, self.tokens))
            self.usage.grow(self.tokens, now_ns)

    def set_up(self, server: int, up: bool) -> None:
        """Let a server take requests, or no more; what it has stays in its share until it ends."""
        self.servers[server].up = up

    def part(self, place: int, now_ns: int) -> None:
        """Send a server no more; it is gone when nothing is in flight there."""
        for places in self._only.values():
            places.discard(place)
        self.servers.part(place, now_ns)

    # --- requests ---------------------------------------------------------------------------------------------------

    def configure(self, client: Client, now_ns: int) -> None:
        """Set a client's weight, and its groups."""
        self._tell(ClientConfigured(now_ns, WINDOW, client.id, client.weight, client.place))

    def arrive(self, request_id: int, client: int, prompt_tokens: int, max_output_tokens: int, now_ns: int) -> None:
        """Queue a request of so many tokens by estimate.  Raises `ValueError` for one that no server could take."""
        if (refusal := self.refuses(prompt_tokens, max_output_tokens)) is not None:
            raise ValueError(f"request {request_id}: {refusal}")
        if self.holds(request_id):
            raise ValueError(f"request {request_id} is there already")
        request = request_of(request_id, client, prompt_tokens, max_output_tokens, now_ns)
        self._waiting[request_id] = request
        self._waiting_of[client] += 1
        # What is not charged yet is told as tokens that need no computing; memory holds them all the same.
        self._tell(Arrived(now_ns, WINDOW, request, 0, prompt_tokens - charged_at_once(prompt_tokens)))

    def only(self, request_id: int, places: Iterable[int]) -> None:
        """Let a request that waits go to these servers only, to the one of them with the fewest requests.

        It is let in when any server has room for it, and may then exceed its own server's share, but never what all
        servers together hold: M stays what it is.
        """
        self._only[request_id] = set(places)

    def stranded(self) -> list[int]:
        """Requests that wait for servers of which none is there any more."""
        return [request_id for request_id, places in self._only.items() if not places and request_id in self._waiting]

    def admit(self, now_ns: int) -> list[Placement]:
        """Forward all requests that may go now, in this order."""
        placements: list[Placement] = []
        while self._waiting:
            free = self.servers.free_tokens
            if free < 2:
                break
            admission = self._admission(free, now_ns)
            if admission is None:
                break
            placements.append(self._place(admission, now_ns))
        return placements

    def adopt(self, request: Request, place: int, now_ns: int, *, charged: bool) -> None:
        """Count a request that is at a server already: it takes room there, even if there is none.

        `charged`: its prompt is in the accounts.  Otherwise it is charged now, as an admission past the gate.
        """
        at_once = charged_at_once(request.prompt_tokens)
        if not charged:
            self._tell(Arrived(now_ns, WINDOW, request, 0, request.prompt_tokens - at_once))
            self._tell(_admitted(request, at_once, now_ns))
        self._begin(_Flight(request, place, _need(request), at_once, quiet=charged), now_ns)

    def produced(self, request_id: int, tokens: int, now_ns: int) -> None:
        """Charge output tokens of a request that passed by."""
        flight = self._flights[request_id]
        decoded = Decoded(now_ns, WINDOW, 1, (flight.request.client,), (tokens,))
        if flight.quiet:
            flight.produced += tokens
            self.guard.observe(decoded)
            return
        if not flight.produced:
            # For logs, which say when the first token came.
            request = flight.request
            self._announce(Prefilled(now_ns, WINDOW, request_id, request.client, request.prompt_tokens, 0))
        flight.produced += tokens
        over = flight.produced - flight.request.max_output_tokens
        self.overrun_tokens += max(min(over, tokens), 0)
        self._tell(decoded)

    def finish(self, request_id: int, computed_tokens: int | None, output_tokens: int | None, now_ns: int) -> None:
        """End a request whose answer is whole.

        `computed_tokens` of its prompt and `output_tokens` were computed, as the server says.  None: it does not say,
        and the estimate and what was counted stand.
        """
        flight = self._flights[request_id]
        if output_tokens is not None and output_tokens > flight.produced:
            self.produced(request_id, output_tokens - flight.produced, now_ns)
        client = flight.request.client
        self._settle(flight, computed_tokens, now_ns)
        self._release(flight, Finished(now_ns, WINDOW, request_id, client, flight.produced))

    def cancel(self, request_id: int, now_ns: int) -> bool:
        """End a request whose caller gave up, or whose answer broke off: a prompt that was sent stays charged.

        Returns whether the request was still there.
        """
        flight = self._flights.get(request_id)
        if flight is not None:
            self._settle(flight, None, now_ns)
            self._release(flight, _cancelled(flight, 0, now_ns))
            return True
        request = self._waiting.get(request_id)
        if request is None:
            return False
        self._unqueue(request)
        self._only.pop(request_id, None)
        self._tell(Cancelled(now_ns, WINDOW, request_id, request.client, False, 0, 0))
        return True

    def give_back(self, request_id: int, now_ns: int) -> None:
        """End a request of which the server computed nothing: the charge of its prompt is given back (within one
        quantum of credit)."""
        flight = self._flights[request_id]
        self._release(flight, _cancelled(flight, flight.charged, now_ns))

    def withdraw(self, request_id: int, now_ns: int) -> None:
        """End a request that was not sent, nor will be: it leaves the queue, or gets back what it was charged."""
        if request_id in self._flights:
            self.give_back(request_id, now_ns)
        else:
            self.cancel(request_id, now_ns)

    def accounts(self, now_ns: int) -> Any:
        """Return the policy's state without what waits or is in flight; None while the policy is set aside.

        O(clients + what waits + what is in flight).
        """
        events: list[Event] = []
        for flight in self._flights.values():
            request = flight.request
            if not flight.quiet and request.prompt_tokens != flight.charged:
                events.append(Settled(now_ns, WINDOW, request.id, request.client, request.prompt_tokens))
        try:
            return self.guard.tried(lambda trial: trial.after(*events, WorkerLeft(now_ns, WINDOW)))
        except FailedError:
            return None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _admission(self, free_tokens: int, now_ns: int) -> Admission | None:
        """Return the one request that the policy lets in; None: none that fits."""

        def admissible(admission: Admission) -> bool:
            request = self._waiting.get(admission.request_id)
            if request is None or _need(request) > free_tokens:
                return False
            wanted = request.client, charged_at_once(request.prompt_tokens), request.max_output_tokens
            return (admission.client, admission.extend_tokens, admission.reserved_output_tokens) == wanted

        try:
            decision = self.guard.decide(empty_worker(now_ns, self.tokens, free_tokens), admissible)
            if decision is None and not self._flights and free_tokens >= self.servers.largest:
                self.guard.failed("stalled", f"{len(self._waiting)} requests wait, none runs, and none is let in")
                raise FailedError
        except FailedError:
            oldest = next(iter(self._waiting.values()))
            if _need(oldest) > free_tokens:
                return None
            charged = charged_at_once(oldest.prompt_tokens)
            self.guard.observe(_admitted(oldest, charged, now_ns))
            return Admission(oldest.id, oldest.client, charged, 0, oldest.max_output_tokens)
        if decision is None:
            return None
        self.guard.commit(decision)
        return decision.admission

    def _place(self, admission: Admission, now_ns: int) -> Placement:
        request = self._waiting[admission.request_id]
        self._unqueue(request)
        need = _need(request)
        server = self.servers.route(request, need, now_ns, self._only.pop(request.id, frozenset()))
        self._announce(_admitted(request, admission.extend_tokens, now_ns))
        self._begin(_Flight(request, server, need, admission.extend_tokens), now_ns)
        return Placement(request.id, server)

    def _begin(self, flight: _Flight, now_ns: int) -> None:
        self._flights[flight.request.id] = flight
        admitted = _admitted(flight.request, flight.charged, now_ns)
        self.servers.take(
            flight.server, flight.tokens, flight.request, msgspec.structs.replace(admitted, worker=flight.server)
        )

    def _settle(self, flight: _Flight, computed_tokens: int | None, now_ns: int) -> None:
        if flight.quiet:
            return
        estimate = flight.request.prompt_tokens
        tokens = estimate if computed_tokens is None else max(computed_tokens, 1)
        self.overrun_tokens += max(tokens - estimate, 0)
        if tokens != flight.charged:
            self._tell(Settled(now_ns, WINDOW, flight.request.id, flight.request.client, tokens))

    def _release(self, flight: _Flight, ended: Finished | Cancelled) -> None:
        request = flight.request
        del self._flights[request.id]
        finished = Finished(ended.time_ns, flight.server, request.id, request.client, flight.produced)
        self.servers.release(flight.server, flight.tokens, finished)
        if not flight.quiet:
            self._tell(ended)

    def _unqueue(self, request: Request) -> None:
        del self._waiting[request.id]
        self._waiting_of[request.client] -= 1

    def _tell(self, event: Event) -> None:
        self.guard.observe(event)
        self._announce(event)

    def _announce(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


def request_of(request_id: int, client: int, prompt_tokens: int, max_output_tokens: int, now_ns: int) -> Request:
    """Return a request of so many tokens, whose text is not known."""
    return Request(request_id, client, now_ns, Prompt(prompt_tokens), max_output_tokens)


def _need(request: Request) -> int:
    return held_tokens(request.prompt_tokens, request.max_output_tokens)


def _admitted(request: Request, charged: int, now_ns: int) -> Admitted:
    cached = request.prompt_tokens - charged
    return Admitted(now_ns, WINDOW, request.id, request.client, charged, cached, request.max_output_tokens)


def _cancelled(flight: _Flight, uncomputed_tokens: int, now_ns: int) -> Cancelled:
    request = flight.request
    return Cancelled(now_ns, WINDOW, request.id, request.client, True, uncomputed_tokens, flight.produced)
