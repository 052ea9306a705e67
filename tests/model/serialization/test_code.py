"""What runs when a policy decides is hashed: whatever of it reads differently is named, and nothing else is."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fairsched.model.serialization import changed_code, code_sha256
from fairsched.policies.catalog import DLPM, VTC
from fairsched.policies.gates import DeficitGate

MINE = '''
from functools import cache, partial
from helpers import LIMIT, Helper, helps

TABLE = {"a": helps}


def rule(x: int) -> int:
    """Say it."""
    # A comment.
    return helps(x) + LIMIT


class Mine:
    """A policy."""

    rank = staticmethod(lambda x: x + 1)
    most = 7

    @property
    def size(self) -> int:
        return rule(self.most) + Helper().own(1) + TABLE["a"](1)

    @cache
    def counted(self) -> int:
        return 1

    twice = partial(helps, 2)
'''
HELPERS = """
LIMIT = 3


def scaled(factor):
    def inner(x):
        return x * factor
    return inner


helps = scaled(2)


class Helper:
    def own(self, x):
        return x

    def other(self, x):
        return self.own(x)


def unused(x):
    return x
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """What writes two modules of an author, with texts replaced, and imports them anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = iter(range(100))

    def write(*changes: tuple[str, str]) -> ModuleType:
        texts = {"mine": MINE, "helpers": HELPERS}
        for old, new in changes:
            assert sum(text.count(old) for text in texts.values()) == 1, old
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        folder = tmp_path / str(next(versions))
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
        for name, text in texts.items():
            sys.modules.pop(name, None)
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module("mine")

    yield write
    for name in ("mine", "helpers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "change",
    [
        ("# A comment.", "# Another one, and a longer one."),
        ('"""Say it."""', '"""Say something else."""'),
        ('"""A policy."""', '"""A class."""'),
        ("return helps(x) + LIMIT", "return (\n        helps( x )+LIMIT)"),
        ("def rule(x: int) -> int:", "def rule(x):"),
        ("def unused(x):\n    return x", "def unused(x):\n    return 2 * x"),
    ],
    ids=["comment", "docstring", "docstring of the class", "layout", "annotations", "what is not reached"],
)
def test_what_does_not_run_does_not_matter(written: Callable[..., ModuleType], change: tuple[str, str]) -> None:
    """Comments, layout, docstrings and annotations are no code, and neither is what the policy does not lead to."""
    said = code_sha256(written().Mine())
    assert list(changed_code(said, written(change).Mine())) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("return helps(x) + LIMIT", "return helps(x) - LIMIT"), "mine.rule"),
        (("LIMIT = 3", "LIMIT = 4"), "mine.LIMIT"),
        (("lambda x: x + 1", "lambda x: x + 2"), "mine.Mine.rank"),
        (("return rule(self.most)", "return 2 + rule(self.most)"), "mine.Mine.size"),
        (("most = 7", "most = 8"), "mine.Mine"),
        (("        return 1\n", "        return 2\n"), "mine.Mine.counted"),
        (("return x * factor", "return x + factor"), "helpers.scaled.<locals>.inner"),
        (("helps = scaled(2)", "helps = scaled(5)"), "helpers.scaled.<locals>.inner"),
        (("def own(self, x):\n        return x", "def own(self, x):\n        return -x"), "helpers.Helper.own"),
        (("partial(helps, 2)", "partial(helps, 3)"), "mine.Mine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_runs_is_named(written: Callable[..., ModuleType], change: tuple[str, str], name: str) -> None:
    """Functions, constants, lambdas, properties, what closures hold, and what other modules of the author's say."""
    said = code_sha256(written().Mine())
    assert list(changed_code(said, written(change).Mine())) == [f"{name}: changed since it was proved about"]


def test_code_that_comes_or_goes_is_named(written: Callable[..., ModuleType]) -> None:
    """A method more, and a function that is not called any more."""
    said = code_sha256(written().Mine())
    more = written(("    most = 7\n", "    most = 7\n\n    def more(self):\n        return 1\n")).Mine()
    assert "mine.Mine.more: runs here, and was not there when it was proved" in changed_code(said, more)
    less = written(("return helps(x) + LIMIT", "return helps(x)")).Mine()
    assert "mine.LIMIT: was proved about, and does not run here" in changed_code(said, less)


def test_a_shipped_policy_reaches_what_it_runs() -> None:
    """Gate, kernels, the algebra's words, admission, queue and prices; no proof, no engine, no router."""
    found = code_sha256(DLPM())
    policies, model = "fairsched.policies", "fairsched.model"
    assert {
        f"{policies}.gates.deficit.DeficitGate.choose",
        f"{policies}.gates.deficit.refill_rounds",
        f"{policies}.gates.authoring.KernelGate.decoded",
        f"{policies}.gates.authoring.KernelAdmissions.stays",
        f"{policies}.local.policy.ComposedPolicy.decide",
        f"{policies}.local.admission.AdmissionPass.run",
        f"{policies}.orders.queue.join",
        f"{policies}.orders.base.score_of",
        f"{policies}.batching.Chunked.first_chunk",
        f"{model}.algebra.NumpyAlgebra.argmax",
        f"{model}.pricing.price",
    } <= set(found)
    assert not [name for name in found if not name.startswith((f"{policies}.", f"{model}."))]
    assert not [name for name in found if ".routers." in name]
    assert [*changed_code(found, DLPM())] == [*changed_code(found, DLPM(gate=DeficitGate(quantum=7)))] == []
    assert [*changed_code(found, VTC())] != []
