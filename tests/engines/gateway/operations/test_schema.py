"""The schema of a gateway's configuration: it says what the reader does, and the pages' files follow it."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fairsched.cli import main
from fairsched.engines.gateway.config import ConfigError, config_schema, hashed_key, read_config
from tests.test_docs import PAGES, blocks

SCHEMA = config_schema()
VALID = Draft202012Validator(SCHEMA)
KEY = hashed_key("sk-gold")
DOCUMENT: dict[str, Any] = {
    "server": [{"url": "http://127.0.0.1:8000", "window_tokens": 1000}],
    "identify": ["jwt", "key"],
    "jwt": {"jwks": "keys.json", "issuer": "https://id.test", "audience": "fairsched"},
    "limits": {},
    "store": {"url": "redis://127.0.0.1:6379/0"},
    "quota": {
        "store": {"url": "file:///var/lib/fairsched"},
        "client": {"gold": {}, "*": {}},
        "user": {"acme/ann": {}},
        "organisation": {"acme": {}},
    },
    "tls": {"certificate": "a.pem", "key": "b.pem"},
    "organisation": {"acme": {"weight": 2, "users": {"ann": 2}}},
    "client": {"gold": {"keys": [KEY], "weight": 4}},
}
TABLES = {
    "GatewayConfig": (),
    "ServerConfig": ("server", 0),
    "JwtConfig": ("jwt",),
    "LimitConfig": ("limits",),
    "StoreConfig": ("store",),
    "QuotasConfig": ("quota",),
    "QuotaConfig": ("quota", "client", "gold"),
    "StoreAddress": ("quota", "store"),
    "TlsConfig": ("tls",),
    "OrganisationConfig": ("organisation", "acme"),
    "ClientConfig": ("client", "gold"),
}
"""Where the document has a table of each class."""
SETTINGS = [(kind, name) for kind in TABLES for name in SCHEMA["$defs"][kind]["properties"]]
_ROWS = re.compile(r"^```\{settings\} fairsched\.engines\.gateway\.config (.*)$", re.MULTILINE)


def toml(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def with_setting(kind: str, name: str, value: object) -> dict[str, Any]:
    """The document with one setting that has another value."""
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    table = document
    for step in TABLES[kind]:
        table = table[step]  # type: ignore[index]
    table[name] = value
    return document


def is_read(folder: Path, document: dict[str, Any]) -> bool:
    """Whether the gateway can use it."""
    path = folder / "gateway.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items()))
    try:
        read_config(path)
    except ConfigError:
        return False
    return True


def refusals(text: str) -> list[str]:
    """What the schema has against a file, of which a page may show a part."""
    document = tomllib.loads(re.sub(r"sha256:\w+\.\.\.", KEY, text))
    return [error.message for error in VALID.iter_errors(document) if error.validator != "required"]


def test_every_class_of_settings_is_in_the_document() -> None:
    """The properties below are about every table that a configuration may have."""
    assert set(SCHEMA["$defs"]) == set(TABLES)
    assert VALID.is_valid(DOCUMENT)
    Draft202012Validator.check_schema(SCHEMA)


values = st.one_of(
    st.integers(-2, 200),
    st.sampled_from(
        [0.5, -1.5, True, False, "window", "x-client", "own", "", KEY, "http://h:1", [], [KEY], ["a"], [1]]
    ),
    st.dictionaries(st.sampled_from(["ann", "weight"]), st.integers(-1, 2)),
)


@given(setting=st.sampled_from([*SETTINGS, *((kind, "wieght") for kind in TABLES)]), value=values)
def test_what_the_schema_refuses_is_refused(
    tmp_path_factory: pytest.TempPathFactory, setting: tuple[str, str], value: object
) -> None:
    """An editor marks nothing that the gateway would take, whatever stands at a setting or an unknown key."""
    document = with_setting(*setting, value)
    if not VALID.is_valid(document):
        assert not is_read(tmp_path_factory.getbasetemp(), document)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("GatewayConfig", "lisen", "127.0.0.1:8080"),
        ("ClientConfig", "wieght", 4),
        ("GatewayConfig", "mode", "windows"),
        ("GatewayConfig", "quantum", 0),
        ("GatewayConfig", "status", 1),
        ("LimitConfig", "retry_percent", 101),
        ("GatewayConfig", "unreserved_tokens", -1),
        ("ServerConfig", "window_tokens", "1000"),
        ("ServerConfig", "window_tokens", 0),
        ("ClientConfig", "keys", ["sk-gold"]),
        ("OrganisationConfig", "users", {"ann": 0}),
        ("GatewayConfig", "strangers", "maybe"),
    ],
)
def test_an_editor_marks_what_is_wrong(tmp_path: Path, kind: str, name: str, value: object) -> None:
    """Unknown keys, other types and values beyond a limit, in every kind of table, are refused by both."""
    document = with_setting(kind, name, value)
    assert not VALID.is_valid(document)
    assert not is_read(tmp_path, document)


def test_documented_settings_are_those_of_the_schema() -> None:
    """The table of settings on the gateway's page is made of all the schema's classes, and each setting has a text."""
    pages = "\n".join(page.read_text() for page in PAGES)
    shown = {word.partition("=")[0] for row in _ROWS.findall(pages) for word in row.split()}
    assert shown == set(TABLES)
    tables = {"server", "jwt", "limits", "store", "tls", "organisation", "client"}
    missing = [
        (kind, name)
        for kind, name in SETTINGS
        if name not in tables and not SCHEMA["$defs"][kind]["properties"][name].get("description")
    ]
    assert missing == []


def examples() -> Iterator[tuple[str, str]]:
    """The gateway's files on the pages: those that have a server, a client's keys, or stand on the gateway's page."""
    for page in PAGES:
        for first, block in blocks(page.read_text(), "toml"):
            if "[[server]]" in block or page.name == "gateway.md":
                yield f"{page.name}, line {first}", block


@pytest.mark.parametrize(("where", "text"), [*examples()], ids=[where for where, _ in examples()])
def test_files_on_pages_follow_the_schema(where: str, text: str) -> None:
    """Every file of a gateway on a page is one that an editor finds nothing wrong with."""
    assert refusals(text) == [], where


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`--schema` needs no configuration, and prints what the library returns."""
    assert main(["gateway", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))
