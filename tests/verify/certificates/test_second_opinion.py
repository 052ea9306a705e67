"""The second opinion agrees with a certificate, and says where one was altered, however well it was signed again."""

import json
import re
import runpy
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import pytest

from fairsched.policies.catalog import DLPM
from fairsched.verify.report import certificate
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import subject
from fairsched.verify.report.values import run

pytestmark = pytest.mark.kept

PROGRAM = Path(__file__).parents[3] / "docs" / "examples" / "second_opinion.py"
DEPLOYMENT = read({"kv_capacity_tokens": 4_096, "max_output_tokens": 2_000})
BOUND = 2 * (4_096 + 2 * 4_096 - 1 - 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of two theorems about DLPM."""
    whole, folder = subject("dlpm", DLPM()), tmp_path_factory.mktemp("certificate") / "dlpm"
    few = attrs.evolve(whole, theorems=tuple(each for each in whole.theorems if each.id in ("D-gate", "D-4.1")))
    certificate.write_certificate(folder, run("0", [few], DEPLOYMENT, self_checks=False), DEPLOYMENT)
    return folder


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy to alter."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def opinion(folder: Path) -> list[str]:
    """What the program disagrees about."""
    found: Iterator[str] = runpy.run_path(str(PROGRAM))["disagreements"](folder)
    return list(found)


def signed(folder: Path, bound: int = BOUND) -> None:
    """Sign the questions as they are now, and this number of D-4.1."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    for path, asked in manifest["files"].items():
        asked["sha256"] = sha256((folder / path).read_bytes()).hexdigest()
    next(each for each in manifest["certificates"][0]["theorems"] if each["id"] == "D-4.1")["bound_cost"] = bound
    (folder / "manifest.json").write_text(json.dumps(manifest))
    named = ("manifest.json", "expected.txt", *manifest["files"])
    sums = "".join(f"{sha256((folder / path).read_bytes()).hexdigest()}  {path}\n" for path in named)
    (folder / "checksums.txt").write_text(sums)


def test_it_agrees_with_what_was_written(copied: Path) -> None:
    """As it was written, and signed again."""
    assert opinion(copied) == []
    signed(copied)
    assert opinion(copied) == []


def test_it_shares_no_code_with_what_it_judges() -> None:
    """It imports nothing of `fairsched.verify`, and has at most 200 lines."""
    lines = PROGRAM.read_text().splitlines()
    assert len(lines) <= 200
    assert not [line for line in lines if re.match(r"\s*(from|import) fairsched\.verify", line)]


def test_it_tells_another_sum(copied: Path) -> None:
    """One digit of one sum."""
    path, text = copied / "checksums.txt", (copied / "checksums.txt").read_text()
    path.write_text(("1" if text[0] == "0" else "0") + text[1:])
    assert opinion(copied) == ["manifest.json: not the file of checksums.txt"]


@pytest.mark.parametrize(("about", "says"), [("goal", "sat"), ("hypotheses", "unsat")])
def test_it_tells_another_question(copied: Path, about: str, says: str) -> None:
    """A goal that asks nothing, and hypotheses that nothing fulfils, both signed."""
    question = f"D-4.1/conclusion.{about}.smt2"
    text = (copied / question).read_text()
    kept = re.sub(r"^\(assert .*$", "", text, flags=re.MULTILINE)
    (copied / question).write_text(
        kept if about == "goal" else text.replace("(check-sat)", "(assert false)(check-sat)")
    )
    signed(copied)
    (found,) = opinion(copied)
    assert found.startswith(question)
    assert f"a solver says {says}" in found


@pytest.mark.parametrize("bound", [BOUND + 1, BOUND - 1, 8_000])
def test_it_tells_another_number(copied: Path, bound: int) -> None:
    """By its own arithmetic; and a run of the shipped policy is over one that is much too small."""
    signed(copied, bound)
    wrong = opinion(copied)
    assert wrong[0] == f"dlpm: D-4.1 is {BOUND:,} here, and {bound:,} is certified"
    assert [each for each in wrong[1:] if each.startswith("dlpm: D-4.1 is broken")] == wrong[1:]
    assert len(wrong) == (2 if bound < BOUND - 1 else 1)
