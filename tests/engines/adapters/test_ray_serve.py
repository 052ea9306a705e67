"""Handles and their actor without Ray: whatever fails, every call is placed or told why not, and the books come out."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.adapters.ray_serve import Wanted
from fairsched.engines.adapters.ray_serve.attempts import Attempt, Attempts
from fairsched.engines.adapters.ray_serve.connection import ActorConnection, TooLargeError, UnreachableError
from fairsched.engines.adapters.ray_serve.coordinator import parts
from fairsched.engines.adapters.ray_serve.extract import extractor_of, usage_said
from fairsched.engines.adapters.ray_serve.host import CoordinatorHost
from fairsched.engines.adapters.ray_serve.messages import (
    AskPlace,
    Died,
    EndedCall,
    HandleHello,
    Message,
    encode,
    heard_of,
)
from fairsched.engines.adapters.ray_serve.settings import RouterSettings, settings_of
from tests.support.adapters.loops import in_loop

QUICK = RouterSettings(
    window_tokens=40,
    quantum=20,
    heartbeat_seconds=0.02,
    handle_timeout_seconds=0.2,
    patience_seconds=0.3,
    weights={"gold": 4},
    idle_seconds=0.1,
)


class Place:
    """Where an actor lives: it may be there or not, it may be killed and come back, and answers may get lost."""

    def __init__(self, config: RouterSettings = QUICK, lossy: float = 0.0, seed: int = 0) -> None:
        self.config = config
        self.lossy = lossy
        self.random = random.Random(seed)
        self.host: CoordinatorHost | None = None
        self.running: asyncio.Task[None] | None = None
        self.lives = 0

    def revive(self) -> CoordinatorHost:
        """The actor is there, from now on or anew."""
        if self.running is not None:
            self.running.cancel()
        self.host = CoordinatorHost(self.config, again=self.lives > 0)
        self.lives += 1
        self.running = asyncio.create_task(self.host.run())
        return self.host

    def kill(self) -> None:
        """The actor is gone with all that it knew."""
        assert self.running is not None
        self.running.cancel()
        self.host = None

    async def connect(self) -> "Line":
        """What a handle finds."""
        if self.host is None:
            raise ConnectionError("no actor")
        return Line(self)

    def handle(self, name: str, replicas: dict[str, int]) -> ActorConnection:
        """A handle that sees these replicas."""
        connection = ActorConnection(self.config, name, self.connect)
        connection.sees(replicas)
        return connection


class Line:
    """The way to one life of the actor; a lost answer is lost after the actor has acted on the call."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.host = place.host

    async def __call__(self, method: str, handle: str, session: int, *raw: bytes) -> bytes:
        """Call that method of the host."""
        await asyncio.sleep(0)
        if self.host is None or self.place.host is not self.host:
            raise ConnectionError("the actor died")
        answer: bytes = await getattr(self.host, method)(handle, session, *raw)
        if self.place.host is not self.host or self.place.random.random() < self.place.lossy:
            raise ConnectionError("the answer was lost")
        return answer


def run(work: Awaitable[None]) -> None:
    """Run it in a loop of its own, and let nothing behind."""

    async def main() -> None:
        try:
            await work
        finally:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())


async def until(said: Callable[[], bool]) -> None:
    """Wait until something is so; fails when that takes too long."""
    async with asyncio.timeout(20):
        while not said():
            await asyncio.sleep(0.005)


def books(host: CoordinatorHost | None) -> tuple[int, int, int]:
    """What waits, what is in flight, and its tokens."""
    assert host is not None
    document: Any = host.coordinator.status()
    return document["waiting"], document["in_flight"], document["in_flight_tokens"]


# --- the actor is there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_two_handles_share_one_policy_by_weight(together: bool) -> None:
    """Clients with weights 4 and 1, each behind a handle of its own, get 4 : 1 from one actor; with an actor each (a
    router's own state, as Serve's are) they get 1 : 1 of the same replica."""
    answered: Counter[str] = Counter()
    free = asyncio.Semaphore(2)

    async def client(name: str, connection: ActorConnection) -> None:
        while answered.total() < 200:
            placed = await connection.place("id", name, 10, 10)
            async with free:
                await asyncio.sleep(0.001)
            answered[name] += 1
            connection.end(placed.ticket)

    async def work() -> None:
        places = [Place(), Place()]
        for place in places:
            place.revive()
        handles = [places[0 if together else i].handle(name, {"r": 2}) for i, name in enumerate(("gold", "free"))]
        await asyncio.gather(*(client(name, handles[i]) for i, name in enumerate(("gold", "free")) for _ in range(8)))

    run(work())
    ratio = answered["gold"] / answered["free"]
    assert 3 <= ratio <= 5 if together else 0.8 <= ratio <= 1.25


@in_loop
async def test_what_fits_nowhere_is_refused_and_a_cancelled_call_leaves_nothing_behind() -> None:
    """A call larger than a replica's window is told so; one that is cancelled while it waits is out of the queue, and
    one that is cancelled with its place on the way gives it back."""
    place = Place()
    host = place.revive()
    handle = place.handle("a", {"r": 2})
    with pytest.raises(TooLargeError, match="over the window of 40"):
        await handle.place("1", "x", 30, 11)
    with pytest.raises(TooLargeError, match="over the window of 40"):
        await place.handle("sees nobody yet", {}).place("1", "x", 30, 11)
    first = await handle.place("2", "x", 20, 20)
    second = asyncio.create_task(handle.place("3", "x", 20, 20))
    await until(lambda: books(host) == (1, 1, 40))
    second.cancel()
    await until(lambda: books(host) == (0, 1, 40))
    third = asyncio.create_task(handle.place("4", "x", 20, 20))
    await until(lambda: books(host)[0] == 1)
    handle.end(first.ticket)
    third.cancel()
    await until(lambda: books(host) == (0, 0, 0))
    assert handle.held == {}
    handle.end(first.ticket)  # Twice changes nothing.
    assert (await handle.place("5", "x", 20, 20)).replica == "r"


@in_loop
async def test_a_lost_handle_and_a_dead_replica_give_back_what_they_held() -> None:
    """A handle that falls silent holds nothing after its timeout, and a replica that dies frees nobody's place but its
    own: what waited goes to another."""
    place = Place()
    host = place.revive()
    one, two = place.handle("one", {"r": 1, "s": 1}), place.handle("two", {"r": 1, "s": 1})
    held = await one.place("1", "x", 20, 20)
    other = await two.place("2", "x", 20, 20)
    assert {held.replica, other.replica} == {"r", "s"}
    waits = asyncio.create_task(two.place("3", "x", 20, 20))
    await until(lambda: books(host) == (1, 2, 80))
    one.stop()
    assert (await asyncio.wait_for(waits, 5)).replica == held.replica
    assert host.coordinator.outcomes["lost with its handle"] == 1
    two.tell(Died(other.replica))
    await until(lambda: books(host) == (0, 1, 40))
    assert host.coordinator.outcomes["lost with its replica"] == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(two.place("4", "x", 20, 20), 0.1)
    two.sees({held.replica: 2, "t": 1})
    assert (await two.place("5", "x", 20, 20)).replica == "t"


@in_loop
async def test_what_a_replica_reports_is_charged_instead_of_what_was_declared() -> None:
    """Without a report an answered call is charged its declared output; with one, what it says."""
    place = Place()
    host = place.revive()
    handle = place.handle("a", {"r": 2})
    silent = await handle.place("1", "gold", 10, 20)
    handle.end(silent.ticket)
    told = await handle.place("2", "free", 10, 20)
    assert await host.used("2", 3, 4)
    assert not await host.used("2", 3, 4)
    assert not await host.used("nobody", 3, 4)
    handle.end(told.ticket)
    await until(lambda: books(host) == (0, 0, 0))
    clients = (await host.status())["clients"]
    assert (clients["gold"]["prompt_tokens"], clients["gold"]["output_tokens"]) == (10, 20)
    assert (clients["free"]["prompt_tokens"], clients["free"]["output_tokens"]) == (4, 3)
    await host.configure({"free": 2})
    weights = {name: each["weight"] for name, each in (await host.status())["clients"].items()}
    assert weights == {"gold": 1, "free": 2}


# --- the actor fails ------------------------------------------------------------------------------------------------


@in_loop
async def test_without_an_actor_calls_go_around_it_in_time_and_are_charged_when_it_is_there() -> None:
    """Nobody waits longer than `patience_seconds`; what went around is in flight for an actor that comes."""
    place = Place()
    handle = place.handle("a", {"r": 2})
    with pytest.raises(UnreachableError):
        await handle.place("1", "x", 10, 10)
    ticket = handle.went_around("1", "x", 10, 10, "r")
    host = place.revive()
    await until(lambda: books(place.host) == (0, 1, 20))
    assert host.coordinator.outcomes["around the policy"] == 1
    assert (await handle.place("2", "x", 10, 10)).replica == "r"
    handle.end(ticket)
    await until(lambda: books(place.host) == (0, 1, 20))
    late = handle.went_around("3", "x", 5, 5, "r")  # It was sent when the actor came back.
    await until(lambda: books(place.host) == (0, 2, 30))
    handle.end(late, "left")
    await until(lambda: books(place.host) == (0, 1, 20))


@in_loop
async def test_accounts_are_kept_also_by_a_handle_that_always_has_news() -> None:
    """News does not displace them: under load there is always some."""
    place = Place(replace(QUICK, window_tokens=4000, handle_timeout_seconds=20.0, idle_seconds=60.0))
    host = place.revive()
    raw = await host.hello("b", 1, encode(HandleHello({"r": 1})))
    assert heard_of(raw).known
    await host.exchange("b", 1, messages_encoded(AskPlace(0, "x", "x", 1, 1)))
    await until(lambda: host._kept is not None and host._kept.number == 1)
    waits = asyncio.create_task(host.hear("b", 1))
    done = asyncio.create_task(
        host.exchange("b", 1, messages_encoded(AskPlace(1, "x", "x", 1, 1), EndedCall(0, "answered")))
    )
    heard = [heard_of(await each) for each in (waits, done)]
    assert heard[0].accounts is not None


def messages_encoded(*messages: Message) -> bytes:
    """Messages as a handle sends them."""
    return encode(messages)


@in_loop
async def test_an_actor_made_anew_knows_who_owes_who_waits_and_what_is_in_flight() -> None:
    """Killed and started again, it adopts what is in flight, lets nobody in before it knows, and goes on from the debts
    that the handles kept."""
    # Handles that are silent for a while on a busy machine are no part of this test.
    place = Place(replace(QUICK, weights={}, patience_seconds=20.0, handle_timeout_seconds=5.0))
    host = place.revive()
    one, two = place.handle("one", {"r": 1}), place.handle("two", {"r": 1})
    for _ in range(6):
        one.end((await one.place("x", "greedy", 2, 38)).ticket)
    running = await one.place("x", "other", 2, 38)
    await until(lambda: one._accounts is not None and one._accounts.number == 7)
    waits = [asyncio.create_task(two.place("y", "greedy", 2, 38)) for _ in range(3)]
    await until(lambda: books(host)[0] == 3)
    place.kill()
    modest = [asyncio.create_task(two.place("z", "modest", 10, 10)) for _ in range(3)]
    await asyncio.sleep(0.05)
    host = place.revive()
    await until(lambda: books(host) == (6, 1, 40))
    assert host.coordinator.outcomes["adopted"] == 1
    one.end(running.ticket)
    order = []
    for _ in range(2):
        await until(lambda: any(task.done() for task in modest + waits))
        (done,) = [task for task in modest + waits if task.done()]
        order.append("modest" if done in modest else "greedy")
        (modest if done in modest else waits).remove(done)
        two.end(done.result().ticket)
    assert order == ["modest"] * 2  # The debt of before the restart keeps those back who asked first.
    assert host.coordinator.outcomes["around the policy"] == 0
    for _ in range(4):
        await until(lambda: any(task.done() for task in modest + waits))
        (done,) = [task for task in modest + waits if task.done()]
        (modest if done in modest else waits).remove(done)
        two.end(done.result().ticket)
    await until(lambda: books(host) == (0, 0, 0))


@in_loop
async def test_nothing_is_kept_for_handles_that_are_gone() -> None:
    """Handles come with every process and go: what the actor knows of those that are there is all that it holds."""
    # Handles that are silent for a while on a busy machine are no part of this test.
    place = Place(replace(QUICK, handle_timeout_seconds=1.0, idle_seconds=60.0))
    host = place.revive()
    for i in range(5):
        handle = place.handle(f"h{i}", {"r": 2})
        handle.end((await handle.place(str(i), "a", 5, 5)).ticket)
        await until(lambda handle=handle: handle._accounts is not None)  # type: ignore[misc]
        handle.stop()
    stays = place.handle("stays", {"r": 2})
    stays.start()
    await until(lambda: host.coordinator.handles == 1 and "stays" in host._told)
    assert set(host._told) == set(host._news) == set(host._sessions) == {"stays"}
    stays.stop()


@pytest.mark.parametrize("said", [(-1, None), (True, None), (1.5, None), ("7", None), (1, -1), (1, 2.0), (1 << 60, 0)])
def test_a_report_that_says_no_numbers_is_refused_where_it_is_made(said: tuple[Any, Any]) -> None:
    """The replica hears of it; nothing reaches the actor's books."""
    with pytest.raises(ValueError, match="whole number of tokens"):
        usage_said(*said)
    assert usage_said(np.int64(7), None) == (7, None)
    assert type(usage_said(np.int64(7), np.int32(0))[1]) is int


@in_loop
async def test_it_ends_when_nobody_is_there() -> None:
    """An actor whose handles are gone ends after `idle_seconds`, so that nothing is left of a Serve that was shut."""
    place = Place()
    place.revive()
    handle = place.handle("a", {"r": 1})
    handle.end((await handle.place("1", "x", 10, 10)).ticket)
    handle.stop()
    assert place.running is not None
    await asyncio.wait_for(place.running, 5)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.2]), st.integers(0, 2))
def test_every_call_ends_and_the_books_come_out_whatever_is_lost(seed: int, lossy: float, deaths: int) -> None:
    """Answers are lost after they were acted on, and the actor dies and comes back: every call is placed, goes around
    or is left by its caller, and at the end nothing waits or is in flight."""
    chance = random.Random(seed)
    served: Counter[str] = Counter()

    async def call(handle: ActorConnection, client: str) -> None:
        await asyncio.sleep(chance.random() * 0.05)
        size = ("id", client, chance.randint(1, 20), chance.randint(1, 20))
        try:
            placed = await asyncio.wait_for(handle.place(*size), chance.choice([0.01, 30, 30, 30]))
        except UnreachableError:
            served["around"] += 1
            ticket = handle.went_around(*size, "r")
        except TimeoutError:
            served["left"] += 1
            return
        else:
            served["placed"] += 1
            ticket = placed.ticket
        await asyncio.sleep(chance.random() * 0.004)
        outcomes: list[Any] = ["answered", "answered", "left", "given back"]
        handle.end(ticket, chance.choice(outcomes))

    async def work() -> None:
        place = Place(replace(QUICK, handle_timeout_seconds=5.0), lossy, seed)
        place.revive()
        handles = [place.handle(name, {"r": 2, "s": 2}) for name in "ab"]
        calls = [asyncio.create_task(call(chance.choice(handles), chance.choice(["gold", "free"]))) for _ in range(40)]
        for _ in range(deaths):
            await asyncio.sleep(0.03)
            place.kill()
            await asyncio.sleep(chance.choice([0.01, 0.4]))
            place.revive()
        await asyncio.wait_for(asyncio.gather(*calls), 20)
        await until(lambda: books(place.host) == (0, 0, 0))
        assert all(handle.held == {} for handle in handles)

    run(work())
    assert served.total() == 40


# --- what Serve tells -----------------------------------------------------------------------------------------------


def sent(attempts: Attempts, call: int, ticket: int, replica: str = "r", name: str = "id") -> None:
    """A try is sent."""
    attempts.sent(Attempt(call, ticket, replica, name))


def test_a_try_that_was_rejected_and_the_next_are_told_apart() -> None:
    """Serve tries again before the first try completes, at the same replica: the first completion means nothing."""
    attempts = Attempts(certain=True)
    sent(attempts, 1, 10)
    again = attempts.again(1)
    assert again is not None
    assert again.ticket == 10
    sent(attempts, 1, 11)
    assert attempts.routed(1) is None
    assert attempts.completed("id", "r") is None
    over = attempts.completed("id", "r")
    assert over is not None
    assert over.ticket == 11
    assert attempts.ends(over)
    assert attempts.completed("id", "r") is None
    assert len(attempts) == 0


def test_completion_may_come_before_it_is_known_that_the_replica_took_the_call() -> None:
    """Then the call ends when that is known, or is tried again, or was left by its caller."""
    attempts = Attempts(certain=True)
    for what in ("routed", "again", "left"):
        sent(attempts, 1, 10)
        over = attempts.completed("id", "r")
        assert over is not None
        assert not attempts.ends(over)
        if what == "routed":
            assert attempts.routed(1) is over
        elif what == "again":
            assert attempts.again(1) is over
        assert attempts.forget(over) == (what == "left")
        assert len(attempts) == 0


def test_calls_of_one_id_are_counted_each() -> None:
    """Calls that a call makes have its id; each completion ends one of them."""
    attempts = Attempts(certain=False)
    for call in (1, 2, 3):
        sent(attempts, call, call)
    tickets = []
    for _ in range(3):
        over = attempts.completed("id", "r")
        assert over is not None
        assert attempts.ends(over)
        tickets.append(over.ticket)
    assert tickets == [1, 2, 3]


# --- what a call and a user say -------------------------------------------------------------------------------------


def pending(*args: object, model: str = "", **kwargs: object) -> Any:
    """A request as Serve has it."""
    return SimpleNamespace(args=list(args), kwargs=kwargs, metadata=SimpleNamespace(multiplexed_model_id=model))


def http(**headers: str) -> Any:
    """A request of the HTTP proxy."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return SimpleNamespace(asgi_scope={"headers": pairs})


BODY = SimpleNamespace(messages=[{"role": "user"}], max_tokens=5, user="u")
"""An object with OpenAI's fields."""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (pending(client="a", prompt_tokens=7, max_output_tokens=9), Wanted("a", 7, 9)),
        (pending("twelve bytes"), Wanted("others", 3, 1024)),
        (pending("twelve bytes", client="a"), Wanted("a", 4, 1024)),
        (pending(model="lora"), Wanted("lora", 1, 1024)),
        (pending({"prompt": "12345678", "max_tokens": 5, "n": 2}), Wanted("others", 2, 10)),
        (pending({"prompt": [1, 2, 3], "user": "u"}), Wanted("u", 3, 1024)),
        (pending(BODY), Wanted("u", 5, 5)),
        (pending(http(X_Client="h", content_length="41")), Wanted("h", 11, 1024)),
        (pending({"prompt": "1", "user": "u"}, http(x_client="h")), Wanted("h", 1, 1024)),
        (pending(object(), 3, {"x": 1}), Wanted("others", 1, 1024)),
    ],
)
def test_a_call_is_read_as_it_says_itself(call: Any, expected: Wanted) -> None:
    """Keyword arguments, then a body in OpenAI's format, then headers, then a text, then the model."""
    assert extractor_of(QUICK)(call) == expected


@pytest.mark.parametrize("kwargs", [{"prompt_tokens": "7"}, {"max_output_tokens": 0}, {"prompt_tokens": 2**60}])
def test_a_call_that_says_nonsense_is_refused_by_name(kwargs: dict[str, Any]) -> None:
    """The router then takes defaults for it."""
    with pytest.raises(ValueError, match="tokens is a whole number"):
        extractor_of(QUICK)(pending(**kwargs))


def own(call: Any) -> Wanted:
    """An extractor of a user's."""
    return Wanted(call.args[0], 5, 6)


def test_an_extractor_of_the_users_stands_instead() -> None:
    """By `module:function`; a name that is not there is an error."""
    chosen = replace(QUICK, extractor=f"{__name__}:own")
    assert extractor_of(chosen)(pending("me")) == Wanted("me", 5, 6)
    for wrong in ("nowhere", "no.such:thing", f"{__name__}:nothing", f"{__name__}:QUICK"):
        with pytest.raises(ValueError, match="extractor"):
            extractor_of(replace(QUICK, extractor=wrong))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "window_tokens is missing"),
        ({"window_tokens": "10"}, "window_tokens: expected int, not '10'"),
        ({"window_tokens": 10, "weights": {"a": 0}}, "weights.a: expected int >= 1, not 0"),
        ({"window_tokens": 10, "handle_timeout_seconds": 1}, "three times"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    """Every key is known and of its type."""
    with pytest.raises(ValueError, match=message):
        settings_of(given)


@pytest.mark.parametrize(("policy", "router"), [("fcfs+dificit", "e2"), ("fastserve", "e2"), ("vtc", "nowhere")])
def test_names_that_cannot_be_used_in_a_window_are_refused(policy: str, router: str) -> None:
    """Unknown policies and routers, and policies that preempt."""
    with pytest.raises(ValueError, match=r"unknown|preempts"):
        parts(replace(QUICK, policy=policy, router=router))
