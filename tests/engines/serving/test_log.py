"""The log of a live engine: replaying it gives every state and hash again, and it explains each request's life."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import explain, replay
from fairsched.engines.serving import Engine, ServingLog
from fairsched.model.serialization import digest
from fairsched.policies.catalog import FCFS, VTC
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters
from tests.engines.serving.test_loop import CAPACITY, SENT, composed, engine_of, send
from tests.support.engines.fake_executor import FailingExecutor, FakeExecutor
from tests.support.logs import build
from tests.support.policies import misbehaving
from tests.support.policies.misbehaving import Misbehaving

FAILS = st.lists(st.integers(1, 30), max_size=2).map(sorted)


def serve(path: Path, policy: ComposedPolicy, sent: list[Any], gone: list[int], fails: list[int]) -> Engine:
    """Serve and log: requests come and go, a weight changes, and the executor fails at some of its steps."""
    spares = [FailingExecutor(after) for after in fails]
    executors = iter([*spares, FakeExecutor()])
    with ServingLog(path, policy.name, parameters(policy), kv_capacity_tokens=CAPACITY) as log:
        engine = engine_of(policy, next(executors), make_executor=lambda: next(executors), log=log)
        for i, each in enumerate(sent):
            send(engine, *each)
            engine.step()
            if i == 3:
                engine.configure_client("client-1", 2)
            if i in gone:
                engine.cancel(i // 2)
        engine.run_until_idle()
        log.complete(engine.policy_state)
    return engine


@given(composed(), SENT, st.lists(st.integers(0, 9), max_size=3), FAILS)
def test_a_live_log_replays(policy: ComposedPolicy, sent: list[Any], gone: list[int], fails: list[int]) -> None:
    """Early ends, callers who give up, new clients and weights, lost memory: replaying finds no difference."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "live.jsonl"
        engine = serve(path, policy, sent, gone, fails)
        report = replay(path, build)
        assert report.difference is None
        assert report.equal
        assert report.requests == len(sent)
        named = {f"client-{each[0]}" for each in sent} | ({"client-1"} if len(sent) > 3 else set())
        assert {client.name for client in report.clients} == named
        assert report.workers[0].state_digest == digest(engine.policy_state)
        for request_id in range(len(sent)):
            if len(sent[request_id][1]) + sent[request_id][2] + 2 * sent[request_id][3] <= CAPACITY:
                explanation = explain(path, request_id, build)
                assert explanation.outcome in ("finished", "cancelled", "rejected")


def test_a_log_of_refused_decisions_replays(tmp_path: Path) -> None:
    """What the guard did instead is what happened: the log of a policy that overcommits replays to its state."""
    policy = Misbehaving(VTC(), (misbehaving.overcommits, None, None, None))
    path = tmp_path / "live.jsonl"
    with ServingLog(path, "vtc", parameters(VTC()), kv_capacity_tokens=CAPACITY) as log:
        engine = engine_of(policy, fallback=FCFS(), log=log)
        for i in range(20):
            engine.ask(f"client-{i % 3}", [i % 2, 1, i % 5], 6)
            engine.step()
        engine.run_until_idle()
        log.complete(engine.policy_state.inner)
    assert engine.guard.interventions["infeasible"] > 0
    assert engine.guard.set_aside is None
    assert replay(path, lambda header: VTC()).equal


def test_a_log_that_fails_does_not_stop_the_engine(tmp_path: Path) -> None:
    """When the file cannot be written any more, the engine serves on without a log."""
    with ServingLog(tmp_path / "live.jsonl", "fcfs", parameters(FCFS()), kv_capacity_tokens=CAPACITY) as log:
        engine = engine_of(FCFS(), log=log)
    answer = engine.ask("a", [1, 2, 3], 5)
    engine.run_until_idle()
    assert answer.outcome == "finished"
    assert engine.bus.log is None
