"""Keep the results of proofs, mutants and batteries for as long as the files that they rest on are the same.

A test with the marker `kept` is a function of text: the files that its module reaches by imports, those that the marker
names, what configures tests, the versions of the packages that it runs, and nothing else.  `record.json`, beside this
file, holds of each such test function that passed with all its cases a hash of that text and one of the cases.  While
both are the same, a run leaves the function out.  `--record` writes what a run has shown; `--full-budget` and
`--recompute` run everything.
"""

import ast
import hashlib
import json
import platform
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).with_name("record.json")
PACKAGES = (
    "attrs",
    "cvc5",
    "hypothesis",
    "immutables",
    "msgspec",
    "numpy",
    "pytest",
    "scipy",
    "sortedcontainers",
    "z3-solver",
)
"""Packages whose code decides what a kept test sees."""
_FILES_NAMED = re.compile(r"\btests/[\w/]+\.py\b")


def function_of(nodeid: str) -> str:
    """Return the node id of a test without its case."""
    return nodeid.partition("[")[0]


def cases_of(nodeids: Iterable[str]) -> str:
    """Return the hash of the cases of one function."""
    return hashlib.sha256("\n".join(sorted(nodeids)).encode()).hexdigest()[:12]


def files_by_module(root: Path = ROOT) -> dict[str, Path]:
    """Return the file of each module of the package and of the tests."""
    package = root / "src"
    found = {_module(path.relative_to(package)): path for path in _python_files(package)}
    return found | {_module(path.relative_to(root)): path for path in _python_files(root / "tests")}


def _python_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():  # the four folders of the package are links
            yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Closures:
    """Finds the files that a module reaches: by imports anywhere in a file, and by texts that name a module or a test.

    A package that is only passed on the way to its module counts without the names that it loads on demand.
    """

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files
        self._digests: dict[Path, bytes] = {}
        self._nodes: dict[tuple[str, bool], frozenset[tuple[str, bool]]] = {}

    def texts(self, module: str) -> list[Path]:
        """Return all files that the module reaches, the data beside them, and what configures its tests."""
        test = self.files[module]
        reached = {self.files[name] for name, _ in self._reach((module, True))}
        data = {path for folder in {file.parent for file in reached} for path in _data_in(folder)}
        above = (folder / name for folder in test.parents for name in ("conftest.py", "pyproject.toml"))
        return sorted({*reached, *data, *_data_named(test), *(path for path in above if path.is_file())})

    def sha256(self, module: str) -> str:
        """Return the hash of all texts of the module, and of versions."""
        total = hashlib.sha256("\n".join(_versions()).encode())
        for path in self.texts(module):
            total.update(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name).encode())
            total.update(self._digest(path))
        return total.hexdigest()[:20]

    def _digest(self, path: Path) -> bytes:
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(path.read_bytes()).digest()
        return self._digests[path]

    def _reach(self, start: tuple[str, bool]) -> set[tuple[str, bool]]:
        seen, due = {start}, [start]
        while due:
            new = self._next(due.pop()) - seen
            seen |= new
            due += new
        return seen

    def _next(self, node: tuple[str, bool]) -> frozenset[tuple[str, bool]]:
        """Return what a module imports; False as second part stands for a package that is only passed."""
        if node not in self._nodes:
            name, whole = node
            parents = [(name.rsplit(".", depth)[0], False) for depth in range(1, name.count(".") + 1)]
            named = set(self._named(self.files[name], whole))
            self._nodes[node] = frozenset(
                [*((parent, False) for parent, _ in parents if parent in self.files), *((each, True) for each in named)]
            )
        return self._nodes[node]

    def _named(self, path: Path, whole: bool) -> Iterator[str]:
        tree = ast.parse(path.read_text())
        left_out = set() if whole else {id(node) for block in _for_types(tree) for node in ast.walk(block)}
        for node in ast.walk(tree):
            if id(node) in left_out:
                continue
            match node:
                case ast.Import():
                    yield from (alias.name for alias in node.names if alias.name in self.files)
                case ast.ImportFrom(module=str(module)):
                    names = [f"{module}.{alias.name}" for alias in node.names]
                    yield from (full for full in names if full in self.files)
                    if module in self.files and any(full not in self.files for full in names):
                        yield module
                case ast.Constant(value=str(text)) if "." in text and text in self.files:
                    yield text
        for file in path.parent.glob("*.toml"):
            for text in _FILES_NAMED.findall(file.read_text()):
                if (module := _module(Path(text))) in self.files:
                    yield module


def _for_types(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield what a package imports for type checkers, and loads on demand."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body


def _data_named(test: Path) -> Iterator[Path]:
    """Yield the files, and those in folders, that a test file names in its markers: ``pytest.mark.kept("LICENSE")``."""
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.kept":
            for path in (ROOT / ast.literal_eval(argument) for argument in node.args):
                yield from sorted(path.rglob("*.*")) if path.is_dir() else [path]


@cache
def _data_in(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in folder.iterdir() if path.suffix in {".json", ".toml", ".txt", ".smt2"})


@cache
def _versions() -> tuple[str, ...]:
    def found(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "none"

    return (platform.python_version(), platform.machine(), *(f"{name} {found(name)}" for name in PACKAGES))


class KeptResults:
    """Leaves out what is kept, and with `--record` writes what passed."""

    def __init__(self, config: pytest.Config, record: Path = RECORD, files: dict[str, Path] | None = None) -> None:
        self.config = config
        self.path = record
        self.root = config.rootpath
        self.recompute = bool(config.getoption("--full-budget") or config.getoption("--recompute"))
        self.record: dict[str, list[str]] = json.loads(record.read_text()) if record.exists() else {}
        self.passed = defaultdict[str, set[str]](set)
        self.failed = set[str]()
        self.begun = time.time()
        self.closures = Closures(files or files_by_module())
        sent = getattr(config, "workerinput", {}).get("kept_hashes")
        self._hashes: dict[str, str] = dict(sent or {})

    def hash_of(self, function: str) -> str:
        """Return the hash of what a test function rests on."""
        file = function.partition("::")[0]
        if file not in self._hashes:
            self._hashes[file] = self.closures.sha256(_module(Path(file)))
        return self._hashes[file]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Tell a process of pytest-xdist the hashes, so that files are read once."""
        for function in self.record:
            if (self.root / function.partition("::")[0]).exists():
                self.hash_of(function)
        node.workerinput["kept_hashes"] = self._hashes  # type: ignore[attr-defined]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out each function whose cases all passed on the same text."""
        if self.recompute:
            return
        marked = [item for item in items if item.get_closest_marker("kept")]
        cases = defaultdict[str, set[str]](set)
        for item in marked:
            cases[function_of(item.nodeid)].add(item.nodeid)
        known = {f for f, ids in cases.items() if self.record.get(f) == [self.hash_of(f), cases_of(ids)]}
        kept = [item for item in marked if function_of(item.nodeid) in known]
        if kept:
            left_out = set(map(id, kept))
            config.hook.pytest_deselected(items=kept)
            items[:] = [item for item in items if id(item) not in left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the cases of each kept function that passed."""
        if "kept" in report.keywords:
            function = function_of(report.nodeid)
            if report.when == "call" and report.passed:
                self.passed[function].add(report.nodeid)
            elif not report.passed:
                self.failed.add(function)

    def pytest_sessionfinish(self) -> None:
        """Write what passed, and drop what failed or is gone; only in the process that sees all reports."""
        if not self.config.getoption("--record") or hasattr(self.config, "workerinput"):
            return
        for function, cases in self.passed.items():
            texts = self.closures.texts(_module(Path(function.partition("::")[0])))
            if any(path.stat().st_mtime > self.begun for path in texts):
                continue  # which text was run is not known
            self.record[function] = [self.hash_of(function), cases_of(cases)]
        stays = sorted(f for f in self.record if f not in self.failed and self._is_there(f))
        lines = ",\n".join(f"{json.dumps(f)}: {json.dumps(self.record[f])}" for f in stays)
        self.path.write_text(f"{{\n{lines}\n}}\n")

    def _is_there(self, function: str) -> bool:
        path = self.root / function.partition("::")[0]
        return path.exists() and f"def {function.rpartition('::')[2]}(" in path.read_text()
