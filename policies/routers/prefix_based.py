"""The oracle partition: every prefix has its worker, fixed before the first request comes, with equal work for all.

Source: Preble's appendix, which compares E2 with such an oracle; its released code labels a request by its tool or its
document and gives each label to the next worker in turn.  Ours knows more: every request of the workload, with its
prompt and the output that it declares.  Requests are grouped by the *key portion* of their prompts, the deepest part
that others share and that is longer than all before it; a group's work is its key portion once and the rest of each
request; groups go to the worker with the least work so far, the largest group first.

It knows neither when requests come nor how loaded anybody is, and nothing of it can be had in service: it is a
yardstick for routers that have to find the partition while they serve.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, ClassVar, Self

import attrs
from immutables import Map

from fairsched.model.plan import Dispatch
from fairsched.model.prefix_draft import ROOT
from fairsched.model.prefix_index import PrefixIndex
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import Router
from fairsched.policies.router import NoRouterState


@attrs.frozen
class OraclePartition(Router[NoRouterState]):
    """The worker that was assigned to the request's key portion; `OraclePartition.of` assigns them.

    One that was not foreseen, or whose worker is not there, goes to the worker with the fewest requests.  O(log n), or
    O(workers).
    """

    name: ClassVar[str] = "oracle-partition"
    state_type: ClassVar[Any] = NoRouterState

    assigned: Mapping[int, int] = attrs.field(default=Map(), repr=False, metadata={"text": False})
    """The worker of each request, by its id."""

    @classmethod
    def of(cls, requests: Iterable[Request], workers: int) -> Self:
        """The partition of a workload over workers 0 to `workers` - 1.  O(requests log requests).

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
        """The partition of this workload."""
        return type(self).of(requests, workers)

    def init(self) -> NoRouterState:
        return NoRouterState()

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        worker = self.assigned.get(request.id, -1)
        if not any(load.worker == worker for load in view.workers):
            worker = min(view.workers, key=lambda load: load.waiting_requests + load.running_requests).worker
        return Dispatch(request.id, worker), state


def _groups(requests: Sequence[Request]) -> list[tuple[int, list[int]]]:
    """The ids of each group with its work in tokens, the most work first; of equals the one with the lowest id."""
    trees: dict[int, PrefixIndex] = {}
    for request in requests:
        size = request.prompt.block_tokens
        index = trees.get(size) or PrefixIndex.empty(1)
        trees[size], _ = index.insert(request.prompt, request.prompt.blocks, 0, 0)
    groups: dict[tuple[int, int], list[Request]] = {}
    keys: dict[tuple[int, int], int] = {}
    for request in requests:
        size = request.prompt.block_tokens
        node, blocks = _key_portion(trees[size], request)
        # Who shares nothing is a group alone: ids of requests are made negative, so that they meet no node.
        name = (size, node) if node != ROOT else (0, -request.id - 1)
        groups.setdefault(name, []).append(request)
        keys[name] = blocks * size
    made = []
    for name, members in groups.items():
        rest = sum(r.prompt.tokens - keys[name] + r.max_output_tokens for r in members)
        made.append((keys[name] + rest, [r.id for r in members]))
    return sorted(made, key=lambda group: (-group[0], group[1][0]))


def _key_portion(index: PrefixIndex, request: Request) -> tuple[int, int]:
    """The deepest node of the prompt that others share and that is longer than all before it, and where it ends."""
    node = index.match(request.prompt).node
    while node != ROOT:
        one = index.nodes[node]
        if index.hits(0, node) > 1 and one.end - one.start > one.start:
            return node, one.end
        node = one.parent
    return ROOT, 0
