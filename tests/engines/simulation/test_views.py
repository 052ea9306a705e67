"""What a router sees of the workers is how they are, although only loads that may have changed are computed."""

from collections.abc import Sequence

import pytest

from fairsched.engines.simulation import simulate_events
from fairsched.engines.simulation.control_plane import ControlPlane
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Crash, Drain, Join, Restart, WorkerSpec
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.view import ClusterView, Role
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES

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
