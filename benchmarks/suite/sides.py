"""Runs the sides of a figure in turns: our tree, the pinned twin (our own code of an earlier commit), and peers.

Each side is a process that prepares its work once and then does it when it is asked to, so that no side meets another's
memory or caches.  All are bound to one core.  In a round each does its work once, and the first of a round is the next
side of the round before.  Ours and the twin's run the same benchmark, which is that of this tree.
"""

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.suite.history import OURS

ROOT = Path(__file__).parents[2]
MODULES = ("simulator", "decisions", "prefix_tree", "e2", "d2lpm", "batch")
"""The benchmarks that have `FIGURES`, in the order of the page."""
PINNED = "169d13da"
"""The commit of the pinned twin.  A newer one begins new series: it is the way to accept that something is slower, or
that the benchmarks need code that the old one does not have."""
TWIN = f"twin {PINNED}"
DISTRIBUTIONS = {"Dynamo's mocker": "ai-dynamo-runtime", "Ray's prefix tree": "ray"}
"""Where the versions of peers are found."""
ABSENT = "absent"

Work = Callable[[], float]
"""Does a piece of work and returns microseconds of CPU time."""
Figures = dict[str, dict[str, Callable[[], Work | None]]]


def figures_of(module: str) -> Figures:
    """Return the figures of a benchmark."""
    return dict(importlib.import_module(module).FIGURES)


def checkout(commit: str) -> Path:
    """Return a folder with the files of a commit, which is written once."""
    folder = ROOT / "out" / "commits" / git("rev-parse", commit)
    if not folder.exists():
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(partial)], input=archive, check=True)
        partial.rename(folder)
    return folder


def git(*words: str) -> str:
    """Return what git says about this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


class Side:
    """A process that waits for its turn."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def run(self) -> float:
        """Do the work once: microseconds of CPU time."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        """Return the next line that the process says; what ended it is the error."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}")
        return line


@contextmanager
def started(tree: Path, module: str, figure: str, side: str) -> Iterator[Side | None]:
    """Start a side on the package of a tree and wait until its work is prepared; None where it is not here."""
    command = [sys.executable, "-m", "benchmarks.suite.sides", module, figure, side]
    with subprocess.Popen(
        command, env=environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            found = Side(process)
            package = found.answer()
            if package != ABSENT:
                check_package(package, tree)
            yield None if package == ABSENT else found
        finally:
            process.terminate()


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a process that imports the package of a tree, and the benchmarks of this one."""
    path = [tree / "src", ROOT, *paths(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}


def check_package(package: str, tree: Path) -> None:
    """Raise `RuntimeError` if the package that a process imported is not that of the tree."""
    if tree not in Path(package).parents:
        raise RuntimeError(f"{package} was imported instead of the package in {tree}")


def paths() -> list[Path]:
    """Return the folders in which the benchmarks lie."""
    return [ROOT / "benchmarks", ROOT / "benchmarks" / "gateway"]


def measured(module: str, figure: str, sides: list[str], ours: Path, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of each round by side; a side that is not here, or fails, is left out and named.

    Args:
        module: the benchmark.
        figure: one of its figures.
        sides: the sides that it has, and `TWIN`.
        ours: the tree that is measured.
        rounds: how often each side has its turn, after one turn that does not count.

    Raises:
        RuntimeError: our own side fails.
    """
    with ExitStack() as stack:
        running: dict[str, Side] = {}
        for side in sides:
            try:
                tree = checkout(PINNED) if side == TWIN else ours
                found = stack.enter_context(started(tree, module, figure, OURS if side == TWIN else side))
                if found is not None:
                    found.run()
                    running[side] = found
            except (RuntimeError, subprocess.CalledProcessError) as error:
                if side == OURS:
                    raise
                print(f"{figure}: {side} is left out: {error}", file=sys.stderr)
        if OURS not in running:
            return {}
        us: dict[str, list[float]] = {side: [] for side in running}
        names = list(running)
        for turn in range(rounds):
            first = turn % len(names)
            for side in names[first:] + names[:first]:
                us[side].append(running[side].run())
    return us


def versions(sides: list[str]) -> dict[str, str]:
    """Return the versions of the peers that come from a distribution."""
    found = {}
    for side in sides:
        try:
            found[side] = version(DISTRIBUTIONS.get(side, ""))
        except (PackageNotFoundError, ValueError):
            continue
    return found


def serve(module: str, figure: str, side: str) -> None:
    """Be a side: prepare, say where the package lies, and do the work for each line that is read."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what peers print
    work = figures_of(module)[figure][side]()
    if work is None:
        said.write(f"{ABSENT}\n")
        return
    said.write(f"{sys.modules['fairsched'].__file__}\n")
    for _ in sys.stdin:
        gc.collect()
        said.write(f"{work():.4f}\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
