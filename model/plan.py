"""What a policy decides: step plans for a worker, dispatches for a cluster.  The receiver applies it."""

from typing import Literal

import msgspec


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
