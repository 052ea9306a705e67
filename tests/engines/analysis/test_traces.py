"""The real traces, where they are at hand: every request ends once, and a run is the same run every time.

Each trace is taken at a load under which requests wait, so that the policies differ.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import attrs
import pytest

from fairsched.engines.logs import CanonicalLog
from fairsched.engines.simulation import Cluster, Simulator, simulate
from fairsched.engines.workloads import load_trace
from fairsched.model.events import Admitted, Arrived, Cancelled, Event, Finished, Rejected
from fairsched.model.machine import PRESETS
from fairsched.model.request import Workload
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

FOLDER = Path(__file__).parents[4] / "shared" / "traces"
POLICIES = ["fcfs", "lpm", "vtc", "dlpm"]
SOME = 300
"""Requests of each trace without the full budget."""

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the traces are not beside this checkout")


@attrs.frozen
class Case:
    """A trace, how much faster than recorded it is sent, and to what."""

    file: str
    rate_scale: float
    model: str
    kv_capacity_tokens: int | None = None

    @property
    def cluster(self) -> Cluster:
        """One worker."""
        return Cluster(PRESETS[self.model], kv_capacity_tokens=self.kv_capacity_tokens)

    def workload(self, limit: int | None) -> Workload:
        """The first requests of the trace, or all."""
        return load_trace(FOLDER / self.file, rate_scale=self.rate_scale, limit=limit)

    def arguments(self, limit: int) -> list[str]:
        """The same as arguments of `fairsched compare`."""
        kv = [] if self.kv_capacity_tokens is None else ["--kv-capacity-tokens", str(self.kv_capacity_tokens)]
        scale, trace = ["--rate-scale", str(self.rate_scale)], [str(FOLDER / self.file)]
        return [*trace, "--limit", str(limit), *scale, "--latency-model", self.model, *kv]


CASES = {
    "azure": Case("azure-2023-conv.csv", 4.0, "llama-3.2-3b-a10g"),
    "mooncake": Case("mooncake-conversation.jsonl", 1.0, "llama-3.1-8b-a100"),
    "arena": Case("vtc-arena.csv", 1.0, "llama-3.2-3b-a10g", 10_000),
}


def hashes(case: Case, limit: int | None) -> dict[str, str]:
    """The log's hash of every policy's run."""
    workload = case.workload(limit)
    return {name: simulate(workload, name, cluster=case.cluster).log_sha256 for name in POLICIES}


class Ends:
    """How often each request ended, the most that waited at once, and the log."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.waiting = self.waiting_max = 0
        self.log = CanonicalLog()

    def record(self, events: list[Event]) -> None:
        """The next events of the run."""
        self.log.record(events)
        for event in events:
            if isinstance(event, Finished | Rejected | Cancelled):
                self.times[event.request_id] += 1
            self.waiting += isinstance(event, Arrived) - isinstance(event, Admitted)
            self.waiting_max = max(self.waiting_max, self.waiting)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trace", CASES)
def test_every_request_of_a_trace_ends_once(trace: str, policy: str, full_budget: bool) -> None:
    """Finished, rejected or cancelled: every request of the trace ends exactly once, though many wait; and a second run
    writes the same log."""
    case = CASES[trace]
    workload = case.workload(None if full_budget else SOME)
    sha256 = set()
    for _ in range(2):
        ends = Ends()
        Simulator(
            workload,
            LOCAL_POLICIES[policy],
            ROUTERS["round-robin"],
            case.cluster.latency,
            kv_capacity_tokens=case.kv_capacity_tokens,
            on_events=ends.record,
        ).run()
        assert ends.times == Counter(job.request.id for job in workload.jobs)
        assert ends.waiting_max > 10
        sha256.add(ends.log.sha256())
    assert len(sha256) == 1


@pytest.mark.parametrize("trace", ["mooncake", "arena"])
def test_no_log_depends_on_the_hash_seed(trace: str, tmp_path: Path) -> None:
    """`fairsched compare` in two processes with different PYTHONHASHSEEDs, and a run in this one: one hash a policy,
    and the same files to the byte, digests of the policies' states included."""
    expected = hashes(CASES[trace], SOME)
    assert len(set(expected.values())) > 1
    files = []
    for seed in ("1", "2"):
        figures, logs = tmp_path / f"{seed}.json", tmp_path / seed
        outputs = ["--json", str(figures), "--log", str(logs)]
        arguments = ["compare", *CASES[trace].arguments(SOME), "--policies", ",".join(POLICIES), *outputs]
        subprocess.run(
            [sys.executable, "-m", "fairsched", *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        runs = json.loads(figures.read_text())["runs"]
        assert {run["policy"]: run["log_sha256"] for run in runs} == expected
        files.append({path.name: path.read_bytes() for path in logs.iterdir()})
    assert files[0] == files[1]
    assert len(files[0]) == len(POLICIES)
