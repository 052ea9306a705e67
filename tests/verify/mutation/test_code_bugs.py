"""Bugs seeded into the code around the kernels: each is noticed by the test that is named for it."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from fairsched.verify.mutation.code import in_place
from tests.verify.mutation.bugs import BUGS, Bug


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
