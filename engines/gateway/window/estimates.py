"""What is not known when it is needed: how much a call will produce, and how much one had that ended without saying.

Both are learned from calls that ended.  A client that misleads the first has more of its declared outputs counted as
not reserved, of which it may have only so many; one that leaves early is charged what servers compute in that time.
"""

from collections import Counter, defaultdict, deque

from fairsched.model.request import Request
from fairsched.policies.guarantees import reserved_outputs

_CALLS = 32
"""So many last calls of a client predict its next."""
_ENOUGH = 4
"""With fewer the last calls of all clients do."""
_ALL = -1
"""All clients together."""
_AMPLE = 8
"""So many times what is predicted may come of a call whose caller names no limit."""
_RATES = 64
"""So many last calls say how fast a server is."""


class Reservations:
    """What calls reserve: by the last outputs of their clients, and what these may leave unreserved."""

    def __init__(self) -> None:
        self._last: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_CALLS))
        self._usual: dict[int, int] = {}
        self.unreserved: Counter[int] = Counter()
        """Outputs that the calls of each client in flight declared and did not reserve."""

    def learn(self, client: int, output_tokens: int) -> None:
        """A call of the client ended after so many outputs."""
        for each in (client, _ALL):
            self._last[each].append(output_tokens)
            self._usual.pop(each, None)

    def usual(self, client: int) -> int | None:
        """Return how many outputs nine of ten of a client's last calls had at most, or with few those of all; None
        while nothing is known."""
        key = next((each for each in (client, _ALL) if len(self._last.get(each, ())) >= _ENOUGH), None)
        if key is None:
            return None
        if key not in self._usual:
            last = self._last[key]
            self._usual[key] = sorted(last)[-(-9 * len(last) // 10) - 1]
        return self._usual[key]

    def predicted(self, request: Request) -> int:
        """Return how many outputs a call is expected to have, of those that it declared."""
        most, usual = request.max_output_tokens, self.usual(request.client)
        return most if usual is None else min(most, usual)

    def ample(self, client: int, least: int, most: int) -> int:
        """Return the limit of a call whose caller names none, and that may have so many: far more than is usual."""
        return min(most, max(least, _AMPLE * (self.usual(client) or 0)))

    def reserved(self, request: Request, predicted: int, unreserved_max: int) -> int:
        """Return how many of a call's outputs are reserved if it is let in now."""
        left = unreserved_max - self.unreserved[request.client]
        return reserved_outputs(predicted, request.max_output_tokens, left)


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
