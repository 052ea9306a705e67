"""The clients of a window by name: each gets a number when it first comes, and a weight if it has one.

Names come from callers, so only so many strangers have one of their own; the others share the name `others`.
"""

from collections.abc import Iterable, Mapping

from fairsched.engines.gateway.window import Window
from fairsched.engines.serving_request import Clients
from fairsched.model.request import Client

OTHERS = "others"
"""The client of whoever has no name of its own."""


class WindowClients:
    """`weights` are those of clients that are known beforehand; `strangers` is the most of all others.

    `known` are clients with numbers and weights in the window's state already.
    """

    def __init__(
        self, window: Window, weights: Mapping[str, int], strangers: int, known: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._window = window
        self._clients = Clients()
        self._weights = dict(weights)
        self._strangers = strangers
        for name, weight in known:
            self._clients.put(Client(len(self._clients.all), name))
            self._weigh(name, weight, 0)
        self.configure(weights, 0)

    @property
    def all(self) -> tuple[Client, ...]:
        """All that came or are known, by number."""
        return tuple(self._clients.all)

    def id(self, name: str) -> int:
        """The number of the client of that name, or of the others; who has a weight is never one of these."""
        if name in self._clients:
            return self._clients.id(name)
        full = len(self._clients.all) >= self._strangers + len(self._weights)
        if full and name != OTHERS and name not in self._weights:
            return self.id(OTHERS)
        self._clients.put(Client(len(self._clients.all), name))
        return self._clients.id(name)

    def configure(self, weights: Mapping[str, int], now_ns: int) -> None:
        """Weights are these from now on; who is not named has 1."""
        self._weights = dict(weights)
        for client in self.all:
            self._weigh(client.name, weights.get(client.name, 1), now_ns)
        for name, weight in weights.items():
            self._weigh(name, weight, now_ns)

    def _weigh(self, name: str, weight: int, now_ns: int) -> None:
        client = self._clients.all[self.id(name)]
        if client.weight != weight:
            client = Client(client.id, name, weight)
            self._clients.put(client)
            self._window.configure(client, now_ns)
