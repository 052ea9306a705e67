"""How long a step takes: a linear model of a step, presets of known machines, and calibrated documents. Read `model`
first.
"""

from fairsched.model.latency.document import (
    EngineFacts,
    PresetError,
    as_builtins,
    decoded,
    encoded,
    from_builtins,
    preset_document,
)
from fairsched.model.latency.model import DecodePiece, LatencyModel
from fairsched.model.latency.performance import PROMPT_TOKENS, Performance
from fairsched.model.latency.presets import DEFAULT_PRESET, KV_BYTES, PRESETS

__all__ = [
    "DEFAULT_PRESET", "KV_BYTES", "PRESETS", "PROMPT_TOKENS", "DecodePiece", "EngineFacts", "LatencyModel",
    "Performance", "PresetError", "as_builtins", "decoded", "encoded", "from_builtins", "preset_document"
]  # fmt: skip
