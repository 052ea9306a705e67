"""Who of those that wait before several servers is forwarded next, and where: a policy's gate over a window of tokens.

No I/O and no clock.  The window is what may be in flight: each server takes so many tokens and so many requests at a
time.  A request is forwarded when the policy lets it in and one server has room for its prompt and all of its output;
the first that is chosen and does not fit waits for room, and nobody passes it.  Then a router chooses among the servers
that have it.

Charges follow the deficit gate's theorem to the letter.  The length of a prompt is an estimate until the answer tells
it, so half of the estimate is charged when a request is forwarded, all of it has room, and `finish` settles the truth.
With an input token not dearer than an output token, what a client may be charged after it was let in is then at most U
of a memory of all servers' tokens together, `tokens` (U-window, `model.window`): D-4.1 with that as M.

A policy that raises, or whose plan cannot be followed, is set aside: from then on the oldest goes first.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import msgspec
from immutables import Map

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
)
from fairsched.model.plan import Admission
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.model.view import ClusterView, WorkerLoad, WorkerView
from fairsched.model.window import charged_at_once, held_tokens
from fairsched.policies.base import LocalPolicy, Router

_log = logging.getLogger("fairsched.gateway")

WINDOW = 0
"""The window as a worker: what the policy and its monitor see."""


@attrs.frozen
class Share:
    """What one server takes at a time: `tokens` of prompts and outputs, and `requests`."""

    tokens: int = attrs.field(validator=attrs.validators.ge(2))
    requests: int = attrs.field(default=256, validator=attrs.validators.ge(1))


@attrs.frozen
class Placement:
    """The request goes to the server now."""

    request_id: int
    server: int


@attrs.define
class _Flight:
    """A request in flight: its server, the tokens that it holds there, and the output tokens that came so far."""

    request: Request
    server: int
    tokens: int
    charged: int
    produced: int = 0


@attrs.define
class _Server:
    share: Share
    tokens: int = 0
    requests: int = 0
    up: bool = True

    @property
    def hole(self) -> int:
        """Tokens that one more request may take."""
        return self.share.tokens - self.tokens if self.up and self.requests < self.share.requests else 0


class Window:
    """Queue, gate and window.

    `policy` lets one request in at a decision (`max_running` of its batching rule is 1) and reserves outputs;
    `listeners` are told every event; `state` is the policy's to go on from, in which nothing waits or is in flight.  A
    call costs what the policy and the router do, and O(servers).
    """

    def __init__(
        self,
        policy: LocalPolicy[Any],
        router: Router[Any],
        shares: Sequence[Share],
        listeners: Sequence[Callable[[Event], object]] = (),
        state: Any = None,
    ) -> None:
        if not shares:
            raise ValueError("a window needs at least one server")
        self.policy = policy
        self.router = router
        self.set_aside: str | None = None
        self.overrun_tokens = 0
        self._listeners = listeners
        self._state = policy.init() if state is None else state
        self._router_state = router.init()
        self._servers = [_Server(share) for share in shares]
        self._waiting: dict[int, Request] = {}
        self._flights: dict[int, _Flight] = {}
        self._waiting_of: dict[int, int] = {}
        self._tell(WorkerJoined(0, WINDOW, self.tokens))
        for server, share in enumerate(shares):
            self._tell_router(WorkerJoined(0, server, share.tokens))

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def policy_name(self) -> str:
        """The policy's name, for reports."""
        return str(getattr(self.policy, "name", type(self.policy).__name__))

    @property
    def tokens(self) -> int:
        """Most that is ever in flight: M of the theorem."""
        return sum(server.share.tokens for server in self._servers)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Requests at servers."""
        return len(self._flights)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that they hold."""
        return sum(server.tokens for server in self._servers)

    @property
    def up(self) -> tuple[bool, ...]:
        """Which servers take requests."""
        return tuple(server.up for server in self._servers)

    @property
    def state(self) -> Any:
        """The policy's state."""
        return self._state

    @property
    def queue(self) -> Iterator[Request]:
        """The requests that wait, in order of arrival."""
        return iter(self._waiting.values())

    @property
    def flights(self) -> Iterator[tuple[Request, int]]:
        """The requests in flight, each with what of its prompt was charged so far."""
        return ((flight.request, flight.charged) for flight in self._flights.values())

    def waiting_of(self, client: int) -> int:
        """Requests of a client that wait."""
        return self._waiting_of.get(client, 0)

    def refuses(self, prompt_tokens: int, max_output_tokens: int) -> str | None:
        """Why no server could ever take such a request, or None."""
        need, most = held_tokens(prompt_tokens, max_output_tokens), max(server.share.tokens for server in self._servers)
        if need > most:
            return f"{prompt_tokens} prompt and {max_output_tokens} output tokens are over the window of {most}"
        return None

    # --- what happens -----------------------------------------------------------------------------------------------

    def configure(self, client: Client, now_ns: int) -> None:
        """A client's weight, and its groups."""
        self._tell(ClientConfigured(now_ns, WINDOW, client.id, client.weight, client.place))

    def arrive(self, request_id: int, client: int, prompt_tokens: int, max_output_tokens: int, now_ns: int) -> None:
        """A request of so many tokens by estimate waits.  Raises `ValueError` for one that no server could take."""
        if (refusal := self.refuses(prompt_tokens, max_output_tokens)) is not None:
            raise ValueError(f"request {request_id}: {refusal}")
        if request_id in self._waiting or request_id in self._flights:
            raise ValueError(f"request {request_id} is there already")
        request = Request(request_id, client, now_ns, Prompt(prompt_tokens), max_output_tokens)
        self._waiting[request_id] = request
        self._waiting_of[client] = self.waiting_of(client) + 1
        # What is not charged yet is told as tokens that need no computing; memory holds them all the same.
        self._tell(Arrived(now_ns, WINDOW, request, 0, prompt_tokens - charged_at_once(prompt_tokens)))

    def set_up(self, server: int, up: bool) -> None:
        """A server takes requests, or takes no more; what it has stays in its share until it ends."""
        self._servers[server].up = up

    def admit(self, now_ns: int) -> list[Placement]:
        """All that may be forwarded now, in this order."""
        placements: list[Placement] = []
        while self._waiting:
            hole = max(server.hole for server in self._servers)
            if hole < 2:
                break
            admission = self._next(hole, now_ns)
            if admission is None:
                break
            placements.append(self._place(admission, now_ns))
        return placements

    def produced(self, request_id: int, tokens: int, now_ns: int) -> None:
        """Output tokens of a request passed by."""
        flight = self._flights[request_id]
        if not flight.produced:
            # For logs: whoever asks when the first token came.
            request = flight.request
            self._announce(Prefilled(now_ns, WINDOW, request_id, request.client, request.prompt_tokens, 0))
        flight.produced += tokens
        over = flight.produced - flight.request.max_output_tokens
        self.overrun_tokens += max(min(over, tokens), 0)
        self._tell(Decoded(now_ns, WINDOW, 1, (flight.request.client,), (tokens,)))

    def finish(self, request_id: int, computed_tokens: int | None, output_tokens: int | None, now_ns: int) -> None:
        """The answer is whole.  `computed_tokens` of its prompt and `output_tokens` were computed, as the server says;
        None: it does not say, and the estimate and what was counted stand."""
        flight = self._flights[request_id]
        if output_tokens is not None and output_tokens > flight.produced:
            self.produced(request_id, output_tokens - flight.produced, now_ns)
        self._settle(flight, computed_tokens, now_ns)
        self._release(flight, now_ns)
        self._tell(Finished(now_ns, WINDOW, request_id, flight.request.client, flight.produced))

    def cancel(self, request_id: int, now_ns: int) -> bool:
        """The caller gave up, or the answer broke off: a prompt that was sent stays charged.  Returns whether the
        request was still there."""
        flight = self._flights.get(request_id)
        if flight is None:
            return self._leave_queue(request_id, now_ns)
        self._settle(flight, None, now_ns)
        self._release(flight, now_ns)
        client, produced = flight.request.client, flight.produced
        self._tell(Cancelled(now_ns, WINDOW, request_id, client, True, 0, produced))
        return True

    def give_back(self, request_id: int, now_ns: int) -> None:
        """The server computed nothing: what was charged for the prompt is given back (within one quantum of credit)."""
        flight = self._flights[request_id]
        self._release(flight, now_ns)
        client = flight.request.client
        self._tell(Cancelled(now_ns, WINDOW, request_id, client, True, flight.charged, flight.produced))

    def withdraw(self, request_id: int, now_ns: int) -> None:
        """Nothing was sent for the request, nor will be: it waits no more, or gives back what it was charged."""
        if request_id in self._flights:
            self.give_back(request_id, now_ns)
        else:
            self.cancel(request_id, now_ns)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _next(self, hole: int, now_ns: int) -> Admission | None:
        """The one request that the policy lets in; None: nobody who fits."""
        if self.set_aside is None:
            try:
                plan, state = self.policy.decide(self._state, self._view(hole, now_ns))
                if not plan.admit and not plan.preempt:
                    self._state = state
                    return None
                (admission,) = plan.admit
                request = self._waiting[admission.request_id]
                if not plan.preempt and _need(request) <= hole:
                    self._state = state
                    return admission
                raise ValueError(f"{plan!r} cannot be followed in a window with room for {hole} tokens")
            except Exception as error:
                self._fail(error)
        oldest = next(iter(self._waiting.values()))
        if _need(oldest) > hole:
            return None
        charged = charged_at_once(oldest.prompt_tokens)
        cached = oldest.prompt_tokens - charged
        return Admission(oldest.id, oldest.client, charged, cached, oldest.max_output_tokens)

    def _place(self, admission: Admission, now_ns: int) -> Placement:
        request = self._waiting[admission.request_id]
        self._unqueue(request)
        server = self._route(request, now_ns)
        held, need = self._servers[server], _need(request)
        held.tokens += need
        held.requests += 1
        self._flights[request.id] = _Flight(request, server, need, admission.extend_tokens)
        event = Admitted(
            now_ns,
            WINDOW,
            request.id,
            request.client,
            admission.extend_tokens,
            request.prompt_tokens - admission.extend_tokens,
            admission.reserved_output_tokens,
        )
        self._announce(event)
        self._tell_router(Arrived(now_ns, server, request))
        self._tell_router(msgspec.structs.replace(event, worker=server))
        return Placement(request.id, server)

    def _route(self, request: Request, now_ns: int) -> int:
        """The router's choice among the servers that have room; the emptiest of them if it fails."""
        able = {i: server for i, server in enumerate(self._servers) if server.hole >= _need(request)}
        loads = tuple(
            WorkerLoad(i, 0, server.requests, 0, server.share.tokens - server.tokens, server.share.tokens)
            for i, server in able.items()
        )
        try:
            dispatch, self._router_state = self.router.route(self._router_state, request, ClusterView(now_ns, loads))
            if dispatch.worker in able:
                return dispatch.worker
            _log.error("router %s: server %d has no room for request %d", self.router, dispatch.worker, request.id)
        except Exception:
            _log.exception("the router failed; the emptiest server takes request %d", request.id)
        return min(able, key=lambda i: able[i].requests)

    def _settle(self, flight: _Flight, computed_tokens: int | None, now_ns: int) -> None:
        estimate = flight.request.prompt_tokens
        tokens = estimate if computed_tokens is None else max(computed_tokens, 1)
        self.overrun_tokens += max(tokens - estimate, 0)
        if tokens != flight.charged:
            self._tell(Settled(now_ns, WINDOW, flight.request.id, flight.request.client, tokens))

    def _release(self, flight: _Flight, now_ns: int) -> None:
        server = self._servers[flight.server]
        server.tokens -= flight.tokens
        server.requests -= 1
        del self._flights[flight.request.id]
        client, request_id = flight.request.client, flight.request.id
        self._tell_router(Finished(now_ns, flight.server, request_id, client, flight.produced))

    def _leave_queue(self, request_id: int, now_ns: int) -> bool:
        request = self._waiting.get(request_id)
        if request is None:
            return False
        self._unqueue(request)
        self._tell(Cancelled(now_ns, WINDOW, request_id, request.client, False, 0, 0))
        return True

    def _unqueue(self, request: Request) -> None:
        del self._waiting[request.id]
        self._waiting_of[request.client] -= 1
        if not self._waiting_of[request.client]:
            del self._waiting_of[request.client]

    def _view(self, hole: int, now_ns: int) -> WorkerView:
        """The window as an empty worker with the largest hole of any server: one request may enter."""
        return WorkerView(now_ns, WINDOW, self.tokens, hole, 0, 0, 0, (), (), (), Map(), SortedTuple(), 0)

    def _tell(self, event: Event) -> None:
        if self.set_aside is None:
            try:
                self._state = self.policy.observe(self._state, event)
            except Exception as error:
                self._fail(error)
        self._announce(event)

    def _announce(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _tell_router(self, event: Event) -> None:
        try:
            self._router_state = self.router.observe(self._router_state, event)
        except Exception:
            _log.exception("the router could not be told of %r", event)

    def _fail(self, error: Exception) -> None:
        self.set_aside = f"{type(error).__name__}: {error}"
        _log.error("the policy is set aside, the oldest goes first from now on: %s", self.set_aside)


def _need(request: Request) -> int:
    return held_tokens(request.prompt_tokens, request.max_output_tokens)
