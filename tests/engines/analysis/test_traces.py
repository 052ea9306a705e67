"""The real traces, where they are at hand: a run is the same run every time, in any process.

Each trace is taken at a load under which requests wait, so that the policies differ.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import load_trace
from fairsched.model.machine import PRESETS
from fairsched.model.request import Workload

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
