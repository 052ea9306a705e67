"""`sharegpt`: lengths as of ShareGPT, all or one of TetriInfer's five classes of light and heavy phases.

ShareGPT is not at hand: lengths are log-normal with the means that the vLLM paper prints of it, 161 prompt and 338
output tokens; the coefficients of variation, 1.5 and 1, are ours, and both are cut at 1,024 tokens.  A class keeps
those that belong to it: a prompt of more than 512 tokens is heavy, and an output of more than 128 (the evaluation of
TetriInfer; its motivation says 512).  The mix has as many requests of each of the four classes.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np

from fairsched.engines.workloads import sampling
from fairsched.engines.workloads.errors import WorkloadError
from fairsched.model.request import Prompt, Workload

HEAVY_PROMPT, HEAVY_OUTPUT = 512, 128
"""A phase of more tokens is heavy."""
TOKENS = 1_024
"""The longest prompt, and the longest output."""
Phases = Literal["all", "LPLD", "LPHD", "HPLD", "HPHD", "mixed"]
"""Light or heavy prefill, and light or heavy decode; `all` are the lengths as they are drawn."""
_CLASSES = ("LPLD", "LPHD", "HPLD", "HPHD")


def sharegpt(
    *,
    seed: int = 0,
    phases: Annotated[Phases, msgspec.Meta(description="class of lengths, or a mix of all four")] = "all",
    requests: Annotated[sampling.Requests, msgspec.Meta(description="requests")] = 128,
    clients: Annotated[sampling.Number, msgspec.Meta(description="clients, who send in turn")] = 8,
    rate: Annotated[sampling.Rate, msgspec.Meta(description="requests a second")] = 4.0,
    arrivals: sampling.Arrivals = "poisson",
    cv: sampling.GapSpread = 1.0,
    gaps: sampling.Gaps = None,
    max_output_tokens: Annotated[sampling.Size, msgspec.Meta(description="declared limit of outputs")] = TOKENS,
    heavy_prompt: Annotated[sampling.Size, msgspec.Meta(description="a prompt of more tokens is heavy")] = HEAVY_PROMPT,
    heavy_output: Annotated[
        sampling.Size, msgspec.Meta(description="an output of more tokens is heavy")
    ] = HEAVY_OUTPUT,
) -> Workload:
    """The workload of one class, or of all."""
    rng, _ = sampling.streams(seed, 0)
    of_requests = [_CLASSES[number % 4] if phases == "mixed" else phases for number in range(requests)]
    if max(heavy_prompt, heavy_output) >= TOKENS:
        raise WorkloadError(f"workload sharegpt: no length is above {TOKENS}, so that none could be heavy")
    limits = heavy_prompt, heavy_output
    drawn = {name: _lengths(rng, name, limits, of_requests.count(name)) for name in dict.fromkeys(of_requests)}
    programs = []
    for number, name in enumerate(of_requests):
        prompt, output = drawn[name].pop()
        programs.append(
            sampling.Program(number % clients, 0, (sampling.LlmCall(Prompt(prompt), min(output, max_output_tokens)),))
        )
    order = rng.permutation(requests).tolist()
    timing = sampling.Timing(rate, arrivals, cv, gaps)
    mixed = [programs[place] for place in order]
    return sampling.workload_of("sharegpt", timing.of(rng, mixed), sampling.client_names(clients), max_output_tokens)


def _lengths(rng: np.random.Generator, phases: str, limits: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """Return (prompt, output) of so many requests of a class: those of many drawn that belong to it."""
    prompts: list[int] = []
    outputs: list[int] = []
    while min(len(prompts), len(outputs)) < count:
        drawn = sampling.lengths(rng, 1_024, mean=161.31, cv=1.5, low=4, high=TOKENS)
        prompts += _of_class(drawn, phases[0:2], limits[0])
        drawn = sampling.lengths(rng, 1_024, mean=337.99, cv=1.0, low=4, high=TOKENS)
        outputs += _of_class(drawn, phases[2:4], limits[1])
    return list(zip(prompts[:count], outputs[:count], strict=True))


def _of_class(drawn: list[int], weight: str, limit: int) -> list[int]:
    """Return the lengths that are light or heavy, or all."""
    if weight[0] not in "LH":
        return drawn
    return [tokens for tokens in drawn if (tokens > limit) is (weight[0] == "H")]
