"""What is shipped: sdist and wheel hold all of the package and no more, and the main job runs on what is declared."""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fairsched

ROOT = Path(__file__).parents[1]
PACKAGES = ("model", "policies", "verify", "engines")
NOT_SOURCE = shutil.ignore_patterns(".*", "out", "build", "dist", "*.egg-info", "__pycache__")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist, of a copy of this tree; needs no network."""
    tree = shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "fairsched", symlinks=True, ignore=NOT_SOURCE)
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


def package_files() -> set[str]:
    """Every file a distribution must hold, as a path inside it."""
    ours = ROOT / "src" / "fairsched"
    files = [*ours.glob("*.py")]
    files += [path for name in ("cli", "reproduce", "integrations") for path in (ours / name).rglob("*.py")]
    own = [path.relative_to(ROOT / "src") for path in files]
    kinds = (".py", ".json", ".toml", ".html", ".js")
    found = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in kinds]
    layers = [Path("fairsched", path.relative_to(ROOT)) for path in found]
    return {path.as_posix() for path in [*own, *layers]} | {"fairsched/py.typed"}


def test_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """The wheel has one top-level name, every module of all four packages, `py.typed` and no test."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        info = path.name.removesuffix("-py3-none-any.whl") + ".dist-info"
        metadata = wheel.read(f"{info}/METADATA").decode()
    assert names == package_files()
    assert all(f"fairsched/{name}/__init__.py" in names for name in PACKAGES)
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "License-File: LICENSE\n" in metadata


def test_sdist_holds_the_package_as_files(built: Path) -> None:
    """The sdist has every module as a plain file (a link would not survive), the licence and no test."""
    (path,) = built.glob("*.tar.gz")
    root = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as sdist:
        members = sdist.getmembers()
    names = {member.name.removeprefix(f"{root}/") for member in members if member.isfile()}
    assert all(member.isfile() or member.isdir() for member in members)
    assert {name.removeprefix("src/") for name in names if name.startswith("src/fairsched/")} == package_files()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not [name for name in names if "tests" in name.split("/") or name.split("/")[0] in PACKAGES]


def test_version_is_the_distributions() -> None:
    """`fairsched.__version__` is the installed version, and no other lazy attribute is made up."""
    assert fairsched.__version__ == importlib.metadata.version("fairsched")
    assert not hasattr(fairsched, "no_such_name")


def declared(extra: str) -> set[str]:
    """Canonical names of the distributions that `pip install fairsched[extra]` brings, fairsched included."""
    found: set[str] = set()
    waiting = [("fairsched", extra)]
    while waiting:
        name, wanted = waiting.pop()
        if (key := canonicalize_name(name)) in found:
            continue
        found.add(key)
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                waiting.append((requirement.name, ""))
    return found


def undeclared_modules(extra: str) -> list[str]:
    """Top-level modules installed here that `fairsched[extra]` would not bring."""
    allowed = declared(extra)
    return sorted(
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if allowed.isdisjoint(map(canonicalize_name, owners))
    )


BLOCKED_RUN = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(","), None))  # importing any of these now fails
from fairsched.cli import main
sys.argv[0] = "fairsched"
sys.exit(main())
"""


def test_main_job_needs_only_what_it_declares(tmp_path: Path) -> None:
    """`fairsched compare` with a report runs on the `cli` extra alone: no solver, no torch, no test tool."""
    blocked = undeclared_modules("cli")
    assert {"z3", "cvc5", "hypothesis", "pytest"} <= set(blocked)
    command = [sys.executable, "-c", BLOCKED_RUN, ",".join(blocked)]
    command += ["compare", "--limit", "50", "--report", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "report").glob("*.html"))
