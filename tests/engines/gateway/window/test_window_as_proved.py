"""The systems of U-windows and U-window beside the window that ships: each thing that it does is an event of theirs."""

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Held, Settled
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client
from fairsched.policies.guarantees.window import WindowTerms, charge_max_window, hold_units_max, room_needed
from fairsched.policies.registry import ROUTERS
from fairsched.verify.logic import Claim, World, claim_named
from fairsched.verify.logic.system import INTERPRETATIONS, happened, holds, with_derived
from fairsched.verify.proofs.memory import window as proofs

CLIENTS, CALLS, GROUP = 3, 40, 3
RUN = INTERPRETATIONS[0]


def _claim(name: str) -> Claim:
    claim = claim_named(name, proofs.claims())
    assert isinstance(claim, Claim)
    return claim


class Modelled:
    """A world of one of the two claims."""

    def __init__(self, name: str, **values: Any) -> None:
        self.claim = _claim(name)
        system = self.claim.system
        self.size = max(len(each) for each in values.values() if isinstance(each, tuple))
        world = RUN.world({**system.parameters, **system.fields}, values)
        self.now: World = with_derived(RUN.o, system, world)
        self._events = {event.name: event for event in system.events}
        assert all(holds(RUN.o, clause, self.now, self.size) for clause in self.claim.start)

    def happens(self, name: str, **facts: Any) -> None:
        """Let an event happen; the model must permit it, and stays within what was proved."""
        found = happened(RUN, self.claim.system, self._events[name], self.now, facts, frozenset())
        assert found is not None, (name, facts, self.now)
        self.now = found[1]
        for clause in (*self.claim.invariants, *self.claim.conclusions):
            assert holds(RUN.o, clause, self.now, self.size), (clause, name, facts, self.now)


class Both:
    """A window, and what it does told to a world of servers and to one of the calls of each client, and of a group."""

    def __init__(self, random: Random) -> None:
        self.shares = [Share(random.randint(4, 60), random.randint(1, 4)) for _ in range(random.randint(1, 3))]
        terms = WindowTerms(random.choice([0, 20, None]), hold_ns=random.choice([7, 10**9]), call_ns=50)
        grouped = random.random() < 0.4
        gate = "fcfs+hierarchical" if grouped else random.choice(["fcfs+deficit", "vtc"])
        policy = window_policy(gate, random.choice([5, 60]))
        self.window = Window(policy, ROUTERS["join-shortest-queue"], self.shares, (self._hears,), terms=terms)
        self.payers = [(client, GROUP) if grouped and client else (client,) for client in range(CLIENTS)]
        for client, payers in enumerate(self.payers):
            self.window.configure(Client(client, str(client), 1, (("group", 1),) if payers[1:] else ()), 0)
        left = tuple(share.tokens for share in self.shares)
        self.servers = Modelled("U-windows", left=left, up=(1,) * len(left), then=0)
        none = (0,) * CALLS
        self.clients = [
            Modelled("U-window", W=self.window.tokens, V=0, held=none, may=none, over=0, P=0, B=0)
            for _ in range(CLIENTS + 1)
        ]
        self.calls: dict[int, tuple[int, int, int]] = {}
        self.flights: dict[int, list[int]] = {}
        """Of a call: what it reserved, what came, what of its prompt was charged, its server, and what it holds."""
        self.charged, self.refunded, self.holding = ([0] * (CLIENTS + 1) for _ in range(3))
        """Of a client, or of the group, since its last admission: what was charged, given back, and for holding."""
        self.prompts, self.outputs, self.requests = ([0] * CLIENTS for _ in range(3))
        self.came_to = [0] * len(self.shares)
        """By server, what calls there came to: their prompts, cached ones too, and outputs."""
        self.most_over = self.beyond = self.now = 0
        self.terms, self.tokens, self.gives_back = terms, self.window.tokens, False

    def happens(self, client: int, name: str, **facts: Any) -> None:
        """Let an event of a client's calls happen, in the window as it is now."""
        for model in (self.clients[payer] for payer in self.payers[client]):
            model.now.W, model.now.V = self.window.tokens, max(self.window.overrun, model.now.V)
            model.happens(name, **facts)
            self.most_over = max(self.most_over, model.now.over)

    def _charge(self, client: int, tokens: int, given_back: int = 0) -> None:
        for payer in self.payers[client]:
            self.charged[payer] += tokens - given_back
            self.refunded[payer] += given_back

    def _hears(self, event: Event) -> None:
        match event:
            case Admitted(request_id=number, client=client, extend_tokens=at_once):
                holds_now = self.calls[number][1] + event.reserved_output_tokens
                over = max(self.window.in_flight_tokens + holds_now - self.window.tokens, 0)
                self.happens(client, "forward", r=number, x=holds_now - at_once, c=at_once, y=over)
                for payer in self.payers[client]:
                    self.charged[payer] = self.refunded[payer] = self.holding[payer] = 0
                self._charge(client, at_once)
                self.prompts[client] += at_once
                self.requests[client] += 1
                self.flights[number] = [event.reserved_output_tokens, 0, at_once, -1, holds_now]
            case Settled(request_id=number, client=client, extend_tokens=tokens):
                prompt, before = self.calls[number][1], self.flights[number][2]
                most = min(max(tokens, before), prompt)
                self.happens(client, "the prompt is settled", r=number, x=most - before, less=prompt - most)
                if tokens > prompt:
                    more = tokens - prompt
                    self.happens(client, "the prompt is settled for more than its estimate", r=number, x=more)
                    self.beyond += more
                self._charge(client, max(tokens - before, 0), max(before - tokens, 0))
                self.prompts[client] += tokens - before
                self.flights[number][2] = tokens
            case Decoded(clients=clients, tokens=several):
                for client, tokens in zip(clients, several, strict=True):
                    self._charge(client, tokens)
                    self.outputs[client] += tokens
            case Held(clients=clients, tokens=several):
                for client, tokens in zip(clients, several, strict=True):
                    for payer in self.payers[client]:
                        self.holding[payer] += tokens
            case (
                Finished(output_tokens=outputs, request_id=number)
                | Cancelled(was_running=True, generated_tokens=outputs, request_id=number)
            ):
                came, at_once = self.flights[number][1:3]
                self.came(number, outputs - came)
                refund = event.uncomputed_tokens if isinstance(event, Cancelled) else 0
                if self.gives_back and not came:
                    assert refund == (at_once if outputs <= 1 else 0)
                self._charge(event.client, 0, refund)
                self.prompts[event.client] -= refund
                self.came_to[self.flights[number][3]] += self.flights[number][2] - refund + outputs
                self.happens(event.client, "end", r=number)
                self.servers.happens("end", s=self.flights[number][3], x=self.flights.pop(number)[4])

    def came(self, number: int, tokens: int) -> None:
        """Tell of outputs that came."""
        (client, _, declared), flight = self.calls[number], self.flights[number]
        within = min(tokens, max(flight[0] - flight[1], 0))
        self.beyond += max(min(flight[1] + tokens - declared, tokens), 0)
        flight[1] += tokens
        grown = max(min(flight[1], declared) - flight[0], 0)
        flight[0] += grown
        flight[4] += grown
        self.happens(client, "output passes", r=number, x=within)
        if tokens > within:
            self.happens(client, "more output than is reserved passes", r=number, x=tokens - within, grown=grown)
        self.servers.happens("a reservation grows", s=flight[3], x=grown)

    def step(self, random: Random) -> None:
        """Let something happen to both."""
        window, running = self.window, [*self.flights]
        self.now += random.choice([*range(10), 200])
        what = random.choice("aaaaappppfcgrut")
        if what == "a" and len(self.calls) < CALLS:
            number, prompt, most = len(self.calls), random.randint(1, 25), random.randint(1, 25)
            if window.refuses(prompt, most) is None:
                self.calls[number] = random.randrange(CLIENTS), prompt, most
                window.arrive(number, *self.calls[number], self.now, prompt + random.choice([0, 9]))
        elif what == "r":
            place = random.randrange(len(self.shares))
            before, self.shares[place] = self.shares[place], Share(random.randint(4, 60), 4)
            window.resize(place, self.shares[place], self.now)
            self.tokens = max(self.tokens, sum(share.tokens for share in self.shares))
            less = before.tokens - self.shares[place].tokens
            self.servers.happens("a reservation grows" if less > 0 else "end", s=place, x=abs(less))
        elif what == "u":
            up = tuple(random.randint(0, 1) for _ in self.shares)
            for place, there in enumerate(up):
                window.set_up(place, bool(there))
            self.servers.happens("servers go up or down", m=up)
        elif running:
            number = random.choice(running)
            if what == "p":
                tokens = random.randint(1, 9)
                window.produced(number, tokens, self.now)
                self.came(number, tokens)
            elif what == "f":
                computed, outputs = random.choice([None, *range(30)]), random.choice([None, *range(30)])
                place, cached = self.flights[number][3], random.choice([0, 0, 3])
                self.came_to[place] += cached
                window.finish(number, computed, outputs, self.now, cached)
            elif what == "c":
                place, cached = self.flights[number][3], random.choice([0, 0, 3])
                self.came_to[place] += cached
                window.cancel(number, self.now, random.choice([None, *range(30)]), cached)
            elif what == "g":
                self.gives_back = True
                window.give_back(number, self.now, sent=random.random() < 0.5)
                self.gives_back = False
        self.admit()

    def admit(self) -> None:
        """Let in what may go."""
        window = self.window
        for placement in window.admit(self.now):
            flight = self.flights[placement.request_id]
            flight[3], needs = placement.server, room_needed(flight[4], window.largest)
            self.servers.happens("forward", s=flight[3], x=flight[4], n=needs)

    def agree(self) -> None:
        """What calls hold and leave free is the same, and so is what clients were charged since their last admission,
        but for what they were given back."""
        window, usage = self.window, self.window.usage
        window.charge(self.now)
        assert [server.share.tokens - server.tokens for server in window.servers] == list(self.servers.now.left)
        calls = Counter(flight[3] for flight in self.flights.values())
        most = max(
            left if up and calls[place] < self.shares[place].requests else 0
            for place, (left, up) in enumerate(zip(self.servers.now.left, self.servers.now.up, strict=True))
        )
        assert window.servers.free_tokens == min(most, self.servers.now.room)
        assert sum(model.now.held_sum for model in self.clients[:GROUP]) == window.in_flight_tokens
        assert usage.monitor is not None
        for payer, model in enumerate(self.clients):
            assert self.charged[payer] + self.refunded[payer] == model.now.P + model.now.B
            # H is rounded up once, and what each of a group is charged for holding is rounded down by itself.
            assert self.holding[payer] <= usage.monitor.promise.hold_tokens + (payer == GROUP)
        for client in range(CLIENTS):
            known = usage.prompt_tokens[client], usage.output_tokens[client], usage.requests[client]
            assert known == (self.prompts[client], self.outputs[client], self.requests[client])
            of = ((self.payers[self.calls[number][0]], number, flight[0]) for number, flight in self.flights.items())
            mine = [(number, reserved) for payers, number, reserved in of if payers[-1] == self.payers[client][-1]]
            assert window.unreserved_of(client) == sum(self.calls[number][2] - reserved for number, reserved in mine)
            assert window.waiting_of(client) == len([call for call in window.queue if call.client == client])
        there = [(flight[3], self.calls[number][1] + flight[1]) for number, flight in self.flights.items()]
        for place, server in enumerate(window.servers):
            assert server.charged == self.came_to[place] + sum(tokens for at, tokens in there if at == place)
            assert server.requests == len([at for at, _ in there if at == place])
        assert {request.id: charged for request, charged in window.flights} == {
            number: flight[2] for number, flight in self.flights.items()
        }
        assert (window.tokens, window.overrun_tokens, window.in_flight) == (self.tokens, self.beyond, len(self.flights))
        # V is the largest over-run, rounded up by an eighth at most, and U is that of W and V.
        assert self.most_over <= window.overrun <= self.most_over * 9 // 8
        hold = hold_units_max(self.tokens + window.overrun, self.terms.call_ns, self.terms.hold_ns)
        most = charge_max_window(COMMON, self.tokens, window.overrun, hold)
        assert usage.monitor.promise.charge_max == most

    def drain(self) -> None:
        """With every server up and large, all that waits is let in, and ends."""
        self.shares = [Share(60, 4) for _ in self.shares]
        for place, share in enumerate(self.shares):
            less = self.window.servers[place].share.tokens - share.tokens
            self.window.resize(place, share, self.now)
            self.window.set_up(place, True)
            self.servers.happens("a reservation grows" if less > 0 else "end", s=place, x=abs(less))
        self.tokens = self.window.tokens
        self.servers.happens("servers go up or down", m=(1,) * len(self.shares))
        self.admit()
        while self.flights:
            self.window.finish(min(self.flights), None, 1, self.now)
            self.admit()
        assert self.window.waiting == 0


@given(st.randoms(use_true_random=True))
def test_what_the_window_does_is_what_its_theorems_are_about(random: Random) -> None:
    """Each thing that the window does is an event that the models of U-windows and U-window permit, with W and V as the
    window counts them, and afterwards both hold, leave free and charge the same; in the end no request is left."""
    both = Both(random)
    for _ in range(random.randint(0, 80)):
        both.step(random)
        both.agree()
    both.drain()
