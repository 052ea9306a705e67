"""Servers that fail, come and go, without a clock: when one is left alone, for whom, and what may be tried again."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from fairsched.engines.gateway.config import LimitConfig, ServerConfig
from fairsched.engines.gateway.servers.health import PROBES_MAX, SAVED, Failure, ServerHealth, Why, retry_after_seconds
from fairsched.engines.gateway.servers.target import MISSED_MAX, Servers, Upstream

SECOND = 10**9
COUNTED: list[Why] = ["busy", "failed", "lost", "error", "late"]
WHYS: list[Why] = [*COUNTED, "limited"]


def health(servers: int = 3, **limits: Any) -> ServerHealth:
    """So many servers of which nothing is known."""
    made = ServerHealth(LimitConfig(**{"failures": 3, "down_seconds": 1.0, **limits}))
    for place in range(servers):
        made.join(place)
    return made


def fail(made: ServerHealth, place: int, client: object, why: Why, now_ns: int, **more: Any) -> None:
    """The server fails a call of the client."""
    made.failed(place, client, Failure(why, **more), now_ns)


def ups(made: ServerHealth, servers: int, now_ns: int) -> list[bool]:
    """Which servers take calls."""
    return [made.up(place, now_ns) for place in range(servers)]


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([*WHYS, "worked"]), st.integers(0, 2 * SECOND)),
    max_size=80,
)


@given(STEPS, st.integers(1, 4), st.integers(0, 100))
def test_failed_answers_never_take_the_last_server_out(steps: list[Any], servers: int, percent: int) -> None:
    """Whatever callers bring about by answers that fail, one server is up, and no more than the share are out."""
    made, now = health(servers, down_percent=percent), 1
    for place, client, what, later in steps:
        now += later
        if what == "worked":
            made.worked(place, client, now)
        else:
            fail(made, place, client, what, now)
        out = ups(made, servers, now).count(False)
        assert out < servers
        assert out <= max(servers * percent // 100, 1 if percent else 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(WHYS), st.integers(0, SECOND)), max_size=60))
def test_one_client_whose_calls_fail_everywhere_takes_no_server_out(steps: list[Any]) -> None:
    """A call that breaks servers, or a key that is over its limit, rests none for the others."""
    made, now = health(4), 1
    for place, why, later in steps:
        now += later
        fail(made, place, "poison", why, now, retry_after_seconds=60)
        assert all(ups(made, 4, now))
        assert made.limited("polite", now) == {}


@pytest.mark.parametrize("why", COUNTED)
def test_a_server_that_fails_in_a_row_is_left_alone_for_longer_each_time(why: Why) -> None:
    """1, 2, 4, 8 seconds and at most `down_seconds_max`: after the first rest one failure is enough.  Of calls of one
    client it is the server's doing when another server answers that client."""
    made, now, rests = health(down_seconds_max=8.0), 1, []
    for i in range(3):
        assert made.up(0, now)
        fail(made, 0, "a", why, now + i)
        made.worked(1, "a", now + i)
    fail(made, 0, "a", why, now + 3)
    for _ in range(6):
        assert not made.up(0, now + 3)
        until = made.next_ns(now + 3)
        assert until is not None
        rests.append(round((until - now - 3) / SECOND))
        now = until
        assert made.up(0, now + 3)
        assert made.on_trial(0)
        fail(made, 0, "a", why, now + 3)
        made.worked(1, "a", now + 3)
    assert rests == [1, 2, 4, 8, 8, 8]
    now += 9 * SECOND
    made.worked(0, "a", now)
    assert not made.on_trial(0)


def test_a_client_that_is_alone_finds_out_which_server_fails() -> None:
    """After a row of its failures its calls go elsewhere; an answer there leaves the server alone for all, a failure
    there does not."""
    for works in (True, False):
        made = health(2)
        for i in range(3):
            assert made.doubted("a", i + 1) == {}
            fail(made, 0, "a", "error", i + 1)
        assert made.doubted("a", 4) == {0: 3 + SECOND}
        assert made.up(0, 4)
        if works:
            made.worked(1, "a", 4)
        else:
            fail(made, 1, "a", "error", 4)
        assert ups(made, 2, 5) == [not works, True]
        assert made.doubted("a", 5 + SECOND) == {}


def test_a_server_that_works_again_is_left_alone_as_shortly_as_at_first() -> None:
    """The growth is forgotten as time passes without a rest."""
    made, now = health(), 1
    for _ in range(4):
        for client in "abc":
            fail(made, 0, client, "failed", now)
        until = made.next_ns(now)
        assert until is not None
        now = until
    made.worked(0, "a", now)
    now += 3600 * SECOND
    for client in "abc":
        fail(made, 0, client, "failed", now)
    assert made.next_ns(now) == now + SECOND


def test_an_answer_that_works_ends_a_row() -> None:
    """Failures now and then leave no server alone."""
    made = health()
    for i in range(100):
        fail(made, 0, i % 7, "failed", i + 1)
        if i % 2:
            made.worked(0, "a", i + 1)
        assert made.up(0, i + 1)


def test_a_server_without_a_connection_is_gone_until_it_answers() -> None:
    """At once, also the last one: calls wait for it.  Its health path brings it back before the time is over."""
    made = health(1, down_seconds=60.0)
    fail(made, 0, "a", "refused", 1, message="no connection")
    assert not made.up(0, 2)
    assert made.status(0, 1)["last_failure"] == "no connection"
    assert made.next_ns(1) == 1 + 60 * SECOND
    made.probed(0, None, 3)
    assert made.up(0, 3)
    assert made.on_trial(0)
    made.worked(0, "a", 4)
    assert not made.on_trial(0)


def test_a_health_path_that_fails_takes_a_server_out_until_it_answers() -> None:
    """Not at the first time; also all servers."""
    made = health(2)
    for _ in range(PROBES_MAX - 1):
        made.probed(0, "no answer", 1)
    assert made.up(0, 1)
    for place in (0, 1, 1):
        made.probed(place, "no answer", 2)
    assert ups(made, 2, 10**15) == [False, False]
    made.probed(0, None, 3)
    assert ups(made, 2, 3) == [True, False]


def test_a_key_over_its_limit_rests_servers_for_its_client_only() -> None:
    """Until the time that the server said, at most `down_seconds_max`; the gateway's own key is all clients'."""
    made = health(2, down_seconds_max=300.0)
    fail(made, 0, "a", "limited", 1, retry_after_seconds=30)
    fail(made, 1, "a", "limited", 1, retry_after_seconds=10**9)
    assert made.limited("a", 2) == {0: 1 + 30 * SECOND, 1: 1 + 300 * SECOND}
    assert made.limited("b", 2) == {}
    assert ups(made, 2, 2) == [True, True]
    assert made.limited("a", 2 + 30 * SECOND).keys() == {1}
    assert made.limited("a", 2 + 300 * SECOND) == {}
    fail(made, 0, "a", "full", 5, retry_after_seconds=7)
    made.probed(0, None, 6)
    assert not made.up(0, 6)
    assert made.next_ns(6) == 5 + 7 * SECOND


def test_a_server_that_answers_others_is_not_late() -> None:
    """A call or a probe that timed out says nothing of a server that brought bytes in the second half of the wait."""
    made, wait = health(2), 10 * SECOND
    for i in range(20):
        made.heard(0, (10 * i + 6) * SECOND)
        fail(made, 0, i, "late", 10 * (i + 1) * SECOND, waited_seconds=wait / SECOND)
        made.probed(0, "no answer", 10 * (i + 1) * SECOND, waited_seconds=wait / SECOND)
    assert made.up(0, 200 * SECOND)
    made.heard(0, 1001 * SECOND)
    for i in range(3):
        fail(made, 0, i, "late", 1010 * SECOND, waited_seconds=wait / SECOND)
    assert not made.up(0, 1010 * SECOND)
    assert not made.hangs(0)
    for _ in range(PROBES_MAX):
        made.probed(0, "no answer", 1010 * SECOND, waited_seconds=wait / SECOND)
    assert made.hangs(0)


def test_nothing_is_known_of_a_server_that_left() -> None:
    """What comes late of it changes nothing, and a new one at its place begins anew."""
    made = health(2)
    for client in "abc":
        fail(made, 0, client, "failed", 1)
    made.part(0)
    fail(made, 0, "a", "refused", 2)
    made.worked(0, "a", 2)
    made.probed(0, "no answer", 2)
    assert made.next_ns(2) is None
    made.join(0)
    assert made.up(0, 2)


# --- retries --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=600), st.integers(0, 100))
def test_retries_are_a_share_of_each_clients_answered_calls(steps: list[Any], percent: int) -> None:
    """In any stretch a client has those saved up and the share of its calls; another client's retries take none."""
    made, alone = health(retry_percent=percent), health(retry_percent=percent)
    calls, retries = Counter[str](), Counter[str]()
    for client, retry in steps:
        if not retry:
            calls[client] += 1
            for each in (made, alone)[: 1 + (client == "a")]:
                each.worked(0, client, 1)
            continue
        allowed = made.may_retry(client)
        retries[client] += allowed
        if client == "a":
            assert alone.may_retry(client) == allowed
    for client in "ab":
        assert retries[client] <= SAVED + calls[client] * percent // 100


def test_when_a_server_wants_to_be_asked_again() -> None:
    """Seconds, or a date; what is neither says nothing."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_seconds("120", now) == 120
    assert retry_after_seconds(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert retry_after_seconds(format_datetime(now - timedelta(seconds=90), usegmt=True), now) == 0
    for text in (None, "", "soon", "nan", "inf", "Mon, 99 Foo 2026 99:00:00 GMT"):
        assert retry_after_seconds(text, now) is None


@given(st.text(max_size=40))
def test_any_retry_after_is_read(text: str) -> None:
    """It raises nothing, and is no negative time."""
    seconds = retry_after_seconds(text)
    assert seconds is None or 0 <= seconds < float("inf")


# --- who is there ---------------------------------------------------------------------------------------------------

NAMED = ServerConfig("http://pool.example:8000", 100, resolve=True)
FIXED = ServerConfig("http://10.0.0.1:8000", 100)


def apply(servers: Servers, wanted: list[Upstream]) -> None:
    """Those who leave are gone, and those who join have the lowest free places."""
    leave, stay, join = servers.changes(wanted)
    for place in leave:
        del servers[place]
    for place, target in stay:
        servers[place] = target
    for target in join:
        servers[next(i for i in range(99) if i not in servers)] = target


@given(st.lists(st.sets(st.integers(1, 4)), max_size=20))
def test_the_servers_are_those_that_a_name_resolved_to_lately(answers: list[set[int]]) -> None:
    """An address joins at once, and leaves when so many answers in a row were without it; a lookup without an answer
    changes nothing; a server that stays keeps its place."""
    servers, said = Servers(), [answer for answer in answers if answer]
    for answer in answers:
        before = dict(servers)
        servers.resolved(NAMED, {f"10.0.0.{i}" for i in answer})
        apply(servers, servers.wanted([NAMED, FIXED]))
        for place, target in servers.items():
            if target in before.values():
                assert before.get(place) == target
    lately = set().union(*said[-MISSED_MAX:]) if said else set()
    there = {target.address for target in servers.values() if target.config == NAMED}
    assert there == {f"10.0.0.{i}" for i in lately}


def test_an_address_is_called_under_its_name() -> None:
    """The URL has the address; name and port are told to the server, and its certificate is checked for the name."""
    asked: list[tuple[Any, ...]] = []

    class Session:
        def request(self, method: str, url: URL, *, headers: dict[str, str], **more: Any) -> None:
            asked.append((method, str(url), headers, more["server_hostname"]))

    for server in (Upstream(NAMED, "10.0.0.7"), Upstream(FIXED)):
        server.request(cast(Any, Session()), "GET", "/health", {})
    assert asked == [
        ("GET", "http://10.0.0.7:8000/health", {"Host": "pool.example:8000"}, "pool.example"),
        ("GET", f"{FIXED.url}/health", {}, None),
    ]
    assert Upstream(NAMED, "fd00::7").url == "http://[fd00::7]:8000"
    assert Upstream(ServerConfig("https://pool.example/base", 9), "10.0.0.7").url == "https://10.0.0.7/base"


def test_settings_of_a_server_change_and_it_stays() -> None:
    """Another window or key is the same server; another address is another one."""
    servers = Servers()
    apply(servers, servers.wanted([FIXED]))
    larger = ServerConfig(FIXED.url, 200, api_key="sk-1")
    leave, stay, join = servers.changes(servers.wanted([larger]))
    assert (leave, stay, join) == ([], [(0, Upstream(larger))], [])
    leave, stay, join = servers.changes([Upstream(ServerConfig("http://10.0.0.2:8000", 100))])
    assert (leave, stay, len(join)) == ([0], [], 1)
