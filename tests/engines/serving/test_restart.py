"""A restart in the middle of a load: debts are kept to the unit, and every request ends exactly once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.files import write_whole
from fairsched.engines.serving import BlockKeys, Engine, Sampling
from fairsched.engines.serving.state.journal import read_journal
from fairsched.engines.serving.state.restart import Recovery, caught_up, kept, resume
from fairsched.engines.serving.state.snapshot import OtherPolicyError, SavedEngine, SnapshotError, restore, snapshot
from fairsched.engines.serving.state.state_store import EngineStore
from fairsched.model.serialization import digest
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, VTC
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import migrate
from tests.engines.serving.test_loop import SENT, Ends, composed, engine_of, send
from tests.support.engines.fake_executor import FailingExecutor, FakeExecutor, answer_of

DEFICIT: ComposedPolicy = DLPM(gate=DeficitGate(quantum=5), batching=Chunked(8, 8))
KEYS = BlockKeys(1)


@attrs.define
class Life:
    """What one folder's engine did, over all its lives: how requests ended, and what they were answered."""

    policy: ComposedPolicy
    folder: Path
    ends: Ends = attrs.field(factory=Ends)
    store: EngineStore | None = None

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        if self.store is not None:
            self.store.close()

    def begin(self, executor: FakeExecutor | None = None) -> tuple[EngineStore, Engine, Recovery | None]:
        """A new process: from what the folder keeps, if it keeps something."""
        self.__exit__()
        store = self.store = EngineStore(self.folder)
        recovery = store.recover(self.policy)
        options: dict[str, Any] = {
            "log": store,
            "block_keys": KEYS,
            "listeners": [self.ends],
            "make_executor": lambda: store.executor(FakeExecutor()),
        }
        recorded = store.executor(executor or FakeExecutor())
        if recovery is None:
            engine = engine_of(self.policy, recorded, **options)
        else:
            engine = resume(recovery.saved, self.policy, recorded, **options)
            self.policy.check(engine.policy_state)
        store.snapshot(engine)
        return store, engine, recovery


@given(composed(), SENT, st.data())
@settings(max_examples=50)
def test_whenever_the_process_dies_nothing_is_forgiven_or_ends_twice(
    policy: ComposedPolicy, sent: list[Any], data: st.DataObject
) -> None:
    """Killed after any line, with snapshots here and there, executors that fail and weights that change: the recovered
    state is the one at the last line, to the byte, and every request ends once, with the tokens that are its own."""
    with TemporaryDirectory() as name, Life(policy, Path(name) / "kept") as life:
        waiting = list(sent)
        promised: dict[int, tuple[list[int], int, bool]] = {}
        for _ in range(data.draw(st.integers(1, 3), label="lives")):
            after = data.draw(st.sampled_from([3, 1000]), label="executor")
            store, engine, recovery = life.begin(FailingExecutor(after))
            if recovery is not None:
                assert set(engine.answers) == set(promised) - set(life.ends.ended)
            for _ in range(data.draw(st.integers(0, 12), label="steps")):
                _act(data.draw(st.integers(0, 5), label="act"), store, engine, waiting, promised)
            truth, ended = kept(engine), set(life.ends.ended)
            store.close()
            again = EngineStore(life.folder).recover(policy)
            assert again is not None
            _same_debts(policy, life.folder, truth)
            assert {each.request_id for each in again.ended} <= ended
            assert [each.request_id for each in again.saved.open] == sorted(set(promised) - ended)
        _, engine, _ = life.begin()
        answers = dict(engine.answers)
        while waiting:
            _submit(engine, waiting, promised)
        answers |= engine.answers
        engine.run_until_idle()
        assert life.ends.ended == Counter(dict.fromkeys(promised, 1))
        for request_id, answer in answers.items():
            prompt, output, exact = promised[request_id]
            if answer.outcome == "finished" and exact:
                assert answer.tokens == answer_of(prompt, output)


def _act(act: int, store: EngineStore, engine: Engine, waiting: list[Any], promised: dict[int, Any]) -> None:
    if act == 0:
        store.snapshot(engine)
    elif act == 1 and engine.clients.all:
        engine.configure_client(engine.clients.all[-1].name, len(waiting) % 3 + 1)
    elif act == 2 and engine.answers:
        engine.cancel(min(engine.answers))
    elif act in (3, 4) and waiting:
        _submit(engine, waiting, promised)
    else:
        engine.step()


def _submit(engine: Engine, waiting: list[Any], promised: dict[int, Any]) -> None:
    client, prompt, output, exact = waiting.pop()
    request_id = engine.next_id
    promised[request_id] = (prompt, output, exact)
    send(engine, client, prompt, output, exact)


def _same_debts(policy: ComposedPolicy, folder: Path, truth: SavedEngine) -> None:
    """Snapshot and journal lead to the very state that the engine had, its policy's and its worker's."""
    now = _last_word(policy, folder)
    assert digest(now.policy_state) == digest(truth.policy_state)
    assert digest(now.worker) == digest(truth.worker)
    assert (now.clients, now.next_id) == (truth.clients, truth.next_id)


def _last_word(policy: ComposedPolicy, folder: Path) -> SavedEngine:
    (path,) = folder.glob("snapshot-*.json")
    (journal,) = folder.glob("journal-*.jsonl")
    return caught_up(policy, restore(path.read_bytes(), policy), read_journal(journal))


@pytest.mark.parametrize("policy", [DEFICIT, VTC(batching=Chunked(8, 8))], ids=lambda policy: policy.name)
def test_a_process_killed_in_the_middle_of_a_load_goes_on(policy: ComposedPolicy, tmp_path: Path) -> None:
    """A process that serves is killed by SIGKILL between two snapshots.  Another one goes on: the debt of each client
    is what the dead one told last, what was open ends once, with the right tokens, and nothing else ends again."""
    said = _die(policy, tmp_path)
    with Life(policy, tmp_path / "kept") as life:
        last = _last_word(policy, life.folder).policy_state.gate
        _, engine, recovery = life.begin()
        assert recovery is not None
        gate = engine.policy_state.gate
        if policy is DEFICIT:
            assert said["debts"] == last.q.tolist() == gate.q.tolist()
            assert min(said["debts"]) < 0
        else:
            # Who only ran waits again, and is lifted as whoever comes back: that forgives nobody anything.
            assert said["debts"] == last.c.tolist()
            assert min(said["debts"]) > 0
            assert all(gate.c >= last.c)
            assert max(gate.c) == max(last.c)
        before = Counter(said["ended"])
        opened = dict(engine.answers)
        assert set(opened) == set(range(SERVED)) - set(before)
        assert any(answer.tokens for answer in opened.values())
        assert {each.request_id for each in recovery.ended} < set(before) or not recovery.ended
        engine.run_until_idle()
        assert before + life.ends.ended == Counter(dict.fromkeys(range(SERVED), 1))
        for request_id, answer in opened.items():
            assert answer.tokens == answer_of(list(answer.prompt_ids), len(answer.tokens))
            assert len(answer.tokens) == outputs(request_id)


SERVED = 24


def outputs(request_id: int) -> int:
    """How many tokens a request of the load asks for."""
    return 3 + request_id % 5


def serve_and_die(policy: ComposedPolicy, folder: Path) -> None:
    """In a process of its own: serve a load with two snapshots, tell debts and ends, and be killed."""
    life = Life(policy, folder / "kept")
    store, engine, _ = life.begin()
    for i in range(SERVED):
        engine.ask(f"client-{i % 2}", [i % 3, 1, 2, i % 7], outputs(i))
    for step in range(25):
        if step == 10:
            store.snapshot(engine)
        engine.step()
    gate = engine.policy_state.gate
    debts = [int(value) for value in (gate.q if isinstance(policy.gate, DeficitGate) else gate.c)]
    (folder / "said.json").write_bytes(msgspec.json.encode({"debts": debts, "ended": sorted(life.ends.ended)}))
    os.kill(os.getpid(), signal.SIGKILL)


def _die(policy: ComposedPolicy, folder: Path) -> Any:
    name = "DEFICIT" if policy is DEFICIT else "VTC(batching=Chunked(8, 8))"
    code = (
        "from pathlib import Path; from tests.engines.serving.test_restart import *; "
        f"serve_and_die({name}, Path({str(folder)!r}))"
    )
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "src"), str(root)])
    died = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False, capture_output=True
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    return msgspec.json.decode((folder / "said.json").read_bytes())


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """The lives of a folder under a deficit gate."""
    with Life(DEFICIT, tmp_path / "kept") as life:
        yield life


def _served(policy: ComposedPolicy, steps: int = 6) -> Engine:
    engine = engine_of(policy, block_keys=KEYS)
    for i in range(9):
        engine.ask(f"client-{i % 3}", [i % 3, 1, i % 5], 6)
    for _ in range(steps):
        engine.step()
    return engine


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "no snapshot of fairsched"),
    "something else": (lambda data: b"a,b,c\n1,2,3\n", "no snapshot of fairsched"),
    "cut off": (lambda data: data[:-100], r"cut off: \d+ of \d+ bytes are there"),
    "cut in its first line": (lambda data: data[:20], "no snapshot of fairsched"),
    "changed": (lambda data: data.replace(b'"known":[true', b'"known":[fals'), "was changed"),
    "longer": (lambda data: data + b"x", "was changed"),
    "of another schema": (
        lambda data: data.replace(b'"fairsched_snapshot":1', b'"fairsched_snapshot":2', 1),
        "reads snapshots of schema 1, and this one has 2",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_snapshot_is_refused(how: str) -> None:
    """Whatever is wrong is said; nobody starts with an empty state in its place."""
    spoil, message = BROKEN[how]
    data = snapshot(DEFICIT, kept(_served(DEFICIT)))
    with pytest.raises(SnapshotError, match=message):
        restore(spoil(data), DEFICIT)


def test_the_snapshot_of_another_policy_is_migrated_and_not_forgotten() -> None:
    """Other parameters or another gate: the error names the differences, and the way is to restore, and to migrate."""
    data = snapshot(DEFICIT, kept(_served(DEFICIT)))
    larger = attrs.evolve(DEFICIT, gate=DeficitGate(quantum=9))
    with pytest.raises(OtherPolicyError, match=r"gate\.quantum is 5 there and 9 here.*migrate") as found:
        restore(data, larger)
    assert found.value.configuration["gate"]["quantum"] == 5
    with pytest.raises(OtherPolicyError, match=r"policy is fairsched\.policies\.catalog\.DLPM there and .*VTC here"):
        restore(data, VTC())
    saved = restore(data, DEFICIT)
    taken = migrate(DEFICIT, saved.policy_state, larger)
    assert taken.gate.q.tolist() == saved.policy_state.gate.q.tolist()


def test_an_engine_swaps_policies_and_goes_on() -> None:
    """`replace_policy` with a migrated state: everybody who waited and ran ends once under the new one."""
    engine, ends = _served(DEFICIT), Ends()
    engine.bus.listeners.append(ends)
    opened = set(engine.answers)
    larger = attrs.evolve(DEFICIT, gate=DeficitGate(quantum=9))
    before = engine.policy_state.gate.q.tolist()
    engine.replace_policy(larger, migrate(DEFICIT, engine.policy_state, larger))
    assert engine.policy_state.gate.q.tolist() == before
    assert min(before) < 0
    engine.run_until_idle()
    assert ends.ended == Counter(dict.fromkeys(opened, 1))
    assert not engine.guard.interventions


def test_a_torn_last_line_is_left_out_and_any_other_is_an_error(life: Life) -> None:
    """A journal cut anywhere leads to a state that the engine had; one changed in its middle is refused."""
    store, engine, _ = life.begin()
    path = next(life.folder.glob("journal-*.jsonl"))
    had = {digest(engine.policy_state)}
    engine.bus.listeners.append(lambda events: had.add(digest(engine.policy_state)))
    for i in range(6):
        engine.ask(f"client-{i % 2}", [1, 2, i], 5)
        engine.step()
    store.close()
    whole, data = path.read_bytes(), next(life.folder.glob("snapshot-*.json")).read_bytes()
    saved = restore(data, DEFICIT)
    for end in range(len(whole) - 400, len(whole) + 1, 37):
        path.write_bytes(whole[:end])
        assert digest(caught_up(DEFICIT, saved, read_journal(path)).policy_state) in had
        assert store.recover(DEFICIT) is not None
    path.write_bytes(whole.replace(b'["events"', b'["event"', 1))
    with pytest.raises(ValueError, match="line 5: no line begins so"):
        store.recover(DEFICIT)
    path.write_bytes(whole.replace(b'"Prefilled"', b'"Unfilled"', 1))
    with pytest.raises(ValueError, match="line "):
        store.recover(DEFICIT)


def test_a_journal_of_another_snapshot_is_refused(life: Life) -> None:
    """Events are not told to a state that they did not happen to."""
    store, engine, _ = life.begin()
    old = next(life.folder.glob("journal-*.jsonl")).read_bytes()
    engine.ask("a", [1, 2], 3)
    store.snapshot(engine)
    next(life.folder.glob("journal-*.jsonl")).write_bytes(old)
    with pytest.raises(ValueError, match="goes on from another snapshot than snapshot-000002"):
        store.recover(DEFICIT)


def test_a_stop_token_that_was_on_record_ends_the_request(life: Life) -> None:
    """Killed between the step that made a stop token and the end of its request: the request has ended with it."""
    store, engine, _ = life.begin()
    tokens = answer_of([1, 2, 3], 9)
    engine.ask("a", [1, 2, 3], 9, sampling=Sampling(stop_tokens=frozenset(tokens[2:3])))
    for _ in range(3):
        engine.step()
    assert life.ends.ended == Counter([0])
    path = next(life.folder.glob("journal-*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert b"Finished" in lines[-1]
    path.write_bytes(b"".join(lines[:-1]))
    again = store.recover(DEFICIT)
    assert again is not None
    assert again.saved.open == ()
    assert [(each.request_id, each.outcome, each.tokens) for each in again.ended] == [(0, "finished", tokens[:3])]


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file, and nothing half written beside it."""
    path = tmp_path / "snapshot"
    write_whole(path, b"old", sync=True)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]


def test_a_journal_that_cannot_be_written_does_not_stop_the_engine(life: Life, caplog: Any) -> None:
    """The engine serves on and says so; the next snapshot begins a new journal."""
    store, engine, _ = life.begin()
    store._file.close()  # type: ignore[union-attr]
    with open(os.devnull, "rb", buffering=0) as readonly:
        store._file = readonly
        engine.ask("a", [1, 2, 3], 3)
    assert store.failure is not None
    assert "cannot be written any more" in caplog.text
    engine.run_until_idle()
    assert life.ends.ended == Counter([0])
    store.snapshot(engine)
    assert store.failure is None
    again = store.recover(DEFICIT)
    assert again is not None
    assert again.saved.open == ()


def test_the_state_of_a_policy_that_is_set_aside_replaces_no_good_one(life: Life) -> None:
    """It knows nothing of what came since; the snapshot before it and its journal have it all."""
    store, engine, _ = life.begin()
    engine.ask("a", [1, 2, 3], 9)
    engine.step()
    engine.guard.set_aside = "late: it sleeps"
    engine.step()
    with pytest.raises(SnapshotError, match=r"set aside \(late: it sleeps\) and knows nothing of what came since"):
        store.snapshot(engine)
    engine.step()
    again = store.recover(DEFICIT)
    assert again is not None
    assert again.saved.worker.queue[0].generated_tokens == len(engine.answers[0].tokens) > 1
