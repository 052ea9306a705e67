"""What the monitor of assumptions knows of requests and clients."""

import attrs


@attrs.define(eq=False)
class WatchedRequest:
    """A request as the monitor knows it; `most` is its declared output (None: it came before the monitor did).

    While it runs: `extend` of its `context` tokens are to be computed, of which `uncomputed` are left, it had
    `generated` output tokens before this admission, and `reserved` output tokens and `kv` tokens in all are promised to
    it.
    `refunded` is what its client had been given back when it was admitted.
    """

    client: int
    most: int | None = None
    generated: int = 0
    context: int = 0
    extend: int = 0
    uncomputed: int = 0
    reserved: int = 0
    kv: int = 0
    refunded: int = 0
    queued: bool = False
    running: bool = False


@attrs.define(eq=False)
class WatchedClient:
    """A client: its requests in the queue and since when it waits, and what is promised to those that run.

    `reserved` output tokens may come of its running requests, which produced `produced`; `since` cost units were
    charged since its last admission, `last` for that admission alone, and `held` output tokens for holding memory.
    `uncomputed` input tokens of its running requests are left to compute, and `refunded` cost units were given back.
    """

    waiting: int = 0
    wait_start: int = 0
    total_start: int = 0
    reserved: int = 0
    produced: int = 0
    since: int = 0
    last: int = 0
    held: int = 0
    kv: int = 0
    uncomputed: int = 0
    refunded: int = 0
