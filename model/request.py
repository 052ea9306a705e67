"""What is asked for: prompts, requests, clients, service level objectives, and the jobs of a simulated workload.

A prompt is a chain of blocks of `block_tokens` tokens each; a block is known by an eight-byte key, so token-exact
prefixes (`block_tokens=1`), vLLM's 16-token blocks and Mooncake's 512-token blocks are one thing.  Whatever tokens
remain after the last whole block belong to this prompt alone and are never shared.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.model.pricing import CAPACITY_TOKENS_MAX, WEIGHT_MAX, accepted
from fairsched.model.shown import short_repr

KEY_BYTES = 8
TOKENS_MAX = 1 << 22
"""Longest prompt or output the library accepts, in tokens: scores and charges stay far inside 64 bits below it."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt of `tokens` tokens whose leading blocks are named by `keys`.

    `keys` holds `KEY_BYTES` bytes a block; two prompts share a prefix exactly as long as their keys agree from the
    start.  An empty `keys` shares nothing (a trace that carries lengths only).
    """

    __repr__ = short_repr

    tokens: int
    block_tokens: int = 1
    keys: bytes = b""

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= TOKENS_MAX:
            raise ValueError(f"a prompt has 1 to {TOKENS_MAX} tokens, not {self.tokens}")
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens is at least 1, not {self.block_tokens}")
        if len(self.keys) % KEY_BYTES:
            raise ValueError(f"keys hold {KEY_BYTES} bytes a block, and {len(self.keys)} is no multiple of that")
        if self.blocks * self.block_tokens > self.tokens:
            raise ValueError(
                f"{self.blocks} blocks of {self.block_tokens} tokens are more than the prompt's {self.tokens} tokens"
            )

    @property
    def blocks(self) -> int:
        """Number of whole, shareable blocks."""
        return len(self.keys) // KEY_BYTES

    @property
    def reusable_blocks(self) -> int:
        """Most blocks a cache may serve: at least one token is always computed, since it yields the first output."""
        return min(len(self.keys) // KEY_BYTES, (self.tokens - 1) // self.block_tokens)

    @classmethod
    def from_keys(
        cls, keys: npt.NDArray[np.integer] | bytes | Iterable[int], *, block_tokens: int = 1, tokens: int | None = None
    ) -> "Prompt":
        """Return a prompt from an integer array (one key a block), raw bytes (`KEY_BYTES` a block) or any iterable of
        ints.

        `tokens` defaults to the blocks' total; a larger value adds an unshared tail.  An array is several times
        faster than a list.  Raises `ValueError` on sizes that do not fit together.
        """
        if isinstance(keys, bytes):
            raw = keys
        else:
            array = keys if isinstance(keys, np.ndarray) else np.fromiter(keys, dtype=np.int64)
            raw = np.ascontiguousarray(array, dtype="<i8").tobytes()
        whole = len(raw) // KEY_BYTES * block_tokens
        return cls(tokens=whole if tokens is None else tokens, block_tokens=block_tokens, keys=raw)


class Slo(msgspec.Struct, frozen=True):
    """Latency targets of a request in nanoseconds; None where there is no target."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    latency_ns: int | None = None


GROUPS_MAX = 2
"""How many groups a client may be in, one inside the other: organisation > user > key."""

Groups = tuple[tuple[str, int], ...]
"""Names and weights of the groups of a client, the outermost first."""


class Client(msgspec.Struct, frozen=True):
    """A client that shares the service.  `id` is dense (0, 1, 2, ...), `weight` a positive integer share.

    `groups` are those to which the client belongs, an organisation or an organisation and a user of it, each with its
    weight among its own siblings; unset for a client in none.  They matter to a gate that shares by groups
    (`policies.gates.hierarchical`) and to no other.  On each worker `cache_floor_tokens` of KV are its own, running or
    cached (`model.prefix_cache.shares`); unset for a client without a floor.
    """

    id: int
    name: str
    weight: int = 1
    groups: Groups | msgspec.UnsetType = msgspec.UNSET
    cache_floor_tokens: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        accepted(f"client {self.name!r}: a weight", self.weight, WEIGHT_MAX)
        if self.cache_floor_tokens is not msgspec.UNSET:
            accepted(f"client {self.name!r}: a cache floor", self.cache_floor_tokens, CAPACITY_TOKENS_MAX)
        if len(self.place) > GROUPS_MAX:
            raise ValueError(f"client {self.name!r}: at most {GROUPS_MAX} groups, not {len(self.place)}")
        if not self.place:
            # No groups are written in one way only, as if there were no such field.
            msgspec.structs.force_setattr(self, "groups", msgspec.UNSET)
        for name, weight in self.place:
            if not name:
                raise ValueError(f"client {self.name!r}: a group has a name and a weight, not {name!r}, {weight}")
            accepted(f"client {self.name!r}: the weight of group {name!r}", weight, WEIGHT_MAX)

    def changed(self, weight: int, groups: Groups = ()) -> "Client":
        """Return this client with another weight and, if given, other weights of its groups.

        Raises `ValueError` for other groups: what it was charged is theirs.
        """
        groups = groups or self.place
        here, there = ("/".join(name for name, _ in each) for each in (self.place, groups))
        if here != there:
            raise ValueError(f"client {self.name!r} is in {here or 'no group'} and stays there, not in {there}")
        return Client(self.id, self.name, weight, groups, self.cache_floor_tokens)

    @property
    def cache_floor(self) -> int:
        """Its floor in tokens of KV, 0 without one."""
        return 0 if self.cache_floor_tokens is msgspec.UNSET else self.cache_floor_tokens

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say of it: weight 1, in no group, without a floor."""
        return self.weight == 1 and not self.place and not self.cache_floor

    @property
    def place(self) -> Groups:
        """Its groups, none if unset."""
        return self.groups if isinstance(self.groups, tuple) else ()


def floors_of(clients: Iterable[Client]) -> dict[int, int]:
    """Return the cache floors of clients that have one, in tokens of KV on each worker."""
    return {client.id: client.cache_floor for client in clients if client.cache_floor}


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request as a policy may know it: the true output length is not part of it.

    `max_output_tokens` is what the client declared, `predicted_output_tokens` a prediction (None without
    one).  `session` and `priority` are the client's own labels; so is `downstream_levels`: how many calls of its
    program will have to follow this one, each after the one before (0: none waits for its answer).  `adapter` names the
    LoRA adapter that it runs with; unset for none.
    """

    __repr__ = short_repr

    id: int
    client: int
    arrival_ns: int
    prompt: Prompt
    max_output_tokens: int
    predicted_output_tokens: int | None = None
    slo: Slo | None = None
    session: str | None = None
    priority: int = 0
    downstream_levels: int = 0
    adapter: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.adapter == "":
            raise ValueError(f"request {self.id}: an adapter has a name")
        if not 1 <= self.max_output_tokens <= TOKENS_MAX:
            raise ValueError(f"request {self.id}: max_output_tokens is 1 to {TOKENS_MAX}, not {self.max_output_tokens}")
        if self.arrival_ns < 0:
            raise ValueError(f"request {self.id}: arrival_ns is negative ({self.arrival_ns})")
        if self.downstream_levels < 0:
            raise ValueError(f"request {self.id}: downstream_levels is not negative ({self.downstream_levels})")
        if self.id < 0 or self.client < 0:
            raise ValueError(f"request {self.id} of client {self.client}: ids are not negative")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.tokens


class Job(msgspec.Struct, frozen=True, gc=False):
    """A request together with what only the world knows.

    `output_tokens` is the true output length (1 to `max_output_tokens`).  With `after`, the request is sent
    `think_ns` after the last of these requests finished, and `request.arrival_ns` is when its program started.
    A request whose predecessor was rejected or cancelled is cancelled too.  `program` groups the calls of one
    program, whose latency ends with its last call.  `cancel_after_ns` is how long after its arrival the caller
    gives up, None for never.
    """

    __repr__ = short_repr

    request: Request
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0
    program: int | None = None
    cancel_after_ns: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.output_tokens <= self.request.max_output_tokens:
            raise ValueError(
                f"request {self.request.id}: output_tokens is {self.output_tokens}, "
                f"outside 1 to max_output_tokens = {self.request.max_output_tokens}"
            )


class Workload(msgspec.Struct, frozen=True):
    """Jobs in order of `request.arrival_ns`, with unique request ids, and the clients they name.

    `clients[i].id == i`.  `notes` are sentences a report must show: how clients were assigned, where
    `max_output_tokens` came from, what was scaled.
    """

    __repr__ = short_repr

    name: str
    jobs: Sequence[Job]
    clients: tuple[Client, ...]
    notes: tuple[str, ...] = ()
