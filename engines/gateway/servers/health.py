"""Which servers take calls: those that fail are left alone for a while, and never because of one client alone.

No I/O and no clock.  Failures say different things of a server, and each has its own consequence:

- "refused": it takes no connection.  It is gone, and left alone for `down_seconds`, or until its health path answers.
- "busy": it takes no more (503).  It is left alone for that client as long as it says (`Retry-After`), and counted.
- "full": the gateway's own key is over a limit (429).  It is left alone for all as long as it says.
- "limited": the caller's own key is over a limit (429).  It is left alone for that client, and nothing is counted.
- "failed", "lost", "error": an answer of 502 or 504; a connection that closed before a byte of an answer; a 500, which
  the caller gets.  They are counted.
- "late": no connection or no byte in time.  It is counted unless the server brought bytes to any call in the second
  half of that wait: then many wait for it, or the gateway is slow itself.
- "ours": the gateway has no descriptor or port left.  It says nothing of the server.

After `failures` counted failures in a row a server is left alone: for `down_seconds` the first time, twice as long each
time that it fails soon again, and shorter again as it works.  At most `down_percent` of the servers are, and never the
last that is up.  A row of one client's failures is the server's only if another one answers that client, whose next
calls go there for that reason: a call that breaks servers takes none out.  A server that comes back has one call on
trial, until an answer works.

Where its health path fails twice in a row a server is down until that answers.
"""

from collections.abc import Hashable

import attrs

from fairsched.engines.gateway.config import LimitConfig
from fairsched.engines.gateway.servers.target import Why

PROBES_MAX = 2
"""Failures of its health path in a row that take a server out."""
_COUNTED = frozenset({"busy", "failed", "lost", "error", "late"})
_SECOND = 10**9


@attrs.define
class _State:
    """A server: the clients of its failures in a row and since when; how often in a row it was left alone, and until
    when; until when it is thought gone, or full; and how often its health path failed in a row."""

    row: list[Hashable] = attrs.field(factory=list)
    heard_ns: int = -1
    since_ns: int = 0
    rests: int = 0
    until_ns: int = 0
    gone_until_ns: int = 0
    full_until_ns: int = 0
    probes: int = 0
    trial: bool = False
    why: str = ""

    def until(self) -> int:
        """Return until when it is left alone."""
        return max(self.until_ns, self.gone_until_ns, self.full_until_ns)


class ServerHealth:
    """The servers of an account by their places, and the clients at each.  O(servers) a failure, O(1) an answer."""

    def __init__(self, limits: LimitConfig) -> None:
        self.limits = limits
        self._servers: dict[int, _State] = {}
        self._worked: dict[Hashable, tuple[int, int]] = {}
        self._limited: dict[Hashable, dict[int, int]] = {}
        self._doubted: dict[Hashable, dict[int, int]] = {}

    def join(self, place: int) -> None:
        """Begin with a server of which nothing is known."""
        self._servers[place] = _State()

    def part(self, place: int) -> None:
        """Forget a server."""
        self._servers.pop(place, None)
        self._worked = {client: last for client, last in self._worked.items() if last[0] != place}
        for places in (*self._limited.values(), *self._doubted.values()):
            places.pop(place, None)

    # --- what happened ----------------------------------------------------------------------------------------------

    def heard(self, place: int, now_ns: int) -> None:
        """Take in that the server brought bytes of an answer."""
        state = self._servers.get(place)
        if state is not None:
            state.heard_ns = now_ns

    def worked(self, place: int, client: Hashable, now_ns: int) -> None:
        """Take in that the server answered a call of the client."""
        self._worked[client] = (place, now_ns)
        state = self._servers.get(place)
        if state is not None:
            state.row.clear()
            state.trial = False
            state.heard_ns = now_ns
        for doubted in self._doubted.pop(client, {}):
            if doubted != place:
                self._judge(doubted, self._servers[doubted], now_ns)

    def failed(
        self,
        place: int,
        client: Hashable,
        why: Why,
        now_ns: int,
        *,
        message: str = "",
        retry_after_seconds: float | None = None,
        waited_ns: int = 0,
    ) -> None:
        """Take in that the server failed a call of the client, which waited so long for it if it was late."""
        state = self._servers.get(place)
        if state is None or why == "ours" or (why == "late" and self._was_heard(state, waited_ns, now_ns)):
            return
        state.why = message or why
        if why in ("busy", "limited"):
            self._limited.setdefault(client, {})[place] = now_ns + self._rest_ns(retry_after_seconds)
        if why == "full":
            state.full_until_ns = now_ns + self._rest_ns(retry_after_seconds)
        elif why == "refused":
            state.gone_until_ns = now_ns + self._rest_ns(None)
            state.trial = True
        elif why in _COUNTED:
            if not state.row:
                state.since_ns = now_ns
            state.row = [*state.row[1 - self.limits.failures :], client] if self.limits.failures > 1 else [client]
            if not self._judge(place, state, now_ns) and len(state.row) >= self.limits.failures:
                self._doubted.setdefault(client, {})[place] = now_ns + self._rest_ns(None)

    def probed(self, place: int, failure: str | None, now_ns: int, *, waited_ns: int | None = None) -> None:
        """Take in how the server's health path answered: well (None), or not, or not in the time that it was given."""
        state = self._servers.get(place)
        if state is None or (waited_ns is not None and self._was_heard(state, waited_ns, now_ns)):
            return
        if failure is None:
            state.probes = state.gone_until_ns = 0
        else:
            state.probes += 1
            state.why = failure
            state.trial |= state.probes >= PROBES_MAX

    @staticmethod
    def _was_heard(state: _State, waited_ns: int, now_ns: int) -> bool:
        return state.heard_ns > now_ns - waited_ns // 2

    def _rest_ns(self, seconds: float | None) -> int:
        limits = self.limits
        return int(min(limits.down_seconds if seconds is None else seconds, limits.down_seconds_max) * _SECOND)

    def _judge(self, place: int, state: _State, now_ns: int) -> bool:
        """Leave a server alone if its row of failures is long enough, and its own; returns whether it is."""
        guilty = len(state.row) >= self.limits.failures and self._is_the_servers(place, state)
        if guilty:
            self._leave_alone(state, now_ns)
        return guilty

    def _is_the_servers(self, place: int, state: _State) -> bool:
        """Return whether a row of failures is the server's own: of several clients, or of one answered elsewhere."""
        first, *others = state.row
        if any(client != first for client in others):
            return True
        elsewhere, at_ns = self._worked.get(first, (place, 0))
        return elsewhere != place and at_ns >= state.since_ns

    def _leave_alone(self, state: _State, now_ns: int) -> None:
        limits, states = self.limits, self._servers.values()
        most = max(len(states) * limits.down_percent // 100, 1 if limits.down_percent else 0)
        resting = sum(each.until_ns > now_ns for each in states)
        if state.until_ns > now_ns or resting >= most:
            return
        if not any(self._is_up(each, now_ns) for each in states if each is not state):
            return
        base_ns = self._rest_ns(None)
        state.rests = max(state.rests - max(now_ns - state.until_ns, 0) // max(base_ns, 1), 0)
        longest_ns = int(limits.down_seconds_max * _SECOND)
        state.until_ns = now_ns + min(base_ns << min(state.rests, 40), longest_ns)
        state.rests += 1
        # The first failure on trial leaves it alone anew.
        state.row = state.row[1:]
        state.trial = True

    # --- what follows -----------------------------------------------------------------------------------------------

    def up(self, place: int, now_ns: int) -> bool:
        """Return whether the server takes calls."""
        return self._is_up(self._servers[place], now_ns)

    def _is_up(self, state: _State, now_ns: int) -> bool:
        return state.until() <= now_ns and state.probes < PROBES_MAX

    def hangs(self, place: int) -> bool:
        """Return whether its health path does not answer, so that calls without a byte of an answer wait in vain."""
        return self._servers[place].probes >= PROBES_MAX

    def on_trial(self, place: int) -> bool:
        """Return whether the server takes one call at a time, until an answer works."""
        return self._servers[place].trial

    def limited(self, client: Hashable, now_ns: int) -> dict[int, int]:
        """Return the servers that are left alone for this client, and until when."""
        return _lasting(self._limited, client, now_ns)

    def doubted(self, client: Hashable, now_ns: int) -> dict[int, int]:
        """Return the servers that failed this client alone, and until when others are asked rather."""
        return _lasting(self._doubted, client, now_ns)

    def next_ns(self, now_ns: int) -> int | None:
        """Return when a server is up again by time alone; None: none is left alone."""
        times = (each.until() for each in self._servers.values())
        return min((time for time in times if time > now_ns), default=None)

    def status(self, place: int, now_ns: int) -> dict[str, object]:
        """Return a server's state as plain JSON values."""
        state = self._servers[place]
        up = self._is_up(state, now_ns)
        rest_ns = state.until() - now_ns
        return {
            "up": up,
            "on_trial": up and state.trial,
            "failures_in_a_row": len(state.row),
            "left_alone_seconds": max(rest_ns, 0) // _SECOND,
            "last_failure": state.why,
        }


def _lasting(times: dict[Hashable, dict[int, int]], client: Hashable, now_ns: int) -> dict[int, int]:
    """Return the places of a client whose time is not over; the others are forgotten."""
    places = times.get(client)
    if places is None:
        return {}
    places = {place: until for place, until in places.items() if until > now_ns}
    if places:
        times[client] = places
    else:
        del times[client]
    return places
