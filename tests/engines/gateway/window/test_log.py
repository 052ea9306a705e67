"""The event log of a window: it replays, and no other log is taken for one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import explain, replay
from fairsched.engines.gateway import Share, Window, gateway_policy
from fairsched.engines.gateway.account import Recorded
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.logs import logged_policy
from fairsched.engines.serving import ServingLog
from fairsched.model.request import Client
from fairsched.policies.guarantees import WindowTerms
from fairsched.policies.registry import ROUTERS, parameters

SERVERS = (ServerConfig("http://a", 60), ServerConfig("http://b", 40))
SHARES = (Share(60, 5), Share(40, 3))
TERMS = WindowTerms(hold_ns=7, call_ns=20, tokens_per_s=40 * 10**9)


def policy(name: str = "fcfs+deficit", quantum: int = 20) -> Any:
    """A policy as the gateway uses it."""
    return gateway_policy(GatewayConfig(SERVERS, policy=name, quantum=quantum), Path("test.toml"))


class World:
    """A window of two servers that a log records, driven by numbers."""

    def __init__(self, folder: Path, name: str = "fcfs+deficit", log: str = "log.jsonl") -> None:
        chosen = policy(name)
        self.log = folder / log
        self.recorded = Recorded(
            ServingLog(self.log, name, parameters(chosen), kv_capacity_tokens=100, windows=(60, 40), terms=TERMS)
        )
        self.window = Window(chosen, ROUTERS["round-robin"], SHARES, (self.recorded.record,), None, TERMS)
        for i in range(3):
            self.recorded.client(Client(i, "abc"[i]))
        self.running: list[int] = []
        self.count = self.now = 0

    def step(self, what: str, client: int, prompt: int, output: int) -> None:
        """One thing that happens."""
        self.now += 1
        window = self.window
        if what == "a":
            window.arrive(self.count, client, prompt, min(output, 10), self.now)
            self.count += 1
        elif what == "w":
            window.configure(Client(client, "abc"[client], 1 + output % 3), self.now)
        elif what == "j":
            window.join(Share(prompt + 40, 5), self.now)
        elif what == "l":
            if len(window.servers.places) > 1:
                window.part(window.servers.places[prompt % len(window.servers.places)], self.now)
        elif what == "c" and self.count:
            request_id = prompt % self.count
            window.cancel(request_id, self.now)
            self.running = [each for each in self.running if each != request_id]
        elif what == "p" and self.running:
            window.produced(self.running[prompt % len(self.running)], 1 + output % 2, self.now)
        elif self.running:
            request_id = self.running.pop(prompt % len(self.running))
            if what == "g":
                window.give_back(request_id, self.now)
            else:
                window.finish(request_id, None if output % 5 == 0 else output, output % 4, self.now)
        self.running += [placement.request_id for placement in window.admit(self.now)]
        window.charge(self.now)


STEPS = st.lists(
    st.tuples(st.sampled_from("aaaappffcgwjl"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30)), max_size=60
)
NAMES = ["fcfs+deficit", "vtc", "dlpm", "fcfs+hierarchical"]


@given(STEPS, STEPS, st.sampled_from(NAMES))
@settings(max_examples=30, deadline=None)
def test_a_log_replays_to_the_same_state(before: list[Any], after: list[Any], name: str) -> None:
    """Every event is one that a window tells, and the policy's state is the last line's, also of a window whose
    servers came and went; a wait over its bound is one that a broken assumption explains, in the log as it was live."""
    with TemporaryDirectory() as folder:
        for run, steps in enumerate((before, after)):
            world = World(Path(folder), name, f"log{run}.jsonl")
            for step in steps:
                world.step(*step)
            world.recorded.drain(world.window)
            report = replay(world.log, logged_policy)
            assert report.equal, report.text()
            live = world.window.usage.monitor
            assert live is not None
            assert not report.unexplained
            assert live.report().unexplained is None
            bounded = live.report().wait_bound_ns is not None
            assert (report.assumptions["CapacityFloor"].violated is None) is not bounded
            assert bounded or name in ("vtc", "fcfs+hierarchical")
            assert (report.workers[0].waiting_requests, report.workers[0].running_requests) == (
                world.window.waiting,
                world.window.in_flight,
            )


@given(
    st.lists(
        st.tuples(st.sampled_from("aaaapf"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30)), max_size=80
    ),
    st.sampled_from(["fcfs+deficit", "vtc"]),
)
@settings(max_examples=50, deadline=None)
def test_no_more_is_charged_while_a_client_waits_than_is_promised(steps: list[Any], name: str) -> None:
    """The W of T-window, at every moment at which nothing was given back."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder), name)
        monitor = world.window.usage.monitor
        assert monitor is not None
        for step in steps:
            world.step(*step)
            waits, worst = monitor._waits, monitor.promise.worst_wait
            assert waits is not None
            assert worst is not None
            if monitor.report().assumptions["NothingRefunded"].violated:
                break
            spent = [waits._watch.total - each.charged for each in waits._waiting.values() if each.requests]
            assert max(spent, default=0) <= worst.cost
        world.recorded.drain(world.window)


def test_a_log_that_no_window_could_have_written_is_told_from_one(tmp_path: Path) -> None:
    """A call that is let in twice, one without room, one that ends too early or with too much: `explain` declines."""
    world = World(tmp_path)
    for prompt in (20, 20, 20, 30, 20):
        world.step("a", 0, prompt, 10)
    world.recorded.drain(world.window)
    lines = world.log.read_bytes().splitlines(keepends=True)
    admitted = next(line for line in lines if line.startswith(b'["Admitted"')).replace(b'ed",1,', b'ed",9,')
    for wrong, why in (
        (admitted, "it does not wait"),
        (admitted.replace(b",0,0,10,10,10", b",4,0,10,10,10"), "the windows are full"),
        (admitted.replace(b",0,0,10,10,10", b",4,0,11,9,10"), "half of 20 tokens is 10"),
        (b'["Finished",9,0,4,0,1]\n', "it is not in flight"),
        (b'["Finished",9,0,0,0,1]\n', "its client produced 1 tokens less"),
        (b'["Preempted",9,0,0,0,0,0]\n', "a window tells no such thing"),
    ):
        world.log.write_bytes(b"".join([*lines[:-1], wrong]))
        report = replay(world.log, logged_policy)
        assert report.difference is not None
        assert why in report.difference
    with pytest.raises(ValueError, match="a gateway's log"):
        explain(world.log, 0, logged_policy)
