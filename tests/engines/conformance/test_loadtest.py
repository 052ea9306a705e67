"""A workload against made-up servers: what is sent, when, and what is measured of it."""

import asyncio
import json
from pathlib import Path

import pytest

from fairsched.cli import main
from fairsched.engines.conformance import LoadReplay, LoadTarget
from fairsched.engines.conformance.loadtest import Replayed, prompt_text
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from tests.support.adapters.gateway_scenarios import Fake, faked
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop

MS = 1_000_000


def job(request_id: int, at_ms: int = 0, **fields: object) -> Job:
    """A request of client id modulo 2 with three output tokens."""
    request = Request(request_id, request_id % 2, at_ms * MS, Prompt.from_keys([1, request_id]), 8)
    return Job(request, 3, **fields)  # type: ignore[arg-type]


def workload(*jobs: Job) -> Workload:
    """These jobs, of two clients."""
    return Workload("test", jobs, (Client(0, "a"), Client(1, "b")))


async def replayed(url: str, *jobs: Job) -> Replayed:
    """What is measured of these jobs at the server."""
    return await LoadReplay(workload(*jobs), LoadTarget(url)).run()


@in_loop
async def test_every_request_is_sent_at_its_time_and_measured() -> None:
    """Counts are exact; latencies are at least what the server takes (a pause before each event, in milliseconds)."""
    fake = Fake(tokens=3, pause=0.02)
    async with served(fake.app) as url:
        found = await replayed(url, *(job(i, 50 * i) for i in range(4)))
    measures = found.measures
    assert (measures.requests, measures.finished, measures.rejected, found.errors) == (4, 4, 0, {})
    assert {name: client.finished for name, client in found.clients.items()} == {"a": 2, "b": 2}
    assert measures.makespan_us >= 150e3 + 100e3
    assert measures.ttft_us.p50 is not None
    assert measures.latency_us.p50 is not None
    assert 40e3 <= measures.ttft_us.p50 <= measures.latency_us.p50 - 40e3
    assert [asked["max_tokens"] for asked in fake.asked] == [3] * 4
    assert {asked["model"] for asked in fake.asked} == {"tiny"}


def test_equal_blocks_are_equal_text_of_four_bytes_a_token() -> None:
    """Two prompts share a text exactly as long as their blocks agree."""
    one, two = (Prompt.from_keys(keys, block_tokens=16, tokens=50) for keys in ([1, 2, 3], [1, 2, 4]))
    texts = [prompt_text(one, 0), prompt_text(two, 1), prompt_text(one, 1)]
    assert [len(text.encode()) for text in texts] == [200] * 3
    assert texts[0][:128] == texts[1][:128]
    assert texts[0][128:192] != texts[1][128:192]
    assert texts[0][:192] == texts[2][:192]
    assert texts[0][192:] != texts[2][192:]


@in_loop
async def test_followers_wait_and_who_is_impatient_leaves() -> None:
    """A request follows one that finished, is cancelled after one that did not, and leaves when its time is up."""
    fake = Fake(tokens=3, pause=0.05)
    async with served(fake.app) as url:
        impatient = job(0, cancel_after_ns=120 * MS)
        found = await replayed(url, impatient, job(1), job(2, after=(1,)), job(3, after=(0,)))
    assert (found.measures.finished, found.measures.cancelled) == (2, 2)
    assert len(fake.asked) == 3


@in_loop
async def test_refusals_are_counted_by_reason() -> None:
    """A status, a connection that is not there, and an answer without a token are rejections."""
    for fake, reason in ((Fake(status=429), "HTTP 429"), (Fake(tokens=0), "an answer without a token")):
        async with served(fake.app) as url:
            found = await replayed(url, job(0))
        assert (found.measures.finished, found.measures.rejected, found.errors) == (0, 1, {reason: 1})
    with pytest.raises(ValueError, match="nothing listens at"):
        await replayed("http://127.0.0.1:9", job(0))


@in_loop
async def test_a_gateway_shares_as_weighed_and_load_sees_it() -> None:
    """A replay through a gateway names its clients there, and both count the same tokens."""
    async with faked(Fake(tokens=3)) as (_, here):
        found = await replayed(str(here.http.url).rstrip("/"), *(job(i) for i in range(20)))
        await here.emptied()
        assert found.measures.finished == 20
        tokens = sorted(client["output_tokens"] for client in here.status["clients"].values())
        # The name that asks for the models has no request that counts.
        assert tokens[-2:] == [30, 30]


def test_the_command_writes_figures_like_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has a run with the measures and each client's; a bad address is one line."""
    figures = tmp_path / "figures.json"

    async def test() -> None:
        fake = Fake(tokens=2)
        async with served(fake.app) as url:
            arguments = ["loadtest", url, "--limit", "5", "--rate-scale", "1000", "--json", str(figures)]
            assert await asyncio.to_thread(main, arguments) == 0

    asyncio.run(test())
    (run,) = json.loads(figures.read_bytes())["runs"]
    assert (run["requests"], run["finished"]) == (5, 5)
    assert sum(client["finished"] for client in run["clients"].values()) == 5
    assert run["ttft_us"]["p50"] > 0
    assert "all: 5 of 5 finished" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["loadtest", "nowhere"])
    assert "http://" in capsys.readouterr().err
