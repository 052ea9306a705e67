"""Preble's data sets: `toolbench`, `video-qa` and `loogle` (questions about documents), `agent` and `programming`.

Source: Preble (Srivatsa et al., ICLR'25), Table 1, which gives for each data set the mean and standard deviation of
prompts, the mean of outputs, the share of prompt tokens that earlier prompts had (an infinite cache), and how many
requests share a key portion: the tool's instructions, the video, the document, the task's description, the problem.

             prompt tokens    output   shared   sharers   mean question (ours, from the rest of the row)
toolbench    1,835 (742)          43     85 %        39   230
video-qa     9,865 (5,976)         4     88 %       8.6    33
loogle      23,474 (6,105)        16     91 %        18   849
agent        2,285 (471)          16     97 %        48
programming  3,871 (1,656)       190     97 %       126

Ours, where the paper gives no figure: system prompts and headers, spreads of all but prompts, numbers of documents,
tasks and problems, and clients, which have the tasks and problems in turn.
"""

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np

from fairsched.engines.workloads.generators.dlpm import Few, tree
from fairsched.engines.workloads.sampling import (
    EMPTY_TEXT,
    Arrivals,
    Call,
    Clients,
    Gaps,
    GapSpread,
    Number,
    Program,
    Rate,
    RequestRate,
    Size,
    Timing,
    client_names,
    lengths,
    spread_lengths,
    streams,
    workload_of,
    zipf_counts,
)
from fairsched.model.request import Workload

QUESTION_CV = 0.2
"""Spread of questions' lengths, relative to their mean (ours)."""

Exponent = Annotated[float, msgspec.Meta(ge=0, le=5)]


def questions(
    name: str,
    *,
    seed: int = 0,
    documents: Annotated[Number, msgspec.Meta(description="tools, videos or documents")],
    sharers: Annotated[Rate, msgspec.Meta(description="mean requests about each, where `requests` is not given")],
    requests: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None, msgspec.Meta(description="requests in all")
    ] = None,
    zipf: Annotated[Exponent, msgspec.Meta(description="exponent of the documents' popularity, 0 for equal")] = 0.0,
    live: Annotated[
        Number | None, msgspec.Meta(description="documents that are asked about at any one time, null for all")
    ] = None,
    clients: Clients = 8,
    owners: Annotated[
        Literal["everybody", "one"], msgspec.Meta(description="owner of a document: every client or one")
    ] = "one",
    rate: RequestRate = "auto",
    arrivals: Arrivals = "poisson",
    cv: GapSpread = 2.0,
    gaps: Gaps = None,
    system_tokens: Annotated[Size, msgspec.Meta(description="system prompt that all requests share")] = 16,
    prompt_tokens: Annotated[Size, msgspec.Meta(description="mean length of a prompt")],
    prompt_sd_tokens: Annotated[Size, msgspec.Meta(description="standard deviation of prompts' lengths")],
    question_tokens: Annotated[Size, msgspec.Meta(description="mean length of a question")],
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of an output")],
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest output")],
) -> Workload:
    """Return many questions about each of some documents; `documents * sharers` unless `requests` says otherwise.

    A prompt is a system prompt that all share, the document, and a question of its own.  What is shared is all that
    is not new, the question and the document's first time, so the table's share fixes the question's length.
    Popularity follows Zipf's law, with Preble's 1.1 for tools (its ablation) and 0 for videos and documents.

    Ours: tools belong to all clients, a video or document to the client that asks about it.  So is `live`: a video or
    document is asked about for a while, and at any time (but the beginning and the end) 32 videos of 315 k tokens or 12
    documents of 282 k are.  That is more than one worker of the default latency model keeps (132 k) and less than four
    do.  If all were always asked about, no cluster of a few workers would keep anything.
    """
    rng, tokens = streams(seed, 0)
    counts = zipf_counts(requests or max(round(documents * sharers), documents), documents, zipf)
    total = sum(counts)
    asks = lengths(rng, total, mean=question_tokens, cv=QUESTION_CV)
    system = EMPTY_TEXT.then(tokens.fresh(system_tokens))
    document_sd = max(prompt_sd_tokens**2 - (QUESTION_CV * question_tokens) ** 2, 1.0) ** 0.5
    # A document is the key portion: longer than the system prompt before it, and the two longer than the question.
    document_mean = max(prompt_tokens - system_tokens - question_tokens, system_tokens + 1)
    least = max(system_tokens + 32, 2 * question_tokens - system_tokens)
    sizes = spread_lengths(rng, counts, mean=document_mean, sd=document_sd, low=least)
    texts = [system.then(tokens.fresh(size)) for size in sizes]
    answers = lengths(rng, total, mean=output_tokens, cv=0.4, high=max_output_tokens)
    asked = np.repeat(np.arange(documents), counts)
    # When it is asked about: anywhere, or within the stretch in which `live` documents before it began.
    places = rng.uniform(size=total) if live is None else asked + rng.uniform(0, live, size=total)
    asked = asked[np.argsort(places)].tolist()
    senders = rng.integers(clients, size=total).tolist() if owners == "everybody" else [d % clients for d in asked]
    programs = [
        Program(client, 0, (Call(texts[document].then(tokens.fresh(size)).prompt(), answer),))
        for client, document, size, answer in zip(senders, asked, asks, answers, strict=True)
    ]
    note = f"{total:,} requests about {documents:,} documents: {total / documents:.3g} each on average."
    timed = Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return workload_of(name, timed, client_names(clients), max_output_tokens, notes=(note,))


toolbench = partial(
    questions,
    "toolbench",
    documents=60,
    sharers=39.0,
    zipf=1.1,
    owners="everybody",
    system_tokens=160,
    prompt_tokens=1_835,
    prompt_sd_tokens=742,
    question_tokens=230,
    output_tokens=43,
    max_output_tokens=256,
)

video_qa = partial(
    questions,
    "video-qa",
    documents=200,
    sharers=8.6,
    live=32,
    prompt_tokens=9_865,
    prompt_sd_tokens=5_976,
    question_tokens=33,
    output_tokens=4,
    max_output_tokens=16,
)

loogle = partial(
    questions,
    "loogle",
    documents=64,
    sharers=18.0,
    live=12,
    prompt_tokens=23_474,
    prompt_sd_tokens=6_105,
    question_tokens=849,
    output_tokens=16,
    max_output_tokens=64,
)


def agent(
    *,
    seed: int = 0,
    tasks: Annotated[Number, msgspec.Meta(description="tasks")] = 200,
    steps: Annotated[Number, msgspec.Meta(description="mean steps of a task")] = 48,
    clients: Clients = 8,
    rate: RequestRate = "auto",
    arrivals: Arrivals = "poisson",
    cv: GapSpread = 2.0,
    gaps: Gaps = None,
    system_tokens: Annotated[Size, msgspec.Meta(description="system prompt that all tasks share")] = 128,
    task_tokens: Annotated[Size, msgspec.Meta(description="mean length of a task's description")] = 1_430,
    task_sd_tokens: Annotated[Size, msgspec.Meta(description="standard deviation of the same")] = 120,
    observation_tokens: Annotated[Size, msgspec.Meta(description="mean length of what is observed after a step")] = 14,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of an action")] = 16,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest action")] = 64,
) -> Workload:
    """Return an embodied agent's tasks: each step repeats the whole history and adds an action and what was observed.

    About `tasks * steps` requests.  A task has 48 steps, and the spread of lengths is the growth from step to step: 30
    tokens, of which 16 are the step's output.  A step is sent when the one before it has finished.
    """
    rng, tokens = streams(seed, 0)
    counts = spread_lengths(rng, [1] * tasks, mean=steps, sd=steps / 6)
    sizes = spread_lengths(rng, counts, mean=task_tokens, sd=task_sd_tokens, low=system_tokens + 32)
    system = EMPTY_TEXT.then(tokens.fresh(system_tokens))
    programs: list[Program] = []
    for number, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        actions = lengths(rng, count, mean=output_tokens, cv=0.4, high=max_output_tokens)
        seen = lengths(rng, count, mean=observation_tokens, cv=0.4)
        history = system.then(tokens.fresh(size))
        calls: list[Call] = []
        for step in range(count):
            calls.append(Call(history.prompt(), actions[step], (step - 1,) if step else ()))
            history = history.then(tokens.fresh(actions[step] + seen[step]))
        programs.append(Program(number % clients, 0, calls, session=f"task-{number}"))
    timed = Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return workload_of("agent", timed, client_names(clients), max_output_tokens)


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
    """Return programs that are searched for as trees of partial solutions, each asked for after its parent.

    `problems` trees of `branches + ... + branches^height` requests.  We take a problem's 126 requests to be a tree of
    two attempts at each node, six levels deep: 2 + 4 + ... + 64.  Siblings ask the same prompt, so only every other
    request brings new tokens, its parent's output.
    """
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
    timed = Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return workload_of("programming", timed, client_names(clients), max_output_tokens)
