"""`azure-chat` and `azure-code`: requests without shared prefixes, with the lengths of Azure's traces, bursty arrivals.

Source of the lengths: Azure public dataset, LLM inference traces 2023, conversation and code (CC-BY 4.0): quantiles of
prompt tokens, and of output tokens.  Conversation outputs depend on prompts, so their quantiles are those of each
quarter of the prompts (means 114, 190, 408 and 129); code outputs do not (the correlation is 0.001).  Values between
two quantiles are equally likely.  Means come out 1 % and 3 % below the conversations' 1,155 and 211, and within 1 % of
the code's 2,048 and 27.9.

LARRY's paper puts such lengths on the arrivals of Azure's *Functions* traces, which we do not have: `functions` is a
stand-in of ours (`FUNCTIONS_MINUTE_SD` says what it is), `azure` has the conversation trace's own arrivals.
"""

from typing import Annotated

import attrs
import msgspec
import numpy as np

from fairsched.engines.workloads import sampling
from fairsched.model.request import Prompt, Workload

_Requests = Annotated[sampling.Requests, msgspec.Meta(description="requests")]
_Clients = Annotated[sampling.Number, msgspec.Meta(description="clients, who send in turn")]
_PerSecond = Annotated[sampling.Rate, msgspec.Meta(description="requests a second")]
_Declared = Annotated[sampling.Size, msgspec.Meta(description="declared limit of outputs")]


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
# fmt: on


def azure_chat(
    *,
    seed: int = 0,
    requests: _Requests = 6_000,
    clients: _Clients = 8,
    rate: _PerSecond = 5.5,
    arrivals: sampling.Arrivals = "functions",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
    max_output_tokens: _Declared = 1_000,
) -> Workload:
    """The workload of the conversations."""
    timing = sampling.Timing(rate, arrivals, cv, gaps)
    return _workload("azure-chat", CHAT, seed, requests, clients, timing, max_output_tokens)


def azure_code(
    *,
    seed: int = 0,
    requests: _Requests = 6_000,
    clients: _Clients = 8,
    rate: _PerSecond = 5.0,
    arrivals: sampling.Arrivals = "functions",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
    max_output_tokens: _Declared = 1_000,
) -> Workload:
    """The workload of the code completions."""
    timing = sampling.Timing(rate, arrivals, cv, gaps)
    return _workload("azure-code", CODE, seed, requests, clients, timing, max_output_tokens)


def _workload(
    name: str, lengths: _Lengths, seed: int, requests: int, clients: int, timing: sampling.Timing, most_output: int
) -> Workload:
    rng, _ = sampling.streams(seed, 0)
    prompts, outputs = lengths.draw(rng, requests, most_output)
    programs = [
        sampling.Program(number % clients, 0, (sampling.LlmCall(Prompt(prompt), output),))
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    return sampling.workload_of(name, timing.of(rng, programs), sampling.client_names(clients), most_output)
