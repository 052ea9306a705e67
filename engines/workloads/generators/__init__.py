"""Generated workloads, a source a file, and their catalog by name. Read `dlpm` first."""

from fairsched.engines.workloads.generators.catalog import WORKLOADS, generate
from fairsched.engines.workloads.generators.demonstrations import worst_wait_world

__all__ = ["WORKLOADS", "generate", "worst_wait_world"]
