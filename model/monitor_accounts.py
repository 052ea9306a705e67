"""What the monitor knows of a worker's requests and clients: who waits, who runs, and what is promised and charged."""


class Call:
    """A request as the monitor knows it; `most` is its declared output (None: it came before the monitor did).

    While it runs: `extend` of its `context` tokens are to be computed, it had `generated` output tokens before this
    admission, and `reserved` output tokens and `kv` tokens in all are promised to it.
    """

    __slots__ = ("client", "context", "extend", "generated", "kv", "most", "queued", "reserved", "running")

    def __init__(self, client: int, most: int | None) -> None:
        self.client = client
        self.most = most
        self.generated = 0
        self.context = 0
        self.extend = 0
        self.reserved = 0
        self.kv = 0
        self.queued = False
        self.running = False


class Account:
    """A client: its requests in the queue and since when it waits, and what is promised to those that run.

    `reserved` output tokens are promised to its running requests, which produced `produced`; `since` cost units were
    charged since its last admission and `last` for that admission alone.
    """

    __slots__ = ("kv", "last", "produced", "reserved", "since", "total_start", "wait_start", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.wait_start = 0
        self.total_start = 0
        self.reserved = 0
        self.produced = 0
        self.since = 0
        self.last = 0
        self.kv = 0
