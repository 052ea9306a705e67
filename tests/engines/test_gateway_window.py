"""The gateway's queue, gate and window without I/O: the theorem's bound on what clients get, and the books."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli_gateway import policy_of
from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.gateway.window import Placement, Share, Window
from fairsched.model.events import Cancelled, Event, Finished
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client
from fairsched.model.window import charge_max_window
from fairsched.policies.base import LocalPolicy
from fairsched.policies.registry import ROUTERS

SERVERS = (ServerConfig("http://a", 60), ServerConfig("http://b", 40))
ALLOWED = {"NothingRefunded", "ExtendAsPlanned", "EqualQuanta"}
"""What an estimate breaks by its nature, and weights; the theorem of the gap rests on none of them (D-weighted)."""


def policy(name: str = "fcfs+deficit", quantum: int = 20) -> Any:
    """A policy as the gateway uses it."""
    return policy_of(GatewayConfig(SERVERS, policy=name, quantum=quantum), Path("test.toml"))


class World:
    """A window, its books, and every end that it told of."""

    def __init__(self, chosen: LocalPolicy[Any], router: str = "join-shortest-queue") -> None:
        self.shares = [Share(60, 5), Share(40, 3)]
        self.books = Books(chosen, 100)
        self.ends: list[int] = []
        self.where: dict[int, int] = {}
        self.now = 0
        self.window = Window(chosen, ROUTERS[router], self.shares, (self.books.record, self._ends))

    def _ends(self, event: Event) -> None:
        if isinstance(event, Finished | Cancelled):
            self.ends.append(event.request_id)

    def admit(self) -> list[Placement]:
        """Let in what may go, and hold the servers to their shares."""
        self.now += 1
        placements = self.window.admit(self.now)
        self.where |= {placement.request_id: placement.server for placement in placements}
        return placements


def held(world: World, sizes: dict[int, int]) -> None:
    """No server has more than its share of tokens and requests."""
    for server, share in enumerate(world.shares):
        there = [request_id for request_id, at in world.where.items() if at == server]
        assert len(there) <= share.requests
        assert sum(sizes[request_id] for request_id in there) <= share.tokens


STEP = st.tuples(st.sampled_from("aaaaffffcgud"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30))


@given(
    st.lists(STEP, max_size=120),
    st.sampled_from(["fcfs+deficit", "vtc", "shortest-prompt+deficit", "dlpm"]),
    st.sampled_from(["join-shortest-queue", "round-robin", "power-of-two"]),
)
def test_whatever_happens_the_gap_is_within_its_bound_and_every_request_ends_once(
    steps: list[tuple[str, int, int, int]], name: str, router: str
) -> None:
    """Arrivals, ends with any length up to the estimate, cancellations, calls given back and servers that go and come:
    the theorem's assumptions hold (but those that say estimates are exact) and so does its bound."""
    world = World(policy(name), router)
    window, sizes, count = world.window, {}, 0
    for what, client, prompt, output in steps:
        running = list(world.where)
        if what == "a":
            window.arrive(count, client, prompt, min(output, 10), world.now)
            sizes[count] = prompt + min(output, 10)
            count += 1
        elif what == "u":
            window.set_up(client % 2, output % 2 == 0)
        elif what == "d":
            window.configure(Client(client, str(client), 1 + output % 3), world.now)
        elif what == "c" and count:
            request_id = prompt % count
            known = request_id not in world.ends
            assert window.cancel(request_id, world.now) == known
            world.where.pop(request_id, None)
        elif running:
            request_id = running[prompt % len(running)]
            del world.where[request_id]
            if what == "g":
                window.give_back(request_id, world.now)
            else:
                window.produced(request_id, 1, world.now)
                most = sizes[request_id]
                window.finish(request_id, None if output % 5 == 0 else 1, min(output % 11, most, 1), world.now)
        world.admit()
        held(world, sizes)
        window.policy.check(window._state)
    for server in range(2):
        window.set_up(server, True)
    while world.where or window.waiting:
        for request_id in list(world.where):
            del world.where[request_id]
            window.finish(request_id, None, None, world.now)
        world.admit()
    assert sorted(world.ends) == list(range(count))
    assert (window.waiting, window.in_flight, window.in_flight_tokens, window.set_aside) == (0, 0, 0, None)
    assert world.books.monitor is not None
    report = world.books.monitor.report()
    assert report.bound_violations == 0
    broken = {key for key, found in report.assumptions.items() if found.theorems and found.violated}
    assert broken <= ALLOWED


def alone(shares: list[Share], quantum: int) -> World:
    """A window of these servers, with the books of it."""
    world = World(policy(quantum=quantum))
    world.shares, world.books = shares, Books(world.window.policy, sum(share.tokens for share in shares))
    world.window = Window(world.window.policy, ROUTERS["join-shortest-queue"], shares, (world.books.record,))
    return world


@pytest.mark.parametrize("tokens", [2, 5, 60, 100_000])
def test_u_and_the_bound_of_the_gap_are_reached(tokens: int) -> None:
    """The witness of U-cost, and of D-4.1 for the window: two calls of f, each as large as the window, are let in one
    after the other while g waits, whose debt is as deep as it can be, so the gap is 2(Q + U - 1) = 2(2 W - 1)."""
    world = alone([Share(tokens)], quantum=1)
    window, now = world.window, 0

    def whole(request_id: int) -> None:
        """A call that fills the window is let in, and all of its output comes."""
        assert [placement.request_id for placement in window.admit(now)] == [request_id]
        window.finish(request_id, 1, tokens - 1, now)

    window.arrive(0, 0, 1, tokens - 1, now)  # f comes and goes, so the gate knows it.
    window.cancel(0, now)
    window.arrive(1, 1, 1, tokens - 1, now)
    whole(1)  # g falls as deep as it can, and f has its quantum.
    for request_id, client in ((2, 0), (3, 0), (4, 0), (5, 1)):
        window.arrive(request_id, client, 1, tokens - 1, now)
    charged = COMMON.input * world.books.prompt_tokens[0] + COMMON.output * world.books.output_tokens[0]
    assert charged == 0
    whole(2)
    charged = COMMON.input * world.books.prompt_tokens[0] + COMMON.output * world.books.output_tokens[0]
    assert charged == charge_max_window(COMMON, tokens) == 2 * tokens - 1
    whole(3)
    assert world.books.monitor is not None
    report = world.books.monitor.report()
    assert report.gap is not None
    assert report.gap.cost == report.gap_bound == 2 * (1 + charge_max_window(COMMON, tokens) - 1)


def test_with_several_servers_u_is_reached_but_for_a_prompt_each() -> None:
    """A call at each of three servers: what each but the last was charged at once came before the last admission."""
    world = alone([Share(60), Share(40), Share(20)], quantum=1000)
    for request_id, tokens in enumerate((60, 40, 20)):
        world.window.arrive(request_id, 0, 1, tokens - 1, 0)
    assert len(world.window.admit(0)) == 3
    for request_id, tokens in enumerate((60, 40, 20)):
        world.window.finish(request_id, 1, tokens - 1, 1)
    charged = COMMON.input * world.books.prompt_tokens[0] + COMMON.output * world.books.output_tokens[0]
    before_the_last = COMMON.input * 2
    assert charged - before_the_last == charge_max_window(COMMON, 120) - COMMON.output * 2


def test_a_window_that_forgets_reservations_is_caught() -> None:
    """A server that is given more than its share breaks MemReserve, and the books say so: the watch can fail."""
    world = World(policy())
    window = world.window
    for request_id in range(9):
        window.arrive(request_id, 0, 1, 30, 0)
        world.admit()
        for server in window._servers:
            server.tokens = server.requests = 0
    assert world.books.monitor is not None
    assert world.books.monitor.report().assumptions["MemReserve"].violated


def test_weights_are_shares_of_what_is_served() -> None:
    """Of two clients that always wait one with weight 3 gets three times the tokens, within the bound."""
    world = World(policy())
    window = world.window
    window.configure(Client(0, "gold", 3), 0)
    for request_id in range(800):
        window.arrive(request_id, request_id % 2, 10, 10, 0)
    for _ in range(300):
        world.admit()
        request_id = next(iter(world.where))
        del world.where[request_id]
        window.finish(request_id, 10, 10, world.now)
    gold, other = (world.books.output_tokens[client] for client in (0, 1))
    assert 2.7 <= gold / other <= 3.3
    assert world.books.monitor is not None
    assert world.books.monitor.report().bound_violations == 0


def test_a_large_request_is_not_passed_for_ever() -> None:
    """It waits for a server that has room for it; nobody who came later goes first, and then it goes there."""
    world = World(policy("fcfs"))
    window = world.window
    for request_id, tokens in enumerate((20, 20, 20, 20, 59, 1, 1)):
        window.arrive(request_id, 0, 1, tokens, 0)
    assert [placement.request_id for placement in world.admit()] == [0, 1, 2]
    window.finish(1, 1, 1, 1)
    assert [placement.request_id for placement in world.admit()] == [3]
    for request_id in (0, 2):
        window.finish(request_id, 1, 1, 2)
        last = world.admit()
    window.finish(3, 1, 1, 3)
    last = last or world.admit()
    assert [placement.request_id for placement in last][:1] == [4]


def test_a_policy_that_raises_is_set_aside_and_nobody_is_lost() -> None:
    """From then on the oldest goes first, and every request still ends."""

    class Broken(type(policy())):  # type: ignore[misc]
        """A policy that fails at its third decision."""

        def decide(self, state: Any, view: Any) -> Any:
            """Fail when somebody of client 1 waits."""
            if 1 in state.waiting.queues:
                raise RuntimeError("no")
            return super().decide(state, view)

    good = policy()
    world = World(Broken(good.name, good.order, good.gate, good.batching))
    for request_id in range(20):
        world.window.arrive(request_id, request_id // 10, 5, 5, 0)
    order = []
    while world.window.waiting:
        order += [placement.request_id for placement in world.admit()]
        for request_id in list(world.where):
            del world.where[request_id]
            world.window.finish(request_id, 5, 5, world.now)
    assert order == sorted(order)
    assert sorted(world.ends) == list(range(20))
    assert world.window.set_aside == "RuntimeError: no"


def test_bad_arrivals_are_refused() -> None:
    """A request for which no server is large enough, and one that is there already, change nothing."""
    window = World(policy()).window
    window.arrive(0, 0, 5, 5, 0)
    for request_id, prompt in ((1, 56), (0, 5)):
        with pytest.raises(ValueError, match=f"request {request_id}"):
            window.arrive(request_id, 0, prompt, 5, 0)
    assert window.waiting == 1
