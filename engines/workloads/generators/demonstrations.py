"""Workloads that show one effect each: `showcase` (a flood), `split` (an organisation as many clients), `subagents` (a
harness that spreads its work over many agents) and `ce1`.

All figures are ours.
"""

from typing import Annotated, Literal

import msgspec

from fairsched.engines.workloads import sampling
from fairsched.model.request import Client, Job, Prompt, Request, Workload

CE1_KV_TOKENS = 4
CE1_QUANTUM = 1
Keys = Literal["each", "one"]
"""Whether each program has an API key of its own, or all have one."""


def showcase(
    *,
    seed: int = 0,
    duration_s: Annotated[sampling.Rate, sampling.about("seconds for which requests arrive")] = 150.0,
    flood_rate: Annotated[sampling.Rate, sampling.about("requests a second of the client that floods")] = 14.0,
    calm_rate: Annotated[sampling.Rate, sampling.about("requests a second of each other client")] = 0.6,
    calm_clients: Annotated[sampling.Number, sampling.about("clients beside it")] = 3,
    flood_documents: Annotated[sampling.Number, sampling.about("documents of the client that floods")] = 64,
    calm_documents: Annotated[sampling.Number, sampling.about("documents of each other client")] = 4,
    document_tokens: Annotated[sampling.Size, sampling.about("length of a document")] = 4_096,
    question_tokens: Annotated[sampling.Size, sampling.about("length of a question about one")] = 64,
    output_tokens: Annotated[sampling.Size, sampling.about("length of every answer")] = 96,
) -> Workload:
    """Return clients that ask about their documents, of which one floods the server.

    A prompt is one of the client's documents, drawn uniformly, and a question that is new.  A server that has the
    document in its cache computes the question alone.  The flood's documents do not fit the memory of a worker like
    Llama-3.2-3B on an A10G (132,000 tokens, 32 documents), and it asks for more than that worker can answer, about 3
    requests a second in order of arrival and 8 where the cache is used best; the other clients ask for far less.  So a
    policy that follows the cache is fast, and one that follows only the cache, or only arrivals, serves the flood and
    lets the others wait for as long as it lasts.  Arrivals are Poisson, lengths constant.
    """
    programs: list[sampling.Program] = []
    for client in range(calm_clients + 1):
        rng, tokens = sampling.streams(seed, client)
        rate, several = (calm_rate, calm_documents) if client else (flood_rate, flood_documents)
        documents = [tokens.fresh(document_tokens) for _ in range(several)]
        times = sampling.arrivals_ns(rng, "poisson", rate=rate, count=max(round(rate * duration_s), 1))
        for time, place in zip(times, rng.integers(several, size=len(times)), strict=True):
            prompt = sampling.prompt_of(documents[place], tokens.fresh(question_tokens))
            programs.append(sampling.Program(client, time, (sampling.LlmCall(prompt, output_tokens),)))
    names = ["flood", *(f"calm-{index}" for index in range(1, calm_clients + 1))]
    note = (
        f"Client flood asks {flood_rate:g} times a second about {flood_documents:,} documents, {calm_clients:,} others "
        f"{calm_rate:g} times each about {calm_documents:,} of their own; a prompt is a document of "
        f"{document_tokens:,} tokens and a new question."
    )
    return sampling.workload_of("showcase", programs, names, output_tokens, notes=(note,))


def split(
    *,
    seed: int = 0,
    keys: Annotated[sampling.Number, sampling.about("clients as which the first organisation comes")] = 9,
    others: Annotated[sampling.Number, sampling.about("organisations beside it, of one client each")] = 3,
    duration_s: Annotated[sampling.Rate, sampling.about("seconds for which requests arrive")] = 40.0,
    many_rate: Annotated[sampling.Rate, sampling.about("requests a second of the first organisation")] = 12.0,
    rate: Annotated[sampling.Rate, sampling.about("requests a second of each other organisation")] = 6.0,
    system_tokens: Annotated[sampling.Size, sampling.about("system prompt of an organisation")] = 256,
    prompt_tokens: Annotated[sampling.Size, sampling.about("mean length of what is asked beside it")] = 768,
    output_tokens: Annotated[sampling.Size, sampling.about("mean length of an answer")] = 192,
    max_output_tokens: Annotated[sampling.Size, sampling.about("longest answer")] = 384,
) -> Workload:
    """Return organisations that send the same kind of requests, one of which does so as many clients.

    The first deals its requests out to `keys` clients, each of the others is a single client.  At the defaults each
    alone asks for most of what a worker like Llama-3.2-3B on an A10G answers (8 requests a second), or more, so all
    wait all the time, and where shares are per client the first gets about keys / (keys + others) of the service.
    Requests of an organisation share its system prompt, and nothing else.  Arrivals are Poisson.
    """
    clients = [Client(key, f"many/key-{key + 1}", groups=(("many", 1),)) for key in range(keys)]
    clients += [Client(keys + i, f"single-{i + 1}/key", groups=((f"single-{i + 1}", 1),)) for i in range(others)]
    programs: list[sampling.Program] = []
    for organisation in range(others + 1):
        sends = rate if organisation else many_rate
        count = max(round(sends * duration_s), 1)
        rng, tokens = sampling.streams(seed, organisation)
        system = tokens.fresh(system_tokens)
        times = sampling.arrivals_ns(rng, "poisson", rate=sends, count=count)
        asked = sampling.lengths(rng, count, mean=prompt_tokens, cv=0.5)
        answers = sampling.lengths(rng, count, mean=output_tokens, cv=0.5, high=max_output_tokens)
        for i, (time, prompt, answer) in enumerate(zip(times, asked, answers, strict=True)):
            client = i % keys if organisation == 0 else keys + organisation - 1
            programs.append(
                sampling.Program(
                    client, time, (sampling.LlmCall(sampling.prompt_of(system, tokens.fresh(prompt)), answer),)
                )
            )
    names = [client.name for client in clients]
    made = sampling.workload_of("split", programs, names, max_output_tokens)
    return msgspec.structs.replace(made, clients=tuple(clients))


def ce1(
    *,
    steps: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="engine steps for which f must stay backlogged")
    ] = 400,
) -> Workload:
    """Return the counterexample to forgiving a client's debt when it rejoins.

    Client f always has requests queued that extend by one token and answer with one: `steps + 1` requests at time 0,
    of which at most one is served a step.  Client g sends one request of one token with an answer of three, and sends
    the next only when that has finished.  Run it with a deficit gate of quantum 1, weights 1 and 2, and 4 tokens of KV
    memory that are reserved statically.  A request of f declares two tokens of output, so that no two of them fit side
    by side, and then stops after the first.

    Where a rejoin sets the deficit to 0, each four steps are three of g and one of f: g gains 1 + 2 * 3 = 7 and f gains
    1 + 2 * 1 = 3, so g's lead over the waiting f grows without end: it passes 20 in step 17 (counted from 0) and is 403
    within 400 steps, simulated.  Where debt is kept, g pays before it is served again, and its lead stays within 9.
    """
    g_requests = steps // 3 + 1
    one_token = Prompt(tokens=1)
    g_jobs = [
        Job(
            request=Request(id=index, client=1, arrival_ns=0, prompt=one_token, max_output_tokens=3),
            output_tokens=3,
            after=(index - 1,) if index else (),
        )
        for index in range(g_requests)
    ]
    f_jobs = [
        Job(
            request=Request(id=g_requests + index, client=0, arrival_ns=0, prompt=one_token, max_output_tokens=2),
            output_tokens=1,
        )
        for index in range(steps + 1)
    ]
    notes = (
        f"Meant for a quantum of {CE1_QUANTUM}, weights 1 and 2, and {CE1_KV_TOKENS} tokens of KV memory, "
        "reserved statically.",
        f"Client f stays backlogged for {steps:,} steps at least; it declares two output tokens and stops after one.",
    )
    return Workload(name="ce1", jobs=(*g_jobs, *f_jobs), clients=(Client(0, "f"), Client(1, "g")), notes=notes)


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
    No token of two programs is the same, and of one program only the system prompt is.
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
