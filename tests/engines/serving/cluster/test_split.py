"""Split serving: requests end once with their own tokens, whatever dies in whatever state of a transfer."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from fairsched.engines.analysis import explain, replay
from fairsched.engines.serving import Answer, BlockKeys, ClusterMetrics, Recipe, Sampling, ServingLog
from fairsched.engines.serving.cluster.cluster import LiveCluster
from fairsched.engines.serving.cluster.member import LiveWorker, split_roles
from fairsched.engines.serving.cluster.worker import Cadence
from fairsched.engines.torch import SIZES, Llama
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.model.events import Admitted, Arrived, Event, Finished, Migrated, TransferFailed, TransferStarted
from fairsched.model.serialization import digest
from fairsched.model.worker.state import NO_TRANSIT
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters
from fairsched.policies.routers import RoundRobin
from tests.engines.serving.cluster.test_cluster import DEATHS, FOREVER, KEYS, Sent, gate_passed, played, seen_now
from tests.engines.serving.test_loop import CAPACITY, SENT, Ends, composed
from tests.support.engines.fake_executor import FailingExecutor, FakeExecutor, answer_of
from tests.support.faults.flaky_workers import Death, FlakyWorkers
from tests.support.faults.split_router import SplitRouter
from tests.support.logs import build

DEFICIT = DLPM(gate=DeficitGate(quantum=5), batching=Chunked(8, 4))


def split(
    policy: ComposedPolicy, deaths: Sequence[Death | None] = (), roles: str = "1:1", **options: Any
) -> tuple[LiveCluster, FlakyWorkers]:
    """A split cluster whose workers die so."""
    start = FlakyWorkers(Recipe(policy, options.pop("executor", FakeExecutor), CAPACITY), deaths)
    chosen: dict[str, Any] = {"timeouts": FOREVER, "block_keys": KEYS, "pace": Cadence(60.0, 1)}
    chosen |= {"roles": split_roles(roles) if roles else (), "router": SplitRouter()} | options
    return LiveCluster(policy, chosen.pop("router"), start, kv_capacity_tokens=CAPACITY, **chosen), start


class Watch:
    """Counts in which state of a transfer a worker went, and at which end it was."""

    def __init__(self, cluster: LiveCluster, ends: Ends) -> None:
        self.seen: Counter[str] = Counter()
        leave = cluster._leave

        def leaves(member: LiveWorker) -> Any:
            moves = cluster._state.moves
            for move in moves.values():
                if move.phase != "computing" and member.worker in (move.source, move.target):
                    end = "source" if move.source == member.worker else "target"
                    self.seen[f"{end} goes, {move.phase}"] += 1
            for request_id in member.calls:
                events = [e for e in ends.events if _of(e) == request_id]
                came = [i for i, e in enumerate(events) if isinstance(e, Arrived) and e.kv_tokens]
                if came and request_id not in moves:
                    admitted = any(isinstance(e, Admitted) for e in events[came[-1] :])
                    self.seen["target goes, decoding" if admitted else "target goes, landed"] += 1
            return leave(member)

        cluster._leave = leaves  # type: ignore[method-assign]


def _of(event: Event) -> int:
    if isinstance(event, Arrived):
        return event.request.id
    return getattr(event, "request_id", -1)


def _check_memory(start: FlakyWorkers, cluster: LiveCluster) -> None:
    """Nothing is open, so no worker keeps memory for any request, and the policies' states are the workers' own."""
    for worker in start.alive:
        state = worker.host.engine.state
        assert state.transit == NO_TRANSIT
        assert not state.queue
        assert state.used == state.promised == 0
        assert not worker.host.engine.exchange.kept
        number = worker.config.worker
        seen = seen_now(cluster, worker.host.engine.policy_state, number)
        assert digest(seen) == digest(cluster.policy_states[number])


SEEN: Counter[str] = Counter()


@given(
    composed(),
    st.lists(st.tuples(SENT, st.integers(0, 8)), min_size=1, max_size=4),
    DEATHS,
    st.sampled_from(["1:1", "2:1", "1:2"]),
    st.sampled_from([0, 4]),
    st.booleans(),
    st.sampled_from([1, 2, 7]),
    st.integers(1, 2),
)
@settings(max_examples=150)
def _worlds(
    policy: ComposedPolicy,
    bursts: list[tuple[list[Any], int]],
    deaths: list[Death | None],
    roles: str,
    reserved: int,
    odd: bool,
    steps: int,
    ahead: int,
) -> None:
    ends = Ends()
    cluster, start = split(
        policy,
        deaths,
        roles,
        router=SplitRouter(reserved, odd),
        workers_max=4,
        listeners=[ends],
        pace=Cadence(60.0, steps),
        ahead=ahead,
    )
    watch = Watch(cluster, ends)
    sent = played(cluster, bursts, lambda act, sent: _cancel(cluster, act, sent, watch.seen))
    assert ends.ended == Counter(dict.fromkeys(sent, 1))
    assert not cluster.answers
    assert not cluster.moves
    for request in sent.values():
        request.check()
    _check_memory(start, cluster)
    for state in cluster.policy_states:
        policy.check(state)
    gate_passed(policy, ends.events)
    for worker in start.started:
        for cause, count in worker.host.engine.guard.interventions.items():
            watch.seen[f"guard: {cause}"] += count
    watch.seen["landed"] += cluster.transfers.landed
    watch.seen["failed"] += cluster.transfers.failed
    watch.seen["stranded"] += cluster.transfers.stranded
    SEEN.update(watch.seen)


PHASES = {5: "staged", 6: "reserving", 7: "sending", 8: "landing"}


def _cancel(cluster: LiveCluster, act: int, sent: dict[int, Sent], seen: Counter[str]) -> None:
    """The caller of a request in that phase of its transfer gives up, if there is one."""
    for request_id, phase in cluster.moves.items():
        if phase == PHASES.get(act) and not sent[request_id].gone:
            sent[request_id].gone = True
            assert cluster.cancel(request_id)
            seen[f"caller goes, {phase}"] += 1
            return


def test_whatever_dies_in_whatever_state_requests_end_once_with_their_own_tokens() -> None:
    """Under any local policy, with workers of either phase that die, come and drain at any message, callers that give
    up in any state of a transfer, and a router that also names wrong targets: each request ends once with the tokens
    that it has alone, no worker keeps memory for a request that is over, and every policy state is the worker's own.

    Each state of a transfer was met by the death of either end, and by callers that gave up.
    """
    SEEN.clear()
    wanted = {f"{end} goes, {phase}" for end in ("source", "target") for phase in ("reserving", "sending", "landing")}
    wanted |= {"source goes, staged", "target goes, decoding", "landed", "failed", "stranded"}
    wanted |= {f"caller goes, {phase}" for phase in ("staged", "reserving", "sending", "landing")}
    for number in range(6):
        seed(number)(_worlds)()
        if all(SEEN[what] for what in wanted):
            break
    assert {what for what in wanted if not SEEN[what]} == set()


EXACT = Llama.random(SIZES["tiny"], dtype=torch.float64)


def _torch() -> TorchExecutor:
    """A model without rounding, so that no batch moves a token."""
    return TorchExecutor(EXACT, CAPACITY, page_tokens=4, running_max=8)


def _asked(cluster: LiveCluster) -> list[Answer]:
    sampled = [Sampling(temperature=0.8 * (i % 2), top_k=20, seed=i) for i in range(6)]
    return [cluster.ask("a", [*range(2, 14), 40 + i % 3, i], 8, sampling=each) for i, each in enumerate(sampled)]


@pytest.mark.parametrize("deaths", [[], [Death(5, "untold"), Death(7, "deaf")], [None, Death(4, "untold")]], ids=str)
def test_a_model_that_is_split_answers_as_one_worker_does(deaths: list[Death | None]) -> None:
    """Greedy and sampled requests, whose prompts share prefixes, through two workers with a model, which die or not:
    their tokens are those that one worker that does everything gives them, and KV has moved in whole tokens."""
    options: dict[str, Any] = {"executor": _torch, "block_keys": BlockKeys(4)}
    whole, _ = split(FCFS(), [], router=RoundRobin(), workers=1, roles="", **options)
    expected = _asked(whole)
    whole.run_until_idle()
    cluster, start = split(FCFS(), deaths, **options)
    cluster.step()
    answers = _asked(cluster)
    cluster.run_until_idle()
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert [len(answer.tokens) for answer in answers] == [8] * 6
    assert cluster.deaths == sum(death is not None for death in deaths)
    assert cluster.transfers.landed >= 3
    config = EXACT.config
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * 8
    assert cluster.transfers.bytes >= cluster.transfers.landed * 14 * token_bytes
    assert cluster.transfers.bytes % token_bytes == 0
    _check_memory(start, cluster)


def test_a_split_that_cannot_serve_is_refused_in_one_line() -> None:
    """No worker for a phase, more roles than workers, a role or a ratio that is none; what no worker can hold."""
    with pytest.raises(ValueError, match="a split is PREFILL:DECODE, two numbers of workers from 1 on"):
        split_roles("1:0")
    with pytest.raises(ValueError, match="not '2'"):
        split_roles("2")
    assert split_roles("2:1") == ("prefill", "prefill", "decode")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"roles": ("prefill", "prefill")}, "no worker is there to decode: the 2 first workers' roles are"),
        ({"roles": ("prefill", "decode"), "workers": 1, "workers_max": 2}, "no worker is there to decode"),
        ({"roles": ("decode",), "workers": 1}, "no worker is there to prefill"),
        ({"roles": ("prefill", "decode", "decode"), "workers": 2}, "3 roles for at most 2 workers"),
        ({"roles": ("prefil", "decode")}, "a worker's role is both, prefill, decode, not 'prefil'"),
    ]
    for options, match in wrong:
        with pytest.raises(ValueError, match=match):
            LiveCluster(
                FCFS(), SplitRouter(), FlakyWorkers(Recipe(FCFS(), FakeExecutor, 40)), kv_capacity_tokens=40, **options
            )
    cluster, _ = split(FCFS())
    large = cluster.ask("a", [1] * CAPACITY, 1)
    cluster.run_until_idle()
    assert large.outcome == "rejected"
    assert "request 0 needs 41 tokens, worker 0 holds 40 in all" in large.reason


class Plain:
    """An executor that neither gives nor takes KV."""

    def __init__(self) -> None:
        inner = FakeExecutor()
        self.submit, self.follow, self.execute, self.close = inner.submit, inner.follow, inner.execute, inner.close


def test_an_executor_that_gives_no_kv_away_says_so() -> None:
    """A request that is to be prefilled only is rejected with the reason, and others are served."""
    cluster, _ = split(FCFS(), executor=Plain)
    answer = cluster.ask("a", [1, 2], 4)
    cluster.run_until_idle()
    assert (answer.outcome, answer.reason) == ("rejected", "the executor of worker 0 does not give KV away")


def test_a_request_that_ends_with_its_first_token_is_not_sent() -> None:
    """Be it by a stop token or by its length: it finishes where its prompt was computed."""
    ends = Ends()
    cluster, start = split(FCFS(), listeners=[ends])
    cluster.step()
    first = answer_of([1, 2], 1)[0]
    stopped = cluster.ask("a", [1, 2], 9, sampling=Sampling(stop_tokens=frozenset([first])))
    short = cluster.ask("a", [2, 2], 1)
    cluster.run_until_idle()
    assert (stopped.outcome, stopped.tokens) == ("finished", [first])
    assert (short.outcome, short.tokens) == ("finished", answer_of([2, 2], 1))
    assert {event.worker for event in ends.events if isinstance(event, Finished)} == {0}
    assert cluster.transfers.started == 0
    _check_memory(start, cluster)


def test_memory_is_reserved_before_anything_is_sent_and_freed_after_it_arrived() -> None:
    """The events of one request, in order, and the transfer's reservation at the target in between."""
    ends = Ends()
    cluster, start = split(FCFS(), listeners=[ends], router=SplitRouter(reserved_output_tokens=5))
    cluster.step()
    answer = cluster.ask("a", [1, 2, 3], 6)
    source, target = (worker.host.engine for worker in start.alive)
    held = []
    while cluster.step():
        out, into = source.state.transit.outgoing, target.state.transit
        held.append((0 in out, into.incoming.get(0, 0), 0 in into.landed))
        # Never at neither end, once it was staged and before it is admitted.
        assert 0 in out or not (into.incoming or into.landed)
    assert answer.tokens == answer_of([1, 2, 3], 6)
    assert (True, 8, False) in held
    kinds = [type(e) for e in ends.events if _of(e) == 0]
    assert kinds.index(Migrated) < kinds.index(TransferStarted) < len(kinds) - 1 - kinds[::-1].index(Arrived)
    assert TransferFailed not in kinds


def test_an_executor_that_fails_at_the_source_loses_no_request() -> None:
    """Staged KV is gone with the executor: the request is computed again, and sent then."""
    made = iter([FailingExecutor(3, "execute"), FakeExecutor(), FakeExecutor(), FakeExecutor()])
    router = SplitRouter(holds={0})
    cluster, start = split(FCFS(), executor=lambda: next(made), router=router)
    cluster.step()
    answers = [cluster.ask("a", [1, 2], 5)]
    for _ in range(3):
        cluster.step()
        if cluster.moves:
            answers.append(cluster.ask("a", [3, 2, 1], 5))
            break
    answers.append(cluster.ask("a", [3, 3], 5))
    router.holds.clear()
    cluster.run_until_idle()
    for each in answers:
        assert (each.outcome, each.tokens) == ("finished", answer_of(each.prompt_ids, 5))
    _check_memory(start, cluster)


def test_transfers_are_counted_for_prometheus() -> None:
    """Started, landed and failed transfers and their bytes, at a scrape."""
    registry = CollectorRegistry()
    cluster, _ = split(FCFS(), [None, Death(3, "deaf")])
    ClusterMetrics(registry).watch(cluster)
    cluster.step()
    answers = [cluster.ask("a", [1, 2, i], 5) for i in range(4)]
    cluster.run_until_idle()
    assert all(answer.outcome == "finished" for answer in answers)
    scraped = generate_latest(registry).decode()
    counts = cluster.transfers
    assert counts.failed > 0
    for outcome in ("started", "landed", "failed"):
        line = f'fairsched_transfers_total{{outcome="{outcome}",worker="cluster"}} {getattr(counts, outcome)}.0'
        assert line in scraped
    assert f'fairsched_transfer_bytes_total{{worker="cluster"}} {counts.bytes}.0' in scraped


@pytest.mark.parametrize("deaths", [[], [Death(5, "untold"), Death(7, "deaf")], [None, Death(4, "silent")]], ids=str)
def test_the_log_of_a_split_cluster_replays(tmp_path: Path, deaths: list[Death | None]) -> None:
    """Every state and hash is rebuilt from the one log, and a request's way through both workers is told."""
    path = tmp_path / "cluster.jsonl"
    with ServingLog(path, "fcfs", parameters(FCFS()), kv_capacity_tokens=CAPACITY, workers=2) as log:
        cluster, _ = split(FCFS(), deaths, log=log)
        cluster.step()
        answers = [cluster.ask("a", [1, 2, i], 5) for i in range(6)]
        cluster.run_until_idle()
        log.complete(*cluster.policy_states)
    assert all(answer.outcome == "finished" for answer in answers)
    report = replay(path, build)
    assert report.difference is None
    assert report.equal
    told = explain(path, 0, build).text()
    assert "arrives at worker 0" in told
    assert "first token at worker 0" in told
    assert "transfer" in told
