"""Published profiles as a latency model: AIConfigurator's tables, read through the package where it is installed.

`aiconfigurator` and its tables are under Apache-2.0.  The tables are times of single operations (matrix products,
attention, communication), which the package itself puts together to the time of a step; it is asked for prompts and
batches of several sizes, and lines are drawn through its answers.
"""

from collections.abc import Callable
from typing import Any

from fairsched.engines.calibration.performance_fit import Iteration, PerformanceFit, fit_performance
from fairsched.model.latency import DecodePiece, LatencyModel

PROMPTS = (128, 512, 1024, 2048, 4096)
BATCHES = (1, 4, 16, 64)
CONTEXTS = (512, 2048)
"""What is asked for: prompts alone, and batches that decode over so much context each."""

Estimate = Callable[..., Any]
"""`aiconfigurator.cli.api.cli_estimate`, or what answers like it: `ttft` and `tpot` in milliseconds."""


def from_aiconfigurator(
    estimate: Estimate,
    model: str,
    system: str,
    *,
    kv_capacity_tokens: int,
    backend: str = "vllm",
    tensor_parallel: int = 1,
) -> tuple[LatencyModel, PerformanceFit]:
    """Return the latency model of a published profile, and what its lines miss of the profile.

    `model` and `system` are AIConfigurator's names, as "Qwen/Qwen3-8B" and "h100_sxm"; a worker has `tensor_parallel`
    GPUs and room for `kv_capacity_tokens`.  `estimate` is the package's `cli_estimate`, since it is not imported here.
    """
    asked: dict[str, Any] = {"backend_name": backend, "tp_size": tensor_parallel, "osl": 2}
    iterations = []
    for tokens in PROMPTS:
        answer = estimate(model, system, mode="static_ctx", batch_size=1, isl=tokens, **asked)
        iterations.append(Iteration(1e6 * answer.ttft, prompts=(tokens,)))
    for batch in BATCHES:
        for context in CONTEXTS:
            answer = estimate(model, system, mode="static_gen", batch_size=batch, isl=context, **asked)
            iterations.append(Iteration(1e6 * answer.tpot, batch=batch, context_tokens=batch * (context + 1)))
    fit = fit_performance(iterations)
    lines = fit.performance
    latency = LatencyModel(
        name=f"{model.rpartition('/')[2].lower()}-{system}-tp{tensor_parallel}",
        source=f"AIConfigurator's tables of {model} on {system}, {backend}, {tensor_parallel} GPUs a worker",
        prefill_constant_ns=max(lines.prefill_constant_ns, 1),
        prefill_token_ns=lines.prefill_token_ns,
        prefill_attention_ps=0,
        decode=(DecodePiece(1, max(lines.decode_constant_ns, 1), lines.context_token_ns, lines.request_ns),),
        kv_capacity_tokens=kv_capacity_tokens,
        gpus=tensor_parallel,
    )
    return latency, fit
