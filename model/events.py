"""The facts that a policy may learn, in the order in which they happened.

Each event names its time (integer nanoseconds) and its worker; clients and requests are dense integers.  An event is
a fact about what an engine did, never a wish: a plan that was refused leaves no event.
"""

import msgspec

from fairsched.model.pricing import CAPACITY_TOKENS_MAX, WEIGHT_MAX, accepted
from fairsched.model.request import Client, Groups, Prompt, Request

NOWHERE = -1
"""The worker of an event about a request that is at none."""


class _Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """An event; its fields are written in this order, those of the bases first."""

    time_ns: int
    worker: int


class _OfRequest(_Fact, frozen=True):
    """An event of one request."""

    request_id: int
    client: int


class _Gone(_OfRequest, frozen=True):
    """An event of a request that left unfinished: `uncomputed_tokens` were charged at admission and never computed (0
    while waiting)."""

    was_running: bool
    uncomputed_tokens: int
    generated_tokens: int


class Arrived(_Fact, frozen=True):
    """The request joined the queue of the worker, or (`NOWHERE`) waits to be sent to one.

    It has its first `generated_tokens` output tokens from another worker.  Prompt and these are computed here, all but
    the first `kv_tokens` of both together, whose KV came along.
    """

    request: Request
    generated_tokens: int = 0
    kv_tokens: int = 0


class Admitted(_OfRequest, frozen=True):
    """The request entered the running batch.

    `extend_tokens` are still to be computed (prompt, and for a preempted request what it had generated, minus
    `cached_prefix_tokens`); `reserved_output_tokens` is KV promised to its output.
    """

    extend_tokens: int
    cached_prefix_tokens: int
    reserved_output_tokens: int


class Settled(_OfRequest, frozen=True):
    """The true `extend_tokens` of an admission that was planned with another number."""

    extend_tokens: int


class Prefilled(_OfRequest, frozen=True):
    """A chunk of `tokens` was computed; `remaining_tokens` of the request's extend tokens are left."""

    tokens: int
    remaining_tokens: int


class Decoded(_Fact, frozen=True):
    """`steps` engine steps produced output: `tokens[k]` tokens in all for client `clients[k]` (ascending ids).

    The first output token of a request comes out of the step that completed its prefill, and is counted here.
    """

    steps: int
    clients: tuple[int, ...]
    tokens: tuple[int, ...]


class Held(_Fact, frozen=True):
    """Requests of `clients[k]` (ascending ids) held memory for as long as producing `tokens[k]` output tokens takes.

    It is charged like output tokens.  Only memory that is reserved for requests in another engine is charged so.
    """

    clients: tuple[int, ...]
    tokens: tuple[int, ...]


class Lent(_Fact, frozen=True):
    """So many cost units of credit of each of `clients` (ascending ids) came here from an account that several share,
    or went back there (negative): `units[k]` of `clients[k]`."""

    clients: tuple[int, ...]
    units: tuple[int, ...]


class Preempted(_OfRequest, frozen=True):
    """The request left the batch and waits again; it lost its KV, and its `generated_tokens` so far will be recomputed,
    unless a `SwappedOut` at the same time says that its KV is on the host.

    `uncomputed_tokens` of its extend tokens had not been computed.
    """

    generated_tokens: int
    uncomputed_tokens: int


class Paused(_OfRequest, frozen=True):
    """The decoding request, with `generated_tokens` so far, produces nothing more until `Resumed`.

    It keeps its KV and its place in the batch.  An event with which it leaves the batch ends the pause, too.
    """

    generated_tokens: int


class Resumed(_OfRequest, frozen=True):
    """The paused request decodes again."""


class SwappedOut(_OfRequest, frozen=True):
    """The KV of `kv_tokens` tokens goes to host memory, with a request that leaves the batch (`Preempted` follows)."""

    kv_tokens: int


class SwappedIn(_OfRequest, frozen=True):
    """The KV of `kv_tokens` tokens comes back from host memory, with a request that enters the batch (`Admitted`
    follows)."""

    kv_tokens: int


class Transferred(_Fact, frozen=True):
    """What was swapped out and in during a step, tokens of KV, has come to its place."""

    out_tokens: int
    in_tokens: int


class HostLost(_Fact, frozen=True):
    """Host memory is empty, and no transfer is under way: KV that was there is computed again."""


class Finished(_OfRequest, frozen=True):
    """The request produced its last token."""

    output_tokens: int


class Cancelled(_Gone, frozen=True):
    """The caller gave up."""


class Migrated(_Gone, frozen=True):
    """The request left the worker for another one, with the `generated_tokens` that it has so far; it is not over.

    To this worker's batch and queue it is as if its caller had given up: what was computed stays charged.  The KV of
    `kv_tokens` tokens stays until it has been sent (0: it departs without).
    """

    kv_tokens: int = 0


class TransferStarted(_OfRequest, frozen=True):
    """The KV of a request that left the worker's batch is on its way to `target`, which keeps `reserved_tokens` for it.

    `Arrived` at the target says that it is there, and then the worker has freed its own.
    """

    target: int
    kv_tokens: int
    reserved_tokens: int


class TransferFailed(_OfRequest, frozen=True):
    """The KV of a request does not come to `target`, which keeps no memory for it any more.

    If the worker is alive the KV is still there, and may be sent again.
    """

    target: int


class Rejected(_OfRequest, frozen=True):
    """The request will never be served; `reason` says why, with numbers."""

    reason: str


class Cached(_Fact, frozen=True):
    """The first `blocks` blocks of `prompt` are now in the worker's prefix cache, computed by request `owner`."""

    owner: int
    prompt: Prompt
    blocks: int


class Evicted(_Fact, frozen=True):
    """Of the path of `prompt` only the first `keep_blocks` blocks are still cached; `blocks` blocks went."""

    owner: int
    prompt: Prompt
    keep_blocks: int
    blocks: int


class ClientConfigured(_Fact, frozen=True):
    """The client's weight is now `weight`, and those of its `groups` what they say.

    Its groups are set before its first request and stay; an event without groups says nothing of them.
    """

    client: int
    weight: int
    groups: Groups = ()

    def __post_init__(self) -> None:
        accepted(f"client {self.client}: a weight", self.weight, WEIGHT_MAX)
        for name, weight in self.groups:
            accepted(f"client {self.client}: the weight of group {name!r}", weight, WEIGHT_MAX)


def configured(client: Client, time_ns: int, worker: int) -> ClientConfigured:
    """Return the event that says all of a client."""
    return ClientConfigured(time_ns, worker, client.id, client.weight, client.place)


class WorkerJoined(_Fact, frozen=True):
    """The worker serves from now on."""

    kv_capacity_tokens: int
    host_capacity_tokens: int = 0
    keep_ns: int = 0
    adapter_slots: int = 0

    def __post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "host_capacity_tokens", "adapter_slots"):
            accepted(f"worker {self.worker}: {name}", getattr(self, name), CAPACITY_TOKENS_MAX, 0)


class WorkerDraining(_Fact, frozen=True):
    """The worker takes no new requests and finishes what it has."""


class WorkerLeft(_Fact, frozen=True):
    """The worker is gone, with its KV and whatever ran on it."""


Event = (
    Arrived
    | Admitted
    | Settled
    | Prefilled
    | Decoded
    | Held
    | Lent
    | Preempted
    | Paused
    | Resumed
    | SwappedOut
    | SwappedIn
    | Transferred
    | HostLost
    | Finished
    | Cancelled
    | Migrated
    | TransferStarted
    | TransferFailed
    | Rejected
    | Cached
    | Evicted
    | ClientConfigured
    | WorkerJoined
    | WorkerDraining
    | WorkerLeft
)
