"""How long a step takes: a linear model of a step, pipelines, presets of known machines, accelerators, and
calibrated documents. Read `model` first.
"""

from fairsched.model.machine.document import (
    EngineFacts,
    PresetDocument,
    PresetError,
    ServerFacts,
    as_builtins,
    decoded,
    encoded,
    from_builtins,
    preset_document,
)
from fairsched.model.machine.gpus import GPUS, gpu_of, mfu
from fairsched.model.machine.kernels import (
    AllReduce,
    AttentionFormula,
    AttentionTable,
    HostTime,
    Kernels,
    Skew,
    Table,
)
from fairsched.model.machine.model import (
    NOT_VALIDATED,
    PROMPT_TOKENS,
    DecodePiece,
    LatencyModel,
    Performance,
    pipelined,
)
from fairsched.model.machine.presets import DEFAULT_PRESET, KV_BYTES, PRESETS

__all__ = [
    "DEFAULT_PRESET", "GPUS", "KV_BYTES", "NOT_VALIDATED", "PRESETS", "PROMPT_TOKENS", "AllReduce", "AttentionFormula",
    "AttentionTable", "DecodePiece", "EngineFacts", "HostTime", "Kernels", "LatencyModel", "Performance",
    "PresetDocument", "PresetError", "ServerFacts", "Skew", "Table", "as_builtins", "decoded", "encoded",
    "from_builtins", "gpu_of", "mfu", "pipelined", "preset_document"
]  # fmt: skip
