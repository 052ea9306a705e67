"""Who gets in by a configuration, in plain words, and what in it lets any caller in, or gives credit away."""

from collections.abc import Iterator
from ipaddress import collapse_addresses, ip_address
from urllib.parse import urlsplit

from fairsched.engines.gateway.config import GatewayConfig, StoreConfig, Way, is_url, networks

_UNLISTED = {
    "reject": "any other is refused",
    "own": "any other is a client of its own",
    "together": "all others are one client",
}


def access_lines(config: GatewayConfig) -> list[str]:
    """Return who gets in, by which way, a line each; `access_warnings` says what of it is dangerous."""
    said = {"key": _keys, "header": _header, "jwt": _tokens, "certificate": _certificates}
    lines = [f"gets in: {said[way](config)}" for way in config.ways]
    if len(lines) > 1:
        lines.append("the first of these of which a call has something decides")
    if config.unknown_clients == "reject":
        lines.append("refused with 401: any other caller")
    if config.status or config.metrics:
        paths = " and ".join(filter(None, ("status" * config.status, "metrics" * config.metrics)))
        lines.append(f"{paths}: callers with one of {_count(len(config.admin_keys), 'admin key')}")
    return lines


def access_warnings(config: GatewayConfig) -> list[str]:
    """Return what lets any caller in, take any name or have credit twice, and what lets none in."""
    return list(_warnings(config))


def _warnings(config: GatewayConfig) -> Iterator[str]:
    if "header" in config.ways and not config.header_from:
        names = f", {', '.join(config.clients)} included" if config.clients else ""
        yield (
            f"the header {config.header} is believed of every peer: any caller is any client that it says{names}; "
            "name the networks of your proxies in header_from"
        )
    for address in "0.0.0.0", "::":
        version = ip_address(address).version
        declared = [each for each in networks(config.header_from) if each.version == version]
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


def _store_warnings(store: StoreConfig) -> Iterator[str]:
    if store.away == "local":
        yield (
            'while the store is away, store.away = "local" gives a client its share at each of '
            f"{store.gateways} gateways"
        )
    if urlsplit(store.url).scheme in ("redis", "rediss") and not _is_here(store.url) and store.password is None:
        yield f"the account at {store.url} has no password: whoever reaches it can give clients credit"


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _keys(config: GatewayConfig) -> str:
    clients = [client for client in config.clients.values() if client.keys]
    keys = _count(sum(len(client.keys) for client in clients), "API key")
    return f"a caller with one of {keys} of {_count(len(clients), 'client')}"


def _header(config: GatewayConfig) -> str:
    if not config.header_from:
        return f"every caller, as the client that its header {config.header} names"
    where = ", ".join(config.header_from)
    unlisted = _UNLISTED[config.verified_clients]
    return f"a caller from {where}, as the client that the header {config.header} names; {unlisted}"


def _tokens(config: GatewayConfig) -> str:
    jwt = config.jwt
    assert jwt is not None
    source = "the URL" if is_url(jwt.jwks) else "the file"
    places = [claim for claim in (jwt.organisation_claim, jwt.user_claim) if claim is not None]
    belongs = f", below {' and '.join(places)}" if places else ""
    return (
        f"a caller with a token of {jwt.issuer} for {jwt.audience} ({', '.join(jwt.algorithms)}; keys from {source} "
        f"{jwt.jwks}), as the client that the claim {jwt.client_claim} names{belongs}; {_listed(config, 'jwt')}"
    )


def _certificates(config: GatewayConfig) -> str:
    tls = config.tls
    assert tls is not None
    return (
        f"a caller with a certificate that an authority in {tls.client_ca} signed, as the client that its "
        f"{tls.client_name} names; {_listed(config, 'certificate')}"
    )


def _listed(config: GatewayConfig, way: Way) -> str:
    count = sum(name.startswith(way) for name in config.listed)
    return f"{_count(count, 'name')} of the file, {_UNLISTED[config.verified_clients]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
