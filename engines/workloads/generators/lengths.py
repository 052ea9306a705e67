"""`azure-chat`, `azure-code`, `arxiv` and `sharegpt`: requests without shared prefixes, with the lengths of traces.

Source of the first two: Azure public dataset, LLM inference traces 2023, conversation and code (CC-BY 4.0): quantiles
of prompt tokens, and of output tokens.  Conversation outputs depend on prompts, so their quantiles are those of each
quarter of the prompts (means 114, 190, 408 and 129); code outputs do not (the correlation is 0.001).  Values between
two quantiles are equally likely.  Means come out 1 % and 3 % below the conversations' 1,155 and 211, and within 1 % of
the code's 2,048 and 27.9.

`arxiv`: quantiles of the 28,257 summaries of papers with at most 4,096 tokens in all that Vidur publishes
(data/processed_traces, MIT), of outputs by quarter of the prompts too.

LARRY's paper puts such lengths on the arrivals of Azure's *Functions* traces, which we do not have: `functions` is a
stand-in of ours (`FUNCTIONS_MINUTE_SD` says what it is), `azure` has the conversation trace's own arrivals.

`sharegpt`: lengths as of ShareGPT, all or one of TetriInfer's five classes of light and heavy phases.

ShareGPT is not at hand: lengths are log-normal with the means that the vLLM paper prints of it, 161 prompt and 338
output tokens; the coefficients of variation, 1.5 and 1, are ours, and both are cut at 1,024 tokens.  A class keeps
those that belong to it: a prompt of more than 512 tokens is heavy, and an output of more than 128 (the evaluation of
TetriInfer; its motivation says 512).  The mix has as many requests of each of the four classes.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import attrs
import numpy as np

from fairsched.engines.workloads import sampling
from fairsched.engines.workloads.errors import WorkloadError
from fairsched.model.request import Prompt, Workload

_Requests = Annotated[sampling.Requests, sampling.about("requests")]
_Clients = Annotated[sampling.Number, sampling.about("clients, who send in turn")]
_PerSecond = Annotated[sampling.Rate, sampling.about("requests a second")]
_Declared = Annotated[sampling.Size, sampling.about("declared limit of outputs")]


@attrs.frozen
class _Lengths:
    """Quantiles of a trace: of its prompts, and of the outputs of each equal part of them, the shortest first."""

    prompt_tokens: tuple[int, ...]
    output_percents: tuple[float, ...]
    output_tokens: tuple[tuple[int, ...], ...]

    def draw(self, rng: np.random.Generator, count: int, most_output: int) -> tuple[list[int], list[int]]:
        """Return prompt and output tokens of so many requests."""
        percents = rng.uniform(0, PROMPT_PERCENTS[-1], size=count)
        prompts = np.rint(np.interp(percents, PROMPT_PERCENTS, self.prompt_tokens)).astype(np.int64)
        last = len(self.output_tokens) - 1
        parts = np.minimum(percents * len(self.output_tokens) // 100, last).astype(np.int64)
        places = rng.uniform(0, self.output_percents[-1], size=count)
        drawn = np.stack([np.interp(places, self.output_percents, tokens) for tokens in self.output_tokens])
        outputs = np.minimum(np.rint(drawn[parts, np.arange(count)]).astype(np.int64), most_output)
        return prompts.tolist(), outputs.tolist()


# fmt: off
PROMPT_PERCENTS = (0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99, 99.9)
CHAT = _Lengths(
    (2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020,
     1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083, 4142, 6179),
    (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99),
    (
        (7, 18, 49, 66, 78, 88, 98, 116, 146, 168, 204, 217, 254),
        (10, 72, 82, 89, 94, 100, 108, 123, 158, 395, 414, 436, 565),
        (28, 121, 375, 389, 396, 398, 406, 414, 423, 434, 496, 559, 664),
        (15, 35, 41, 50, 61, 74, 89, 108, 136, 169, 343, 408, 516),
    ),
)
CODE = _Lengths(
    (3, 75, 147, 232, 386, 578, 770, 939, 1075, 1261, 1469,
     1690, 1909, 2164, 2433, 2744, 3192, 3920, 5188, 7303, 7436, 7437),
    (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9),
    ((6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 171, 251, 359, 825),),
)
ARXIV = _Lengths(
    (1, 748, 1242, 1564, 1802, 1986, 2150, 2308, 2453, 2596, 2730,
     2861, 2996, 3127, 3249, 3370, 3490, 3597, 3702, 3813, 3933, 4011),
    (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99),
    (
        (5, 58, 77, 105, 127, 152, 181, 216, 278, 475, 2506, 3109, 3739),
        (11, 58, 75, 100, 121, 141, 163, 186, 213, 253, 328, 412, 813),
        (11, 63, 81, 106, 127, 148, 169, 193, 220, 260, 329, 406, 691),
        (12, 63, 81, 106, 124, 142, 161, 182, 206, 238, 290, 341, 449),
    ),
)
# fmt: on


def _of_trace(
    name: str, lengths: _Lengths, usual_rate: float, usual_arrivals: sampling.Arrivals, longest: int
) -> Callable[..., Workload]:
    """Return the generator of requests with the lengths of a trace."""

    def make(
        *,
        seed: int = 0,
        requests: _Requests = 6_000,
        clients: _Clients = 8,
        rate: _PerSecond = usual_rate,
        arrivals: sampling.Arrivals = usual_arrivals,
        cv: sampling.GapSpread = 2.0,
        gaps: sampling.Gaps = None,
        max_output_tokens: _Declared = longest,
    ) -> Workload:
        rng, _ = sampling.streams(seed, 0)
        prompts, outputs = lengths.draw(rng, requests, max_output_tokens)
        programs = [
            sampling.Program(number % clients, 0, (sampling.LlmCall(Prompt(prompt), output),))
            for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        timing = sampling.Timing(rate, arrivals, cv, gaps).of(rng, programs)
        return sampling.workload_of(name, timing, sampling.client_names(clients), max_output_tokens)

    return make


azure_chat = _of_trace("azure-chat", CHAT, 5.5, "functions", 1_000)
azure_code = _of_trace("azure-code", CODE, 5.0, "functions", 1_000)
arxiv = _of_trace("arxiv", ARXIV, 1.0, "poisson", 4_096)

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
    phases: Annotated[Phases, sampling.about("class of lengths, or a mix of all four")] = "all",
    requests: _Requests = 128,
    clients: _Clients = 8,
    rate: _PerSecond = 4.0,
    arrivals: sampling.Arrivals = "poisson",
    cv: sampling.GapSpread = 1.0,
    gaps: sampling.Gaps = None,
    max_output_tokens: _Declared = TOKENS,
    heavy_prompt: Annotated[sampling.Size, sampling.about("a prompt of more tokens is heavy")] = HEAVY_PROMPT,
    heavy_output: Annotated[sampling.Size, sampling.about("an output of more tokens is heavy")] = HEAVY_OUTPUT,
) -> Workload:
    """Return the workload of one class, or of all."""
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
