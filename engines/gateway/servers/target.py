"""The servers that there are: each with its settings and its address, and what a call needs of it.

`Servers` says which join and which leave when the configuration or the addresses of a name change.  A lookup that fails
changes nothing, and an address is gone when `MISSED_MAX` answers in a row are without it: some name servers tell a part
of the addresses in each answer.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import attrs
from yarl import URL

from fairsched.engines.gateway.config import ServerConfig
from fairsched.engines.gateway.tls import server_context


@attrs.frozen
class Upstream:
    """A server: its settings, its address where its name has several, and its place in the account."""

    config: ServerConfig
    address: str | None = None
    server: int = -1

    @property
    def key(self) -> tuple[str, str | None]:
        """What makes it the same server after its settings changed."""
        return self.config.url, self.address

    @property
    def name(self) -> str:
        """What logs and the status call it."""
        return self.config.url if self.address is None else f"{self.config.url} ({self.address})"

    @property
    def url(self) -> str:
        if self.address is None:
            return self.config.url
        parts = urlsplit(self.config.url)
        host = f"[{self.address}]" if ":" in self.address else self.address
        return parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()

    def request(
        self, http: aiohttp.ClientSession, method: str, path: str, headers: MutableMapping[str, str], **more: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return a request of a path there, of which the server and its certificate are told and asked for the name in
        its settings.  Raises `ConfigError` for TLS files that cannot be used any more."""
        parts, files = urlsplit(self.config.url), self.config.tls_files
        if self.address is not None:
            headers["Host"] = parts.netloc
        return http.request(
            method,
            URL(self.url + path, encoded=True),
            headers=headers,
            allow_redirects=False,
            ssl=True if files is None else server_context(*files),
            server_hostname=None if self.address is None else parts.hostname,
            **more,
        )


_log = logging.getLogger("fairsched.gateway")

MISSED_MAX = 3


class Servers(dict[int, Upstream]):
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

    def wanted(self, servers: Sequence[ServerConfig]) -> list[Upstream]:
        """Return the servers that a configuration stands for, by what is known of its names."""
        found: list[Upstream] = []
        for server in servers:
            if server.resolve:
                found += [Upstream(server, address) for address in self._missed.get(server.url, ())]
            else:
                found.append(Upstream(server))
        return found

    def changes(self, wanted: Sequence[Upstream]) -> tuple[list[int], list[tuple[int, Upstream]], list[Upstream]]:
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
