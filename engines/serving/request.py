"""What a serving loop makes of what callers send: clients by number, prompts by blocks, ids that are used once.

Inside, a client is a dense integer and a block of a prompt an eight-byte key; names and tokens stay at the edge.
"""

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np

from fairsched.model.request import KEY_BYTES, Prompt, Request


@attrs.frozen
class BlockKeys:
    """Keys of prompt blocks: a keyed hash of each block's tokens.

    Two blocks of equal tokens have one key, and others share one only by chance (2^-64 a pair), which a client
    cannot bring about without `secret`.  Workers whose prompts a router compares need one secret.
    """

    block_tokens: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), repr=False)

    def prompt(self, token_ids: Sequence[int]) -> Prompt:
        """Return the prompt of these tokens.  O(tokens)."""
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
        """Return a request with this prompt, which arrives when it is submitted."""
        return Request(request_id, client, 0, self.prompt(prompt_ids), max_output_tokens, **labels)


class UsedIds:
    """Which request ids were used: all below `next` less none, and a few above; O(1) memory for dense ids."""

    def __init__(self) -> None:
        self.next = 0
        self._above: set[int] = set()
        self._away: set[int] = set()

    def __contains__(self, request_id: int) -> bool:
        return (request_id < self.next or request_id in self._above) and request_id not in self._away

    def leave(self, request_id: int) -> None:
        """Let the request go elsewhere, from where it may come back under its id."""
        self._away.add(request_id)

    def skip_to(self, next_id: int) -> None:
        """Count all ids below this one as used: the caller will not use them here."""
        if next_id > self.next:
            self.next = next_id
            self._above = {request_id for request_id in self._above if request_id >= next_id}
            self._away = {request_id for request_id in self._away if request_id >= next_id}
            self._close_up()

    def add(self, request_id: int) -> None:
        self._away.discard(request_id)
        if request_id >= self.next:
            self._above.add(request_id)
        self._close_up()

    def _close_up(self) -> None:
        while self.next in self._above:
            self._above.remove(self.next)
            self.next += 1


def check_request(request: Request, prompt_tokens: int, output_tokens: int | None, generated: int = 0) -> None:
    """Raise `ValueError` unless so many tokens are the request's prompt, and so many may be its output, of which
    fewer are `generated` already."""
    if prompt_tokens != request.prompt.tokens:
        raise ValueError(
            f"request {request.id} has a prompt of {request.prompt.tokens} tokens, and {prompt_tokens} are given"
        )
    if output_tokens is not None and not 1 <= output_tokens <= request.max_output_tokens:
        raise ValueError(
            f"request {request.id} produces 1 to max_output_tokens = {request.max_output_tokens} tokens, "
            f"not {output_tokens}"
        )
    most = request.max_output_tokens if output_tokens is None else output_tokens
    if generated >= most:
        raise ValueError(f"request {request.id} has {generated} of {most} output tokens, and nothing is left to do")
