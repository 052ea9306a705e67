"""`multi-turn`: chats whose history grows; a turn is sent a while after the answer before it.

Source: DLPM (Cao et al.), evaluation: Chatbot Arena chats with rescaled times and aggregated clients.  The clients'
shares and the mean lengths (136 tokens asked, 256 answered) are those of the VTC artifact's arena workload; its
requests are single turns, so the number of turns, think times, the system prompt and the spreads are ours, as is how
much more client 0 sends (S1: `more_factor` times the sessions in the same time) or how long its system prompt is (S2).
Sessions start uniformly over the same span for every client: Poisson arrivals, given how many there are.
The default takes the ten busiest clients, so that there is a time at which all of them are active.
"""

from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.workloads.sampling import (
    Call,
    Misbehave,
    Number,
    Program,
    Rate,
    Size,
    client_names,
    lengths,
    prompt_of,
    streams,
    uniform_ns,
    workload_of,
)
from fairsched.model.request import Workload

# fmt: off
ARENA_REQUESTS = (
    296, 262, 199, 120, 67, 66, 56, 46, 44, 43, 40, 36, 31, 26, 25, 23, 22, 22, 19, 19, 12, 11, 7, 3, 2, 2, 1,
)
# fmt: on
"""Requests of the arena workload's 27 clients in 600 s, busiest first."""

TURNS_MAX = 16


def multi_turn(
    *,
    misbehave: Misbehave = "none",
    seed: int = 0,
    clients: Annotated[
        int, msgspec.Meta(ge=1, le=len(ARENA_REQUESTS), description="clients, the busiest of the arena's 27")
    ] = 10,
    sessions: Annotated[Number, msgspec.Meta(description="chats in all (at least one a client)")] = 300,
    turns: Annotated[Number, msgspec.Meta(description="mean turns of a chat (geometric, at most 16)")] = 4,
    rate: Annotated[Rate, msgspec.Meta(description="chats a second, when no client sends more")] = 4.0,
    think_s: Annotated[Rate, msgspec.Meta(description="mean time before the next turn, exponential")] = 10.0,
    system_tokens: Annotated[Size, msgspec.Meta(description="system prompt that a client's chats share")] = 128,
    longer_system_tokens: Annotated[Size, msgspec.Meta(description="longer-prefix: the same of client 0")] = 4_096,
    question_tokens: Annotated[Size, msgspec.Meta(description="mean length of a turn's question")] = 136,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of an answer")] = 256,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest answer")] = 1_024,
    more_factor: Annotated[Number, msgspec.Meta(description="more-requests: client 0's sessions, times")] = 4,
) -> Workload:
    """The workload; about `sessions * turns` requests."""
    names = client_names(clients, misbehave)
    total = sum(ARENA_REQUESTS[:clients])
    programs: list[Program] = []
    for client in range(clients):
        rng, tokens = streams(seed, client)
        more = more_factor if client == 0 and misbehave == "more-requests" else 1
        share = ARENA_REQUESTS[client] / total
        longer = client == 0 and misbehave == "longer-prefix"
        system = tokens.fresh(longer_system_tokens if longer else system_tokens)
        count = max(round(sessions * share), 1) * more
        for number, time in enumerate(uniform_ns(rng, span_s=sessions / rate, count=count)):
            length = min(int(rng.geometric(1 / turns)), TURNS_MAX)
            asked = lengths(rng, length, mean=question_tokens, cv=1.0)
            answered = lengths(rng, length, mean=output_tokens, cv=0.8, high=max_output_tokens)
            thought_ns = np.rint(rng.exponential(think_s * 1e9, size=length)).astype(np.int64).tolist()
            history = [system]
            calls: list[Call] = []
            for turn in range(length):
                history.append(tokens.fresh(asked[turn]))
                after = (turn - 1,) if turn else ()
                calls.append(Call(prompt_of(*history), answered[turn], after, thought_ns[turn] if turn else 0))
                history.append(tokens.fresh(answered[turn]))
            programs.append(Program(client, time, calls, session=f"{names[client]}/{number}"))
    return workload_of("multi-turn", programs, names=names, max_output_tokens=max_output_tokens)
