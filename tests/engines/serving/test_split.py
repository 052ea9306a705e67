"""Split serving: requests end once with their own tokens, whatever dies in whatever state of a transfer."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.serving import Recipe
from fairsched.engines.serving.cluster.cluster import Cluster, NoWorkerError
from fairsched.engines.serving.cluster.member import Member, Timeouts, split_roles
from fairsched.engines.serving.cluster.worker import Pace
from fairsched.model.events import Admitted, Arrived, Event, Migrated, TransferFailed, TransferStarted
from fairsched.model.serialization import digest
from fairsched.model.view import Role
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.routers import RoundRobin
from tests.engines.serving.test_cluster import DEATHS, FOREVER, KEYS, Sent, gate_passed
from tests.engines.serving.test_loop import CAPACITY, SENT, Ends, composed
from tests.support.fake_executor import FakeExecutor, FailingExecutor, answer_of
from tests.support.flaky_workers import Death, FlakyWorkers
from tests.support.split_router import SplitRouter

DEFICIT = DLPM(gate=DeficitGate(quantum=5), batching=Chunked(8, 4))


def split(
    policy: ComposedPolicy, deaths: list[Death | None] = [], roles: str = "1:1", **options: Any
) -> tuple[Cluster, FlakyWorkers]:
    """A split cluster whose workers die so."""
    start = FlakyWorkers(Recipe(policy, options.pop("executor", FakeExecutor), CAPACITY), deaths)
    options = {"timeouts": FOREVER, "block_keys": KEYS, "pace": Pace(60.0, 1), "roles": split_roles(roles)} | options
    router = options.pop("router", SplitRouter())
    return Cluster(policy, router, start, kv_capacity_tokens=CAPACITY, **options), start


class Watch:
    """Counts in which state of a transfer a worker went, and at which end it was."""

    def __init__(self, cluster: Cluster, ends: Ends) -> None:
        self.seen: Counter[str] = Counter()
        transfers, left = cluster._transfers, cluster._transfers.left

        def leaves(member: Member) -> Any:
            for move in transfers.moves.values():
                if member in (move.source, move.target):
                    end = "source" if move.source is member else "target"
                    self.seen[f"{end} goes, {move.phase}"] += 1
            for request_id in member.calls:
                events = [e for e in ends.events if _of(e) == request_id]
                came = [i for i, e in enumerate(events) if isinstance(e, Arrived) and e.kv_tokens]
                if came and request_id not in transfers.moves:
                    admitted = any(isinstance(e, Admitted) for e in events[came[-1] :])
                    self.seen["target goes, decoding" if admitted else "target goes, landed"] += 1
            return left(member)

        transfers.left = leaves  # type: ignore[method-assign]


def _of(event: Event) -> int:
    if isinstance(event, Arrived):
        return event.request.id
    return getattr(event, "request_id", -1)


def _check_memory(start: FlakyWorkers, cluster: Cluster) -> None:
    """Nothing is open, so no worker keeps memory for any request, and the policies' states are the workers' own."""
    for worker in start.alive:
        state = worker.host.engine.state
        assert not (state.transit.outgoing or state.transit.incoming or state.transit.landed or state.queue)
        assert state.used == state.promised == 0
        assert not worker.host.engine.exchange.kept
        assert digest(worker.host.engine.policy_state) == digest(cluster.policy_states[worker.config.worker])


SEEN: Counter[str] = Counter()


@given(
    composed(),
    st.lists(st.tuples(SENT, st.integers(0, 5)), min_size=1, max_size=4),
    DEATHS,
    st.sampled_from(["1:1", "2:1", "1:2"]),
    st.sampled_from([0, 4]),
    st.booleans(),
    st.sampled_from([1, 2, 7]),
    st.integers(1, 2),
)
@settings(max_examples=120)
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
    sent: dict[int, Sent] = {}
    ends = Ends()
    cluster, start = split(
        policy,
        deaths,
        roles,
        router=SplitRouter(reserved, odd),
        workers_max=4,
        listeners=[ends],
        pace=Pace(60.0, steps),
        ahead=ahead,
    )
    watch = Watch(cluster, ends)
    for burst, act in bursts:
        for each in burst:
            request = Sent(*each)
            sent[request.send(cluster)] = request
            cluster.step()
            if act == 5:
                _cancel(cluster, sent, watch.seen)
        _act(cluster, act, sent)
    for _ in range(20_000):
        if not cluster.step():
            break
    else:
        pytest.fail(f"this goes on for ever: {cluster.answers} {cluster.moves} {cluster.status}")
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


def _cancel(cluster: Cluster, sent: dict[int, Sent], seen: Counter[str]) -> None:
    """The caller of a request that is between two workers gives up, if there is one."""
    for request_id, phase in cluster.moves.items():
        if not sent[request_id].gone:
            sent[request_id].gone = True
            assert cluster.cancel(request_id)
            seen[f"caller goes, {phase}"] += 1
            return


def _act(cluster: Cluster, act: int, sent: dict[int, Sent]) -> None:
    try:
        if act == 0:
            cluster.add_worker()
        elif act == 1:
            cluster.drain_worker(cluster.status[0].worker)
        elif act == 2 and cluster.answers:
            request_id = min(cluster.answers)
            sent[request_id].gone = True
            cluster.cancel(request_id)
        elif act in (3, 4):
            cluster.configure_client("client-1", act - 2)
    except NoWorkerError:
        pass


def test_whatever_dies_in_whatever_state_requests_end_once_with_their_own_tokens() -> None:
    """Under any local policy, with workers of either phase that die, come and drain at any message, callers that give
    up in any state of a transfer, and a router that also names wrong targets: each request ends once with the tokens
    that it has alone, no worker keeps memory for a request that is over, and every policy state is the worker's own.

    Each state of a transfer was met by the death of either end, and by callers that gave up, at least three times.
    """
    SEEN.clear()
    _worlds()
    wanted = {f"{end} goes, {phase}" for end in ("source", "target") for phase in ("reserving", "sending", "landing")}
    wanted |= {"source goes, staged", "target goes, landed", "target goes, decoding", "landed", "failed", "stranded"}
    wanted |= {f"caller goes, {phase}" for phase in ("staged", "reserving", "sending", "landing")}
    assert {what: SEEN[what] for what in wanted if SEEN[what] < 3} == {}
