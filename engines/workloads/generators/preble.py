"""Preble's data sets: `toolbench`, `video-qa` and `loogle` (questions about documents), `agent` and `programming`.

Source: Preble (Srivatsa et al., ICLR'25), Table 1, which gives the mean (standard deviation) of prompts, outputs, the
share of prompt tokens that earlier prompts had (an infinite cache), the part of a prompt that is its key portion, and
how many requests share a key portion: the tool's instructions, the video, the document, the task's description with its
demonstration, the problem or the demonstration before it.

             prompt tokens    output      shared   key portion   sharers       mean question (ours, from the rest)
toolbench    1,835 (742)       43 (16)     85 %     76 %          39 (64)      230
video-qa     9,865 (5,976)      4 (1.5)    88 %     99 %          8.6 (2)      33
loogle      23,474 (6,105)     16 (9.9)    91 %     94 %          18 (8.6)     849
agent        2,285 (471)       16 (13)     97 %     76 %          48 (8)
programming  3,871 (1,656)    190 (343)    97 %     78 %          126 (2,157)

The table is of the whole data sets.  The paper's runs draw some documents of each, as many requests as come in about
five minutes (facts of its published code), and ask about all of them throughout: `live=null`.

Ours, where the paper gives no figure: system prompts and headers, spreads of questions, numbers of documents, tasks and
problems, and clients, which have the tasks and problems in turn.
"""

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np

from fairsched.engines.workloads import sampling
from fairsched.model.request import Workload

QUESTION_CV = 0.2
"""Spread of questions' lengths, relative to their mean (ours)."""

LONGEST_PROGRAM = 4_096
"""Tokens of the longest program (ours)."""

Exponent = Annotated[float, msgspec.Meta(ge=0, le=5)]
Pause = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Spread = Annotated[float, msgspec.Meta(gt=0, le=10)]


def questions(
    name: str,
    *,
    seed: int = 0,
    documents: Annotated[sampling.Number, sampling.about("tools, videos or documents")],
    sharers: Annotated[sampling.Rate, sampling.about("mean requests about each, where `requests` is not given")],
    requests: Annotated[sampling.Requests | None, sampling.about("requests in all")] = None,
    zipf: Annotated[
        Exponent | None, sampling.about("exponent of the documents' popularity, 0 for equal, null: by spread")
    ] = None,
    sharers_cv: Annotated[
        Spread,
        sampling.about("relative spread of the requests about each, where zipf is null"),
    ],
    live: Annotated[
        sampling.Number | None, sampling.about("documents that are asked about at any one time, null for all")
    ] = None,
    clients: sampling.Clients = 8,
    owners: Annotated[Literal["everybody", "one"], sampling.about("owner of a document: every client or one")] = "one",
    rate: sampling.RequestRate = "auto",
    arrivals: sampling.Arrivals = "poisson",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt that all requests share")] = 16,
    prompt_tokens: Annotated[sampling.Size, sampling.about("mean length of a prompt")],
    prompt_sd_tokens: Annotated[sampling.Size, sampling.about("standard deviation of prompts' lengths")],
    question_tokens: Annotated[sampling.Size, sampling.about("mean length of a question")],
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of an output")],
    output_cv: Annotated[Spread, sampling.about("spread of outputs' lengths, relative to their mean")],
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest output")],
) -> Workload:
    """Return many questions about each of some documents; `documents * sharers` unless `requests` says otherwise.

    A prompt is a system prompt that all share, the document, and a question of its own.  What is shared is all that
    is not new, the question and the document's first time, so the table's share fixes the question's length.
    The requests about a document are log-normal with the table's spread, or follow Zipf's law: `zipf=1.1` is Preble's
    ablation, `zipf=0` asks equally about all.

    Ours: tools belong to all clients, a video or document to the client that asks about it.  So is `live`: a video or
    document is asked about for a while, and at any time (but the beginning and the end) 32 videos of 315 k tokens or 12
    documents of 282 k are.  That is more than one worker of the default latency model keeps (132 k) and less than four
    do.  If all were always asked about, no cluster of a few workers would keep anything.
    """
    rng, tokens = sampling.streams(seed, 0)
    total = requests or max(round(documents * sharers), documents)
    if zipf is None:
        scale = max(round(total / documents * 1_000), 1)
        shares = sampling.spread_lengths(rng, [1] * documents, mean=scale, sd=scale * sharers_cv, high=total * 1_000)
        counts = sampling.apportioned(total, np.array(shares, dtype=np.float64))
    else:
        counts = sampling.zipf_counts(total, documents, zipf)
    asks = sampling.lengths(rng, total, mean=question_tokens, cv=QUESTION_CV)
    system = sampling.EMPTY_TEXT.then(tokens.fresh(system_tokens))
    document_sd = max(prompt_sd_tokens**2 - (QUESTION_CV * question_tokens) ** 2, 1.0) ** 0.5
    # A document is the key portion: longer than the system prompt before it, and the two longer than the question.
    document_mean = max(prompt_tokens - system_tokens - question_tokens, system_tokens + 1)
    least = max(system_tokens + 32, 2 * question_tokens - system_tokens)
    sizes = sampling.spread_lengths(rng, counts, mean=document_mean, sd=document_sd, low=least)
    texts = [system.then(tokens.fresh(size)) for size in sizes]
    answers = sampling.lengths(rng, total, mean=output_tokens, cv=output_cv, high=max_output_tokens)
    asked = np.repeat(np.arange(documents), counts)
    # When it is asked about: anywhere, or within the stretch in which `live` documents before it began.
    places = rng.uniform(size=total) if live is None else asked + rng.uniform(0, live, size=total)
    asked = asked[np.argsort(places)].tolist()
    senders = rng.integers(clients, size=total).tolist() if owners == "everybody" else [d % clients for d in asked]
    programs = [
        sampling.Program(client, 0, (sampling.LlmCall(texts[document].then(tokens.fresh(size)).prompt(), answer),))
        for client, document, size, answer in zip(senders, asked, asks, answers, strict=True)
    ]
    note = f"{total:,} requests about {documents:,} documents: {total / documents:.3g} each on average."
    timed = sampling.Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return sampling.workload_of(name, timed, sampling.client_names(clients), max_output_tokens, notes=(note,))


toolbench = partial(
    questions,
    "toolbench",
    documents=60,
    sharers=39.0,
    sharers_cv=64 / 39,
    owners="everybody",
    system_tokens=160,
    prompt_tokens=1_835,
    prompt_sd_tokens=742,
    question_tokens=230,
    output_tokens=43,
    output_cv=16 / 43,
    max_output_tokens=256,
)

video_qa = partial(
    questions,
    "video-qa",
    documents=200,
    sharers=8.6,
    sharers_cv=2 / 8.6,
    live=32,
    prompt_tokens=9_865,
    prompt_sd_tokens=5_976,
    question_tokens=33,
    output_tokens=4,
    output_cv=1.5 / 4,
    max_output_tokens=16,
)

loogle = partial(
    questions,
    "loogle",
    documents=64,
    sharers=18.0,
    sharers_cv=8.6 / 18,
    live=12,
    prompt_tokens=23_474,
    prompt_sd_tokens=6_105,
    question_tokens=849,
    output_tokens=16,
    output_cv=9.9 / 16,
    max_output_tokens=64,
)


def agent(
    *,
    seed: int = 0,
    tasks: Annotated[sampling.Number, sampling.about("tasks")] = 200,
    steps: Annotated[sampling.Number, sampling.about("mean steps of a task")] = 48,
    clients: sampling.Clients = 8,
    rate: sampling.RequestRate = "auto",
    arrivals: sampling.Arrivals = "poisson",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt that all tasks share")] = 16,
    task_tokens: Annotated[sampling.Size, sampling.about("mean length of a task with its demonstration")] = 1_737,
    task_sd_tokens: Annotated[sampling.Size, sampling.about("standard deviation of the same")] = 324,
    observation_tokens: Annotated[sampling.Size, sampling.about("mean length of what is observed after a step")] = 6,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of an action")] = 16,
    output_cv: Annotated[Spread, sampling.about("spread of actions' lengths, relative to their mean")] = 0.85,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest action")] = 128,
    think_s: Annotated[Pause, sampling.about("mean time before the next step, exponential")] = 0.0,
) -> Workload:
    """Return an embodied agent's tasks: each step repeats the whole history and adds an action and what was observed.

    About `tasks * steps` requests.  A task has 48 steps; a step adds 22 tokens, of which 16 are its output, and the
    rest of the spread of prompts is that of the tasks.  A step is sent when the one before it has finished and the
    environment has answered, which takes `think_s` on average.  The paper's runs have all tasks open throughout: with
    N tasks, `rate` at R times the steps and `think_s` at N / R, R requests a second come from N open tasks.
    """
    rng, tokens = sampling.streams(seed, 0)
    counts = sampling.spread_lengths(rng, [1] * tasks, mean=steps, sd=steps / 6)
    sizes = sampling.spread_lengths(rng, counts, mean=task_tokens, sd=task_sd_tokens, low=system_tokens + 32)
    system = sampling.EMPTY_TEXT.then(tokens.fresh(system_tokens))
    programs: list[sampling.Program] = []
    for number, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        actions = sampling.lengths(rng, count, mean=output_tokens, cv=output_cv, high=max_output_tokens)
        thought_ns = np.rint(rng.exponential(think_s * 1e9, size=count)).astype(np.int64).tolist()
        seen = sampling.lengths(rng, count, mean=observation_tokens, cv=0.4)
        history = system.then(tokens.fresh(size))
        calls: list[sampling.LlmCall] = []
        for step in range(count):
            calls.append(
                sampling.LlmCall(
                    history.prompt(), actions[step], (step - 1,) if step else (), thought_ns[step] if step else 0
                )
            )
            history = history.then(tokens.fresh(actions[step] + seen[step]))
        programs.append(sampling.Program(number % clients, 0, calls, session=f"task-{number}"))
    timed = sampling.Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return sampling.workload_of("agent", timed, sampling.client_names(clients), max_output_tokens)


def programming(
    *,
    seed: int = 0,
    problems: Annotated[sampling.Number, sampling.about("problems")] = 250,
    samples: Annotated[sampling.Number, sampling.about("programs asked for in parallel for each problem")] = 10,
    sent: Annotated[
        Literal["together", "apart"], sampling.about("samples of a problem come at once, or on their own")
    ] = "together",
    clients: sampling.Clients = 8,
    rate: sampling.RequestRate = "auto",
    arrivals: sampling.Arrivals = "poisson",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
    demonstration_tokens: Annotated[sampling.Size, sampling.about("worked examples before every problem")] = 2_752,
    problem_tokens: Annotated[sampling.Size, sampling.about("mean length of a problem")] = 1_119,
    problem_sd_tokens: Annotated[sampling.Size, sampling.about("standard deviation of the same")] = 1_656,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of a program")] = 190,
    output_sd_tokens: Annotated[sampling.Size, sampling.about("standard deviation of the same")] = 343,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest program, where all are cut")] = LONGEST_PROGRAM,
) -> Workload:
    """Return programs that are sampled: a demonstration that all share, a problem, and parallel samples of one prompt.

    `problems * samples` requests (the paper's appendix A.3).  A problem longer than the demonstration is the key
    portion of its samples; all others have the demonstration as theirs, hence the table's deviation of the sharers,
    which takes 4,000 problems (APPS has 10,000).  The paper gives neither the demonstration's length nor the number
    of samples: ours give the table's mean of the sharers, key portion and shared part together.  The paper's published
    code sends the samples in random order and cuts them at 512 tokens (`sent=apart,max_output_tokens=512`).
    """
    rng, tokens = sampling.streams(seed, 0)
    demonstration = sampling.EMPTY_TEXT.then(tokens.fresh(demonstration_tokens))
    sizes = sampling.spread_lengths(
        rng, [1] * problems, mean=problem_tokens, sd=problem_sd_tokens, low=32, high=16 * demonstration_tokens
    )
    written = sampling.spread_lengths(
        rng, [1] * (problems * samples), mean=output_tokens, sd=output_sd_tokens, high=LONGEST_PROGRAM
    )
    outputs = [min(output, max_output_tokens) for output in written]
    prompts = [demonstration.then(tokens.fresh(size)).prompt() for size in sizes]
    if sent == "together":
        programs = [
            sampling.Program(
                n % clients,
                0,
                [sampling.LlmCall(prompt, output) for output in outputs[n * samples : (n + 1) * samples]],
            )
            for n, prompt in enumerate(prompts)
        ]
    else:
        drawn = rng.permutation(np.repeat(np.arange(problems), samples)).tolist()
        programs = [
            sampling.Program(n % clients, 0, (sampling.LlmCall(prompts[n], output),))
            for n, output in zip(drawn, outputs, strict=True)
        ]
    timed = sampling.Timing(rate, arrivals, cv, gaps).of(rng, programs)
    return sampling.workload_of("programming", timed, sampling.client_names(clients), max_output_tokens)
