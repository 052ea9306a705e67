"""`showcase`: a flood of requests that share one hot prefix, under which longest prefix match starves everybody else.

One client floods: its requests share a prefix that never leaves the cache, and come faster than a worker can answer
them.  The others send prompts that nobody has seen before.  A policy that always takes the longest match serves the
flood alone for as long as it lasts, so twice the `duration_s` is twice the gap; a gate that charges what is computed
holds the gap under a bound that does not depend on the duration.

Meant for a worker with 32,768 tokens of KV and a cap of 16,384 on what DLPM lets one client have in flight: then the
bounds of DLPM and VTC are less than a tenth of what the busiest client receives, so that they could well be broken.

All figures are ours.  A worker like Llama-3.2-3B on an A10G answers about 13 flood requests of 256 tokens a second and
Llama-3.1-8B on an A100 about 30, by the latency presets' decode cost at full batches; `hot_rate` lies above both.
"""

from typing import Annotated

import msgspec

from fairsched.engines.workloads.arrivals import arrivals_ns
from fairsched.engines.workloads.programs import Call, Number, Program, Rate, Size, streams, workload_of
from fairsched.engines.workloads.tokens import prompt_of
from fairsched.model.workload import Workload

KV_CAPACITY_TOKENS = 32_768
IN_FLIGHT_CAP_TOKENS = 16_384


def showcase(
    *,
    seed: int = 0,
    duration_s: Annotated[Rate, msgspec.Meta(description="seconds for which requests arrive")] = 40.0,
    cold_clients: Annotated[Number, msgspec.Meta(description="clients whose prompts are all new")] = 2,
    hot_rate: Annotated[Rate, msgspec.Meta(description="flood requests a second")] = 40.0,
    cold_rate: Annotated[Rate, msgspec.Meta(description="requests a second of each other client")] = 6.0,
    prefix_tokens: Annotated[Size, msgspec.Meta(description="prefix that the flood shares")] = 1_024,
    question_tokens: Annotated[Size, msgspec.Meta(description="what a flood request adds to it")] = 64,
    cold_tokens: Annotated[Size, msgspec.Meta(description="prompt of a request of the others")] = 1_024,
    output_tokens: Annotated[Size, msgspec.Meta(description="length of every answer")] = 256,
) -> Workload:
    """The workload: Poisson arrivals for `duration_s` seconds, constant lengths."""
    programs: list[Program] = []
    for client in range(cold_clients + 1):
        rng, tokens = streams(seed, client)
        hot = client == 0
        rate = hot_rate if hot else cold_rate
        prefix = tokens.fresh(prefix_tokens if hot else 0)
        count = max(round(rate * duration_s), 1)
        programs += [
            Program(
                client,
                time,
                (Call(prompt_of(prefix, tokens.fresh(question_tokens if hot else cold_tokens)), output_tokens),),
            )
            for time in arrivals_ns(rng, "poisson", rate=rate, count=count)
        ]
    names = ["hot", *(f"cold-{index}" for index in range(1, cold_clients + 1))]
    note = f"Meant for {KV_CAPACITY_TOKENS:,} tokens of KV and an in-flight cap of {IN_FLIGHT_CAP_TOKENS:,} for DLPM."
    return workload_of("showcase", programs, names=names, max_output_tokens=output_tokens, notes=(note,))
