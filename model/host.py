"""A worker's host memory: the KV of requests that were swapped out, and what is on its way there and back.

It is counted in tokens, as the worker's own memory is.  A request has KV there only while it waits.  Transfers last for
one step: what is `outgoing` stands on the device until the step is over, and on the host from its beginning on; what
comes back takes its place on the device from the beginning on, and leaves the host at the end.
"""

import msgspec
from immutables import Map


class Host(msgspec.Struct, frozen=True):
    """Host memory of `capacity_tokens`, of which `used_tokens` are taken.

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
        """Whether a waiting request's KV is on its way there."""
        return any(request_id == going for going, _ in self.outgoing)

    def kept(self, request_id: int) -> int:
        """For how many tokens of a waiting request's context KV is there and whole."""
        return 0 if self.comes(request_id) else self.kv.get(request_id, 0)


NO_HOST = Host()
"""A worker without host memory."""
