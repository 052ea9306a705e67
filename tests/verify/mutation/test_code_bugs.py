"""Bugs seeded into the code around the kernels: each is noticed by the test that is named for it."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from fairsched.policies import vectors
from fairsched.verify.logic import kernels_of
from tests.verify.mutation.bugs import BUGS, Bug
from tests.verify.mutation.code import code_mutants, in_place, same_changes

pytestmark = pytest.mark.kept


def noticing(name: str) -> Iterator[Callable[[], object]]:
    """The test of that name (file::function), once for each of its parameters."""
    path, function = name.split("::")
    test = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), function)
    axes = [
        [
            dict(zip(_names(mark.args[0]), values if len(_names(mark.args[0])) > 1 else (values,), strict=True))
            for values in mark.args[1]
        ]
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "parametrize"
    ]
    for chosen in product(*axes):
        yield partial(test, **{name: value for axis in chosen for name, value in axis.items()})


def _names(names: Any) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_noticed(bug: Bug) -> None:
    """The text is there, and the test that must notice the bug fails under it."""
    tests = list(noticing(bug.noticed_by))
    with in_place(bug.module, bug.function, bug.old, bug.new):
        assert any(fails(test) for test in tests), f"{bug.noticed_by} does not notice it"


def fails(test: Callable[[], object]) -> bool:
    """Whether a test fails, in whatever way."""
    try:
        test()
    except Exception:
        return True
    return False


def test_a_bug_whose_text_is_gone_is_an_error() -> None:
    """A text that is not there, or not once, or a function that is none: no bug can silently be none."""
    for function, old, message in (
        ("grown", "nothing of the kind", "0 times"),
        ("grown", "vector", "times, not once"),
        ("no_such", "x", "has no no_such"),
        ("_FEW", "8", "is no function"),
    ):
        with pytest.raises(ValueError, match=message), in_place(vectors.__name__, function, old, ""):
            pass


def test_a_change_is_in_place_for_as_long_as_it_lasts() -> None:
    """Wherever the function was imported to, and not afterwards."""
    dense = vectors.dense
    with in_place(vectors.__name__, "dense", "= amount * factor", "= amount"):
        assert dense(2, [1], [3], 5).tolist() == [0, 3]
    assert dense(2, [1], [3], 5).tolist() == [0, 15]


@pytest.mark.parametrize("module", ["policies.vectors", "policies.gates.credit_ledger"])
def test_changes_have_names_and_are_of_code_around_kernels(module: str) -> None:
    """Each change has a name of its own, and none is of a kernel, which proofs are about."""
    name = f"fairsched.{module}"
    found = list(code_mutants(name))
    assert found
    assert len({mutant.name for mutant in found}) == len(found)
    kernels = {kernel.__name__ for kernel in kernels_of(importlib.import_module(name))}
    assert not kernels & {mutant.function for mutant in found}


@pytest.mark.nightly
def test_changes_that_change_nothing_are_still_made() -> None:
    """Each that is listed with a reason is a change of the code as it is now."""
    listed = {(name, change) for name, changes in same_changes().items() for change in changes}
    made, functions = set[tuple[str, str]](), {name for name, _ in listed}
    for module in sorted({_module_of(name) for name in functions}):
        mutants = code_mutants(module, partial(_is_not_among, functions, module))
        made |= {(f"{module}.{mutant.function}", mutant.change) for mutant in mutants}
    assert listed - made == set()


def _is_not_among(functions: set[str], module: str, function: str) -> bool:
    return f"{module}.{function}" not in functions


def _module_of(name: str) -> str:
    """The module of a function by its full name: all before its first part that is no module."""
    parts = name.split(".")
    return next(module for count in range(len(parts) - 1, 0, -1) if _imported(module := ".".join(parts[:count])))


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
