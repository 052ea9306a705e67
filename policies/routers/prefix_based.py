"""Routers by cached prefixes and counts of requests, and the copy of the caches that all routers by prefix keep.

**The copy** follows what the router sends and what the workers report.  The worker to which a request is sent counts
as holding the whole prompt, since it will.  That is wrong when the request is cancelled before it is computed, and
reports may be lost.  So a worker never counts as holding more than its capacity beside the prompts on their way: what
it would have evicted first counts as gone.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, ClassVar, Self

import attrs
import msgspec
from immutables import Map

from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.events import Cached, Event, Evicted, WorkerJoined, WorkerLeft
from fairsched.model.prefix_cache import ROOT, PrefixIndex, walk
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.base import Router
from fairsched.policies.routers.load_based import NoRouterState

EXPIRE_AT_MOST = 16
"""So many old hits leave the window with each request, so that none pays for all that left in a quiet time."""


def shareable_blocks(index: PrefixIndex, prompt: Prompt) -> int:
    """Return blocks of the prompt that a worker will hold: none in an index whose blocks have another size."""
    if prompt.block_tokens == index.block_tokens or len(index.nodes) == 1:
        return prompt.blocks
    return 0


def cached_tokens(prompt: Prompt, blocks: int) -> int:
    """Return tokens that need not be computed where the first `blocks` blocks are held; at least one always must be."""
    return min(blocks, prompt.reusable_blocks) * prompt.block_tokens


def holds(index: PrefixIndex, prompt: Prompt, blocks: int, worker: int, node: int = ROOT) -> bool:
    """Return whether the worker holds the first `blocks` blocks.

    O(nodes on the path) if `node` still ends where the prompt does, otherwise O(blocks) by memcmp.
    """
    if prompt.block_tokens != index.block_tokens:
        return False
    nodes = index.nodes
    if not index.ends_with(node, prompt):
        node, known = walk(nodes, prompt.keys)
        if known < blocks:
            return False
    found = nodes[node]
    while found.start >= blocks and node != ROOT:
        node = found.parent
        found = nodes[node]
    return bool(found.held >> worker & 1)


def followed(index: PrefixIndex, event: Event, node: int = ROOT) -> PrefixIndex:
    """Return the index after an event: caches filled and emptied, workers gone or come anew.

    `node` is where the prompt of the event's owner ended when it was inserted, which saves a walk if it still does.
    """
    if type(event) is Evicted:
        return index.evicted(event.prompt, event.keep_blocks, event.worker, node)
    if type(event) is Cached:
        return cached(index, event, node)
    if type(event) is WorkerLeft or type(event) is WorkerJoined:
        return index.without(event.worker)
    return index


def cached(index: PrefixIndex, event: Cached, node: int = ROOT) -> PrefixIndex:
    """Return the index after a worker cached a prompt; `node` is as in `followed`."""
    prompt, known = event.prompt, index.nodes.get(node)
    if known is not None and known.prompt is prompt and known.held >> event.worker & 1 and known.end >= event.blocks:
        return index
    blocks = min(event.blocks, shareable_blocks(index, prompt))
    if not blocks or holds(index, prompt, blocks, event.worker, node):
        return index
    return index.insert(prompt, blocks, event.worker, max(event.time_ns, index.now_ns), hit=False)[0]


def trimmed(index: PrefixIndex, worker: int, most_tokens: int) -> PrefixIndex:
    """Trim what the worker holds to at most so many tokens: what it would evict first goes.  O(1) if it does
    already."""
    excess = index.held_tokens(worker) - most_tokens
    if excess <= 0:
        return index
    for victim in index.victims(worker, excess):
        keep_blocks = victim.context_tokens // index.block_tokens
        index = index.evicted(index.nodes[victim.node].prompt, keep_blocks, worker)
    return index


# --- workers by position ----------------------------------------------------------------------------------------------


def numbered(workers: Sequence[WorkerLoad]) -> bool:
    """Return whether each worker's id is its position, since ids ascend.  O(1)."""
    return workers[-1].worker == len(workers) - 1


def place(workers: Sequence[WorkerLoad], worker: int) -> int:
    """Return the position of a worker that is there.  O(1) where ids are positions."""
    if numbered(workers):
        return worker
    return next(i for i, load in enumerate(workers) if load.worker == worker)


def mask_of(workers: Sequence[WorkerLoad]) -> int:
    """Return the bit mask of these workers."""
    if numbered(workers):
        return (1 << len(workers)) - 1
    mask = 0
    for load in workers:
        mask |= 1 << load.worker
    return mask


# --- the longest cached prefix ----------------------------------------------------------------------------------------


class HeldState(msgspec.Struct, frozen=True):
    """What the workers are said to hold."""

    index: PrefixIndex


@attrs.frozen
class PrefixRouter(Router[HeldState]):
    """A router that chooses by what workers are said to hold; a subclass says how (`rank`).

    It keeps the copy of the caches.  O(blocks) by memcmp, O(workers) and O(log prefixes).
    """

    state_type: ClassVar[type[HeldState]] = HeldState
    follows_decoding: ClassVar[bool] = False

    @abstractmethod
    def rank(self, load: WorkerLoad, prompt_tokens: int, cached_tokens: int) -> Any:
        """Return what orders the workers, the least first, of a prompt of which this worker holds `cached_tokens`."""

    def choose(self, request: Request, workers: Sequence[WorkerLoad], cached: Sequence[int]) -> WorkerLoad:
        """Return the worker of a request, of whose prompt worker i holds `cached[i]` tokens: of those that could hold
        it, if any, the one that ranks least."""
        tokens, need = request.prompt.tokens, request.prompt.tokens + request.max_output_tokens
        return min(
            workers, key=lambda w: (w.kv_capacity_tokens < need, self.rank(w, tokens, cached[w.worker]), w.worker)
        )

    def init(self) -> HeldState:
        return HeldState(PrefixIndex.empty(1))

    def check(self, state: HeldState) -> None:
        state.index.check()

    def observe(self, state: HeldState, event: Event) -> HeldState:
        index = followed(state.index, event)
        return state if index is state.index else HeldState(index)

    def route(self, state: HeldState, request: Request, view: ClusterView) -> tuple[Dispatch, HeldState]:
        index, prompt = state.index, request.prompt
        match = index.match(prompt)
        held = match.blocks_by_worker(view.workers[-1].worker + 1)
        chosen = self.choose(request, view.workers, [cached_tokens(prompt, blocks) for blocks in held])
        worker, capacity = chosen.worker, chosen.kv_capacity_tokens
        if capacity < prompt.tokens + request.max_output_tokens:
            return Dispatch(request.id, worker), state
        now_ns = max(view.now_ns, index.now_ns)
        index, _ = index.insert(prompt, shareable_blocks(index, prompt), worker, now_ns, hit=False, match=match)
        # What a worker holds and what is on its way to it, each at most its capacity.
        return Dispatch(request.id, worker), HeldState(trimmed(index, worker, 2 * capacity))


@attrs.frozen
class LongestPrefixRouter(PrefixRouter):
    """The worker that holds most of the prompt; of equals the one with the fewest requests, then the lowest id.

    Source: Hu et al., MemServe (2024), whose global scheduler keeps a prompt tree for each instance and takes the
    longest match; we know its rule only.  Of equal matches, also of none, fewest requests decide, which is our
    decision: with the lowest id alone every new prefix would go to worker 0.  A popular prefix never leaves the worker
    where it was first, whatever the load; E2 was made against that.  A worker that could not hold the request comes
    last.
    """

    name: ClassVar[str] = "longest-prefix"

    def rank(self, load: WorkerLoad, prompt_tokens: int, cached_tokens: int) -> tuple[int, int]:
        return -cached_tokens, load.waiting_requests + load.running_requests


P_LM_1 = Theorem(
    "P-LM-1",
    "of workers that can hold the request one that misses more of it and has as many requests as another, or misses as "
    "much and has more, is not chosen; nor does the choice change where what is missed, or what each has with the new "
    "one, counts k times",
    "LMetric (2603.15202); stated by this library",
)
P_LM_2 = Theorem(
    "P-LM-2",
    "of a prompt of n > 1 tokens the chosen worker has, with it, fewer than n times the requests that another which "
    "can hold it would have",
    "this library",
    bound="n (b + 1) - 1",
)


@attrs.frozen
class LMetric(PrefixRouter):
    """The least product of the prompt's tokens that a worker misses and its requests with this one; then the fewest
    requests, then the lowest id.

    Source: Zhang et al., LMetric (arXiv 2603.15202): new prefill tokens times batch size, without a weight to tune.
    At least one token is always missed, so that no product is 0 and two idle workers are told apart by their caches.
    """

    name: ClassVar[str] = "lmetric"
    theorems: ClassVar[tuple[Theorem, ...]] = (P_LM_1, P_LM_2)

    def rank(self, load: WorkerLoad, prompt_tokens: int, cached_tokens: int) -> tuple[int, int]:
        requests = load.waiting_requests + load.running_requests
        return (prompt_tokens - cached_tokens) * (requests + 1), requests


# --- the oracle partition ---------------------------------------------------------------------------------------------


@attrs.frozen
class OraclePartition(Router[NoRouterState]):
    """The worker that was assigned to the request's key portion, before the first request came, with equal work for
    all.

    Source: Preble's appendix, which compares E2 with such an oracle; its released code labels a request by its tool or
    its document and gives each label to the next worker in turn.  Ours knows every request of the workload, with its
    prompt and the output that it declares.  Requests are grouped by the *key portion* of their prompts, the deepest
    part that others share and that is longer than all before it.  A group's work is its key portion once and the rest
    of each request; groups go to the worker with the least work so far, the largest group first.  It knows neither
    arrival times nor loads, and cannot be had in service: it is a yardstick.  `OraclePartition.of` assigns workers.

    A request that was not foreseen, or whose worker is not there, goes to the worker with the fewest requests.  O(log
    n), or O(workers).
    """

    name: ClassVar[str] = "oracle-partition"
    state_type: ClassVar[type[NoRouterState]] = NoRouterState

    assigned: Mapping[int, int] = attrs.field(default=Map(), repr=False, metadata={"text": False})
    """The worker of each request, by its id."""

    @classmethod
    def of(cls, requests: Iterable[Request], workers: int) -> Self:
        """Return the partition of a workload over workers 0 to `workers` - 1.  O(requests log requests).

        Raises `ValueError` without workers.
        """
        if workers < 1:
            raise ValueError(f"a partition has at least one part, not {workers}")
        every = sorted(requests, key=lambda request: request.id)
        loads = [(0, worker) for worker in range(workers)]
        heapify(loads)
        assigned: dict[int, int] = {}
        for work, group in _groups(every):
            load, worker = loads[0]
            heapreplace(loads, (load + work, worker))
            assigned |= dict.fromkeys(group, worker)
        return cls(Map(assigned))

    def informed(self, requests: Sequence[Request], workers: int) -> Self:
        """Return the partition of this workload."""
        return type(self).of(requests, workers)

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        worker = self.assigned.get(request.id, -1)
        if not any(load.worker == worker for load in view.workers):
            worker = min(view.workers, key=lambda load: load.waiting_requests + load.running_requests).worker
        return Dispatch(request.id, worker), state


def _groups(requests: Sequence[Request]) -> list[tuple[int, list[int]]]:
    """Return the ids of each group with its work in tokens, the most work first; of equals the one with the lowest
    id."""
    trees: dict[int, PrefixIndex] = {}
    for request in requests:
        size = request.prompt.block_tokens
        index = trees.get(size) or PrefixIndex.empty(1)
        trees[size], _ = index.insert(request.prompt, request.prompt.blocks, 0, 0)
    ends = [trees[request.prompt.block_tokens].match(request.prompt).node for request in requests]
    shared = {size: Counter[int]() for size in trees}
    for request, end in zip(requests, ends, strict=True):
        size = request.prompt.block_tokens
        shared[size].update(trees[size].path(end))
    groups: dict[tuple[int, int], list[Request]] = {}
    keys: dict[tuple[int, int], int] = {}
    for request, end in zip(requests, ends, strict=True):
        size = request.prompt.block_tokens
        node, blocks = _key_portion(trees[size], shared[size], end)
        # A request that shares nothing is a group alone: its id is made negative, so that it meets no node.
        name = (size, node) if node != ROOT else (0, -request.id - 1)
        groups.setdefault(name, []).append(request)
        keys[name] = blocks * size
    made = []
    for name, members in groups.items():
        rest = sum(r.prompt.tokens - keys[name] + r.max_output_tokens for r in members)
        made.append((keys[name] + rest, [r.id for r in members]))
    return sorted(made, key=lambda group: (-group[0], group[1][0]))


def _key_portion(index: PrefixIndex, shared: Mapping[int, int], end: int) -> tuple[int, int]:
    """Return the deepest node of a prompt, which ends with `end`, that others share and that is longer than all before
    it, and where it ends."""
    for node in index.path(end):
        one = index.nodes[node]
        if shared[node] > 1 and one.end - one.start > one.start:
            return node, one.end
    return ROOT, 0
