"""Generated workloads, a source a file, and their catalog by name. Read `dlpm` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.workloads.generators.catalog import WORKLOADS, generate
    from fairsched.engines.workloads.generators.demonstrations import worst_wait_world
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WORKLOADS", "generate", "worst_wait_world"]
