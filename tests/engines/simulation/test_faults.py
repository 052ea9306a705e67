"""KV that moves while workers and links fail: drawn worlds, and those in which the simulator once failed."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from msgspec.structs import replace

from fairsched.engines.analysis import replay
from fairsched.engines.logs import LogWriter, RunInfo, params_of
from fairsched.engines.workloads.fleet import KvLink
from fairsched.model import worker as transitions
from fairsched.model.decision import Role
from fairsched.model.events import Migrated, Rejected, TransferFailed, TransferStarted
from fairsched.policies.registry import parameters
from tests.engines.analysis.test_phases import check
from tests.support.faults.worlds import (
    FaultJob,
    FaultWorker,
    FaultWorld,
    Watch,
    check_world,
    fails,
    fault_world,
    params_drawn,
)
from tests.support.logs import LATENCY, build, recorded
from tests.support.scenarios import REPLAYS

FOUND = sorted((REPLAYS / "faults").glob("*.json"))
NAMES = [path.stem for path in FOUND]
WORLDS, WORLDS_MAX = 150, 5_000


@pytest.mark.nightly
def test_every_request_ends_once_and_no_kv_is_twice(full_budget: bool) -> None:
    """After every entry of the agenda each KV is at one worker, or at its source and reserved at one target; no worker
    promises more than it holds; in the end every request has ended once and all memory is free."""
    failed = {seed: why for seed in range(WORLDS_MAX if full_budget else WORLDS) if (why := fails(fault_world(seed)))}
    assert not failed


@pytest.mark.parametrize("path", FOUND, ids=NAMES)
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    """Each file is the smallest world that was found in which the simulator failed as its claim says."""
    check_world(_read(path))


def test_the_worlds_have_all_that_may_happen() -> None:
    """In a hundred worlds KV is often staged, sent, and fails to come."""
    sent = failed = staged = 0
    for seed in range(100):
        events = check_world(fault_world(seed)).events
        staged += any(isinstance(event, Migrated) and event.kv_tokens for event in events)
        sent += any(isinstance(event, TransferStarted) for event in events)
        failed += any(isinstance(event, TransferFailed) for event in events)
    assert min(staged, sent) > 25
    assert failed > 5


@pytest.mark.parametrize("bug", ["kept twice", "never freed", "not reserved"])
def test_the_checks_can_fail(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that does not free KV at its source, gives no reservation back, or sends before it reserves fails in
    a hundred worlds."""
    if bug == "kept twice":
        monkeypatch.setattr(transitions, "sent", lambda state, request_id: state)
    elif bug == "never freed":
        monkeypatch.setattr(transitions, "unreserve", lambda state, request_id: state)
    else:
        monkeypatch.setattr(transitions, "reserve", lambda state, request_id, tokens, under_way=0: state)
    assert any(fails(fault_world(seed)) for seed in range(100))


def _read(path: Path) -> FaultWorld:
    return msgspec.json.decode(path.read_bytes(), type=FaultWorld)


@pytest.mark.parametrize("world", [*map(fault_world, range(30)), *map(_read, FOUND)], ids=[*range(30), *NAMES])
def test_phases_add_up_whatever_fails(world: FaultWorld) -> None:
    """Times in phases and between tokens are those reckoned event by event, also where KV moves and workers fail, and
    where a worker stood still before it leaps."""
    world = _unpiped(world)
    watch, steps = check_world(world), check_world(replace(world, leap=False))
    check(watch.workload, watch.simulator, watch.events, steps.events)


@pytest.mark.parametrize("policy", ["fastserve", "learning-to-rank", "splitwise-machine", "s3", "pia"])
def test_requests_whose_token_is_in_the_pipeline_have_left_the_batch(policy: str) -> None:
    """A policy that ranks running requests, or foresees their ends, passes over those whose token is still to come."""
    for seed in range(30):
        world = fault_world(seed)
        pipelines = tuple(replace(worker, stages=3) for worker in world.workers)
        check_world(replace(world, policy=policy, params=params_drawn(random.Random(seed), policy), workers=pipelines))


def test_bad_fleets_and_links_are_one_line() -> None:
    """A fleet in which a phase has no worker, and a link over which nothing would arrive, are errors with numbers; a
    prompt that its worker cannot hold is rejected when it arrives, with numbers."""
    pairs: tuple[tuple[Role, Role], ...] = (("prefill", "decode"), ("decode", "prefill"))
    for role, other in pairs:
        workers = (FaultWorker(40, role), FaultWorker(40, role))
        with pytest.raises(ValueError, match=f"all 2 workers {role}, and none is there to {other}"):
            Watch(replace(fault_world(0), workers=workers, faults=()))
    with pytest.raises(ValueError, match="bytes_per_s of 1 or more, not 131072 and 0"):
        KvLink(bytes_per_s=0)
    large = FaultJob(0, 0, 5, prompt_tokens=50, keys=(), declared_tokens=4, output_tokens=4)
    workers = (FaultWorker(40, "prefill"), FaultWorker(40, "decode"))
    world = replace(fault_world(0), workers=workers, jobs=(large,), faults=(), reports=None)
    (rejected,) = [event for event in check_world(world).events if isinstance(event, Rejected)]
    assert rejected.time_ns == 5
    assert rejected.reason.startswith("request 0 needs 54 tokens, worker ")
    assert rejected.reason.endswith(" holds 40 in all")


def test_logs_with_transfers_replay() -> None:
    """A log rebuilds every worker, memory of KV that comes and goes included, and every policy's state."""
    for seed in range(30):
        world = _unpiped(fault_world(seed))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            sha256 = _written(path, world)
            report = replay(path, build)
        assert report.equal, (seed, report.difference)
        assert report.log_sha256 == sha256


def _unpiped(world: FaultWorld) -> FaultWorld:
    """The world without pipelines: there, tokens come after other steps have begun, which no replay follows."""
    plain = [
        fault if fault.like is None else replace(fault, like=replace(fault.like, stages=1)) for fault in world.faults
    ]
    return replace(world, workers=tuple(replace(worker, stages=1) for worker in world.workers), faults=tuple(plain))


def _written(path: Path, world: FaultWorld) -> str:
    """Write the log of a world; returns its hash."""
    workload, specs = world.workload(), [worker.spec for worker in Watch(world).simulator.workers]
    info = RunInfo(
        policy=world.policy,
        params=params_of(parameters(world.build())),
        router="any",
        workers=len(specs),
        kv_capacity_tokens=max(spec.capacity for spec in specs),
        latency=LATENCY,
        workload=workload.name,
        latencies=tuple(spec.latency for spec in specs),
    )
    with LogWriter(path, "0.0.0", info, workload) as writer:
        simulator, _, sha256 = recorded(lambda **options: world.simulator(workload, **options), writer)
        writer.complete(sha256, [worker.policy_state for worker in simulator.workers])
    return sha256
