"""Generated workloads, a source a file, and their catalog by name. Read `dlpm` first."""

from fairsched.engines.workloads.generators.catalog import WORKLOADS, generate

__all__ = ["WORKLOADS", "generate"]
