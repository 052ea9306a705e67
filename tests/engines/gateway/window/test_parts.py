"""The parts of a window by themselves: accounts, servers, what waits, how fast servers are, and what a window tells."""

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairsched.engines.gateway import Share, Window, request_of, window_policy
from fairsched.engines.gateway.window.charges import Charges, HoldMeter
from fairsched.engines.gateway.window.estimates import Estimates
from fairsched.engines.gateway.window.flight import CallInFlight, admitted
from fairsched.engines.gateway.window.pool import ServerPool
from fairsched.engines.gateway.window.usage_account import UsageAccount
from fairsched.engines.gateway.window.waiting import WaitingRequests
from fairsched.engines.serving import RouterGuard
from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import (
    Arrived,
    Cancelled,
    Decoded,
    Event,
    Finished,
    Held,
    Prefilled,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.request import Client, Request
from fairsched.policies.guarantees import SECOND_NS, WindowTerms, window_curve
from fairsched.policies.registry import ROUTERS

TERMS = WindowTerms(0, hold_ns=60, call_ns=600)


def request(request_id: int, client: int = 0, prompt: int = 10, output: int = 10) -> Request:
    """A request of so many tokens."""
    return request_of(request_id, client, prompt, output, 0)


def window(*shares: Share, told: list[Event] | None = None, terms: WindowTerms = TERMS, state: object = None) -> Window:
    """A window over such servers, and what it tells."""
    policy, router = window_policy("fcfs+deficit", 100), ROUTERS["join-shortest-queue"]
    return Window(policy, router, shares, () if told is None else (told.append,), state, terms)


@pytest.mark.parametrize("end", [Finished(0, 0, 1, 0, 3), Cancelled(0, 0, 1, 0, True, 0, 0)])
def test_a_number_that_comes_again_is_another_request(end: Event) -> None:
    """What the first one was charged is not counted against it; a refund takes back what it was charged."""
    account = UsageAccount(window_policy("fcfs+deficit", 100), 100, TERMS)
    for event in (admitted(request(1), 5, 10, 0), end, admitted(request(1), 7, 10, 0)):
        account.record(event)
    assert (account.prompt_tokens[0], account.requests[0]) == (12, 2)
    account.record(Cancelled(0, 0, 1, 0, True, 7, 0))
    assert account.prompt_tokens[0] == 5


@pytest.mark.parametrize("resumed", [False, True])
def test_only_an_account_from_the_beginning_holds_the_gate_to_its_kernels(resumed: bool) -> None:
    """One that goes on from debts that it did not see cannot tell whom the gate would let in."""
    account = UsageAccount(window_policy("fcfs+deficit", 100), 100, TERMS, resumed=resumed)
    assert account.monitor is not None
    assert (account.monitor.report().assumptions["GateRespected"].violated is None) is resumed


def pool(*shares: Share) -> ServerPool:
    """Servers with such shares."""
    servers = ServerPool(RouterGuard(ROUTERS["join-shortest-queue"], logging.getLogger("test")))
    for share in shares:
        servers.join(share, 0)
    return servers


def test_of_some_servers_the_one_with_room_and_fewest_requests_is_chosen() -> None:
    """A server with exactly so much has room; one that is down has none, and without any of them the router chooses."""
    servers = pool(Share(20, 5), Share(20, 5), Share(30, 5))
    for place, tokens in ((0, 10), (1, 4), (1, 4)):
        servers.take(place, tokens, request(place), admitted(request(place), 5, 10, 0))
    both = frozenset({0, 1})
    assert [servers.route(request(9), tokens, 0, both) for tokens in (10, 11, 13)] == [0, 1, 0]
    servers.take(0, 5, request(5), admitted(request(5), 5, 10, 0))
    servers.take(0, 0, request(6), admitted(request(6), 5, 10, 0))
    assert [servers.route(request(9), tokens, 0, both) for tokens in (5, 12, 13)] == [1, 1, 1]
    servers[1].up = False
    assert servers.route(request(9), 30, 0, both) == 0
    servers[0].up = False
    assert servers.route(request(9), 30, 0, both) == 2
    servers.part(2, 0)
    assert (servers.places, servers[2].vacant, servers.tokens) == ([0, 1], True, 40)
    servers.part(0, 0)
    assert (servers.places, servers[0].vacant) == ([1], False)
    for _ in range(3):
        servers.release(0, 5, Finished(0, 0, 0, 0, 1))
    assert servers[0].vacant
    assert [servers.join(Share(tokens, 1), 0) for tokens in (7, 8)] == [0, 2]
    assert [server.share.tokens for server in servers] == [7, 20, 8]


def test_a_router_hears_of_servers_that_come_and_go_and_of_their_requests() -> None:
    """In the order in which it happens; a server that parts is gone when its last request has ended.  Asked, it is
    shown the servers that have room, with their requests and free tokens."""
    told: list[Event] = []
    shown: list[ClusterView] = []

    def route(_: Request, view: ClusterView) -> SimpleNamespace:
        shown.append(view)
        return SimpleNamespace(worker=1)

    router: Any = SimpleNamespace(observe=told.append, route=route)
    servers = ServerPool(router)
    assert servers.join(Share(20, 5), 1) == 0
    let_in = admitted(request(1), 5, 10, 2)
    servers.take(0, 20, request(1), let_in)
    servers.part(0, 3)
    ended = Finished(4, 0, 1, 0, 10)
    servers.release(0, 20, ended)
    assert told == [WorkerJoined(1, 0, 20), Arrived(2, 0, request(1)), let_in, ended, WorkerLeft(4, 0)]
    servers.join(Share(7, 1), 5)
    servers.part(0, 6)
    assert told[5:] == [WorkerJoined(5, 0, 7), WorkerLeft(6, 0)]
    for tokens in (20, 30, 8):
        servers.join(Share(tokens, 5), 7)
    servers.take(1, 12, request(2), let_in)
    assert servers.route(request(3), 9, 8) == 1
    assert shown == [ClusterView(8, (WorkerLoad(0, 0, 0, 0, 20, 20), WorkerLoad(1, 0, 1, 0, 18, 30)))]


def test_what_a_server_holds_beyond_its_share_takes_room_elsewhere_and_one_that_is_down_gives_none() -> None:
    """One more request may take what is free at the server with the most room, and in all together."""
    assert pool().free_tokens == 0
    servers = pool(Share(20, 5), Share(30, 5), Share(10, 5))
    servers[1].up = False
    servers.take(2, 15, request(0), admitted(request(0), 5, 10, 0))
    assert servers.free_tokens == 15


@example(5, 3, 16)
@given(st.integers(0, 20), st.integers(0, 9), st.integers(1, 150))
def test_a_call_is_astray_beyond_twice_what_it_reserved_and_an_eighth_of_what_it_declared(
    produced: int, reserved: int, declared: int
) -> None:
    """Exactly so much is not far more, and a reservation that grows since counts as it was at first."""
    flight = CallInFlight(request(0, output=declared), 0, reserved, 5, 0, produced=produced)
    flight.reserved = declared
    assert flight.astray == (produced > 2 * reserved and produced > declared // 8)


def test_what_is_set_aside_waits_and_is_not_chosen() -> None:
    """It comes back when no other of its client may be chosen, and what leaves the queue leaves it there as well."""
    waiting = WaitingRequests()
    for i, client in enumerate((0, 1, 0)):
        assert waiting.add(request(i, client))
    assert [each.id for each in waiting.set_aside(0)] == [0, 2]
    assert not waiting.add(request(3, 0))
    assert (len(waiting), waiting.choosable, waiting.oldest().id) == (4, 1, 1)
    assert waiting.set_aside(0) == ()
    assert [each.id for each in waiting.aside(lambda client: client == 0)] == [0, 2, 3]
    assert waiting.remove(request(2, 0)) is None
    assert (waiting.choosable, waiting.is_aside(request(2, 0))) == (1, False)
    waiting.back(request(0, 0))
    assert (waiting.choosable, waiting.oldest().id) == (2, 0)
    # A request of the client may be chosen, so that the others wait for it.
    assert waiting.aside(lambda client: client == 0) == ()
    waiting.remove(request(0, 0))
    assert [each.id for each in waiting.aside(lambda client: True)] == [3]


def test_how_fast_a_server_is_is_that_of_the_call_at_nine_tenths_of_its_tokens() -> None:
    """Slow calls of few tokens do not count for more; another server's is used while a server's is not known, and one
    that took a place starts anew.  A call without outputs or time says nothing."""
    estimates = Estimates()

    def ends(server: int, outputs: int, seconds: int) -> None:
        estimates.learn(CallInFlight(request(0), server, 10, 5, 0), outputs, seconds * SECOND_NS)

    def of(server: int, seconds: int) -> int:
        flight = CallInFlight(request(1, output=10_000), server, 10, 5, 0)
        return estimates.outputs(flight, seconds * SECOND_NS, 77)

    assert of(0, 2) == 77
    ends(0, 0, 1)
    ends(0, 5, 0)
    assert of(0, 2) == 77
    for _ in range(9):
        ends(0, 10, 1)
    assert of(0, 2) == 20
    ends(0, 10, 10)
    assert of(0, 2) == 20
    ends(0, 900, 9)
    assert (of(0, 2), of(1, 3)) == (200, 300)
    ends(1, 1, 1)
    assert of(1, 3) == 3
    estimates.forget(0)
    assert of(0, 3) == 3
    ends(2, 8, 8)
    ends(2, 2, 1)
    assert of(2, 2) == 4


def test_outputs_that_were_too_many_are_set_against_the_next() -> None:
    """And clients with nothing to pay are in no event."""
    charges = Charges(0, 60, 600)
    charges.produced(0, -3)
    charges.produced(1, 0)
    assert charges.take(1) == []
    charges.produced(0, 5)
    charges.produced(2, 1)
    assert charges.take(2) == [Decoded(2, 0, 1, (0, 2), (2, 1))]
    assert charges.take(3) == []
    charges.holds.begin(1, 0, 5, 3)
    assert charges.take(14) == []
    assert charges.take(15) == [Held(15, 0, (0,), (1,))]


@given(
    st.lists(st.tuples(st.integers(-3, 40), st.sampled_from(["begin", "grow", "end", "take"]), st.integers(0, 7))),
    st.integers(1, 60),
    st.integers(1, 90),
)
def test_what_is_held_is_charged_to_the_nanosecond(
    steps: list[tuple[int, str, int]], hold_ns: int, call_ns: int
) -> None:
    """After each tick a client was charged the whole units of what its calls held, each for `call_ns` at most, counted
    nanosecond by nanosecond; nothing is charged before its unit is full, and time that runs back stands still."""
    meter, charged = HoldMeter(hold_ns, call_ns), Counter[int]()
    calls: dict[int, list[tuple[int, int, int | None]]] = {}  # by request: (tokens, from, to), all of its client id % 3
    begun: dict[int, int] = {}
    now = clock = 0

    def held(client: int) -> int:
        """What the calls of a client held until now."""
        total = 0
        for request_id, parts in calls.items():
            if request_id % 3 == client:
                for tokens, since, until in parts:
                    last = min(now if until is None else until, begun[request_id] + call_ns)
                    total += tokens * max(last - since, 0)
        return total

    for number, (passes, action, some) in enumerate(steps):
        clock += passes
        now = max(now, clock)
        open_calls = [request_id for request_id, parts in calls.items() if parts[-1][2] is None]
        if action == "begin":
            meter.begin(number, number % 3, some, clock)
            calls[number], begun[number] = [(some, now, None)], now
        elif action == "take":
            charged.update(meter.take(clock))
        elif open_calls:
            request_id = open_calls[some % len(open_calls)]
            if action == "grow":
                meter.grow(request_id, some, clock)
                calls[request_id].append((some, now, None))
            else:
                meter.end(request_id, clock)
                calls[request_id] = [(tokens, since, now) for tokens, since, _ in calls[request_id]]
        for client in range(3):
            assert meter.held_token_ns(client) == held(client)
            assert charged[client] <= held(client) // hold_ns
            if action == "take":
                assert charged[client] == held(client) // hold_ns


def test_a_window_tells_of_itself_first_tokens_and_what_was_more_than_declared() -> None:
    """It joins with its tokens, a request's first output ends its prompt once, and outputs and prompts beyond what was
    said are counted."""
    told: list[Event] = []
    here = window(Share(60, 5), Share(40, 5), told=told)
    assert [event for event in told if isinstance(event, WorkerJoined)] == [WorkerJoined(0, 0, 100)]
    here.arrive(1, 0, 10, 4, 1)
    here.admit(1)
    for _ in range(3):
        here.produced(1, 2, 2)
    assert [event for event in told if isinstance(event, Prefilled)] == [Prefilled(2, 0, 1, 0, 10, 0)]
    assert here.overrun_tokens == 2
    here.finish(1, 13, 6, 3)
    assert here.overrun_tokens == 2 + 3


def test_a_window_grows_with_its_servers() -> None:
    """The largest server's window is the largest request; the sum stays when servers shrink, and what they take does
    not."""
    told: list[Event] = []
    here = window(Share(60, 5), Share(40, 5), told=told, terms=WindowTerms())
    assert (here.largest, here.tokens) == (60, 100)
    here.resize(0, Share(50, 5), 1)
    assert (here.largest, here.tokens) == (50, 100)
    here.resize(1, Share(70, 5), 2)
    assert (here.largest, here.tokens) == (70, 120)
    assert [event.kv_capacity_tokens for event in told if isinstance(event, WorkerJoined)] == [100, 120]
    assert here.refuses(30, 40) is None
    assert here.refuses(30, 41) is not None
    assert window().largest == 0
    assert window().refuses(1_000, 1_000) is None


def test_what_was_there_already_is_in_the_accounts_and_no_listener_hears_of_it() -> None:
    """An adopted request whose prompt is charged takes room, is charged its outputs silently, teaches nothing about
    speed, and is no part of the accounts that go on elsewhere."""
    first, told = window(Share(60, 5)), list[Event]()
    first.arrive(1, 0, 10, 10, 0)
    assert first.admit(0)
    here = window(Share(60, 5), told=told, state=first.accounts(0))
    before = len(told)
    here.adopt(request(1), 0, 0, charged=True)
    assert here.in_flight_tokens == 20
    here.produced(1, 3, SECOND_NS)
    here.charge(SECOND_NS)
    assert here.accounts(SECOND_NS) is not None
    here.finish(1, 10, 5, 2 * SECOND_NS)
    assert [type(event) for event in told[before:]] == []
    assert (here.in_flight, here.in_flight_tokens, here.usage.output_tokens[0]) == (0, 0, 0)
    assert here.guard.set_aside is None
    here.arrive(2, 0, 10, 10, 2 * SECOND_NS)
    here.admit(2 * SECOND_NS)
    here.cancel(2, 4 * SECOND_NS)
    assert here.usage.output_tokens[0] == 10


@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_that_has_more_set_aside_gets_back_what_may_enter(clients: int) -> None:
    """Four declare 310 where ten are usual and 702 may be unreserved by a client, or by those of a group: two go; when
    one has ended a third may come back and not the fourth, which does once the third has given up."""
    told: list[Event] = []
    here = window(Share(420, 9), told=told, terms=WindowTerms(117))
    for client in range(clients):
        here.configure(Client(client, str(client), 1, (("group", 1),)), 0)
    for i in range(4):
        here.arrive(100 + i, 0, 1, 10, 0)
        here.admit(0)
        here.finish(100 + i, 1, 10, SECOND_NS)
    for i in range(4):
        here.arrive(i, i % clients, 100, 310, SECOND_NS)
    assert [each.request_id for each in here.admit(SECOND_NS)] == [0, 1]
    assert (here.unreserved_of(0), here.waiting) == (600, 2)

    def back() -> list[int]:
        """The requests that came back since this was last asked."""
        came = [event.request.id for event in told if isinstance(event, Arrived)]
        told.clear()
        return came

    back()
    here.finish(0, 100, 10, SECOND_NS)
    assert back() == [2]
    assert here.cancel(2, SECOND_NS)
    assert back() == [3]


def test_outputs_that_came_count_before_the_next_is_let_in() -> None:
    """A client whose outputs have used up its credit waits for another one that came later; and while no call has ended
    anywhere, no outputs are made up."""
    here = window(Share(1_000, 9))
    here.arrive(0, 0, 10, 100, 0)
    here.admit(0)
    here.charge(SECOND_NS)
    assert here.usage.output_tokens[0] == 0
    here.produced(0, 60, SECOND_NS)
    here.arrive(1, 0, 10, 10, SECOND_NS)
    here.arrive(2, 1, 10, 10, SECOND_NS)
    assert [each.request_id for each in here.admit(SECOND_NS)] == [2, 1]


@pytest.mark.parametrize("waited_s", [1, 500])
def test_a_wait_is_held_to_the_rate_that_servers_are_said_to_keep(waited_s: int) -> None:
    """Three clients have the bound of three: a wait within it breaks nothing, and a longer one is a violation that
    servers below the stated rate explain; without a rate no wait is promised."""
    assert "wait_bound_ns" not in window(Share(100, 9)).usage.promise()["promise"]
    here = window(Share(100, 9), terms=WindowTerms(0, hold_ns=SECOND_NS, call_ns=SECOND_NS, tokens_per_s=10))
    for number, client in enumerate((0, 1, 2)):
        here.arrive(number, client, 50, 50, 0)
    (first,) = here.admit(0)
    here.produced(first.request_id, 50, waited_s * SECOND_NS)
    here.finish(first.request_id, 50, 50, waited_s * SECOND_NS)
    assert here.admit(waited_s * SECOND_NS)
    assert here.usage.monitor is not None
    report, said = here.usage.monitor.report(), here.usage.promise()["promise"]
    assert report.wait is not None
    assert report.wait.cost == waited_s * SECOND_NS
    assert said["wait_bound_ns"] == report.wait_bound_ns
    # Two of a quantum for each other client and what it owes, what is in flight, and a window early and late.
    charged = 2 * (2 * 100 + 398) + 3 * 398 + 3 * 100
    assert report.wait_bound_ns == charged * SECOND_NS // 20
    late = report.wait.cost > report.wait_bound_ns
    assert late is (waited_s == 500)
    assert (report.wait_violations, report.bound_violations) == (late, late)
    assert bool(report.assumptions["CapacityFloor"].violated) is late
    assert report.unexplained is None


def test_an_account_that_grows_promises_waits_of_all_that_calls_may_come_to() -> None:
    """The curve of its servers is that of the window and the over-run together."""
    terms, policy = WindowTerms(0, tokens_per_s=100), window_policy("fcfs+deficit", 100)
    account = UsageAccount(policy, 100, terms)
    account.grow(200, terms, 50, 1)
    assert account.monitor is not None
    wait = account.monitor.promise.worst_wait
    assert wait is not None
    assert wait.curve == window_curve(policy.guarantee, 250, terms)


def test_an_account_without_a_promise_counts_all_the_same() -> None:
    """It says nothing of bounds."""
    account = UsageAccount(window_policy("fcfs+deficit", 100), 100, TERMS)
    assert set(account.promise()) == {"promise"}
    account.monitor = None
    account.grow(200, TERMS, 50, 1)
    account.record(admitted(request(1), 5, 10, 0))
    assert (account.promise(), account.prompt_tokens[0]) == ({}, 5)
