"""Who may import whom: `model <- policies <- verify` and `model, policies.base <- engines`, and what must stay pure.

The rules are the table `LAYERS`; one function reads a module's text and says which of them it breaks.  The checker is
tested on seeded violations before it is believed about the package.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 400

VALUES = frozenset({"attr", "attrs", "immutables", "msgspec", "numpy"})
IMPURE_MODULES = frozenset(
    {"asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil"}
    | {"socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid"}
)
IMPURE_CALLS = frozenset({"input", "open", "print"})


class Layer(NamedTuple):
    """What the modules of one layer may import from us (by dotted prefix), from others, and whether they are pure."""

    ours: tuple[str, ...]
    third_party: frozenset[str]
    pure: bool = False


LAYERS = {
    "model": Layer(("fairsched.model",), VALUES, pure=True),
    "policies": Layer(("fairsched.model", "fairsched.policies"), VALUES, pure=True),
    "verify": Layer(
        ("fairsched.model", "fairsched.policies", "fairsched.verify"),
        VALUES | {"cvc5", "hypothesis", "pytest", "z3"},
    ),
    "engines": Layer(
        ("fairsched.model", "fairsched.policies.base", "fairsched.engines"),
        VALUES
        | {"jinja2", "matplotlib", "prometheus_client", "rich"}
        | {"envoy", "google", "grpc", "grpc_health", "httpx", "starlette", "uvicorn"}
        | {"ray", "safetensors", "scipy", "sortedcontainers", "torch", "vllm"},
    ),
    # The command line, and the wiring of other people's engines, sit above the four.
    "src/fairsched": Layer(("fairsched",), VALUES | {"jinja2", "matplotlib", "rich"}),
    "src/fairsched/integrations": Layer(("fairsched",), VALUES | {"ray", "sglang"}),
}


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a module imports, wherever in it; a relative import starts with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}"


def impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of calls that read or write the world, and uses of numpy's random numbers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield node.lineno, node.func.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield node.lineno, "numpy.random"


def is_under(name: str, prefix: str) -> bool:
    """Whether a dotted name is the prefix or something inside it."""
    return name == prefix or name.startswith(prefix + ".")


def is_allowed(name: str, layer: Layer) -> bool:
    """Whether a module of `layer` may import `name`."""
    root = name.split(".")[0]
    if root == "fairsched":
        return any(is_under(name, prefix) for prefix in layer.ours)
    if layer.pure and (root in IMPURE_MODULES or is_under(name, "numpy.random")):
        return False
    return root in sys.stdlib_module_names or root in layer.third_party


def violations(source: str, layer: Layer) -> list[str]:
    """Every rule of `layer` that a module with this text breaks, as `line: what`."""
    tree = ast.parse(source)
    found = [(line, f"may not import {name}") for line, name in imports(tree) if not is_allowed(name, layer)]
    if layer.pure:
        found += [(line, f"may not use {name}") for line, name in impurities(tree)]
    return [f"{line}: {what}" for line, what in sorted(found)]


def modules(layer: str) -> list[Path]:
    """The files of one layer; those of the top layer are the package's own, not the four linked folders."""
    folder = ROOT / layer
    return sorted(folder.glob("*.py") if layer == "src/fairsched" else folder.rglob("*.py"))


FILES = [(layer, path) for layer in LAYERS for path in modules(layer)]
EACH_FILE = pytest.mark.parametrize(("layer", "path"), FILES, ids=[str(path.relative_to(ROOT)) for _, path in FILES])


@pytest.mark.parametrize(
    ("layer", "source", "expected"),
    [
        ("model", "from fairsched.policies.base import Policy", "1: may not import fairsched.policies.base.Policy"),
        ("model", "def f():\n    import z3", "2: may not import z3"),
        ("model", "import os.path", "1: may not import os.path"),
        ("model", "from time import monotonic", "1: may not import time.monotonic"),
        ("model", "from pathlib import Path", "1: may not import pathlib.Path"),
        ("model", "import numpy as np\nx = np.random.default_rng(0)", "2: may not use numpy.random"),
        ("model", "from numpy.random import Philox", "1: may not import numpy.random.Philox"),
        ("model", "print('here')", "1: may not use print"),
        ("model", "from .request import Request", "1: may not import .request.Request"),
        ("model", "from model.request import Request", "1: may not import model.request.Request"),
        ("model", "from fairsched import policies", "1: may not import fairsched.policies"),
        ("model", "import fairsched", "1: may not import fairsched"),
        ("model", "import fairsched.modelling", "1: may not import fairsched.modelling"),
        ("policies", "import random", "1: may not import random"),
        ("policies", "import sortedcontainers", "1: may not import sortedcontainers"),
        ("policies", "from fairsched.verify import prove", "1: may not import fairsched.verify.prove"),
        ("policies", "if TYPE_CHECKING:\n    import fairsched.engines", "2: may not import fairsched.engines"),
        ("verify", "from fairsched.engines import simulator", "1: may not import fairsched.engines.simulator"),
        ("verify", "import torch", "1: may not import torch"),
        ("policies", "from safetensors.torch import save", "1: may not import safetensors.torch.save"),
        ("engines", "from fairsched.policies import dlpm", "1: may not import fairsched.policies.dlpm"),
        ("engines", "from fairsched.policies.dlpm import DLPM", "1: may not import fairsched.policies.dlpm.DLPM"),
        ("engines", "import fairsched.verify", "1: may not import fairsched.verify"),
        ("engines", "import hypothesis.strategies as st", "1: may not import hypothesis.strategies"),
        ("src/fairsched", "from tests.strategies import requests", "1: may not import tests.strategies.requests"),
        ("verify", "import ray", "1: may not import ray"),
        ("src/fairsched", "import torch", "1: may not import torch"),
    ],
)
def test_checker_sees_a_seeded_violation(layer: str, source: str, expected: str) -> None:
    """Each rule, broken on purpose, is reported with its line and what broke it, and nothing else is."""
    assert violations(source, LAYERS[layer]) == [expected]


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("model", "import math, heapq, attrs, numpy as np, immutables, msgspec\nfrom fairsched.model.request import R"),
        ("model", "class Book:\n    def open(self): return self.open()"),
        ("policies", "from fairsched.model import request\nfrom fairsched.policies.base import Policy"),
        ("verify", "import time, z3, cvc5, hypothesis, pytest\nfrom fairsched.policies.dlpm import DLPM"),
        ("engines", "import random, safetensors, torch\nfrom fairsched.policies.base import Policy"),
        (
            "engines",
            "from fairsched.policies import base",
        ),
        ("src/fairsched", "import os, rich.table\nfrom fairsched.verify import prove\nprint(prove)"),
    ],
)
def test_checker_lets_the_allowed_pass(layer: str, source: str) -> None:
    """What the layers are made of is not reported."""
    assert violations(source, LAYERS[layer]) == []


def test_every_layer_has_modules() -> None:
    """The checks below are about something: each layer, and the command line, has at least one module."""
    assert all(modules(layer) for layer in LAYERS)


@EACH_FILE
def test_imports_point_one_way(layer: str, path: Path) -> None:
    """A module imports only what its layer may, and a pure layer touches no clock, chance, file or log."""
    assert violations(path.read_text(), LAYERS[layer]) == []


@EACH_FILE
def test_one_idea_per_file(layer: str, path: Path) -> None:
    """A module's docstring says its idea, and no file of the four layers is too long to have only one."""
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), "no docstring"
    if layer != "src/fairsched":
        assert len(source.splitlines()) <= LINES_MAX


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if not layer.startswith("src/")])
def test_layers_are_linked_not_copied(layer: str) -> None:
    """Each layer is in the package as a relative link, so that there is one text and new files appear at once."""
    link = ROOT / "src" / "fairsched" / layer
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", layer)
