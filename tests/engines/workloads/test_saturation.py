"""`rate=auto` asks for a little less than what the workers can do, and what they can do is about what they do."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.simulation.runs import run_one
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.engines.workloads.sampling.auto_rate import NEAR, missed_tokens, saturation
from fairsched.model.machine import PRESETS
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

PRESET = PRESETS["llama-3.2-3b-a10g"]


@pytest.mark.parametrize(
    ("name", "params"), [("toolbench", {}), ("programming", {"problems": 80, "max_output_tokens": 512})]
)
def test_an_overloaded_worker_does_about_what_is_estimated(name: str, params: dict[str, int]) -> None:
    """At three times the estimate one worker's throughput is within 25 % of it (memory beyond measure but for batches).

    Two batches' worth of what is left out: chunks computed twice while a prefix is under way, and the run's end.
    """
    worker = WorkerSpec(PRESETS["llama-3.1-8b-a100"])
    made = generate(name, workers=[worker], rate_scale=3, **params)  # type: ignore[arg-type]
    run = RunSpec(LOCAL_POLICIES["lpm"], "lpm", {}, ROUTERS["round-robin"])
    result, _, _ = run_one(made, run, Cluster(worker.latency))
    assert result.measures.throughput_rps == pytest.approx(saturation(made, [worker]).rps, rel=0.25)


def test_auto_is_the_stated_part_of_saturation() -> None:
    """Arrivals come at `NEAR` of the estimate, scaled by `rate_scale`, and a note says how that came about."""
    workers = [WorkerSpec(PRESET)] * 4
    for scale in (1.0, 0.5):
        made = generate("toolbench", workers=workers, rate_scale=scale)
        found = saturation(made, workers)
        rate = len(made.jobs) / (made.jobs[-1].request.arrival_ns / 1e9)
        assert rate == pytest.approx(NEAR * found.rps * scale, rel=0.1)
        assert found.note in made.notes
    assert "rate=auto" not in " ".join(generate("toolbench", rate=3).notes)


def test_workers_add_up() -> None:
    """Two models together saturate at the sum of what each does alone, if the cache holds everything either way."""
    made = generate("toolbench", documents=6)
    big = attrs.evolve(PRESET, kv_capacity_tokens=500_000)
    other = attrs.evolve(PRESETS["mistral-7b-a6000"], kv_capacity_tokens=400_000)
    one, two = (saturation(made, [WorkerSpec(model)]).rps for model in (big, other))
    both = saturation(made, [WorkerSpec(big), WorkerSpec(other)])
    assert both.rps == pytest.approx(one + two)
    assert both.workers == 2


@settings(max_examples=25)
@given(seed=st.integers(0, 99), capacity=st.integers(1_000, 60_000))
def test_a_larger_cache_misses_no_more(seed: int, capacity: int) -> None:
    """What an LRU cache misses lies between what an infinite one misses and everything, and falls with its size."""
    jobs = generate("toolbench", documents=8, sharers=6, seed=seed).jobs
    smaller, larger, infinite = (sum(missed_tokens(jobs, size)) for size in (capacity, 2 * capacity, 1 << 30))
    assert infinite <= larger <= smaller <= sum(job.request.prompt_tokens for job in jobs)
