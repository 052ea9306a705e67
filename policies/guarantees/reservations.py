"""What requests reserve of the outputs that they declare: what their clients' last requests had, and no less than the
rest of what a client may leave unreserved.

Engines whose memory is larger than what is declared and gateways use the same rule.  An engine counts in U what may be
left unreserved (`policies.base.Limits`).  A gateway, whose servers go on whatever comes, counts what really came beyond
reservations, and lets a client leave the more unreserved the fewer of its last requests came to that (`trusted`).
"""

from array import array
from collections import Counter

from fairsched.model.request import Client
from fairsched.policies.guarantees.window import reserved_outputs, unreserved_max

_LAST = 32
"""So many last requests of a client predict its next."""
_ENOUGH = 4
"""With fewer the last requests of all clients do."""
_UNKNOWN = 512
"""What is predicted before requests ended: more than the mean output of ShareGPT, 338 tokens ("Efficient Memory
Management for Large Language Model Serving with PagedAttention", figure 11)."""
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
        self._overran = array("q")

    def append(self, key: int, output_tokens: int, overran: bool) -> None:
        """Append one more request of the key that ended."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._ended)
            self._outputs.extend([0] * _LAST)
            self._ended.append(0)
            self._usual.append(_NOT_FOUND)
            self._overran.append(0)
        self._outputs[row * _LAST + self._ended[row] % _LAST] = min(output_tokens, _MOST)
        self._ended[row] += 1
        self._overran[row] = (self._overran[row] << 1 | overran) & (1 << _LAST) - 1
        self._usual[row] = _NOT_FOUND

    def overran(self, key: int) -> tuple[int, int]:
        """Return how many the last requests are, and how many of them came to far more than they reserved."""
        row = self._rows.get(key)
        return (0, 0) if row is None else (min(self._ended[row], _LAST), self._overran[row].bit_count())

    def usual(self, key: int) -> int | None:
        """Return how many outputs nine of ten of the last requests had at most, and no less than a running request has
        on average; None if there are too few."""
        row = self._rows.get(key)
        if row is None or self._ended[row] < _ENOUGH:
            return None
        if self._usual[row] == _NOT_FOUND:
            count = min(self._ended[row], _LAST)
            last = sorted(self._outputs[row * _LAST : row * _LAST + count])
            # Long requests run longer, so that of those that run more are long than of those that end.
            running = sum(each * each for each in last) // max(sum(last), 1)
            self._usual[row] = max(last[-1 - count // 10], running)
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
        self._weights: dict[int, int] = {}
        self.unreserved: Counter[int] = Counter()
        """Outputs that the requests of each payer in flight declared and did not reserve."""
        self.astray: Counter[int] = Counter()
        """Requests of each payer in flight that came to far more than they reserved."""

    def place(self, client: Client) -> None:
        """Count a client as its outermost group, if it is in one, before its first request, with that one's weight."""
        weight = client.weight
        if client.place:
            name, weight = client.place[0]
            self._payers[client.id] = self._groups.setdefault(name, _ALL - 1 - len(self._groups))
        self._weights[self.payer(client.id)] = weight

    def payer(self, client: int) -> int:
        """Return the number of what a client counts as: its own, or below that of all."""
        return self._payers.get(client, client)

    def learn(self, client: int, output_tokens: int, overran: bool = False) -> None:
        """Learn from a request of the client that ended after so many outputs, far more than it reserved or not."""
        for each in (self.payer(client), _ALL):
            self._last.append(each, output_tokens, overran)

    def trusted(self, client: int, tokens: int) -> int:
        """Return how many outputs a client may leave unreserved if so many for weight 1 may be expected to come; no
        more than those while one of its requests comes to far more than it reserved."""
        payer = self.payer(client)
        tokens *= self._weights.get(payer, 1)
        return tokens if self.astray[payer] else unreserved_max(tokens, *self._last.overran(payer))

    def usual(self, client: int) -> int | None:
        """Return how many outputs nine of ten of a client's last requests had at most (`_LastOutputs`), or with few
        those of all; None while nothing is known."""
        usual = self._last.usual(self.payer(client))
        return self._last.usual(_ALL) if usual is None else usual

    def predicted(self, client: int, most: int) -> int:
        """Return how many outputs a request is expected to have, of those that it declared."""
        usual = self.usual(client)
        return min(most, _UNKNOWN if usual is None else usual)

    def ample(self, client: int, least: int, most: int) -> int:
        """Return the limit of a request whose caller names none, and that may have so many: far more than is usual."""
        return min(most, max(least, _AMPLE * (self.usual(client) or 0)))

    def reserves(self, client: int, most: int, predicted: int, limit: int) -> int:
        """Return how many of a request's outputs are reserved if it is let in now, and its client may leave so many
        unreserved."""
        return reserved_outputs(predicted, most, max(limit - self.unreserved[self.payer(client)], 0))
