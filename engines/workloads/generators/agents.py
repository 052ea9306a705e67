"""Agents: `subagents`, a harness that spreads its work over many agents beside programs that do not.

All figures are ours.  No token of two programs is the same, and of one program only the system prompt is.
"""

from typing import Annotated, Literal

from fairsched.engines.workloads import sampling
from fairsched.model.request import Workload

Keys = Literal["each", "one"]
"""Whether each program has an API key of its own, or all have one."""


def subagents(
    *,
    seed: int = 0,
    agents: Annotated[sampling.Number, sampling.about("agents of the harness")] = 16,
    others: Annotated[sampling.Number, sampling.about("programs beside it")] = 7,
    width: Annotated[sampling.Number, sampling.about("agents of each of these")] = 4,
    keys: Annotated[Keys, sampling.about("a key for each program, or one for all")] = "each",
    turns: Annotated[sampling.Number, sampling.about("calls of an agent, one after the other")] = 12,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt that a program's calls share")] = 256,
    task_tokens: Annotated[sampling.Size, sampling.about("mean length of an agent's task")] = 512,
    tool_tokens: Annotated[sampling.Size, sampling.about("mean length of what a tool answers")] = 64,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of an answer")] = 64,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest answer")] = 128,
) -> Workload:
    """Return a harness of many agents beside programs of few, all of which begin within a second.

    A program plans in one call, then each of its agents makes `turns` calls, each of which repeats the agent's history
    and comes when the one before is finished, and one call merges what all of them said.  Where the service is shared
    among agents, or goes to the oldest request, the harness gets about agents / (agents + others * width) of it.
    Where programs have accounts it gets what any other gets.  Each agent is a session, as is the one that plans.
    """
    programs = []
    for number in range(others + 1):
        rng, tokens = sampling.streams(seed, number)
        system = sampling.EMPTY_TEXT.then(tokens.fresh(system_tokens))
        count = width if number else agents
        tasks = sampling.lengths(rng, count, mean=task_tokens, cv=0.3)
        answers = sampling.lengths(rng, count * turns + 2, mean=output_tokens, cv=0.4, high=max_output_tokens)
        tools = sampling.lengths(rng, count * turns, mean=tool_tokens, cv=0.4)
        calls = [sampling.LlmCall(system.then(tokens.fresh(task_tokens)).prompt(), answers[0])]
        last = []
        for agent, task in enumerate(tasks):
            history, before = system.then(tokens.fresh(task)), 0
            for turn in range(turns):
                place = agent * turns + turn
                session = f"{number}.{agent + 1}"
                calls.append(sampling.LlmCall(history.prompt(), answers[1 + place], (before,), session=session))
                history = history.then(tokens.fresh(answers[1 + place]), tokens.fresh(tools[place]))
                before = len(calls) - 1
            last.append(before)
        merged = system.then(*[tokens.fresh(answers[1 + (agent + 1) * turns - 1]) for agent in range(count)])
        calls.append(sampling.LlmCall(merged.prompt(), answers[-1], tuple(last)))
        (start,) = sampling.uniform_ns(rng, span_s=1.0, count=1)
        programs.append(sampling.Program(0 if keys == "one" else number, start, calls, session=f"{number}.0"))
    names = ["team"] if keys == "one" else ["harness", *(f"other-{number}" for number in range(1, others + 1))]
    return sampling.workload_of("subagents", programs, names, max_output_tokens)
