"""The longest cached prefix wins, whatever the load: MemServe's router.

Source: Hu et al., MemServe (2024), whose global scheduler keeps a prompt tree for each instance and takes the longest
match; it is known to us by its rule only.  Of equal matches, also of none, the worker with the fewest requests waiting
or running wins, then the lowest id, which is our decision: with the lowest id alone every new prefix would go to worker
0.  So a popular prefix never leaves the worker where it was first, which is what E2 was made against.
"""

from typing import Any, ClassVar

import attrs
import msgspec

from fairsched.model.events import Cached, Event, Evicted, WorkerJoined, WorkerLeft
from fairsched.model.plan import Dispatch
from fairsched.model.prefix_index import PrefixIndex
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import Router
from fairsched.policies.prefix_copy import cached_tokens, followed, shareable_blocks, trimmed


class HeldState(msgspec.Struct, frozen=True):
    """What the workers are said to hold."""

    index: PrefixIndex


@attrs.frozen
class LongestPrefixRouter(Router[HeldState]):
    """The worker that holds most of the prompt; of equals the one with the fewest requests, then the lowest id.

    O(blocks) by memcmp, O(workers) and O(log prefixes).  A worker that could not hold the request comes last.
    """

    name: ClassVar[str] = "longest-prefix"
    state_type: ClassVar[Any] = HeldState
    follows_decoding: ClassVar[bool] = False

    def init(self) -> HeldState:
        return HeldState(PrefixIndex.empty(1))

    def check(self, state: HeldState) -> None:
        """The index is sound."""
        state.index.check()

    def observe(self, state: HeldState, event: Event) -> HeldState:
        """Caches filled and emptied, workers gone or come anew."""
        if isinstance(event, Cached | Evicted | WorkerLeft | WorkerJoined):
            return HeldState(followed(state.index, event))
        return state

    def route(self, state: HeldState, request: Request, view: ClusterView) -> tuple[Dispatch, HeldState]:
        index, prompt = state.index, request.prompt
        need = prompt.tokens + request.max_output_tokens
        match = index.match(prompt)
        held = match.blocks_by_worker(view.workers[-1].worker + 1)
        chosen = min(
            view.workers,
            key=lambda load: (
                load.kv_capacity_tokens < need,
                -cached_tokens(prompt, held[load.worker]),
                load.waiting_requests + load.running_requests,
                load.worker,
            ),
        )
        worker, capacity = chosen.worker, chosen.kv_capacity_tokens
        if capacity < need:
            return Dispatch(request.id, worker), state
        now_ns = max(view.now_ns, index.now_ns)
        index, _ = index.insert(prompt, shareable_blocks(index, prompt), worker, now_ns, hit=False, match=match)
        # What a worker holds and what is on its way to it, each at most its capacity.
        return Dispatch(request.id, worker), HeldState(trimmed(index, worker, 2 * capacity))
