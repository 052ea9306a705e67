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

A client tries again as often as it has saved up, and as a share of its calls that are answered: a server that fails is
not given several times the load.
"""

import math
from collections import defaultdict
from collections.abc import Hashable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import attrs

from fairsched.engines.gateway.config import LimitConfig

Why = Literal["refused", "busy", "full", "limited", "failed", "lost", "error", "late", "ours"]
"""Why a server gave no answer that works."""
PROBES_MAX = 2
"""Failures of its health path in a row that take a server out."""
SAVED = 100
"""Retries that a client has saved up at the start, and at most."""
_COUNTED = frozenset({"busy", "failed", "lost", "error", "late"})
_SECOND = 10**9


@attrs.frozen
class Failure:
    """A server failed a call, which waited so long for it if it was late."""

    why: Why
    message: str = ""
    retry_after_seconds: float | None = None
    waited_seconds: float = 0.0


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
        return max(self.until_ns, self.gone_until_ns, self.full_until_ns)

    def is_up(self, now_ns: int) -> bool:
        return self.until() <= now_ns and self.probes < PROBES_MAX

    def was_heard(self, waited_ns: float, now_ns: int) -> bool:
        """Return whether it brought bytes in the second half of a wait."""
        return self.heard_ns > now_ns - waited_ns / 2


@attrs.define
class _Client:
    """A client: until when servers are left alone for it, and until when it asks others rather; the server that
    answered it last and when; its retries, in hundredths."""

    limited: dict[int, int] = attrs.field(factory=dict)
    doubted: dict[int, int] = attrs.field(factory=dict)
    worked: int = -1
    worked_ns: int = 0
    saved: int = SAVED * 100


class ServerHealth:
    """The servers of an account by their places, and the clients at each.  O(servers) a failure, O(1) an answer."""

    def __init__(self, limits: LimitConfig) -> None:
        self.limits = limits
        self._servers: dict[int, _State] = {}
        self._clients: defaultdict[Hashable, _Client] = defaultdict(_Client)

    def join(self, place: int) -> None:
        self._servers[place] = _State()

    def part(self, place: int) -> None:
        self._servers.pop(place, None)
        for each in self._clients.values():
            each.limited.pop(place, None)
            each.doubted.pop(place, None)
            each.worked = -1 if each.worked == place else each.worked

    # --- what happened ----------------------------------------------------------------------------------------------

    def heard(self, place: int, now_ns: int) -> None:
        if place in self._servers:
            self._servers[place].heard_ns = now_ns

    def worked(self, place: int, client: Hashable, now_ns: int) -> None:
        found = self._clients[client]
        found.worked, found.worked_ns = place, now_ns
        found.saved = min(found.saved + self.limits.retry_percent, SAVED * 100)
        state = self._servers.get(place)
        if state is not None:
            state.row.clear()
            state.trial = False
            state.heard_ns = now_ns
        doubted, found.doubted = found.doubted, {}
        for each in doubted.keys() - {place}:
            self._judge(self._servers[each], each, now_ns)

    def failed(self, place: int, client: Hashable, failure: Failure, now_ns: int) -> None:
        state, why = self._servers.get(place), failure.why
        if state is None or why == "ours":
            return
        if why == "late" and state.was_heard(failure.waited_seconds * _SECOND, now_ns):
            return
        state.why = failure.message or why
        told_ns, rest_ns = now_ns + self._rest_ns(failure.retry_after_seconds), now_ns + self._rest_ns(None)
        if why in ("busy", "limited"):
            self._clients[client].limited[place] = told_ns
        if why == "full":
            state.full_until_ns = told_ns
        elif why == "refused":
            state.gone_until_ns = rest_ns
            state.trial = True
        elif why in _COUNTED:
            most = self.limits.failures
            if not state.row:
                state.since_ns = now_ns
            state.row = [*state.row, client][-most:]
            if not self._judge(state, place, now_ns) and len(state.row) >= most:
                self._clients[client].doubted[place] = rest_ns

    def probed(self, place: int, failure: str | None, now_ns: int, *, waited_seconds: float | None = None) -> None:
        """Take in how the server's health path answered: well (None), or not, or not in the time that it was given."""
        state = self._servers.get(place)
        if state is None or (waited_seconds is not None and state.was_heard(waited_seconds * _SECOND, now_ns)):
            return
        if failure is None:
            state.probes = state.gone_until_ns = 0
        else:
            state.probes += 1
            state.why = failure
            state.trial |= state.probes >= PROBES_MAX

    def _rest_ns(self, seconds: float | None) -> int:
        limits = self.limits
        return int(min(limits.down_seconds if seconds is None else seconds, limits.down_seconds_max) * _SECOND)

    def _judge(self, state: _State, place: int, now_ns: int) -> bool:
        """Leave a server alone if its row of failures is long enough and its own, of several clients or of one that was
        answered elsewhere; returns whether it is."""
        client = self._clients[state.row[0]] if state.row else _Client()
        elsewhere = client.worked not in (-1, place) and client.worked_ns >= state.since_ns
        if len(state.row) < self.limits.failures or not (elsewhere or len(set(state.row)) > 1):
            return False
        limits, states = self.limits, self._servers.values()
        most = max(len(states) * limits.down_percent // 100, 1 if limits.down_percent else 0)
        others_up = any(each.is_up(now_ns) for each in states if each is not state)
        if state.until_ns <= now_ns and sum(each.until_ns > now_ns for each in states) < most and others_up:
            base_ns = self._rest_ns(None)
            state.rests = max(state.rests - (now_ns - state.until_ns) // max(base_ns, 1), 0)
            longest_ns = int(limits.down_seconds_max * _SECOND)
            state.until_ns = now_ns + min(base_ns << min(state.rests, 40), longest_ns)
            state.rests += 1
            # The first failure on trial leaves it alone anew.
            state.row = state.row[1:]
            state.trial = True
        return True

    # --- what follows -----------------------------------------------------------------------------------------------

    def may_retry(self, client: Hashable) -> bool:
        """Return whether the client may try again, and take that from its retries."""
        found = self._clients[client]
        if found.saved < 100 or not self.limits.retry_percent:
            return False
        found.saved -= 100
        return True

    def up(self, place: int, now_ns: int) -> bool:
        return self._servers[place].is_up(now_ns)

    def hangs(self, place: int) -> bool:
        """Return whether its health path does not answer, so that calls without a byte of an answer wait in vain."""
        return self._servers[place].probes >= PROBES_MAX

    def on_trial(self, place: int) -> bool:
        """Return whether the server takes one call at a time, until an answer works."""
        return self._servers[place].trial

    def limited(self, client: Hashable, now_ns: int) -> dict[int, int]:
        """Return the servers that are left alone for this client, and until when."""
        return {place: until for place, until in self._clients[client].limited.items() if until > now_ns}

    def doubted(self, client: Hashable, now_ns: int) -> dict[int, int]:
        """Return the servers that failed this client alone, and until when others are asked rather."""
        found = self._clients[client]
        found.doubted = {place: until for place, until in found.doubted.items() if until > now_ns}
        return found.doubted

    def next_ns(self, now_ns: int) -> int | None:
        """Return when a server is up again by time alone; None: none is left alone."""
        times = (each.until() for each in self._servers.values())
        return min((time for time in times if time > now_ns), default=None)

    def status(self, place: int, now_ns: int) -> dict[str, object]:
        state = self._servers[place]
        return {
            "up": state.is_up(now_ns),
            "on_trial": state.is_up(now_ns) and state.trial,
            "failures_in_a_row": len(state.row),
            "left_alone_seconds": max(state.until() - now_ns, 0) // _SECOND,
            "last_failure": state.why,
        }


def retry_after_seconds(value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a `Retry-After` says, as a number or a date; None for what is neither.

    >>> retry_after_seconds("7"), retry_after_seconds("soon")
    (7.0, None)
    """
    try:
        seconds = float(value or "")
    except ValueError:
        try:
            when = parsedate_to_datetime(value or "")
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            return None
        seconds = (when - (now or datetime.now(UTC))).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
