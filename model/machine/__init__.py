"""How long a step takes: lines, or kernels by tables and formulas; GPUs, their links and floors, models by their sizes,
machines by formula, presets of measured ones, and documents.  Read `model` first.
"""

from fairsched.model.machine.document import (
    EngineFacts,
    PresetDocument,
    ServerFacts,
    as_builtins,
    decoded,
    encoded,
    from_builtins,
    preset_document,
)
from fairsched.model.machine.formula import GRAPH_SIZES, by_formula
from fairsched.model.machine.gpus import GPUS, LINKS, Gpu, Link, check, gpu_of, idle_nj, mfu, rated_watts, step_nj
from fairsched.model.machine.kernels import (
    AllReduce,
    AttentionFormula,
    AttentionTable,
    HostTime,
    Kernels,
    Skew,
    TimeTable,
)
from fairsched.model.machine.model import PROMPT_TOKENS, DecodePiece, LatencyModel, Performance, pipelined
from fairsched.model.machine.models import MODELS, ModelSizes
from fairsched.model.machine.presets import DEFAULT_PRESET, PRESETS, preset

__all__ = [
    "DEFAULT_PRESET", "GPUS", "GRAPH_SIZES", "LINKS", "MODELS", "PRESETS", "PROMPT_TOKENS", "AllReduce",
    "AttentionFormula", "AttentionTable", "DecodePiece", "EngineFacts", "Gpu", "HostTime", "Kernels", "LatencyModel",
    "Link", "ModelSizes", "Performance", "PresetDocument", "ServerFacts", "Skew", "TimeTable", "as_builtins",
    "by_formula", "check", "decoded", "encoded", "from_builtins", "gpu_of", "idle_nj", "mfu", "pipelined", "preset",
    "preset_document", "rated_watts", "step_nj"
]  # fmt: skip
