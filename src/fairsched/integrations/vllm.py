"""`--scheduler-cls fairsched.integrations.vllm.FairScheduler`: a shipped policy inside vLLM's V1 engine."""

from fairsched.engines.adapters.vllm import FairScheduler

__all__ = ["FairScheduler"]
