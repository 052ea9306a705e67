"""The queue before several servers: which request is forwarded next, and where, by a policy's gate over their tokens.

No I/O and no clock.  The window is what may be in flight: each server takes so many tokens and so many requests at a
time.  A request is forwarded when the policy lets it in and one server has room for its prompt and the outputs that are
reserved for it, or an eighth of the largest window free: a larger request goes beyond the window then, and does not
empty it.  The first request that is chosen and does not fit waits for room.  No other passes it, or if it is larger
than half the window, those of other clients as far as their credit (theorem D-pass); its client is charged for the room
that is kept for it, as for what its requests hold.  Then a router chooses among the servers that have room.

A request *declares* its outputs at most; *reserved* is what its client's last requests predict.  What a client declares
beyond that is limited, by its weight, and the more the more of its last requests came to more than they reserved
(`Reservations.trusted`).  A request that would exceed the limit reserves more; where there is no room for that, the
client's requests leave the queue until its own requests in flight have ended or grown.

Charges follow the deficit gate's theorem to the letter.  The length of a prompt is an estimate until a server says it,
so half of the estimate is charged when a request is forwarded, all of it has room, and the end settles the truth, or
the most that it may be where no server says it (`PromptBounds`).  Outputs and the time for which memory was held are
charged in ticks (`charge`).  With an input token not dearer than an output token, what a client may be charged after it
was let in is then at most U (`policies.guarantees.window`, the theorems U-window, U-hold and U-cost), of all servers'
tokens together, `tokens`, the `overrun` so far and the `terms`: D-4.1 with that U.  Where servers come and go, `tokens`
is the largest sum so far.

`accounts` is the policy's state as it would be if everything that waits or is in flight left now, every prompt in
flight charged to its estimate.  A new window with that state goes on from there, and `adopt` adds what is in flight.

Where a policy raises, is late, or decides what cannot be followed, the oldest request goes first; a policy that does so
again and again is set aside.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any

import msgspec

from fairsched.engines import serving
from fairsched.engines.gateway.window.charges import Charges
from fairsched.engines.gateway.window.estimates import Estimates, PromptBounds
from fairsched.engines.gateway.window.flight import (
    WINDOW,
    CallInFlight,
    Placement,
    admitted,
    arrived,
    cancelled,
    request_of,
)
from fairsched.engines.gateway.window.pool import ServerPool, Share
from fairsched.engines.gateway.window.usage_account import UsageAccount
from fairsched.engines.gateway.window.waiting import WaitingRequests
from fairsched.model import events as ev
from fairsched.model.decision import Admission
from fairsched.model.request import Client, Request
from fairsched.policies import guarantees
from fairsched.policies.base import AnyLocalPolicy, AnyRouter

_log = logging.getLogger("fairsched.gateway")

_TERMS = guarantees.WindowTerms()


class Window:
    """Queue, gate and window over servers.

    `policy` lets one request in at a decision (`max_running` of its batching rule is 1) and reserves outputs; `shares`
    are those of servers that are there from the start; `listeners` hear every event; `state` is the policy's to go on
    from, in which nothing waits or is in flight; `terms` say what is reserved and what holding costs, `budget_ms` how
    long a decision may take.  A call costs what the policy and the router do, and O(servers + clients in flight).
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        router: AnyRouter,
        shares: Sequence[Share] = (),
        listeners: Sequence[Callable[[ev.Event], object]] = (),
        state: object = None,
        terms: guarantees.WindowTerms = _TERMS,
        budget_ms: int = serving.BUDGET_MS,
    ) -> None:
        self.guard = serving.AdmissionGuard(policy, _log, state=state, budget_ms=budget_ms)
        self.servers = ServerPool(serving.RouterGuard(router, _log, budget_ms=budget_ms))
        self.overrun_tokens = 0
        self.tokens = sum(share.tokens for share in shares)
        """The most that the servers of one time could hold so far: M of the theorem."""
        self.overrun = 0
        """The largest over-run of any client so far, rounded up: V of the theorem."""
        self.terms = terms
        self._largest = max((share.tokens for share in shares), default=0)
        self.usage = UsageAccount(policy, self.tokens, terms, resumed=state is not None)
        self._listeners = (*listeners, self.usage.record)
        self._waiting = WaitingRequests()
        self._flights: dict[int, CallInFlight] = {}
        self._reservations = guarantees.Reservations()
        self._payers: dict[int, tuple[Hashable, ...]] = {}
        self._overrun: Counter[Hashable] = Counter()
        self._estimates = Estimates()
        self._bounds = PromptBounds()
        self._prompt_max: dict[int, int] = {}
        self._kept: tuple[int, int, int] | None = None
        self._keeps: dict[Hashable, int] = {}
        self._charges = Charges(WINDOW, terms.hold_ns, terms.call_ns)
        self._quiet_charges = Charges(WINDOW, terms.hold_ns, terms.call_ns)
        self._tell(ev.WorkerJoined(0, WINDOW, self.tokens))
        for share in shares:
            self.servers.join(share, 0)

    # --- what there is ----------------------------------------------------------------------------------------------

    def unreserved_of(self, client: int) -> int:
        """Return what the requests in flight of a client, or of all in its outermost group, declared and do not
        reserve."""
        return self._reservations.unreserved[self._reservations.payer(client)]

    def _unreserved_max(self, client: int) -> int:
        expected = self.terms.unreserved_tokens
        return self._reservations.trusted(client, self._largest if expected is None else expected)

    @property
    def largest(self) -> int:
        """The window of the largest server that is there; 0 while there is none."""
        return max((server.share.tokens for server in self.servers.present), default=0)

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
    def queue(self) -> Iterator[Request]:
        """The requests that wait, in order of arrival."""
        return iter(self._waiting)

    @property
    def flights(self) -> Iterator[tuple[Request, int]]:
        """The requests in flight, each with what of its prompt was charged so far."""
        return ((flight.request, flight.charged) for flight in self._flights.values())

    def holds(self, request_id: int) -> bool:
        return request_id in self._waiting or request_id in self._flights

    def waiting_of(self, client: int) -> int:
        return self._waiting.count_of(client)

    def refuses(self, prompt_tokens: int, max_output_tokens: int) -> str | None:
        """Return why no server that is there could ever take such a request; None also while no server is known."""
        most = self.largest
        if not most or guarantees.held_tokens(prompt_tokens, max_output_tokens) <= most:
            return None
        return f"{prompt_tokens} prompt and {max_output_tokens} output tokens are over the window of {most}"

    def ample_outputs(self, client: int, prompt_tokens: int, least: int) -> int:
        """Return the limit of outputs for a call whose caller names none: far more than its client's calls usually
        have, and at least so many, if a server can take that."""
        most = max(self.largest - prompt_tokens, 1) if self.largest else least
        return self._reservations.ample(client, least, most)

    def outgrown(self) -> list[tuple[int, str]]:
        """Return requests that wait and that no server could take any more, and why: no other passes the first of
        them."""
        found = ((each.id, self.refuses(each.prompt_tokens, each.max_output_tokens)) for each in self.queue)
        return [(request_id, why) for request_id, why in found if why is not None]

    def status(self, clients: Iterable[Client]) -> serving.Document:
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
            "overrun_at_once": self.overrun,
            "clients": {
                client.name: {
                    **self.usage.of(client),
                    "held_token_seconds": self.held_token_ns(client.id) // guarantees.SECOND_NS,
                    "waiting": self.waiting_of(client.id),
                }
                for client in clients
            },
            **self.usage.promise(),
        }

    def held_token_ns(self, client: int) -> int:
        """Return tokens times nanoseconds that a client's requests held up to the last tick."""
        return self._charges.holds.held_token_ns(client) + self._quiet_charges.holds.held_token_ns(client)

    # --- servers ----------------------------------------------------------------------------------------------------

    def join(self, share: Share, now_ns: int) -> int:
        """Add a server; returns its place, a number that another may have when this one is gone."""
        place = self.servers.join(share, now_ns)
        self._estimates.forget(place)
        self.resize(place, share, now_ns)
        return place

    def resize(self, place: int, share: Share, now_ns: int) -> None:
        """Let a server take so much from now on; what is in flight there stays."""
        self.servers[place].share = share
        if self.servers.tokens <= self.tokens and share.tokens <= self._largest:
            return
        self.tokens, self._largest = max(self.servers.tokens, self.tokens), max(share.tokens, self._largest)
        self._announce(ev.WorkerJoined(now_ns, WINDOW, self.tokens))
        self.usage.grow(self.tokens, self.terms, self.overrun, now_ns)

    def set_up(self, server: int, up: bool) -> None:
        """Let a server take requests, or no more; what it has stays in its share until it ends."""
        self.servers[server].up = up

    def part(self, place: int, now_ns: int) -> None:
        """Send a server no more; it is gone when nothing is in flight there."""
        self._waiting.part(place)
        self.servers.part(place, now_ns)

    # --- requests ---------------------------------------------------------------------------------------------------

    def configure(self, client: Client, now_ns: int) -> None:
        self._reservations.place(client)
        names = tuple(name for name, _ in client.place)
        self._payers[client.id] = (client.id, *(names[: i + 1] for i in range(len(names))))
        self._tell(ev.ClientConfigured(now_ns, WINDOW, client.id, client.weight, client.place))

    def arrive(
        self,
        request_id: int,
        client: int,
        prompt_tokens: int,
        max_output_tokens: int,
        now_ns: int,
        prompt_tokens_max: int = 0,
    ) -> None:
        """Queue a request of so many tokens, its prompt by estimate, and at most `prompt_tokens_max` (0: what it is
        estimated).  Raises `ValueError` for one that no server could take."""
        if (refusal := self.refuses(prompt_tokens, max_output_tokens)) is not None:
            raise ValueError(f"request {request_id}: {refusal}")
        if self.holds(request_id):
            raise ValueError(f"request {request_id} is there already")
        request = request_of(request_id, client, prompt_tokens, max_output_tokens, now_ns)
        if prompt_tokens_max > prompt_tokens:
            self._prompt_max[request_id] = prompt_tokens_max
        if self._waiting.add(request):
            self._tell(arrived(request, now_ns))

    def only(self, request_id: int, places: Iterable[int]) -> None:
        """Let a request that waits go to these servers only, to the one of them with the fewest requests.

        It is let in when any server has room for it, and may then exceed its own server's share, but never what all
        servers together hold: M stays what it is.
        """
        self._waiting.only(request_id, places)

    def stranded(self) -> list[int]:
        """Return requests that wait for servers of which none is there any more."""
        return self._waiting.stranded()

    def admit(self, now_ns: int) -> list[Placement]:
        """Forward all requests that may go now, in this order."""
        placements: list[Placement] = []
        self._release_kept(now_ns)
        if self._waiting:
            self.charge(now_ns)
        past: list[int] = []
        while self._waiting.choosable:
            free = self.servers.free_tokens
            if free < 2:
                break
            admission, decision = self._choice(now_ns, past)
            if admission is None:
                break
            request = self._waiting[admission.request_id]
            client, most = request.client, request.max_output_tokens
            predicted = self._reservations.predicted(client, most)
            reserved = self._reservations.reserves(client, most, predicted, self._unreserved_max(client))
            held = guarantees.held_tokens(request.prompt_tokens, reserved)
            least = guarantees.room_needed(held, self.largest)
            trusted = reserved == predicted or not self.unreserved_of(client)
            needed = least if trusted else held
            if needed > free:
                if not trusted:
                    self._set_aside(client, now_ns)
                    continue
                past.append(client)
                if 2 * held > self.largest:
                    continue
                break
            if decision is not None:
                self.guard.commit(decision)
            else:
                self.guard.observe(admitted(request, admission.extend_tokens, reserved, now_ns))
            placements.append(self._place(request, admission.extend_tokens, reserved, needed, now_ns))
        if past:
            self._kept = past[0], self.servers.free_tokens, now_ns
        return placements

    def adopt(self, request: Request, place: int, now_ns: int, *, charged: bool) -> None:
        """Count a request that is at a server already: it takes room there, even if there is none.

        `charged`: its prompt is in the accounts.  Otherwise it is charged now, as an admission past the gate.
        """
        at_once, reserved = guarantees.charged_at_once(request.prompt_tokens), request.max_output_tokens
        flight = CallInFlight(request, place, reserved, at_once, now_ns, quiet=charged)
        if not charged:
            self._enters(flight)
            self._tell(arrived(request, now_ns))
            self._tell(admitted(request, at_once, reserved, now_ns))
        self._begin(flight)

    def produced(self, request_id: int, tokens: int, now_ns: int) -> None:
        flight = self._flights[request_id]
        request = flight.request
        if not (flight.produced or flight.quiet):
            # For logs, which say when the first token came.
            self._announce(ev.Prefilled(now_ns, WINDOW, request_id, request.client, request.prompt_tokens, 0))
        was_astray = flight.astray
        flight.produced += tokens
        self.overrun_tokens += max(min(flight.produced - request.max_output_tokens, tokens), 0)
        self._overran(request.client, min(flight.produced - flight.reserved, tokens), now_ns)
        self._reservations.astray[self._reservations.payer(request.client)] += flight.astray - was_astray
        self._count(flight, max(flight.counted, flight.produced))
        more = guarantees.grown_outputs(flight.reserved, flight.produced, request.max_output_tokens) - flight.reserved
        if more:
            flight.reserved += more
            self.servers[flight.server].tokens += more
            self._charges_of(flight).holds.grow(request_id, more, now_ns)
            self._reservations.unreserved[self._reservations.payer(request.client)] -= more
            self._bring_back(request.client, now_ns)

    def charge(self, now_ns: int) -> None:
        """Charge the outputs that came and the memory that was held since the last tick.

        A request whose outputs are not seen is charged what is usual in its time, up to what it reserved; at its end
        what was too much is set against its client's next outputs.
        """
        for flight, usual in self._estimates.due(now_ns, self._flights):
            self._count(flight, max(flight.counted, usual))
        for event in self._charges.take(now_ns):
            self._tell(event)
        for event in self._quiet_charges.take(now_ns):
            self.guard.observe(event)

    def finish(
        self,
        request_id: int,
        computed_tokens: int | None,
        output_tokens: int | None,
        now_ns: int,
        cached_tokens: int = 0,
    ) -> None:
        """End a request whose answer is whole.

        `computed_tokens` of its prompt and `output_tokens` were computed, as the server says, and `cached_tokens` of
        the prompt were not.  None: it does not say; then a prompt counts for the most that it may be, and of outputs
        what was counted or is usual in that time.
        """
        flight = self._flights[request_id]
        if output_tokens is None:
            output_tokens = self._estimates.outputs(flight, now_ns, flight.produced)
        elif not flight.quiet:
            self._estimates.learn(flight, output_tokens, now_ns)
        self._settle(flight, computed_tokens, output_tokens, now_ns, cached_tokens)
        self._release(flight, ev.Finished(now_ns, WINDOW, request_id, flight.request.client, flight.produced))

    def cancel(self, request_id: int, now_ns: int, computed_tokens: int | None = None, cached_tokens: int = 0) -> bool:
        """End a request of which is not known what was computed: its caller gave up, or its answer broke off.

        Charged are of its prompt what the server has said so far, or the most that it may be, and of outputs what was
        counted or is usual in that time; all that it declared while nothing is known of any server.  Returns whether
        the request was still there.
        """
        flight = self._flights.get(request_id)
        if flight is not None:
            declared = flight.request.max_output_tokens
            outputs = self._estimates.outputs(flight, now_ns, declared)
            self._settle(flight, computed_tokens, outputs, now_ns, cached_tokens)
            self._release(flight, cancelled(flight, 0, now_ns))
            return True
        if request_id not in self._waiting:
            return False
        request = self._waiting[request_id]
        if self._waiting.is_aside(request):
            self._tell(arrived(request, now_ns))
        self._waiting.remove(request)
        self._prompt_max.pop(request_id, None)
        self._release_kept(now_ns)
        self._tell(ev.Cancelled(now_ns, WINDOW, request_id, request.client, False, 0, 0))
        self._bring_back(request.client, now_ns)
        return True

    def give_back(self, request_id: int, now_ns: int, *, sent: bool = False) -> None:
        """End a request of which the server computed nothing: the charge of its prompt is given back (within one
        quantum of credit), and the memory that it held is charged all the same.

        One that was `sent`, and that the server refused, is charged the outputs that are usual in its time, one at
        least, and keeps the charge of its prompt if these are several: it held a place, and a client whose requests are
        free would always have credit.
        """
        flight = self._flights[request_id]
        outputs = self._estimates.outputs(flight, now_ns, 1) if sent else 0
        if outputs > flight.produced:
            self.produced(request_id, outputs - flight.produced, now_ns)
        uncomputed = flight.charged if outputs <= 1 else 0
        self.servers[flight.server].charged -= flight.request.prompt_tokens - flight.charged + uncomputed
        self._release(flight, cancelled(flight, uncomputed, now_ns), learns=False)

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
        self.charge(now_ns)
        events: list[ev.Event] = []
        for flight in self._flights.values():
            request = flight.request
            if not flight.quiet and request.prompt_tokens != flight.charged:
                events.append(ev.Settled(now_ns, WINDOW, request.id, request.client, request.prompt_tokens))
        try:
            return self.guard.tried(lambda trial: trial.after(*events, ev.WorkerLeft(now_ns, WINDOW)))
        except serving.NoDecisionError:
            return None

    # --- the queue --------------------------------------------------------------------------------------------------

    @property
    def _stalled(self) -> bool:
        """Whether nothing would change what the policy decides now."""
        return not self._flights

    def _choice(self, now_ns: int, past: Sequence[int]) -> tuple[Admission | None, serving.AdmissionChoice | None]:
        """Return the request that is next, whether there is room for it or not, with the policy's decision if any.
        `past`: clients whose next requests wait for room already."""
        try:
            view = serving.empty_worker(now_ns, self.tokens, self.tokens)
            decision = self.guard.decide(view, self._waiting.may_be_let_in, past)
            if past and decision is None:
                return None, None
            if decision is None and self._stalled:
                self.guard.failed("stalled", f"{len(self._waiting)} requests wait, none runs, and none is let in")
                raise serving.NoDecisionError
        except serving.NoDecisionError:
            if past:
                return None, None
            oldest = self._waiting.oldest()
            charged = guarantees.charged_at_once(oldest.prompt_tokens)
            return Admission(oldest.id, oldest.client, charged, 0, oldest.max_output_tokens), None
        return (None, None) if decision is None else (decision.admission, decision)

    def _set_aside(self, client: int, now_ns: int) -> None:
        """Take a client's requests out of the policy's queue: they wait for the client's own ones in flight."""
        for request in self._waiting.set_aside(client):
            self._tell(ev.Migrated(now_ns, WINDOW, request.id, client, False, 0, 0))

    def _bring_back(self, client: int, now_ns: int) -> None:
        """Queue as many requests set aside, of all that count as this client, as may enter without reserving more."""
        unreserved, payer = self.unreserved_of(client), self._reservations.payer
        for request in self._waiting.aside(lambda other: payer(other) == payer(client)):
            most = request.max_output_tokens
            more = most - self._reservations.predicted(client, most)
            if unreserved and unreserved + more > self._unreserved_max(client):
                break
            unreserved += more
            self._waiting.back(request)
            self._tell(arrived(request, now_ns))

    # --- what is in flight ------------------------------------------------------------------------------------------

    def _count(self, flight: CallInFlight, outputs: int) -> None:
        if outputs != flight.counted:
            self._charges_of(flight).produced(flight.request.client, outputs - flight.counted)
            self.servers[flight.server].charged += outputs - flight.counted
            flight.counted = outputs

    def _charges_of(self, flight: CallInFlight) -> Charges:
        return self._quiet_charges if flight.quiet else self._charges

    def _release_kept(self, now_ns: int) -> None:
        """Charge a client for the room that was kept until now for its request that is next: from its last admission
        on, and from its groups', at most what was free then for the longest time of a call."""
        if self._kept is not None:
            (client, tokens, since_ns), self._kept = self._kept, None
            payers, most = self._payers_of(client), self.tokens * self.terms.call_ns
            held = min(tokens * max(now_ns - since_ns, 0), *(self._keeps.get(each, most) for each in payers), most)
            self._keeps |= {each: self._keeps.get(each, most) - held for each in payers}
            self._charges.holds.add(client, held, now_ns)

    def _payers_of(self, client: int) -> tuple[Hashable, ...]:
        return self._payers.get(client, (client,))

    def _overran(self, client: int, tokens: int, now_ns: int) -> None:
        """Count tokens of a client beyond what its requests hold, since its last admission, and its groups'."""
        if tokens <= 0:
            return
        for each in self._payers_of(client):
            self._overrun[each] += tokens
            if self._overrun[each] > self.overrun:
                # By eighths, so that the promise is made anew a few times only.
                self.overrun = self._overrun[each]
                step = 1 << max(self.overrun.bit_length() - 4, 0)
                self.overrun = -(-self.overrun // step) * step
                self.usage.grow(self.tokens, self.terms, self.overrun, now_ns)

    def _place(self, request: Request, charged: int, reserved: int, needed: int, now_ns: int) -> Placement:
        places: Set[int] = self._waiting.remove(request) or frozenset()
        server = self.servers.route(request, needed, now_ns, places)
        flight = CallInFlight(request, server, reserved, charged, now_ns)
        self._enters(flight)
        self._announce(admitted(request, charged, reserved, now_ns))
        self._begin(flight)
        self._bring_back(request.client, now_ns)
        return Placement(request.id, server)

    def _enters(self, flight: CallInFlight) -> None:
        """Begin to count anew what its client's requests come to: all that they hold beyond the window is over it."""
        client, free = flight.request.client, self.tokens - self.in_flight_tokens - flight.tokens
        for each in self._payers_of(client):
            self._overrun.pop(each, None)
            self._keeps[each] = max(free, 0) * self.terms.call_ns
        self._overran(client, -free, flight.begun_ns)

    def _begin(self, flight: CallInFlight) -> None:
        request, now_ns = flight.request, flight.begun_ns
        self._flights[request.id] = flight
        self._estimates.begin(flight)
        self._charges_of(flight).holds.begin(request.id, request.client, flight.tokens, now_ns)
        self._reservations.unreserved[self._reservations.payer(request.client)] += flight.unreserved
        there = admitted(request, flight.charged, flight.reserved, now_ns)
        self.servers[flight.server].charged += request.prompt_tokens
        self.servers.take(flight.server, flight.tokens, request, msgspec.structs.replace(there, worker=flight.server))

    def _settle(
        self, flight: CallInFlight, computed_tokens: int | None, output_tokens: int, now_ns: int, cached_tokens: int
    ) -> None:
        """Charge what a request came to."""
        if output_tokens > flight.produced:
            self.produced(flight.request.id, output_tokens - flight.produced, now_ns)
        if flight.quiet:
            return
        estimate, client = flight.request.prompt_tokens, flight.request.client
        most = self._prompt_max.get(flight.request.id, estimate)
        tokens = estimate if computed_tokens is None else max(computed_tokens, 1)
        if most > estimate and computed_tokens is None:
            tokens = self._bounds.of(client, most)
        elif most > estimate:
            self._bounds.learn(client, tokens + cached_tokens, most, self._largest)
        self.servers[flight.server].charged += tokens + cached_tokens - estimate
        self.overrun_tokens += max(tokens - estimate, 0)
        self._overran(client, tokens - estimate, now_ns)
        if tokens != flight.charged:
            self._tell(ev.Settled(now_ns, WINDOW, flight.request.id, flight.request.client, tokens))

    def _release(self, flight: CallInFlight, ended: ev.Finished | ev.Cancelled, learns: bool = True) -> None:
        request, now_ns = flight.request, ended.time_ns
        del self._flights[request.id]
        self._prompt_max.pop(request.id, None)
        self._count(flight, flight.produced)
        self._charges_of(flight).holds.end(request.id, now_ns)
        self.charge(now_ns)
        payer = self._reservations.payer(request.client)
        self._reservations.unreserved[payer] -= flight.unreserved
        self._reservations.astray[payer] -= flight.astray
        if learns:
            self._reservations.learn(request.client, flight.produced, flight.astray)
        finished = ev.Finished(now_ns, flight.server, request.id, request.client, flight.produced)
        self.servers.release(flight.server, flight.tokens, finished)
        if not flight.quiet:
            self._tell(ended)
        self._bring_back(request.client, now_ns)

    def _tell(self, event: ev.Event) -> None:
        self.guard.observe(event)
        self._announce(event)

    def _announce(self, event: ev.Event) -> None:
        for listener in self._listeners:
            listener(event)
