"""A server as it is called: its settings, its address where its name has several, and what a call needs of it."""

import ssl
from typing import Literal
from urllib.parse import urlsplit

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig, ServerConfig, TlsFiles
from fairsched.engines.gateway.tls import server_context
from fairsched.engines.gateway.window import Share

Why = Literal["refused", "busy", "full", "limited", "failed", "lost", "error", "late", "ours"]
"""Why a server gave no answer that works (`servers.health`)."""

WINDOW_REQUESTS = 256
"""Requests at a server at a time, unless the configuration says otherwise."""
ENDLESS = 1 << 24
"""Tokens and requests of a server without a limit: more than any serves at a time."""


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


def share_of(server: ServerConfig, config: GatewayConfig) -> Share:
    """Return what a server takes at a time."""
    unlimited = config.mode == "priority"
    return Share(
        server.window_tokens or ENDLESS,
        server.window_requests or (ENDLESS if unlimited else WINDOW_REQUESTS),
    )
