"""`ce1`: the counterexample to forgiving a client's debt when it rejoins, as a workload.

Client f always has requests queued that extend by one token and answer with one.  Client g sends one request of one
token with an answer of three, and sends the next only when that has finished.  Run it with a deficit gate of quantum
1, weights 1 and 2, and 4 tokens of KV memory that are reserved statically.  A request of f declares two tokens of
output, so that no two of them fit side by side, and then stops after the first.

Where a rejoin sets the deficit to 0, each four steps are three of g and one of f: g gains 1 + 2 * 3 = 7 and f gains
1 + 2 * 1 = 3, so g's lead over the waiting f grows without end: it passes 20 in step 17 (counted from 0) and is 403
within 400 steps, simulated.  Where debt is kept, g pays before it is served again, and its lead stays within 9.
"""

from typing import Annotated

import msgspec

from fairsched.model.request import Client, Prompt, Request
from fairsched.model.workload import Job, Workload

KV_CAPACITY_TOKENS = 4
QUANTUM = 1


def ce1(
    *,
    steps: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="engine steps for which f must stay backlogged")
    ] = 400,
) -> Workload:
    """The workload; f sends `steps + 1` requests at time 0 and is served at most one a step."""
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
        f"Meant for a quantum of {QUANTUM}, weights 1 and 2, and {KV_CAPACITY_TOKENS} tokens of KV memory, "
        "reserved statically.",
        f"Client f stays backlogged for {steps:,} steps at least; it declares two output tokens and stops after one.",
    )
    return Workload(name="ce1", jobs=(*g_jobs, *f_jobs), clients=(Client(0, "f"), Client(1, "g")), notes=notes)
