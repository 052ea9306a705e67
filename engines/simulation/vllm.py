"""vLLM's V1 engine on one worker: its scheduler and block pool to the letter, with step times of a latency model.

`VllmScheduler.schedule` says what the next step computes, and `update` takes a step's tokens, as vLLM's `Scheduler` and
`AsyncScheduler` do; `VllmEngine` plays a workload against it in time, as the core of vLLM's engine does:

- A step first serves what runs, in order of admission, then lets in what waits, until its token budget is spent.
- A request that finds no block preempts the last that runs, perhaps itself, which waits in front of all others, loses
  its blocks, and computes again what it does not find in the prefix cache.  In such a step no request enters.
- Blocks are named by all tokens up to their end; the free ones stay cached until taken, oldest first, of a request that
  left the last block first.  A cached prompt computes its last token again, and so its last block.
- With asynchronous scheduling two steps are in flight: the second is decided when the first begins, without its tokens.
  A request that comes enters when a step ends, while the next already runs, and waits for that; blocks of a finished
  request are free one step late.

A radix tree (`model.prefix_cache`) shares and evicts by tokens, and cannot say which of equal blocks vLLM evicts; so
blocks are kept here, by number.  Source: vLLM 0.32.0 and 0.19.0, `vllm/v1/core`; tests/integration/test_vllm.py holds
each step to the former.
"""

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import islice
from types import SimpleNamespace
from typing import Any, Literal

import attrs
from msgspec.structs import replace

from fairsched.engines.adapters.vllm import (
    FairQueue,
    KvMemory,
    Prefixes,
    VllmSettings,
    VllmTracker,
    chosen,
    unreserved_tokens,
)
from fairsched.engines.analysis import Recorder, Run, run_charging
from fairsched.engines.logs import CanonicalLog
from fairsched.engines.serving import AdmissionGuard, EventBus
from fairsched.engines.simulation.calls import CallGraph
from fairsched.engines.simulation.simulated_worker import PolicyStallError
from fairsched.model import events as ev
from fairsched.model.machine import LatencyModel
from fairsched.model.request import KEY_BYTES, TOKENS_MAX, Client, Job, Prompt, Request, Workload

NULL_BLOCK = 0
"""vLLM keeps the first block for itself."""
PATIENCE_MS = 3_600_000
"""How long a policy may take over a decision, on the clock of the simulating machine."""


def _positive(instance: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name} is at least 1, not {value}")


@attrs.frozen
class VllmOptions:
    """Options of vLLM, by its names.  `num_gpu_blocks` is what vLLM logs, its own block included; None takes the memory
    of the latency model.  `max_model_len` is the longest prompt with its output; None: no limit.

    `release` is whose scheduler it is.  That of 0.19.0 takes all free blocks in the order in which they were left, and
    keeps to `long_prefill_token_threshold` also for a request alone; 0.16 is like it, and has no
    `scheduler_reserve_full_isl`: a request enters if its first chunk fits.
    """

    num_gpu_blocks: int | None = None
    block_size: int = attrs.field(default=16, validator=_positive)
    max_num_batched_tokens: int = attrs.field(default=2048, validator=_positive)
    max_num_seqs: int = attrs.field(default=256, validator=_positive)
    max_model_len: int | None = None
    long_prefill_token_threshold: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    release: Literal["0.19", "0.32"] = attrs.field(default="0.32", validator=attrs.validators.in_(("0.19", "0.32")))

    def __attrs_post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}), and each request needs a token of a step"
            )


class Status(Enum):
    """Where a request is, by vLLM's names."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_ABORTED = auto()


class VllmCall:
    """A request as vLLM's scheduler keeps it.

    Of its `num_tokens` (prompt and output so far) and `num_output_placeholders` (outputs of steps whose results are not
    back) it has `num_computed_tokens`, the first `num_cached_tokens` of them found in the cache, with those of steps in
    flight (`num_in_flight_tokens`).  Of a preempted one `num_stale_output_tokens` are in flight.  It holds `blocks`, of
    which `num_cached_blocks` have their names.  It ends after `output_tokens`, which the scheduler does not know.
    From `next_decode_eligible_step` on it decodes.
    """

    __slots__ = (
        "block_hashes", "blocks", "extend_left", "is_paused", "job", "max_tokens", "next_decode_eligible_step",
        "num_cached_blocks", "num_cached_tokens", "num_computed_tokens", "num_in_flight_tokens",
        "num_output_placeholders", "num_output_tokens", "num_preemptions", "num_prompt_tokens",
        "num_stale_output_tokens", "num_tokens", "output_tokens", "request_id", "resumable", "sampling_params", "status"
    )  # fmt: skip

    def __init__(self, job: Job, block_hashes: list[bytes]) -> None:
        self.job = job
        self.num_prompt_tokens = self.num_tokens = job.request.prompt.tokens
        self.max_tokens, self.output_tokens = job.request.max_output_tokens, job.output_tokens
        self.block_hashes, self.blocks = block_hashes, list[int]()
        self.num_computed_tokens = self.num_cached_tokens = self.num_cached_blocks = self.num_in_flight_tokens = 0
        self.num_output_placeholders = self.num_stale_output_tokens = self.num_output_tokens = 0
        self.num_preemptions = self.extend_left = self.next_decode_eligible_step = 0
        self.resumable = self.is_paused = False
        self.request_id = str(job.request.id)
        self.sampling_params: SimpleNamespace | None = None
        self.status = Status.WAITING

    def ends_in_flight(self) -> bool:
        """Return whether a step in flight makes the last token that it may have."""
        ahead = self.num_output_placeholders
        return ahead > 0 and self.num_computed_tokens + 2 - ahead >= self.num_prompt_tokens + self.max_tokens

    def is_finished(self) -> bool:
        return self.status is Status.FINISHED_STOPPED or self.status is Status.FINISHED_ABORTED


class FcfsQueue(deque[VllmCall]):
    """The queue of requests that wait, with vLLM's calls; those that were taken out or passed over are in front."""

    add_request = deque.append
    prepend_request = deque.appendleft
    pop_request = deque.popleft
    remove_request = deque.remove

    def peek_request(self) -> VllmCall:
        return self[0]

    def prepend_requests(self, requests: Iterable[VllmCall]) -> None:
        """Put requests in front, the last one first."""
        self.extendleft(requests)


class BlockPool:
    """Blocks by number: how many requests hold each, its name once it is full, and the free ones in the order in which
    they are taken, perhaps those `nameless_first`."""

    def __init__(self, blocks: int, caching: bool, nameless_first: bool) -> None:
        self._nameless_first = nameless_first
        self.free = OrderedDict.fromkeys(range(NULL_BLOCK + 1, blocks))
        self.caching = caching
        self.holders = [0] * blocks
        self.names: list[bytes | None] = [None] * blocks
        self._cached: dict[bytes, list[int]] = {}

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Return the blocks with the first of these names, up to the first that is not cached."""
        found = []
        for name in names:
            blocks = self._cached.get(name)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def unused(self, blocks: Iterable[int]) -> int:
        return sum(not self.holders[block] for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Let one more request hold each of these blocks."""
        for block in blocks:
            if not self.holders[block]:
                del self.free[block]
            self.holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Return the first free blocks, which lose their names."""
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.holders[block] = 1
            name = self.names[block]
            if name is not None:
                self.names[block] = None
                same = self._cached[name]
                same.remove(block)
                if not same:
                    del self._cached[name]
        return taken

    def name(self, blocks: Iterable[int], names: Iterable[bytes]) -> None:
        """Give full blocks their names: from now on they are found."""
        if self.caching:
            for block, name in zip(blocks, names, strict=True):
                self.names[block] = name
                self._cached.setdefault(name, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Let one request fewer hold these blocks, the last one first."""
        nameless: list[int] = []
        named: list[int] = []
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                (nameless if self._nameless_first and self.names[block] is None else named).append(block)
        for block in reversed(nameless):
            self.free[block] = None
            self.free.move_to_end(block, last=False)
        self.free.update(dict.fromkeys(named))


Step = list[tuple[VllmCall, int, bool]]
"""The requests of a step, how many tokens of each are computed, and whether it has a token of output then."""


class VllmScheduler:
    """vLLM's scheduler: `schedule` a step, `update` it with its results, in the same order; at most two are in flight,
    or one without asynchronous scheduling.  The last step let in `admitted`, took out `preempted`, and left out
    `held`, which run.
    """

    def __init__(self, options: VllmOptions, num_gpu_blocks: int) -> None:
        self.options = options
        self._is_new = options.release == "0.32"
        self.pool = BlockPool(num_gpu_blocks, options.enable_prefix_caching, self._is_new)
        self.waiting: Any = FcfsQueue()
        self.running: list[VllmCall] = []
        self.admitted: list[VllmCall] = []
        self.preempted: list[VllmCall] = []
        self.held: list[VllmCall] = []
        self._numbers: dict[tuple[bytes, bytes], bytes] = {}
        self._named = self._steps = 0

    def add(self, job: Job) -> VllmCall:
        call = self._call(job)
        self.waiting.add_request(call)
        return call

    def _call(self, job: Job) -> VllmCall:
        return VllmCall(job, self._hashes(job.request.prompt))

    def abort(self, call: VllmCall) -> None:
        """End a request whose caller gave up; what of it is in flight comes to nothing."""
        if call.status is Status.RUNNING:
            self.running.remove(call)
        else:
            self.waiting.remove_request(call)
        call.status = Status.FINISHED_ABORTED
        self._free(call)

    def schedule(self) -> Step:
        """Return the next step, empty if there is nothing to do; O(running + blocks of what enters)."""
        self._steps += 1
        options = self.options
        budget, threshold = options.max_num_batched_tokens, options.long_prefill_token_threshold
        if self._is_new and len(self.running) + len(self.waiting) < 2:
            threshold = 0
        step: list[tuple[VllmCall, int]] = []
        self.admitted, self.preempted, self.held = [], [], []
        running, place = self.running, 0
        while place < len(running) and budget:
            call = running[place]
            place += 1
            ahead, computed = call.num_output_placeholders, call.num_computed_tokens
            if call.ends_in_flight():
                continue
            if self._steps < call.next_decode_eligible_step:
                self.held.append(call)
                continue
            count = call.num_tokens + ahead - computed
            if 0 < threshold < count:
                count = threshold
            if count > budget:
                count = budget
            if not count:
                continue
            if not self._grow(call, computed + count):
                break
            step.append((call, count))
            budget -= count
        if not self.preempted:
            self._admit(step, budget, threshold)
        return self._scheduled(step)

    def _grow(self, call: VllmCall, tokens: int) -> bool:
        """Give a running request blocks for so many tokens, and preempt the last that runs as long as there are too
        few; return whether the request still runs."""
        more = -(-tokens // self.options.block_size) - len(call.blocks)
        if more > 0:
            while more > len(self.pool.free):
                last = self.running.pop()
                self._preempt(last)
                if last is call:
                    return False
            call.blocks += self.pool.take(more)
        self._name(call, min(tokens, call.num_tokens))
        return True

    def _preempt(self, call: VllmCall) -> None:
        self._free(call)
        call.status = Status.PREEMPTED
        call.num_computed_tokens = call.num_output_placeholders = 0
        call.num_stale_output_tokens = call.num_in_flight_tokens
        call.num_preemptions += 1
        self.waiting.prepend_request(call)
        self.preempted.append(call)

    def _admit(self, step: list[tuple[VllmCall, int]], budget: int, threshold: int) -> None:
        """Let in what waits, as long as the first has room; requests with outputs in flight are passed over."""
        passed: deque[VllmCall] = deque()
        waiting, size = self.waiting, self.options.block_size
        while budget and waiting and len(self.running) < self.options.max_num_seqs:
            call = waiting.peek_request()
            if call.num_stale_output_tokens:
                passed.appendleft(waiting.pop_request())
                continue
            found = self.find(call)
            cached = len(found) * size
            count = call.num_tokens - cached
            if 0 < threshold < count:
                count = threshold
            count = min(count, budget)
            must_fit = call.num_tokens if self.options.scheduler_reserve_full_isl else cached + count
            if -(-must_fit // size) - len(found) + self.pool.unused(found) > len(self.pool.free):
                break
            self.pool.hold(found)
            call.blocks = found + self.pool.take(-(-(cached + count) // size) - len(found))
            call.num_cached_blocks = len(found)
            self._name(call, cached + count)
            waiting.pop_request()
            self.running.append(call)
            self.admitted.append(call)
            call.status = Status.RUNNING
            call.num_computed_tokens = call.num_cached_tokens = cached
            step.append((call, count))
            budget -= count
        if passed:
            waiting.prepend_requests(passed)

    def find(self, call: VllmCall) -> list[int]:
        """Return the cached blocks of a request.  Its last token is always computed: it yields the next one."""
        return self.pool.find(islice(call.block_hashes, (call.num_tokens - 1) // self.options.block_size))

    def _scheduled(self, counts: list[tuple[VllmCall, int]]) -> Step:
        """Count the tokens of a step as computed, and those that it will have made as there."""
        step = []
        for call, count in counts:
            call.num_computed_tokens += count
            call.num_in_flight_tokens += count
            samples = call.num_computed_tokens >= call.num_tokens + call.num_output_placeholders
            if samples and self.options.async_scheduling:
                call.num_output_placeholders += 1
            step.append((call, count, samples))
        return step

    def update(self, step: Step) -> list[VllmCall]:
        """Take the results of a step; returns the requests that have a new token, in order."""
        produced = []
        ended = False
        for call, count, samples in step:
            if call.is_finished():
                continue
            call.num_in_flight_tokens -= count
            stale = call.num_stale_output_tokens > 0
            if stale:
                call.num_stale_output_tokens -= count
            if not samples:
                continue
            produced.append(call)
            call.num_tokens += 1
            call.num_output_tokens += 1
            if call.num_tokens // self.options.block_size > len(call.block_hashes):
                call.block_hashes.append(self._unique())
            if self.options.async_scheduling:
                if not stale:
                    call.num_output_placeholders -= 1
                if call.status is Status.RUNNING:
                    self._name(call, call.num_computed_tokens - call.num_output_placeholders)
            if call.num_output_tokens >= call.output_tokens:
                if call.status is Status.PREEMPTED:
                    self.waiting.remove_request(call)
                ended = True
                call.status = Status.FINISHED_STOPPED
                self._free(call)
        if ended:
            self.running = [call for call in self.running if call.status is Status.RUNNING]
        return produced

    def _free(self, call: VllmCall) -> None:
        self.pool.release(call.blocks)
        call.blocks = []
        call.num_cached_blocks = 0

    def _name(self, call: VllmCall, tokens: int) -> None:
        """Name the blocks of a request that are full with so many tokens."""
        full, named = tokens // self.options.block_size, call.num_cached_blocks
        if full > named:
            self.pool.name(call.blocks[named:full], call.block_hashes[named:full])
            call.num_cached_blocks = full

    def _hashes(self, prompt: Prompt) -> list[bytes]:
        """Return the names of the whole blocks of a prompt: of equal prefixes equal names."""
        size, keyed, names, parent = self.options.block_size, prompt.block_tokens, [], b""
        whole = prompt.tokens // size
        for start in range(0, whole * size, size):
            first, last = start // keyed, (start + size - 1) // keyed
            if last >= prompt.blocks:
                break
            content = prompt.keys[first * KEY_BYTES : (last + 1) * KEY_BYTES] + (start % keyed).to_bytes(4)
            parent = self._numbers.get((parent, content)) or self._numbers.setdefault((parent, content), self._unique())
            names.append(parent)
        return names + [self._unique() for _ in range(whole - len(names))]

    def _unique(self) -> bytes:
        self._named += 1
        return self._named.to_bytes(KEY_BYTES, "little")


class FairVllmScheduler(VllmScheduler):
    """vLLM's scheduler with the queue of a policy in place of its own, as `adapters.vllm.FairScheduler` is in vLLM.

    `clock` says the time in nanoseconds.  A decision may take long: it is not part of what is simulated.
    """

    def __init__(
        self,
        options: VllmOptions,
        num_gpu_blocks: int,
        settings: VllmSettings,
        clients: Sequence[Client],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(options, num_gpu_blocks)
        settings = replace(settings, clients={client.name: client.weight for client in clients} | settings.clients)
        policy = chosen(settings, options.max_num_batched_tokens)
        memory = KvMemory(self, options.block_size, reserves=settings.reserve_outputs)
        self.tracker = VllmTracker(
            AdmissionGuard(policy.policy, logging.getLogger("fairsched.simulation"), budget_ms=PATIENCE_MS),
            memory,
            settings.registry(),
            Prefixes(memory, policy.looks_at_cache and options.enable_prefix_caching),
            EventBus(None, []),
            options.max_model_len or TOKENS_MAX,
            clock,
            settings.client_key,
            unreserved_tokens(settings, memory.capacity_tokens),
        )
        self.waiting = FairQueue(self.tracker, lambda call: not self._calls[call.request_id].num_stale_output_tokens)
        self._names, self._key = [client.name for client in clients], settings.client_key
        self._calls: dict[str, VllmCall] = {}

    def _call(self, job: Job) -> VllmCall:
        call = super()._call(job)
        call.sampling_params = SimpleNamespace(extra_args={self._key: self._names[job.request.client]})
        self._calls[call.request_id] = call
        return call

    def schedule(self) -> Step:
        self.tracker.pause()
        in_the_way = []
        while (found := self.tracker.in_the_way(self.options.max_num_seqs - len(self.running))) is not None:
            call = self._calls[found.request_id]
            self.running.remove(call)
            self._preempt(call)
            in_the_way.append(call)
        self.waiting.open_step(self.options.max_num_seqs - len(self.running))
        step = super().schedule()
        self.preempted += in_the_way
        return step

    def _scheduled(self, counts: list[tuple[VllmCall, int]]) -> Step:
        self.waiting.settle()
        step = super()._scheduled(counts)
        if step:
            self.tracker.scheduled(id(step), {call.request_id: count for call, count in counts})
        return step

    def update(self, step: Step) -> list[VllmCall]:
        produced = super().update(step)
        self.tracker.delivered(id(step), [call.request_id for call, _, _ in step])
        for call in produced:
            if call.is_finished():
                del self._calls[call.request_id]
        return produced

    def abort(self, call: VllmCall) -> None:
        super().abort(call)
        self.tracker.leave(call)
        del self._calls[call.request_id]

    # --- what `KvMemory` asks of vLLM's manager of blocks ------------------------------------------------------------

    @property
    def block_pool(self) -> "FairVllmScheduler":
        return self

    def get_num_free_blocks(self) -> int:
        return len(self.pool.free)

    def get_blocks(self, request_id: str) -> SimpleNamespace:
        return SimpleNamespace(blocks=(self._calls[request_id].blocks,))

    def get_computed_blocks(self, call: VllmCall) -> tuple[SimpleNamespace, int]:
        """Return the cached blocks of a request, and their tokens."""
        found = self.find(call)
        counted = [SimpleNamespace(ref_cnt=self.pool.holders[block]) for block in found]
        return SimpleNamespace(blocks=(counted,)), len(found) * self.options.block_size


class VllmEngine:
    """vLLM's engine over a workload: requests come, steps begin and end, and `on_events` is told.

    The first step begins `first_step_ns` late, since its kernels are loaded, and the core waits for that.
    """

    def __init__(
        self,
        workload: Workload,
        latency: LatencyModel,
        options: VllmOptions | None = None,
        on_events: Callable[[list[ev.Event]], object] = lambda events: None,
        progress: Callable[[int], None] | None = None,
        first_step_ns: int = 0,
        settings: VllmSettings | None = None,
    ) -> None:
        options = options or VllmOptions()
        blocks = options.num_gpu_blocks or latency.kv_capacity_tokens // options.block_size + 1
        if blocks < 2:
            raise ValueError(f"num_gpu_blocks is at least 2, one of which is vLLM's own, not {blocks}")
        self.capacity_tokens = (blocks - 1) * options.block_size
        self.now_ns = 0
        self.scheduler = VllmScheduler(options, blocks)
        if settings is not None:
            self.scheduler = FairVllmScheduler(options, blocks, settings, workload.clients, lambda: self.now_ns)
        self._clients, self._latency, self._first_step_ns = workload.clients, latency, first_step_ns
        self._tell, self._progress = on_events, progress
        self._calls = CallGraph(workload.jobs)
        self._known: dict[int, VllmCall] = {}
        self._coming = [(job.request.arrival_ns, job.request.id) for job in self._calls.roots()]
        self._giving_up: list[tuple[int, int]] = []
        heapify(self._coming)
        self._leaving: set[VllmCall] = set()

    def run(self) -> None:
        """Serve the whole workload.  May be called once.  Raises `PolicyStallError` if requests wait for ever."""
        scheduler, depth = self.scheduler, 2 if self.scheduler.options.async_scheduling else 1
        in_flight: deque[tuple[Step, list[VllmCall], int]] = deque()
        free_ns = 0
        self._tell([ev.WorkerJoined(0, 0, self.capacity_tokens)])
        for client in self._clients:
            if not client.is_plain:
                self._tell([ev.configured(client, 0, 0)])
        while True:
            self._take()
            step = scheduler.schedule()
            self._scheduled(step)
            if step:
                self.now_ns, self._first_step_ns = self.now_ns + self._first_step_ns, 0
                free_ns = max(self.now_ns, free_ns) + self._step_ns(step)
                in_flight.append((step, scheduler.held, free_ns))
                if len(in_flight) < depth:
                    continue
            if in_flight:
                step, held, self.now_ns = in_flight.popleft()
                self._take()
                self._ended(step, held)
            elif times := [entries[0][0] for entries in (self._coming, self._giving_up) if entries]:
                self.now_ns = max(self.now_ns, min(times))
            elif not scheduler.preempted:
                break
        if self._known:
            raise PolicyStallError(f"the policy never lets in {len(self._known)} requests, {min(self._known)} first")

    def _take(self) -> None:
        """Let requests come whose time has come, then let callers give up."""
        events: list[ev.Event] = []
        while self._coming and self._coming[0][0] <= self.now_ns:
            at_ns, request_id = heappop(self._coming)
            job = self._calls.jobs[request_id]
            if (reason := self._refusal(job.request)) is not None:
                self._tell([*events, ev.Rejected(at_ns, 0, request_id, job.request.client, reason)])
                events = []
                self._end(request_id, False)
                continue
            self._known[request_id] = self.scheduler.add(job)
            events.append(ev.Arrived(at_ns, 0, replace(job.request, arrival_ns=at_ns)))
            if job.cancel_after_ns is not None:
                heappush(self._giving_up, (at_ns + job.cancel_after_ns, request_id))
        if events:
            self._tell(events)
        while self._giving_up and self._giving_up[0][0] <= self.now_ns:
            call = self._known.get(heappop(self._giving_up)[1])
            if call is not None:
                self._gave_up(call)

    def _refusal(self, request: Request) -> str | None:
        """Return why a request can never be served, or None.  Its last token needs no room."""
        need, longest = request.prompt.tokens + request.max_output_tokens, self.scheduler.options.max_model_len
        if longest is not None and need > longest:
            return f"request {request.id} may have {need} tokens, and max_model_len is {longest}"
        if need - 1 > self.capacity_tokens:
            return f"request {request.id} needs {need - 1} tokens, and all blocks hold {self.capacity_tokens}"
        return None

    def _gave_up(self, call: VllmCall) -> None:
        request, runs = call.job.request, call.status is Status.RUNNING or call in self._leaving
        self._leaving.discard(call)
        self.scheduler.abort(call)
        left = call.extend_left if runs else 0
        gone = ev.Cancelled(self.now_ns, 0, request.id, request.client, runs, left, call.num_output_tokens)
        self._tell([gone])
        self._end(request.id, False)

    def _scheduled(self, step: Step) -> None:
        """Tell which requests leave the batch with nothing in flight, and which enter it."""
        events: list[ev.Event] = []
        for call in self.scheduler.preempted:
            if call.num_in_flight_tokens:
                self._leaving.add(call)
            else:
                events.append(self._preempted(call))
        for call in self.scheduler.admitted:
            request, cached = call.job.request, call.num_cached_tokens
            call.extend_left = call.num_tokens - cached
            events.append(ev.Admitted(self.now_ns, 0, request.id, request.client, call.extend_left, cached, 0))
        if events:
            self._tell(events)

    def _preempted(self, call: VllmCall) -> ev.Preempted:
        request = call.job.request
        left, call.extend_left, call.is_paused = call.extend_left, 0, False
        return ev.Preempted(self.now_ns, 0, request.id, request.client, call.num_output_tokens, left)

    def _step_ns(self, step: Step) -> int:
        chunks, contexts = [], []
        for call, count, _ in step:
            after = call.num_computed_tokens
            if count == 1 < after:
                contexts.append(after)
            else:
                chunks.append((count, after - count))
        longest, shortest = max(contexts, default=0), min(contexts, default=0)
        return self._latency.step_ns(chunks, len(contexts), sum(contexts), longest, shortest)

    def _ended(self, step: Step, held: list[VllmCall]) -> None:
        """Tell what a step computed, which tokens it made, which requests have left with it, and which that decode had
        no part in it."""
        now_ns = self.now_ns
        events: list[ev.Event] = []
        for call in held:
            if call.status is Status.RUNNING and not call.is_paused and not call.extend_left:
                request, call.is_paused = call.job.request, True
                events.append(ev.Paused(now_ns, 0, request.id, request.client, call.num_output_tokens))
        for call, count, _ in step:
            if call.extend_left and not call.is_finished():
                request, count = call.job.request, min(count, call.extend_left)
                call.extend_left -= count
                events.append(ev.Prefilled(now_ns, 0, request.id, request.client, count, call.extend_left))
            elif call.is_paused and not call.is_finished():
                request, call.is_paused = call.job.request, False
                events.append(ev.Resumed(now_ns, 0, request.id, request.client))
        produced = self.scheduler.update(step)
        if produced:
            tokens = sorted(Counter([call.job.request.client for call in produced]).items())
            events.append(ev.Decoded(now_ns, 0, 1, *zip(*tokens, strict=True)))
        for call in [call for call, _, _ in step if call in self._leaving and not call.num_in_flight_tokens]:
            self._leaving.remove(call)
            if not call.is_finished():
                events.append(self._preempted(call))
        over = [call.job.request for call in produced if call.is_finished()]
        events += [
            ev.Finished(now_ns, 0, request.id, request.client, self._known[request.id].num_output_tokens)
            for request in over
        ]
        if events:
            self._tell(events)
        for request in over:
            self._end(request.id, True)

    def _end(self, request_id: int, finished: bool) -> None:
        """Let the calls come that follow a request that ended, or drop them if it did not finish."""
        self._known.pop(request_id, None)
        due, lost = self._calls.end(request_id, finished)
        for child in due:
            heappush(self._coming, (self.now_ns + self._calls.jobs[child].think_ns, child))
        for child in lost:
            client = self._calls.jobs[child].request.client
            self._tell([ev.Cancelled(self.now_ns, ev.NOWHERE, child, client, False, 0, 0)])
        if self._progress is not None:
            self._progress(len(self._calls.over))


def simulate_vllm(
    workload: Workload,
    latency: LatencyModel,
    options: VllmOptions | None = None,
    *,
    policy: str | VllmSettings | None = None,
    progress: Callable[[int], None] | None = None,
    first_step_ns: int = 0,
) -> Run:
    """Simulate a workload on one vLLM server and return every figure of the run; `Run.requests` are the times of each
    request as columns (arrival, first scheduled, first token, end; -1 for none).

    `policy` orders its queue, by its name or with settings, as in vLLM with our scheduler class; None: vLLM's own order
    of arrival.  Raises `ConfigError` for one that cannot be used there.

    A workload does not say what of a prompt is an earlier request's output, which vLLM has cached: that is computed.

    TTFT, TPOT, time between tokens (ITL) and latency are those of `vllm bench serve`: first token less arrival, (end
    less first token) / (output tokens - 1), each gap between tokens, end less arrival.  Only its percentiles are
    between samples, and ours are samples.

    To replay requests whose prompts are known as blocks of 16 tokens:

    >>> from fairsched.model.machine import PRESETS
    >>> from fairsched.model.request import Client
    >>> blocks, tokens, output = [7, 8, 9], 50, 4
    >>> prompt = Prompt.from_keys(blocks, block_tokens=16, tokens=tokens)
    >>> jobs = [Job(Request(i, 0, 1_000 * i, prompt, output), output) for i in range(2)]
    >>> run = simulate_vllm(Workload("two", jobs, (Client(0, "all"),)), PRESETS["llama-3.1-8b-a100"], VllmOptions(2588))
    >>> run.requests["cached_tokens"].tolist(), run.requests["output_tokens"].tolist()
    ([0, 48], [4, 4])
    """
    recorder, log = Recorder(workload, latencies=[latency]), CanonicalLog()
    started = time.perf_counter()

    def record(events: list[ev.Event]) -> None:
        recorder.record(events)
        log.record(events)

    settings = VllmSettings(policy=policy) if isinstance(policy, str) else policy
    engine = VllmEngine(workload, latency, options, record, progress, first_step_ns, settings)
    engine.run()
    wall_s = time.perf_counter() - started
    charging = None
    if isinstance(engine.scheduler, FairVllmScheduler):
        charging = run_charging(engine.scheduler.tracker.guard.policy, workload.clients)
    name = "vllm" if settings is None else f"vllm, {settings.policy}"
    return recorder.result(policy=name, charging=charging, wall_s=wall_s, log_sha256=log.sha256())
