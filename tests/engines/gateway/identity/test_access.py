"""What `--check` says of a configuration: who gets in, by which way, and what lets any caller in."""

import re
from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.gateway import access_lines, access_warnings
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


def test_each_way_is_told_in_plain_words() -> None:
    """What is looked at, where it comes from, how many names the file has, and what becomes of others."""
    clients = {**KEYS, "ann": ClientConfig(jwt=("ann", "ann2"), certificates=("ann.test",))}
    ways = ("header", "certificate", "jwt", "key")
    said = access_lines(
        config(clients=clients, identify=ways, jwt=JWT, tls=TLS, header_from=("10.0.0.0/8",), verified_clients="reject")
    )
    assert said == [
        "gets in: a caller from 10.0.0.0/8, as the client that the header x-client names; any other is refused",
        "gets in: a caller with a certificate that an authority in ca.pem signed, as the client that its DNS names; "
        "1 name of the file, any other is refused",
        "gets in: a caller with a token of https://id.test for fairsched (RS256, ES256; keys from the URL "
        "https://id.test/keys), as the client that the claim sub names; 2 names of the file, any other is refused",
        "gets in: a caller with one of 3 API keys of 2 clients",
        "the first of these of which a call has something decides",
        "refused with 401: any other caller",
    ]


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


def test_the_page_about_callers_shows_what_is_said(tmp_path: Path) -> None:
    """Each of its configurations is one, without a warning, and the first is told as the page shows."""
    text, path = PAGE.read_text(), tmp_path / "gateway.toml"
    configs = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(configs) >= 5
    for block in configs:
        server = "" if "[[server]]" in block else '[[server]]\nurl = "http://a"\nwindow_tokens = 60\n'
        keys = f'[client.any]\nkeys = ["{hashed_key("sk-1")}"]\n' if block is not configs[0] else ""
        path.write_text(block + server + keys)
        assert access_warnings(read_config(path)) == []
    path.write_text(configs[0] + '[[server]]\nurl = "http://a"\nwindow_tokens = 60\n')
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert access_lines(read_config(path)) == shown.splitlines()
