"""A window whose servers come and go, and whose accounts go on in another: books, bound, and what survives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.elastic_window import ElasticWindow, request_of
from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.window import Share
from fairsched.integrations.window_policy import window_policy
from fairsched.model.events import Cancelled, Event, Finished
from fairsched.model.request import Client
from fairsched.policies.registry import ROUTERS

ALLOWED = {"NothingRefunded", "ExtendAsPlanned", "EqualQuanta"}
"""What an estimate breaks by its nature, and weights; the theorem of the gap rests on none of them."""


class World:
    """An elastic window, its books, where requests are, and every end that it told of."""

    def __init__(self, name: str = "fcfs+deficit", router: str = "join-shortest-queue") -> None:
        self.policy: Any = window_policy(name, 20)
        self.books = Books(self.policy, 0)
        self.ends: list[int] = []
        self.where: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.there: list[int] = []
        self.now = 0
        self.window = ElasticWindow(self.policy, ROUTERS[router], (self.books.record, self._ends))

    def _ends(self, event: Event) -> None:
        if isinstance(event, Finished | Cancelled):
            self.ends.append(event.request_id)

    def join(self, share: Share) -> None:
        """A server comes."""
        self.there.append(self.window.join(share, self.now))
        self.books.grow(self.window.tokens, self.now)

    def arrive(self, client: int, prompt: int, output: int) -> None:
        """The next request waits, if there is anything that could take it."""
        if not self.there or self.window.refuses(prompt, output) is not None:
            return
        request_id = len(self.sizes)
        self.sizes[request_id] = prompt + output
        self.window.arrive(request_id, client, prompt, output, self.now)

    def admit(self) -> None:
        """Let in what may go; nobody goes to a server that is not there."""
        self.now += 1
        for placement in self.window.admit(self.now):
            assert placement.server in self.there
            self.where[placement.request_id] = placement.server


STEP = st.tuples(st.sampled_from("aaaaffffcgjjpd"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 10))


@given(
    st.lists(STEP, max_size=100),
    st.sampled_from(["fcfs+deficit", "vtc", "shortest-prompt+deficit"]),
    st.sampled_from(["join-shortest-queue", "round-robin", "d2lpm", "e2", "stealing"]),
)
def test_servers_may_come_and_go_and_the_gap_stays_within_the_bound_of_the_most_that_were_there(
    steps: list[tuple[str, int, int, int]], name: str, router: str
) -> None:
    """Arrivals, ends, cancellations, and servers that join and part with requests in flight: nobody has more in flight
    than its share, every request ends once, and the gap is within the bound."""
    world = World(name, router)
    window = world.window
    for what, client, prompt, output in steps:
        running = list(world.where)
        if what == "a":
            world.arrive(client, prompt, output)
        elif what == "j" and len(world.there) < 4:
            world.join(Share(40 + client, 3))
        elif what == "p" and world.there:
            window.part(world.there.pop(prompt % len(world.there)), world.now)
        elif what == "d":
            window.configure(Client(client, str(client), 1 + output % 3), world.now)
        elif what == "c" and world.sizes:
            request_id = prompt % len(world.sizes)
            assert window.cancel(request_id, world.now) == (request_id not in world.ends[:-1])
            world.where.pop(request_id, None)
        elif what in "fg" and running:
            request_id = running[prompt % len(running)]
            del world.where[request_id]
            if what == "g":
                window.give_back(request_id, world.now)
            else:
                window.finish(request_id, None, 1, world.now)
        world.admit()
        used = sum(world.sizes[request_id] for request_id in world.where)
        assert window.in_flight_tokens == used <= window.tokens
        assert window.servers == len(world.there)
        window.policy.check(window._state)
    world.join(Share(100, 3))
    world.admit()
    while world.where:
        for request_id in list(world.where):
            del world.where[request_id]
            window.finish(request_id, None, None, world.now)
        world.admit()
    assert sorted(world.ends) == list(range(len(world.sizes)))
    assert (window.waiting, window.in_flight, window.set_aside) == (0, 0, None)
    assert world.books.monitor is not None
    report = world.books.monitor.report()
    assert report.bound_violations == 0
    broken = {key for key, found in report.assumptions.items() if found.theorems and found.violated}
    assert broken <= ALLOWED


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
    monitor = world.books.monitor
    assert monitor is not None
    assert monitor.promise.weights[:2] == (4, 1)
    alike = World()
    alike.join(Share(40, 2))
    assert alike.books.monitor is not None
    assert monitor.promise.gap_bound != alike.books.monitor.promise.gap_bound


@pytest.mark.parametrize("gold", [1, 4])
def test_strangers_beside_a_client_with_a_weight_are_within_the_bound(gold: int) -> None:
    """Clients that nobody named have weight 1: what they are charged counts in the same unit as the others', and the
    bound is for them, too."""
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
            del world.where[request_id]
            world.window.finish(request_id, None, 10, world.now)
    assert world.books.monitor is not None
    assert world.books.monitor.report().bound_violations == 0
    tokens = world.books.output_tokens
    assert tokens[3] == pytest.approx(tokens[2], rel=0.2)
    assert tokens[0] == pytest.approx(gold * tokens[2], rel=0.2)


def served(window: ElasticWindow, rounds: int) -> list[int]:
    """Clients in the order in which a window with one place lets them in, each request ending before the next."""
    order, now = [], 1000
    for _ in range(rounds):
        now += 1
        for placement in window.admit(now):
            order.append(window._flights[placement.request_id].request.client)
            window.finish(placement.request_id, None, 10, now)
    return order


def test_another_window_goes_on_from_the_accounts() -> None:
    """Who had been served more before a restart waits until the other has had as much; without accounts the debt is
    forgiven."""
    world = World()
    world.join(Share(20, 1))
    for _ in range(20):
        world.arrive(0, 10, 10)
    world.arrive(1, 10, 10)
    # Client 0 is alone until its credit is used up, and beyond.
    world.window.cancel(20, 0)
    for _ in range(3):
        for placement in world.window.admit(1):
            world.window.finish(placement.request_id, None, 10, 1)
    kept = world.window.accounts(2)
    assert kept is not None
    assert world.window.waiting > 0  # The window that was asked is as it was.
    orders = []
    for accounts in (kept, None):
        window = ElasticWindow(world.policy, ROUTERS["join-shortest-queue"], (), accounts)
        window.join(Share(20, 1), 3)
        for i in range(12):
            window.arrive(100 + i, i % 2, 10, 10, 3)
        orders.append(served(window, 12))
    assert orders[0] != orders[1]
    assert orders[0].index(0) > orders[1].index(0)
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("charged", [True, False])
def test_what_is_in_flight_is_adopted_and_charged_once(charged: bool) -> None:
    """A request at a server takes room in the next window; its prompt is charged there unless the accounts have it, and
    its output is charged in both cases."""
    one = World()
    one.join(Share(40, 2))
    one.arrive(0, 10, 10)
    one.admit()
    before = one.window.accounts(5)
    one.window.finish(0, None, 10, 6)
    whole = one.window.accounts(6)
    accounts = before if charged else World().window.accounts(0)
    two = ElasticWindow(one.policy, ROUTERS["join-shortest-queue"], (), accounts)
    place = two.join(Share(40, 2), 7)
    two.adopt(request_of(0, 0, 10, 10, 7), place, 7, charged=charged)
    assert (two.in_flight, two.in_flight_tokens) == (1, 20)
    two.finish(0, None, 10, 8)
    assert (two.in_flight, two.in_flight_tokens) == (0, 0)
    after = two.accounts(9)
    assert whole is not None
    assert after is not None
    assert after["state"]["gate"] == whole["state"]["gate"]


def test_accounts_of_another_policy_are_refused() -> None:
    """A state that is none of this policy's is an error, and not forgiven debt."""
    with pytest.raises(ValueError, match="state"):
        ElasticWindow(window_policy("fcfs+deficit", 20), ROUTERS["round-robin"], (), {"schema": 1, "state": "x"})
