"""What exists and what is meant: values and pure functions that policies, proofs and engines share.

A folder's `__init__` may name everything and load nothing before it is used (`lazy_exports`), since a serving process
must not load torch, Ray or a solver because it imports a neighbour of theirs.  It lists its imports under
`TYPE_CHECKING`, where type checkers and readers see them, and that list is read.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module


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
