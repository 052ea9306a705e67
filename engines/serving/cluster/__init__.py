"""Several live workers behind a router, in one process or as Ray actors. Read `cluster` first."""

from fairsched.engines.serving.cluster.cluster import Cluster
from fairsched.engines.serving.cluster.worker import InProcess, Recipe

__all__ = ["Cluster", "InProcess", "Recipe"]
