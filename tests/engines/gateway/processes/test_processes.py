"""A gateway of several processes: one account behind one address, and whatever is killed, each call ends once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main
from fairsched.engines.gateway import Spec, supervise
from fairsched.engines.settings import ConfigError
from tests.support.adapters.gateway_processes import (
    Stream,
    ask,
    caller,
    first_served,
    gateway,
    kill,
    output_tokens,
    server,
    servers_text,
    status,
)
from tests.support.adapters.http import LOST, Caller
from tests.support.adapters.loops import in_loop

TWO = ("--processes", "2")


async def told(url: str, until: Callable[[dict[str, Any]], object] = lambda said: True) -> dict[str, Any]:
    """What the gateway says of itself over a connection of its own, once that is as it should be."""
    async with asyncio.timeout(120):
        while True:
            try:
                async with caller(url) as http:
                    said = await status(http)
                    if until(said):
                        return said
            except (*LOST, KeyError):
                pass  # It starts again.
            await asyncio.sleep(0.05)


def both(said: dict[str, Any]) -> bool:
    """Whether both processes are there."""
    return len(said["processes"]) == 2


async def spread(
    url: str, client: str, streams: int
) -> tuple[list[Stream], list[asyncio.Task[Stream]], dict[str, int]]:
    """Streams over connections of their own, begun one after another until each process has some; and how many."""
    seen: list[Stream] = []
    tasks: list[asyncio.Task[Stream]] = []
    open_calls: dict[str, int] = {}

    async def one(stream: Stream) -> Stream:
        async with caller(url) as http:
            return await ask(http, client, 400, seen=stream)

    while len(seen) < streams or not all(open_calls.values()):
        seen.append(Stream())
        tasks.append(asyncio.ensure_future(one(seen[-1])))
        await asyncio.sleep(0.01)
        open_calls = (await told(url, both))["processes"]
    return seen, tasks, open_calls


@in_loop
async def test_a_process_that_is_killed_ends_its_calls_once_and_is_started_again(tmp_path: Path) -> None:
    """In the middle of streams: its callers are cut off with what they have, those of the other are answered whole, the
    account counts each call once and holds nothing afterwards, and a new process serves."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 50_000, 1000), *TWO) as (_, url):
        await told(url, both)
        seen, tasks, open_calls = await spread(url, "a", 8)
        victim = max(open_calls, key=lambda pid: open_calls[pid])
        os.kill(int(victim), signal.SIGKILL)
        await asyncio.gather(*tasks)
        said = await told(url, lambda said: both(said) and not said["in_flight"] and victim not in said["processes"])
        assert all(each.in_order for each in seen)
        assert 1 <= sum(each.whole for each in seen) < len(seen)
        outcomes, (client,) = said["outcomes"], said["clients"].values()
        assert outcomes.keys() == {"finished", "lost with its process"}
        assert sum(outcomes.values()) == client["requests"]
        async with caller(url) as http:
            assert (await ask(http, "a", 3)).whole


@in_loop
async def test_an_account_that_is_killed_ends_all_and_all_start_again_with_the_debts(tmp_path: Path) -> None:
    """A hog is in the middle of its streams: its callers are cut off, the same address serves again, and of two that
    wait the one that owes nothing goes first, though the hog asked before."""
    with server() as (_, address):
        text = f'quantum = 64\nstate = "{tmp_path / "debts.json"}"\n' + servers_text([address], 5000, 1)
        text += "[client.hog]\n[client.light]\n[client.third]\n"
        with gateway(tmp_path, text, *TWO) as (started, url):
            before = await told(url, both)
            async with caller(url) as http:
                await ask(http, "light", 2)
                calls = [asyncio.ensure_future(ask(http, "hog", 500)) for _ in range(3)]
                async with asyncio.timeout(60):
                    while await output_tokens(http, "hog") < 150:
                        await asyncio.sleep(0.05)
                (account,) = _children(started) - {int(pid) for pid in before["processes"]}
                os.kill(account, signal.SIGKILL)
                seen = await asyncio.gather(*calls)
            assert all(each.in_order and not each.whole for each in seen)
            said = await told(url, both)
            assert not said["processes"].keys() & before["processes"].keys()
            async with caller(url) as http:
                assert await first_served(http, address) == "light"


def _children(started: subprocess.Popen[str]) -> set[int]:
    """The processes that this one started."""
    return {int(each) for each in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()}


@in_loop
async def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """The address is free afterwards."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 5000), *TWO) as (started, url):
        await told(url, both)
        children = _children(started)
        assert len(children) == 3
        kill(started)
        async with asyncio.timeout(60):
            while any(_runs(pid) for pid in children):
                await asyncio.sleep(0.02)
        with pytest.raises(LOST):
            async with caller(url) as http:
                await http.get("/health")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@in_loop
async def test_a_process_that_is_stopped_takes_no_caller_with_it(tmp_path: Path) -> None:
    """Every call that comes afterwards is served by the other."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 5000), *TWO) as (_, url):
        stopped = int(next(iter((await told(url, both))["processes"])))
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(20):
                async with caller(url) as http:
                    assert (await ask(http, "a", 2)).whole
        finally:
            with suppress(ProcessLookupError):  # It was silent for so long that it was killed.
                os.kill(stopped, signal.SIGCONT)


async def _statuses(url: str, calls: int) -> set[int]:
    """The statuses of calls over connections of their own."""
    found = set()
    for _ in range(calls):
        async with caller(url) as http:
            found.add((await ask(http, "a", 2)).status)
    return found


@in_loop
async def test_a_configuration_that_is_read_again_reaches_every_process(tmp_path: Path) -> None:
    """SIGHUP of the one that was started: all refuse unknown callers from then on, one that is started later, too; and
    a file that cannot be used changes nothing."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 5000), *TWO) as (started, url):
        await told(url, both)
        assert await _statuses(url, 10) == {200}
        path = tmp_path / "gateway.toml"
        text = path.read_text()
        path.write_text("nonsense" + text)
        started.send_signal(signal.SIGHUP)
        assert await _statuses(url, 10) == {200}
        path.write_text(text.replace('unknown_clients = "own"', 'unknown_clients = "reject"'))
        started.send_signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            while await _statuses(url, 10) != {401}:
                pass
        victim = next(iter((await told(url))["processes"]))
        os.kill(int(victim), signal.SIGKILL)
        await told(url, lambda said: both(said) and victim not in said["processes"])
        assert await _statuses(url, 20) == {401}


@in_loop
async def test_processes_drain_together_and_report_as_one(tmp_path: Path) -> None:
    """After SIGTERM the streams that are there are finished by both, none is taken any more, the report has all, and
    the log replays."""
    report, log = tmp_path / "report.json", tmp_path / "calls.jsonl"
    options = ("--report", str(report), "--log", str(log))
    with server() as (_, one), gateway(tmp_path, servers_text([one], 50_000), *TWO, *options) as (started, url):
        await told(url, both)
        seen, tasks, _ = await spread(url, "a", 6)
        async with asyncio.timeout(60):
            while not all(each.tokens for each in seen):
                await asyncio.sleep(0.01)
        started.terminate()
        await asyncio.gather(*tasks)
        assert started.wait(60) == 0
        assert all(each.whole and each.in_order for each in seen)
        with pytest.raises(LOST):
            async with caller(url) as http:
                await http.get("/health")
    said = json.loads(report.read_text())
    assert said["outcomes"] == {"finished": len(seen)}
    assert main(["audit", str(log), "--replay", "--json", "-"]) == 0


@in_loop
async def test_metrics_and_health_are_the_whole_gateways(tmp_path: Path) -> None:
    """Whichever process is asked, the counts are of all calls; an address of the status without its key stays shut."""
    with server() as (_, one), gateway(tmp_path, "metrics = true\n" + servers_text([one], 5000), *TWO) as (_, url):
        await told(url, both)
        for _ in range(8):
            async with caller(url) as http:
                await ask(http, "a", 2)
        await told(url, lambda said: said["outcomes"].get("finished") == 8)
        for _ in range(8):
            async with caller(url) as http:
                text = await _metrics(http)
                assert 'fairsched_requests_total{outcome="finished",worker="gateway"} 8.0' in text
                assert (await http.get("/health")).json() == {"servers_up": 1}
                assert (await http.get("/metrics")).status == 401


async def _metrics(http: Caller) -> str:
    from tests.support.adapters.gateway_processes import ADMIN

    return (await http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})).text


def test_windows_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is refused in one line, before anything is started."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="on Windows a gateway is one process, not 3"):
        supervise(Spec("gateway.toml", 3, "serving"), (), drain_seconds=1.0)


@pytest.mark.parametrize("processes", ["0", "-1"])
def test_a_gateway_of_no_processes_is_refused(
    tmp_path: Path, processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option's name and the number."""
    path = tmp_path / "gateway.toml"
    path.write_text('[[server]]\nurl = "http://127.0.0.1:1"\nwindow_tokens = 9\n[client.a]\n')
    with pytest.raises(SystemExit, match="2"):
        main(["gateway", str(path), "--processes", processes])
    assert f"expected a positive whole number, found '{processes}'" in capsys.readouterr().err


# --- one account of all processes -------------------------------------------------------------------------------------

WEIGHTED = "quantum = 64\n[client.heavy]\nweight = 4\n[client.light]\n"


def _weighted(address: str, store: str = "") -> str:
    """A server with room for two calls, and clients of weights 4 and 1."""
    top, _, clients = WEIGHTED.partition("\n")
    return f"{top}\n{servers_text([address], 400, 2)}{clients}{store}"


async def _shares(url: str, calls: int) -> dict[str, int]:
    """Output tokens of two clients of which eight callers each always wait, when so many calls were answered."""
    answered = 0

    async def ask_again(client: str) -> None:
        nonlocal answered
        while answered < calls:
            # Over a connection of its own, which one or the other process takes.
            async with caller(url) as http:
                assert (await ask(http, client, 20)).whole
            answered += 1

    async with asyncio.TaskGroup() as asking:
        for client in ["heavy", "light"] * 8:
            asking.create_task(ask_again(client))
        busy = set[str]()
        while answered < calls:
            await asyncio.sleep(0.01)
            said = await told(url)
            busy |= {process for process, open_calls in said["processes"].items() if open_calls}
    assert len(busy) == 2
    return {name: said["clients"][name]["output_tokens"] for name in ("heavy", "light")}


@pytest.mark.parametrize("stored", [False, True], ids=["no store", "a store"])
@in_loop
async def test_processes_share_one_account(tmp_path: Path, stored: bool) -> None:
    """Weights of 4 and 1 hold however the connections of two clients are spread over two processes, with a store as
    without one; with one the processes are one gateway of it, and at the end it has its leases back."""
    folder = tmp_path / "account"
    store = f'[store]\nurl = "{folder.as_uri()}"\ngateways = 1\n' if stored else ""
    with server() as (_, one), gateway(tmp_path, _weighted(one, store), *TWO) as (started, url):
        await told(url, both)
        shares = await _shares(url, 200)
        assert 2.5 < shares["heavy"] / shares["light"] < 6
        if stored:
            said = (await told(url))["store"]
            assert (said["up"], said["renewals"].keys()) == (True, {"renewed"})
            assert b"holders\x80" not in (folder / "fairsched.default.account").read_bytes()
        started.terminate()
        assert await asyncio.to_thread(started.wait, 60) == 0
    if stored:
        assert b"holders\x80" in (folder / "fairsched.default.account").read_bytes()


@in_loop
async def test_an_account_with_a_store_that_is_killed_comes_back_to_it(tmp_path: Path) -> None:
    """The new process is another gateway to the store, and takes calls once the killed one counts as gone."""
    store = f'[store]\nurl = "{(tmp_path / "account").as_uri()}"\ngateways = 1\ngone_seconds = 1.0\n'
    with server() as (_, one), gateway(tmp_path, _weighted(one, store), *TWO) as (started, url):
        before = await told(url, both)
        async with caller(url) as http:
            assert (await ask(http, "heavy", 20)).whole
        (account,) = _children(started) - {int(pid) for pid in before["processes"]}
        os.kill(account, signal.SIGKILL)
        await told(url, lambda said: both(said) and said["store"]["up"] and said["store"]["renewals"]["renewed"] > 1)
        async with caller(url) as http:
            assert (await ask(http, "heavy", 20)).whole
