"""Workers that die, come and go behind a router: every request ends once with its own tokens, and debts stay."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import assumption_monitor, explain, replay
from fairsched.engines.logs.log_file import LogError
from fairsched.engines.serving import Answer, BlockKeys, Sampling, ServingLog
from fairsched.engines.serving.cluster.cluster import LiveCluster, NoWorkerError
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence, Command, InProcess, Recipe, ServingReport, WorkerConfig
from fairsched.engines.serving.thread import ServingThread
from fairsched.model.cluster import check
from fairsched.model.decision import ClusterView, Dispatch, StepPlan
from fairsched.model.events import Arrived, Event, Finished, WorkerDraining, WorkerJoined, WorkerLeft
from fairsched.model.request import Client, Request
from fairsched.model.serialization import digest
from fairsched.model.theorem import GATE_RESPECTED, MEM_RESERVE, OUTPUTS_BOUNDED
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, parameters
from fairsched.policies.routers import JoinShortestQueue, RoundRobin
from fairsched.policies.routers.load_based import TurnState
from tests.engines.serving.test_loop import CAPACITY, SENT, Ends, composed, wanted
from tests.support.engines.fake_executor import FakeExecutor, answer_of
from tests.support.faults.flaky_workers import Death, FlakyWorker, FlakyWorkers
from tests.support.logs import build

KEYS = BlockKeys(1)
DEFICIT = DLPM(gate=DeficitGate(quantum=5), batching=Chunked(8, 4))
FOREVER = Timeouts(silent_s=0.0, start_s=0.0, restarts_max=1000, deaths_max=1000)
"""Nothing is given up for dying often; a worker that serves within the call and does not answer is dead."""


def recipe(policy: ComposedPolicy) -> Recipe:
    """A worker whose tokens follow from the context."""
    return Recipe(policy, FakeExecutor, CAPACITY)


def clustered(policy: ComposedPolicy, deaths: list[Death | None], **options: Any) -> tuple[LiveCluster, FlakyWorkers]:
    """A cluster whose workers die so."""
    start = FlakyWorkers(recipe(policy), deaths)
    options = {"router": RoundRobin(), "timeouts": FOREVER, "block_keys": KEYS, "pace": Cadence(60.0, 2), **options}
    return LiveCluster(policy, options.pop("router"), start, kv_capacity_tokens=CAPACITY, **options), start


@attrs.define
class Sent:
    """A request as it was sent, its answer, and what its caller heard."""

    client: int
    prompt: list[int]
    output: int
    exact: bool
    heard: list[int] = attrs.field(factory=list)
    ends: int = 0
    gone: bool = False
    answer: Answer | None = None

    def send(self, cluster: LiveCluster) -> int:
        """A request of so many output tokens, or one that may stop early; returns its id."""
        most = self.output + 2 * self.exact
        stop = Sampling(stop_tokens=frozenset(() if self.exact else range(20)))
        self.answer = cluster.ask(
            f"client-{self.client}",
            self.prompt,
            most,
            output_tokens=self.output if self.exact else None,
            sampling=stop,
            on_token=self.heard.append,
            on_end=self._ended,
        )
        return self.answer.request_id

    def _ended(self, _: Answer) -> None:
        self.ends += 1

    def check(self) -> None:
        """It ended once, as it had to, with the tokens that it has alone, each of them told once."""
        assert self.answer is not None
        assert self.ends == 1
        assert self.heard == self.answer.tokens
        alone = wanted(self.prompt, self.output, self.exact)
        if len(self.prompt) + self.output + 2 * self.exact > CAPACITY:
            assert self.answer.outcome in ("rejected", "cancelled")
        elif self.gone:
            assert self.answer.tokens == alone[: len(self.answer.tokens)]
        else:
            assert self.answer.outcome == "finished"
            assert self.answer.tokens == alone


DEATHS = st.lists(
    st.none() | st.builds(Death, st.integers(1, 12), st.sampled_from(["deaf", "untold", "silent", "stillborn"])),
    max_size=6,
)


@given(
    composed(),
    st.sampled_from(sorted(name for name, router in ROUTERS.items() if not router.splits_phases)),
    st.lists(st.tuples(SENT, st.integers(0, 6)), min_size=1, max_size=4),
    DEATHS,
    st.integers(1, 3),
    st.sampled_from([1, 2, 7]),
    st.integers(1, 2),
)
def test_whoever_dies_every_request_ends_once_with_its_own_tokens(
    policy: ComposedPolicy,
    router: str,
    bursts: list[tuple[list[Any], int]],
    deaths: list[Death | None],
    workers: int,
    steps: int,
    ahead: int,
) -> None:
    """Under any policy and router, with workers that die at any call, come and drain, callers who leave and weights
    that change: each request ends once, with the tokens that it has alone; the policy state kept for each worker is the
    worker's own; nobody's guard intervenes; admissions pass the gate; and the log replays to the same states."""
    sent: dict[int, Sent] = {}
    with TemporaryDirectory() as folder:
        path, ends = Path(folder) / "cluster.jsonl", Ends()
        with ServingLog(
            path, policy.name, parameters(policy), kv_capacity_tokens=CAPACITY, router=router, workers=4
        ) as log:
            cluster, start = clustered(
                policy,
                deaths,
                router=ROUTERS[router],
                workers=workers,
                workers_max=4,
                log=log,
                listeners=[ends],
                pace=Cadence(60.0, steps),
                ahead=ahead,
            )
            for burst, act in bursts:
                for each in burst:
                    request = Sent(*each)
                    sent[request.send(cluster)] = request
                    _one_step(cluster, start, ahead)
                act_on(cluster, act, sent)
            while _one_step(cluster, start, ahead):
                pass
            states = cluster.policy_states
            log.complete(*states)
        assert ends.ended == Counter(dict.fromkeys(sent, 1))
        assert not cluster.answers
        for request in sent.values():
            request.check()
        for state in states:
            policy.check(state)
        gate_passed(policy, ends.events)
        report = replay(path, build)
        assert report.difference is None
        assert report.equal
        if policy.shared_credit is None:
            assert [worker.state_digest for worker in report.workers] == [digest(state) for state in states]
        arrived = {event.request.id for event in ends.events if isinstance(event, Arrived)}
        for request_id in arrived:
            answer = sent[request_id].answer
            assert answer is not None
            # Who leaves while he is at no worker has no end at one.
            assert explain(path, request_id, build).outcome in (answer.outcome, "open" if sent[request_id].gone else "")


def played(
    cluster: LiveCluster, bursts: list[Any], meanwhile: Callable[[int, dict[int, Sent]], None] = lambda act, sent: None
) -> dict[int, Sent]:
    """Send bursts of requests, with something that happens after each, and serve until nothing is open.

    `meanwhile` is called after each step.  Returns the requests by id.
    """
    sent: dict[int, Sent] = {}
    for burst, act in bursts:
        for each in burst:
            request = Sent(*each)
            sent[request.send(cluster)] = request
            cluster.step()
            meanwhile(act, sent)
        act_on(cluster, act, sent)
    for _ in range(20_000):
        check(cluster._state)
        if not cluster.step():
            return sent
        meanwhile(bursts[-1][1], sent)
    pytest.fail(f"this goes on for ever: {cluster.answers} {cluster.moves} {cluster.status}")


def act_on(cluster: LiveCluster, act: int, sent: dict[int, Sent]) -> None:
    """Something happens between two bursts."""
    try:
        if act == 0:
            cluster.add_worker()
        elif act == 1:
            cluster.drain_worker(cluster.status[0].worker)
        elif act == 2 and cluster.answers:
            request_id = min(cluster.answers)
            sent[request_id].gone = True
            assert cluster.cancel(request_id)
        elif act in (3, 4):
            cluster.configure_client("client-1", act - 2)
    except NoWorkerError:
        pass


def _one_step(cluster: LiveCluster, start: FlakyWorkers, ahead: int) -> bool:
    """A step, after which what is kept is what the workers have, but for one that was just told to go on."""
    goes_on = cluster.step()
    check(cluster._state)
    assert not any(status.interventions for status in cluster.status)
    if ahead == 1 or not goes_on:
        for worker in start.alive:
            engine = worker.host.engine
            number = worker.config.worker
            if cluster._members[number].head is not None:
                continue
            assert digest(seen_now(cluster, engine.policy_state, number)) == digest(cluster.policy_states[number])
    return goes_on


def seen_now(cluster: LiveCluster, state: Any, worker: int) -> Any:
    """A worker's policy state, with the credit that is shared as it is now, of which the worker hears in its turn."""
    shared = cluster.shared_credit
    return state if shared is None else shared.sharing.checkout(state, shared.value, worker)


def gate_passed(policy: ComposedPolicy, events: list[Event], capacity: int = CAPACITY) -> None:
    """A monitor of the merged events sees that no gate was passed by, and no reservation exceeded."""
    clients = tuple(Client(i, f"client-{i}") for i in range(3))
    monitor = assumption_monitor(policy, clients, policy.guarantee.limits(capacity, capacity))
    if monitor is not None:
        monitor.observe_all(events)
        for report in monitor.reports():
            for assumption in (GATE_RESPECTED, MEM_RESERVE, OUTPUTS_BOUNDED):
                assert not report.assumptions[assumption.name].violated


def _asked(cluster: LiveCluster, count: int, output: int = 6) -> list[Answer]:
    return [cluster.ask(f"client-{i % 2}", [i % 3, 1, i % 5], output) for i in range(count)]


def _all_finished(answers: list[Answer]) -> None:
    for answer in answers:
        assert answer.outcome == "finished"
        assert answer.tokens == answer_of(answer.prompt_ids, len(answer.tokens))


def test_a_worker_started_again_knows_what_clients_owe() -> None:
    """The second worker of a number begins with the first one's debts, as they were reported, and the clients."""
    cluster, start = clustered(DEFICIT, [Death(6, "untold")], workers=1)
    cluster.configure_client("client-1", 3)
    answers = _asked(cluster, 9)
    while len(start.started) == 1:
        before = cluster.policy_states[0].gate.q.tolist()
        cluster.step()
    assert min(before) < 0
    assert cluster.policy_states[0].gate.q.tolist() == before
    engine = start.started[1].host.engine
    assert engine.policy_state.gate.q.tolist() == before
    assert [(client.name, client.weight) for client in engine.clients.all] == [("client-1", 3), ("client-0", 1)]
    cluster.run_until_idle()
    _all_finished(answers)
    assert cluster.deaths == 1


def test_a_weight_that_went_back_while_nobody_served_is_told() -> None:
    """A worker started again hears of a weight that is 1 again, which no start tells a policy by itself."""
    cluster, start = clustered(DEFICIT, [Death(2, "deaf")], workers=1)
    cluster.configure_client("client-0", 4)
    cluster.step()
    assert cluster.policy_states[0].gate.quantum.tolist() == [20]
    cluster.configure_client("client-0", 1)
    cluster.run_until_idle()
    assert len(start.started) == 2
    assert cluster.policy_states[0].gate.quantum.tolist() == [5]
    assert start.alive[0].host.engine.policy_state.gate.quantum.tolist() == [5]


class Fatal(FakeExecutor):
    """Dies of token 96, and then no other can be made in its process."""

    died = False

    def execute(self, plan: StepPlan) -> dict[int, int]:
        if any(96 in self.contexts[request_id] for request_id, _ in plan.chunks):
            Fatal.died = True
            raise MemoryError("token 96")
        return super().execute(plan)


def _fatal() -> Fatal:
    if Fatal.died:
        Fatal.died = False
        raise MemoryError("nothing left")
    return Fatal()


def test_what_kills_its_workers_is_rejected() -> None:
    """A request that takes every worker along that computes it is rejected after so many; others are served."""
    start = FlakyWorkers(Recipe(FCFS(), _fatal, CAPACITY))
    cluster = LiveCluster(FCFS(), RoundRobin(), start, kv_capacity_tokens=CAPACITY, pace=Cadence(60.0, 1))
    before = _asked(cluster, 6, output=1)
    cluster.run_until_idle()
    poison = cluster.ask("client-0", [1, 96], 4)
    cluster.run_until_idle()
    assert poison.outcome == "rejected"
    assert poison.reason.startswith("3 workers died that had it, the last one so: WorkerBrokenError")
    after = _asked(cluster, 6)
    cluster.run_until_idle()
    _all_finished(before + after)
    assert len(cluster.status) == 2


def test_requests_end_when_no_worker_is_left() -> None:
    """Workers that never come: after so many tries whoever waits is rejected with the reason, and so are those who come
    later, until there is a worker again."""
    never = Death(1, "stillborn")
    cluster, start = clustered(FCFS(), [never] * 3, workers=1, timeouts=Timeouts(restarts_max=2))
    early = _asked(cluster, 2)
    cluster.run_until_idle()
    late = cluster.ask("client-0", [1], 1)
    for answer in [*early, late]:
        assert answer.outcome == "rejected"
    assert "worker 0 died at call 1" in early[0].reason
    assert "no worker is left" in late.reason
    assert len(start.started) == 3
    assert cluster.add_worker() == 0
    again = _asked(cluster, 2)
    cluster.run_until_idle()
    _all_finished(again)


def test_workers_come_and_drain_in_the_middle_of_a_load() -> None:
    """One that comes is sent requests from its first report on; one that drains gets none, ends what it has, and
    leaves; its number and its debts are there for the next."""
    ends = Ends()
    cluster, start = clustered(
        DEFICIT, [], workers=1, workers_max=2, router=JoinShortestQueue(), listeners=[ends], pace=Cadence(60.0, 1)
    )
    answers = _asked(cluster, 8)
    for _ in range(3):
        cluster.step()
    assert cluster.add_worker() == 1
    with pytest.raises(NoWorkerError, match="no number for another"):
        cluster.add_worker()
    cluster.step()
    answers += _asked(cluster, 6)
    assert [status.phase for status in cluster.status] == ["serving", "serving"]
    assert cluster.status[1].requests > 0
    cluster.drain_worker(0)
    with pytest.raises(NoWorkerError, match="last one"):
        cluster.drain_worker(1)
    answers += _asked(cluster, 4)
    had = cluster.status[0].requests
    cluster.run_until_idle()
    _all_finished(answers)
    assert had > 0
    assert [status.worker for status in cluster.status] == [1]
    changes = [event for event in ends.events if isinstance(event, WorkerJoined | WorkerDraining | WorkerLeft)]
    assert [type(event) for event in changes] == [WorkerJoined, WorkerJoined, WorkerDraining, WorkerLeft]
    assert [event.worker for event in changes] == [0, 1, 0, 0]
    owed = cluster.policy_states[0].gate.q.tolist()
    assert cluster.add_worker() == 0
    assert start.alive[-1].host.engine.policy_state.gate.q.tolist() == owed
    with pytest.raises(NoWorkerError, match="no worker 7"):
        cluster.drain_worker(7)


@attrs.frozen
class Astray(RoundRobin):
    """A router that raises, and then names a worker that is not there."""

    def route(self, state: TurnState, request: Request, view: ClusterView) -> tuple[Dispatch, TurnState]:
        if request.id % 2:
            raise KeyError(request.id)
        return Dispatch(request.id, 99), state

    def observe(self, state: TurnState, event: Event) -> TurnState:
        raise ValueError("it learns nothing")


def test_a_router_that_fails_loses_no_request() -> None:
    """The shortest queue is taken instead, and the failures are counted."""
    ends = Ends()
    cluster, _ = clustered(FCFS(), [], router=Astray(), listeners=[ends])
    answers = _asked(cluster, 8)
    cluster.run_until_idle()
    _all_finished(answers)
    assert cluster.router.set_aside is not None
    assert {event.worker for event in ends.events if isinstance(event, Arrived)} == {0, 1}


def test_what_is_no_request_is_said() -> None:
    """Wrong numbers raise at once; a token that the worker does not know, or a prompt over its memory, is rejected."""
    cluster, _ = clustered(FCFS(), [])
    with pytest.raises(ValueError, match="1 to"):
        cluster.ask("a", [], 1)
    with pytest.raises(ValueError, match="request 0"):
        cluster.ask("a", [1 << 40], 1)
    with pytest.raises(ValueError, match="produces 1 to"):
        cluster.ask("a", [1], 1, output_tokens=2)
    with pytest.raises(ValueError, match="1 to 2 workers, not 3"):
        clustered(FCFS(), [], workers=3, workers_max=2)
    strange, large = cluster.ask("a", [99999], 1), cluster.ask("a", [1] * CAPACITY, 1)
    cluster.run_until_idle()
    assert (strange.outcome, large.outcome) == ("rejected", "rejected")
    assert "tokens are 0 to" in strange.reason
    assert "holds 40 in all" in large.reason
    assert not cluster.cancel(strange.request_id)


def test_closing_ends_what_is_open() -> None:
    """Workers leave, every request is cancelled once, and its caller hears of it."""
    ends = Ends()
    cluster, start = clustered(FCFS(), [], listeners=[ends], pace=Cadence(60.0, 1))
    heard: list[Answer] = []
    for i in range(5):
        cluster.ask("a", [i % 3], 9, on_end=heard.append)
    cluster.step()
    cluster.close()
    assert [answer.outcome for answer in heard] == ["cancelled"] * 5
    assert ends.ended == Counter(dict.fromkeys(range(5), 1))
    assert not start.alive
    assert not cluster.step()


def test_a_cluster_over_threads_has_the_front_of_an_engine() -> None:
    """Streams of workers that serve side by side: each has its own tokens as they come, and a clean end."""
    options: dict[str, Any] = {"kv_capacity_tokens": CAPACITY, "workers": 3, "ahead": 2}
    cluster = LiveCluster(DEFICIT, JoinShortestQueue(), InProcess(recipe(DEFICIT)), **options)
    with ServingThread(cluster) as serving:
        streams = [serving.ask(f"client-{i % 2}", [i % 3, 1, i % 5], 6) for i in range(30)]
        for i, stream in enumerate(streams):
            assert list(stream) == answer_of([i % 3, 1, i % 5], 6)
        assert serving.call(lambda served: len(served.status)) == 3
    assert not cluster.answers
    assert not cluster.status


class Meddler(FlakyWorker):
    """Says of every request that it knows of that it has ended, whoever has it, and tells tokens of it."""

    def serve(self, commands: Sequence[Command], pace: Cadence) -> "Future[ServingReport]":
        honest = super().serve(commands, pace).result()
        future: Future[ServingReport] = Future()
        said = [Finished(1, self.config.worker, request_id, 0, 1) for request_id in range(4)]
        tokens = {request_id: [5] for request_id in range(4)} | honest.tokens
        future.set_result(msgspec.structs.replace(honest, events=[*honest.events, *said], tokens=tokens))
        return future


def test_a_worker_that_lies_ends_nothing_that_it_does_not_have() -> None:
    """Ends and tokens of requests that other workers have are not believed."""
    plain = recipe(FCFS())

    def start(config: WorkerConfig) -> FlakyWorker:
        return (Meddler if config.worker else FlakyWorker)(plain, config, None)

    ends: list[Answer] = []
    cluster = LiveCluster(FCFS(), RoundRobin(), start, kv_capacity_tokens=CAPACITY, pace=Cadence(60.0, 1))
    cluster.step()
    answers = [cluster.ask("a", [i, 2, 3], 6, on_end=ends.append) for i in range(4)]
    cluster.run_until_idle()
    assert sorted(answer.request_id for answer in ends) == [0, 1, 2, 3]
    _all_finished([answers[0], answers[2]])


def test_who_leaves_while_no_worker_has_come_is_cancelled_at_once() -> None:
    """A held request is at no worker; its end is told once, and no worker ever hears of it."""
    ends = Ends()
    cluster, start = clustered(FCFS(), [], workers=1, workers_max=2, listeners=[ends])
    answers = _asked(cluster, 3)
    assert cluster.cancel(1)
    assert not cluster.cancel(1)
    assert answers[1].outcome == "cancelled"
    assert cluster.add_worker() == 1
    cluster.drain_worker(1)
    assert [status.worker for status in cluster.status] == [0]
    cluster.run_until_idle()
    _all_finished([answers[0], answers[2]])
    assert ends.ended == Counter({0: 1, 1: 1, 2: 1})
    assert [event.request.id for event in ends.events if isinstance(event, Arrived)] == [0, 2]
    assert len(start.alive) == 1


@pytest.mark.parametrize("how", ["deaf", "untold"])
def test_what_a_dead_worker_had_in_flight_counts_for_nobody(how: Any) -> None:
    """Under an in-flight cap, a client's tokens at a worker that died are free again there, whether they ran or waited:
    the gate and whoever watches it agree, and everybody is served."""
    policy = DLPM(gate=DeficitGate(quantum=5, in_flight_cap_tokens=20), batching=Chunked(8, 4))
    ends = Ends()
    cluster, _ = clustered(policy, [Death(4, how), Death(6, how)], listeners=[ends])
    answers = _asked(cluster, 16)
    while cluster.step():
        for state in cluster.policy_states:
            policy.check(state)
    _all_finished(answers)
    assert cluster.deaths == 2
    assert [state.gate.in_flight.tolist() for state in cluster.policy_states] == [[0, 0], [0, 0]]
    gate_passed(policy, ends.events)


def test_an_engine_need_not_remember_the_ids_of_other_workers() -> None:
    """However many requests others get, an engine keeps a window of ids, and not each."""
    cluster, start = clustered(FCFS(), [])
    for i in range(60):
        cluster.ask("a", [i % 3], 2)
        cluster.step()
    cluster.run_until_idle()
    assert all(worker.host.engine.next_id > 50 for worker in start.alive)


def test_a_log_of_a_moved_request_is_read_without_trust(tmp_path: Path) -> None:
    """A request cannot come with more tokens than it may have, and with others than it had the replay differs."""
    path = tmp_path / "cluster.jsonl"
    with ServingLog(path, "fcfs", parameters(FCFS()), kv_capacity_tokens=CAPACITY, workers=2) as log:
        cluster, _ = clustered(FCFS(), [Death(4, "deaf")], log=log)
        _asked(cluster, 2, output=9)
        cluster.run_until_idle()
        log.complete(*cluster.policy_states)
    lines = path.read_text().splitlines()
    moved = [i for i, text in enumerate(lines) if text.startswith('["Arrived"') and text.count(",") == 7]
    line = msgspec.json.decode(lines[moved[0]])
    assert line[3:7] == [0, 0, 3, 9]
    assert line[7] > 0

    def told(generated: int) -> str | None:
        changed = [*lines]
        changed[moved[0]] = msgspec.json.encode([*line[:7], generated]).decode()
        path.write_text("\n".join(changed) + "\n")
        return replay(path, build).difference

    assert told(line[7]) is None
    assert "request 0 may produce" in str(told(line[7] - 1))
    with pytest.raises(LogError, match="field generated_tokens: expected less than 9, found 9"):
        told(9)
