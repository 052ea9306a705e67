"""The picker without gRPC: who is let in where, limits, endpoints that come and go, and what a file may say."""

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path

import pytest

from fairsched.cli import main
from fairsched.engines.adapters.endpoint_picker import Picker, read_config
from fairsched.engines.adapters.endpoint_picker.config import PickerConfig, reloaded
from fairsched.engines.adapters.endpoint_picker.picker import Picked
from fairsched.engines.gateway import CallError, Usage
from fairsched.engines.settings import ConfigError
from tests.support.adapters.loops import in_loop

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "[::1]:80"

FILE = """
[pool]
window_tokens = 40
endpoints = ["10.0.0.1:80", "10.0.0.2:80"]
[limits]
waiting = 3
waiting_per_client = 2
wait_seconds = 0.2
[client.gold]
weight = 4
"""


def configured(tmp_path: Path, text: str = FILE) -> PickerConfig:
    """The configuration of a file of that text."""
    path = tmp_path / "picker.toml"
    path.write_text(text)
    return read_config(path)


def picker(tmp_path: Path, text: str = FILE) -> Picker:
    """A picker that sees its endpoints."""
    made = Picker(configured(tmp_path, text))
    made.see(made.config.pool.endpoints)
    return made


def empty(made: Picker) -> bool:
    """Whether nothing waits and nothing is in flight."""
    now = made.status()
    return (now["waiting"], now["in_flight"], now["in_flight_tokens"]) == (0, 0, 0)


async def refused(work: Awaitable[Picked]) -> tuple[int, int | None]:
    """The status of a refusal, and when to try again."""
    with pytest.raises(CallError) as caught:
        await work
    return caught.value.status, caught.value.retry_after_seconds


@in_loop
async def test_calls_are_booked_at_the_emptiest_endpoint_and_wait_for_room(tmp_path: Path) -> None:
    """Two windows take two calls; the third waits until one ends, and goes there."""
    made = picker(tmp_path)
    first, second = await made.pick("a", 20, 20), await made.pick("a", 20, 20)
    assert {first.endpoint, second.endpoint} == {A, B}
    third = asyncio.create_task(made.pick("a", 20, 20))
    await asyncio.sleep(0)
    assert not third.done()
    made.finish(second, Usage(20, 5))
    assert (await third).endpoint == second.endpoint
    made.leave(await third)
    made.give_back(first)
    assert empty(made)
    clients = made.status()["clients"]
    assert clients["a"]["prompt_tokens"] == 40
    # What the call had that was left is not known, and estimated by its time.
    assert 5 <= clients["a"]["output_tokens"] <= 5 + 20


@in_loop
async def test_fallbacks_are_the_emptiest_others_of_the_subset(tmp_path: Path) -> None:
    """Behind the picked endpoint stand so many others as the file says, those with the fewest calls first, only of the
    subset, and only those that are there; a call that another endpoint served is counted."""
    text = FILE.replace('"10.0.0.2:80"]', f'"10.0.0.2:80", "{C}"]\nfallbacks = 1').replace("= 40", "= 400")
    made = picker(tmp_path, text)
    first = await made.pick("a", 20, 20)
    second = await made.pick("a", 20, 20)
    (free,) = {A, B, C} - {first.endpoint, second.endpoint}
    assert second.fallbacks == (free,)
    assert (await made.pick("a", 20, 20, [first.endpoint])).fallbacks == ()
    assert set((await made.pick("a", 20, 20, [A, B])).fallbacks) < {A, B}
    made.see([A])
    assert (await made.pick("a", 20, 20)).fallbacks == ()
    made.served(second, second.endpoint)
    made.served(second, free)
    assert made.outcomes["served elsewhere"] == 1
    assert picker(tmp_path).config.pool.fallbacks == 0


@in_loop
async def test_what_is_over_a_limit_is_told_so(tmp_path: Path) -> None:
    """413 for what fits nowhere, 429 for too many that wait, of one client or in all, 503 after too long a wait."""
    made = picker(tmp_path)
    assert await refused(made.pick("a", 30, 11)) == (413, None)
    held = [await made.pick("a", 20, 20) for _ in range(2)]
    waits = [asyncio.create_task(refused(made.pick("a", 20, 20))) for _ in range(2)]
    await asyncio.sleep(0)
    assert await refused(made.pick("a", 20, 20)) == (429, 1)
    waits.append(asyncio.create_task(refused(made.pick("b", 20, 20))))
    await asyncio.sleep(0)
    assert await refused(made.pick("c", 20, 20)) == (429, 1)
    assert await asyncio.gather(*waits) == [(503, 1)] * 3
    for each in held:
        made.finish(each, Usage())
    assert empty(made)
    assert made.outcomes == {"too large": 1, "limited": 2, "waited too long": 3, "finished": 2}


@in_loop
async def test_a_caller_that_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    """While it waits, and in the moment in which it is let in."""
    made = picker(tmp_path, FILE.replace('endpoints = ["10.0.0.1:80", ', "endpoints = ["))
    first = await made.pick("a", 20, 20)
    second, third = (asyncio.create_task(made.pick("a", 20, 20)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    assert made.status()["waiting"] == 1
    made.finish(first, Usage())
    third.cancel()  # Its place is there, and it has not heard of it.
    with pytest.raises(asyncio.CancelledError):
        await third
    assert empty(made)


@in_loop
async def test_a_subset_is_kept_to_and_never_more_is_in_flight_than_all_windows_hold(tmp_path: Path) -> None:
    """A call that may go to one endpoint only goes there, also when that is full; then others wait, since the windows
    together hold no more.  A subset of which nothing is there is refused with 503."""
    made = picker(tmp_path)
    picked = [await made.pick("a", 10, 10, [B, "10.9.9.9:80"]) for _ in range(3)]
    assert {each.endpoint for each in picked} == {B}
    fourth = await made.pick("a", 10, 10, [A, B])
    assert fourth.endpoint == A
    waits = asyncio.create_task(made.pick("a", 10, 10))
    await asyncio.sleep(0)
    assert not waits.done()
    assert made.window.in_flight_tokens == made.window.tokens == 80
    for nothing in ([], ["10.9.9.9:80"]):
        assert await refused(made.pick("a", 1, 1, nothing)) == (503, None)
    only = asyncio.create_task(refused(made.pick("a", 10, 10, [B])))
    await asyncio.sleep(0)
    made.see([A])
    assert await only == (503, None)
    for each in (*picked, fourth):
        made.finish(each, Usage())
    made.finish(await waits, Usage())
    assert empty(made)


@in_loop
async def test_endpoints_come_and_go(tmp_path: Path) -> None:
    """Without any a call is refused at once; one that comes takes what waits, one that goes keeps what it has."""
    made = Picker(configured(tmp_path))
    assert await refused(made.pick("a", 1, 1)) == (503, None)
    made.see([A])
    first = await made.pick("a", 20, 20)
    waits = asyncio.create_task(made.pick("a", 20, 20))
    await asyncio.sleep(0)
    made.see([C])
    assert (await waits).endpoint == C
    assert made.endpoints == (C,)
    made.produced(first, 3)
    made.finish(first, Usage(None, 7))
    made.finish(await waits, Usage())
    assert empty(made)
    assert made.status()["promise"]["bound_violations"] == 0
    assert made.around(None) == C


@in_loop
async def test_what_is_beyond_the_window_of_one_that_leaves_is_not_free_elsewhere(tmp_path: Path) -> None:
    """A call for one endpoint alone may exceed its window within that of all.  When the endpoint leaves, what is in
    flight there still counts: never more than M is."""
    made = picker(tmp_path)
    picked = [await made.pick("a", 10, 10, [B]) for _ in range(4)]
    made.see([A])
    assert (made.window.in_flight_tokens, made.window.tokens) == (80, 80)
    waits = asyncio.create_task(made.pick("a", 10, 10))
    await asyncio.sleep(0)
    assert not waits.done()
    for each in picked:
        made.finish(each, Usage())
        assert made.window.in_flight_tokens <= made.window.tokens
    made.finish(await waits, Usage())
    assert empty(made)


@in_loop
async def test_a_window_that_shrinks_refuses_what_fits_no_more(tmp_path: Path) -> None:
    """A call that waits and is larger than the new window gets 413 at once, and the next ones go on; so does one that
    comes, though an endpoint that is gone had a larger window."""
    made = picker(tmp_path, FILE.replace("wait_seconds = 0.2", "wait_seconds = 9"))
    picked = [await made.pick("a", 20, 20) for _ in range(2)]
    large = asyncio.create_task(refused(made.pick("a", 20, 20)))
    small = asyncio.create_task(made.pick("b", 5, 5))
    await asyncio.sleep(0)
    made.see([A])
    made.configure(configured(tmp_path, FILE.replace("= 40", "= 10")))
    assert await large == (413, None)
    for each in picked:
        made.finish(each, Usage())
    async with asyncio.timeout(1):
        made.finish(await small, Usage())
    assert await refused(made.pick("a", 20, 20)) == (413, None)
    assert empty(made)


@in_loop
async def test_who_gets_a_weight_when_all_names_are_taken_has_a_name(tmp_path: Path) -> None:
    """A client that the file names later has its own number and weight, and `others` keep theirs."""
    text = FILE.replace("[limits]", "[limits]\nclients = 1")
    made = picker(tmp_path, text)
    for name in ("a", "b", "c"):
        made.finish(await made.pick(name, 1, 1), Usage())
    made.configure(configured(tmp_path, text + "[client.x]\nweight = 7"))
    weights = {client.name: client.weight for client in made.clients.all}
    assert weights["x"] == 7
    assert weights["others"] == 1
    assert made.clients["x"].id != made.clients["others"].id == made.clients.resolve("never-seen")[0].id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pool is missing"),
        ("[pool]\nwindow_tokens = 10", "nothing to pick from"),
        (FILE + "wieght = 1", "unknown key client.gold.wieght; did you mean weight"),
        (FILE.replace("10.0.0.2:80", "somewhere"), r"pool\.endpoints\[1\]: expected IP:PORT"),
        ('listen = "a:65536"\n' + FILE, "listen has a port over 65535"),
        ('[pool]\nwindow_tokens = 10\ndns = "a:65536"', "pool.dns has a port over 65535"),
        ('tls_key = "x"\n' + FILE, "go together"),
        ("pool = [", "picker.toml"),
        (FILE + "[store]", "store.url is missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    """Unknown keys, missing ones, wrong types and values."""
    with pytest.raises(ConfigError, match=message):
        configured(tmp_path, text)


def test_what_may_change_while_it_serves(tmp_path: Path) -> None:
    """Endpoints, clients and limits; a change of the policy says that it needs a restart."""
    running = configured(tmp_path)
    path = tmp_path / "picker.toml"
    path.write_text(FILE.replace("weight = 4", "weight = 2"))
    assert reloaded(running, path).weights == {"gold": 2}
    path.write_text('policy = "vtc"\n' + FILE)
    with pytest.raises(ConfigError, match="policy needs a restart"):
        reloaded(running, path)


def promised(said: str) -> int:
    """The bound that the command prints."""
    found = re.search(r"80 tokens in 2 endpoints: it promises ([\d,]+) cost units", said)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_the_command_checks_a_file_and_prints_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And refuses names that are not there, in one line."""
    path = tmp_path / "picker.toml"
    path.write_text(FILE)
    assert main(["gateway", "--picker", str(path), "--check"]) == 0
    said = capsys.readouterr().out
    assert said.count("and how many it runs is not known") == 2 * ("window_requests" not in FILE)
    alone = promised(said)
    path.write_text(FILE + f'[store]\nurl = "{tmp_path.as_uri()}"')
    assert main(["gateway", "--picker", str(path), "--check"]) == 0
    assert promised(capsys.readouterr().out) > alone  # It is that of two pickers together.
    path.write_text('policy = "vtc"\n' + path.read_text())
    with pytest.raises(SystemExit):
        main(["gateway", "--picker", str(path), "--check"])
    assert 'what is shared is the credit of a deficit gate: policy = "fcfs+deficit"' in capsys.readouterr().err
    path.write_text('policy = "no-such"\n' + FILE)
    with pytest.raises(SystemExit):
        main(["gateway", "--picker", str(path), "--check"])
    assert "unknown policy" in capsys.readouterr().err


def test_the_file_on_the_page_is_one(tmp_path: Path) -> None:
    """The page begins with a file that can be used."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "integrate" / "endpoint-picker.md").read_text()
    config = configured(tmp_path, page.partition("```toml\n")[2].partition("```")[0])
    assert (config.weights, len(config.pool.endpoints)) == ({"gold": 4}, 2)


@in_loop
async def test_calls_wait_here_where_an_endpoint_says_that_they_wait_there(tmp_path: Path) -> None:
    """An endpoint that runs two of its eight has half as many at once: one more is let in when five have ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        said = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 6\n" if path == b"/metrics" else b""
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    made = picker(tmp_path, f'[pool]\nwindow_tokens = 1000\nendpoints = ["{endpoint}"]\n')
    runs = [await made.pick("a", 2, 2) for _ in range(8)]
    following = asyncio.create_task(made.follow())
    while (place := made.window.servers[0]).share.requests > 4:
        await asyncio.sleep(0.01)
    following.cancel()
    assert (place.share.requests, place.share.tokens) == (4, 1000)
    waits = asyncio.create_task(made.pick("a", 2, 2))
    for call in runs[:5]:
        await asyncio.sleep(0)
        assert not waits.done()
        made.finish(call, Usage(2, 2))
    made.leave(await waits)
    for call in runs[5:]:
        made.give_back(call)
    server.close()
    assert empty(made)
