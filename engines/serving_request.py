"""What a serving loop makes of what callers send: clients by number, prompts by blocks, and an answer that grows.

Inside, a client is a dense integer and a block of a prompt an eight-byte key; names and tokens stay at the edge.
"""

import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Literal

import attrs
import numpy as np

from fairsched.engines.executor import Sampling
from fairsched.model.request import KEY_BYTES, Client, Prompt, Request

Outcome = Literal["finished", "cancelled", "rejected"]


class Clients:
    """Clients by name: each new name gets the next number."""

    def __init__(self, known: Sequence[Client] = ()) -> None:
        if [client.id for client in known] != list(range(len(known))):
            raise ValueError(f"clients have the ids 0, 1, 2, ... in order, not {[client.id for client in known]}")
        self.all: list[Client] = list(known)
        self._ids = {client.name: client.id for client in known}

    def intern(self, name: str) -> Client:
        """The client of that name, perhaps a new one of weight 1.  O(1)."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.all)
            self.all.append(Client(found, name))
        return self.all[found]

    def configure(self, name: str, weight: int) -> Client:
        """Set a client's weight; raises `ValueError` unless it is a positive integer."""
        client = Client(self.intern(name).id, name, weight)
        self.all[client.id] = client
        return client


@attrs.frozen
class BlockKeys:
    """Keys of prompt blocks: a keyed hash of each block's tokens.

    Two blocks of equal tokens have one key, and others share one only by chance (2^-64 a pair), which nobody can bring
    about who does not know `secret`.  Workers whose prompts a router compares need one secret.
    """

    block_tokens: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), repr=False)

    def prompt(self, token_ids: Sequence[int]) -> Prompt:
        """The prompt of these tokens.  O(tokens)."""
        raw = np.asarray(token_ids, dtype="<i8").tobytes()
        if self.block_tokens == 1:
            return Prompt(len(token_ids), 1, raw)
        size, secret = 8 * self.block_tokens, self.secret
        whole = len(raw) - len(raw) % size
        keys = b"".join(
            [blake2b(raw[i : i + size], digest_size=KEY_BYTES, key=secret).digest() for i in range(0, whole, size)]
        )
        return Prompt(len(token_ids), self.block_tokens, keys)

    def request(
        self, request_id: int, client: int, prompt_ids: Sequence[int], max_output_tokens: int, **labels: Any
    ) -> Request:
        """A request with this prompt, which arrives when it is submitted."""
        return Request(request_id, client, 0, self.prompt(prompt_ids), max_output_tokens, **labels)


class Answer:
    """What a request has been answered so far: its `tokens`, and how it ended (`outcome`, `reason`), None until then.

    `on_token` is called with each token, and `on_end` with the answer when there will be no more.
    """

    __slots__ = ("client", "on_end", "on_token", "outcome", "prompt_ids", "reason", "request_id", "sampling", "tokens")

    def __init__(
        self,
        request_id: int,
        client: int,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        on_token: Callable[[int], None] | None,
        on_end: "Callable[[Answer], None] | None",
    ) -> None:
        self.request_id = request_id
        self.client = client
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.on_token = on_token
        self.on_end = on_end
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.reason = ""

    @property
    def ended(self) -> bool:
        """Whether there will be no more tokens."""
        return self.outcome is not None

    def call(self, token: int | None) -> None:
        """Tell the caller a token, or (None) the end."""
        if token is not None and self.on_token is not None:
            self.on_token(token)
        elif token is None and self.on_end is not None:
            self.on_end(self)

    def __repr__(self) -> str:
        return f"Answer(request {self.request_id}, {len(self.tokens)} tokens, {self.outcome or 'open'})"
