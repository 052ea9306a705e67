"""Each theorem of a certificate is shown as well as its proofs are: an edited one is refused, a lost one costs the
level."""

import ast
import gzip
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from fairsched.cli import main
from fairsched.policies.catalog import DLPM
from fairsched.verify import checker
from fairsched.verify.report import Deployment, certificate
from fairsched.verify.report.certificate import MANIFEST, Evidence, Goals, Manifest, companions, sha256, standings
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import Subject, part, subject
from fairsched.verify.report.values import plan, run
from fairsched.verify.solvers import checked_proof

pytestmark = pytest.mark.kept

DEPLOYMENT = read({"kv_capacity_tokens": 4096})
GOAL = "D-gate/start.goal.smt2"
PROOF = "D-gate/start.goal.cpc.gz"
OTHER = "D-gate/choose.goal.cpc.gz"


def few(name: str, _deployment: Deployment) -> Subject:
    """DLPM with a theorem that has three short goals, and one that is tried in drawn worlds."""
    whole = subject(name, DLPM())
    return attrs.evolve(whole, theorems=tuple(each for each in whole.theorems if each.id in ("D-gate", "P-NP-1")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of these, with proofs."""
    directory = tmp_path_factory.mktemp("certificate") / "dlpm"
    gate = attrs.evolve(few("dlpm", DEPLOYMENT), theorems=few("dlpm", DEPLOYMENT).theorems[:1])
    assert certificate.write_certificate(directory, run("0", [gate], DEPLOYMENT, self_checks=False), DEPLOYMENT) == 6
    assert certificate.write_proofs(directory) == (Goals(3, 3), {})
    return directory


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def test_levels_are_told_apart(written: Path) -> None:
    """Every goal of the one has a proof that was read, and the other was tried."""
    found = certificate.check_certificate(written, few)
    assert found.problems == ()
    assert [str(each) for each in found.evidence] == [
        "D-gate                  checked proof   3 of 3 goals",
        "P-NP-1                  sampled",
    ]


def _read_alone(directory: Path) -> subprocess.CompletedProcess[str]:
    """What the copy of the checker says, by a Python that finds no package at all."""
    command = [sys.executable, "-E", "-S", str(directory / "checker" / "proof.py"), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_checker_needs_python_and_nothing_else(copied: Path) -> None:
    """Its files import each other and the standard library; it reads every proof, and names one that it refuses."""
    for path in sorted((copied / "checker").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for root in (name.partition(".")[0] for name in names):
                assert root in sys.stdlib_module_names or (copied / "checker" / f"{root}.py").is_file()
    done = _read_alone(copied)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 proofs, 0 refused\n", "")
    shutil.copy(copied / OTHER, copied / PROOF)
    done = _read_alone(copied)
    assert (done.returncode, done.stdout) == (1, "3 proofs, 1 refused\n")
    assert f"{copied / PROOF}: not checked: " in done.stderr
    (copied / GOAL).unlink()
    assert "not to be read" in _read_alone(copied).stderr


def test_a_folder_without_proofs_is_no_evidence(tmp_path: Path) -> None:
    """The script does not succeed where it read nothing."""
    (tmp_path / "checker").mkdir()
    for path in Path(checker.__file__).parent.glob("[a-z]*.py"):
        text = path.read_text().replace(f"{checker.__name__}.", "")
        (tmp_path / "checker" / path.name).write_text(text)
    done = _read_alone(tmp_path)
    assert (done.returncode, done.stdout) == (1, "0 proofs, 0 refused\n")


def _rewrite(directory: Path, change: Callable[[Manifest], Any]) -> None:
    """The manifest says something else of the proofs, and everything beside it agrees."""
    said = certificate.read(directory)
    changed = msgspec.structs.replace(said, proofs=change(said))
    for name, content in companions(changed).items():
        (directory / name).write_bytes(content)


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
def test_an_edited_proof_is_refused(copied: Path, change: Callable[[bytes], bytes], why: str) -> None:
    """Also where its hash was edited with it: the steps themselves do not show the goal any more."""
    changed = change((copied / PROOF).read_bytes())
    (copied / PROOF).write_bytes(changed)
    found = certificate.check_certificate(copied, few)
    assert f"{PROOF}: changed since the manifest was written" in found.problems
    _rewrite(copied, lambda said: {**said.proofs, PROOF: sha256(changed)})
    (problem,) = certificate.check_certificate(copied, few).problems
    assert problem.startswith(f"{PROOF}: not checked: ")
    assert why in problem


def test_a_removed_proof_costs_the_level(copied: Path) -> None:
    """The file alone is missed; gone from the manifest as well, the theorem is shown by two solvers only."""
    (copied / PROOF).unlink()
    found = certificate.check_certificate(copied, few)
    assert found.problems == (f"{PROOF}: missing",)
    assert found.evidence == ()
    _rewrite(copied, lambda said: {path: value for path, value in said.proofs.items() if path != PROOF})
    found = certificate.check_certificate(copied, few)
    assert found.problems == ()
    assert str(found.evidence[0]) == "D-gate                  two solvers     2 of 3 goals"


def test_a_proof_beside_no_goal_is_no_certificate(copied: Path) -> None:
    """A path that is no goal's is not followed."""
    _rewrite(copied, lambda said: {**said.proofs, "../elsewhere.cpc.gz": sha256(b"")})
    with pytest.raises(ValueError, match="beside no goal"):
        certificate.check_certificate(copied, few)


def test_another_checker_is_seen(copied: Path) -> None:
    """One that accepts everything is not the one that belongs there."""
    (copied / "checker" / "proof.py").write_text("print('3 proofs, 0 refused')\n")
    assert certificate.check_certificate(copied, few).problems == (
        "checker/proof.py: not what belongs to this manifest",
    )


def test_proofs_go_with_their_certificate(copied: Path) -> None:
    """Written again, nothing of an earlier one is left, and without proofs no theorem has more than two solvers."""
    gate = attrs.evolve(few("dlpm", DEPLOYMENT), theorems=())
    certificate.write_certificate(copied, run("0", [gate], DEPLOYMENT, self_checks=False), DEPLOYMENT)
    assert not (copied / "D-gate").exists()
    assert certificate.read(copied).proofs == {}
    assert (copied / MANIFEST).is_file()


def _written_again(directory: Path) -> None:
    gate = attrs.evolve(few("dlpm", DEPLOYMENT), theorems=few("dlpm", DEPLOYMENT).theorems[:1])
    certificate.write_certificate(directory, run("0", [gate], DEPLOYMENT, self_checks=False), DEPLOYMENT)


def test_proofs_of_the_same_goals_stay(copied: Path) -> None:
    """A certificate that is written again has the proofs of goals whose words did not change, but for edited ones."""
    had = certificate.read(copied).proofs
    (copied / OTHER).write_bytes((copied / PROOF).read_bytes())
    _written_again(copied)
    assert certificate.read(copied).proofs == {path: value for path, value in had.items() if path != OTHER}
    assert not (copied / OTHER).exists()
    assert certificate.check_certificate(copied, few).problems == ()


def test_what_was_stopped_goes_on(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs that were written count if the next goal is interrupted, and only those that are missing are written."""
    had = certificate.read(copied).proofs
    _rewrite(copied, lambda said: {})
    for path in had:
        (copied / path).unlink()
    asked, told = list[str](), list[tuple[str, int, int]]()

    def second_is_stopped(text: str) -> tuple[bytes, str]:
        asked.append(text)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return checked_proof(text)

    monkeypatch.setattr("fairsched.verify.solvers.checked_proof", second_is_stopped)
    with pytest.raises(KeyboardInterrupt):
        certificate.write_proofs(copied, progress=lambda *each: told.append(each))
    assert [each[1:] for each in told] == [(0, 3), (1, 3)]
    assert certificate.check_certificate(copied, few).problems == ()
    assert len(certificate.read(copied).proofs) == 1
    assert certificate.write_proofs(copied) == (Goals(3, 3), {})
    assert len(set(asked)) == len(had)
    assert len(asked) == len(had) + 1
    assert certificate.read(copied).proofs == had


def test_the_command_says_how_many_goals_have_a_proof(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where all have one already it says so at once, and how to read them."""
    assert main(["verify", "--prove", str(copied), "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 goals have a proof that the checker accepts" in shown
    assert "checker/proof.py" in shown


def test_a_goal_without_a_proof_is_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is given, and the theorem stands at what two solvers say."""
    _rewrite(copied, lambda said: {path: value for path, value in said.proofs.items() if path != PROOF})
    monkeypatch.setattr("fairsched.verify.solvers.checked_proof", lambda _: (b"", "no time"))
    assert certificate.write_proofs(copied) == (Goals(3, 2), {GOAL: "no time"})


def test_a_theorem_is_shown_no_better_than_what_it_rests_on() -> None:
    """One goal without a proof takes down its theorem and those that rest on it, and no others."""
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
    assert changed == {base, *(row.theorem.id for row in rows if base in _below(row, rows))}


def _below(row: Any, rows: Any) -> set[str]:
    by_id = {each.theorem.id: each for each in rows}
    own = {name for name in row.theorem.rests_on if name in by_id}
    return own.union(*(_below(by_id[name], rows) for name in own))
