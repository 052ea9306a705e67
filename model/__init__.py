"""What exists and what is meant: values and pure functions that policies, proofs and engines share.

A folder's `__init__` may name everything and load nothing before it is used (`lazy_exports`), since a serving process
must not load torch, Ray or a solver because it imports a neighbour of theirs.  It lists its imports under
`TYPE_CHECKING`, where type checkers and readers see them, and that list is read.  What it then loads may need a package
that only an extra brings (`EXTRAS`), and the error says which.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

EXTRAS = {
    "cli": ("cyclopts", "rich", "matplotlib", "jinja2"),
    "verify": ("z3", "cvc5", "hypothesis"),
    "cli,torch": ("torch", "safetensors"),
    "gateway": ("aiohttp",),
    "endpoint-picker": ("envoy", "google", "grpc", "grpc_health"),
    "frame": ("pyarrow",),
}
"""The extra that brings a module."""


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, or None."""
    return next((extra for extra, modules in EXTRAS.items() if module.partition(".")[0] in modules), None)


def installing(extra: str) -> str:
    """Return the command that installs an extra; no package index has fairsched."""
    return f"pip install '.[{extra}]' in a clone of fairsched"


@contextmanager
def extra_named() -> Iterator[None]:
    """Name the extra to install where a module is missing; `with` it, or as a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name or "")) is None:
            raise
        said = f"{(error.name or '').partition('.')[0]} is not installed: {installing(extra)}"
        raise ModuleNotFoundError(said, name=error.name) from error


def lazy_exports(package: str) -> Callable[[str], object]:
    """Return the `__getattr__` of the package named `package`: it loads a name when that is first asked for."""

    def load(name: str) -> object:
        homes = {} if name.startswith("__") else imported_names(package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own_name = homes[name]
        found = vars(sys.modules[package])[name] = getattr(import_module(module), own_name)
        return found

    return load


@cache
def imported_names(package: str) -> dict[str, tuple[str, str]]:
    """Return the names that the package's text imports from inside of it: the module of each, and its name there."""
    tree = ast.parse(inspect.getsource(sys.modules[package]))
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
        for alias in node.names
    }
