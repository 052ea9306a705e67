"""`toolbench`, `video-qa` and `loogle`: many questions about each of some documents, of uneven popularity.

Source: Preble (Srivatsa et al., ICLR'25), Table 1, which gives for each data set the mean and standard deviation of
prompts, the mean of outputs, the share of prompt tokens that earlier prompts had (an infinite cache), and how many
requests share a key portion, here the tool's instructions, the video or the document:

             prompt tokens    output   shared   sharers   mean question (ours, from the rest of the row)
toolbench    1,835 (742)          43     85 %        39   230
video-qa     9,865 (5,976)         4     88 %       8.6    33
loogle      23,474 (6,105)        16     91 %        18   849

A prompt is a system prompt that all share, the document, and a question of its own.  What is shared is all that
is not new, the question and the document's first time, so the row's share fixes the question's length.  Popularity
follows Zipf's law, with Preble's 1.1 for tools (its ablation) and 0 for videos and documents.

Ours, where the paper gives no figure: the system prompt, the spread of questions and outputs, the number of documents,
clients, and whose documents they are: tools belong to all clients, a video or document to the client who asks about it.
So is `live`: a video or document is asked about for a while, and at any time (but the beginning and the end) 32 videos
of 315 k tokens or 12 documents of 282 k are.  That is more than one worker of the default latency model keeps (132 k)
and less than four do.  If all were always asked about, no cluster of a few workers would keep anything.
"""

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np

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
    """The workload; `documents * sharers` requests unless `requests` says otherwise."""
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
    return workload_of(
        name,
        Timing(rate, arrivals, cv, gaps).of(rng, programs),
        names=client_names(clients, "none"),
        max_output_tokens=max_output_tokens,
        notes=(note,),
    )


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
