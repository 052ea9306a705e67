"""What the life of a call needs of an account: a place, and to tell it once how the call ended."""

from collections.abc import Callable
from typing import Protocol

from fairsched.engines.gateway.account.messages import Failed, Placed, PlaceRequest
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.servers import Upstream
from fairsched.engines.serving import Document


class Account(Protocol):
    """Queue, window and charges, for one event loop.

    After `place` a call ends with exactly one of `finish`, `cancel` and `give_back`.  These return at once, whatever
    is behind the account.  `outcome` is what the end is counted as in the status.
    """

    hung: Callable[[int], object]
    """Called with a server that does not answer: its calls without a byte of an answer wait in vain."""

    async def run(self) -> None:
        """Look after the servers, until cancelled."""

    async def place(self, wanted: PlaceRequest) -> Placed:
        """Return where a call goes, once it may.  Cancelling this withdraws it, and counts it as "left".

        Raises `CallError` for a call that is too large, over a quota, of which too many wait, or that waited too long.
        """

    def produced(self, request_id: int, tokens: int) -> None:
        """Count output tokens that passed by.  They are charged within a tick."""

    def finish(
        self, request_id: int, computed_tokens: int | None, output_tokens: int | None, cached_tokens: int = 0
    ) -> None:
        """End a call whose answer is whole, of which the server says so much (None: it does not say); it took
        `cached_tokens` more of the prompt from its cache."""

    def cancel(self, request_id: int, outcome: str) -> None:
        """End a call that was sent, and whose usage is not known: it is charged by estimate."""

    def give_back(self, request_id: int, outcome: str) -> None:
        """End a call of which the server computed nothing."""

    def count(self, outcome: str, calls: int = 1) -> None:
        """Count calls that ended before they had a place."""

    def failed(self, failure: Failed) -> None:
        """Tell that a server failed a call of a client."""

    def worked(self, server: int, name: str) -> None:
        """Tell that a server gave the client an answer."""

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the servers that take calls."""

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights and limits from this configuration from now on.

        Raises `ConfigError` for one that cannot be taken; then nothing changes.
        """

    async def status(self) -> Document:
        """Return plain JSON values: service by client, the gap against its bound, servers, ends."""

    async def usage(self) -> Document:
        """Return plain JSON values: what clients, users and organisations used, and their quotas."""

    async def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""

    def close(self) -> None:
        """Write what remains to be written: no call is left."""
