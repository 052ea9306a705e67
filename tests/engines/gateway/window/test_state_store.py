"""What a gateway keeps, without I/O but its files: debts after a kill at any moment, a log that replays, tags."""

import errno
import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import explain, replay
from fairsched.engines.analysis.explained import ExplainError
from fairsched.engines.gateway import Share, Window, gateway_policy
from fairsched.engines.gateway import state_store as keep
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.gateway.server import Recorded
from fairsched.engines.gateway.state_store import UsageStore
from fairsched.engines.logs import logged_policy
from fairsched.engines.serving import ServingLog
from fairsched.engines.settings import ConfigError
from fairsched.model.request import Client
from fairsched.model.serialization import digest
from fairsched.policies.guarantees import WindowTerms
from fairsched.policies.registry import ROUTERS, parameters

SERVERS = (ServerConfig("http://a", 60), ServerConfig("http://b", 40))
SHARES = (Share(60, 5), Share(40, 3))
TERMS = WindowTerms(hold_ns=7, call_ns=20)


def policy(name: str = "fcfs+deficit", quantum: int = 20) -> Any:
    """A policy as the gateway uses it."""
    return gateway_policy(GatewayConfig(SERVERS, policy=name, quantum=quantum), Path("test.toml"))


class World:
    """A window of two servers that a file keeps and a log records, driven by numbers."""

    def __init__(self, folder: Path, name: str = "fcfs+deficit", log: str = "log.jsonl") -> None:
        chosen = policy(name)
        self.kept = UsageStore(folder / "debts.json", chosen)
        state = self.kept.state
        header = None if state is None else chosen.state_to_json(state)
        self.log = folder / log
        self.recorded = Recorded(
            ServingLog(
                self.log, name, parameters(chosen), kv_capacity_tokens=100, windows=(60, 40), terms=TERMS, state=header
            )
        )
        listeners = (self.kept.record, self.recorded.record)
        self.window = Window(chosen, ROUTERS["round-robin"], SHARES, listeners, state, TERMS)
        self.kept.begin(self.window)
        for i in range(3):
            for listener in (self.kept, self.recorded):
                listener.client(Client(i, "abc"[i]))
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
        # What was not charged yet when a gateway is killed is lost: the time of a tick.
        window.charge(self.now)

    def kill(self) -> None:
        """Nothing more is written, and nothing is tidied up."""
        if self.kept._file is not None:
            self.kept._file.close()
        self.recorded._log.close()

    def owed(self) -> str:
        """What clients owe if all is lost now: prompts in flight are charged whole, and nobody waits."""
        return digest(self.window.accounts(self.now))


STEPS = st.lists(
    st.tuples(st.sampled_from("aaaappffcgwjl"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30)), max_size=60
)
NAMES = ["fcfs+deficit", "vtc", "dlpm", "fcfs+hierarchical"]


@given(STEPS, STEPS, st.sampled_from(NAMES), st.integers(3, 40))
@settings(max_examples=40, deadline=None)
def test_whenever_it_is_killed_the_next_gateway_goes_on_with_the_debts(
    before: list[Any], after: list[Any], name: str, events_max: int
) -> None:
    """After any events, the journal's last line included, the file gives what is owed at that moment, and again after a
    second life that went on from it."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep, "EVENTS_MAX", events_max)
        for steps in (before, after):
            world = World(Path(folder), name)
            for step in steps:
                world.step(*step)
            assert digest(UsageStore(Path(folder) / "debts.json", policy(name)).state) == world.owed()
            world.kill()


@given(STEPS, STEPS, st.sampled_from(NAMES))
@settings(max_examples=30, deadline=None)
def test_a_log_replays_to_the_same_state(before: list[Any], after: list[Any], name: str) -> None:
    """Every event is one that a window tells, and the policy's state is the last line's, also of a window that went on
    from debts, and of one whose servers came and went."""
    with TemporaryDirectory() as folder:
        for run, steps in enumerate((before, after)):
            world = World(Path(folder), name, f"log{run}.jsonl")
            for step in steps:
                world.step(*step)
            world.recorded.drain(world.window)
            world.kill()
            report = replay(world.log, logged_policy)
            assert report.equal, report.text()
            assert (report.workers[0].waiting_requests, report.workers[0].running_requests) == (
                world.window.waiting,
                world.window.in_flight,
            )


def test_a_log_that_no_window_could_have_written_is_told_from_one(tmp_path: Path) -> None:
    """A call that is let in twice, one without room, one that ends too early or with too much: `explain` declines."""
    world = World(tmp_path)
    for prompt in (20, 20, 20, 30, 20):
        world.step("a", 0, prompt, 10)
    world.recorded.drain(world.window)
    world.kill()
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
    with pytest.raises(ExplainError, match="a gateway's log"):
        explain(world.log, 0, logged_policy)


def test_files_of_another_policy_are_refused(tmp_path: Path) -> None:
    """Another policy's debts, or another quantum's: nothing is forgiven silently."""
    world = World(tmp_path)
    world.step("a", 0, 5, 5)
    world.kill()
    for other in (policy("vtc"), policy(quantum=21)):
        with pytest.raises(ConfigError, match="another policy"):
            UsageStore(tmp_path / "debts.json", other)


WRONG_LINES = (
    b'["events", [["Settled", 3, 0, 77, 0, 5]]]',
    b'["events", [["ClientConfigured", 3, 0, 9, 2, []]]]',
    b'["events", [["Finished", 3, 0, 77, 9, 5]]]',
    b'["events", [["Arri',
    b'["\xff"',
    b"\0" * 50,
)


@given(STEPS, STEPS, st.sampled_from(WRONG_LINES))
@settings(max_examples=25, deadline=None)
def test_a_damaged_journal_is_gone_on_from_as_far_as_it_can_be_read(
    before: list[Any], after: list[Any], wrong: bytes
) -> None:
    """The debts are those at the line before the damage, whatever stands behind it; the damaged file is kept beside the
    new one, the status says so, and what happens from then on is kept as ever."""
    with TemporaryDirectory() as folder:
        path, world = Path(folder) / "debts.json", World(Path(folder))
        for step in before:
            world.step(*step)
        owed = world.owed()
        journal = path.with_name("debts.json.journal")
        length = len(journal.read_bytes())
        for step in after:
            world.step(*step)
        world.kill()
        data = journal.read_bytes()
        damaged = data[:length] + wrong + b"\n" + data[length:]
        journal.write_bytes(damaged)
        again = World(Path(folder))
        assert digest(again.kept.state) == owed
        assert "is forgotten" in str(again.kept.status()["state"]["damage"])
        assert path.with_name("debts.json.journal.damaged-1").read_bytes() == damaged
        for step in after:
            again.step(*step)
        assert digest(UsageStore(path, policy()).state) == again.owed()
        again.kill()


def test_a_damaged_snapshot_begins_without_debts_and_is_kept(tmp_path: Path) -> None:
    """It refuses no start; snapshot and journal are kept beside the new ones, each time under another name."""
    path = tmp_path / "debts.json"
    for number in (1, 2):
        world = World(tmp_path)
        world.step("a", 0, 5, 5)
        world.kill()
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        again = World(tmp_path)
        assert again.kept.state is None
        assert "every debt in it is forgotten" in str(again.kept.damage)
        assert (tmp_path / f"debts.json.damaged-{number}").read_bytes() == whole[:-5]
        assert (tmp_path / f"debts.json.journal.damaged-{number}").exists()
        again.kill()
        assert UsageStore(path, policy()).damage is None


def test_a_torn_last_line_is_no_damage(tmp_path: Path) -> None:
    """A process that is killed leaves one: what it is about was told to no caller."""
    world = World(tmp_path)
    world.step("a", 0, 5, 5)
    world.kill()
    journal = tmp_path / "debts.json.journal"
    journal.write_bytes(journal.read_bytes() + b'["events", [["Arri')
    kept = UsageStore(tmp_path / "debts.json", policy())
    assert kept.damage is None
    assert kept.state is not None


def test_a_full_disk_refuses_no_start_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway starts and serves, the file of the life before stays as it was, and when there is room again what is
    owed then is kept."""
    world = World(tmp_path)
    for what in "aaapf":
        world.step(what, 0, 9, 9)
    world.kill()
    journal = tmp_path / "debts.json.journal"
    journal.write_bytes(journal.read_bytes() + b"damage\n")
    before = {each.name: each.read_bytes() for each in tmp_path.glob("debts*")}
    saved = UsageStore.save

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(UsageStore, "save", full)
    again = World(tmp_path, log="log2.jsonl")
    for what in "aaapf":
        again.step(what, 0, 9, 9)
    assert again.window.in_flight
    assert again.kept.status()["state"]["failure"] is not None
    assert {each.name: each.read_bytes() for each in tmp_path.glob("debts*")} == before
    monkeypatch.setattr(UsageStore, "save", saved)
    again.now += keep.AGAIN_NS
    again.step("f", 0, 9, 9)
    assert again.kept.status()["state"] == {"written": True, "failure": None, "damage": again.kept.damage}
    assert (tmp_path / "debts.json.journal.damaged-1").read_bytes() == before["debts.json.journal"]
    again.step("a", 1, 7, 7)
    assert digest(UsageStore(tmp_path / "debts.json", policy()).state) == again.owed()
    again.kill()


def test_a_kill_between_a_snapshot_and_its_journal_charges_nothing_twice(tmp_path: Path) -> None:
    """The journal that lies beside a newer snapshot is of the one before: what it has is in the snapshot already."""
    world = World(tmp_path)
    for what in "aaapf":
        world.step(what, 0, 9, 9)
    journal = tmp_path / "debts.json.journal"
    before = journal.read_bytes()
    world.kept._snapshot(world.window)
    journal.write_bytes(before)
    world.kill()
    assert before.count(b"\n") > 5
    assert digest(UsageStore(tmp_path / "debts.json", policy()).state) == world.owed()


def test_a_disk_that_is_full_stops_nobody(tmp_path: Path) -> None:
    """The window serves on, and the failure is known."""

    class Full(io.BytesIO):
        """A file on a disk without room."""

        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "no space left")

    world = World(tmp_path)
    world.kept.close()
    world.kept._file = Full()  # type: ignore[assignment]
    world.kept.client(Client(3, "d"))
    for _ in range(3):
        world.step("a", 0, 5, 5)
    world.kill()
    assert world.window.in_flight == 3
    assert world.kept.failure is not None


def test_a_disk_that_takes_a_part_of_a_line_is_given_the_rest(tmp_path: Path) -> None:
    """A system may write less than it was given and raise nothing: no line is torn with others behind it."""

    class Short(io.FileIO):
        """A file that takes nine bytes at a time."""

        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:9])

    world = World(tmp_path)
    world.step("a", 0, 5, 5)
    world.kept.close()
    world.kept._file = Short(tmp_path / "debts.json.journal", "a")
    for _ in range(3):
        world.step("a", 0, 5, 5)
    world.kill()
    assert digest(UsageStore(tmp_path / "debts.json", policy()).state) == world.owed()
