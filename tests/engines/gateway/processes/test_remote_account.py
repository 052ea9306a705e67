"""An account behind a connection is the same as one in the process: placements, charges and status; and whatever
happens to the connection, each call ends once."""

import asyncio
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway.account import Account, AccountHost, AccountLostError, PlaceRequest, RemoteAccount
from fairsched.engines.gateway.account import host as hosting
from fairsched.engines.gateway.account import messages as said
from fairsched.engines.gateway.account import wire as wiring
from fairsched.engines.gateway.config import ClientConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.model.events import Admitted, Cancelled, Event, Finished
from tests.support.adapters.gateway_accounts import Calls, VirtualAccount, configuration, connect, join
from tests.support.adapters.loops import in_virtual_time, until

TOKENS = st.integers(1, 40)
SECONDS = st.sampled_from((0.5, 5.0, 600.0))
AVOIDED = st.sampled_from((frozenset[int](), frozenset({0}), frozenset({0, 1})))
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("place"),
            st.tuples(
                st.sampled_from(("heavy", "a", "b")),
                TOKENS,
                TOKENS,
                st.booleans(),
                st.sampled_from((0.5, 5.0, 600.0)),
                AVOIDED,
            ),
        ),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("produce"), st.tuples(st.integers(0, 9), st.integers(1, 9))),
        st.tuples(st.just("finish"), st.tuples(st.integers(0, 9), st.none() | TOKENS, st.none() | TOKENS)),
        st.tuples(st.sampled_from(("cancel", "give back")), st.integers(0, 9)),
        st.tuples(st.just("work"), st.tuples(st.integers(0, 1), st.sampled_from(("heavy", "a")))),
        st.tuples(st.just("fail"), st.tuples(st.integers(0, 1), st.sampled_from(("busy", "failed", "lost")))),
        st.tuples(st.just("count"), st.sampled_from(("refused", "left"))),
        st.tuples(st.just("pass"), st.sampled_from((0.1, 0.4, 3.0))),
        st.tuples(st.just("weigh"), st.integers(1, 3)),
    ),
    max_size=30,
)


async def played(steps: list[tuple[str, Any]], *, remote: bool) -> list[object]:
    """What is seen of an account after each step: where calls are, the servers that take calls, the status, and in the
    end every event of the window."""
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    account = await connect(host) if remote else local
    calls = Calls(account)
    seen: list[object] = []
    for kind, value in steps:
        if kind == "weigh":
            config = configuration(waiting=9 + value)
            config.clients["heavy"] = ClientConfig(weight=value)
            (host if remote else local).configure(config)
        else:
            calls.step(kind, value)
        if isinstance(account, RemoteAccount):
            account.report()
        await asyncio.sleep(value if kind == "pass" else 0.05)
        host.watch()
        said_now = await account.status()
        said_now.pop("processes", None)
        seen.append((list(calls.became), said_now))
        seen.append(account.upstreams())
    for task in calls.tasks:
        task.cancel()
    await asyncio.gather(*calls.tasks, return_exceptions=True)
    await asyncio.sleep(0.05)
    return [*seen, *local.events]


@given(STEPS)
def test_an_account_behind_a_connection_is_the_one_in_the_process(steps: list[tuple[str, Any]]) -> None:
    """Any calls, leaves, reports, ends, failures of servers, new weights and pauses: the same places, refusals,
    charges, events and status at every moment."""

    seen: list[object] = []

    async def run(remote: bool) -> None:
        seen.append(await played(steps, remote=remote))

    in_virtual_time(run)(True)
    in_virtual_time(run)(False)
    assert seen[0] == seen[1]


def ends(events: list[Event]) -> list[int]:
    """The requests that ended, sorted."""
    return sorted(event.request_id for event in events if isinstance(event, Finished | Cancelled))


async def begun(steps: list[tuple[str, Any]], account: Account) -> Calls:
    """Calls that wait, are at servers, and have produced something, after the steps that say so."""
    calls = Calls(account)
    for kind, value in steps:
        if kind in ("place", "produce"):
            calls.step(kind, value)
        await asyncio.sleep(0.05)
    return calls


@given(STEPS, st.sampled_from(("process", "account", "rubbish", "silent")))
@in_virtual_time
async def test_calls_of_a_lost_connection_end_once_and_those_of_others_stay(
    steps: list[tuple[str, Any]], how: str
) -> None:
    """However the connection ends: what waited leaves the queue, what was in flight is cancelled, each of them once;
    callers get 503; the call of another process is untouched."""
    local = VirtualAccount(configuration())
    told: list[object] = []
    host = AccountHost(local, local.config, lost=told.append)
    other = await connect(host)
    (other_peer,) = host.peers
    others = Calls(other)
    others.place("b", 5, 5, True, 600.0, frozenset())
    await asyncio.sleep(0.1)
    lost = await connect(host)
    (peer,) = host.peers - {other_peer}
    calls = await begun(steps, lost)
    waiting, placed = calls.there("waits"), calls.there()
    before, ended = dict(local.outcomes), ends(local.events)
    match how:
        case "process":
            lost.wire.abort("killed")
        case "account":
            peer.wire.abort("killed")
        case "rubbish":
            lost.wire._write(b"\0\0\0\3abc")
        case "silent":
            lost.wire._beats.cancel()  # type: ignore[union-attr]
            await asyncio.sleep(wiring.SILENCE_BEATS * wiring.BEAT_SECONDS * 1.5)
    await asyncio.sleep(0.1)
    assert host.peers == {other_peer}
    assert told == [peer]
    assert peer.wire.silent == (how == "silent")
    if how != "silent":  # Or calls were let in, and waited too long, meanwhile.
        assert local.outcomes[hosting.LOST] == len(placed)
        assert local.outcomes["left"] == before.get("left", 0) + len(waiting)
    left = local.window.in_flight + local.window.waiting
    assert left == 1 == len(other_peer.calls)
    arrived = len({event.request_id for event in local.events if isinstance(event, Admitted)} | set(ended))
    assert len(ends(local.events)) == len(set(ends(local.events))) >= arrived - 1
    assert lost.lost.is_set()
    for call in waiting:
        assert how == "silent" or calls.became[call].startswith("refused 503")
    assert others.became == ["at http://server0 None"]
    # What is said of ended calls means nothing, and no call has a place any more.
    for call in placed:
        calls.end(call, "finish", 1, 1)
    with pytest.raises(CallError, match="starts again"):
        await lost.place(PlaceRequest("a", 1, 1, wait_seconds=1.0))
    with pytest.raises(CallError, match="starts again"):
        await lost.status()
    others.end(0, "finish", 5, 5)
    await asyncio.sleep(0.1)
    assert local.window.in_flight == 0
    assert local.outcomes["finished"] == 1


@given(STEPS)
def test_calls_of_a_lost_connection_are_charged_as_cancelled_ones(steps: list[tuple[str, Any]]) -> None:
    """The service of each client afterwards is the one where its process had cancelled each call itself."""

    async def service(*, loses: bool) -> object:
        local = VirtualAccount(configuration())
        host = AccountHost(local, local.config)
        remote = await connect(host)
        calls = await begun(steps, remote)
        if loses:
            remote.wire.abort("killed")
        else:
            for call in reversed(calls.there("waits")):
                calls.tasks[call].cancel()
            for _ in range(20):  # It takes some turns of the loop, and no time.
                await asyncio.sleep(0)
            for call in calls.there():
                calls.end(call, "cancel")
        await asyncio.sleep(0.1)
        clients = (await local.status())["clients"]
        for task in calls.tasks:
            task.cancel()
        await asyncio.gather(*calls.tasks, return_exceptions=True)
        return clients

    seen: list[object] = []

    async def run(loses: bool) -> None:
        seen.append(await service(loses=loses))

    in_virtual_time(run)(True)
    in_virtual_time(run)(False)
    assert seen[0] == seen[1]


class Raw:
    """A process that says what it likes."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.gone = False
        self.wire = wiring.Wire(said.decoder_of_account, self.heard.append, self._lost)

    def _lost(self) -> None:
        self.gone = True

    async def connect(self, host: AccountHost) -> None:
        """Connect."""
        await join(self.wire, host.wire())


NAMES = st.text(max_size=3)
NUMBERS = st.integers(-2, 3) | st.integers(-(2**63), 2**63 - 1)
WANTED = st.builds(said.PlaceRequest, NAMES, NUMBERS, NUMBERS, st.booleans(), st.floats())
MESSAGES = st.one_of(
    st.builds(said.Place, NUMBERS, WANTED),
    st.builds(said.Withdraw, NUMBERS),
    st.builds(said.Produced, st.tuples(NUMBERS), st.tuples(NUMBERS) | st.tuples(NUMBERS, NUMBERS)),
    st.builds(said.Finish, NUMBERS, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS),
    st.builds(said.Cancel, NUMBERS, NUMBERS, st.text(max_size=3)),
    st.builds(said.GiveBack, NUMBERS, st.text(max_size=3)),
    st.builds(said.Count, st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2)),
    st.builds(said.Failed, NUMBERS, NAMES, st.sampled_from(("busy", "lost")), NAMES, st.none(), st.just(0.0)),
    st.builds(said.Worked, NUMBERS, NAMES),
    st.builds(said.Ask, NUMBERS, st.sampled_from(("status", "metrics"))),
    st.builds(said.Hello, st.integers(0, 2), NUMBERS),
    st.just(said.Ready()),
    st.binary(max_size=12),
)


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=6), st.booleans())
@in_virtual_time
async def test_no_process_harms_the_account_or_another_process(frames: list[list[Any]], polite: bool) -> None:
    """Messages in any order with any numbers, and bytes that are none: the connection serves or ends, the window holds
    nothing afterwards, and another process is served."""
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    raw = Raw()
    await raw.connect(host)
    if polite:
        raw.wire.say(said.Hello(said.VERSION, 7))
    for frame in frames:
        for message in frame:
            if isinstance(message, bytes):
                raw.wire.flush()
                raw.wire._write(message)
            else:
                raw.wire.say(message)
        await asyncio.sleep(0.05)
    raw.wire.abort("enough")
    await asyncio.sleep(0.1)
    assert (local.window.waiting, local.window.in_flight) == (0, 0)
    calls = Calls(await connect(host))
    await asyncio.sleep(3.0)  # Servers that were told to have failed are there again.
    calls.place("a", 5, 5, True, 1.0, frozenset())
    await asyncio.sleep(0.1)
    assert calls.became[0].startswith("at ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([said.Hello(2, 7)], "the account speaks version 1, and was told version 2"),
        ([said.Ready()], "the account speaks version 1, and was told Ready"),
        ([said.Hello(1, 7), said.Hello(1, 7)], "a second hello"),
        ([said.Hello(1, 7), *2 * [said.Place(0, said.PlaceRequest("a", 1, 1))]], "call 0 is open already"),
        (
            [said.Hello(1, 7), said.Place(0, said.PlaceRequest("a", 1, 1, wait_seconds=math.inf))],
            "call 0: it waits inf s",
        ),
    ],
)
@in_virtual_time
async def test_a_process_that_breaks_the_protocol_is_told_and_cut_off(words: list[Any], why: str) -> None:
    """The account says why, and nothing of it stays."""
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    raw = Raw()
    await raw.connect(host)
    for word in words:
        raw.wire.say(word)
    await asyncio.sleep(0.1)
    assert raw.gone
    assert raw.heard[-1] == said.Bye(why)
    assert not host.peers
    assert not local.window.in_flight


@in_virtual_time
async def test_an_account_that_cannot_be_had_says_why() -> None:
    """A process that is of another version learns so from the account."""
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    remote = RemoteAccount()
    await join(remote.wire, host.wire())
    remote.wire.say(said.Hello(9, 1))
    with pytest.raises(AccountLostError, match="speaks version 1, and was told version 9"):
        await remote.greet()


@in_virtual_time
async def test_what_an_account_that_does_not_read_is_told_stays_bounded() -> None:
    """The other end of the connection reads nothing: calls wait before they are said, and a million tokens of the
    calls that are open are one sum each; when it reads again all arrives."""
    remote = RemoteAccount()
    heard: list[Any] = []
    wire = wiring.Wire(said.decoder_of_process, heard.append, lambda: None)
    await join(remote.wire, wire)
    wire._transport.pause_reading()  # type: ignore[union-attr]
    placing = [asyncio.ensure_future(_refused(remote, "x" * 1000)) for _ in range(2000)]
    await asyncio.sleep(0.1)
    assert not remote.wire.writable.is_set()
    later = [asyncio.ensure_future(_refused(remote, "later")) for _ in range(2000)]
    for i in range(100_000):
        remote.produced(i % 50, 10)
        if i % 1000 == 0:
            await asyncio.sleep(0.1)
    assert remote.wire._out == []
    assert len(remote._produced) == 50
    wire._transport.resume_reading()  # type: ignore[union-attr]
    await asyncio.sleep(1.0)
    assert sum(isinstance(each, said.Place) for each in heard) == 4000
    assert sum(sum(each.tokens) for each in heard if isinstance(each, said.Produced)) == 1_000_000
    remote.wire.abort("enough")
    await asyncio.gather(*placing, *later)


async def _refused(remote: RemoteAccount, name: str) -> None:
    with pytest.raises(CallError):
        await remote.place(PlaceRequest(name, 1, 1, wait_seconds=1.0))


@in_virtual_time
async def test_a_process_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are not kept beyond `BACKLOG_MAX` bytes."""
    monkeypatch.setattr(hosting, "BACKLOG_MAX", 1 << 16)
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    remote = await connect(host)
    remote.wire._transport.pause_reading()  # type: ignore[union-attr]
    asking = [asyncio.ensure_future(remote.status()) for _ in range(2000)]
    await until(lambda: not host.peers, 60.0)
    remote.wire.abort("enough")
    await asyncio.gather(*asking, return_exceptions=True)


@in_virtual_time
async def test_the_configuration_in_force_reaches_every_process() -> None:
    """Those that are there are told, one that comes later begins with it, and one that cannot be taken reaches none."""
    local = VirtualAccount(configuration())
    host = AccountHost(local, local.config)
    remote = await connect(host)
    told: list[object] = []
    remote.configured = told.append
    config = configuration(waiting=3)
    host.configure(config)
    await asyncio.sleep(0.1)
    assert told == [config]
    remote.configure(config)
    raw = Raw()
    await raw.connect(host)
    raw.wire.say(said.Hello(said.VERSION, 7))
    await asyncio.sleep(0.1)
    assert raw.heard[0].config == config


@in_virtual_time
async def test_a_process_is_told_how_many_outputs_a_call_may_have() -> None:
    """A call that declares none has what the account gives it, and its server is told no more."""
    local = VirtualAccount(configuration())
    remote = await connect(AccountHost(local, local.config))
    placed = await remote.place(PlaceRequest("a", 5, 1 << 20, declared=False, wait_seconds=1.0))
    assert placed.max_output_tokens == local.window.largest - 5
    remote.give_back(placed.request_id, "refused")


def test_messages_read_back_as_they_were() -> None:
    """A frame holds its length and its messages, whole or in pieces."""
    words = [said.Place(1, said.PlaceRequest("ä", 2, 3, wait_seconds=4.5)), said.Finish(1, 2, None, 5), said.Ready()]
    data = said.frame(words)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert said.decoder_of_process.decode(data[4:]) == words
    with pytest.raises(msgspec.ValidationError):
        said.decoder_of_account.decode(data[4:])
