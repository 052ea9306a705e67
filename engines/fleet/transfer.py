"""Requests that change their worker: what they take along, how long that takes, and how often it happened."""

import attrs
import msgspec

from fairsched.model.latency import LatencyModel
from fairsched.model.presets import KV_BYTES
from fairsched.model.request import Request

HOST_BYTES_PER_S = 25_000_000_000
"""Four fifths of what PCIe 4.0 x16 has nominally (16 lanes of 16 GT/s, 31.5 GB/s): a nominal figure of ours."""


class Move(msgspec.Struct, frozen=True, gc=False):
    """A request on its way to a worker, with the output that it has, and the KV of so many tokens of its context."""

    request: Request
    generated_tokens: int = 0
    kv_tokens: int = 0
    target: int = -1


@attrs.frozen
class KvLink:
    """The network between two workers, or the way to host memory: bytes of KV a token, and bytes a second.

    Defaults: Llama-3.1-8B in 16 bits (2 x 32 layers x 8 heads x 128 x 2 bytes), and 64 Gbit/s.
    """

    bytes_per_token: int = 131_072
    bytes_per_s: int = 8_000_000_000

    def __attrs_post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.bytes_per_s < 1:
            raise ValueError(f"a link moves {self.bytes_per_token} bytes a token at {self.bytes_per_s} bytes/s")

    def transfer_ns(self, tokens: int) -> int:
        """How long the KV of so many tokens is under way, rounded up."""
        return -(-tokens * self.bytes_per_token * 1_000_000_000 // self.bytes_per_s)


def host_link(latency: LatencyModel) -> KvLink:
    """The way to host memory of a worker with this model: PCIe, and the model's KV bytes a token."""
    return KvLink(KV_BYTES.get(latency.name, KvLink().bytes_per_token), HOST_BYTES_PER_S)


class Tally:
    """What a run counted: requests placed again because their worker died, sent to another worker than was said because
    that one took none, migrated, and neither migrated nor sent although it was said (`refused`).

    `moved_ns` is when each request moved last.
    """

    def __init__(self) -> None:
        self.redirected = 0
        self.migrated = 0
        self.refused = 0
        self.placed_again = 0
        self.moved_ns: dict[int, int] = {}

    def counts(self) -> dict[str, int]:
        """What was counted, by name."""
        return {
            "placed_again": self.placed_again,
            "redirected": self.redirected,
            "migrated": self.migrated,
            "refused": self.refused,
        }
