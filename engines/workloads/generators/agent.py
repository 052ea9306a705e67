"""`agent`: an embodied agent's tasks; each step repeats the whole history and adds an action and what was observed.

Source: Preble (Srivatsa et al., ICLR'25), Table 1: prompts of 2,285 tokens (standard deviation 471), outputs of 16,
97 % of prompt tokens shared with earlier prompts, 48 requests that share a key portion.  A key portion is a task's
description, so a task has 48 steps, and the spread of lengths is the growth from step to step: 30 tokens, of which
16 are the step's output.  A step is sent when the one before it has finished.

Ours, where the paper gives no figure: the system prompt, the spreads of steps, descriptions and outputs, the number of
tasks, and clients, who have the tasks in turn.
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.sampling import (
    EMPTY_TEXT,
    Arrivals,
    Call,
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
    """The workload; about `tasks * steps` requests."""
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
    return workload_of(
        "agent",
        Timing(rate, arrivals, cv, gaps).of(rng, programs),
        names=client_names(clients, "none"),
        max_output_tokens=max_output_tokens,
    )
