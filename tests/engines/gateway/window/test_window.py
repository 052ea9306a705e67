"""The gateway's queue, gate and window without I/O: the theorem's bound on what clients get, also where servers come
and go, and accounts that go on in another window."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.engines.gateway.window.flight import Placement
from fairsched.model.events import Admitted, Cancelled, Event, Finished
from fairsched.model.monitor import MonitorReport
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client
from fairsched.policies.guarantees.window import WindowTerms, charge_max_window, hold_units_max
from fairsched.policies.registry import ROUTERS

ALLOWED = {"NothingRefunded", "ExtendAsPlanned", "EqualQuanta"}
"""What an estimate breaks by its nature, and weights; the theorem of the gap rests on none of them (D-weighted)."""
SHARES = (Share(60, 5), Share(40, 3))
RESERVES_ALL = WindowTerms(unreserved_tokens=0, hold_ns=60, call_ns=600)
PREDICTS = WindowTerms(unreserved_tokens=30, hold_ns=7, call_ns=50)


class World:
    """A window, where requests are, the shares of servers, and every end that it told of.

    With `fixed` servers they are there from the start.
    """

    def __init__(
        self,
        policy: Any = "fcfs+deficit",
        router: str = "join-shortest-queue",
        fixed: Sequence[Share] = (),
        quantum: int = 20,
        terms: WindowTerms = RESERVES_ALL,
    ) -> None:
        self.policy: Any = window_policy(policy, quantum) if isinstance(policy, str) else policy
        self.terms = terms
        self.ends: list[int] = []
        self.where: dict[int, int] = {}
        self.calls: dict[int, tuple[int, int, int]] = {}
        self.reserved: dict[int, int] = {}
        self.shares = dict(enumerate(fixed))
        self.there = list(self.shares)
        self.now = 0
        self.window = Window(self.policy, ROUTERS[router], fixed, (self._ends,), terms=terms)

    def _ends(self, event: Event) -> None:
        if isinstance(event, Finished | Cancelled):
            self.ends.append(event.request_id)
        if isinstance(event, Admitted):
            self.reserved[event.request_id] = event.reserved_output_tokens

    def join(self, share: Share) -> None:
        """A server comes."""
        self.there.append(self.window.join(share, self.now))
        self.shares[self.there[-1]] = share

    def arrive(self, client: int, prompt: int, output: int) -> None:
        """The next request waits, if there is a server that could take it."""
        if self.there and self.window.refuses(prompt, output) is None:
            request_id = len(self.calls)
            self.calls[request_id] = (client, prompt, output)
            self.window.arrive(request_id, client, prompt, output, self.now)

    def admit(self) -> list[Placement]:
        """Let in what may go, to servers that are there."""
        self.now += 1
        placements = self.window.admit(self.now)
        for placement in placements:
            assert placement.server in self.there
            self.where[placement.request_id] = placement.server
        return placements

    def held(self, request_id: int) -> int:
        """What a call at a server holds: its prompt, and what it reserved at least."""
        return self.calls[request_id][1] + self.reserved[request_id]

    def unreserved(self, client: int) -> int:
        """What a client's calls at servers declared and did not reserve when they were let in."""
        calls = (self.calls[request_id] + (self.reserved[request_id],) for request_id in self.where)
        return sum(declared - reserved for of, _, declared, reserved in calls if of == client)

    def check(self) -> None:
        """When it was let in no call had more than its server's share, and the window counts what is there."""
        for server, share in self.shares.items():
            held = [self.held(request_id) for request_id, at in self.where.items() if at == server]
            assert len(held) <= share.requests
            # The last one to come needed some room, and may hold more than that.
            assert sum(held) - max(held, default=0) < share.tokens
        held = [self.held(request_id) for request_id in self.where]
        assert sum(held) <= self.window.in_flight_tokens
        assert sum(held) - max(held, default=0) < max(self.window.tokens, 1)
        # Outputs that came are reserved: what is left was never more than what was unreserved at first.
        assert all(self.window.unreserved_of(client) <= self.unreserved(client) for client in range(3))
        assert len(self.window.servers.present) == len(self.there)
        self.policy.check(self.window.guard.state)

    def drain(self) -> None:
        """A server comes that takes every request, all servers are up, and what runs ends until nothing is left."""
        self.join(Share(100, 3))
        for server in self.there:
            self.window.set_up(server, True)
        self.admit()
        while self.where:
            for request_id in list(self.where):
                self.end(request_id, self.window.finish, None, None)
            self.admit()

    def end(self, request_id: int, end: Callable[..., object], *how: Any) -> None:
        """End a request that is at a server."""
        del self.where[request_id]
        end(request_id, *how, self.now)

    @property
    def report(self) -> MonitorReport:
        """What the monitor found."""
        assert self.window.usage.monitor is not None
        return self.window.usage.monitor.report()

    def charged(self, client: int) -> int:
        """What a client was charged, in cost units."""
        usage = self.window.usage
        outputs = usage.output_tokens[client] + usage.hold_tokens[client]
        return COMMON.input * usage.prompt_tokens[client] + COMMON.output * outputs


STEP = st.tuples(st.sampled_from("aaaaaaffffffccgudjjptt"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30))


@settings(deadline=None)
@given(
    st.lists(STEP, max_size=100),
    st.sampled_from(["fcfs+deficit", "vtc", "shortest-prompt+deficit", "dlpm"]),
    st.sampled_from(["join-shortest-queue", "round-robin", "power-of-two", "d2lpm", "e2"]),
    st.booleans(),
    st.sampled_from([RESERVES_ALL, PREDICTS]),
)
def test_whatever_happens_the_gap_is_within_its_bound_and_every_request_ends_once(
    steps: list[tuple[str, int, int, int]], name: str, router: str, fixed: bool, terms: WindowTerms
) -> None:
    """Arrivals, ends with any length up to the estimate, cancellations, calls given back, servers that fail and come
    back, servers that join and part with requests in flight, and time that passes: what was let in fits, every request
    ends once, the theorem's assumptions hold (but those that say estimates are exact), and so does its bound of the
    most that was there."""
    world = World(name, router, SHARES if fixed else (), terms=terms)
    window = world.window
    for what, client, prompt, output in steps:
        running = list(world.where)
        if what == "a":
            world.arrive(client, prompt, min(output, 10))
        elif what == "u" and world.there:
            window.set_up(world.there[client % len(world.there)], output % 2 == 0)
        elif what == "j" and not fixed and len(world.there) < 4:
            world.join(Share(40 + client, 3))
        elif what == "p" and not fixed and world.there:
            window.part(world.there.pop(prompt % len(world.there)), world.now)
        elif what == "d":
            window.configure(Client(client, str(client), 1 + output % 3), world.now)
        elif what == "t":
            world.now += prompt
            window.charge(world.now)
        elif what == "c" and world.calls:
            request_id = prompt % len(world.calls)
            is_open = request_id not in world.ends
            assert window.cancel(request_id, world.now) == is_open
            world.where.pop(request_id, None)
        elif what in "fg" and running:
            request_id = running[prompt % len(running)]
            if what == "g":
                world.end(request_id, window.give_back)
            else:
                declared = world.calls[request_id][2]
                window.produced(request_id, 1, world.now)
                world.end(request_id, window.finish, None if output % 5 == 0 else 1, min(output % 11, declared))
        world.admit()
        world.check()
    world.drain()
    assert sorted(world.ends) == list(range(len(world.calls)))
    assert (window.waiting, window.in_flight, window.in_flight_tokens, window.guard.set_aside) == (0, 0, 0, None)
    assert world.report.bound_violations == 0
    assert world.report.assumptions["MemReserve"].violated == 0
    broken = {key for key, found in world.report.assumptions.items() if found.theorems and found.violated}
    assert broken <= ALLOWED


@pytest.mark.parametrize("tokens", [2, 5, 60, 100_000])
@pytest.mark.parametrize("terms", [RESERVES_ALL, WindowTerms(0, hold_ns=7, call_ns=50)], ids=["C = 10 T", "rounded"])
def test_u_and_the_bound_of_the_gap_are_reached(tokens: int, terms: WindowTerms) -> None:
    """The witness of U-cost and U-hold, and of D-4.1 for the window: two calls of f, each as large as the window, are
    let in one after the other, have all their outputs at once and stay for the longest time, while g waits, whose debt
    is as deep as it can be; so the gap is 2(Q + U - 1)."""
    world = World(fixed=[Share(tokens)], quantum=1, terms=terms)
    window = world.window
    most = charge_max_window(COMMON, tokens, 0, hold_units_max(tokens, terms.call_ns, terms.hold_ns))
    rounded = COMMON.output * (tokens * terms.call_ns % terms.hold_ns > 0)

    def whole(request_id: int) -> None:
        """A call that fills the window is let in, all of its output comes, and it stays until it is cut off."""
        assert [placement.request_id for placement in window.admit(world.now)] == [request_id]
        window.produced(request_id, tokens - 1, world.now)
        world.now += 2 * terms.call_ns
        window.charge(world.now)
        window.finish(request_id, 1, tokens - 1, world.now)

    window.arrive(0, 0, 1, tokens - 1, world.now)  # f comes and goes, so the gate knows it.
    window.cancel(0, world.now)
    window.arrive(1, 1, 1, tokens - 1, world.now)
    whole(1)  # g falls as deep as it can, and f has its quantum.
    for request_id, client in ((2, 0), (3, 0), (4, 0), (5, 1)):
        window.arrive(request_id, client, 1, tokens - 1, world.now)
    assert world.charged(0) == 0
    whole(2)
    # A part of a unit is charged with the next call: with two of them the sum is rounded down once.
    assert most - rounded <= world.charged(0) <= most
    whole(3)
    report = world.report
    assert report.gap is not None
    assert report.gap_bound == 2 * (1 + most - 1)
    assert report.gap_bound - 2 * rounded <= report.gap.cost <= report.gap_bound


def test_u_is_reached_with_what_is_not_reserved_but_for_a_prompt() -> None:
    """Two calls fill the window and come to 20 more than they reserve; their outputs come at once, and they stay
    for the longest time.  The prompt of the first was charged before the last admission, and that is all that U is
    above what is charged from there on."""
    terms = WindowTerms(2, hold_ns=60, call_ns=600)  # Twenty for a client of whose last eight calls none went astray.
    world = World(fixed=[Share(60)], quantum=100_000, terms=terms)
    window = world.window
    for request_id in range(8):  # Nine outputs are usual.
        window.arrive(request_id, 0, 1, 9, 0)
        window.admit(0)
        window.finish(request_id, 1, 9, 0)
    window.arrive(8, 0, 1, 29, 0)
    window.arrive(9, 0, 1, 49, 0)
    assert len(window.admit(0)) == 2
    assert [world.reserved[request_id] for request_id in (8, 9)] == [9, 49]
    assert (window.in_flight_tokens, window.unreserved_of(0)) == (60, 20)
    before = world.charged(0) - COMMON.input
    window.produced(8, 29, 0)
    window.produced(9, 49, 0)
    assert (window.in_flight_tokens, window.unreserved_of(0)) == (80, 0)
    window.charge(10_000)
    window.finish(8, 1, 29, 10_000)
    window.finish(9, 1, 49, 10_000)
    most = charge_max_window(COMMON, 60, 20, hold_units_max(80, terms.call_ns, terms.hold_ns))
    assert most == 2 * 80 - 1 + 2 * 800
    assert world.charged(0) - before == most - COMMON.output
    assert world.report.assumptions["MemReserve"].violated == 0


def test_with_several_servers_u_is_reached_but_for_a_prompt_each() -> None:
    """A call at each of three servers: what each but the last was charged at once came before the last admission."""
    world = World(fixed=[Share(60), Share(40), Share(20)], quantum=1000, terms=WindowTerms(0))
    for request_id, tokens in enumerate((60, 40, 20)):
        world.window.arrive(request_id, 0, 1, tokens - 1, 0)
    assert len(world.window.admit(0)) == 3
    for request_id, tokens in enumerate((60, 40, 20)):
        world.window.finish(request_id, 1, tokens - 1, 1)
    charged = world.charged(0)
    before_the_last = COMMON.input * 2
    assert charged - before_the_last == charge_max_window(COMMON, 120) - COMMON.output * 2


def test_a_window_that_charges_too_long_is_caught() -> None:
    """A call that is charged for holding beyond the longest time breaks MemReserve, and so does an over-run that is not
    counted, of outputs or of a prompt: the watch can fail."""
    world = World(fixed=[Share(60)], terms=RESERVES_ALL)
    world.window._charges.holds._call_ns = 6000
    world.window.arrive(0, 0, 1, 59, 0)
    world.window.admit(0)
    world.window.charge(600)
    assert world.report.assumptions["MemReserve"].violated == 0
    world.window.charge(700)
    assert world.report.assumptions["MemReserve"].violated
    for counts, outputs, prompt in ((True, 80, 80), (False, 80, 1), (False, 1, 130)):
        world = World(fixed=[Share(60)])
        if not counts:
            world.window._overran = lambda *_: None  # type: ignore[method-assign]
        world.window.arrive(0, 0, 10, 50, 0)
        world.window.admit(0)
        world.window.finish(0, prompt, outputs, 1)
        assert bool(world.report.assumptions["MemReserve"].violated) is not counts
        assert world.window.overrun == (104 if counts else 0)


def test_a_window_that_forgets_reservations_is_caught() -> None:
    """A server that is given more than its share breaks MemReserve, and the monitor says so: the watch can fail."""
    world = World(fixed=SHARES)
    window = world.window
    for request_id in range(9):
        window.arrive(request_id, 0, 1, 30, 0)
        world.admit()
        for server in window.servers:
            server.tokens = server.requests = 0
    assert world.report.assumptions["MemReserve"].violated


def test_a_request_as_large_as_the_window_does_not_empty_it() -> None:
    """It goes when an eighth of the window is free, and no later one before it; what it holds beyond the window is
    counted as over-run, and smaller ones wait until all of them has room again."""
    world = World("fcfs", fixed=[Share(80, 99)])
    window = world.window
    for request_id, tokens in enumerate((*(9,) * 8, 79, 1)):
        window.arrive(request_id, 0, 1, tokens, 0)
    assert [placement.request_id for placement in world.admit()] == list(range(8))
    assert window.overrun == 0
    window.finish(3, 1, 9, 1)
    assert [placement.request_id for placement in world.admit()] == [8]
    assert (window.in_flight_tokens, window.overrun) == (150, 72)
    window.finish(8, 1, 79, 2)
    assert [placement.request_id for placement in world.admit()] == [9]


@pytest.mark.parametrize(("policy", "passing"), [("fcfs+deficit", 8), ("fcfs+hierarchical", 8), ("vtc", 0)])
def test_others_pass_a_large_request_as_far_as_their_credit(policy: str, passing: int) -> None:
    """While a request as large as the window waits for an eighth of it, short ones of another client go until that has
    no credit: 20 units, of which one costs 1 when it goes and 2 more at its end.  Then none goes, and no credit is
    given, until the large one is in.  A gate without credit lets none pass."""
    world = World(policy, fixed=[Share(80, 99)])
    world.arrive(2, 1, 72)
    world.admit()
    world.arrive(0, 1, 79)
    for _ in range(10):
        world.arrive(1, 1, 1)
    passed = 0
    while placements := world.admit():
        for placement in placements:
            assert world.calls[placement.request_id][0] == 1
            world.end(placement.request_id, world.window.finish, 1, 1)
            passed += 1
    assert passed == passing
    world.end(0, world.window.finish, 1, 72)
    assert world.admit()[0].request_id == 1
    assert not world.report.violated()


def test_a_policy_that_raises_is_set_aside_and_no_request_is_lost() -> None:
    """From then on the oldest goes first, and every request still ends."""

    class Broken(type(window_policy("fcfs+deficit", 20))):  # type: ignore[misc]
        """A policy that fails at its third decision."""

        def decide(self, state: Any, view: Any) -> Any:
            """Fail when a request of client 1 waits."""
            if 1 in state.queue.queues:
                raise RuntimeError("no")
            return super().decide(state, view)

    good = window_policy("fcfs+deficit", 20)
    world = World(Broken(name=good.name, order=good.order, gate=good.gate, batching=good.batching), fixed=SHARES)
    for request_id in range(20):
        world.window.arrive(request_id, request_id // 10, 5, 5, 0)
    order = []
    while world.window.waiting:
        order += [placement.request_id for placement in world.admit()]
        for request_id in list(world.where):
            world.end(request_id, world.window.finish, 5, 5)
    assert order == sorted(order)
    assert sorted(world.ends) == list(range(20))
    assert world.window.guard.set_aside == "exception: RuntimeError: no"


def test_bad_arrivals_are_refused() -> None:
    """A request for which no server is large enough, and one that is there already, change nothing."""
    window = World(fixed=SHARES).window
    window.arrive(0, 0, 5, 5, 0)
    for request_id, prompt in ((1, 56), (0, 5)):
        with pytest.raises(ValueError, match=f"request {request_id}"):
            window.arrive(request_id, 0, prompt, 5, 0)
    assert window.waiting == 1


def test_places_are_used_again_only_when_nothing_is_in_flight_there() -> None:
    """A server that left with a request in flight keeps its place until that ended; then the next one has it, and the
    window is not larger than what was there at one time."""
    world = World()
    world.join(Share(40, 2))
    world.arrive(0, 10, 5)
    world.admit()
    (first,) = world.there
    world.window.part(first, 1)
    world.there.clear()
    world.join(Share(40, 2))
    assert world.there != [first]
    assert world.window.tokens == 80
    world.window.finish(0, None, None, 2)
    world.join(Share(40, 2))
    assert world.there[-1] == first
    assert world.window.tokens == 80


def test_a_window_that_grows_keeps_its_clients_weights() -> None:
    """Weights told before the first server came count in the bound that is promised with it: a heavy client may be
    ahead of a light one by its weight."""
    world = World()
    world.window.configure(Client(0, "gold", 4), 0)
    world.join(Share(40, 2))
    monitor = world.window.usage.monitor
    assert monitor is not None
    assert monitor.promise.weights[:2] == (4, 1)
    alike = World()
    alike.join(Share(40, 2))
    assert alike.window.usage.monitor is not None
    assert monitor.promise.gap_bound != alike.window.usage.monitor.promise.gap_bound


@pytest.mark.parametrize("gold", [1, 4])
def test_unknown_clients_beside_a_client_with_a_weight_are_within_the_bound(gold: int) -> None:
    """Clients that always wait share by weight, within the bound.  Those that are not configured have weight 1: what
    they are charged counts in the same unit as the others', and the bound is for them, too."""
    world = World()
    if gold > 1:
        world.window.configure(Client(0, "gold", gold), 0)
    world.join(Share(40, 2))
    for _ in range(150):
        for client in range(4):
            while world.window.waiting_of(client) < 3:
                world.arrive(client, 10, 10)
        world.admit()
        for request_id in list(world.where):
            world.end(request_id, world.window.finish, None, 10)
    assert world.report.bound_violations == 0
    tokens = world.window.usage.output_tokens
    assert tokens[3] == pytest.approx(tokens[2], rel=0.2)
    assert tokens[0] == pytest.approx(gold * tokens[2], rel=0.2)
