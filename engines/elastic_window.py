"""A window before servers that come and go, whose accounts outlive it.

`Window` knows its servers for good; behind a platform that scales and restarts them, servers join, rest and leave.  A
place that a server left is given to the next one when nothing is in flight there any more, so that all of them together
are never more than what was there at one time: `tokens`, M of the theorem, is the largest sum so far.

`accounts` are what clients owe, without anything that waits or is in flight: the policy's state as it would be if all
of that left now, every prompt in flight charged to its estimate.  The policy's states are values, so this is asked of a
copy and costs no pause.  A new window that is given them goes on from there, and `adopt` tells it what is in flight at
servers already.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from fairsched.engines.gateway.window import WINDOW, Share, Window, _Flight
from fairsched.model.events import (
    Admitted,
    Arrived,
    Decoded,
    Event,
    Finished,
    Settled,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.plan import Admission
from fairsched.model.request import Prompt, Request
from fairsched.model.window import charged_at_once, held_tokens
from fairsched.policies.base import LocalPolicy, Router

_NOTHING = Share(2, 1)


@attrs.define
class _Quiet:
    """A request in flight whose prompt is in the accounts already: it takes room, and its output is charged."""

    request: Request
    server: int
    tokens: int
    produced: int = 0


class ElasticWindow(Window):
    """Queue, gate and window over servers that come and go.  `accounts` are those of a window that is gone.

    Raises `StateError` for accounts that are no state of this policy.
    """

    def __init__(
        self,
        policy: LocalPolicy[Any],
        router: Router[Any],
        listeners: Sequence[Callable[[Event], object]] = (),
        accounts: dict[str, Any] | None = None,
    ) -> None:
        state = None if accounts is None else policy.state_from_json(accounts)
        self._most_tokens = 0
        super().__init__(policy, router, (_NOTHING,), listeners, state)
        # The one place that a window begins with is nobody's yet.
        self._servers[0].up = False
        self._vacant: set[int] = {0}
        self._leaving: set[int] = set()
        self._quiet: dict[int, _Quiet] = {}
        self._only: dict[int, set[int]] = {}

    @property
    def tokens(self) -> int:
        """The most that the servers of one time could hold so far: M of the theorem."""
        return self._most_tokens

    @property
    def servers(self) -> int:
        """Servers that are there, at rest or not, without those that leave."""
        return len(self._servers) - len(self._vacant) - len(self._leaving)

    @property
    def in_flight(self) -> int:
        return super().in_flight + len(self._quiet)

    def holds(self, request_id: int) -> bool:
        """Whether the request waits or is in flight."""
        return request_id in self._waiting or request_id in self._flights or request_id in self._quiet

    def requests_at(self, place: int) -> int:
        """Requests in flight at a server."""
        return self._servers[place].requests

    def is_waiting(self, request_id: int) -> bool:
        """Whether the request waits."""
        return request_id in self._waiting

    def refuses(self, prompt_tokens: int, max_output_tokens: int) -> str | None:
        """Why no server that is there could ever take such a request; None also while no server is known."""
        gone = self._vacant | self._leaving
        most = max((server.share.tokens for i, server in enumerate(self._servers) if i not in gone), default=0)
        if not most or held_tokens(prompt_tokens, max_output_tokens) <= most:
            return None
        return f"{prompt_tokens} prompt and {max_output_tokens} output tokens are over the window of {most}"

    def outgrown(self) -> list[tuple[int, str]]:
        """Requests that wait and that no server could take any more, and why: nobody passes the first of them."""
        found = ((each.id, self.refuses(each.prompt_tokens, each.max_output_tokens)) for each in self.queue)
        return [(request_id, why) for request_id, why in found if why is not None]

    # --- calls that may not go everywhere ---------------------------------------------------------------------------

    def only(self, request_id: int, places: Iterable[int]) -> None:
        """A request that waits may go to these servers only, to the one of them with the fewest requests.

        It is let in when any server has room for it, and may then exceed its own server's share, but never what all
        servers together hold: M stays what it is.
        """
        self._only[request_id] = set(places)

    def stranded(self) -> list[int]:
        """Requests that wait for servers of which none is there any more."""
        return [request_id for request_id, places in self._only.items() if not places and request_id in self._waiting]

    def _route(self, request: Request, now_ns: int) -> int:
        places = self._only.pop(request.id, None)
        able = {i for i in places or () if self._servers[i].up}
        if not able:
            return super()._route(request, now_ns)
        need = held_tokens(request.prompt_tokens, request.max_output_tokens)
        return min(able, key=lambda i: (self._servers[i].hole < need, self._servers[i].requests, i))

    def _next(self, hole: int, now_ns: int) -> Admission | None:
        # What `only` put at a server beyond its share is not free elsewhere, also while that server leaves.
        spare = ((server.share.tokens - server.tokens, server.up) for server in self._servers)
        room = sum(tokens if up else min(tokens, 0) for tokens, up in spare)
        return super()._next(min(hole, room), now_ns) if room > 1 else None

    # --- servers ----------------------------------------------------------------------------------------------------

    def join(self, share: Share, now_ns: int) -> int:
        """A server is there; returns its place, a number that another may have when this one is gone."""
        place = min(self._vacant, default=len(self._servers))
        if place == len(self._servers):
            self._servers.append(attrs.evolve(self._servers[0], share=share, tokens=0, requests=0, up=True))
        else:
            self._vacant.remove(place)
            self._servers[place].up = True
        self._tell_router(WorkerJoined(now_ns, place, share.tokens))
        self.resize(place, share, now_ns)
        return place

    def resize(self, place: int, share: Share, now_ns: int) -> None:
        """A server takes so much from now on; what is in flight there stays."""
        self._servers[place].share = share
        total = sum(server.share.tokens for i, server in enumerate(self._servers) if i not in self._vacant)
        if total > self._most_tokens:
            self._most_tokens = total
            self._announce(WorkerJoined(now_ns, WINDOW, total))

    def part(self, place: int, now_ns: int) -> None:
        """A server takes no more, and is gone when nothing is in flight there."""
        self._servers[place].up = False
        for places in self._only.values():
            places.discard(place)
        self._leaving.add(place)
        self._vacate(place, now_ns)

    def _vacate(self, place: int, now_ns: int) -> None:
        if place in self._leaving and not self._servers[place].requests:
            self._leaving.remove(place)
            self._vacant.add(place)
            self._tell_router(WorkerLeft(now_ns, place))

    # --- what another window left -----------------------------------------------------------------------------------

    def accounts(self, now_ns: int) -> dict[str, Any] | None:
        """What clients owe; None while the policy is set aside.  O(clients + what waits + what is in flight)."""
        if self.set_aside is not None:
            return None
        state = self._state
        for flight in self._flights.values():
            request = flight.request
            if request.prompt_tokens != flight.charged:
                settled = Settled(now_ns, WINDOW, request.id, request.client, request.prompt_tokens)
                state = self.policy.observe(state, settled)
        return self.policy.state_to_json(self.policy.observe(state, WorkerLeft(now_ns, WINDOW)))

    def adopt(self, request: Request, place: int, now_ns: int, *, charged: bool) -> None:
        """A request that is at a server already: it takes room there, even if there is none.

        `charged`: its prompt is in the accounts.  Otherwise it is charged now, as an admission past the gate.
        """
        server, need = self._servers[place], held_tokens(request.prompt_tokens, request.max_output_tokens)
        server.tokens += need
        server.requests += 1
        if charged:
            self._quiet[request.id] = _Quiet(request, place, need)
            self._tell_router(Arrived(now_ns, place, request))
            self._tell_router(self._entered(request, place, now_ns))
            return
        at_once = charged_at_once(request.prompt_tokens)
        self._tell(Arrived(now_ns, WINDOW, request, 0, request.prompt_tokens - at_once))
        self._tell(self._entered(request, WINDOW, now_ns))
        self._tell_router(Arrived(now_ns, place, request))
        self._tell_router(self._entered(request, place, now_ns))
        self._flights[request.id] = _Flight(request, place, need, at_once)

    def _entered(self, request: Request, place: int, now_ns: int) -> Admitted:
        at_once = charged_at_once(request.prompt_tokens)
        cached = request.prompt_tokens - at_once
        return Admitted(now_ns, place, request.id, request.client, at_once, cached, request.max_output_tokens)

    # --- ends -------------------------------------------------------------------------------------------------------

    def produced(self, request_id: int, tokens: int, now_ns: int) -> None:
        quiet = self._quiet.get(request_id)
        if quiet is None:
            super().produced(request_id, tokens, now_ns)
            return
        quiet.produced += tokens
        self._charge_quietly(Decoded(now_ns, WINDOW, 1, (quiet.request.client,), (tokens,)))

    def finish(self, request_id: int, computed_tokens: int | None, output_tokens: int | None, now_ns: int) -> None:
        quiet = self._quiet.get(request_id)
        if quiet is None:
            place = self._flights[request_id].server
            super().finish(request_id, computed_tokens, output_tokens, now_ns)
            self._vacate(place, now_ns)
            return
        if output_tokens is not None and output_tokens > quiet.produced:
            self.produced(request_id, output_tokens - quiet.produced, now_ns)
        self._forget(quiet, now_ns)

    def cancel(self, request_id: int, now_ns: int) -> bool:
        quiet, flight = self._quiet.get(request_id), self._flights.get(request_id)
        if quiet is not None:
            self._forget(quiet, now_ns)
            return True
        self._only.pop(request_id, None)
        there = super().cancel(request_id, now_ns)
        if flight is not None:
            self._vacate(flight.server, now_ns)
        return there

    def give_back(self, request_id: int, now_ns: int) -> None:
        quiet = self._quiet.get(request_id)
        if quiet is not None:
            self._forget(quiet, now_ns)
            return
        place = self._flights[request_id].server
        super().give_back(request_id, now_ns)
        self._vacate(place, now_ns)

    def _forget(self, quiet: _Quiet, now_ns: int) -> None:
        server, request = self._servers[quiet.server], quiet.request
        server.tokens -= quiet.tokens
        server.requests -= 1
        del self._quiet[request.id]
        self._tell_router(Finished(now_ns, quiet.server, request.id, request.client, quiet.produced))
        self._vacate(quiet.server, now_ns)

    def _charge_quietly(self, event: Event) -> None:
        """Charge for what no listener knows of: it was let in before they listened."""
        if self.set_aside is None:
            try:
                self._state = self.policy.observe(self._state, event)
            except Exception as error:
                self._fail(error)


def request_of(request_id: int, client: int, prompt_tokens: int, max_output_tokens: int, now_ns: int) -> Request:
    """A request of so many tokens, whose text nobody here knows."""
    return Request(request_id, client, now_ns, Prompt(prompt_tokens), max_output_tokens)
