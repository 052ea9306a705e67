"""What a router sees of the workers is how they are, although only loads that may have changed are computed."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.simulation import simulate_events
from fairsched.engines.simulation.control_plane import ControlPlane, Reports
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Crash, Drain, Join, Restart, WorkerSpec
from fairsched.model.decision import ClusterView, Role
from fairsched.model.events import Arrived
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.catalog import FCFS
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES
from tests.support.scenarios import latency_of

PRESET = PRESETS[DEFAULT_PRESET]
S = 10**9
CHANGES = (
    Crash(worker=1, at_ns=2 * S, down_ns=S),
    Join(3 * S),
    Restart(worker=0, at_ns=4 * S, down_ns=S),
    Drain(worker=2, at_ns=6 * S),
)


@pytest.mark.parametrize("router", ["join-shortest-queue", "llumnix", "jsq-split"])
@pytest.mark.parametrize("policy", ["fcfs", "fcfs-optimistic", "dlpm"])
@pytest.mark.parametrize("changes", [(), CHANGES], ids=["steady", "changing"])
def test_a_view_is_as_if_made_anew(
    router: str, policy: str, changes: Sequence[Crash | Join | Restart | Drain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in leaps in which outputs grow, while requests and their KV move, and when workers come and go."""
    kept, views = ControlPlane.view, []

    def checked(plane: ControlPlane, pool: WorkerPool, takers: Sequence[SimulatedWorker]) -> ClusterView:
        view = kept(plane, pool, takers)
        assert view.workers == tuple([worker.load(view.now_ns) for worker in takers])
        views.append(view)
        return view

    monkeypatch.setattr(ControlPlane, "view", checked)
    roles: tuple[Role, Role] = ("prefill", "decode") if router == "jsq-split" else ("both", "both")
    workers = [WorkerSpec(PRESET, 20_000, role=roles[i % 2]) for i in range(4)]
    workload = generate("azure-chat", requests=150, rate=20.0, clients=6)
    chosen = LOCAL_POLICIES[policy], CLUSTER_POLICIES[router]
    events = simulate_events(workload, *chosen, PRESET, workers=workers, changes=changes)
    assert len(views) >= 150
    assert len(events) > 1_000


def _most(router: AnyClusterPolicy, requests: int, reports: Reports | None) -> int:
    """The most requests of a burst of equal ones, the first at 10 ms, that come to one of four workers first."""
    jobs = [Job(Request(i, i % 2, 10_000_000 + i, Prompt(100), 5), 5) for i in range(requests)]
    workload = Workload("burst", tuple(jobs), (Client(0, "a"), Client(1, "b")))
    latency = latency_of(1_000_000, prefill_token_ns=10, kv_capacity_tokens=5_000)
    events = simulate_events(workload, FCFS(), router, latency, workers=4, reports=reports)
    at = {
        event.request.id: event.worker for event in reversed(events) if isinstance(event, Arrived) and event.worker >= 0
    }
    assert len(at) == requests
    return max(Counter(at.values()).values())


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(CLUSTER_POLICIES)), st.integers(8, 80), st.integers(20_000, 100_000), st.integers(0, 30_000)
)
def test_a_burst_spreads_although_reports_are_late(name: str, requests: int, every_us: int, delay_us: int) -> None:
    """At most twice its share comes to one worker, or as many as if all were known at once: what a router sent counts
    before it is reported, whatever the router."""
    router = CLUSTER_POLICIES[name]
    late = _most(router, requests, Reports(every_us, delay_us))
    assert late <= max(2 * -(-requests // 4), _most(router, requests, None))
