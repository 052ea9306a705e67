"""`azure-chat`: requests without shared prefixes, with the lengths of Azure's conversation trace and bursty arrivals.

Source of the lengths: Azure public dataset, LLM inference trace 2023, conversation (CC-BY 4.0): its quantiles of prompt
tokens, and those of output tokens for each quarter of the prompts, since outputs depend on prompts (means 114, 190, 408
and 129).  Values between two quantiles are equally likely.  The means come out 1 % and 3 % below the trace's 1,155 and
211.

LARRY's paper puts such lengths on the arrivals of Azure's *Functions* traces, which we do not have: `functions` is a
stand-in of ours (`arrivals`), `azure` has the conversation trace's own.
"""

from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.workloads.sampling import (
    Arrivals,
    Call,
    Gaps,
    GapSpread,
    Number,
    Program,
    Rate,
    Size,
    Timing,
    client_names,
    streams,
    workload_of,
)
from fairsched.model.request import Prompt, Workload

# fmt: off
PROMPT_PERCENTS = (0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99, 99.9)
PROMPT_TOKENS = (
    2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020,
    1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083, 4142, 6179,
)
OUTPUT_PERCENTS = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
OUTPUT_TOKENS = (
    (7, 18, 49, 66, 78, 88, 98, 116, 146, 168, 204, 217, 254),
    (10, 72, 82, 89, 94, 100, 108, 123, 158, 395, 414, 436, 565),
    (28, 121, 375, 389, 396, 398, 406, 414, 423, 434, 496, 559, 664),
    (15, 35, 41, 50, 61, 74, 89, 108, 136, 169, 343, 408, 516),
)
# fmt: on
"""Output quantiles of each quarter of the prompts, the shortest first."""


def azure_chat(
    *,
    seed: int = 0,
    requests: Annotated[Number, msgspec.Meta(description="requests")] = 6_000,
    clients: Annotated[Number, msgspec.Meta(description="clients, who send in turn")] = 8,
    rate: Annotated[Rate, msgspec.Meta(description="requests a second")] = 5.5,
    arrivals: Arrivals = "functions",
    cv: GapSpread = 2.0,
    gaps: Gaps = None,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="declared limit of outputs")] = 1_000,
) -> Workload:
    """The workload."""
    rng, _ = streams(seed, 0)
    percents = rng.uniform(0, PROMPT_PERCENTS[-1], size=requests)
    prompts = np.rint(np.interp(percents, PROMPT_PERCENTS, PROMPT_TOKENS)).astype(np.int64)
    quarters = np.minimum(percents // 25, 3).astype(np.int64)
    places = rng.uniform(0, OUTPUT_PERCENTS[-1], size=requests)
    drawn = np.stack([np.interp(places, OUTPUT_PERCENTS, tokens) for tokens in OUTPUT_TOKENS])
    outputs = np.minimum(np.rint(drawn[quarters, np.arange(requests)]).astype(np.int64), max_output_tokens)
    programs = [
        Program(number % clients, 0, (Call(Prompt(prompt), output),))
        for number, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True))
    ]
    timed = Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return workload_of("azure-chat", timed, client_names(clients), max_output_tokens)
