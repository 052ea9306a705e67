"""`split`: organisations that send the same kind of requests, one of which does so as many clients.

The first deals its requests out to `keys` clients, each of the others is a single client.  At the defaults each alone
asks for most of what a worker like Llama-3.2-3B on an A10G answers (8 requests a second), or more, so all wait all the
time, and where shares are per client the first gets about keys / (keys + others) of the service.

All figures are ours.  Requests of an organisation share its system prompt, and nothing else.
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.arrivals import arrivals_ns, lengths
from fairsched.engines.workloads.programs import Call, Number, Program, Rate, Size, streams, workload_of
from fairsched.engines.workloads.tokens import prompt_of
from fairsched.model.request import Client
from fairsched.model.workload import Workload


def split(
    *,
    seed: int = 0,
    keys: Annotated[Number, msgspec.Meta(description="clients as which the first organisation comes")] = 9,
    others: Annotated[Number, msgspec.Meta(description="organisations beside it, of one client each")] = 3,
    duration_s: Annotated[Rate, msgspec.Meta(description="seconds for which requests arrive")] = 40.0,
    many_rate: Annotated[Rate, msgspec.Meta(description="requests a second of the first organisation")] = 12.0,
    rate: Annotated[Rate, msgspec.Meta(description="requests a second of each other organisation")] = 6.0,
    system_tokens: Annotated[Size, msgspec.Meta(description="system prompt of an organisation")] = 256,
    prompt_tokens: Annotated[Size, msgspec.Meta(description="mean length of what is asked beside it")] = 768,
    output_tokens: Annotated[Size, msgspec.Meta(description="mean length of an answer")] = 192,
    max_output_tokens: Annotated[Size, msgspec.Meta(description="longest answer")] = 384,
) -> Workload:
    """The workload: Poisson arrivals for `duration_s` seconds."""
    clients = [Client(key, f"many/key-{key + 1}", groups=(("many", 1),)) for key in range(keys)]
    clients += [Client(keys + i, f"single-{i + 1}/key", groups=((f"single-{i + 1}", 1),)) for i in range(others)]
    programs: list[Program] = []
    for organisation in range(others + 1):
        sends = rate if organisation else many_rate
        count = max(round(sends * duration_s), 1)
        rng, tokens = streams(seed, organisation)
        system = tokens.fresh(system_tokens)
        times = arrivals_ns(rng, "poisson", rate=sends, count=count)
        asked = lengths(rng, count, mean=prompt_tokens, cv=0.5)
        answers = lengths(rng, count, mean=output_tokens, cv=0.5, high=max_output_tokens)
        for i, (time, prompt, answer) in enumerate(zip(times, asked, answers, strict=True)):
            client = i % keys if organisation == 0 else keys + organisation - 1
            programs.append(Program(client, time, (Call(prompt_of(system, tokens.fresh(prompt)), answer),)))
    names = [client.name for client in clients]
    made = workload_of("split", programs, names=names, max_output_tokens=max_output_tokens)
    return msgspec.structs.replace(made, clients=tuple(clients))
