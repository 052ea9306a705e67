"""A published profile becomes a latency model: lines through what the package answers."""

from typing import Any

import pytest

from fairsched.engines.calibration.performance_fit import from_aiconfigurator
from fairsched.model.machine import decoded, encoded, preset_document


class Answer:
    """What the package says of one shape, in milliseconds."""

    def __init__(self, ttft: float, tpot: float) -> None:
        self.ttft, self.tpot = ttft, tpot


def test_lines_go_through_what_the_package_answers() -> None:
    """Of a package that answers by lines, these are found, and what is asked for is named."""
    asked: list[dict[str, Any]] = []

    def estimate(model: str, system: str, **shape: Any) -> Answer:
        asked.append({"model": model, "system": system, **shape})
        if shape["mode"] == "static_ctx":
            return Answer(5.0 + 0.02 * shape["isl"], 0.0)
        return Answer(0.0, 6.0 + shape["batch_size"] * (0.05 + 20e-6 * (shape["isl"] + 1)))

    latency, fit = from_aiconfigurator(
        estimate, "Qwen/Qwen3-8B", "h100_sxm", kv_capacity_tokens=300_000, tensor_parallel=2
    )
    assert (latency.prefill_constant_ns, latency.prefill_token_ns) == (5_000_000, 20_000)
    piece = latency.decode[0]
    assert (piece.constant_ns, piece.request_ns, piece.context_token_ns) == (6_000_000, 50_000, 20)
    assert fit.decode.mean == pytest.approx(0, abs=1e-6)
    assert {(each["system"], each["tp_size"], each["backend_name"]) for each in asked} == {("h100_sxm", 2, "vllm")}
    assert decoded(encoded(preset_document(latency))).latency == latency
