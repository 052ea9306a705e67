"""What requests reserve of the outputs that they declare: what their clients' last requests had, and no less than the
rest of what a client may leave unreserved.

Gateways and engines whose memory is larger than what is declared use the same rule; U counts what is unreserved beside
the memory (`policies.base.Limits`).  A client that misleads the prediction has more of its outputs counted as
unreserved, of which it may have only so many.
"""

from array import array
from collections import Counter

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
_NOT_FOUND = -1
_MOST = 2**63 - 1


class _LastOutputs:
    """The last outputs of each key, and what is usual of them.

    A row of numbers a key, all of it from the first one on: a key whose requests come again and again takes no more
    memory than one that came once.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._outputs = array("q")
        self._ended = array("q")
        self._usual = array("q")

    def append(self, key: int, output_tokens: int) -> None:
        """Append one more request of the key that ended."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._ended)
            self._outputs.extend([0] * _LAST)
            self._ended.append(0)
            self._usual.append(_NOT_FOUND)
        self._outputs[row * _LAST + self._ended[row] % _LAST] = min(output_tokens, _MOST)
        self._ended[row] += 1
        self._usual[row] = _NOT_FOUND

    def usual(self, key: int) -> int | None:
        """Return how many outputs nine of ten of the last requests had at most; None if there are too few."""
        row = self._rows.get(key)
        if row is None or self._ended[row] < _ENOUGH:
            return None
        if self._usual[row] == _NOT_FOUND:
            count = min(self._ended[row], _LAST)
            last = sorted(self._outputs[row * _LAST : row * _LAST + count])
            self._usual[row] = last[-1 - count // 10]
        return self._usual[row]


class Reservations:
    """What requests reserve: by the last outputs of their clients, and what these may leave unreserved.

    The clients of one outermost group (`place`) count as one client, the *payer*: U of a group has A once, however many
    clients it is.
    """

    def __init__(self) -> None:
        self._last = _LastOutputs()
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
        """Learn from a request of the client that ended after so many outputs."""
        for each in (self.payer(client), _ALL):
            self._last.append(each, output_tokens)

    def usual(self, client: int) -> int | None:
        """Return how many outputs nine of ten of a client's last requests had at most, or with few those of all; None
        while nothing is known."""
        usual = self._last.usual(self.payer(client))
        return self._last.usual(_ALL) if usual is None else usual

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
