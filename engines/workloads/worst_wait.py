"""A world in which a client waits nearly as long as its gate and its worker allow.

Client f owes all that it may: it alone sends requests with one cached prefix, which fill the memory with outputs.
While they run client g comes, and then f's next request.  When the memory is free, g fills it twice in the same way:
once with the credit that it has, which it pays back while f does, and once more with the credit of the round in which f
would go next.  Every request has a long context and computes one block of its prompt, so that tokens are as slow as
they can be.
"""

from fairsched.model.request import Client, Job, Prompt, Request, Workload

SENT_NS = 10**13
"""When f fills the memory: its first request, which computes the prefix, is over."""


def worst_wait_world(
    memory_tokens: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    running_max: int = 256,
    shorter: int = 1,
    block_tokens: int = 1,
) -> Workload:
    """Return the world for a memory and the largest request; the last request waits, which is of f.

    g's first requests end `shorter` tokens earlier than they may.
    """
    shared = Prompt.from_keys(range(prompt_tokens // block_tokens), block_tokens=block_tokens, tokens=prompt_tokens)
    own = prompt_tokens - shared.reusable_blocks * block_tokens + output_tokens
    rows = max(min((memory_tokens - prompt_tokens) // own, running_max), 1)
    jobs: list[Job] = []

    def sends(client: int, at_ns: int, prompt: Prompt, outputs: int, ends: int) -> None:
        jobs.append(Job(Request(len(jobs), client, at_ns, prompt, outputs), ends))

    sends(0, 0, shared, 1, 1)
    for _ in range(rows):
        sends(0, SENT_NS, shared, output_tokens, output_tokens)
    for ends in (max(output_tokens - shorter, 1), output_tokens):
        for _ in range(rows):
            sends(1, SENT_NS + 1, shared, output_tokens, ends)
    sends(0, SENT_NS + 2, Prompt(prompt_tokens), output_tokens, output_tokens)
    return Workload("worst wait", tuple(jobs), (Client(0, "f"), Client(1, "g")))
