"""The share of each client in the queue: a client within its share is neither refused nor loses a call."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway.window.queue_share import QueueShare
from fairsched.model.request import Client

FLAT = [Client(i, str(i), weight) for i, weight in enumerate((1, 1, 2, 4, 7))]
GROUPED = [
    Client(0, "a", 1, (("acme", 3),)),
    Client(1, "b", 5, (("acme", 3),)),
    Client(2, "c", 1, (("acme", 3), ("ann", 2))),
    Client(3, "d", 2, (("acme", 3), ("ann", 2))),
    Client(4, "e", 2),
]
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 99)), max_size=120)


class World:
    """A queue of so many calls, played with lists."""

    def __init__(self, clients: list[Client], capacity: int) -> None:
        self.clients = clients
        self.capacity = capacity
        self.share = QueueShare()
        self.calls: list[tuple[int, int]] = []
        self.count = 0

    def loads(self, level: int, group: tuple[Any, ...]) -> dict[Any, Fraction]:
        """Calls over weight of the members of a group."""
        calls: dict[Any, int] = {}
        weights: dict[Any, int] = {}
        for client, _ in self.calls:
            found = self.clients[client]
            path = (*found.place, (found.id, found.weight))
            if len(path) > level and tuple(name for name, _ in path[:level]) == group:
                name, weights[path[level][0]] = path[level]
                calls[name] = calls.get(name, 0) + 1
        return {name: Fraction(count, weights[name]) for name, count in calls.items()}

    def bring(self, client: int) -> tuple[int, int] | None:
        """One more call; returns the call that goes, if the queue is too long then."""
        self.calls.append((client, self.count))
        self.share.enter(self.clients[client], self.count)
        self.count += 1
        if len(self.share) <= self.capacity:
            return None
        loser = self.share.loser()
        return next(call for call in self.calls if call[1] == loser)

    def leave(self, call: tuple[int, int]) -> None:
        """A call waits no more."""
        self.calls.remove(call)
        self.share.leave(call[1])
        self.share.leave(call[1])

    def played(self, steps: list[Any]) -> Iterator[tuple[int, int]]:
        """Calls that come and leave; yields each that has to go, before it does."""
        for comes, client, which in steps:
            if not comes and self.calls:
                self.leave(self.calls[which % len(self.calls)])
            elif (lost := self.bring(client)) is not None:
                yield lost
                self.leave(lost)
                assert len(self.calls) == self.capacity
            assert len(self.share) == len(self.calls)


@given(STEPS, st.integers(1, 12))
def test_a_client_within_its_share_is_never_refused_nor_loses_a_call(steps: list[Any], capacity: int) -> None:
    """Its share is the capacity by weight among the clients in the queue; the call that goes is the newest of its
    client, and its client has the largest load."""
    world = World(FLAT, capacity)
    for lost in world.played(steps):
        loads, weights = world.loads(0, ()), sum(FLAT[each].weight for each in {each for each, _ in world.calls})
        assert loads[lost[0]] == max(loads.values()) > Fraction(capacity, weights)
        assert lost == max(call for call in world.calls if call[0] == lost[0])


@given(STEPS, st.integers(1, 12))
def test_an_organisation_has_its_share_whatever_the_number_of_its_clients(steps: list[Any], capacity: int) -> None:
    """At each level the call that goes is of the member with the largest load: organisation, user, client."""
    world = World(GROUPED, capacity)
    for lost in world.played(steps):
        found = GROUPED[lost[0]]
        path = (*(name for name, _ in found.place), found.id)
        for level, name in enumerate(path):
            loads = world.loads(level, path[:level])
            assert loads[name] == max(loads.values())


def test_a_heavy_client_with_one_call_gets_in() -> None:
    """The issue's case: a queue that is full of others, and a client of weight 4 with no call in it yet; the flood's
    newest call makes room, and the flood's next one does not get in."""
    world = World([Client(0, "flood"), Client(1, "gold", 4)], 8)
    for _ in range(8):
        assert world.bring(0) is None
    lost = world.bring(1)
    assert lost == (0, 7)
    world.leave(lost)
    assert world.bring(0) == (0, 9)


def test_weights_are_those_of_the_last_call() -> None:
    """A client whose weight changed has its new load from its next call on."""
    world = World([Client(0, "a", 4), Client(1, "b", 2)], 100)
    for client in (0, 0, 0, 1, 1):
        world.bring(client)
    assert world.share.loser() == 4
    world.clients[0] = Client(0, "a")
    world.bring(0)
    assert world.share.loser() == 5
