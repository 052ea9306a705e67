"""Kinds of logs that are read without a map, told by their first lines.

Read `preset` first, then the files of the programs.  A new kind is a `Preset`, and its name in `PRESETS`.
"""

from collections.abc import Sequence

from fairsched.engines.logs.access.presets.benchmarks import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM,
    INFERENCE_PERF,
    LLMSERVINGSIM,
    VLLM_BENCH,
)
from fairsched.engines.logs.access.presets.engines import SGLANG_METRICS, SGLANG_REQUESTS, VLLM_SERVER
from fairsched.engines.logs.access.presets.preset import Preset, refused
from fairsched.engines.logs.access.presets.proxies import ENVOY_JSON, ENVOY_TEXT, NGINX_JSON, NGINX_TEXT
from fairsched.engines.logs.access.presets.telemetry import LITELLM, OTLP
from fairsched.engines.logs.access.rows import LogKind

__all__ = ["PRESETS", "recognise"]

PRESETS: tuple[Preset, ...] = (
    *(NGINX_TEXT, NGINX_JSON, ENVOY_TEXT, ENVOY_JSON, LITELLM),
    *(VLLM_SERVER, SGLANG_REQUESTS, SGLANG_METRICS, OTLP),
    *(VLLM_BENCH, LLMSERVINGSIM, AIPERF, GENAI_PERF, GUIDELLM, INFERENCE_PERF),
)
"""All kinds; at most one of them knows a log."""


def recognise(head: Sequence[str]) -> LogKind | None:
    """Return the kind of a log by its first lines; None for one that is not known."""
    return next((preset.kind() for preset in PRESETS if preset.knows(head)), None) or refused(head)
