"""What watches a policy's assumptions on a run of a cluster, simulated, recorded or live."""

from typing import Any

from fairsched.model.monitor import ClusterMonitor, Monitor
from fairsched.model.request import Client
from fairsched.policies.base import Limits, LocalPolicy


def assumption_monitor(policy: LocalPolicy[Any], clients: tuple[Client, ...], limits: Limits) -> ClusterMonitor | None:
    """A monitor of the assumptions of the policy's theorems, gaps left out; None if it promises nothing."""
    promise = policy.promise(clients, limits)
    if promise is None:
        return None
    check = policy.gate_checks()
    return ClusterMonitor(lambda worker: Monitor(promise, check(), worker=worker, gaps=False))
