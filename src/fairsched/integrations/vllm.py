"""`--scheduler-cls fairsched.integrations.vllm.FairScheduler`: a policy inside vLLM's V1 engine.

`--middleware fairsched.integrations.vllm.GatewayClient`: requests belong to the client that the gateway names.
"""

from fairsched.engines.adapters.vllm import FairScheduler, GatewayClient

__all__ = ["FairScheduler", "GatewayClient"]
