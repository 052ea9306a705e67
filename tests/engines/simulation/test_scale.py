"""A run that is metered is the same run, and its figures are what they are called."""

import attrs
import pytest

from benchmarks.scaling.rows import growth, measure, metered
from fairsched.engines.simulation import Cluster, RunSpec, simulate_events
from fairsched.engines.simulation.runs import run_one
from fairsched.engines.workloads import generate
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

PRESET = PRESETS[DEFAULT_PRESET]


@pytest.mark.parametrize("router", ["round-robin", "sal", "e2", "d2lpm"])
@pytest.mark.parametrize("policy", ["fcfs", "dlpm"])
def test_metering_changes_nothing(router: str, policy: str) -> None:
    """The same events, one decision of the router a request, and at least one of a worker's policy an admission."""
    workload = generate("toolbench", documents=4, sharers=15, rate=40)
    plain = simulate_events(workload, LOCAL_POLICIES[policy], ROUTERS[router], PRESET, workers=3)
    cluster, routed = metered(ROUTERS[router], "route")
    local, decided = metered(LOCAL_POLICIES[policy], "decide")
    assert simulate_events(workload, local, cluster, PRESET, workers=3) == plain
    assert (cluster.name, local.name) == (ROUTERS[router].name, LOCAL_POLICIES[policy].name)
    assert routed.calls == len(workload.jobs)
    assert decided.calls > 0
    assert min(routed.ns, decided.ns) > 0
    assert ROUTERS[router].__class__ is not cluster.__class__


def test_a_row_holds_the_figures_of_the_run() -> None:
    """Served requests, fairness, gap and bound are those of a comparison; rates are calls over time."""
    workload = generate("toolbench", documents=4, sharers=30, rate=40, clients=5)
    run = RunSpec(LOCAL_POLICIES["dlpm"], "dlpm", {}, ROUTERS["join-shortest-queue"])
    seen: list[int] = []
    row = measure(workload, run, Cluster(PRESET, 3), seen.append)
    compared, _, _ = run_one(workload, run, Cluster(PRESET, 3))
    assert (row.workers, row.clients, row.requests) == (3, 5, 120)
    assert (row.jain, row.gap, row.bound) == (compared.jain_client, compared.gap.cost, compared.service_gap_bound)
    assert (row.throughput_rps, row.imbalance) == (compared.measures.throughput_rps, compared.imbalance)
    assert row.requests_per_s == 120 / row.cpu_s
    assert row.router_decisions == 120
    assert row.router_decisions_per_s is not None
    assert row.bound is not None
    assert row.gap is not None
    assert row.gap_over_bound == row.gap / row.bound
    assert row.peak_rss_bytes > 10 * 2**20


def test_growth_is_the_power_that_costs_follow() -> None:
    """The exponent of a cost that is a power of both sizes is found by each, whatever the constants."""
    workload = generate("toolbench", documents=4, sharers=5, rate=40, clients=5)
    row = measure(workload, RunSpec.of("fcfs", "round-robin"), Cluster(PRESET, 2))
    rows = [
        attrs.evolve(
            row,
            workers=workers,
            clients=clients,
            requests_per_s=1 / (workers**0.5 * clients**2),
            router_decisions_per_s=1 / (3.0 * workers),
            local_decisions_per_s=7.0,
        )
        for workers, clients in ((1, 10), (10, 10), (100, 10), (10, 1000), (100, 1000))
    ]
    by_workers, by_clients = growth(rows)
    assert (by_workers.by, by_workers.sizes) == ("workers", (1, 10, 100))
    assert (by_clients.by, by_clients.sizes) == ("clients", (10, 1000))
    assert list(by_workers.exponents.values()) == pytest.approx([1, 0, 0.5])
    assert list(by_clients.exponents.values()) == pytest.approx([0, 0, 2])


def test_a_long_run_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decisions are those of the same run recorded; what events alone tell is not known."""
    workload = generate("toolbench", documents=4, sharers=5, rate=40, clients=5)
    run, cluster = RunSpec.of("dlpm", "join-shortest-queue"), Cluster(PRESET, 2)
    recorded = measure(workload, run, cluster)
    monkeypatch.setattr("benchmarks.scaling.rows.RECORDED_MAX", len(workload.jobs) - 1)
    row = measure(workload, run, cluster)
    assert (row.local_decisions, row.router_decisions) == (recorded.local_decisions, recorded.router_decisions)
    assert (row.throughput_rps, row.imbalance, row.jain, row.gap, row.gap_over_bound) == (None,) * 5
    assert recorded.gap is not None
    assert row.bound == recorded.bound
