"""Several gateways or pickers before the same servers, whose clients have one account."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairsched.engines.analysis import replay
from fairsched.engines.analysis.audit import audit_log
from fairsched.engines.gateway import bound_text, gateway_policy
from fairsched.engines.gateway.account import PlaceRequest
from fairsched.engines.gateway.config import ClientConfig, OrganisationConfig, StoreConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.window import LeasedWindow
from fairsched.engines.gateway.window.leases import MemoryStore
from fairsched.engines.gateway.window.leases.store import FileStore
from fairsched.engines.settings import ConfigError
from tests.support.adapters.loops import in_loop, in_virtual_time, until
from tests.support.adapters.shared_gateways import OUTPUT, PROMPT, QUANTUM, WEIGHTS, WINDOW, Gateways, Pickers, config

KEY = "fairsched.default.account"
Kind = type[Gateways] | type[Pickers]
DOORS = pytest.mark.parametrize("kind", [Gateways, Pickers])


@DOORS
@in_virtual_time
async def test_two_without_an_account_turn_4_to_1_into_1_to_1(kind: Kind) -> None:
    """Each serves its own client with all that it has; what clients are owed at the other one, it does not know."""
    here = kind(2, None)
    here.flood(0, "heavy")
    here.flood(1, "light")
    await asyncio.sleep(20)
    charged = here.charged()
    assert 0.9 < charged["heavy"] / charged["light"] < 1.1


@DOORS
@pytest.mark.parametrize(
    "floods", [(("heavy",), ("light",)), (("heavy", "light"), ("light",)), (("heavy", "light"),) * 2], ids=str
)
@in_virtual_time
async def test_two_with_one_account_serve_by_weight(kind: Kind, floods: tuple[tuple[str, ...], ...]) -> None:
    """The gap stays within the theorem's bound at every moment, and shares come to 4:1, wherever the calls come in."""
    here = kind(2, MemoryStore())
    for gateway, clients in enumerate(floods):
        for client in clients:
            here.flood(gateway, client)
    await here.held_to(lambda: here.bound, 20)
    charged = await here.held_to(lambda: here.bound, 60)
    assert 3.5 < charged["heavy"] / charged["light"] < 4.5


@in_virtual_time
async def test_a_gateway_that_is_killed_costs_a_lease_at_most_and_holds_up_no_other() -> None:
    """Its clients' calls wait there no more once it counts as gone; the others serve on within the bound and what the
    killed one had or owed."""
    here = Gateways(3, MemoryStore(), gone_seconds=2.0)
    here.flood_all()
    await here.held_to(lambda: here.bound, 5)
    here.kill(1)
    # What was in flight there is charged nowhere.
    charged = await here.held_to(lambda: 2 * here.bound, 20)
    assert 3.3 < charged["heavy"] / charged["light"] < 4.7
    assert here.leasing(0).status()["up"]


@DOORS
@in_virtual_time
async def test_one_that_is_cut_off_spends_its_leases_and_waits(kind: Kind) -> None:
    """As `closed` has it: no call is let in on credit that the account did not give; when the line is back all is as
    before, and debts of the time before count."""
    here = kind(2, MemoryStore(), gone_seconds=2.0)
    here.flood_all()
    await asyncio.sleep(5)
    here.lines[0].cut = True
    await here.held_to(lambda: here.bound, 10)
    window = here.accounts[0].window
    assert (window.in_flight, bool(window.waiting)) == (0, True)
    assert here.leasing(0).status()["up"] is False
    here.lines[0].cut = False
    charged = await here.held_to(lambda: here.bound, 20)
    assert 3.3 < charged["heavy"] / charged["light"] < 4.7
    # It had counted as gone, which is no loss of the store's.
    assert (here.leasing(0).counts["given_up"], here.leasing(0).counts["lost_writes"]) == (1, 0)


@in_virtual_time
async def test_a_gateway_that_is_cut_off_says_that_calls_wait_for_the_store() -> None:
    """And what clients have left of their leases: nothing."""
    here = Gateways(2, MemoryStore(), gone_seconds=2.0)
    for client in WEIGHTS:
        here.flood(0, client)
    await asyncio.sleep(5)
    here.lines[0].cut = True
    await asyncio.sleep(10)
    told, window = here.accounts[0].document(), here.accounts[0].window
    assert told["store"]["up"] is False
    assert {name: said["why"] for name, said in told["waits"].items()} == dict.fromkeys(WEIGHTS, "store")
    assert isinstance(window, LeasedWindow)
    assert told["credit"] == {name: window.balance(i) for i, name in enumerate(WEIGHTS)}
    assert max(told["credit"].values()) <= 0


@in_virtual_time
async def test_a_gateway_that_is_cut_off_may_share_its_own_credit() -> None:
    """As `local` has it: its clients are served 4:1 there meanwhile, and within the bound again afterwards."""
    here = Gateways(2, MemoryStore(), away="local", gone_seconds=2.0)
    here.flood_all()
    await asyncio.sleep(5)
    here.lines[0].cut = True
    before = here.accounts[0].window.usage.requests.total()
    await asyncio.sleep(1)
    told = here.accounts[0].document()
    assert (told["store"]["up"], "store" in {said["why"] for said in told["waits"].values()}) == (False, False)
    await here.held_to(lambda: 2 * here.bound, 10)
    assert here.accounts[0].window.usage.requests.total() > before + 50
    here.lines[0].cut = False
    await asyncio.sleep(1)
    charged = await here.held_to(lambda: here.bound, 20)
    assert 3.3 < charged["heavy"] / charged["light"] < 4.7


@in_virtual_time
async def test_answers_that_are_lost_move_no_credit_twice() -> None:
    """The store writes, and one gateway does not hear of it, again and again."""
    here = Gateways(2, MemoryStore())
    here.flood_all()

    async def flaps() -> None:
        while True:
            here.lines[0].loses_answers = not here.lines[0].loses_answers
            await asyncio.sleep(0.3)

    here.run(0, flaps())
    charged = await here.held_to(lambda: here.bound, 30)
    assert 3.3 < charged["heavy"] / charged["light"] < 4.7


@pytest.mark.parametrize("loses", ["all", "the last second"])
@in_virtual_time
async def test_a_store_that_loses_what_it_had_costs_a_quantum(loses: str) -> None:
    """What clients were charged is at the gateways, so that each loss moves the gap by a quantum a client at most."""
    store = MemoryStore()
    here = Gateways(2, store)
    here.flood_all()
    lost = 0

    async def fails_over() -> None:
        nonlocal lost
        while True:
            kept = dict(store.values)
            await asyncio.sleep(1)
            store.values = kept if loses == "the last second" else {}
            lost += 1

    here.run(0, fails_over())
    # A quantum a client: 1,024 by weight, which the gap counts as 4 times that for each.
    await here.held_to(lambda: here.bound + lost * 2 * 4 * 1024, 15)
    assert here.leasing(0).counts["lost_writes"] > 0


@in_virtual_time
async def test_one_gateway_more_than_declared_and_one_with_other_terms_are_refused() -> None:
    """It says why, and lets no call in: the bound is made of what all declare."""
    store = MemoryStore()
    first = Gateways(1, store)
    first.flood(0, "heavy")
    await asyncio.sleep(1)
    second = Gateways(2, store)
    await asyncio.sleep(1)
    said = second.accounts[0].document()["store"]
    assert "1 gateways share the account with lease = 512 and gateways = 1" in said["why"]
    with pytest.raises(CallError, match="no server had room in time"):
        await second.accounts[0].place(PlaceRequest("light", 40, 60, wait_seconds=2.0))
    third = Gateways(1, store)
    await asyncio.sleep(1)
    assert "raise `gateways`" in third.accounts[0].document()["store"]["why"]
    await third.stop(0)
    # Once the first has left, another may come with terms of its own.
    await first.stop(0)
    await asyncio.sleep(1)
    assert second.accounts[0].document()["store"]["up"] is True


@pytest.mark.parametrize(
    "value", [b"", b"fairsched account 2\n\x80", b"fairsched account 1\n\xff\xff", b"else"], ids=str
)
@in_virtual_time
async def test_what_is_no_account_of_this_version_is_left_alone(value: bytes) -> None:
    """The gateway says what is there, and does not write over it."""
    store = MemoryStore()
    store.values[KEY] = value
    here = Gateways(1, store)
    await asyncio.sleep(2)
    assert here.accounts[0].document()["store"]["up"] is False
    assert "there" in here.accounts[0].document()["store"]["why"]
    assert store.values[KEY] == value


@DOORS
@in_virtual_time
async def test_those_that_leave_return_their_credit_and_leave_debts(kind: Kind) -> None:
    """Afterwards none holds any, and the next one goes on from what its clients owe."""
    store = MemoryStore()
    here = kind(2, store)
    for gateway in range(2):
        here.flood(gateway, "heavy")
    await asyncio.sleep(5)
    for gateway in range(2):
        await here.stop(gateway)
    assert b"holders\x80" in store.values[KEY]


@in_virtual_time
async def test_an_account_that_is_stopped_returns_its_leases_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled account ends when the store has them."""
    store = MemoryStore()
    here = Gateways(1, store).accounts[0]
    monkeypatch.setattr(here.fleet, "run", asyncio.Event().wait)
    running = asyncio.ensure_future(here.run())
    await asyncio.sleep(1)
    assert b"holders\x80" not in store.values[KEY]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert b"holders\x80" in store.values[KEY]


@in_virtual_time
async def test_a_client_that_waits_for_room_is_known_before_others_get_credit() -> None:
    """It has credit on lease at a gateway whose window is full, where no renewal is due: others get no more than the
    bound beyond it while it waits (L-lag), from the moment on that the account can know it."""
    here = Gateways(2, MemoryStore())
    full, other = here.accounts
    placed = await full.place(PlaceRequest("heavy", PROMPT, OUTPUT, wait_seconds=9.0))
    full.finish(placed.request_id, PROMPT, OUTPUT)
    for _ in range(WINDOW // (PROMPT + OUTPUT)):
        await full.place(PlaceRequest("hog", PROMPT, OUTPUT, wait_seconds=9.0))
    renewals = here.leasing(0).counts
    before = renewals["renewed"]
    await until(lambda: renewals["renewed"] > before)
    here.flood(0, "heavy", 1)
    await asyncio.sleep(0.03)

    async def quick() -> None:
        while True:
            call = await other.place(PlaceRequest("light", PROMPT, OUTPUT, wait_seconds=9.0))
            await asyncio.sleep(0.005)
            other.finish(call.request_id, PROMPT, OUTPUT)

    for _ in range(10):
        here.run(1, quick())
    await here.held_to(lambda: here.bound, 0.4)
    assert full.window.waiting == 1
    assert renewals["renewed"] <= before + 3


@in_virtual_time
async def test_clients_that_begin_to_wait_again_and_again_cause_no_storm_of_renewals() -> None:
    """Hundreds of calls a second that wait a little for room, and have credit: what the account hears of them comes
    fifty times a second at most."""
    here = Gateways(1, MemoryStore(), others={"requests": 2})
    (there,) = here.accounts

    async def calls(client: str, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            call = await there.place(PlaceRequest(client, 1, 1, wait_seconds=9.0))
            await asyncio.sleep(0.003)
            there.finish(call.request_id, 1, 1)

    for i in range(10):
        here.run(0, calls(f"client {i % 5}", 0.005 + i / 5_000))
    await asyncio.sleep(5)
    assert there.window.usage.requests.total() > 1_000
    assert here.leasing(0).counts["renewed"] <= 50 * 5 + 10


@in_virtual_time
async def test_a_gateway_that_asks_in_vain_writes_nothing() -> None:
    """While a client of another gateway has credit and no room, one without credit is asked for fifty times a second.
    The store is written a few times, so that the gateway counts as there, and its renewals are about its own client."""
    store, written = MemoryStore(), []
    here = Gateways(2, store, gone_seconds=2.0)
    full, other = here.accounts
    for _ in range(WINDOW // (PROMPT + OUTPUT)):
        await full.place(PlaceRequest("hog", PROMPT, OUTPUT, wait_seconds=99.0))
    here.flood(0, "heavy", 1)
    await asyncio.sleep(1)
    here.flood(1, "light")
    for name in range(50):
        other.client(f"at rest {name}")
    await until(lambda: other.window.waiting and not other.window.in_flight)
    counts = here.leasing(1).counts
    before = counts["renewed"]
    for _ in range(400):
        await asyncio.sleep(0.01)
        written.append(store.values[KEY])
    changes = sum(a is not b for a, b in pairwise(written))
    assert counts["renewed"] - before > 150
    assert changes < 40
    assert (counts["given_up"], counts["lost_writes"]) == (0, 0)
    assert here.leasing(1)._said()[0].quanta.keys() == {"light"}
    assert b"at rest" not in store.values[KEY]


@in_virtual_time
async def test_weights_that_differ_between_gateways_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The last renewal decides, and each gateway says which client's weight another has otherwise; a gateway that
    takes other weights itself says nothing."""
    store = MemoryStore()
    here = Gateways(2, store)
    for gateway in range(2):
        here.flood(gateway, "heavy")
    await asyncio.sleep(2)
    assert not caplog.records
    other = here.accounts[1]
    other.configure(replace(other.config, clients={**other.config.clients, "heavy": ClientConfig(weight=2)}))
    await asyncio.sleep(5)
    said = [record.getMessage() for record in caplog.records]
    assert [re.findall(r"\d{4}", each) for each in said] == [["2048", "4096"], ["4096", "2048"]]
    assert all("client heavy" in each for each in said)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
@in_virtual_time
async def test_a_store_whose_clock_jumps_costs_nothing(jump: float) -> None:
    """Ahead, all gateways but one count as gone and come back; back, a gateway that was killed just before, with a
    client that waits only there, holds up the others no longer than any that is killed."""
    here = Gateways(3, MemoryStore(), gone_seconds=2.0)
    here.flood(0, "heavy")
    for client in ("heavy", "light"):
        here.flood(1, client)
    here.flood(2, "third")
    await here.held_to(lambda: here.bound, 5)
    here.kill(2)
    here.jump(jump)
    # Nothing was killed where heavy and light are.
    await asyncio.sleep(4)
    charged = await here.held_to(lambda: here.bound, 20)
    assert 3.3 < charged["heavy"] / charged["light"] < 4.7
    assert charged["heavy"] + charged["light"] > 40_000


@in_virtual_time
async def test_metrics_say_whether_the_store_answers() -> None:
    """And how renewals ended."""
    here = Gateways(1, MemoryStore())
    here.flood(0, "heavy", 1)
    await asyncio.sleep(2)
    here.lines[0].cut = True
    await asyncio.sleep(2)
    samples = {(name, *labels.values()): value for name, labels, value in here.accounts[0].samples()}
    assert samples["store_up",] == 0
    assert samples["lease_renewals_total", "renewed"] > 3 < samples["lease_renewals_total", "away"]


def test_the_log_of_a_gateway_has_its_leases_and_replays(tmp_path: Path) -> None:
    """Every balance follows from its events, also those of the time in which it was cut off and shared what it had by
    itself; where a log forgets a lease, calls are let in without credit.  An audit knows no bound: a log has one
    gateway's part of what clients were charged."""

    async def play() -> None:
        here = Gateways(2, MemoryStore(), away="local", gone_seconds=2.0, logs=tmp_path)
        here.flood_all()
        await asyncio.sleep(5)
        here.lines[0].cut = True
        await asyncio.sleep(5)
        here.lines[0].cut = False
        await asyncio.sleep(5)
        await here.close()

    in_virtual_time(play)()
    for path in (tmp_path / "0.log", tmp_path / "1.log"):
        report = replay(path)
        assert (report.equal, report.difference, report.unexplained) == (True, None, False)
        assert report.assumptions["GateRespected"].violated == 0
        audit = audit_log(path)
        assert audit.evidence.bound is None
        assert any("Several gateways share the credit" in note for note in audit.evidence.notes)
    together = audit_log([tmp_path / "0.log", tmp_path / "1.log"])
    # It shared by itself while it was cut off, which no theorem is about.
    assert together.evidence.bound is not None
    assert together.total.requests == sum(audit_log(tmp_path / f"{i}.log").total.requests for i in range(2))
    lines = path.read_bytes().splitlines(keepends=True)
    lent = [i for i, line in enumerate(lines) if line.startswith(b'["Lent"')]
    assert len(lent) > 20
    # Without the last line, which counts them.
    path.write_bytes(b"".join(lines[: lent[5]] + lines[lent[5] + 1 : -1]))
    violated = replay(path).assumptions["GateRespected"].violated
    assert violated is not None
    assert violated > 0


@pytest.mark.parametrize("shared", [True, False])
def test_the_logs_of_all_gateways_together_show_the_gap_of_all(shared: bool, tmp_path: Path) -> None:
    """Of clients of weights 4 and 1, each at a gateway of its own: with an account the gap of all is within the bound
    that `--check` prints, and service is 4:1; without one it is over that, and an audit promises nothing.  Service is
    what all gateways charged, and one log of two is held to no bound."""
    bounds = []

    async def play() -> None:
        here = Gateways(2, MemoryStore() if shared else None, logs=tmp_path)
        for gateway, client in enumerate(("heavy", "light")):
            here.flood(gateway, client)
        await asyncio.sleep(60)
        bounds.append(here.bound)
        await here.close()

    in_virtual_time(play)()
    paths = [tmp_path / "0.log", tmp_path / "1.log"]
    audit = audit_log(paths)
    assert audit.cluster_gap is not None
    by_name = {client.name: client for client in audit.clients}
    ratio = by_name["heavy"].service / by_name["light"].service
    assert sum(client.service for client in audit.clients) == sum(
        client.service for path in paths for client in audit_log(path).clients
    )
    if shared:
        assert audit.within_bound
        assert 3.5 < ratio < 4.5
        assert audit.evidence.bound == bounds[0]
        assert audit.bounded_gap == audit.cluster_gap
        assert audit_log(paths[:1]).evidence.bound is None
    else:
        assert audit.evidence.bound is None
        assert 0.9 < ratio < 1.1
    paths[1].write_text(paths[1].read_text().replace('"policy":"fcfs+deficit"', '"policy":"fcfs"', 1))
    with pytest.raises(ValueError, match=r"run\.policy: expected as in 0\.log"):
        audit_log(paths)


ORGANISATIONS: dict[str, Any] = {
    "policy": "fcfs+hierarchical",
    "organisations": {"acme": OrganisationConfig(4), "tiny": OrganisationConfig(1)},
    "clients": {
        "heavy": ClientConfig(organisation="acme", weight=3),
        "other": ClientConfig(organisation="acme"),
        "light": ClientConfig(organisation="tiny"),
    },
}


def test_organisations_have_their_share_of_all_gateways_and_share_it_at_each(tmp_path: Path) -> None:
    """Weights are 4:1 between organisations wherever calls come in, and 3:1 between two clients of one that both wait
    at both; every balance follows from the logs, also those of a gateway that was cut off and shared by itself."""

    async def play() -> None:
        here = Gateways(2, MemoryStore(), away="local", gone_seconds=2.0, logs=tmp_path, others=ORGANISATIONS)
        for gateway, clients in enumerate((("heavy", "other"), ("heavy", "other", "light"))):
            for client in clients:
                here.flood(gateway, client)
        await asyncio.sleep(20)
        since = dict(here.charged())
        await asyncio.sleep(60)
        charged = {name: units - since[name] for name, units in here.charged().items()}
        assert 3.5 < (charged["heavy"] + charged["other"]) / charged["light"] < 4.5
        assert 2.6 < charged["heavy"] / charged["other"] < 3.4
        here.lines[0].cut = True
        await asyncio.sleep(5)
        here.lines[0].cut = False
        await asyncio.sleep(5)
        await here.close()

    in_virtual_time(play)()
    for path in (tmp_path / "0.log", tmp_path / "1.log"):
        report = replay(path)
        assert (report.equal, report.difference) == (True, None)
        assert report.assumptions["GateRespected"].violated == 0


def test_the_check_says_which_bounds_are_of_all_gateways() -> None:
    """That of two organisations is, and grows with them; that of two clients of one is of one gateway."""

    def said(store: StoreConfig | None) -> tuple[str, int]:
        settings = config(store, **ORGANISATIONS)
        _, inside, between = bound_text(settings, gateway_policy(settings, Path("g.toml"))).splitlines()
        found = re.fullmatch(r"two organisations that wait differ by at most ([\d,]+) cost units", between)
        assert found is not None
        return inside, int(found[1].replace(",", ""))

    (alone, of_one), (each, of_two) = said(None), said(StoreConfig("file:///nowhere", gateways=2))
    assert each == alone.replace("two clients of acme that", "two clients of acme at one gateway that") != alone
    # A window is held for a sixth of the time that costs as much as an output token.
    held = -(-WINDOW // 6)
    # By weights of 4 and 1: what another gateway charges after it let a call in, and its lease.
    assert of_two == of_one + (4 + 1) * (2 * (WINDOW + held) - 2 + QUANTUM)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"policy": "vtc"}, "what is shared is the credit of a deficit gate"),
        ({"organisations": {"acme": OrganisationConfig()}}, "a hierarchical gate has them"),
    ],
    ids=["counter", "organisations"],
)
def test_a_policy_without_what_gateways_share_is_refused(fields: dict[str, Any], said: str) -> None:
    """The message says which policy has it."""
    settings = config(StoreConfig("file:///nowhere"), **fields)
    with pytest.raises(ConfigError, match=f"^g.toml: .*{said}"):
        gateway_policy(settings, Path("g.toml"))


@in_loop
async def test_a_folder_holds_one_account_for_all_processes_of_a_machine(tmp_path: Path) -> None:
    """Changes through several stores at a time are all there, none twice."""
    stores = [FileStore(tmp_path / "accounts") for _ in range(4)]

    def one_more(value: bytes | None, now_ns: int) -> tuple[bytes, int]:
        count = int(value or b"0") + 1
        return str(count).encode(), count

    counts = await asyncio.gather(*(store.change("count", one_more) for store in stores for _ in range(25)))
    assert sorted(counts) == list(range(1, 101))


@in_loop
async def test_a_value_of_a_folder_that_stays_is_not_written(tmp_path: Path) -> None:
    """Its file is the same one afterwards, and another after a change."""
    store, path = FileStore(tmp_path), tmp_path / "account"
    files = []
    for change in (lambda value, _: (b"1", None), lambda value, _: (value, None), lambda value, _: (b"1", None)):
        await store.change("account", change)
        files.append(path.stat().st_ino)
    assert files[0] == files[1] != files[2]
