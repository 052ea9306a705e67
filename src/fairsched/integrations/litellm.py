"""`litellm_settings: {callbacks: fairsched.integrations.litellm.fair_queue}`: a fair queue inside LiteLLM's proxy.

`FAIRSCHED_LITELLM_CONFIG` names a TOML file with its settings.
"""

import sys
from functools import cache

from litellm.proxy.proxy_server import app

from fairsched.engines.adapters.litellm import FairQueue, from_environment

__all__ = ["FairQueue"]


@cache
def _made() -> FairQueue:
    """Return the queue of this process.

    What cannot be used stops the proxy with one line: a proxy that should be fair must not serve without.
    """
    try:
        return FairQueue(from_environment(), app)
    except ValueError as error:
        sys.exit(f"fairsched: {error}")


def __getattr__(name: str) -> FairQueue:
    # LiteLLM asks for an instance by its name.
    if name == "fair_queue":
        return _made()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
