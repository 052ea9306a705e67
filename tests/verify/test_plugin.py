"""`pytest --theorems` in another project: a test a theorem, a table, a file; nothing at all without it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairsched.verify import plugin

ROOT = Path(__file__).parents[2]
AUTHORS = Path(__file__).parents[1] / "support" / "authors"


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that is no part of this project."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])}
    program = [sys.executable, *arguments]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Named, and not by its entry point, so that it is loaded once whether or not the package is installed.
    loaded = ["-p", "no:fairsched", "-p", "fairsched.verify.plugin", "-p", "no:cacheprovider"]
    return _python(folder, "-m", "pytest", *loaded, "--rootdir", str(folder), *arguments)


def test_the_plugin_is_declared() -> None:
    """An installed package has the flag."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"fairsched": plugin.__name__}


def _project(folder: Path) -> Path:
    """A folder with the two authors' files and nothing else."""
    for name in ("allowance.py", "least_served.py"):
        (folder / name).write_text((AUTHORS / name).read_text())
    return folder


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and what was printed, after all theorems were decided there once."""
    project = _project(tmp_path_factory.mktemp("project"))
    done = _pytest(project, "--theorems", "allowance.py", "least_served.py")
    assert done.returncode == 1, done.stdout + done.stderr
    return project, done.stdout


def _verdicts(project: Path) -> dict[tuple[str, str], str]:
    rows = json.loads((project / "theorems.json").read_text())["theorems"]
    return {(row["policy"], row["id"]): row["verdict"] for row in rows}


RETURNS = ("return-debt", "return-credit")
ALLOWANCE = {("Allowance", name): "proved" for name in ("gate", "always", "progress", "gap", *RETURNS)}


def test_each_theorem_is_a_test(proved: tuple[Path, str]) -> None:
    """Proved passes, refuted fails with its run, and what rests on a refuted theorem is not called proved."""
    project, printed = proved
    assert "7 passed" in printed
    assert "4 failed" in printed
    assert "-> admit the last that waits" in printed
    assert "gap rests on always, which is not proved" in printed
    verdicts = _verdicts(project)
    assert verdicts == {
        **ALLOWANCE,
        ("LeastServed", "gate"): "proved",
        ("LeastServed", "always"): "refuted",
        ("LeastServed", "progress"): "unknown",
        ("LeastServed", "gap"): "unknown",
        ("LeastServed", "return-debt"): "unknown",
    }
    table = printed[printed.index("= theorems =") :]
    assert all(policy in table and verdict in table for (policy, _), verdict in verdicts.items())


def test_rows_come_from_other_processes(tmp_path: Path) -> None:
    """The file has what each process of pytest-xdist decided."""
    done = _pytest(_project(tmp_path), "--theorems", "-n", "2", "allowance.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _verdicts(tmp_path) == ALLOWANCE


def test_the_counterexample_is_kept_and_replays(proved: tuple[Path, str]) -> None:
    """The command that the failure prints runs it again."""
    project, printed = proved
    commands = [line.split()[1:] for line in printed.splitlines() if line.startswith("fairsched verify --replay ")]
    replayed = [_python(project, "-m", "fairsched", *command) for command in commands]
    assert all(done.returncode == 0 for done in replayed), [done.stderr for done in replayed]
    assert any("broken there: close" in done.stdout for done in replayed), printed


def test_without_the_flag_nothing_is_collected_or_imported(tmp_path: Path) -> None:
    """No theorem, no file, and no solver in the process."""
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\n\ndef test_no_solver():\n"
        "    assert not {'z3', 'cvc5', 'hypothesis', 'numpy'} & set(sys.modules)\n"
    )
    done = _pytest(_project(tmp_path), "-p", "no:hypothesispytest", "test_nothing.py")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert not (tmp_path / "theorems.json").exists()
