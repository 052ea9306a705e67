"""How much a call had that ended without saying.

A client that leaves early is charged what servers compute in that time, as is learned from calls that ended.
"""

from collections import defaultdict, deque

_RATES = 64
"""So many last calls say how fast a server is."""


class ServerRates:
    """How fast each server produces the outputs of one call."""

    def __init__(self) -> None:
        self._calls: defaultdict[int, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=_RATES))
        self._rates: dict[int, tuple[int, int]] = {}

    def forget(self, place: int) -> None:
        """Another server has the place."""
        self._calls.pop(place, None)
        self._rates.pop(place, None)

    def learn(self, place: int, output_tokens: int, span_ns: int) -> None:
        """A call had so many outputs in that time."""
        if output_tokens > 0 and span_ns > 0:
            self._calls[place].append((output_tokens, span_ns))
            self._rates.pop(place, None)

    def outputs(self, place: int, span_ns: int) -> int | None:
        """Return how many outputs a call has in that time; None while no call ended at any server.

        Half of the last tokens came at that rate or faster: calls with few tokens do not make a server seem slow.
        """
        if place not in self._calls and self._calls:
            place = next(iter(self._calls))
        if place not in self._calls:
            return None
        if place not in self._rates:
            self._rates[place] = _median(self._calls[place])
        tokens, nanoseconds = self._rates[place]
        return -(-span_ns * tokens // nanoseconds)


def _median(calls: deque[tuple[int, int]]) -> tuple[int, int]:
    """Return tokens and time of the call at the median of all tokens, calls in order of their rates."""
    ordered = sorted(calls, key=lambda call: call[0] / call[1])
    left = sum(tokens for tokens, _ in ordered) / 2
    for call in ordered:
        left -= call[0]
        if left <= 0:
            break
    return call
