"""A certificate is evidence: whatever is changed in it afterwards is seen, by the script or by the command.

Each theorem is shown as well as its proofs are: an edited one is refused, a lost one costs the level.
"""

import ast
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import attrs
import msgspec
import pytest

from fairsched.cli import main
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
from fairsched.verify import checker, solvers
from fairsched.verify.logic.patching import variant
from fairsched.verify.report import Deployment, certificate
from fairsched.verify.report.certificate import (
    CHECKSUMS,
    EXPECTED,
    MANIFEST,
    Evidence,
    Goals,
    Manifest,
    companions,
    sha256,
    standings,
)
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import Subject, part, subject
from fairsched.verify.report.values import plan, run
from fairsched.verify.solvers import checked_proof

pytestmark = pytest.mark.kept

THEOREMS = ("D-gate", "D-4.1")
DEPLOYMENT = read({"kv_capacity_tokens": 4096, "weights": {"gold": 4, "free": 1}})


@pytest.fixture(scope="module", autouse=True)
def _each_text_is_asked_once() -> Iterator[None]:
    """A solver's answer is a function of the text, and most texts of a copy are those of the original."""
    asking: dict[str, Any] = {name: cache(getattr(solvers, name)) for name in ("z3_answer", "cvc5_answer")}
    with patch.multiple(solvers, **asking):
        yield


def few(name: str, _deployment: Deployment, *theorems: str) -> Subject:
    """DLPM with a few of its theorems, so that a test takes seconds."""
    whole = subject(name, DLPM())
    return attrs.evolve(whole, theorems=tuple(each for each in whole.theorems if each.id in (theorems or THEOREMS)))


def write(directory: Path, *theorems: str) -> int:
    """Write a certificate of these theorems, or of none; returns the number of questions."""
    of = few("dlpm", DEPLOYMENT, *theorems) if theorems else attrs.evolve(few("dlpm", DEPLOYMENT), theorems=())
    outcome = run("0", [of], DEPLOYMENT, self_checks=False)
    assert outcome.failures == []
    return certificate.write_certificate(directory, outcome, DEPLOYMENT)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of those theorems, written once."""
    directory = tmp_path_factory.mktemp("certificate") / "dlpm"
    assert write(directory, *THEOREMS) == len(certificate.read(directory).files)
    return directory


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


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
def test_the_script_needs_a_solver_and_nothing_else(proofs: Path, solver: tuple[str, ...]) -> None:
    """With either solver every answer is the expected one."""
    if solver == ("z3",) and shutil.which("z3", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("Z3's package brought no command")
    done = script(proofs, *solver)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(certificate.read(proofs).files)} questions, 0 wrong\n"


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
    assert write(copied) == 0
    assert not list(copied.glob("*/*.smt2"))
    assert (copied / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(ValueError, match="not a certificate"):
        certificate.check_free(tmp_path / "other")
    with pytest.raises(ValueError, match="no certificate"):
        certificate.check_free(tmp_path)


# --- proofs ---------------------------------------------------------------------------------------------------------

PROOF, OTHER = "D-gate/start.goal.cpc.gz", "D-gate/choose.goal.cpc.gz"


def sampled(name: str, deployment: Deployment) -> Subject:
    """DLPM with a theorem that has three short goals, and one that is tried in drawn worlds."""
    return few(name, deployment, "D-gate", "P-NP-1")


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of these, with proofs."""
    directory = tmp_path_factory.mktemp("proofs") / "dlpm"
    assert write(directory, "D-gate") == 6
    assert certificate.write_proofs(directory) == (Goals(3, 3), {})
    return directory


@pytest.fixture
def proved(proofs: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(proofs, tmp_path / "proved"))


def test_levels_are_told_apart(proofs: Path) -> None:
    """Every goal of the one has a proof that was read, and the other was tried."""
    found = certificate.check_certificate(proofs, sampled)
    assert found.problems == ()
    assert [str(each) for each in found.evidence] == [
        "D-gate                  checked proof   3 of 3 goals",
        "P-NP-1                  sampled",
    ]


def _read_alone(directory: Path) -> subprocess.CompletedProcess[str]:
    """What the copy of the checker says, by a Python that finds no package at all."""
    command = [sys.executable, "-E", "-S", str(directory / "checker" / "proof.py"), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_checker_needs_python_and_nothing_else(proved: Path) -> None:
    """Its files import each other and the standard library; it reads every proof, and names one that it refuses."""
    for path in sorted((proved / "checker").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for root in (name.partition(".")[0] for name in names):
                assert root in sys.stdlib_module_names or (proved / "checker" / f"{root}.py").is_file()
    done = _read_alone(proved)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 proofs, 0 refused\n", "")
    shutil.copy(proved / OTHER, proved / PROOF)
    done = _read_alone(proved)
    assert (done.returncode, done.stdout) == (1, "3 proofs, 1 refused\n")
    assert f"{proved / PROOF}: not checked: " in done.stderr
    (proved / "D-gate/start.goal.smt2").unlink()
    assert "not to be read" in _read_alone(proved).stderr


def test_a_folder_without_proofs_is_no_evidence(tmp_path: Path) -> None:
    """The script does not succeed where it read nothing."""
    (tmp_path / "checker").mkdir()
    for path in Path(checker.__file__).parent.glob("[a-z]*.py"):
        text = path.read_text().replace(f"{checker.__name__}.", "")
        (tmp_path / "checker" / path.name).write_text(text)
    done = _read_alone(tmp_path)
    assert (done.returncode, done.stdout) == (1, "0 proofs, 0 refused\n")


def _prove(directory: Path, proofs: dict[str, str]) -> None:
    """The manifest says something else of the proofs."""
    _rewrite(directory, lambda document: document.update(proofs=proofs))


def _without_its_end(raw: bytes) -> bytes:
    return gzip.compress("\n".join(gzip.decompress(raw).decode().splitlines()[:-1]).encode())


def _by_another_rule(raw: bytes) -> bytes:
    return gzip.compress(gzip.decompress(raw).replace(b":rule ", b":rule un", 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_its_end, "does not end in false"),
        (_by_another_rule, "a rule that is not known"),
        (lambda raw: gzip.compress(b""), "does not end in false"),
        (lambda raw: raw[:-9], "not to be read"),
        (lambda raw: b"", "does not end in false"),
        (lambda raw: b"accepted", "not to be read"),
    ],
)
def test_an_edited_proof_is_refused(proved: Path, change: Callable[[bytes], bytes], why: str) -> None:
    """Also where its hash was edited with it: the steps themselves do not show the goal any more."""
    changed = change((proved / PROOF).read_bytes())
    (proved / PROOF).write_bytes(changed)
    found = certificate.check_certificate(proved, sampled)
    assert f"{PROOF}: changed since the manifest was written" in found.problems
    _prove(proved, {**certificate.read(proved).proofs, PROOF: sha256(changed)})
    (problem,) = certificate.check_certificate(proved, sampled).problems
    assert problem.startswith(f"{PROOF}: not checked: ")
    assert why in problem


def test_a_removed_proof_costs_the_level(proved: Path) -> None:
    """The file alone is missed; gone from the manifest as well, the theorem is shown by two solvers only."""
    (proved / PROOF).unlink()
    found = certificate.check_certificate(proved, sampled)
    assert found.problems == (f"{PROOF}: missing",)
    assert found.evidence == ()
    _prove(proved, {path: value for path, value in certificate.read(proved).proofs.items() if path != PROOF})
    found = certificate.check_certificate(proved, sampled)
    assert found.problems == ()
    assert str(found.evidence[0]) == "D-gate                  two solvers     2 of 3 goals"


def test_a_proof_beside_no_goal_is_no_certificate(proved: Path) -> None:
    """A path that is no goal's is not followed."""
    _prove(proved, {**certificate.read(proved).proofs, "../elsewhere.cpc.gz": sha256(b"")})
    with pytest.raises(ValueError, match="beside no goal"):
        certificate.check_certificate(proved, sampled)


def test_another_checker_is_seen(proved: Path) -> None:
    """One that accepts everything is not the one that belongs there."""
    (proved / "checker" / "proof.py").write_text("print('3 proofs, 0 refused')\n")
    assert certificate.check_certificate(proved, sampled).problems == (
        "checker/proof.py: not what belongs to this manifest",
    )


def test_proofs_go_with_their_certificate(proved: Path) -> None:
    """Written again, nothing of an earlier one is left, and without proofs no theorem has more than two solvers."""
    write(proved)
    assert not (proved / "D-gate").exists()
    assert certificate.read(proved).proofs == {}
    assert (proved / MANIFEST).is_file()


def test_proofs_of_the_same_goals_stay(proved: Path) -> None:
    """A certificate that is written again has the proofs of goals whose words did not change, but for edited ones."""
    had = certificate.read(proved).proofs
    (proved / OTHER).write_bytes((proved / PROOF).read_bytes())
    write(proved, "D-gate")
    assert certificate.read(proved).proofs == {path: value for path, value in had.items() if path != OTHER}
    assert not (proved / OTHER).exists()
    assert certificate.check_certificate(proved, sampled).problems == ()


def test_what_was_stopped_goes_on(proved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs that were written count if the next goal is interrupted, and only those that are missing are written."""
    had = certificate.read(proved).proofs
    _prove(proved, {})
    for path in had:
        (proved / path).unlink()
    asked, told = list[str](), list[tuple[str, int, int]]()

    def second_is_stopped(text: str) -> tuple[bytes, str]:
        asked.append(text)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return checked_proof(text)

    monkeypatch.setattr("fairsched.verify.solvers.checked_proof", second_is_stopped)
    with pytest.raises(KeyboardInterrupt):
        certificate.write_proofs(proved, progress=lambda *each: told.append(each))
    assert [each[1:] for each in told] == [(0, 3), (1, 3)]
    assert certificate.check_certificate(proved, sampled).problems == ()
    assert len(certificate.read(proved).proofs) == 1
    assert certificate.write_proofs(proved) == (Goals(3, 3), {})
    assert len(set(asked)) == len(had)
    assert len(asked) == len(had) + 1
    assert certificate.read(proved).proofs == had


def test_the_command_says_how_many_goals_have_a_proof(proved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where all have one already it says so at once, and how to read them."""
    assert main(["verify", "--prove", str(proved), "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 goals have a proof that the checker accepts" in shown
    assert "checker/proof.py" in shown


def test_a_goal_without_a_proof_is_named(proved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is given, and the theorem stands at what two solvers say."""
    _prove(proved, {path: value for path, value in certificate.read(proved).proofs.items() if path != PROOF})
    monkeypatch.setattr("fairsched.verify.solvers.checked_proof", lambda _: (b"", "no time"))
    assert certificate.write_proofs(proved) == (Goals(3, 2), {"D-gate/start.goal.smt2": "no time"})


def test_a_theorem_is_shown_no_better_than_what_it_rests_on() -> None:
    """One goal without a proof takes down its theorem and those proved that rest on it, and no others."""
    rows = plan([part("variants")]).planned
    whole = {(row.subject.name, row.theorem.id): Goals(2, 2) for row in rows}
    shown = {each.theorem: each for each in standings(rows, whole)}
    resting = next(
        row.theorem for row in rows if row.theorem.rests_on and shown[row.theorem.id].evidence is Evidence.PROOF
    )
    base = resting.rests_on[0]
    lacking = {each.theorem: each for each in standings(rows, {**whole, (rows[0].subject.name, base): Goals(2, 1)})}
    assert (lacking[base].evidence, lacking[base].because_of) == (Evidence.SOLVERS, ())
    assert (lacking[resting.id].evidence, lacking[resting.id].because_of) == (Evidence.SOLVERS, (base,))
    changed = {name for name in shown if shown[name] != lacking[name]}
    above = {row.theorem.id for row in rows if base in _below(row, rows)}
    assert changed == {base, *(name for name in above if shown[name].evidence is Evidence.PROOF)}


def _below(row: Any, rows: Any) -> set[str]:
    by_id = {each.theorem.id: each for each in rows}
    own = {name for name in row.theorem.rests_on if name in by_id}
    return own.union(*(_below(by_id[name], rows) for name in own))
