"""A router's copy of what the workers hold: kept up to date by what it sends and by what they report.

A request's whole prompt is taken to be held by the worker it is sent to, since it will be.  That is wrong when the
request is given up before it is computed, and reports may be lost, so a worker is never believed to hold more than its
capacity beside the prompts that are on their way: what it would have evicted first is then taken to be gone.
"""

from fairsched.model.events import Cached, Event, Evicted, WorkerJoined, WorkerLeft
from fairsched.model.prefix_draft import ROOT, walk
from fairsched.model.prefix_index import PrefixIndex
from fairsched.model.request import Prompt

EXPIRE_AT_MOST = 16
"""So many old hits leave the window with each request, so that none pays for all that left in a quiet time."""


def shareable_blocks(index: PrefixIndex, prompt: Prompt) -> int:
    """Blocks of the prompt that a worker will hold: none in an index whose blocks have another size."""
    fits = prompt.block_tokens == index.block_tokens or len(index.nodes) == 1
    return prompt.blocks if fits else 0


def cached_tokens(prompt: Prompt, blocks: int) -> int:
    """Tokens that need not be computed where the first `blocks` blocks are held; at least one always must be."""
    return min(blocks, prompt.reusable_blocks) * prompt.block_tokens


def holds(index: PrefixIndex, prompt: Prompt, blocks: int, worker: int, node: int = ROOT) -> bool:
    """Whether the worker holds the first `blocks` blocks.

    O(nodes on the path) if `node` still ends where the prompt does, otherwise O(blocks) by memcmp.
    """
    if prompt.block_tokens != index.block_tokens:
        return False
    if not index.ends_with(node, prompt):
        node, known = walk(index.nodes, prompt.keys)
        if known < blocks:
            return False
    while index.nodes[node].start >= blocks and node != ROOT:
        node = index.nodes[node].parent
    return bool(index.nodes[node].held >> worker & 1)


def followed(index: PrefixIndex, event: Event, node: int = ROOT) -> PrefixIndex:
    """The index after an event: caches filled and emptied, workers gone or come anew.

    `node` is where the prompt of the event's owner ended when it was inserted, which saves a walk if it still does.
    """
    match event:
        case Evicted():
            return index.evicted(event.prompt, event.keep_blocks, event.worker, node)
        case Cached():
            blocks = min(event.blocks, shareable_blocks(index, event.prompt))
            if not blocks or holds(index, event.prompt, blocks, event.worker, node):
                return index
            now_ns = max(event.time_ns, index.now_ns)
            return index.insert(event.prompt, blocks, event.worker, now_ns, hit=False)[0]
        case WorkerLeft() | WorkerJoined():
            return index.without(event.worker)
        case _:
            return index


def trimmed(index: PrefixIndex, worker: int, most_tokens: int) -> PrefixIndex:
    """The worker holds at most so many tokens: what it would evict first goes.  O(1) if it does already."""
    excess = index.held_tokens(worker) - most_tokens
    if excess <= 0:
        return index
    for victim in index.victims(worker, excess):
        keep_blocks = victim.context_tokens // index.block_tokens
        index = index.evicted(index.nodes[victim.node].prompt, keep_blocks, worker)
    return index
