"""A fair queue inside LiteLLM's proxy. Read `request` first: one request, from the wait to the end of its answer.

Nothing here imports LiteLLM: `fairsched.integrations.litellm` is the class that it calls.
"""

from fairsched.engines.adapters.litellm.queue import LiteLlmSettings, ProxyQueue, from_environment
from fairsched.engines.adapters.litellm.request import QueuedRequests

__all__ = ["LiteLlmSettings", "ProxyQueue", "QueuedRequests", "from_environment"]
