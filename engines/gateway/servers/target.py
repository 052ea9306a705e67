"""The servers that there are: each with its settings and its address, and what a call needs of it.

`Servers` says which join and which leave when the configuration or the addresses of a name change.  A lookup that fails
changes nothing, and an address is gone when `MISSED_MAX` answers in a row are without it: some name servers tell a part
of the addresses in each answer.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import attrs
import msgspec

from fairsched.engines.gateway.config import ServerConfig, TlsFiles
from fairsched.engines.gateway.tls import server_context


class Upstream(msgspec.Struct, frozen=True):
    """What a call needs of a server: its place in the account, its address, and the key that it wants.

    `host` is the name and port that the server is told; None: those in `url`.  `tls_files`: as in its settings.
    """

    server: int
    url: str
    api_key: str | None = None
    host: str | None = None
    tls_files: TlsFiles | None = None

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """How the server's certificate is checked, and what it is shown; true: as the system does.

        Raises `ConfigError` for files that cannot be used any more.
        """
        return True if self.tls_files is None else server_context(*self.tls_files)

    @property
    def server_hostname(self) -> str | None:
        """The name that the server's certificate has; None: the one in `url`."""
        return None if self.host is None else urlsplit(f"//{self.host}").hostname


@attrs.frozen
class ServerTarget:
    """A server: its settings, and its address where its name has several."""

    config: ServerConfig
    address: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """What makes it the same server after its settings changed."""
        return self.config.url, self.address

    def upstream(self, place: int) -> Upstream:
        """Return what a call to this server needs, at its place in the account."""
        config = self.config
        if self.address is None:
            return Upstream(place, config.url, config.api_key, None, config.tls_files)
        parts = urlsplit(config.url)
        host = f"[{self.address}]" if ":" in self.address else self.address
        url = parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()
        return Upstream(place, url, config.api_key, parts.netloc, config.tls_files)

    @property
    def name(self) -> str:
        """What logs and the status call it."""
        return self.config.url if self.address is None else f"{self.config.url} ({self.address})"


_log = logging.getLogger("fairsched.gateway")

MISSED_MAX = 3


class Servers(dict[int, ServerTarget]):
    """Those that there are by the places that the window gave them, and the addresses of names."""

    def __init__(self) -> None:
        super().__init__()
        self._missed: dict[str, dict[str, int]] = {}

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
        leave = [place for place, target in self.items() if target.key not in fresh]
        stay = [(place, fresh.pop(target.key)) for place, target in self.items() if target.key in fresh]
        return leave, stay, list(fresh.values())


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
