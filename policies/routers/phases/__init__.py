"""Routers for split phases: one router for prompts and one for outputs.  Read `split` first; `handover` follows
requests between the phases, `distserve` has the named pairs.
"""

from fairsched.policies.routers.phases.distserve import (
    ONE_SERVER,
    P_DS_2,
    P_DS_3,
    DistServe,
    DistServeReleased,
    LeastMemory,
    ShortestPromptQueue,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    saturating_prompt,
)
from fairsched.policies.routers.phases.handover import NO_HANDOVERS, Handover, Handovers
from fairsched.policies.routers.phases.split import PhasesState, SplitPhases

__all__ = [
    "NO_HANDOVERS", "ONE_SERVER", "P_DS_2", "P_DS_3", "DistServe", "DistServeReleased", "Handover",
    "Handovers", "LeastMemory", "PhasesState", "ShortestPromptQueue", "SplitD2LPM", "SplitJSQ", "SplitP2C",
    "SplitPhases", "saturating_prompt"
]  # fmt: skip
