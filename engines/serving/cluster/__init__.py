"""Several live workers behind a router, in one process or as Ray actors. Read `cluster` first."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.serving.cluster.cluster import Cluster
    from fairsched.engines.serving.cluster.worker import InProcess, Recipe
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["Cluster", "InProcess", "Recipe"]
