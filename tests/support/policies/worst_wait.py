"""A world in which a client waits nearly as long as its gate and its worker allow, built for a worker."""

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
) -> Workload:
    """Return a world in which a client waits nearly as long as its gate and its worker allow: f, in the last request.

    Client f owes all that it may: it alone sends requests with one cached prefix, which fill the memory with outputs.
    While they run client g comes, and then f's next request.  When the memory is free, g fills it twice in the same
    way: once with the credit that it has, which it pays back while f does, and once more with the credit of the round
    in which f would go next.  Every request has a long context and computes one block of its prompt, so that tokens are
    as slow as they can be.  It is made for a memory and the largest request; g's first requests end `shorter` tokens
    earlier than they may.  `others` are like g; f's first requests have `own_output_tokens` (None: as all), so that
    they may be over when it waits.
    """
    shared = Prompt.from_keys(range(prompt_tokens // block_tokens), block_tokens=block_tokens, tokens=prompt_tokens)
    own = prompt_tokens - shared.reusable_blocks * block_tokens + output_tokens
    rows = max(min((memory_tokens - prompt_tokens) // own, running_max), 1)
    jobs: list[Job] = []

    def sends(client: int, at_ns: int, prompt: Prompt, outputs: int, ends: int) -> None:
        jobs.append(Job(Request(len(jobs), client, at_ns, prompt, outputs), ends))

    sends(0, 0, shared, 1, 1)
    own_outputs = own_output_tokens or output_tokens
    for _ in range(rows):
        sends(0, WORST_WAIT_SENT_NS, shared, own_outputs, own_outputs)
    for ends in (max(output_tokens - shorter, 1), output_tokens):
        for other in range(others * rows):
            sends(1 + other // rows, WORST_WAIT_SENT_NS + 1, shared, output_tokens, ends)
    sends(0, WORST_WAIT_SENT_NS + 2, Prompt(prompt_tokens), output_tokens, output_tokens)
    return Workload("worst wait", tuple(jobs), tuple(Client(i, chr(ord("f") + i)) for i in range(1 + others)))
