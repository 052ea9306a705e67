"""The rules of the house that a machine can hold: directions of imports, purity, rooms, cycles, sizes.

`LAYERS` says which layer may import which: `model <- policies <- verify` and `model, policies <- engines`.  A folder is
a room: it has at most `ENTRIES_MAX` entries and an `__init__` that says what it is, and code outside imports from the
room and not from its files.  Each checker is tested on seeded violations before it is believed about the package.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 800
ENTRIES_MAX = 14
ON_DEMAND = {"src/fairsched/__init__.py", "src/fairsched/cli/command_line.py"}
"""Files that may import by string, to load what is named only when it is asked for."""

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
        ("fairsched.model", "fairsched.policies", "fairsched.engines"),
        VALUES
        | {"jinja2", "matplotlib", "prometheus_client", "pyarrow", "rich"}
        | {"envoy", "google", "grpc", "grpc_health"}
        | {"aiohttp", "cryptography", "jwt", "multidict", "redis", "uvloop", "yarl"}
        | {"ray", "safetensors", "sglang", "sortedcontainers", "tokenizers", "torch", "vllm"},
    ),
    # The command line, and the wiring of other people's engines, sit above the four.
    "src/fairsched": Layer(("fairsched",), VALUES | {"cyclopts", "jinja2", "matplotlib", "ray", "rich"}),
    "src/fairsched/integrations": Layer(("fairsched",), VALUES | {"fastapi", "litellm", "ray", "sglang"}),
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
    if layer != "src/fairsched":
        return sorted(folder.rglob("*.py"))
    return sorted([*folder.glob("*.py"), *(folder / "cli").glob("*.py"), *(folder / "reproduce").glob("*.py")])


EACH_LAYER = pytest.mark.parametrize("layer", LAYERS)


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
        ("engines", "from fairsched import cli", "1: may not import fairsched.cli"),
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
        ("src/fairsched", "import os, rich.table\nfrom fairsched.verify import prove\nprint(prove)"),
    ],
)
def test_checker_lets_the_allowed_pass(layer: str, source: str) -> None:
    """What the layers are made of is not reported."""
    assert violations(source, LAYERS[layer]) == []


def test_every_layer_has_modules() -> None:
    """The checks below are about something: each layer, and the command line, has at least one module."""
    assert all(modules(layer) for layer in LAYERS)


@EACH_LAYER
def test_imports_point_one_way(layer: str) -> None:
    """A module imports only what its layer may, and a pure layer touches no clock, chance, file or log."""
    found = {str(path.relative_to(ROOT)): violations(path.read_text(), LAYERS[layer]) for path in modules(layer)}
    assert {path: broken for path, broken in found.items() if broken} == {}


@EACH_LAYER
def test_a_file_is_a_chapter(layer: str) -> None:
    """A module's docstring says its idea, and no file of the four layers is too long to be one chapter."""
    for path in modules(layer):
        source = path.read_text()
        assert ast.get_docstring(ast.parse(source)), f"{path}: no docstring"
        if layer != "src/fairsched":
            assert len(source.splitlines()) <= LINES_MAX, path


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if not layer.startswith("src/")])
def test_layers_are_linked_not_copied(layer: str) -> None:
    """Each layer is in the package as a relative link, so that there is one text and new files appear at once."""
    link = ROOT / "src" / "fairsched" / layer
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", layer)


# --- rooms ----------------------------------------------------------------------------------------------------------


def tracked() -> list[Path]:
    """Every file of the repository, relative to its root; the links to the four layers are not followed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout", allow_module_level=True)
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = list(path.with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else ["fairsched", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by_string(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the imports by a string that names our package; of an f-string what it begins with."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        text = str(name.value) if isinstance(name, ast.Constant) else ""
        if called in ("import_module", "__import__") and is_under(text.rstrip("."), "fairsched"):
            yield node.lineno, text


def imported_modules(tree: ast.Module, known: Mapping[str, Path]) -> set[str]:
    """The modules among `known` that a module imports, those for type checkers and by a string included."""
    found = {name for _, name in imported_by_string(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, found by removing what imports nothing that is left, from both ends."""
    left = {name: set(targets) & graph.keys() - {name} for name, targets in graph.items()}
    while True:
        targets = {name for each in left.values() for name in each}
        keep = {name for name in left if left[name] and name in targets}
        if len(keep) == len(left):
            return [sorted(keep)] if keep else []
        left = {name: left[name] & keep for name in keep}


def reaches_behind(importer: Path, target: Path) -> bool:
    """Whether a file imports a file of a room that it does not live in."""
    room = target.parent
    return target.name != "__init__.py" and len(room.parts) > 1 and room not in importer.parents


def offered(room: str, tree: ast.Module) -> set[str]:
    """What a folder's `__init__` names in `__all__`, by dotted names: names of files there are offered as a whole."""
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
    ]
    return {f"{room}.{ast.literal_eval(name)}" for each in lists for name in getattr(each, "elts", ())}


CODE = sorted(path for path in tracked() if path.suffix == ".py" and path.parts[0] in (*LAYERS, "src"))
KNOWN = {module_name(path): path for path in CODE}
GRAPH = {name: imported_modules(ast.parse((ROOT / path).read_text()), KNOWN) for name, path in KNOWN.items()}


def test_cycle_checker_sees_a_seeded_cycle() -> None:
    """Three modules in a ring are reported, with neither what imports them nor what they import."""
    ring = {"a": {"b"}, "b": {"c", "leaf"}, "c": {"a"}, "leaf": set(), "user": {"a"}}
    assert cycles(ring) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": {"leaf"}, "leaf": set()}) == []


def test_room_checker_sees_a_seeded_violation() -> None:
    """A file behind another room's `__init__` is out of reach; the room itself, a file beside and one above are not."""
    assert reaches_behind(Path("engines/logs/log.py"), Path("policies/gates/base.py"))
    assert not reaches_behind(Path("engines/logs/log.py"), Path("policies/gates/__init__.py"))
    assert not reaches_behind(Path("policies/gates/shared/gate.py"), Path("policies/gates/base.py"))
    assert not reaches_behind(Path("engines/logs/log.py"), Path("model/request.py"))


def test_string_checker_sees_a_seeded_violation() -> None:
    """An import by string is an arrow of the graph like one for type checkers; strings from elsewhere are not ours."""
    hidden = """
from importlib import import_module
import importlib
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from fairsched.verify.solvers import prove
def late(name):
    __import__("fairsched.verify.proofs")
    import_module(f"fairsched.cli.commands.{name}")
    importlib.import_module(name), import_module("torch"), import_module("fairscheduler")
    return importlib.import_module("fairsched.verify.report")
"""
    tree, known = ast.parse(hidden), {f"fairsched.verify.{name}": Path() for name in ("proofs", "report", "solvers")}
    expected = [(8, "fairsched.verify.proofs"), (9, "fairsched.cli.commands."), (11, "fairsched.verify.report")]
    assert sorted(imported_by_string(tree)) == expected
    assert imported_modules(tree, known) == set(known)


def test_nothing_is_imported_by_string() -> None:
    """No arrow is hidden in a string but for names that load on demand: public ones and the commands of the shell."""
    hidden = {path: list(imported_by_string(ast.parse((ROOT / path).read_text()))) for path in CODE}
    assert {str(path) for path, found in hidden.items() if found} <= ON_DEMAND


def test_no_import_cycle() -> None:
    """No module imports itself by way of others, imports for type checkers included."""
    assert cycles(GRAPH) == []


def test_code_imports_from_rooms() -> None:
    """No module reaches behind the `__init__` of a folder that it is not in, but for a file that is offered there."""
    rooms = {name: ROOT / path for name, path in KNOWN.items() if path.name == "__init__.py"}
    doors = {each for name, path in rooms.items() for each in offered(name, ast.parse(path.read_text()))}
    behind = {
        f"{KNOWN[name]} -> {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if target not in doors and reaches_behind(KNOWN[name], KNOWN[target])
    }
    assert behind == set()


def test_folders_are_rooms() -> None:
    """No folder has more entries than one remembers, and each folder of code has an `__init__` that says what it is."""
    entries: dict[Path, set[str]] = defaultdict(set)
    for path in tracked():
        if path.parts[0] in (*LAYERS, "src", "tests", "docs") and not {"replays", "plots"} & set(path.parts):
            for parent in list(path.parents)[:-1]:
                entries[parent].add(path.relative_to(parent).parts[0])
    crowded = {str(folder): len(names - {"__init__.py"}) for folder, names in entries.items()}
    assert {folder: count for folder, count in crowded.items() if count > ENTRIES_MAX} == {}
    rooms = {path.parent for path in CODE if len(path.parts) > 1 and path.parts[0] != "src"}
    assert [str(room) for room in sorted(rooms) if not (ROOT / room / "__init__.py").exists()] == []
