"""A result is kept for the text that it was seen on, and for no other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kept.results import RECORD, ROOT, Closures

pytest_plugins = ["pytester"]

TREE = {
    "pack": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.lazy import late\n",
    "pack.lazy": "late = 1\n",
    "pack.deep": "def f():\n    from pack import inner\n    return inner\n",
    "pack.inner": "value = 1\n",
    "pack.named": "value = 2\n",
    "pack.apart": "value = 3\n",
    "test_it": "import pack.deep\nSOURCE = 'pack.named'\n",
    "test_lazy": "from pack import late\n",
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write the tree with some files changed, and return the hash of a module of it."""

    def write(module: str, **changed: str) -> str:
        files = {}
        for number, (name, text) in enumerate(TREE.items()):
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            files[name] = folder / "file.py"
            files[name].write_text(changed.get(name.replace(".", "_"), text))
        return Closures(files).sha256(module)

    return write


@pytest.mark.parametrize("reached", ["test_it", "pack", "pack_deep", "pack_inner", "pack_named"])
def test_a_changed_file_that_is_reached_changes_the_hash(reached: str, written: Callable[..., str]) -> None:
    """By an import inside a function, by a package that is passed, and by a text that names a module."""
    assert written("test_it") == written("test_it")
    assert written("test_it", **{reached: "other = 4\n"}) != written("test_it")


def test_a_file_that_the_marker_names_counts(written: Callable[..., str]) -> None:
    """A test may read what no import reaches."""
    named = TREE["test_it"] + "import pytest\npytestmark = pytest.mark.kept({!r})\n"
    with_data = {written("test_it", test_it=named.format(data)) for data in ("LICENSE", "Makefile", "tests/replays")}
    assert len(with_data) == 3


def test_what_a_passed_package_loads_on_demand_counts_only_where_it_is_asked_for(written: Callable[..., str]) -> None:
    """Else each test would rest on the whole package."""
    assert written("test_it", pack_lazy="late = 2\n") == written("test_it", pack_apart="") == written("test_it")
    assert written("test_lazy", pack_lazy="late = 2\n") != written("test_lazy")


SUITE = """
import pytest
import helper

@pytest.mark.kept
@pytest.mark.parametrize("case", [1, 2])
def test_kept(case):
    assert helper.RIGHT

@pytest.mark.kept
def test_other():
    assert case_is_right()

def case_is_right():
    return True

def test_always():
    pass
"""
CONFTEST = """
from pathlib import Path
from tests.support.kept.results import KeptResults

def pytest_addoption(parser):
    for name in ("--full-budget", "--recompute", "--record"):
        parser.addoption(name, action="store_true")

def pytest_configure(config):
    here = Path(__file__).parent
    files = {"test_suite": here / "test_suite.py", "helper": here / "helper.py"}
    config.addinivalue_line("markers", "kept: kept")
    config.pluginmanager.register(KeptResults(config, here / "record.json", files))
"""


def test_a_function_is_left_out_while_its_text_is_the_same(pytester: pytest.Pytester) -> None:
    """All cases of it, and only after a run that was asked to record; a changed file, a new case and a failure run."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE, helper="RIGHT = True\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=4)
    pytester.runpytest_inprocess("--record", "-k", "other or 1").assert_outcomes(passed=2, deselected=2)
    # One of two cases was seen: that is not the function, nor is the other one alone.
    pytester.runpytest_inprocess("-k", "test_kept and 2").assert_outcomes(passed=1, deselected=3)
    pytester.runpytest_inprocess("--record").assert_outcomes(passed=3, deselected=1)
    pytester.runpytest_inprocess().assert_outcomes(passed=1, deselected=3)
    pytester.runpytest_inprocess("--recompute").assert_outcomes(passed=4)
    pytester.makepyfile(helper="RIGHT = 0\n")
    pytester.runpytest_inprocess("--record").assert_outcomes(passed=2, failed=2)
    assert list(json.loads((pytester.path / "record.json").read_text())) == ["test_suite.py::test_other"]
    pytester.runpytest_inprocess().assert_outcomes(passed=1, failed=2, deselected=1)


def test_a_text_that_changes_during_a_run_is_not_recorded(pytester: pytest.Pytester) -> None:
    """Nobody knows which of the two was run."""
    pytester.makeconftest(CONFTEST)
    change = "def case_is_right():\n    from pathlib import Path\n    Path(__file__).touch()\n    return True\n"
    pytester.makepyfile(test_suite=SUITE.partition("def case_is_right")[0] + change, helper="RIGHT = True\n")
    pytester.runpytest_inprocess("--record").assert_outcomes(passed=3)
    assert json.loads((pytester.path / "record.json").read_text()) == {}


def test_the_record_names_tests_that_are_there() -> None:
    """A line about a function that is gone, or that is not marked, says nothing."""
    record = json.loads(RECORD.read_text())
    for function in record:
        file, name = function.split("::", 1)
        assert f"def {name.rpartition('::')[2]}(" in (ROOT / file).read_text()
