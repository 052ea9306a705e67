"""The names of callers, by their keys or by a header."""

import hashlib
from collections.abc import Mapping

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai.errors import CallError
from fairsched.engines.serving import OTHERS

UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""


class CallerNames:
    """The names of callers, by the configuration."""

    def __init__(self, config: GatewayConfig) -> None:
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Take names and keys from this configuration from now on."""
        self._config = config
        self._owners = {key: name for name, client in config.clients.items() for key in client.keys}

    def of(self, headers: Mapping[str, str]) -> str:
        """Return the client of a call with these headers (names in lower case).

        Raises `CallError` (401) for an unknown one where these are rejected.
        """
        if self._config.identify == "header":
            mark = headers.get(self._config.header.lower(), "").strip()
            if mark in self._config.clients:
                return mark
        else:
            mark = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if mark in self._owners:
                return self._owners[mark]
        how = self._config.unknown_clients
        if how == "reject":
            raise CallError(401, "this gateway does not know you")
        if how == "together" or not mark:
            return OTHERS
        # A key must not be seen in a report, and no unknown client may take the name of a configured one.
        return f"{UNKNOWN_PREFIX}{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
