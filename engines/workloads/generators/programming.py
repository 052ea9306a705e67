"""`programming`: programs are searched for as trees of partial solutions, each asked for after its parent.

Source: Preble (Srivatsa et al., ICLR'25), Table 1: prompts of 3,871 tokens (standard deviation 1,656), outputs of 190,
97 % of prompt tokens shared with earlier prompts, 126 requests that share a key portion.  We take the key portion to be
a problem's statement and its 126 requests a tree of two attempts at each node, six levels deep: 2 + 4 + ... + 64.
Siblings ask the same prompt, so only every other request brings new tokens, its parent's output.

Ours, where the paper gives no figure: that shape, the header with examples that all problems share, the spread of
outputs, the number of problems, and clients, who have the problems in turn.
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.generators.tree_of_thoughts import Few, tree
from fairsched.engines.workloads.sampling import (
    EMPTY_TEXT,
    Arrivals,
    Clients,
    Gaps,
    GapSpread,
    Number,
    Program,
    RequestRate,
    Size,
    Timing,
    client_names,
    lengths,
    spread_lengths,
    streams,
    workload_of,
)
from fairsched.model.request import Workload


def programming(
    *,
    seed: int = 0,
    problems: Annotated[Number, msgspec.Meta(description="problems")] = 24,
    height: Annotated[Few, msgspec.Meta(description="levels of a problem's tree")] = 6,
    branches: Annotated[Few, msgspec.Meta(description="attempts at each node")] = 2,
    clients: Clients = 8,
    rate: RequestRate = "auto",
    arrivals: Arrivals = "poisson",
    cv: GapSpread = 2.0,
    gaps: Gaps = None,
    header_tokens: Annotated[Size, msgspec.Meta(description="header that all problems share")] = 256,
    problem_tokens: Annotated[Size, msgspec.Meta(description="mean length of a problem's statement")] = 2_796,
    problem_sd_tokens: Annotated[Size, msgspec.Meta(description="standard deviation of the same")] = 1_638,
    instruction_tokens: Annotated[Size, msgspec.Meta(description="instruction between two levels")] = 10,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of an attempt")] = 190,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest attempt")] = 1_024,
) -> Workload:
    """The workload; `problems` trees of `branches + ... + branches^height` requests."""
    rng, tokens = streams(seed, 0)
    header = EMPTY_TEXT.then(tokens.fresh(header_tokens))
    instructions = [tokens.fresh(instruction_tokens) for _ in range(height)]
    attempts = sum(branches**level for level in range(1, height + 1))
    sizes = spread_lengths(rng, [1] * problems, mean=problem_tokens, sd=problem_sd_tokens, low=header_tokens + 32)
    programs: list[Program] = []
    for number, size in enumerate(sizes):
        outputs = lengths(rng, attempts, mean=output_tokens, cv=0.5, high=max_output_tokens)
        root = header.then(tokens.fresh(size), instructions[0])
        programs.append(Program(number % clients, 0, tree(root, instructions, branches, outputs, tokens)))
    return workload_of(
        "programming",
        Timing(rate, arrivals, cv, gaps).of(rng, programs),
        names=client_names(clients, "none"),
        max_output_tokens=max_output_tokens,
    )
