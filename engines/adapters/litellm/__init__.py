"""A fair queue inside LiteLLM's proxy. Read `request` first: one request, from the wait to the end of its answer."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.litellm.hook import FairQueue
    from fairsched.engines.adapters.litellm.queue import ProxyQueue
    from fairsched.engines.adapters.litellm.request import QueuedRequests
    from fairsched.engines.adapters.litellm.settings import LiteLlmSettings, from_environment
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["FairQueue", "LiteLlmSettings", "ProxyQueue", "QueuedRequests", "from_environment"]
