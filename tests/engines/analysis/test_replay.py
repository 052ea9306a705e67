"""Replaying a log gives every state and hash of the run again, and finds whatever was changed in the file."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import assumption_monitor, replay, run_limits
from fairsched.engines.analysis.log_replay import ReplayReport
from fairsched.engines.logs import CanonicalLog, LogReader
from fairsched.engines.simulation import Simulator
from fairsched.engines.workloads import generate
from fairsched.model.events import Event, Preempted
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.monitor import together
from fairsched.model.request import Workload
from fairsched.model.serialization import digest
from tests.support.logs import RUNS, Case, Written, build, stop_early, write
from tests.support.policies.pausing import pause_at_random

Prepare = Callable[[Simulator], None]
PLAIN = Case("fcfs", latency=PRESETS[DEFAULT_PRESET], kv_capacity_tokens=20_000)


def _unchanged(_: Simulator) -> None:
    """A run as it is."""


@given(RUNS, st.sampled_from([_unchanged, _unchanged, stop_early, pause_at_random]))
def test_replay_equals_the_run(run: tuple[Workload, Case], prepare: Prepare) -> None:
    """For every policy, batching and reservation rule, observing the events gives the states that deciding gave.

    Worker by worker: what waits and runs, the hash of all events and the digest of the policy's state.  Workers fail,
    outputs end earlier than was foreseen, and requests pause: no gap is over its bound without a broken assumption.
    """
    workload, case = run
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", workload, case, prepare=prepare)
        report = replay(written.path, build)
    assert report.difference is None
    assert report.equal
    assert not report.unexplained
    assert report.log_sha256 == written.log_sha256
    for worker, simulated in zip(report.workers, written.simulator.workers, strict=True):
        if report.states_left_out is None:
            assert worker.state_digest == digest(simulated.policy_state)
        assert worker.running_requests == len(simulated.state.in_flight)
        assert worker.cached_tokens == simulated.state.cache.tree.cached_tokens


@given(RUNS, st.sampled_from([_unchanged, stop_early]))
@settings(max_examples=50)
def test_a_log_tells_the_assumptions_of_its_run(run: tuple[Workload, Case], prepare: Prepare) -> None:
    """A monitor of the log, whose decode runs are summed, finds broken what one of the run itself finds."""
    workload, case = run
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", workload, case, prepare=prepare)
        report = replay(written.path, build)
    if report.states_left_out is not None:
        assert not report.assumptions
        return
    policy = case.build()
    limits = run_limits(policy, workload.jobs, case.kv_capacity_tokens, case.workers)
    monitor = assumption_monitor(policy, workload.clients, limits)
    if monitor is None:
        assert report.assumptions == {}
        return
    monitor.observe_all(written.events)
    live = together(monitor.reports())
    assert {name: found.violated for name, found in report.assumptions.items()} == {
        name: found.violated for name, found in live.items()
    }
    assert "assumptions: " in report.text()
    assert report.to_json()["assumptions"].keys() == live.keys()


@given(RUNS)
@settings(max_examples=50)
def test_reading_gives_the_events_that_were_logged(run: tuple[Workload, Case]) -> None:
    """A log read back holds the run's events, decode runs summed, and the requests as they were given."""
    workload, case = run
    canonical: list[Event] = []
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", workload, case)
        log = LogReader(written.path)
        events = [event for _, event in log]
    summed = CanonicalLog(lambda event, _: canonical.append(event))
    summed.record(written.events)
    assert summed.sha256() == log.sha256()
    assert events == canonical
    jobs = {job.request.id: job for job in workload.jobs}
    assert log.jobs == jobs
    assert log.header.clients == workload.clients
    assert log.footer is not None


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A run with preemptions, evictions and two workers."""
    case = attrs.evolve(PLAIN, policy="dlpm", params={"reserve": "optimistic"}, workers=2)
    written = write(tmp_path_factory.mktemp("demo") / "demo.jsonl", generate("demo", limit=120), case)
    assert any(isinstance(event, Preempted) for event in written.events)
    return written


def replay_of(raw: bytes) -> ReplayReport:
    """Replay a log given by its bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(raw)
        return replay(path, build)


@given(
    st.sampled_from(["first", "second", "last", "any"]), st.integers(0, 2**16), st.integers(0, 2**16), st.integers(0, 7)
)
def test_one_changed_bit_is_caught(demo: Written, where: str, line: int, byte: int, bit: int) -> None:
    """Whatever bit of a log is changed, reading it fails with a message or the replay says that it differs."""
    lines = [bytearray(line) for line in demo.path.read_bytes().splitlines(keepends=True)]
    number = {"first": 0, "second": 1, "last": len(lines) - 1, "any": line % len(lines)}[where]
    lines[number][byte % len(lines[number])] ^= 1 << bit
    raw = b"".join(lines)
    assert not is_believed(raw)


def is_believed(raw: bytes) -> bool:
    """Whether reading and replaying these bytes finds nothing wrong; errors are of one line."""
    try:
        return replay_of(raw).equal
    except ValueError as error:
        # A `LogError`, or the policy that the header names is unknown or refuses a parameter.
        return "\n" in str(error)


def test_first_difference_names_its_line(demo: Written) -> None:
    """An event that could not have happened is reported at its line, with what the worker would have told."""
    lines = demo.path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(b'["Admitted"'))
    row = msgspec.json.decode(lines[at])
    row[5] -= 1  # extend_tokens, with one more cached, so that the line itself is possible
    row[6] += 1
    lines[at] = msgspec.json.encode(row) + b"\n"
    report = replay_of(b"".join(lines))
    assert report.difference is not None
    found = re.fullmatch(r'line (\d+): the worker would tell (\["Settled".*\]), not (\[.*\])', report.difference)
    assert found is not None
    # The line is that of the next event, which is not the correction that had to follow.
    assert lines[int(found[1]) - 1] == found[3].encode() + b"\n"


def test_missing_event_is_found(demo: Written) -> None:
    """A log from which an event was taken out, and whose last line was made to fit, is found to differ."""
    lines = demo.path.read_bytes().splitlines(keepends=True)
    for kind in (b"Finished", b"Decoded", b"Prefilled", b"Preempted", b"Admitted", b"Cached", b"Evicted", b"Arrived"):
        at = next(i for i, line in enumerate(lines) if line.startswith(b'["' + kind))
        footer = msgspec.json.decode(lines[-1])
        footer["events"] -= 1
        report = replay_of(b"".join([*lines[:at], *lines[at + 1 : -1], msgspec.json.encode(footer) + b"\n"]))
        assert report.difference is not None, kind
        assert "the log was changed" not in report.difference, kind


def test_swapped_hash_and_state_are_found(demo: Written) -> None:
    """A last line with another hash or another state's digest is reported as that."""
    raw = demo.path.read_bytes()
    *_, last = raw.splitlines()
    footer = msgspec.json.decode(last)
    other_hash = msgspec.json.encode(footer | {"log_sha256": "0" * 64})
    assert "log_sha256 is 000" in (replay_of(raw.replace(last, other_hash)).difference or "")
    other_state = msgspec.json.encode(footer | {"states": footer["states"][::-1]})
    assert "policy state of worker 0" in (replay_of(raw.replace(last, other_state)).difference or "")


def test_another_policy_is_found(demo: Written) -> None:
    """Events replayed by a policy with another parameter lead to another state, and the report says whose."""
    other = Case("dlpm", {"reserve": "optimistic", "quantum": "7"}).build()
    difference = replay(demo.path, lambda header: other).difference
    assert difference is not None
    assert "the policy state of worker 0 is " in difference


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.999])
def test_cut_off_log_is_replayed_as_far_as_it_goes(kept: float, demo: Written) -> None:
    """A log that ends anywhere, in a line or between two, is replayed up to there and called interrupted."""
    raw = demo.path.read_bytes()
    report = replay_of(raw[: int(len(raw) * kept)])
    assert not report.complete
    assert not report.equal
    assert report.difference is None
    assert report.events > 0
    assert "interrupted" in report.text()
