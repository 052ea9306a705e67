"""A world in which a client waits nearly as long as its gate and its worker allow, built for a worker, and how long
clients waited in a run."""

from collections import defaultdict
from collections.abc import Iterable

from fairsched.model.events import Admitted, Arrived, Cancelled, Event, Finished, Preempted, Prefilled, Rejected
from fairsched.model.request import Client, Job, Prompt, Request, Workload

WORST_WAIT_SENT_NS = 10**13
"""When client f fills the memory: its first request, which computes the prefix, is over."""


def worst_wait_world(
    memory_tokens: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    running_max: int = 256,
    shorter: int = 1,
    block_tokens: int = 1,
    others: int = 1,
    own_output_tokens: int | None = None,
    fresh: bool = False,
) -> Workload:
    """Return a world in which a client waits nearly as long as its gate and its worker allow: f, in the last request.

    Client f owes all that it may: it alone sends requests with one cached prefix, which fill the memory with outputs.
    While they run client g comes, and then f's next request.  When the memory is free, g fills it twice in the same
    way: once with the credit that it has, which it pays back while f does, and once more with the credit of the round
    in which f would go next.  Every request has a long context and computes one block of its prompt, so that tokens are
    as slow as they can be.  It is made for a memory and the largest request; g's first requests end `shorter` tokens
    earlier than they may.  `others` are like g; f's first requests have `own_output_tokens` (None: as all), so that
    they may be over when it waits.  `fresh`: prompts of others are computed, for a gate that charges cached ones too.
    """
    shared = Prompt.from_keys(range(prompt_tokens // block_tokens), block_tokens=block_tokens, tokens=prompt_tokens)
    own = prompt_tokens - shared.reusable_blocks * block_tokens + output_tokens
    rows = max(min((memory_tokens - prompt_tokens) // own, running_max), 1)
    jobs: list[Job] = []

    def sends(client: int, at_ns: int, prompt: Prompt, outputs: int, ends: int) -> None:
        jobs.append(Job(Request(len(jobs), client, at_ns, prompt, outputs), ends))

    sends(0, 0, shared, 1, 1)
    own_outputs, theirs = own_output_tokens or output_tokens, Prompt(prompt_tokens) if fresh else shared
    for _ in range(rows):
        sends(0, WORST_WAIT_SENT_NS, shared, own_outputs, own_outputs)
    for ends in (max(output_tokens - shorter, 1), output_tokens):
        for other in range(others * rows):
            sends(1 + other // rows, WORST_WAIT_SENT_NS + 1, theirs, output_tokens, ends)
    sends(0, WORST_WAIT_SENT_NS + 2, Prompt(prompt_tokens), output_tokens, output_tokens)
    return Workload("worst wait", tuple(jobs), tuple(Client(i, chr(ord("f") + i)) for i in range(1 + others)))


def waits_to_first_tokens(events: Iterable[Event], alone: bool = False) -> list[int]:
    """Return how long each client waited, anew from each admission on, until the first token of the request that ended
    the wait; `alone`: only while nothing of the client was in flight."""
    queued: dict[int, set[int]] = defaultdict(set)
    running: dict[int, set[int]] = defaultdict(set)
    since: dict[int, int] = {}
    entered: dict[int, int] = {}
    waits = []
    for event in events:
        match event:
            case Arrived(request=request):
                client = request.client
                queued[client].add(request.id)
            case Preempted() | Admitted():
                client, out = event.client, isinstance(event, Preempted)
                if not out and client in since:
                    entered[event.request_id] = since.pop(client)
                (running if out else queued)[client].discard(event.request_id)
                (queued if out else running)[client].add(event.request_id)
            case Finished() | Cancelled() | Rejected():
                client = event.client
                queued[client].discard(event.request_id)
                running[client].discard(event.request_id)
            case Prefilled(remaining_tokens=0) if event.request_id in entered:
                waits.append(event.time_ns - entered.pop(event.request_id))
                continue
            case _:
                continue
        if not queued[client] or (alone and running[client]):
            since.pop(client, None)
        else:
            since.setdefault(client, event.time_ns)
    return waits
