"""Servers that say how many calls wait in their own queue: the gateway keeps the rest in its own, where shares hold."""

from email.message import Message
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError

import attrs
import pytest

from fairsched.engines.gateway.window import Slots, load_in, slot_warnings
from tests.support.attacks import virtual
from tests.support.attacks.floods import loops
from tests.support.attacks.table import ATTACKS, CHAT

VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
"""
SGLANG = b'sglang:num_running_reqs{model_name="m"} 4.0\nsglang:num_queue_reqs{model_name="m"} 2.0\n'
OURS = b'fairsched_running_requests{worker="0"} 4.0\nfairsched_waiting_requests{worker="0"} 2.0\n'
STATUS = b'{"policy": "fcfs", "workers": {"0": {"running": 3, "waiting": 0}, "1": {"running": 1, "waiting": 2}}}'


def test_a_polite_client_has_its_share_where_nobody_says_how_many_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of 64 calls at a time before 4 slots and a window that all fit into.  Where the server says nothing they
    wait there, and a call of the polite client behind them."""
    flood = attrs.evolve(ATTACKS[0], flood=loops(64, CHAT), window_tokens=100_000)
    silent = virtual.play(flood, seconds=20.0, folder=tmp_path)
    monkeypatch.setattr(virtual, "MockServer", virtual.TellingServer)
    told = virtual.play(flood, seconds=20.0, folder=tmp_path)
    assert told.answered >= 5 * silent.answered
    assert sum(told.computed.values()) >= 0.9 * sum(silent.computed.values())
    assert told.status["window_tokens"] == silent.status["window_tokens"]
    assert told.status["promise"]["bound_violations"] == 0


@pytest.mark.parametrize("said", [VLLM, SGLANG, OURS, STATUS])
def test_what_servers_say_is_read(said: bytes) -> None:
    """Of all replicas together."""
    assert load_in(said) == (4, 2)


@pytest.mark.parametrize("said", [b"", b"{}", b"<html>", b"vllm:num_requests_running 3\n", b'{"workers": {"0": {}}}'])
def test_what_says_nothing_is_no_load(said: bytes) -> None:
    """Nor half of it."""
    assert load_in(said) is None


def test_the_rule() -> None:
    """Down to this gateway's part of what runs, by half at most; up by an eighth where none waits and all are used."""
    slots, found = Slots(), []
    assert slots.of(0, 256) == 256
    for load, in_flight in [
        ((4, 12), 16),
        ((4, 4), 8),
        ((4, 0), 3),
        ((4, 0), 4),
        ((2, 8), 5),
        ((0, 9), 2),
        ((0, 9), 1),
    ]:
        slots.tell(0, load, in_flight)
        found.append(slots.of(0, 256))
    assert found == [8, 4, 4, 5, 2, 1, 1]
    for _ in range(60):
        slots.tell(0, (1, 0), slots.of(0, 256))
    assert slots.of(0, 40) == 40
    slots.tell(0, None, 0)
    assert slots.of(0, 256) == 256


def test_two_gateways_have_what_runs_together() -> None:
    """Each has its part of what runs, by what it has in flight."""
    first, second = Slots(), Slots()
    for _ in range(10):
        several = [min(each.of(0, 100), 100) for each in (first, second)]
        running = min(sum(several), 8)
        for each, mine in zip((first, second), several, strict=True):
            each.tell(0, (running, sum(several) - running), mine)
    assert 6 <= first.of(0, 100) + second.of(0, 100) <= 10


def test_what_the_check_warns_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing, or is not there, and has no `window_requests`."""
    said = {"http://a/metrics": SGLANG, "http://b/status": STATUS}

    def opened(url: str, timeout: float) -> BytesIO:
        assert timeout <= 1
        if url.startswith("http://d/"):
            raise OSError
        if url not in said:
            raise HTTPError(url, 404, "", Message(), BytesIO())
        return BytesIO(said[url])

    monkeypatch.setattr("fairsched.engines.gateway.window.slots._open", opened)
    servers = [(f"http://{name}", requests) for name in "abcd" for requests in (4, 5, 256)]
    assert [each.split(" calls")[0] for each in slot_warnings(servers, 256)] == [
        "http://c gets up to 256",
        "http://d gets up to 256",
    ]
