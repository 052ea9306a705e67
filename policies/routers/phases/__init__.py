"""Routers for split phases: one router for prompts and one for outputs.  Read `split` first; `distserve` has the named
pairs.
"""

from fairsched.policies.routers.phases.distserve import (
    DistServe,
    LeastMemory,
    ShortestPromptQueue,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    saturating_prompt,
)
from fairsched.policies.routers.phases.split import Handover, PhasesState, SplitPhases

__all__ = [
    "DistServe", "Handover", "LeastMemory", "PhasesState", "ShortestPromptQueue", "SplitD2LPM", "SplitJSQ", "SplitP2C",
    "SplitPhases", "saturating_prompt"
]  # fmt: skip
