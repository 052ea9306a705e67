"""Transfers of requests between workers: what a request takes along, how long that takes, and how many there were."""

import attrs
import msgspec

from fairsched.model.latency import KV_BYTES, LatencyModel
from fairsched.model.request import Request

HOST_BYTES_PER_S = 25_000_000_000
"""Four fifths of the nominal rate of PCIe 4.0 x16 (16 lanes of 16 GT/s, 31.5 GB/s); chosen here, not measured."""


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """A request on its way to a worker, with its output so far and the KV of `kv_tokens` tokens of its context."""

    request: Request
    generated_tokens: int = 0
    kv_tokens: int = 0
    target: int = -1


@attrs.frozen
class KvLink:
    """A link between two workers, or to host memory: bytes of KV a token, and bytes a second.

    Defaults: Llama-3.1-8B in 16 bits (2 x 32 layers x 8 heads x 128 x 2 bytes), and 64 Gbit/s.
    """

    bytes_per_token: int = 131_072
    bytes_per_s: int = 8_000_000_000

    def __attrs_post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.bytes_per_s < 1:
            raise ValueError(
                "a link needs bytes_per_token of 0 or more and bytes_per_s of 1 or more, "
                f"not {self.bytes_per_token} and {self.bytes_per_s}"
            )

    def transfer_ns(self, tokens: int) -> int:
        """Return the nanoseconds that the KV of this many tokens is under way, rounded up."""
        return -(-tokens * self.bytes_per_token * 1_000_000_000 // self.bytes_per_s)


def host_link(latency: LatencyModel) -> KvLink:
    """Return the link to host memory of a worker with this model: PCIe, and the model's KV bytes a token."""
    return KvLink(KV_BYTES.get(latency.name, KvLink().bytes_per_token), HOST_BYTES_PER_S)


class Counters:
    """How often requests changed their worker in a run.

    `placed_again` counts requests whose worker died, `redirected` those sent to another worker because the chosen one
    took none, and `refused` dispatches and migrations that could not be executed.  `moved_ns` holds the time of each
    request's last transfer.
    """

    def __init__(self) -> None:
        self.redirected = 0
        self.migrated = 0
        self.refused = 0
        self.placed_again = 0
        self.moved_ns: dict[int, int] = {}

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        return {
            "placed_again": self.placed_again,
            "redirected": self.redirected,
            "migrated": self.migrated,
            "refused": self.refused,
        }
