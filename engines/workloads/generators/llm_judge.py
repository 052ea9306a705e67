"""`llm-judge`: an article is judged by branch, solve and merge: criteria first, each dimension alone, then a verdict.

Source: DLPM (Cao et al.), evaluation: branch-solve-merge over synthetic articles, Gamma arrivals of articles, 2
dimensions against 16 for a client that sends more, and 600 extra tokens before each article for S2.  Judgements of at
most 256 tokens and a verdict of 2 are SGLang's llm_judge benchmark.  Ours, where the paper gives no figure: all other
lengths, rates and the coefficient of variation; the 600 tokens are the same before each of client 0's articles.

All calls of a program share system prompt and article; a solving call adds its dimension's text, which a client's
programs have in common, and the merge adds every judgement.  The default 240 articles hold about 700 k tokens.
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.sampling import (
    Arrivals,
    Call,
    Clients,
    GapSpread,
    Misbehave,
    Number,
    Program,
    Rate,
    Size,
    Tokens,
    TokenSource,
    arrivals_ns,
    client_names,
    lengths,
    prompt_of,
    streams,
    workload_of,
)
from fairsched.model.request import Workload


def llm_judge(
    *,
    misbehave: Misbehave = "none",
    seed: int = 0,
    clients: Clients = 8,
    articles: Annotated[Number, msgspec.Meta(description="articles of each client")] = 30,
    rate: Annotated[Rate, msgspec.Meta(description="articles a second, of all clients together")] = 8.0,
    arrivals: Arrivals = "gamma",
    cv: GapSpread = 2.0,
    dimensions: Annotated[Number, msgspec.Meta(description="dimensions judged")] = 2,
    more_dimensions: Annotated[Number, msgspec.Meta(description="more-requests: client 0's dimensions")] = 16,
    system_tokens: Annotated[Size, msgspec.Meta(description="system prompt that a client's calls share")] = 64,
    extra_tokens: Annotated[Size, msgspec.Meta(description="longer-prefix: tokens before client 0's articles")] = 600,
    article_tokens: Annotated[Size, msgspec.Meta(description="mean length of an article")] = 2_560,
    dimension_tokens: Annotated[Size, msgspec.Meta(description="text of a dimension")] = 64,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of criteria and judgements")] = 96,
    verdict_tokens: Annotated[Size, msgspec.Meta(description="length of every verdict")] = 2,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest output")] = 256,
) -> Workload:
    """The workload; `clients * articles` programs of `dimensions + 2` requests."""
    programs: list[Program] = []
    for client in range(clients):
        rng, tokens = streams(seed, client)
        asked = more_dimensions if client == 0 and misbehave == "more-requests" else dimensions
        extra = extra_tokens if client == 0 and misbehave == "longer-prefix" else 0
        system = tokens.fresh(system_tokens + extra)
        questions = [tokens.fresh(dimension_tokens) for _ in range(asked)]
        times = arrivals_ns(rng, arrivals, rate=rate / clients, count=articles, cv=cv)
        for time, size in zip(times, lengths(rng, articles, mean=article_tokens, cv=0.3), strict=True):
            outputs = lengths(rng, asked + 1, mean=output_tokens, cv=0.4, high=max_output_tokens)
            outputs.append(min(verdict_tokens, max_output_tokens))
            programs.append(Program(client, time, _judge([system, tokens.fresh(size)], questions, outputs, tokens)))
    return workload_of(
        "llm-judge", programs, names=client_names(clients, misbehave), max_output_tokens=max_output_tokens
    )


def _judge(article: list[Tokens], questions: list[Tokens], outputs: list[int], tokens: TokenSource) -> list[Call]:
    """Branch, one call a question after it, and the merge after all of these."""
    criteria = [*article, tokens.fresh(outputs[0])]
    branch = Call(prompt_of(*article), outputs[0])
    solve = [
        Call(prompt_of(*criteria, question), output, after=(0,))
        for question, output in zip(questions, outputs[1:-1], strict=True)
    ]
    judgements = [tokens.fresh(output) for output in outputs[1:-1]]
    merge = Call(prompt_of(*criteria, *judgements), outputs[-1], after=tuple(range(1, len(solve) + 1)))
    return [branch, *solve, merge]
