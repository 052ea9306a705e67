"""The servers that there are: those of the configuration, each at its address or at all that its name resolves to.

`Servers` says who joins and who leaves when the configuration or the addresses of a name change.  A lookup that fails
changes nothing, and an address is gone when `MISSED_MAX` answers in a row are without it: some name servers tell a part
of the addresses in each answer.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from fairsched.engines.gateway.config import ServerConfig
from fairsched.engines.gateway.servers.target import ServerTarget

_log = logging.getLogger("fairsched.gateway")

MISSED_MAX = 3


class Servers:
    """Those that there are by their places, and the addresses of names."""

    def __init__(self) -> None:
        self._places: dict[int, ServerTarget] = {}
        self._missed: dict[str, dict[str, int]] = {}

    def __getitem__(self, place: int) -> ServerTarget:
        return self._places[place]

    def __contains__(self, place: object) -> bool:
        return place in self._places

    @property
    def places(self) -> dict[int, ServerTarget]:
        """Every server that is there."""
        return self._places

    def resolved(self, server: ServerConfig, addresses: Iterable[str]) -> None:
        """Take in the answer of a lookup."""
        found, missed = set(addresses), self._missed.setdefault(server.url, {})
        if not found:
            return
        for address in tuple(missed):
            missed[address] += 1
            if missed[address] >= MISSED_MAX:
                del missed[address]
        missed |= dict.fromkeys(sorted(found), 0)

    def wanted(self, servers: Sequence[ServerConfig]) -> list[ServerTarget]:
        """Return the servers that a configuration stands for, by what is known of its names."""
        found: list[ServerTarget] = []
        for server in servers:
            if server.resolve:
                found += [ServerTarget(server, address) for address in self._missed.get(server.url, ())]
            else:
                found.append(ServerTarget(server))
        return found

    def changes(
        self, wanted: Sequence[ServerTarget]
    ) -> tuple[list[int], list[tuple[int, ServerTarget]], list[ServerTarget]]:
        """Return the places that leave, those that stay with what they are now, and the servers that join."""
        fresh = {target.key: target for target in wanted}
        leave = [place for place, target in self._places.items() if target.key not in fresh]
        stay = [(place, fresh.pop(target.key)) for place, target in self._places.items() if target.key in fresh]
        return leave, stay, list(fresh.values())

    def put(self, place: int, target: ServerTarget) -> None:
        """Have the server at this place, which the window gave it."""
        self._places[place] = target

    def drop(self, place: int) -> None:
        """Have no server at this place any more."""
        del self._places[place]


async def addresses_of(server: ServerConfig) -> list[str]:
    """Return the addresses of a server's name, none if it cannot be looked up, which is logged."""
    parts = urlsplit(server.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.warning("the name %s cannot be looked up: %s", parts.hostname, error)
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
