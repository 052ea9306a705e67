"""Order and gate inside vLLM's V1 scheduler. Read `scheduler` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.vllm.memory import KvMemory, Prefixes
    from fairsched.engines.adapters.vllm.middleware import GatewayClient
    from fairsched.engines.adapters.vllm.queue import FairQueue
    from fairsched.engines.adapters.vllm.scheduler import FairScheduler
    from fairsched.engines.adapters.vllm.settings import VllmSettings, chosen, unreserved_tokens
    from fairsched.engines.adapters.vllm.tracker import VllmTracker
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "FairQueue", "FairScheduler", "GatewayClient", "KvMemory", "Prefixes", "VllmSettings", "VllmTracker", "chosen",
    "unreserved_tokens"
]  # fmt: skip
