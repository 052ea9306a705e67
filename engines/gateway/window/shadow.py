"""A gateway in shadow: requests go at once, in order of arrival, and what the window would have done is counted."""

from collections import Counter

from fairsched.engines.gateway.window.window import Window


class Shadow:
    """What was forwarded, and what the window decided beside it.

    `counts`: "forwarded" in all; of these "at once" (the window would have let it in before anything else happened),
    "later" (it would have waited), "passed over" (a later request would have gone first), "never" (it was over
    before it would have been let in), "too large" for any server's window.  "limited": it would have got a 429.
    """

    def __init__(self, window: Window) -> None:
        self.counts: Counter[str] = Counter()
        self._window = window
        self._in_flight: Counter[int] = Counter()
        self._server_of: dict[int, int] = {}
        self._waiting: dict[int, bool] = {}
        self._let_in: set[int] = set()
        self.arriving: int | None = None
        """The request that is just being forwarded."""

    def forward(self, request_id: int, fits: bool) -> int:
        """Return the server with the fewest requests, of those that are up if any is; `fits`: the window knows of
        it."""
        servers = self._window.servers
        server = min(servers.places, key=lambda i: (not servers[i].up, self._in_flight[i]))
        self._in_flight[server] += 1
        self._server_of[request_id] = server
        if fits:
            self._waiting[request_id] = False
        else:
            self.counts["too large"] += 1
        self.arriving = request_id
        self.counts["forwarded"] += 1
        return server

    def let_in(self, request_id: int) -> None:
        """Note that the window lets the request in."""
        passed = self._waiting.pop(request_id)
        if passed:
            self.counts["passed over"] += 1
        self.counts["at once" if self.arriving == request_id else "later"] += 1
        self._let_in.add(request_id)
        for other in self._waiting:
            if other > request_id:
                break
            self._waiting[other] = True

    def is_let_in(self, request_id: int) -> bool:
        """Return whether the window knows the request as one in flight."""
        return request_id in self._let_in

    def leave(self, request_id: int) -> None:
        """Take out a request that is over.  Telling it twice changes nothing."""
        server = self._server_of.pop(request_id, None)
        if server is None:
            return
        self._in_flight[server] -= 1
        if self.arriving == request_id:
            self.arriving = None
        if self._waiting.pop(request_id, None) is not None:
            self.counts["never"] += 1
        self._let_in.discard(request_id)
