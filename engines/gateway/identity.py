"""The names of callers: by their keys, or by a header, and as servers are told them.

A caller is known by its headers alone, before its body is read, and knowing it leaves nothing behind: a name takes a
place among the clients when a call of it is charged, and configured clients have theirs from the start.
"""

import hashlib
from collections.abc import Mapping
from urllib.parse import quote

from fairsched.engines.gateway.config import CLIENT_HEADER, GatewayConfig, hashed_key
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.serving import OTHERS

UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""
_SAFE = "~@:/+"
"""Marks that stand as they are in a name that a server is told."""


class CallerNames:
    """The names of callers, by the configuration.  Headers are given with names in lower case, or in any."""

    def __init__(self, config: GatewayConfig) -> None:
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Take names and keys from this configuration from now on."""
        self._config = config
        self._owners = {key: name for name, client in config.clients.items() for key in client.keys}
        self._admins = frozenset(config.admin_keys)

    def of(self, headers: Mapping[str, str]) -> str:
        """Return the client of a call with these headers.

        Raises `CallError`: 401 for an unknown one where these are rejected, 400 for headers that name two.
        """
        if self._config.identify == "header":
            mark = _only(headers, self._config.header.lower()).strip()
            if mark in self._config.clients:
                return mark
        else:
            mark = key_of(headers)
            owner = self._owners.get(hashed_key(mark))
            if owner is not None:
                return owner
        how = self._config.unknown_clients
        if how == "reject":
            raise CallError(401, "this gateway does not know you")
        if how == "together" or not mark:
            return OTHERS
        # A key must not be seen in a report, and no unknown client may take the name of a configured one.
        return f"{UNKNOWN_PREFIX}{hashlib.sha256(_bytes(mark)).hexdigest()[:16]}"

    def program_of(self, headers: Mapping[str, str]) -> str:
        """Return what names the program of a call, empty if nothing does.  Raises `CallError` (400) for two at once.

        A caller names programs as it likes: they share what its client gets.
        """
        for header in self._config.program_headers:
            if mark := _only(headers, header.lower()).strip():
                return hashlib.sha256(_bytes(f"{header.lower()}:{mark}")).hexdigest()[:16]
        return ""

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise `CallError` (401) for a caller that may not see status and metrics."""
        if hashed_key(key_of(headers)) not in self._admins:
            raise CallError(401, "this wants a key of admin_keys")


def key_of(headers: Mapping[str, str]) -> str:
    """Return the key that a caller shows, empty for none: after `Bearer` in any case, or in Anthropic's `x-api-key`.

    >>> key_of({"authorization": "bearer sk-gold"})
    'sk-gold'
    """
    value = _only(headers, "authorization").strip()
    if not value:
        return _only(headers, "x-api-key").strip()
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else value


def told_name(name: str) -> tuple[str, str]:
    """Return the header that tells a server the client of a call, in ASCII: `urllib.parse.unquote` gives the name.

    >>> told_name("Jörg")
    ('x-fairsched-client', 'J%C3%B6rg')
    """
    return CLIENT_HEADER, quote(name.encode("utf-8", "replace"), safe=_SAFE)


def _only(headers: Mapping[str, str], name: str) -> str:
    """Return the header's value, empty if there is none.  A second one would be another caller to some servers."""
    every = getattr(headers, "getall", None)
    values = every(name, ()) if every is not None else (headers.get(name, ""),)
    if len(values) > 1:
        raise CallError(400, f"there is more than one header {name}")
    return values[0] if values else ""


def _bytes(mark: str) -> bytes:
    # A header of other bytes than UTF-8 comes with halves of surrogate pairs.
    return mark.encode("utf-8", "surrogateescape")
