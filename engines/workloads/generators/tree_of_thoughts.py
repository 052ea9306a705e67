"""`tree-of-thoughts`: a program explores a tree of thoughts; a thought is asked for when its parent is finished.

Source: DLPM (Cao et al.), evaluation: GSM8K questions, tree height 4, Gamma arrivals of trees, 2 branches (30
requests a tree) against 4 (340) for a client that sends more, and longer questions for S2.  Thoughts of at most 256
tokens are SGLang's tree_of_thought_deep benchmark, as is the shape: siblings ask the same prompt, and a prompt is the
client's header, the question, and on the way down each thought with the instruction that follows it.  Ours, where the
paper gives no figure: all other lengths, rates and the coefficient of variation.  A question here means GSM8K's with
worked examples of its own, hence the length.

The default's 128 trees hold about 910 k tokens with the longer prefix, which is more than either of the paper's
machines keeps (132 k and 427 k), and they arrive faster than one worker serves them.  So many unfinished trees compete
for memory, and the order of service decides what is computed again (docs/explanation/results.md).
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.sampling import (
    EMPTY_TEXT,
    Arrivals,
    Call,
    Clients,
    GapSpread,
    Misbehave,
    Number,
    Program,
    Rate,
    Size,
    Text,
    Tokens,
    TokenSource,
    arrivals_ns,
    client_names,
    lengths,
    streams,
    workload_of,
)
from fairsched.model.request import Workload

Few = Annotated[int, msgspec.Meta(ge=1, le=6)]


def tree_of_thoughts(
    *,
    misbehave: Misbehave = "none",
    seed: int = 0,
    clients: Clients = 8,
    trees: Annotated[Number, msgspec.Meta(description="trees of each client")] = 16,
    rate: Annotated[Rate, msgspec.Meta(description="trees a second, of all clients together")] = 4.0,
    arrivals: Arrivals = "gamma",
    cv: GapSpread = 2.0,
    height: Annotated[Few, msgspec.Meta(description="levels of a tree")] = 4,
    branches: Annotated[Few, msgspec.Meta(description="thoughts tried at each node")] = 2,
    more_branches: Annotated[Few, msgspec.Meta(description="more-requests: client 0's branches")] = 4,
    header_tokens: Annotated[Size, msgspec.Meta(description="few-shot header that a client's trees share")] = 256,
    question_tokens: Annotated[Size, msgspec.Meta(description="mean length of a question")] = 4_096,
    longer_question_tokens: Annotated[Size, msgspec.Meta(description="longer-prefix: the same of client 0")] = 16_384,
    instruction_tokens: Annotated[Size, msgspec.Meta(description="instruction between two levels")] = 32,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of a thought")] = 64,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest thought")] = 256,
) -> Workload:
    """The workload; `clients * trees` trees of `branches + ... + branches^height` requests."""
    programs: list[Program] = []
    for client in range(clients):
        rng, tokens = streams(seed, client)
        width = more_branches if client == 0 and misbehave == "more-requests" else branches
        question = longer_question_tokens if client == 0 and misbehave == "longer-prefix" else question_tokens
        header = tokens.fresh(header_tokens)
        instructions = [tokens.fresh(instruction_tokens) for _ in range(height)]
        times = arrivals_ns(rng, arrivals, rate=rate / clients, count=trees, cv=cv)
        thoughts = sum(width**level for level in range(1, height + 1))
        for time, size in zip(times, lengths(rng, trees, mean=question, cv=0.2), strict=True):
            outputs = lengths(rng, thoughts, mean=output_tokens, cv=0.4, high=max_output_tokens)
            root = EMPTY_TEXT.then(header, tokens.fresh(size), instructions[0])
            programs.append(Program(client, time, tree(root, instructions, width, outputs, tokens)))
    return workload_of(
        "tree-of-thoughts", programs, names=client_names(clients, misbehave), max_output_tokens=max_output_tokens
    )


def tree(root: Text, instructions: list[Tokens], width: int, outputs: list[int], tokens: TokenSource) -> list[Call]:
    """The calls of one tree, level by level; `outputs` has one length a call."""
    calls: list[Call] = []
    # (place of the call that a history ends with, the history): what the next level's calls are asked with.
    level: list[tuple[tuple[int, ...], Text]] = [((), root)]
    for depth in range(len(instructions)):
        following: list[tuple[tuple[int, ...], Text]] = []
        for after, history in level:
            prompt = history.prompt()
            for _ in range(width):
                output = outputs[len(calls)]
                if depth + 1 < len(instructions):
                    extended = history.then(tokens.fresh(output), instructions[depth + 1])
                    following.append(((len(calls),), extended))
                calls.append(Call(prompt, output, after))
        level = following
    return calls
