"""How much calls have had whose outputs are not seen, and how much one had that ended without saying.

A client that leaves early, or whose outputs the server withholds, is charged what servers compute in that time, as is
learned from calls that ended.  A prompt of which no server says its tokens is charged what it may be at most.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from fairsched.engines.gateway.window.flight import CallInFlight
from fairsched.policies.guarantees import SECOND_NS

_CALLS = 64
"""So many last calls say how fast a server is."""
_UNSEEN_NS, _UNSEEN_PART = SECOND_NS // 4, 8
"""What a call has had is estimated so often, or whenever it is by such a part older: each estimate costs as much as
passing some tokens on."""
_VOUCHES = 8
"""A prompt whose tokens are known vouches for a part of it of those that are not."""


class Estimates:
    """How fast each server produces the outputs of one call, and calls in flight in order of their next estimates."""

    def __init__(self) -> None:
        self._calls: defaultdict[int, deque[tuple[float, int, int]]] = defaultdict(lambda: deque(maxlen=_CALLS))
        self._rates: dict[int, tuple[int, int]] = {}
        self._due: list[tuple[int, int, CallInFlight]] = []
        self._number = count()

    def forget(self, place: int) -> None:
        self._calls.pop(place, None)
        self._rates.pop(place, None)

    def begin(self, flight: CallInFlight) -> None:
        heappush(self._due, (flight.begun_ns + _UNSEEN_NS, next(self._number), flight))

    def learn(self, flight: CallInFlight, output_tokens: int, now_ns: int) -> None:
        span = now_ns - flight.begun_ns
        if output_tokens > 0 and span > 0:
            self._calls[flight.server].append((output_tokens / span, output_tokens, span))
            self._rates.pop(flight.server, None)

    def due(self, now_ns: int, flights: Mapping[int, CallInFlight]) -> Iterator[tuple[CallInFlight, int]]:
        """Yield the calls in flight whose time has come, with what is usual so far, up to what they reserved."""
        while self._due and self._due[0][0] <= now_ns:
            _, number, flight = heappop(self._due)
            if flights.get(flight.request.id) is flight:
                later_ns = max((now_ns - flight.begun_ns) // _UNSEEN_PART, _UNSEEN_NS)
                heappush(self._due, (now_ns + later_ns, number, flight))
                yield flight, min(self.outputs(flight, now_ns, 0), flight.reserved)

    def outputs(self, flight: CallInFlight, now_ns: int, unknown: int) -> int:
        """Return how many outputs a call has had by now, of those that it declared: what is usual in its time, or
        `unknown` while no call ended at any server.

        Nine tenths of the last tokens came at that rate or slower.  Short calls, and those that waited there, make
        it seem slow, and a client all of whose calls fail after the work is known by those of others only.
        """
        place = flight.server if flight.server in self._calls else next(iter(self._calls), None)
        if place is None:
            return min(unknown, flight.request.max_output_tokens)
        if place not in self._rates:
            self._rates[place] = _fast(self._calls[place])
        tokens, nanoseconds = self._rates[place]
        return min(-(-(now_ns - flight.begun_ns) * tokens // nanoseconds), flight.request.max_output_tokens)


def _fast(calls: deque[tuple[float, int, int]]) -> tuple[int, int]:
    """Return tokens and time of the call at nine tenths of all tokens, calls in order of their rates."""
    ordered = sorted(calls)
    left = sum([tokens for _, tokens, _ in ordered]) * 9 / 10
    for call in ordered:
        left -= call[1]
        if left <= 0:
            break
    return call[1:]


class PromptBounds:
    """What the prompts of clients come to at most of which no server says the tokens: all that they may be (a token a
    byte), or by the densest of the client's prompts so far.

    Known prompts vouch for an eighth as much of unknown ones, up to a window.  Beyond that a prompt counts for all that
    it may be: a client cannot show thin prompts and hide dense ones.
    """

    def __init__(self) -> None:
        self._densest: dict[int, tuple[int, int]] = {}
        self._vouched: Counter[int] = Counter()

    def learn(self, client: int, tokens: int, most: int, limit: int) -> None:
        """Learn from a prompt of so many tokens, that could be `most`; no more than `limit` may be vouched for."""
        known, of = self._densest.get(client, (0, 1))
        if tokens * of > known * most:
            self._densest[client] = min(tokens, most), most
        self._vouched[client] = min(self._vouched[client] + most // _VOUCHES, limit)

    def of(self, client: int, most: int) -> int:
        """Return what a prompt that may be `most` tokens is charged."""
        if self._vouched[client] < most:
            return most
        self._vouched[client] -= most
        known, of = self._densest[client]
        return -(-most * known // of)
