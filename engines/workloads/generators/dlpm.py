"""The workloads of DLPM's evaluation: `long-context-qa`, `tree-of-thoughts`, `llm-judge` and `multi-turn`.

Source: DLPM (Cao et al., "Locality-aware Fair Scheduling in LLM Serving"), in which client 0 may send more requests
(S1) or longer prefixes (S2), and programs of the first three have Gamma arrivals.  Ours, where the paper gives no
figure and a function names no other source: lengths, rates, and the coefficient of variation.

The defaults hold more tokens (questions 1.1 million, trees 910 k with the longer prefix, articles 700 k) than either of
the paper's machines keeps (132 k and 427 k), so the order of service decides what is computed again.
"""

from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.workloads import sampling
from fairsched.model.request import Workload

DOCUMENT_SD_RATIO = 6_105 / 23_474

Few = Annotated[int, msgspec.Meta(ge=1, le=6)]

# fmt: off
ARENA_REQUESTS = (
    296, 262, 199, 120, 67, 66, 56, 46, 44, 43, 40, 36, 31, 26, 25, 23, 22, 22, 19, 19, 12, 11, 7, 3, 2, 2, 1,
)
# fmt: on
"""Requests of the arena workload's 27 clients in 600 s, busiest first."""

TURNS_MAX = 16


def long_context_qa(
    *,
    misbehave: sampling.Misbehave = "none",
    seed: int = 0,
    clients: sampling.Clients = 8,
    documents: Annotated[sampling.Number, sampling.about("documents of each client")] = 6,
    questions: Annotated[sampling.Number, sampling.about("questions a document, on average")] = 18,
    rate: Annotated[sampling.Rate, sampling.about("questions a second, of all well-behaved clients together")] = 4.0,
    arrivals: sampling.Arrivals = "gamma",
    cv: sampling.GapSpread = 2.0,
    document_tokens: Annotated[sampling.Size, sampling.about("mean length of a document")] = 23_474,
    question_tokens: Annotated[sampling.Size, sampling.about("mean length of a question")] = 64,
    output_tokens: Annotated[sampling.Size, sampling.about("length of every answer")] = 16,
    more_factor: Annotated[sampling.Number, sampling.about("more-requests: client 0's rate, times")] = 4,
    longer_factor: Annotated[sampling.Number, sampling.about("longer-prefix: client 0's documents, times")] = 2,
) -> Workload:
    """Return many short questions of each client about a few long documents of its own; programs of one call.

    `clients * documents * questions` requests, and more from a client that sends more.  Prompts of 23,474 tokens
    (standard deviation 6,105) and outputs of 16 are Preble's table of LooGLE, as are about 18 requests a document.
    Ours: a client's questions go to its documents uniformly at random, and how much more client 0 sends
    (S1: `more_factor` times the rate for the same time) or how much longer its documents are (S2: `longer_factor`).
    """
    programs: list[sampling.Program] = []
    for client in range(clients):
        rng, tokens = sampling.streams(seed, client)
        more = more_factor if client == 0 and misbehave == "more-requests" else 1
        longer = longer_factor if client == 0 and misbehave == "longer-prefix" else 1
        count = documents * questions * more
        drawn = rng.normal(document_tokens, DOCUMENT_SD_RATIO * document_tokens, size=documents)
        # Cut at a quarter and at 1.75 times the mean, so that no document outgrows a worker by chance.
        sizes = np.clip(np.rint(drawn), max(document_tokens // 4, 1), document_tokens * 7 // 4).astype(int).tolist()
        texts = [tokens.fresh(size * longer) for size in sizes]
        times = sampling.arrivals_ns(rng, arrivals, rate=rate / clients * more, count=count, cv=cv)
        asked = rng.integers(documents, size=count).tolist()
        asks = sampling.lengths(rng, count, mean=question_tokens, cv=0.3)
        programs += [
            sampling.Program(
                client,
                time,
                (sampling.LlmCall(sampling.prompt_of(texts[document], tokens.fresh(size)), output_tokens),),
            )
            for time, document, size in zip(times, asked, asks, strict=True)
        ]
    return sampling.workload_of("long-context-qa", programs, sampling.client_names(clients, misbehave), output_tokens)


def tree_of_thoughts(
    *,
    misbehave: sampling.Misbehave = "none",
    seed: int = 0,
    clients: sampling.Clients = 8,
    trees: Annotated[sampling.Number, sampling.about("trees of each client")] = 16,
    rate: Annotated[sampling.Rate, sampling.about("trees a second, of all clients together")] = 4.0,
    arrivals: sampling.Arrivals = "gamma",
    cv: sampling.GapSpread = 2.0,
    height: Annotated[Few, sampling.about("levels of a tree")] = 4,
    branches: Annotated[Few, sampling.about("thoughts tried at each node")] = 2,
    more_branches: Annotated[Few, sampling.about("more-requests: client 0's branches")] = 4,
    header_tokens: Annotated[sampling.Size, sampling.about("few-shot header that a client's trees share")] = 256,
    longer_header_tokens: Annotated[sampling.Size, sampling.about("longer-prefix: the same of client 0")] = 256,
    question_tokens: Annotated[sampling.Size, sampling.about("mean length of a question")] = 4_096,
    longer_question_tokens: Annotated[sampling.Size, sampling.about("longer-prefix: the same of client 0")] = 16_384,
    instruction_tokens: Annotated[sampling.Size, sampling.about("instruction between two levels")] = 32,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of a thought")] = 64,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest thought")] = 256,
) -> Workload:
    """Return programs that each explore a tree of thoughts; a thought is asked for when its parent is finished.

    `clients * trees` trees of `branches + ... + branches^height` requests.  From the paper: GSM8K questions, tree
    height 4, 2 branches (30 requests a tree) against 4 (340) for S1, and longer questions for S2.  Thoughts of at most
    256 tokens are SGLang's tree_of_thought_deep benchmark, as is the shape: siblings ask the same prompt, and a prompt
    is the client's header, the question, and on the way down each thought with the instruction that follows it.  A
    question here means GSM8K's with worked examples of its own, hence the length.  The default's 128 trees arrive
    faster than one worker serves them, so many unfinished trees compete for memory (docs/explanation/results.md).
    """
    programs: list[sampling.Program] = []
    for client in range(clients):
        rng, tokens = sampling.streams(seed, client)
        width = more_branches if client == 0 and misbehave == "more-requests" else branches
        longer = client == 0 and misbehave == "longer-prefix"
        question = longer_question_tokens if longer else question_tokens
        header = tokens.fresh(longer_header_tokens if longer else header_tokens)
        instructions = [tokens.fresh(instruction_tokens) for _ in range(height)]
        times = sampling.arrivals_ns(rng, arrivals, rate=rate / clients, count=trees, cv=cv)
        thoughts = sum(width**level for level in range(1, height + 1))
        for time, size in zip(times, sampling.lengths(rng, trees, mean=question, cv=0.2), strict=True):
            outputs = sampling.lengths(rng, thoughts, mean=output_tokens, cv=0.4, high=max_output_tokens)
            root = sampling.EMPTY_TEXT.then(header, tokens.fresh(size), instructions[0])
            programs.append(sampling.Program(client, time, tree(root, instructions, width, outputs, tokens)))
    return sampling.workload_of(
        "tree-of-thoughts", programs, sampling.client_names(clients, misbehave), max_output_tokens
    )


def tree(
    root: sampling.Text,
    instructions: list[sampling.Tokens],
    width: int,
    outputs: list[int],
    tokens: sampling.TokenSource,
) -> list[sampling.LlmCall]:
    """Return the calls of one tree, level by level; `outputs` has one length a call."""
    calls: list[sampling.LlmCall] = []
    # (place of the call that a history ends with, the history): what the next level's calls are asked with.
    level: list[tuple[tuple[int, ...], sampling.Text]] = [((), root)]
    for depth in range(len(instructions)):
        following: list[tuple[tuple[int, ...], sampling.Text]] = []
        for after, history in level:
            prompt = history.prompt()
            for _ in range(width):
                output = outputs[len(calls)]
                if depth + 1 < len(instructions):
                    extended = history.then(tokens.fresh(output), instructions[depth + 1])
                    following.append(((len(calls),), extended))
                calls.append(sampling.LlmCall(prompt, output, after))
        level = following
    return calls


def llm_judge(
    *,
    misbehave: sampling.Misbehave = "none",
    seed: int = 0,
    clients: sampling.Clients = 8,
    articles: Annotated[sampling.Number, sampling.about("articles of each client")] = 30,
    rate: Annotated[sampling.Rate, sampling.about("articles a second, of all clients together")] = 8.0,
    arrivals: sampling.Arrivals = "gamma",
    cv: sampling.GapSpread = 2.0,
    dimensions: Annotated[sampling.Number, sampling.about("dimensions judged")] = 2,
    more_dimensions: Annotated[sampling.Number, sampling.about("more-requests: client 0's dimensions")] = 16,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt that a client's calls share")] = 64,
    extra_tokens: Annotated[sampling.Size, sampling.about("longer-prefix: tokens before client 0's articles")] = 600,
    article_tokens: Annotated[sampling.Size, sampling.about("mean length of an article")] = 2_560,
    dimension_tokens: Annotated[sampling.Size, sampling.about("text of a dimension")] = 64,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of criteria and judgements")] = 96,
    verdict_tokens: Annotated[sampling.Size, sampling.about("length of every verdict")] = 2,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest output")] = 256,
) -> Workload:
    """Return articles judged by branch, solve and merge: criteria first, each dimension alone, then a verdict.

    `clients * articles` programs of `dimensions + 2` requests.  From the paper: branch-solve-merge over synthetic
    articles, 2 dimensions against 16 for S1, and 600 extra tokens before each article for S2 (ours: the same before
    each of client 0's).  Judgements of at most 256 tokens and a verdict of 2 are SGLang's llm_judge benchmark.

    All calls of a program share system prompt and article; a solving call adds its dimension's text, which a client's
    programs have in common, and the merge adds every judgement.
    """
    programs: list[sampling.Program] = []
    for client in range(clients):
        rng, tokens = sampling.streams(seed, client)
        asked = more_dimensions if client == 0 and misbehave == "more-requests" else dimensions
        extra = extra_tokens if client == 0 and misbehave == "longer-prefix" else 0
        system = tokens.fresh(system_tokens + extra)
        questions = [tokens.fresh(dimension_tokens) for _ in range(asked)]
        times = sampling.arrivals_ns(rng, arrivals, rate=rate / clients, count=articles, cv=cv)
        for time, size in zip(times, sampling.lengths(rng, articles, mean=article_tokens, cv=0.3), strict=True):
            outputs = sampling.lengths(rng, asked + 1, mean=output_tokens, cv=0.4, high=max_output_tokens)
            outputs.append(min(verdict_tokens, max_output_tokens))
            programs.append(
                sampling.Program(client, time, _judge([system, tokens.fresh(size)], questions, outputs, tokens))
            )
    return sampling.workload_of("llm-judge", programs, sampling.client_names(clients, misbehave), max_output_tokens)


def _judge(
    article: list[sampling.Tokens], questions: list[sampling.Tokens], outputs: list[int], tokens: sampling.TokenSource
) -> list[sampling.LlmCall]:
    """Branch, one call a question after it, and the merge after all of these."""
    criteria = [*article, tokens.fresh(outputs[0])]
    branch = sampling.LlmCall(sampling.prompt_of(*article), outputs[0])
    solve = [
        sampling.LlmCall(sampling.prompt_of(*criteria, question), output, after=(0,))
        for question, output in zip(questions, outputs[1:-1], strict=True)
    ]
    judgements = [tokens.fresh(output) for output in outputs[1:-1]]
    merge = sampling.LlmCall(
        sampling.prompt_of(*criteria, *judgements), outputs[-1], after=tuple(range(1, len(solve) + 1))
    )
    return [branch, *solve, merge]


def multi_turn(
    *,
    misbehave: sampling.Misbehave = "none",
    seed: int = 0,
    clients: Annotated[
        int, msgspec.Meta(ge=1, le=len(ARENA_REQUESTS), description="clients, the busiest of the arena's 27")
    ] = 10,
    sessions: Annotated[sampling.Number, sampling.about("chats in all (at least one a client)")] = 300,
    turns: Annotated[sampling.Number, sampling.about("mean turns of a chat (geometric, at most 16)")] = 4,
    rate: Annotated[sampling.Rate, sampling.about("chats a second, when no client sends more")] = 4.0,
    think_s: Annotated[sampling.Rate, sampling.about("mean time before the next turn, exponential")] = 10.0,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt that a client's chats share")] = 128,
    longer_system_tokens: Annotated[sampling.Size, sampling.about("longer-prefix: the same of client 0")] = 4_096,
    question_tokens: Annotated[sampling.Size, sampling.about("mean length of a turn's question")] = 136,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of an answer")] = 256,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest answer")] = 1_024,
    more_factor: Annotated[sampling.Number, sampling.about("more-requests: client 0's sessions, times")] = 4,
) -> Workload:
    """Return chats whose history grows; a turn is sent a while after the answer before it.

    About `sessions * turns` requests.  The paper takes Chatbot Arena chats with rescaled times and aggregated clients.
    The clients' shares and the mean lengths (136 tokens asked, 256 answered) are those of the VTC artifact's arena
    workload; its requests are single turns, so the number of turns, think times, the system prompt and the spreads are
    ours, as is how much more client 0 sends (S1: `more_factor` times the sessions in the same time) or how long its
    system prompt is (S2).  Sessions start uniformly over the same span for every client: Poisson arrivals, given how
    many there are.  The default takes the ten busiest clients, so that there is a time at which all of them are active.
    """
    names = sampling.client_names(clients, misbehave)
    total = sum(ARENA_REQUESTS[:clients])
    programs: list[sampling.Program] = []
    for client in range(clients):
        rng, tokens = sampling.streams(seed, client)
        more = more_factor if client == 0 and misbehave == "more-requests" else 1
        share = ARENA_REQUESTS[client] / total
        longer = client == 0 and misbehave == "longer-prefix"
        system = tokens.fresh(longer_system_tokens if longer else system_tokens)
        count = max(round(sessions * share), 1) * more
        for number, time in enumerate(sampling.uniform_ns(rng, span_s=sessions / rate, count=count)):
            length = min(int(rng.geometric(1 / turns)), TURNS_MAX)
            asked = sampling.lengths(rng, length, mean=question_tokens, cv=1.0)
            answered = sampling.lengths(rng, length, mean=output_tokens, cv=0.8, high=max_output_tokens)
            thought_ns = np.rint(rng.exponential(think_s * 1e9, size=length)).astype(np.int64).tolist()
            history = [system]
            calls: list[sampling.LlmCall] = []
            for turn in range(length):
                history.append(tokens.fresh(asked[turn]))
                after = (turn - 1,) if turn else ()
                calls.append(
                    sampling.LlmCall(
                        sampling.prompt_of(*history), answered[turn], after, thought_ns[turn] if turn else 0
                    )
                )
                history.append(tokens.fresh(answered[turn]))
            programs.append(sampling.Program(client, time, calls, session=f"{names[client]}/{number}"))
    return sampling.workload_of("multi-turn", programs, names, max_output_tokens)
