"""Schemas of a gateway's and a picker's configuration: they say what the readers do, and the pages' files follow."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fairsched.cli import main
from fairsched.engines.adapters.endpoint_picker import PickerConfig
from fairsched.engines.adapters.endpoint_picker import read_config as read_picker_config
from fairsched.engines.gateway.config import GatewayConfig, hashed_key, read_config
from fairsched.engines.settings import ConfigError, Schema, schema_of
from tests.test_docs import PAGES, blocks

KEY = hashed_key("sk-gold")


@attrs.frozen
class File:
    """A file of settings: its schema, a document that may stand in it, where that has a table of each class, what reads
    it, and how its page says that a table of settings is made of these classes."""

    name: str
    schema: Schema
    document: dict[str, Any]
    tables: dict[str, tuple[str | int, ...]]
    read: Callable[[Path], object]
    module: str

    @property
    def valid(self) -> Draft202012Validator:
        """What an editor asks."""
        return Draft202012Validator(self.schema)

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Every setting with its class."""
        return [(kind, name) for kind, told in self.schema["$defs"].items() for name in told["properties"]]

    def with_setting(self, kind: str, name: str, value: object) -> dict[str, Any]:
        """The document with one setting that has another value."""
        document: dict[str, Any] = json.loads(json.dumps(self.document))
        table = document
        for step in self.tables[kind]:
            table = table[step] if isinstance(step, int) else table.setdefault(step, {})  # type: ignore[index]
        table[name] = value
        return document

    def is_read(self, folder: Path, document: dict[str, Any]) -> bool:
        """Whether the program can use it."""
        path = folder / f"{self.name}.toml"
        path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items()))
        try:
            self.read(path)
        except ValueError:
            return False
        return True


GATEWAY = File(
    "gateway",
    schema_of(GatewayConfig),
    {
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
    },
    {
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
    },
    read_config,
    "gateway.config",
)
PICKER = File(
    "picker",
    schema_of(PickerConfig),
    {
        "pool": {"window_tokens": 1000, "endpoints": ["10.0.0.1:8000"]},
        "limits": {},
        "client": {"gold": {"weight": 4}},
    },
    {
        "PickerConfig": (),
        "EndpointPool": ("pool",),
        "PickerLimits": ("limits",),
        "StoreConfig": ("store",),
        "PickedClient": ("client", "gold"),
    },
    read_picker_config,
    "adapters.endpoint_picker.config",
)
FILES = {each.name: each for each in (GATEWAY, PICKER)}
EACH_FILE = pytest.mark.parametrize("file", FILES.values(), ids=FILES)
_ROWS = re.compile(r"^```\{settings\} fairsched\.engines\.(\S+) (.*)$", re.MULTILINE)


def toml(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def refusals(file: File, text: str) -> list[str]:
    """What the schema has against a file, of which a page may show a part."""
    document = tomllib.loads(re.sub(r"sha256:\w+\.\.\.", KEY, text))
    return [error.message for error in file.valid.iter_errors(document) if error.validator != "required"]


@EACH_FILE
def test_every_class_of_settings_has_its_place(file: File) -> None:
    """The properties below are about every table that a configuration may have."""
    assert file.schema["$defs"].keys() <= file.tables.keys()
    assert file.valid.is_valid(file.document)
    Draft202012Validator.check_schema(file.schema)


values = st.one_of(
    st.integers(-2, 200),
    st.sampled_from(
        [0.5, -1.5, True, False, "window", "x-client", "own", "", KEY, "http://h:1", [], [KEY], ["a"], [1]]
    ),
    st.dictionaries(st.sampled_from(["ann", "weight"]), st.integers(-1, 2)),
)


SETTINGS = [
    (file.name, kind, name)
    for file in FILES.values()
    for kind, name in (*file.settings, *((kind, "wieght") for kind in file.schema["$defs"]))
]


@given(setting=st.sampled_from(SETTINGS), value=values)
def test_what_the_schema_refuses_is_refused(
    tmp_path_factory: pytest.TempPathFactory, setting: tuple[str, str, str], value: object
) -> None:
    """An editor marks nothing that the program would take, whatever stands at a setting or an unknown key."""
    file = FILES[setting[0]]
    document = file.with_setting(*setting[1:], value)
    if not file.valid.is_valid(document):
        assert not file.is_read(tmp_path_factory.getbasetemp(), document)


@pytest.mark.parametrize(
    ("file", "kind", "name", "value"),
    [
        (GATEWAY, "GatewayConfig", "lisen", "127.0.0.1:8080"),
        (GATEWAY, "ClientConfig", "wieght", 4),
        (GATEWAY, "GatewayConfig", "unknown_clients", "windows"),
        (GATEWAY, "LimitConfig", "retry_percent", 101),
        (GATEWAY, "GatewayConfig", "unreserved_tokens", -1),
        (GATEWAY, "ClientConfig", "keys", ["sk-gold"]),
        (GATEWAY, "OrganisationConfig", "users", {"ann": 0}),
        (PICKER, "PickerConfig", "request_body_mode", "all"),
        (PICKER, "EndpointPool", "endpoints", ["here:8000"]),
    ],
)
def test_an_editor_marks_what_is_wrong(tmp_path: Path, file: File, kind: str, name: str, value: object) -> None:
    """Unknown keys, other types and values beyond a limit, in every kind of table, are refused by both."""
    document = file.with_setting(kind, name, value)
    assert not file.valid.is_valid(document)
    assert not file.is_read(tmp_path, document)


@pytest.mark.parametrize(("text", "is_read"), [("5.0", True), ("5.5", False), ("1e400", False), ("true", False)])
def test_a_whole_number_may_have_a_point(tmp_path: Path, text: str, is_read: bool) -> None:
    """Helm writes all numbers with one; a fraction is none of calls."""
    path = tmp_path / "gateway.toml"
    path.write_text(f'quantum = {text}\n[[server]]\nurl = "http://127.0.0.1:1"\nwindow_tokens = 1000.0\n')
    if is_read:
        assert read_config(path).quantum == 5
    else:
        with pytest.raises(ConfigError, match=r"gateway\.toml: quantum: expected int.*, not "):
            read_config(path)


@EACH_FILE
def test_documented_settings_are_those_of_the_schema(file: File) -> None:
    """The table of settings on the program's page is made of all the schema's classes, and each setting has a text."""
    rows = [row for page in PAGES for module, row in _ROWS.findall(page.read_text()) if module == file.module]
    shown = {word.partition("=")[0] for row in rows for word in row.split()}
    # What several gateways share is on the page of that.
    assert shown | {"StoreConfig"} >= file.schema["$defs"].keys() >= shown
    tables = {"server", "jwt", "limits", "store", "tls", "organisation", "client", "pool"}
    missing = [
        (kind, name)
        for kind, name in file.settings
        if name not in tables and not file.schema["$defs"][kind]["properties"][name].get("description")
    ]
    assert missing == []


def examples() -> Iterator[tuple[str, File, str]]:
    """The files on the pages: those that have a server or a pool, or stand on the gateway's page."""
    for page in PAGES:
        for first, block in blocks(page.read_text(), "toml"):
            if "[[server]]" in block or page.name == "gateway.md":
                yield f"{page.name}, line {first}", GATEWAY, block
            elif "[pool]" in block and page.name != "litellm.md":  # which has a file of its own kind
                yield f"{page.name}, line {first}", PICKER, block


@pytest.mark.parametrize(("where", "file", "text"), [*examples()], ids=[where for where, *_ in examples()])
def test_files_on_pages_follow_the_schema(where: str, file: File, text: str) -> None:
    """Every file on a page is one that an editor finds nothing wrong with."""
    assert refusals(file, text) == [], where


@pytest.mark.parametrize(("options", "file"), [((), GATEWAY), (("--picker",), PICKER)])
def test_the_command_prints_it(options: tuple[str, ...], file: File, capsys: pytest.CaptureFixture[str]) -> None:
    """`--schema` needs no configuration, and prints what the library returns; without either the file is missed."""
    assert main(["gateway", *options, "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(file.schema))
    with pytest.raises(SystemExit, match="2"):
        main(["gateway", *options])
    assert "CONFIG.toml is missing: fairsched gateway CONFIG.toml" in capsys.readouterr().err
