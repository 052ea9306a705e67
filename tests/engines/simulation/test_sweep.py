"""What comes out of many runs is the same wherever they run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched import compare
from fairsched.engines.analysis import Comparison
from fairsched.engines.capacity import plan, tune
from fairsched.engines.simulation import Bucketed, Cluster, run_tasks, sweep
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Crash
from fairsched.model.request import Client, Slo, Workload
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES


def told(found: Comparison) -> str:
    """Every figure but how long the machine took."""
    document = found.to_dict()
    for run in document["runs"]:
        del run["wall_s"]
    return json.dumps(document)


def test_a_comparison_is_the_same_on_any_number_of_processes(tmp_path: Path) -> None:
    """Figures, log hashes, logs and frames, byte for byte, with settings, predictors, rates and a crash."""
    made = {rate: generate("demo", limit=30, rate_scale=rate) for rate in (1.0, 2.0)}
    seen = []
    for jobs in (1, 2):
        folder = tmp_path / "same"
        (folder / "logs").mkdir(parents=True)
        found = compare(
            made,
            ["fcfs", "dlpm"],
            ["round-robin", "e2"],
            cluster=Cluster(workers=2, changes=(Crash(0, 10**9, 10**9),)),
            settings={"dlpm": {"quantum": [256, 512]}},
            predictors=[None, Bucketed()],
            logs=folder / "logs",
            frames=folder / "frames",
            jobs=jobs,
        )
        files = {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        folder.rename(tmp_path / f"of-{jobs}")
        seen.append((told(found), files))
    assert len(seen[0][1]) == 24 + 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize("routers", [False, True])
def test_every_policy_is_the_same_in_a_process_of_its_own(routers: bool) -> None:
    """Whatever a policy holds survives the way there: the hash of its log says so."""
    names = {"routers": [name for name, each in CLUSTER_POLICIES.items() if not each.splits_phases]}
    chosen: dict[str, Any] = names if routers else {"policies": list(LOCAL_POLICIES)}
    one, two = (
        compare(generate("demo", limit=12), cluster=Cluster(workers=2), jobs=jobs, **chosen).runs for jobs in (1, 2)
    )
    assert [run.log_sha256 for run in one] == [run.log_sha256 for run in two]


def test_an_interrupt_keeps_the_runs_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those behind a run that did not, in the figures, the list of logs and the frames."""

    def interrupted(function: Any, tasks: Any, **_: Any) -> Iterator[Any]:
        yield from ((2 * place, each) for place, each in run_tasks(function, tasks[::2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_tasks", interrupted)
    made = generate("demo", limit=20)
    found = compare(made, ["fcfs", "lpm", "vtc"], logs=tmp_path, frames=tmp_path / "frame.parquet", jobs=2)
    assert (found.complete, found.labels()) == (False, ["fcfs", "vtc"])
    assert [Path(name).name for name in found.to_dict()["trace"]["logs"]] == [
        "01-fcfs-round-robin.jsonl",
        "03-vtc-round-robin.jsonl",
    ]


def test_a_workload_without_requests_is_refused() -> None:
    """In a line, before anything is run."""
    with pytest.raises(ValueError, match="without requests has nothing to compare"):
        compare(Workload("none", (), (Client(0, "a"),)), ["fcfs"])


def test_logs_of_runs_on_ray_are_refused(tmp_path: Path) -> None:
    """They would be written on another machine."""
    with pytest.raises(ValueError, match="leave one out"):
        compare(generate("demo", limit=20), logs=tmp_path, ray="auto")


def test_a_plan_is_the_same_on_any_number_of_processes() -> None:
    """With every number of workers that was tried."""
    made = generate("azure-chat", requests=40, rate_scale=20.0)
    slo = Slo(ttft_ns=10**9, tpot_ns=10**8)
    one, two = (plan(made, slo, jobs=jobs).to_dict() for jobs in (1, 2))
    assert one == two
    assert len(one["placements"]) == 3


def test_a_tuning_is_the_same_on_any_number_of_processes() -> None:
    """The same points in the same order, though some were run that are not asked for."""
    made = generate("demo", limit=30)
    one, two = (tune(made, 5 * 10**9, quanta=(64, 1_024), jobs=jobs).to_dict() for jobs in (1, 2))
    assert one == two
