"""What of SGLang's scheduler matters to the order of its queue, in a page: the same fields, calls and lists, no model.

The loop follows `Scheduler._get_new_batch_prefill_raw` of SGLang 0.5.23: a pass without room or without anybody waiting
asks for no order; whoever is let in leaves the list; a long prompt goes on in chunks; retracted requests go to the end.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairsched.engines.adapters.common import Chosen
from fairsched.engines.adapters.sglang.settings import SglangSettings
from fairsched.engines.adapters.sglang.shim import QueueConnection, Shim, chosen
from fairsched.model.events import Event


class FINISH_LENGTH:
    """SGLang's name for an output that is whole."""


class FINISH_ABORT:
    """SGLang's name for a request whose caller gave up."""


class StandInReq:
    """A request.  Its first `shared` tokens are those of every other prompt with that many."""

    def __init__(self, rid: str, client: object, prompt: int, most: int, shared: int = 0) -> None:
        self.rid = rid
        self.origin_input_ids = range(prompt)
        self.output_ids: list[int] = []
        params = None if client is None else {"client": client}
        self.sampling_params: Any = SimpleNamespace(max_new_tokens=most, custom_params=params)
        self.routing_key: str | None = None
        self.shared = min(shared, prompt - 1)
        self.prefix_len = 0
        self.num_matched_prefix_tokens = 0
        self.cached_tokens = 0
        self.extend_batch_idx = 0
        self.extend_end: int | None = None
        self.retraction_count = 0
        self.finished_reason: object | None = None
        self.finished_len: int | None = None
        self.extended = 0

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.origin_input_ids) + len(self.output_ids)


class StandInPolicy:
    """`SchedulePolicy`: the queue as it is, or by the longest cached prefix."""

    def __init__(self, policy: str, tokens: int, seats: int) -> None:
        self.policy = policy
        self.enable_priority_scheduling = False
        self.cached: set[int] = set()
        pool = SimpleNamespace(size=tokens, available_size=lambda: tokens)
        seats_pool = SimpleNamespace(size=seats)
        self.tree_cache = SimpleNamespace(
            token_to_kv_pool_allocator=pool, req_to_token_pool=seats_pool, evictable_size=lambda: 0
        )

    def match(self, request: StandInReq) -> None:
        """Look at the cache."""
        request.num_matched_prefix_tokens = request.shared if request.shared in self.cached else 0

    def calc_priority(self, waiting_queue: list[StandInReq]) -> None:
        """SGLang's own order, in place."""
        for request in waiting_queue:
            self.match(request)
        if self.policy == "lpm":
            waiting_queue.sort(key=lambda request: -request.num_matched_prefix_tokens)


class StandIn:
    """The scheduler, with the hook around `calc_priority`.  `before_fill` is called with each ordered queue."""

    def __init__(
        self, settings: SglangSettings, *, tokens: int = 80, seats: int = 4, budget: int = 16, own: str = "fcfs"
    ) -> None:
        self.chosen: Chosen = chosen(settings)
        self.policy = StandInPolicy(own, tokens, seats)
        self.shim = Shim(settings, self.chosen, self.policy, QueueConnection())
        self.events: list[Event] = []
        self.shim.tracker.bus.listeners.append(self.events.extend)
        self.waiting_queue: list[Any] = []
        self.running: list[StandInReq] = []
        self.chunked: StandInReq | None = None
        self.let_in: list[str] = []
        self.computed = 0
        self.before_fill: Callable[[list[Any]], None] = lambda queue: None
        self._tokens, self._seats, self._budget = tokens, seats, budget

    def add(self, rid: str, client: object, prompt: int, most: int, shared: int = 0) -> None:
        """A request comes."""
        self.waiting_queue.append(StandInReq(rid, client, prompt, most, shared))

    def step(self) -> None:
        """Fill a batch with prompts, or decode; then take out who no longer fits."""
        batch = self._fill()
        for request in batch or list(self.running):
            if request is not self.chunked:
                request.output_ids.append(0)
                self.computed += 1
                if len(request.output_ids) >= request.sampling_params.max_new_tokens:
                    self._end(request, FINISH_LENGTH())
        while sum(request.tokens for request in self.running) > self._tokens and len(self.running) > 1:
            self._retract(self.running.pop())

    def _fill(self) -> list[StandInReq]:
        batch: list[StandInReq] = []
        room = self._seats - len(self.running) - (self.chunked is not None)
        if (not self.waiting_queue or room <= 0) and self.chunked is None:
            return batch
        self.order()
        left = self._budget
        if self.chunked is not None:
            left -= self._extend(self.chunked, left, batch)
        for request in self.waiting_queue:
            held = sum(each.tokens for each in [*self.running, *batch])
            if left <= 0 or self.chunked is not None or room <= 0 or (held and held + request.tokens > self._tokens):
                break
            room -= 1
            self.policy.match(request)
            request.prefix_len = request.num_matched_prefix_tokens
            if not request.retraction_count:
                request.cached_tokens = request.prefix_len
            self.let_in.append(request.rid)
            left -= self._extend(request, left, batch)
        self.waiting_queue = [request for request in self.waiting_queue if request not in batch]
        for request in batch:
            if request is not self.chunked and request not in self.running:
                self.running.append(request)
                self.policy.cached.add(request.shared)
        return batch

    def order(self) -> None:
        """SGLang asks for an order, and the hook is around that."""
        before, ids = self.waiting_queue, sorted(map(id, self.waiting_queue))
        self.shim.order(self.waiting_queue, lambda: self.policy.calc_priority(self.waiting_queue))
        assert self.waiting_queue is before
        assert sorted(map(id, self.waiting_queue)) == ids
        self.before_fill(self.waiting_queue)

    def _extend(self, request: StandInReq, left: int, batch: list[StandInReq]) -> int:
        count = min(request.tokens - request.prefix_len, left)
        request.extend_end = request.prefix_len + count
        request.prefix_len += count
        request.extended += count
        request.extend_batch_idx += 1
        batch.append(request)
        self.chunked = request if request.extend_end < request.tokens else None
        return count

    def _retract(self, request: StandInReq) -> None:
        request.prefix_len = request.extend_batch_idx = request.num_matched_prefix_tokens = 0
        request.extend_end = None
        request.retraction_count += 1
        self.waiting_queue.append(request)

    def _end(self, request: StandInReq, reason: object) -> None:
        request.finished_reason = reason
        if request in self.running:
            self.running.remove(request)

    def abort(self, rid: str) -> None:
        """A caller gives up."""
        for request in list(self.waiting_queue):
            if request.rid == rid:
                self.waiting_queue.remove(request)
        for request in list(self.running):
            if request.rid == rid:
                self._end(request, FINISH_ABORT())
        if self.chunked is not None and self.chunked.rid == rid:
            self._end(self.chunked, FINISH_ABORT())
            self.chunked = None

    def run(self) -> None:
        """Serve until nothing is left, and look once more."""
        for _ in range(100_000):
            if not self.running and not self.waiting_queue and self.chunked is None:
                break
            self.step()
        self.order()


def requests(rng: random.Random, count: int) -> list[StandInReq]:
    """Requests of three clients that each fit."""
    return [
        StandInReq(f"r{i}", rng.choice("aab"), rng.randint(1, 30), rng.randint(1, 30), rng.choice([0, 0, 8]))
        for i in range(count)
    ]
