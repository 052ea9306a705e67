"""What the library is for, seen in one command: a policy without a gate breaks the bound that a gate keeps.

`fairsched compare --workload showcase --kv-capacity-tokens 32768 --set dlpm.in_flight_cap_tokens=16384`
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairsched.cli import main
from fairsched.engines.analysis import Run
from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.generators.demonstrations import SHOWCASE_IN_FLIGHT_CAP_TOKENS, SHOWCASE_KV_TOKENS
from fairsched.model.machine import DEFAULT_PRESET

PARAMS = {"dlpm": {"in_flight_cap_tokens": str(SHOWCASE_IN_FLIGHT_CAP_TOKENS)}}
SEEDS = (0, 1)
EIGHT: Mapping[str, Any] = {}
"""Trees of thoughts as the workload has them: eight clients."""


@cache
def showcase(name: str, duration_s: int, seed: int = 0) -> Run:
    """A policy over the showcase."""
    cluster = Cluster(kv_capacity_tokens=SHOWCASE_KV_TOKENS)
    workload = generate("showcase", duration_s=duration_s, seed=seed)
    return simulate(workload, name, cluster=cluster, params=PARAMS.get(name, {}))


def bound(result: Run) -> int:
    """The bound that the run's policy promises."""
    assert result.service_gap_bound is not None
    return result.service_gap_bound


@pytest.mark.parametrize("name", ["vtc", "dlpm"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_bounds_bind_and_hold(name: str, seed: int) -> None:
    """The bound is below a tenth of what the busiest client received, so it could be broken ten times over; the gap
    stays inside, though both clients waited together for minutes."""
    result = showcase(name, 40, seed)
    assert result.bound_over_busiest is not None
    assert result.bound_over_busiest < 0.1
    assert 0 < result.gap.cost <= bound(result)
    assert result.gap.together_ns > 100 * 10**9


@pytest.mark.parametrize("seed", SEEDS)
def test_lpm_exceeds_dlpm_s_bound(seed: int) -> None:
    """Longest prefix match charges what DLPM charges, computed tokens, and its gap is beyond DLPM's bound."""
    lpm, dlpm = showcase("lpm", 40, seed), showcase("dlpm", 40, seed)
    assert lpm.gap.cost > 10 * bound(dlpm)
    assert lpm.common_gap.cost == lpm.gap.cost
    assert dlpm.common_gap.cost == dlpm.gap.cost


@pytest.mark.parametrize("seed", SEEDS)
def test_lpm_s_gap_doubles_with_the_run_and_dlpm_s_does_not(seed: int) -> None:
    """Twice the arrivals are twice the gap under LPM, for as long again as both clients are backlogged; the gaps of
    VTC and DLPM, and their bounds, do not know how long the run is."""
    short, long = showcase("lpm", 40, seed), showcase("lpm", 80, seed)
    assert 1.8 <= long.gap.cost / short.gap.cost <= 2.2
    assert 1.8 <= long.gap.together_ns / short.gap.together_ns <= 2.2
    for name in ("vtc", "dlpm"):
        result = showcase(name, 80, seed)
        assert bound(result) == bound(showcase(name, 40, seed))
        assert result.gap.cost <= bound(result)


def test_the_cold_clients_wait_less_under_dlpm() -> None:
    """What the bound is good for: the p99 of those who send no flood is less than two thirds of LPM's."""
    for client in ("cold-1", "cold-2"):
        lpm, dlpm = (showcase(name, 40).clients[client].ttft_us.p99 for name in ("lpm", "dlpm"))
        assert lpm is not None
        assert dlpm is not None
        assert dlpm < 2 / 3 * lpm


def test_one_command_shows_it(tmp_path: Path) -> None:
    """`fairsched compare` gives the same figures in one run of all four policies."""
    figures = tmp_path / "showcase.json"
    arguments = ["compare", "showcase", "--kv-capacity-tokens", str(SHOWCASE_KV_TOKENS)]
    arguments += ["--set", f"dlpm.in_flight_cap_tokens={SHOWCASE_IN_FLIGHT_CAP_TOKENS}", "--json", str(figures)]
    assert main(arguments) == 0
    runs: dict[str, Any] = {run["policy"]: run for run in msgspec.json.decode(figures.read_bytes())["runs"]}
    assert list(runs) == ["fcfs", "lpm", "vtc", "dlpm"]
    assert runs["lpm"]["service_gap_max"] == showcase("lpm", 40).gap.cost
    assert runs["lpm"]["service_gap_max"] > runs["dlpm"]["service_gap_bound"]
    for name in ("vtc", "dlpm"):
        assert runs[name]["service_gap_max"] <= runs[name]["service_gap_bound"]
        assert runs[name]["log_sha256"] == showcase(name, 40).log_sha256


def trees(name: str, model: str = DEFAULT_PRESET, quantum: int | None = None, size: Mapping[str, Any] = EIGHT) -> Run:
    """A policy over trees of thoughts, whose first client asks longer questions."""
    params = {} if quantum is None else {"quantum": quantum}
    workload = generate("tree-of-thoughts", misbehave="longer-prefix", **size)
    return simulate(workload, name, cluster=Cluster(model), params=params)


@pytest.mark.parametrize("model", ["llama-3.2-3b-a10g", "llama-3.1-8b-a100"])
def test_dlpm_is_nearly_as_fast_as_lpm_and_much_faster_than_vtc(model: str) -> None:
    """Trees of thoughts, longer prefix, quantum 4,096, the KV capacity of each of the paper's machines: DLPM's
    throughput is at least 1.5 times VTC's and within 10 % of LPM's.

    docs/explanation/measured.md says where that ceases to hold.
    """
    lpm, vtc, dlpm = (trees(name, model).measures.throughput_rps for name in ("lpm", "vtc", "dlpm"))
    assert lpm is not None
    assert vtc is not None
    assert dlpm is not None
    assert dlpm >= 1.5 * vtc
    assert dlpm >= 0.9 * lpm
