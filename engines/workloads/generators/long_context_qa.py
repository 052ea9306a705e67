"""`long-context-qa`: each client asks many short questions about a few long documents.

Source: DLPM (Cao et al., "Locality-aware Fair Scheduling in LLM Serving"), evaluation: LooGLE documents, programs of
one call, Gamma arrivals.  Prompts of 23,474 tokens (standard deviation 6,105) and outputs of 16 are Preble's table of
LooGLE, as are about 18 requests a document.  Ours, where the paper gives no figure: a client's questions go to its
documents uniformly at random, question length, rates, the coefficient of variation, and how much more client 0 sends
(S1: `more_factor` times the rate for the same time) or how much longer its documents are (S2: `longer_factor`).

The default 48 documents hold about 1.1 million tokens, so neither a worker of 132 k tokens nor one of 427 k keeps
all of them, and the order of service decides what is computed again.
"""

from typing import Annotated

import msgspec
import numpy as np

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
    arrivals_ns,
    client_names,
    lengths,
    prompt_of,
    streams,
    workload_of,
)
from fairsched.model.request import Workload

DOCUMENT_SD_RATIO = 6_105 / 23_474


def long_context_qa(
    *,
    misbehave: Misbehave = "none",
    seed: int = 0,
    clients: Clients = 8,
    documents: Annotated[Number, msgspec.Meta(description="documents of each client")] = 6,
    questions: Annotated[Number, msgspec.Meta(description="questions a document, on average")] = 18,
    rate: Annotated[Rate, msgspec.Meta(description="questions a second, of all well-behaved clients together")] = 4.0,
    arrivals: Arrivals = "gamma",
    cv: GapSpread = 2.0,
    document_tokens: Annotated[Size, msgspec.Meta(description="mean length of a document")] = 23_474,
    question_tokens: Annotated[Size, msgspec.Meta(description="mean length of a question")] = 64,
    output_tokens: Annotated[Size, msgspec.Meta(description="length of every answer")] = 16,
    more_factor: Annotated[Number, msgspec.Meta(description="more-requests: client 0's rate, times")] = 4,
    longer_factor: Annotated[Number, msgspec.Meta(description="longer-prefix: client 0's documents, times")] = 2,
) -> Workload:
    """The workload; `clients * documents * questions` requests, and more from a client that sends more."""
    programs: list[Program] = []
    for client in range(clients):
        rng, tokens = streams(seed, client)
        more = more_factor if client == 0 and misbehave == "more-requests" else 1
        longer = longer_factor if client == 0 and misbehave == "longer-prefix" else 1
        count = documents * questions * more
        drawn = rng.normal(document_tokens, DOCUMENT_SD_RATIO * document_tokens, size=documents)
        # Cut at a quarter and at 1.75 times the mean, so that no document outgrows a worker by chance.
        sizes = np.clip(np.rint(drawn), max(document_tokens // 4, 1), document_tokens * 7 // 4).astype(int).tolist()
        texts = [tokens.fresh(size * longer) for size in sizes]
        times = arrivals_ns(rng, arrivals, rate=rate / clients * more, count=count, cv=cv)
        asked = rng.integers(documents, size=count).tolist()
        asks = lengths(rng, count, mean=question_tokens, cv=0.3)
        programs += [
            Program(client, time, (Call(prompt_of(texts[document], tokens.fresh(size)), output_tokens),))
            for time, document, size in zip(times, asked, asks, strict=True)
        ]
    return workload_of(
        "long-context-qa", programs, names=client_names(clients, misbehave), max_output_tokens=output_tokens
    )
