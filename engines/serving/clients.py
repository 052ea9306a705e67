"""The registry of client names: each client is a dense number inside, and a name, a weight and groups at the edge.

Names come from callers, so only so many unknown ones (without a weight in the configuration) have a number of their
own.  The others share the name `overflow`.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from fairsched.model.request import Client, Groups

OTHERS = "others"
"""The usual name that unknown clients share."""
NAME_MAX = 256


def client_name(said: object) -> str:
    """Return the name of a client in what a request says; empty for what is no name.

    >>> client_name(7), client_name(None)
    ('7', '')
    """
    # Half a surrogate pair, which JSON can say, could be written neither to a log nor to a scrape.
    return str(said)[:NAME_MAX].encode("utf-8", "replace").decode() if isinstance(said, str | int) else ""


class ClientRegistry:
    """Clients by name and by number.

    `weights` are those of configured clients, `known` are clients that have numbers already, and at most
    `unknown_max` others get one (None: any number).
    """

    def __init__(
        self,
        weights: Mapping[str, int] | None = None,
        *,
        known: Iterable[Client] = (),
        unknown_max: int | None = None,
        overflow: str = OTHERS,
    ) -> None:
        self.all: list[Client] = []
        self.unknown_max = unknown_max
        self._overflow = overflow
        self._ids: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self._unknown = 0
        for client in known:
            self.put(client)
        if weights is not None:
            self.configure(weights)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __getitem__(self, name: str) -> Client:
        return self.all[self._ids[name]]

    def put(self, client: Client) -> None:
        """Add the client with the next number, or change one; raises `ValueError` for any other number or name."""
        known = self._ids.get(client.name, len(self.all))
        if client.id != known:
            raise ValueError(f"client {client.name!r} has number {known}, not {client.id}")
        self._unknown += client.name not in self._ids and self._is_unknown(client.name)
        self._ids[client.name] = client.id
        self.all[client.id : client.id + 1] = [client]

    def changed(self, name: str, weight: int, groups: Groups = (), cache_floor_tokens: int | None = None) -> Client:
        """Return the client of that name as it will be; a new one has the next number.  Without a floor, its own
        stays."""
        known = self[name].changed(weight, groups) if name in self._ids else Client(len(self.all), name, weight, groups)
        return known if cache_floor_tokens is None else replace(known, cache_floor_tokens=cache_floor_tokens)

    def resolve(self, name: str) -> tuple[Client, bool]:
        """Return the client of that name, or the one of `overflow`, and whether it is new."""
        if name in self._ids:
            return self[name], False
        full = self.unknown_max is not None and self._unknown >= self.unknown_max
        if not name or (full and self._is_unknown(name)):
            return self.resolve(self._overflow)
        client = Client(len(self.all), name, self._weights.get(name, 1))
        self.put(client)
        return client, True

    def configure(self, weights: Mapping[str, int]) -> list[Client]:
        """Set the weights; a client without one has 1.  Returns the clients that changed, or came with a weight."""
        self._weights = dict(weights)
        self._unknown = sum(map(self._is_unknown, self._ids))
        changed = []
        for client in self.all:
            weight = weights.get(client.name, 1)
            if client.weight != weight:
                changed.append(client.changed(weight))
                self.put(changed[-1])
        fresh = [self.resolve(name)[0] for name in weights if name not in self._ids]
        return changed + [client for client in fresh if client.weight != 1]

    def _is_unknown(self, name: str) -> bool:
        return name not in self._weights and name != self._overflow
