"""A gateway of several processes: one account behind one address, and whatever is killed, each call ends once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main
from fairsched.engines.gateway import Spec, supervise
from fairsched.engines.settings import ConfigError
from tests.engines.serving.test_metrics import samples_of
from tests.support.adapters.gateway_processes import (
    Stream,
    ask,
    caller,
    gateway,
    kill,
    server,
    servers_text,
    status,
)
from tests.support.adapters.http import LOST, Caller
from tests.support.adapters.loops import in_loop

TWO = ("--processes", "2")


Said = dict[str, dict[str, Any]]
"""What each process says of itself, by number."""


async def told(url: str, until: Callable[[Said], object] = lambda said: len(said) == 2) -> Said:
    """What the processes say over a connection of their own, once that is as it should be: both are there."""
    async with asyncio.timeout(120):
        while True:
            try:
                async with caller(url) as http:
                    said: Said = (await status(http))["processes"]
                    if until(said):
                        return said
            except (*LOST, KeyError):
                pass  # It starts again.
            await asyncio.sleep(0.05)


def outcomes(said: Said) -> Counter[str]:
    """How calls ended at all processes."""
    return sum((Counter[str](each["outcomes"]) for each in said.values()), Counter())


async def spread(url: str, client: str, streams: int) -> tuple[list[Stream], list[asyncio.Task[Stream]], Said]:
    """Streams over connections of their own, begun one after another until each process has some; and what they say."""
    seen: list[Stream] = []
    tasks: list[asyncio.Task[Stream]] = []
    said: Said = {}

    async def one(stream: Stream) -> Stream:
        async with caller(url) as http:
            return await ask(http, client, 400, seen=stream)

    while len(seen) < streams or not all(each["in_flight"] for each in said.values()):
        seen.append(Stream())
        tasks.append(asyncio.ensure_future(one(seen[-1])))
        # What each tells is a second old.
        await asyncio.sleep(0.3)
        said = await told(url)
    return seen, tasks, said


@in_loop
async def test_a_process_that_is_killed_ends_its_calls_and_is_started_again(tmp_path: Path) -> None:
    """In the middle of streams: its callers are cut off with what they have, those of the other are answered whole and
    counted once, and a new process serves at the same address, with credit of the account."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 50_000, 1000), *TWO) as (_, url):
        await told(url)
        seen, tasks, said = await spread(url, "a", 8)
        victim, other = sorted(said, key=lambda number: said[number]["in_flight"], reverse=True)
        os.kill(said[victim]["pid"], signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert all(each.in_order for each in seen)
        whole = sum(each.whole for each in seen)
        assert 1 <= whole < len(seen)
        after = await told(url, lambda now: now[victim]["pid"] != said[victim]["pid"] and not now[other]["in_flight"])
        assert after[other]["outcomes"] == {"finished": whole}
        for _ in range(8):
            async with caller(url) as http:
                assert (await ask(http, "a", 3)).whole
        await told(url, lambda now: outcomes(now)["finished"] == whole + 8)


def _children(started: subprocess.Popen[str]) -> set[int]:
    """The processes that this one started."""
    return {int(each) for each in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()}


@in_loop
async def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """The address is free afterwards, and their folder gone."""
    with server() as (_, one), gateway(tmp_path, servers_text([one], 5000), *TWO) as (started, url):
        await told(url)
        children = _children(started)
        assert len(children) == 2
        folders = {path.parent for path in Path(tempfile.gettempdir()).glob("fairsched-*/0.told")}
        kill(started)
        async with asyncio.timeout(60):
            while any(_runs(pid) for pid in children):
                await asyncio.sleep(0.02)
        assert any(not folder.exists() for folder in folders)
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
        stopped = int((await told(url))["0"]["pid"])
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
        victim = (await told(url))["0"]["pid"]
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
        os.kill(victim, signal.SIGKILL)
        await told(url, lambda said: len(said) == 2 and victim != said["0"]["pid"])
        assert await _statuses(url, 20) == {401}


@in_loop
async def test_processes_drain_together_and_report_as_one(tmp_path: Path) -> None:
    """After SIGTERM the streams that are there are finished by both, none is taken any more, the report has all, and
    the logs of both replay as those of one account."""
    report, log = tmp_path / "report.json", tmp_path / "calls.jsonl"
    options = ("--report", str(report), "--log", str(log))
    with server() as (_, one), gateway(tmp_path, servers_text([one], 50_000), *TWO, *options) as (started, url):
        await told(url)
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
    assert outcomes(json.loads(report.read_text())["processes"]) == {"finished": len(seen)}
    assert main(["audit", *(str(tmp_path / f"calls.{i}.jsonl") for i in (0, 1)), "--json", "-"]) == 0
    assert main(["audit", str(tmp_path / "calls.0.jsonl"), "--replay", "--json", "-"]) == 0


@in_loop
async def test_metrics_and_health_are_the_whole_gateways(tmp_path: Path) -> None:
    """Whichever process is asked, the counts are soon of all calls; an address of the status without its key
    stays shut."""
    with server() as (_, one), gateway(tmp_path, "metrics = true\n" + servers_text([one], 5000), *TWO) as (_, url):
        await told(url)
        for _ in range(8):
            async with caller(url) as http:
                await ask(http, "a", 2)
        await told(url, lambda said: outcomes(said)["finished"] == 8)
        await asyncio.sleep(2)
        for _ in range(8):
            async with caller(url) as http:
                samples = samples_of(await _metrics(http))
                assert {dict(labels)["worker"] for _, labels in samples} == {"gateway-0", "gateway-1"}
                finished = [value for (_, labels), value in samples.items() if ("outcome", "finished") in labels]
                assert sum(finished) == 8
                assert (await http.get("/health")).json() == {"servers_up": 1}
                assert (await http.get("/metrics")).status == 401


async def _metrics(http: Caller) -> str:
    from tests.support.adapters.gateway_processes import ADMIN

    return (await http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})).text


def test_windows_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is refused in one line, before anything is started."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="on Windows a gateway is one process, not 3"):
        supervise(Spec("gateway.toml", 3), (), drain_seconds=1.0)


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


async def _shares(url: str, calls: int, *, kills: bool) -> Counter[str]:
    """Answers of 20 tokens to two clients of which eight callers each always wait, until there were so many; one of two
    processes is killed in the middle."""
    answered: Counter[str] = Counter()

    async def ask_again(client: str) -> None:
        while answered.total() < calls:
            # Over a connection of its own, which one or the other process takes.
            async with caller(url) as http:
                if (await ask(http, client, 20)).whole:
                    answered[client] += 1
                else:
                    await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as asking:
        for client in ["heavy", "light"] * 8:
            asking.create_task(ask_again(client))
        busy = set[str]()
        while answered.total() < calls:
            await asyncio.sleep(0.01)
            said = await told(url)
            busy |= {number for number, each in said.items() if each["in_flight"]}
            if kills and answered.total() > calls // 2:
                os.kill(said["0"]["pid"], signal.SIGKILL)
                kills = False
    assert len(busy) == 2
    return answered


@pytest.mark.parametrize("stored", [False, True], ids=["no store", "a store"])
@in_loop
async def test_processes_share_one_account(tmp_path: Path, stored: bool) -> None:
    """Weights of 4 and 1 hold however the connections of two clients are spread over two processes: without a store,
    where one of them is killed in the middle, and with one, which has its leases back at the end."""
    folder = tmp_path / "account"
    store = f'[store]\nurl = "{folder.as_uri()}"\ngateways = 1\n' if stored else ""
    with server() as (_, one), gateway(tmp_path, _weighted(one, store), *TWO) as (started, url):
        await told(url)
        shares = await _shares(url, 200, kills=not stored)
        assert 2.5 < shares["heavy"] / shares["light"] < 6
        await told(url, lambda said: len(said) == 2 and all(each["store"]["up"] for each in said.values()))
        if stored:
            assert b"holders\x80" not in (folder / "fairsched.default.account").read_bytes()
        started.terminate()
        assert await asyncio.to_thread(started.wait, 60) == 0
    if stored:
        assert b"holders\x80" in (folder / "fairsched.default.account").read_bytes()
