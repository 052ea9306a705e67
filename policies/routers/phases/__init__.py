"""Routers for split phases: one router for prompts and one for outputs.  Read `split` first; `distserve` and
`tetriinfer` have the named pairs.
"""

from fairsched.policies.routers.phases.distserve import (
    ONE_SERVER,
    P_DS_2,
    P_DS_3,
    DistServe,
    DistServeReleased,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    saturating_prompt,
)
from fairsched.policies.routers.phases.split import NO_HANDOVERS, Handovers, SplitPhases
from fairsched.policies.routers.phases.tetriinfer import Flips, HeavyLight, TetriInfer, TetriInferPrinted

__all__ = [
    "NO_HANDOVERS", "ONE_SERVER", "P_DS_2", "P_DS_3", "DistServe", "DistServeReleased", "Flips", "Handovers",
    "HeavyLight", "SplitD2LPM", "SplitJSQ", "SplitP2C", "SplitPhases", "TetriInfer", "TetriInferPrinted",
    "saturating_prompt"
]  # fmt: skip
