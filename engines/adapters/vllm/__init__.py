"""Order and gate inside vLLM's V1 scheduler. Read `scheduler` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.vllm.middleware import GatewayClient
    from fairsched.engines.adapters.vllm.scheduler import FairScheduler
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["FairScheduler", "GatewayClient"]
