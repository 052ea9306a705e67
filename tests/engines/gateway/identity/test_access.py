"""What `--check` warns of in a configuration: what lets any caller in."""

import re
from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.gateway import access_warnings
from fairsched.engines.gateway.config import (
    ClientConfig,
    GatewayConfig,
    JwtConfig,
    ServerConfig,
    StoreConfig,
    TlsConfig,
    hashed_key,
    read_config,
)

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "integrate" / "callers.md"
SERVERS = (ServerConfig("http://a", 60),)
KEYS = {"gold": ClientConfig((hashed_key("sk-1"), hashed_key("sk-2"))), "free": ClientConfig((hashed_key("sk-3"),))}
JWT = JwtConfig("https://id.test/keys", "https://id.test", "fairsched")
TLS = TlsConfig("a.pem", "a.key", "ca.pem", "DNS")


def config(**fields: Any) -> GatewayConfig:
    """A configuration with two clients."""
    return GatewayConfig(SERVERS, **{"clients": KEYS, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"unknown_clients": "own"}, "any caller gets in: unknown_clients"),
        ({"unknown_clients": "together"}, "any caller gets in: unknown_clients"),
        (
            {"identify": "header"},
            "the header x-client is believed of every peer: .* gold, free included; name",
        ),
        ({"identify": "header", "header_from": ("0.0.0.0/0",)}, "header_from has every IPv4 address"),
        ({"identify": "header", "header_from": ("0.0.0.0/1", "128.0.0.0/1")}, "header_from has every IPv4 address"),
        ({"identify": "header", "header_from": ("10.0.0.0/8", "::/0")}, "header_from has every IPv6 address"),
        (
            {"identify": "jwt", "jwt": JwtConfig("http://id.test/keys", "i", "a")},
            "the keys of tokens .* without TLS",
        ),
        (
            {"store": StoreConfig("redis://127.0.0.1/0", gateways=3, away="local")},
            "while the store is away, .* each of 3 gateways",
        ),
        ({"store": StoreConfig("redis://ann@store:6379/0")}, "the account at redis://ann@store:6379/0 has no password"),
        ({"clients": {}}, "no caller gets in"),
    ],
)
def test_what_lets_any_caller_in_is_warned_of(fields: dict[str, Any], why: str) -> None:
    """Each in one line, and only then."""
    (said,) = access_warnings(config(**fields))
    assert re.match(why, said)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"identify": "header", "header_from": ("10.0.0.0/8", "::1/128")},
        {"identify": ("jwt", "key"), "jwt": JWT},
        {"store": StoreConfig("rediss://store/0", password="secret")},
        {"store": StoreConfig("unix:///run/redis.sock")},
        {"store": StoreConfig("redis://[::1]:6379/0")},
        {"store": StoreConfig("file:///var/lib/fairsched")},
        {"identify": "jwt", "jwt": JwtConfig("http://127.0.0.1:9/keys", "i", "a"), "clients": {}},
        {"identify": "certificate", "tls": TLS, "clients": {}},
    ],
)
def test_what_lets_in_who_is_meant_is_not(fields: dict[str, Any]) -> None:
    """Declared proxies, tokens, certificates and keys are no cause to warn."""
    assert access_warnings(config(**fields)) == []


def test_no_configuration_of_the_page_about_callers_is_warned_of(tmp_path: Path) -> None:
    """Each can be used as it is."""
    text, path = PAGE.read_text(), tmp_path / "gateway.toml"
    configs = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(configs) >= 5
    for block in configs:
        server = "" if "[[server]]" in block else '[[server]]\nurl = "http://a"\nwindow_tokens = 60\n'
        keys = f'[client.any]\nkeys = ["{hashed_key("sk-1")}"]\n' if block is not configs[0] else ""
        path.write_text(block + server + keys)
        assert access_warnings(read_config(path)) == []
