"""What a policy may see when it decides, and what it decides.

It sees resources, never the truth about outputs and never a queue it has to scan.  It decides step plans for a worker
and dispatches for a cluster; the receiver applies them.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from immutables import Map

from fairsched.model.prefix_cache import NO_FLOORS, SortedTuple, beyond

# --- what it sees -----------------------------------------------------------------------------------------------------


class Host(msgspec.Struct, frozen=True):
    """A worker's host memory of `capacity_tokens`, of which `used_tokens` are taken: the KV of swapped out requests.

    It is counted in tokens, as the worker's own memory is.  A request has KV there only while it waits.  Transfers last
    for one step: what is `outgoing` stands on the device until the step is over, and on the host from its beginning
    on; what comes back takes its place on the device from the beginning on, and leaves the host at the end.

    `kv` holds, by waiting request, for how many tokens of its context KV is there.  Of the transfers under way,
    `outgoing` lists (request id, tokens of its own on the device), `out_tokens` and `in_tokens` are moved, and
    `vacated_tokens` are free on the host when they are over.
    """

    capacity_tokens: int = 0
    used_tokens: int = 0
    kv: Map[int, int] = Map()
    outgoing: tuple[tuple[int, int], ...] = ()
    out_tokens: int = 0
    in_tokens: int = 0
    vacated_tokens: int = 0

    @property
    def free_tokens(self) -> int:
        """Tokens that a swap may still take."""
        return self.capacity_tokens - self.used_tokens

    @property
    def moves(self) -> bool:
        """Whether transfers are under way."""
        return bool(self.out_tokens or self.vacated_tokens)

    @property
    def moving_tokens(self) -> int:
        """Tokens that the transfers under way move, there and back."""
        return self.out_tokens + self.in_tokens

    def comes(self, request_id: int) -> bool:
        """Return whether a waiting request's KV is on its way there."""
        return any(request_id == going for going, _ in self.outgoing)

    def kept(self, request_id: int) -> int:
        """Return for how many tokens of a waiting request's context KV is there and whole."""
        return 0 if self.comes(request_id) else self.kv.get(request_id, 0)


NO_HOST = Host()
"""A worker without host memory."""


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """A request in the running batch.

    `rank` counts admissions on this worker, so the youngest has the largest.  `context_tokens` is prompt plus what had
    been generated before this admission.  `kv_tokens` of KV are promised to it alone, beside its cached prefix and
    without what it has decoded since; with `reserved` they include room for its whole output.  It decodes since
    `clock_start` on the worker's clock of decode steps (None: it prefills).  A paused request decodes no more since
    `clock_paused` (None: it is not paused); when it is resumed, `clock_start` is later by as long as it was paused.
    """

    request_id: int
    client: int
    rank: int
    context_tokens: int
    remaining_tokens: int
    kv_tokens: int
    reserved: bool
    clock_start: int | None = None
    clock_paused: int | None = None

    @property
    def decodes(self) -> bool:
        """Whether it produces a token in a step that decodes."""
        return self.clock_start is not None and self.clock_paused is None

    def decoded_tokens(self, clock: int) -> int:
        """Output tokens since it was admitted, when the worker's clock shows that."""
        if self.clock_start is None:
            return 0
        return 1 + (clock if self.clock_paused is None else self.clock_paused) - self.clock_start


Role = Literal["both", "prefill", "decode"]
"""What a worker is there for.  Policies keep to it; a worker of any role can compute prompts and outputs."""


class Landed(msgspec.Struct, frozen=True, gc=False):
    """The memory of a waiting request that came with its KV: `promised` to it, of which `used` tokens are filled."""

    promised: int
    used: int


NOTHING_LANDED: Map[int, Landed] = Map()


class WorkerView(msgspec.Struct, frozen=True, gc=False):
    """One worker's resources at `now_ns`.

    `kv_free_tokens` is capacity less what is promised and less the protected part of the prefix cache: unprotected
    cache counts as free, since it is evicted on demand.  `decoding` requests produce a token a step, `growing` of
    them into memory that was not reserved; `clock` counts decode steps.
    `prefilling` lists (request id, remaining extend tokens) in order of
    admission; `decoding_counts[k]` requests of client `decoding_clients[k]` are decoding (ascending ids);
    `running_ranks` holds (rank, request id), the youngest last.  `host` is the worker's host memory, with the KV of
    requests that were swapped out.  `landed` says how much memory waiting requests hold that came with their KV.
    `paused` requests, in the order in which they were, run and are neither `prefilling` nor `decoding`.  Requests that
    run have at most `adapter_slots` different adapters.  `reserves` says, of each client with a floor, how many tokens
    are free for it alone, beside those that are free for all.
    """

    now_ns: int
    worker: int
    kv_capacity_tokens: int
    kv_free_tokens: int
    running: int
    decoding: int
    growing: int
    prefilling: tuple[tuple[int, int], ...]
    decoding_clients: tuple[int, ...]
    decoding_counts: tuple[int, ...]
    in_flight: Map[int, InFlight]
    running_ranks: SortedTuple[tuple[int, int]]
    clock: int
    host: Host = NO_HOST
    landed: Map[int, Landed] = NOTHING_LANDED
    paused: tuple[int, ...] = ()
    adapter_slots: int = 0
    reserves: Map[int, int] = NO_FLOORS

    def free_beside(self, taken: Mapping[int, int]) -> int:
        """Return what is free for all when clients have taken so many tokens, from their reserves first."""
        return self.kv_free_tokens - beyond(self.reserves, taken)

    def decoded_tokens(self, request_id: int) -> int:
        """Output tokens that a running request produced since it was admitted.  O(1)."""
        return self.in_flight[request_id].decoded_tokens(self.clock)

    def computed_tokens(self, request_id: int) -> int:
        """Return tokens of a running request whose KV is here: all but the last, which is not fed back yet.  O(1)."""
        flight = self.in_flight[request_id]
        return flight.context_tokens - flight.remaining_tokens + max(self.decoded_tokens(request_id) - 1, 0)


class WorkerLoad(msgspec.Struct, frozen=True, gc=False):
    """What a worker reports to a router: requests waiting and running, tokens waiting to be prefilled, KV in tokens.

    Free KV is what is neither promised to requests, nor pinned, nor kept for KV that comes or goes.
    """

    worker: int
    waiting_requests: int
    running_requests: int
    waiting_tokens: int
    kv_free_tokens: int
    kv_capacity_tokens: int
    role: Role = "both"


class ClusterView(msgspec.Struct, frozen=True, gc=False):
    """The workers that take requests now, in ascending order of their ids.

    `credit` is what the local policies share (`LocalPolicy.credit`), None where they share nothing.
    """

    now_ns: int
    workers: tuple[WorkerLoad, ...]
    credit: Any = None


# --- what it decides --------------------------------------------------------------------------------------------------


class Admission(msgspec.Struct, frozen=True, gc=False):
    """Let one waiting request into the running batch.

    The policy's own copy of the prefix cache says `cached_prefix_tokens`; `extend_tokens` is what remains to be
    computed.  `reserved_output_tokens` of KV are promised to its output (0: it takes memory as it grows).
    """

    request_id: int
    client: int
    extend_tokens: int
    cached_prefix_tokens: int
    reserved_output_tokens: int


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """What a worker does in its next step.

    First the requests in `preempt` lose their KV and wait again, those in `pause` stop decoding, those in `resume` go
    on, then those in `admit` enter, then those in `swap_out` wait again and their KV goes to host memory, then `chunks`
    (request id, tokens) are prefilled, and with `decode` every request whose prefill is complete, and that is not
    paused, produces a token.  A request that enters and is in `swap_in` uses its KV on the host.  Transfers last for
    the step: memory of requests that leave is free in a later step, and requests that come back compute then.
    `padding_tokens` are computed beside the chunks and thrown away.

    A paused request is one that decodes, and keeps its KV, its place in the batch and what is reserved for its output;
    it produces nothing, and is charged nothing, until a later plan resumes it or takes it out.

    `valid_steps` says for how many steps this plan stays what `decide` would return while nothing but decoding
    happens: 1 by default, None until another event.  Only a plan that does not change the batch may say more than 1.
    One with chunks stays so for a number of steps, in which those are computed each time and none is the last of its
    prompt but the last one's: whatever arrives, gives up waiting or is evicted meanwhile, while the batch is the same.
    """

    preempt: tuple[int, ...] = ()
    admit: tuple[Admission, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    decode: bool = True
    valid_steps: int | None = 1
    swap_out: tuple[int, ...] = ()
    swap_in: tuple[int, ...] = ()
    padding_tokens: int = 0
    pause: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()

    @property
    def changes_batch(self) -> bool:
        """Whether a request enters or leaves the batch, stops decoding in it or goes on."""
        return bool(self.preempt or self.admit or self.swap_out or self.pause or self.resume)


DECODE_ONLY = StepPlan(valid_steps=None)
"""Nothing waits and nothing is being prefilled: decode until something happens."""


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send the request to the worker.

    With `prefill_only` the request leaves the worker's batch when its first token is out, and its KV stays there until
    a `Migration` says where it goes on.
    """

    request_id: int
    worker: int
    prefill_only: bool = False


Overlap = Literal["none", "chunks", "layers"]
"""What of a transfer happens during the prefill: nothing, all but the last chunk, or all but the last layer."""


class Migration(msgspec.Struct, frozen=True, gc=False):
    """Move a request from worker `source` to worker `target`, where it keeps the tokens that it has.

    What it has in KV moves with it (`with_kv`) or is recomputed there.  KV moves safely: the target reserves memory for
    it, and for `reserved_output_tokens` more, before anything is sent; the source frees its own when all has arrived.
    Where the target has no room, the transfer waits behind earlier ones to that target.  A request that was dispatched
    `prefill_only` may be given its target at any time; with `overlap` its KV is sent while it is computed.  One whose
    target is its source goes on where it is.
    """

    request_id: int
    source: int
    target: int
    with_kv: bool = False
    reserved_output_tokens: int = 0
    overlap: Overlap = "none"


class ClusterPlan(msgspec.Struct, frozen=True):
    """What a cluster does now: these dispatches and migrations; whatever is not dispatched is held."""

    dispatches: tuple[Dispatch, ...] = ()
    migrations: tuple[Migration, ...] = ()
