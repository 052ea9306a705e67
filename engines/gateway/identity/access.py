"""What in a configuration lets any caller in, or gives credit away."""

from collections.abc import Iterator
from ipaddress import collapse_addresses, ip_address
from urllib.parse import urlsplit

from fairsched.engines.gateway.config import GatewayConfig, StoreConfig, networks


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
