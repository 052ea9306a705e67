"""What requests reserve of the outputs that they declare: what their clients' last requests had, and no less than the
rest of what a client may leave unreserved.

Gateways and engines whose memory is larger than what is declared use the same rule; U counts what is unreserved beside
the memory (`policies.base.Limits`).  A client that misleads the prediction has more of its outputs counted as
unreserved, of which it may have only so many.
"""

from collections import Counter, defaultdict, deque

from fairsched.model.request import Client
from fairsched.policies.guarantees.window import reserved_outputs

_LAST = 32
"""So many last requests of a client predict its next."""
_ENOUGH = 4
"""With fewer the last requests of all clients do."""
_ALL = -1
"""All clients together."""
_AMPLE = 8
"""So many times what is predicted may come of a request whose caller names no limit."""


class Reservations:
    """What requests reserve: by the last outputs of their clients, and what these may leave unreserved.

    The clients of one outermost group (`place`) count as one client, the *payer*: U of a group has A once, however many
    clients it is.
    """

    def __init__(self) -> None:
        self._last: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_LAST))
        self._usual: dict[int, int] = {}
        self._groups: dict[str, int] = {}
        self._payers: dict[int, int] = {}
        self.unreserved: Counter[int] = Counter()
        """Outputs that the requests of each payer in flight declared and did not reserve."""

    def place(self, client: Client) -> None:
        """Count a client as its outermost group, if it is in one, before its first request."""
        if client.place:
            self._payers[client.id] = self._groups.setdefault(client.place[0][0], _ALL - 1 - len(self._groups))

    def payer(self, client: int) -> int:
        """Return the number of what a client counts as: its own, or below that of all."""
        return self._payers.get(client, client)

    def learn(self, client: int, output_tokens: int) -> None:
        """A request of the client ended after so many outputs."""
        for each in (self.payer(client), _ALL):
            self._last[each].append(output_tokens)
            self._usual.pop(each, None)

    def usual(self, client: int) -> int | None:
        """Return how many outputs nine of ten of a client's last requests had at most, or with few those of all; None
        while nothing is known."""
        key = next((each for each in (self.payer(client), _ALL) if len(self._last.get(each, ())) >= _ENOUGH), None)
        if key is None:
            return None
        if key not in self._usual:
            last = self._last[key]
            self._usual[key] = sorted(last)[-1 - len(last) // 10]
        return self._usual[key]

    def predicted(self, client: int, most: int) -> int:
        """Return how many outputs a request is expected to have, of those that it declared."""
        usual = self.usual(client)
        return most if usual is None else min(most, usual)

    def ample(self, client: int, least: int, most: int) -> int:
        """Return the limit of a request whose caller names none, and that may have so many: far more than is usual."""
        return min(most, max(least, _AMPLE * (self.usual(client) or 0)))

    def reserves(self, client: int, most: int, predicted: int, unreserved_max: int) -> int:
        """Return how many of a request's outputs are reserved if it is let in now."""
        return reserved_outputs(predicted, most, unreserved_max - self.unreserved[self.payer(client)])
