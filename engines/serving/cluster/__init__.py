"""Several live workers behind a router, in one process or as child processes or Ray actors. Read `cluster` first."""

from fairsched.engines.serving.cluster.cluster import LiveCluster, TransferCounts
from fairsched.engines.serving.cluster.member import WorkerStatus, split_roles
from fairsched.engines.serving.cluster.processes import Processes
from fairsched.engines.serving.cluster.worker import InProcess, Recipe

__all__ = ["InProcess", "LiveCluster", "Processes", "Recipe", "TransferCounts", "WorkerStatus", "split_roles"]
