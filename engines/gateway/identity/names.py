"""The names of callers: by their keys, tokens, certificates, or a header, and as servers are told them.

A caller is known by its headers and its connection alone, before its body is read, and knowing it leaves nothing
behind: a name takes a place among the clients when a call of it is charged, and configured clients have theirs from the
start.

Each way that is configured is asked in turn, and the first of which a call has something decides: what it has wrong is
refused, and no other way is tried.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address, collapse_addresses, ip_address
from typing import Any
from urllib.parse import quote, urlsplit

import attrs

from fairsched.engines.gateway import config as gateway_config
from fairsched.engines.gateway.config import UNKNOWN_PREFIX
from fairsched.engines.gateway.identity.tokens import Issuer, UnknownKeyError
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.serving import OTHERS

SAID_MAX = 128
"""Longest text by which a token, a certificate or a proxy names a caller."""
_SAFE = "~@:/+"
"""Marks that stand as they are in a name that a server is told."""


@attrs.frozen
class Peer:
    """The other end of a connection: its address, and what TLS has verified of the certificate that it showed."""

    address: str | None = None
    certificate: Mapping[str, Any] | None = None


NO_PEER = Peer()
"""A peer of which nothing is known."""


class CallerNames:
    """The names of callers, by the configuration.  Headers are given with names in lower case, or in any.

    Raises `ConfigError` for a file of keys that cannot be used.
    """

    def __init__(self, config: gateway_config.GatewayConfig) -> None:
        self._issuer = None if config.jwt is None else Issuer(config.jwt)
        self._by: dict[gateway_config.Way, Callable[[Mapping[str, str], Peer], str | None]] = {
            "key": self._by_key,
            "header": self._by_header,
            "jwt": self._by_token,
            "certificate": self._by_certificate,
        }
        self._take(config)

    def configure(self, config: gateway_config.GatewayConfig) -> None:
        self._take(config)
        if self._issuer is not None:
            self._issuer.reload()

    def _take(self, config: gateway_config.GatewayConfig) -> None:
        self._config = config
        self._owners = {key: name for name, client in config.clients.items() for key in client.keys}
        self._listed = config.listed
        self._proxies = gateway_config.networks(config.header_from)
        self._admins = frozenset(config.admin_keys)

    async def run(self) -> None:
        """Read the keys of tokens now and then, until cancelled."""
        if self._issuer is not None:
            await self._issuer.run()

    async def named(self, headers: Mapping[str, str], peer: Peer) -> str:
        """Return what `of` does; a token of an unknown key has the keys of its issuer read again before."""
        try:
            return self.of(headers, peer)
        except UnknownKeyError:
            assert self._issuer is not None
            await self._issuer.refresh()
            return self.of(headers, peer)

    def of(self, headers: Mapping[str, str], peer: Peer = NO_PEER) -> str:
        """Return the client of a call with these headers.

        Raises `CallError`: 401 for an unknown one where these are rejected, 400 for headers that name two.
        """
        for way in self._config.ways:
            name = self._by[way](headers, peer)
            if name is not None:
                return name
        return self._unknown("")

    # --- ways -------------------------------------------------------------------------------------------------------

    def _by_key(self, headers: Mapping[str, str], _: Peer) -> str | None:
        mark = key_of(headers)
        owner = self._owners.get(gateway_config.hashed_key(mark)) if mark else None
        if owner is not None:
            return owner
        if not mark or (self._issuer is not None and _is_token(mark)):
            return None
        return self._unknown(mark)

    def _by_token(self, headers: Mapping[str, str], _: Peer) -> str | None:
        mark, issuer = key_of(headers), self._issuer
        assert issuer is not None
        assert self._config.jwt is not None
        if not _is_token(mark):
            return None
        claims, config = issuer.claims(mark), self._config.jwt
        named = (config.client_claim, config.organisation_claim, config.user_claim)
        said = [_said(claims.get(claim), f"the token's claim {claim}") for claim in named if claim is not None]
        return self._verified("jwt", said[0], said[1:])

    def _by_certificate(self, _: Mapping[str, str], peer: Peer) -> str | None:
        if not peer.certificate:
            return None
        assert self._config.tls is not None
        kind = self._config.tls.client_name
        if kind == "CN":
            parts = (part for group in peer.certificate.get("subject", ()) for part in group)
            found = [value for key, value in parts if key == "commonName"]
        else:
            found = [value for key, value in peer.certificate.get("subjectAltName", ()) if key == kind]
        if len(found) != 1:
            raise CallError(401, f"the certificate has {len(found) or 'no'} names of kind {kind}, and needs one")
        return self._verified("certificate", _said(found[0], f"the certificate's {kind}"))

    def _by_header(self, headers: Mapping[str, str], peer: Peer) -> str | None:
        if self._proxies and not self._is_proxy(peer.address):
            return None
        mark = _only(headers, self._config.header.lower()).strip()
        if not mark:
            return None
        if mark in self._config.clients:
            return mark
        if not self._proxies:
            return self._unknown(mark)
        return self._verified("header", _said(mark, f"the header {self._config.header}"))

    def _is_proxy(self, text: str | None) -> bool:
        try:
            address = ip_address((text or "").partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)

    def _verified(self, way: gateway_config.Way, said: str, groups: Sequence[str] = ()) -> str:
        """Return the client of a caller that something vouches for."""
        name = gateway_config.verified_name(way, said, groups)
        owner, how = self._listed.get(name), self._config.verified_clients
        if owner is not None:
            return owner
        if how == "reject":
            raise CallError(401, f"this gateway does not know you by your {way}")
        return OTHERS if how == "together" else name

    def _unknown(self, mark: str) -> str:
        """Return the client of a caller that nothing vouches for, and that shows this."""
        how = self._config.unknown_clients
        if how == "reject":
            raise CallError(401, "this gateway does not know you")
        if how == "together" or not mark:
            return OTHERS
        # A key must not be seen in a report, and no unknown client may take the name of a configured one.
        return f"{UNKNOWN_PREFIX}{hashlib.sha256(_bytes(mark)).hexdigest()[:16]}"

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise `CallError` (401) for a caller that may not see status and metrics."""
        if gateway_config.hashed_key(key_of(headers)) not in self._admins:
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
    return gateway_config.CLIENT_HEADER, quote(name.encode("utf-8", "replace"), safe=_SAFE)


def _is_token(mark: str) -> bool:
    """Return whether a key looks like a token: three parts, the first of which is a JSON object in base64."""
    return mark.startswith("ey") and mark.count(".") == 2


def _said(value: object, what: str) -> str:
    """Return the text that names a caller.  Raises `CallError` (401) where there is none that can be a name."""
    if not isinstance(value, str):
        raise CallError(401, f"{what} is {'missing' if value is None else 'no text'}")
    if not 0 < len(value) <= SAID_MAX or not value.isprintable():
        raise CallError(401, f"{what} is no text of 1 to {SAID_MAX} printable characters")
    return value


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


# --- what in a configuration lets any caller in, or gives credit away ------------------------------------------------


def access_warnings(config: gateway_config.GatewayConfig) -> list[str]:
    """Return what lets any caller in, take any name or have credit twice, and what lets none in."""
    return list(_warnings(config))


def _warnings(config: gateway_config.GatewayConfig) -> Iterator[str]:
    if "header" in config.ways and not config.header_from:
        names = f", {', '.join(config.clients)} included" if config.clients else ""
        yield (
            f"the header {config.header} is believed of every peer: any caller is any client that it says{names}; "
            "name the networks of your proxies in header_from"
        )
    for address in "0.0.0.0", "::":
        version = ip_address(address).version
        declared = [each for each in gateway_config.networks(config.header_from) if each.version == version]
        # mypy sees no list of one version.
        if any(each.prefixlen == 0 for each in collapse_addresses(declared)):  # type: ignore[type-var]
            yield f"header_from has every IPv{version} address: the header {config.header} is believed of all of them"
    if config.unknown_clients != "reject":
        how = (
            "a client of its own by what it shows" if config.unknown_clients == "own" else "one client with all others"
        )
        yield f'any caller gets in: unknown_clients = "{config.unknown_clients}" serves it as {how}'
    if config.jwt is not None and config.jwt.jwks.startswith("http://") and not _is_here(config.jwt.jwks):
        yield f"the keys of tokens come from {config.jwt.jwks} without TLS: an attacker on the way makes any token"
    if config.store is not None:
        yield from _store_warnings(config.store)
    keys = [key for client in config.clients.values() for key in client.keys]
    if config.ways == ("key",) and config.unknown_clients == "reject" and not keys:
        yield "no caller gets in: no [client] has keys"


def _store_warnings(store: gateway_config.StoreConfig) -> Iterator[str]:
    if store.away == "local":
        yield (
            'while the store is away, store.away = "local" gives a client its share at each of '
            f"{store.gateways} gateways"
        )
    if urlsplit(store.url).scheme in ("redis", "rediss") and not _is_here(store.url) and store.password is None:
        yield f"the account at {store.url} has no password: whoever reaches it can give clients credit"


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
