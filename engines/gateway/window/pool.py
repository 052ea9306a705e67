"""The servers behind a window: what each takes and holds, which of them are there, and a router that chooses one.

Servers join and leave.  The place of a server that left is given to the next one when nothing is in flight there any
more, so that the shares of all places together are never more than what was there at one time.
"""

import logging
from collections.abc import Iterator, Set

import attrs

from fairsched.engines.serving import RouterGuard
from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Admitted, Arrived, Event, WorkerJoined, WorkerLeft
from fairsched.model.pricing import CAPACITY_TOKENS_MAX, accepted
from fairsched.model.request import Request

_log = logging.getLogger("fairsched.gateway")


@attrs.frozen
class Share:
    """What one server takes at a time: `tokens` of prompts and outputs, and `requests`."""

    tokens: int = attrs.field(validator=lambda _, field, value: accepted(field.name, value, CAPACITY_TOKENS_MAX, 2))
    requests: int = attrs.field(default=256, validator=attrs.validators.ge(1))


@attrs.define
class PooledServer:
    """A place: its share, the tokens and requests in flight there, and whether it takes more (`up`).

    `charged` are the tokens that requests there came to so far: prompts, cached ones too, and outputs.
    """

    share: Share
    tokens: int = 0
    requests: int = 0
    charged: int = 0
    up: bool = True
    leaving: bool = False
    vacant: bool = False

    @property
    def free_tokens(self) -> int:
        """Tokens that one more request may take."""
        return self.share.tokens - self.tokens if self.up and self.requests < self.share.requests else 0


class ServerPool:
    """Servers by their places, 0 and up."""

    def __init__(self, router: RouterGuard) -> None:
        self.router = router
        self._servers: list[PooledServer] = []

    def __getitem__(self, place: int) -> PooledServer:
        return self._servers[place]

    def __iter__(self) -> Iterator[PooledServer]:
        return iter(self._servers)

    @property
    def tokens(self) -> int:
        """The shares of all servers that are there, and of those that still have requests."""
        return sum(server.share.tokens for server in self._servers if not server.vacant)

    @property
    def present(self) -> list[PooledServer]:
        """The servers that are there, up or not, without those that leave."""
        return [self._servers[place] for place in self.places]

    @property
    def places(self) -> list[int]:
        return [i for i, server in enumerate(self._servers) if not server.leaving]

    @property
    def free_tokens(self) -> int:
        """The tokens that one more request may take, at the server with the most room and in all together.

        A request that was sent beyond a server's share takes room elsewhere, also while that server leaves.
        """
        spare = ((server.share.tokens - server.tokens, server.up) for server in self._servers)
        room = sum(tokens if up else min(tokens, 0) for tokens, up in spare)
        return min(max((server.free_tokens for server in self._servers), default=0), room)

    # --- servers ----------------------------------------------------------------------------------------------------

    def join(self, share: Share, now_ns: int) -> int:
        """Add a server; returns its place, a number that another may have when this one is gone."""
        server = PooledServer(share)
        place = next((i for i, there in enumerate(self._servers) if there.vacant), len(self._servers))
        self._servers[place : place + 1] = [server]
        self.router.observe(WorkerJoined(now_ns, place, share.tokens))
        return place

    def part(self, place: int, now_ns: int) -> None:
        """Send a server no more requests; it is gone when nothing is in flight there."""
        server = self._servers[place]
        server.up, server.leaving = False, True
        self._vacate(place, now_ns)

    def _vacate(self, place: int, now_ns: int) -> None:
        server = self._servers[place]
        if server.leaving and not server.requests:
            server.vacant = True
            self.router.observe(WorkerLeft(now_ns, place))

    # --- requests ---------------------------------------------------------------------------------------------------

    def route(self, request: Request, tokens: int, now_ns: int, places: Set[int] = frozenset()) -> int:
        """Return the server for a request that holds so many tokens: the router's choice among those with room.

        With `places`, of which one at least is up, it is the one of them with the fewest requests, with room if any
        has some.
        """
        able = [place for place in places if self._servers[place].up]
        if able:
            return min(able, key=lambda i: (self._servers[i].free_tokens < tokens, self._servers[i].requests, i))
        loads = tuple(
            WorkerLoad(i, 0, server.requests, 0, server.share.tokens - server.tokens, server.share.tokens)
            for i, server in enumerate(self._servers)
            if server.free_tokens >= tokens
        )
        return self.router.route(request, ClusterView(now_ns, loads)).worker

    def take(self, place: int, tokens: int, request: Request, admitted: Admitted) -> None:
        """Count a request at a server, which holds so many tokens there."""
        server = self._servers[place]
        server.tokens += tokens
        server.requests += 1
        self.router.observe(Arrived(admitted.time_ns, place, request))
        self.router.observe(admitted)

    def release(self, place: int, tokens: int, ended: Event) -> None:
        server = self._servers[place]
        server.tokens -= tokens
        server.requests -= 1
        self.router.observe(ended)
        self._vacate(place, ended.time_ns)
