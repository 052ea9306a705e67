"""One worker's state: its queue, batch, prefix cache and memory, and what others may see of it.

Memory is counted in tokens.  The cache holds prompts that are complete; beside it each running request is promised
`kv_tokens` of its own.  Always: cached + used <= capacity, and protected + promised <= capacity.
What is swapped out counts as used and promised until it has left.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.decision import (
    NO_HOST,
    NOTHING_LANDED,
    Host,
    InFlight,
    Landed,
    Role,
    StepPlan,
    WorkerLoad,
    WorkerView,
)
from fairsched.model.events import Event
from fairsched.model.prefix_cache import (
    NO_FLOORS,
    Evictor,
    PrefixCache,
    SortedTuple,
    beyond,
    checked_floors,
    reserve,
)
from fairsched.model.request import Request


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A request in the queue, with the truth about its output and what it had generated before a preemption.

    Of its prompt and these tokens the KV of the first `kv_tokens` came with it, and needs no computing.  With
    `prefill_only` it leaves this worker when its first token is out.
    """

    request: Request
    output_tokens: int
    generated_tokens: int
    kv_tokens: int = 0
    prefill_only: bool = False

    @property
    def context_tokens(self) -> int:
        """Tokens to be in the KV cache before the next token can be produced."""
        return self.request.prompt.tokens + self.generated_tokens


class Running(msgspec.Struct, frozen=True, gc=False):
    """What the worker knows about a running request and no policy may see.

    `extend_tokens` are its context without its cached prefix, computed here or come along; `moved_tokens` of them went
    into the cache.  Its last token comes at `clock_end` (None: it prefills), and later by as long as it is paused.
    """

    waiting: Waiting
    extend_tokens: int
    moved_tokens: int = 0
    clock_end: int | None = None


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A request that left the batch and whose KV is still here, `own_tokens` of it outside the cache."""

    waiting: Waiting
    own_tokens: int


class Transit(msgspec.Struct, frozen=True):
    """Memory of requests between two workers: `outgoing` from here, `incoming` (tokens reserved), and `landed`."""

    outgoing: Map[int, Outgoing] = Map()
    incoming: Map[int, int] = Map()
    landed: Map[int, Landed] = NOTHING_LANDED


NO_TRANSIT = Transit()
"""A worker without transfers."""


class WorkerState(msgspec.Struct, frozen=True, gc=False):
    """Everything about one worker.  Make one by `WorkerState(worker=0, capacity=...)`, and with `host=Host(...)` if
    it has host memory.

    Requests on their way to or from another worker hold memory in `transit`, which `used` and `promised` include.
    `used` tokens are computed outside the cache, `promised` includes them; `clock` counts decode steps, `rank`
    admissions; `context` sums the contexts of decoding requests; `growing` of those take unreserved memory.  `paused`
    requests, in the order in which they were, are `running` and in no sum over those that decode.  The prompt of a call
    that others follow counts as used `keep_ns` after its end (`batch.keep`).  Requests that run have at most
    `adapter_slots` different adapters; without slots no request with an adapter is taken.  Clients with `floors` (in
    tokens) hold so much KV that is not evicted, nor promised, for others (`with_floors`).
    """

    worker: int
    capacity: int
    cache: PrefixCache = PrefixCache()
    queue: Map[int, Waiting] = Map()
    queue_tokens: int = 0
    running: Map[int, Running] = Map()
    in_flight: Map[int, InFlight] = Map()
    ranks: SortedTuple[tuple[int, int]] = SortedTuple()
    prefilling: tuple[tuple[int, int], ...] = ()
    ends: SortedTuple[tuple[int, int]] = SortedTuple()
    clients: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    decoding: int = 0
    growing: int = 0
    context: int = 0
    used: int = 0
    promised: int = 0
    clock: int = 0
    rank: int = 0
    host: Host = NO_HOST
    role: Role = "both"
    transit: Transit = NO_TRANSIT
    paused: tuple[int, ...] = ()
    keep_ns: int = 0
    adapter_slots: int = 0
    floors: Map[int, int] = NO_FLOORS

    @property
    def free(self) -> int:
        """Tokens that an admission may still be promised, of whatever client."""
        free = self.capacity - self.cache.tree.protected_tokens - self.promised
        return free - sum(self.reserves().values()) if self.floors else free

    @property
    def room(self) -> int:
        """Tokens that can be computed before something must be evicted."""
        return self.capacity - self.cache.tree.cached_tokens - self.used

    def fits_alone(self, request: Request) -> bool:
        """Return whether the request fits into an empty worker of this size, which can load its adapter if it names
        one."""
        if request.adapter and not self.adapter_slots:
            return False
        return request.prompt.tokens + request.max_output_tokens <= self.capacity - self.kept_from(request.client)

    def lacks_slot(self, request: Request) -> bool:
        """Return whether the request's adapter is not loaded and running requests of others have all slots.
        O(batch)."""
        if not request.adapter:
            return False
        loaded = {run.waiting.request.adapter for run in self.running.values()} - {msgspec.UNSET}
        return request.adapter not in loaded and len(loaded) >= self.adapter_slots

    def decode_steps_max(self) -> int:
        """Return most pure decode steps before a request ends or memory must be made: the longest leap.  Decoding
        only."""
        steps, room = self.ends.chunks[0][0][0] - self.clock, self.room
        if steps * self.decoding > room:
            steps = room // self.decoding
        if self.floors and self.growing:
            # One step has begun, perhaps with what a floor keeps for those that take it.
            return min(steps, max(self.free // self.growing, 1))
        return min(steps, self.free // self.growing) if self.growing else steps

    def context_range(self) -> tuple[int, int]:
        """Return the longest and the shortest context of decoding requests; zeros if none decodes.  O(batch)."""
        contexts = [
            run.waiting.request.prompt.tokens + run.waiting.output_tokens - run.clock_end + self.clock
            for request_id, run in self.running.items()
            if run.clock_end is not None and request_id not in self.paused
        ]
        return max(contexts, default=0), min(contexts, default=0)

    def chunk_contexts(self, plan: StepPlan) -> list[tuple[int, int]]:
        """Return (tokens, context before them) of each chunk of a plan that has begun."""
        flights = [(self.in_flight[request_id], tokens) for request_id, tokens in plan.chunks]
        return [(tokens, flight.context_tokens - flight.remaining_tokens) for flight, tokens in flights]

    def step_shape(self, plan: StepPlan) -> tuple[list[tuple[int, int]], int, int]:
        """Return (tokens, context before them) of each chunk of a plan that has begun: what a latency model needs.

        A request whose KV came with it computes its last token as a decode does: also how many do, and their contexts.
        """
        chunks, rows, context = [], 0, 0
        for request_id, tokens in plan.chunks:
            flight = self.in_flight[request_id]
            if tokens == 1 and self.running[request_id].waiting.kv_tokens:
                rows, context = rows + 1, context + flight.context_tokens
            else:
                chunks.append((tokens, flight.context_tokens - flight.remaining_tokens))
        if plan.padding_tokens:
            chunks.append((plan.padding_tokens, 0))
        return chunks, rows, context

    # --- floors of clients --------------------------------------------------------------------------------------------

    def with_floors(self, floors: Mapping[int, int]) -> "WorkerState":
        """Return this worker, which holds nothing, with floors of clients in tokens of KV.

        Raises `ValueError` where one is negative, their sum passes the capacity, or the worker holds something or
        swaps.
        """
        kept = checked_floors(floors, self.capacity)
        if kept == self.floors:
            return self
        if self.promised or self.cache.tree.cached_tokens:
            raise ValueError(f"worker {self.worker} holds KV, and cache floors are set before its first request")
        if kept and self.host.capacity_tokens:
            raise ValueError(f"worker {self.worker} swaps KV to host memory, and one with cache floors may not")
        return replace(self, floors=kept, cache=PrefixCache.shared() if kept else PrefixCache())

    def kept_from(self, client: int) -> int:
        """Return tokens of floors that are kept from a client's requests: those of the others.  O(clients)."""
        floors = self.floors
        return sum(floors.values()) - floors.get(client, 0) if floors else 0

    def promised_to(self) -> Counter[int]:
        """Return KV promised beside the cache, by client: to requests that run, are staged, and landed.  O(these).

        What is reserved for KV to come counts for no client yet.
        """
        to = Counter[int]()
        for flight in self.in_flight.values():
            to[flight.client] += flight.kv_tokens + (0 if flight.reserved else flight.decoded_tokens(self.clock))
        for going in self.transit.outgoing.values():
            to[going.waiting.request.client] += going.own_tokens
        for request_id, landed in self.transit.landed.items():
            to[self.queue[request_id].request.client] += landed.promised
        return to

    def reserves(self) -> Map[int, int]:
        """Return what is left of each client's floor for it alone.  O(batch + floors)."""
        shares, promised, block = self.cache.tree.shares, self.promised_to(), self.cache.tree.block_tokens
        assert shares is not None
        return Map(
            (client, reserve(floor, promised[client], shares.pinned.get(client, 0) * block))
            for client, floor in self.floors.items()
        )

    def free_beside(self, taken: Mapping[int, int]) -> int:
        """Return what is free when clients have taken so many tokens, from their floors first."""
        return self.free - beyond(self.reserves(), taken)

    def growth_of(self, plan: StepPlan | None) -> Counter[int]:
        """Return the tokens of output without a reservation that a step produces, by client; of any plan, at most.
        O(batch)."""
        grown, chunked = Counter[int](), {request_id for request_id, _ in plan.chunks} if plan else set[int]()
        for request_id, flight in self.in_flight.items():
            takes = plan is None or request_id in chunked or (plan.decode and flight.decodes)
            grown[flight.client] += takes and not flight.reserved
        return grown

    def evictor(self, plan: StepPlan | None = None) -> Evictor:
        """Return what chooses the blocks that go: while their holders hold more than their floors, with the output of
        the step.  O(batch + clients)."""
        shares, held, block = self.cache.tree.shares, self.promised_to(), self.cache.tree.block_tokens
        held += self.growth_of(plan)
        assert shares is not None
        for charges in (shares.idle, shares.pinned):
            for client, blocks in charges.items():
                held[client] += blocks * block
        return Evictor(held, self.floors)

    # --- what others may see ------------------------------------------------------------------------------------------

    def view(self, now_ns: int) -> WorkerView:
        """Return what a policy may see of this worker.  O(1), and O(batch) where clients have floors."""
        floors = self.floors
        return WorkerView(
            now_ns,
            self.worker,
            self.capacity,
            self.free if floors else self.capacity - self.cache.tree.protected_tokens - self.promised,
            len(self.in_flight),
            self.decoding,
            self.growing,
            self.prefilling,
            self.clients,
            self.counts,
            self.in_flight,
            self.ranks,
            self.clock,
            self.host,
            self.transit.landed,
            self.paused,
            self.adapter_slots,
            self.reserves() if floors else NO_FLOORS,
        )

    def load(self) -> WorkerLoad:
        """Return what this worker reports to a router.  O(1)."""
        return WorkerLoad(
            self.worker, len(self.queue), len(self.in_flight), self.queue_tokens, self.free, self.capacity, self.role
        )


Step = tuple[WorkerState, list[Event]]
"""A transition's result: the next state and what happened, in order."""
