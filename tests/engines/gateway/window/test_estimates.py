"""What a window does with what it does not know: outputs that are not seen, ends without usage, and how much a call
will have."""

import pytest

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.model.events import Event, Migrated
from fairsched.policies.guarantees import SECOND_NS, WindowTerms
from fairsched.policies.registry import ROUTERS

RESERVES_ALL = WindowTerms(0, hold_ns=60 * SECOND_NS)
FREE = WindowTerms(0, hold_ns=10**18)
"""Holding costs nothing that is seen here."""


class World:
    """A window over one server, and what it told."""

    def __init__(self, tokens: int = 1000, terms: WindowTerms = FREE) -> None:
        self.told: list[Event] = []
        router = ROUTERS["join-shortest-queue"]
        policy = window_policy("fcfs+deficit", 1000)
        self.window = Window(policy, router, (Share(tokens, 100),), (self.told.append,), terms=terms)

    def outputs(self, client: int = 0) -> int:
        """Outputs that a client was charged."""
        return self.window.usage.output_tokens[client]

    def taught(self, outputs: int = 100, client: int = 0, calls: int = 4) -> "World":
        """After some calls of a client with so many outputs, in a second each."""
        for i in range(calls):
            self.window.arrive(1000 + i, client, 1, outputs, 0)
            self.window.admit(0)
            self.window.finish(1000 + i, 1, outputs, SECOND_NS)
        return self


def test_a_call_that_ends_without_usage_is_charged_what_is_usual_in_its_time() -> None:
    """Half a second of a server that gives 100 tokens a second are 50, at most what was declared, at least what was
    seen; while nothing is known of any server it is all that was declared."""
    for known, declared, seen, charged in (
        (True, 80, 0, 50),
        (True, 30, 0, 30),
        (True, 80, 70, 70),
        (False, 80, 7, 80),
    ):
        world = World()
        if known:
            world.taught()
        before = world.outputs()
        world.window.arrive(0, 0, 10, declared, SECOND_NS)
        world.window.admit(SECOND_NS)
        if seen:
            world.window.produced(0, seen, SECOND_NS)
        assert world.window.cancel(0, 3 * SECOND_NS // 2)
        assert world.outputs() - before == charged


@pytest.mark.parametrize("true", [20, 80])
def test_outputs_that_are_not_seen_are_charged_as_time_passes_and_corrected(true: int) -> None:
    """After half a second 50 tokens are charged; when the server says what was true the rest is charged, or what was
    too much is set against the client's next outputs."""
    world = World().taught()
    window, before = world.window, world.outputs()
    window.arrive(0, 0, 10, 90, SECOND_NS)
    window.admit(SECOND_NS)
    window.charge(3 * SECOND_NS // 2)
    assert world.outputs() - before == 50
    window.finish(0, 10, true, 3 * SECOND_NS // 2)
    assert world.outputs() - before == max(true, 50)
    window.arrive(1, 0, 10, 60, 2 * SECOND_NS)
    window.admit(2 * SECOND_NS)
    window.produced(1, 40, 2 * SECOND_NS)
    window.finish(1, 10, 40, 2 * SECOND_NS)
    assert world.outputs() - before == true + 40


def test_what_is_given_back_is_charged_for_holding_only() -> None:
    """The server computed nothing: prompt and estimated outputs come back, and what was held does not."""
    world = World(terms=RESERVES_ALL).taught()
    window, before = world.window, world.outputs()
    held = window.usage.hold_tokens[0]
    window.arrive(0, 0, 60, 60, SECOND_NS)
    window.admit(SECOND_NS)
    window.charge(2 * SECOND_NS)
    window.give_back(0, 31 * SECOND_NS)
    window.arrive(1, 0, 10, 200, 31 * SECOND_NS)
    window.admit(31 * SECOND_NS)
    window.produced(1, 200, 31 * SECOND_NS)
    window.finish(1, 10, 200, 31 * SECOND_NS)
    assert world.outputs() - before == 200
    assert window.usage.prompt_tokens[0] == 4 + 10
    # 120 tokens for half of the minute that costs as much as an output; the calls before held 101 for a second each.
    assert window.usage.hold_tokens[0] - held == pytest.approx(60, abs=1)


def test_a_client_over_its_own_limit_waits_for_its_own_calls_and_others_pass() -> None:
    """Three calls declare 700 where ten are usual and 702 may be unreserved: one goes, the others leave the queue until
    it has ended, and a later client's goes first; in the end each of them ends once."""
    world = World(711, WindowTerms(117)).taught(10)
    window = world.window
    for request_id in range(3):
        window.arrive(request_id, 0, 10, 700, 0)
    window.arrive(3, 1, 10, 10, 0)
    first = [placement.request_id for placement in window.admit(0)]
    assert first == [0, 3]
    assert (window.waiting, window.unreserved_of(0)) == (2, 690)
    assert [event.request_id for event in world.told if isinstance(event, Migrated)] == [1, 2]
    window.produced(0, 400, 0)
    assert (window.in_flight_tokens, window.unreserved_of(0)) == (10 + 400 + 20, 300)
    window.finish(0, 10, 400, 0)
    assert [placement.request_id for placement in window.admit(0)] == [1]
    assert window.cancel(2, 0)
    window.finish(1, 10, 10, 0)
    window.finish(3, 10, 10, 0)
    assert (window.waiting, window.in_flight, window.unreserved_of(0), window.guard.set_aside) == (0, 0, 0, None)
    assert not window.usage.promise()["promise"]["broken_assumptions"]


def test_a_call_that_names_no_limit_is_given_far_more_than_is_usual() -> None:
    """At least the default, eight times what is usual, and no more than a server takes."""
    world = World(tokens=10_000)
    assert world.window.ample_outputs(0, 100, 4096) == 4096
    world.taught(1000)
    assert world.window.ample_outputs(0, 100, 4096) == 8000
    assert world.window.ample_outputs(0, 5000, 4096) == 5000


def test_a_server_that_takes_a_place_is_not_as_fast_as_the_one_before_it() -> None:
    """Nothing is known of it, so a call that ends without usage counts for all that it declared."""
    world = World().taught()
    window, before = world.window, world.outputs()
    window.part(0, SECOND_NS)
    assert window.join(Share(1000, 100), SECOND_NS) == 0
    window.arrive(0, 0, 10, 80, SECOND_NS)
    window.admit(SECOND_NS)
    window.cancel(0, 3 * SECOND_NS // 2)
    assert world.outputs() - before == 80


def test_a_call_that_was_given_back_teaches_nothing() -> None:
    """What a client's calls usually have is known from those that were computed."""
    world = World().taught(100)
    usual = world.window._reservations.usual(0)
    for request in range(80):
        world.window.arrive(request, 0, 1, 100, SECOND_NS)
        world.window.admit(SECOND_NS)
        world.window.give_back(request, SECOND_NS)
    assert world.window._reservations.usual(0) == usual == 100


def test_calls_without_outputs_are_learned() -> None:
    """A client whose calls have none is expected to have none."""
    world = World()
    for request in range(40):
        world.window.arrive(request, 0, 1, 100, 0)
        world.window.admit(0)
        world.window.finish(request, 1, 0, SECOND_NS)
    assert world.window._reservations.usual(0) == 0
