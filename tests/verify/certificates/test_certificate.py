"""A certificate is evidence: whatever is changed in it afterwards is seen, by the script or by the command."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import attrs
import msgspec
import pytest

from fairsched.model import algebra
from fairsched.model.algebra import Algebra, NumpyAlgebra, Vector
from fairsched.model.serialization import changed_code
from fairsched.model.theorem import Certificate
from fairsched.policies import gates
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import authoring, deficit
from fairsched.policies.gates.deficit import DeficitGate
from fairsched.policies.local import admission
from fairsched.policies.local.admission import AdmissionPass
from fairsched.verify.logic.patching import variant
from fairsched.verify.report import Deployment, certificate
from fairsched.verify.report.certificate import CHECKSUMS, EXPECTED, MANIFEST, Manifest, companions, sha256
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import Subject, subject
from fairsched.verify.report.values import run

pytestmark = pytest.mark.kept

THEOREMS = ("D-gate", "D-4.1")
DEPLOYMENT = read({"kv_capacity_tokens": 4096, "weights": {"gold": 4, "free": 1}})


def few(name: str, _deployment: Deployment) -> Subject:
    """DLPM with a few of its theorems, so that a test takes seconds."""
    whole = subject(name, DLPM())
    return attrs.evolve(whole, theorems=tuple(theorem for theorem in whole.theorems if theorem.id in THEOREMS))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of those theorems, written once."""
    directory = tmp_path_factory.mktemp("certificate") / "dlpm"
    outcome = run("0", [few("dlpm", DEPLOYMENT)], DEPLOYMENT, self_checks=False)
    assert outcome.failures == []
    assert certificate.write_certificate(directory, outcome, DEPLOYMENT) == sum(
        len(row.decision.files) for row in outcome.rows
    )
    return directory


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def problems(directory: Path) -> str:
    """What the command finds."""
    return "\n".join(certificate.check_certificate(directory, few).problems)


def elsewhere(directory: Path) -> dict[str, str]:
    """The environment of a person who has solvers and Python, and whose Python cannot import this library."""
    in_the_way = directory.parent / "elsewhere"
    in_the_way.mkdir(exist_ok=True)
    (in_the_way / "fairsched.py").write_text("raise ImportError('not here')\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(in_the_way)}


def script(directory: Path, *solver: str) -> subprocess.CompletedProcess[str]:
    """What the shell script says there."""
    command = ["sh", str(directory / "check.sh"), *solver]
    return subprocess.run(command, env=elsewhere(directory), capture_output=True, text=True, check=False)


def test_where_the_script_runs_there_is_no_fairsched(written: Path) -> None:
    """Otherwise the tests of the script would show less than they say."""
    command = [sys.executable, "-c", "import fairsched"]
    done = subprocess.run(command, env=elsewhere(written), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: not here" in done.stderr


def test_a_certificate_checks(written: Path) -> None:
    """Nothing is wrong with what was just written, and every theorem of the subject is in it."""
    assert problems(written) == ""
    (made,) = certificate.read(written).certificates
    assert Certificate.from_json(made.to_json()) == made
    assert {theorem.id for theorem in made.theorems} == set(THEOREMS)
    assert all(made.covers(theorem) for theorem in THEOREMS)
    (bound,) = [theorem.bound_cost for theorem in made.theorems if theorem.id == "D-4.1"]
    # Two clients of weight 4: Q = 4 x 4096, U = 2 x 4096 - 1.
    assert bound == 2 * (4 * 4096 + (2 * 4096 - 1) - 1)


@pytest.mark.parametrize("solver", [("z3",), (sys.executable, "cvc5_file.py")], ids=["z3", "cvc5"])
def test_the_script_needs_a_solver_and_nothing_else(written: Path, solver: tuple[str, ...]) -> None:
    """With either solver every answer is the expected one."""
    if solver == ("z3",) and shutil.which("z3", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("Z3's package brought no command")
    done = script(written, *solver)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(certificate.read(written).files)} questions, 0 wrong\n"


def test_the_script_without_a_solver_says_so(written: Path) -> None:
    """No argument is exit status 2; a solver that answers nothing is no success."""
    assert script(written).returncode == 2
    assert script(written, "true").returncode == 1


@pytest.mark.parametrize("answer", ["sat", "unsat", "unknown", "unsat\nunsat"])
def test_a_wrong_answer_fails(written: Path, answer: str) -> None:
    """A solver that says the same to everything, or more than an answer, is named with every file that it got wrong."""
    done = script(written, "sh", "-c", f"echo '{answer}'")
    expected = [question.expected for question in certificate.read(written).files.values()]
    wrong = sum(answer != each for each in expected)
    assert done.returncode == 1
    assert 0 < wrong == done.stderr.count("and the solver says")
    assert done.stdout == f"{len(expected)} questions, {wrong} wrong\n"


GOAL = "D-4.1/refill.goal.smt2"


@pytest.mark.parametrize(
    ("name", "change", "asked"),
    [
        # A hypothesis goes, and the question has another answer.
        (GOAL, lambda text: text.replace("(assert", "; (assert", 1), True),
        # Hypotheses contradict each other, and every goal follows from them.
        (GOAL, lambda text: text.replace("(check-sat)", "(assert false)\n(check-sat)"), True),
        ("D-gate/start.goal.smt2", lambda text: None, True),
        (EXPECTED, lambda text: text.replace("unsat", "sat", 1), True),
        ("D-gate/another.smt2", lambda text: "(check-sat)\n", False),
        ("check.sh", lambda text: "#!/bin/sh\nexit 0\n", False),
        (CHECKSUMS, lambda text: "", False),
    ],
)
def test_a_changed_file_is_seen(copied: Path, name: str, change: Callable[[str], str | None], asked: bool) -> None:
    """The command names it; the script, where it is not what was changed, sees every change to what it asks."""
    path = copied / name
    text = change(path.read_text() if path.is_file() else "")
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert problems(copied)
    assert not asked or script(copied, "z3").returncode == 1


def _rewrite(directory: Path, change: Callable[[Any], None]) -> None:
    """The manifest says something else, and everything beside it agrees with the manifest."""
    document = json.loads((directory / MANIFEST).read_text())
    change(document)
    changed = msgspec.convert(document, Manifest)
    for name, content in companions(changed).items():
        (directory / name).write_bytes(content)


def _only(document: Any) -> Any:
    return document["certificates"][0]


def _theorem(document: Any) -> Any:
    return next(theorem for theorem in _only(document)["theorems"] if theorem["id"] == "D-4.1")


def _forget(document: Any) -> None:
    _only(document)["theorems"].remove(_theorem(document))
    del document["evidence"]["dlpm"]["D-4.1"]


ADMIT = "fairsched.policies.gates.deficit.DeficitGate.admit_q"
CHARGES_ANEW = variant(deficit, "admit", "-charge", "0 - charge").admit


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda document: _theorem(document).update(bound_cost=1), "bound_cost: says 1"),
        (lambda document: _theorem(document).update(assumptions=[]), "assumptions"),
        (lambda document: _only(document)["code"].update({ADMIT: sha256(b"another text")}), f"{ADMIT}: changed since"),
        (lambda document: document["deployment"].update(kv_capacity_tokens=2048), "configuration_sha256"),
        (_forget, "D-4.1 is claimed"),
    ],
)
def test_a_manifest_that_claims_something_else_is_seen(
    copied: Path, change: Callable[[Any], None], expected: str
) -> None:
    """Even when all hashes in the directory agree, the installed code says what it can vouch for."""
    _rewrite(copied, change)
    assert expected in problems(copied)


def _decodes_for_nothing(o: Algebra, q: Vector, charge: Vector) -> Vector:
    return q


GATES = "fairsched.policies.gates"
ADMISSION = "fairsched.policies.local.admission"
ALGEBRA = "fairsched.model.algebra"


@pytest.mark.parametrize(
    ("where", "name", "instead", "line"),
    [
        (DeficitGate, "decode_q", staticmethod(_decodes_for_nothing), f"{GATES}.deficit.DeficitGate.decode_q: "),
        (DeficitGate, "admit_q", staticmethod(CHARGES_ANEW), f"{ADMIT}: "),
        (gates.KernelGate, "settled", lambda *_: _[1], f"{GATES}.authoring.KernelGate.settled: "),
        (gates.KernelAdmissions, "lacks_credit", lambda *_: False, "KernelAdmissions.lacks_credit: "),
        (NumpyAlgebra, "any", lambda _, m: True, f"{ALGEBRA}.NumpyAlgebra.any: "),
        (algebra, "_LOWEST", 0, f"{ALGEBRA}._LOWEST: "),
        (AdmissionPass, "_room", lambda self, kept: 1 << 40, f"{ADMISSION}.AdmissionPass._room: "),
        (admission, "LOOKAHEAD", 1, f"{ADMISSION}.LOOKAHEAD: "),
        (authoring, "price", lambda tokens, rate, unit: tokens, "fairsched.model.pricing.price: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_code_that_changed_since_is_named(
    written: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, instead: Any, line: str
) -> None:
    """A kernel, a gate's method, a word of the algebra, a constant, admission, prices: of what runs nothing may differ,
    and one line says what does."""
    if isinstance(instead, FunctionType):
        instead = FunctionType(instead.__code__, instead.__globals__)
        instead.__module__, instead.__qualname__ = getattr(where, name).__module__, getattr(where, name).__qualname__
    monkeypatch.setattr(where, name, instead)
    (made,) = certificate.read(written).certificates
    (found,) = changed_code(made.code, DLPM())
    assert line in found
    assert "changed since it was proved about" in found


def test_what_follows_from_a_change_is_not_listed(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the directory changes; with one line of a kernel all questions about it do, and one line says so."""
    monkeypatch.setattr(DeficitGate, "admit_q", staticmethod(CHARGES_ANEW))
    assert problems(written) == f"{ADMIT}: changed since it was proved about"


def test_a_question_swapped_with_its_hash_is_seen(copied: Path) -> None:
    """A file and its entry changed together are not what the installed code asks."""
    path = next(copied.glob("D-gate/start.goal.smt2"))
    path.write_text("(set-logic QF_LIA)\n(assert false)\n(check-sat)\n")
    name = path.relative_to(copied).as_posix()

    def change(document: Any) -> None:
        document["files"][name]["sha256"] = sha256(path.read_bytes())

    _rewrite(copied, change)
    assert script(copied, "z3").returncode == 0
    assert f"{MANIFEST}: files: {name}: sha256" in problems(copied)


def test_writing_again_replaces_only_a_certificate(copied: Path, tmp_path: Path) -> None:
    """Files of an earlier certificate go, another file stays, and another folder is refused."""
    (copied / "notes.txt").write_text("mine")
    outcome = run("0", [attrs.evolve(few("dlpm", DEPLOYMENT), theorems=())], DEPLOYMENT, self_checks=False)
    assert certificate.write_certificate(copied, outcome, DEPLOYMENT) == 0
    assert not list(copied.glob("*/*.smt2"))
    assert (copied / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(ValueError, match="not a certificate"):
        certificate.check_free(tmp_path / "other")
    with pytest.raises(ValueError, match="no certificate"):
        certificate.check_free(tmp_path)
