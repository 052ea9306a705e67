"""The mutation run over the code around the kernels: `python -m tests.verify.mutation.run`, or `make mutation`.

Each change that `code` makes is run in a process of its own, forked after all tests were
collected, with those tests that call the changed function, until one fails: first those that noticed most of the
changes so far for the time that they take, then the quickest.  A change that no test notices is kept by name.
`same.toml` lists changes that change no decision, charge or bound, each with the reason.  What was
found is written to `verify/mutation/code.json`, which `fairsched verify` shows.  `--keep kernels` writes what became of
the mutants of kernels, prices and claims to `verify/mutation/kernels.json` for it, in place of all that.
"""

import argparse
import json
import os
import resource
import signal
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import msgspec
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from fairsched.verify.conformance.strategies import REDUCED
from fairsched.verify.mutation import mutation_tasks
from fairsched.verify.mutation.kernels import fresh_rows
from fairsched.verify.mutation.mutants import KEPT, KeptRows, rested_on, text_of
from fairsched.verify.solvers import pool
from tests.verify.mutation.code import CodeMutant, code_mutants, same_changes

ROOT = Path(__file__).parents[3]
FOUND = ROOT / "verify/mutation/code.json"
_HELD = ["tests/policies/guarantees/test_relation.py", "tests/policies/guarantees/test_bounds.py"]
_MONITORS = ["tests/model/monitor", "tests/policies/gates/test_refunds.py", "tests/policies/gates/test_in_batch.py"]
SHOULD_NOTICE = {
    "gates": ["tests/policies/gates", *_HELD, "tests/policies/local/test_accounts.py"],
    "guarantees": [
        "tests/policies/guarantees",
        *_MONITORS,
        "tests/policies/gates/test_elastic_cap.py",
        "tests/verify/conformance/test_gate_monitor.py",
        "tests/verify/proofs/test_window.py",
        "tests/engines/gateway/window/test_estimates.py",
        "tests/engines/gateway/window/test_window.py",
    ],
    "local": [
        *("tests/policies/local", *_HELD, "tests/policies/gates/test_accounts.py"),
        *("tests/policies/gates/test_in_batch.py", "tests/policies/gates/test_shared.py"),
        "tests/policies/gates/test_elastic_cap.py",
        *("tests/policies/offline/test_batchllm.py", "tests/policies/orders/test_predicted_batches.py"),
    ],
    "worker": [
        "tests/model/worker",
        "tests/policies/local/test_local.py",
        "tests/policies/local/test_swapping.py",
        "tests/policies/local/test_adapters.py",
        "tests/engines/simulation/test_simulator.py",
        *_HELD,
    ],
    "accounts": ["tests/model/test_service.py", "tests/model/test_ideal.py", *_MONITORS, *_HELD],
    "gateway": ["tests/engines/gateway/window"],
}
"""The quick tests that should notice a change, by the area that it is in; `--tests` names others."""
AREAS = {
    "gates": ("policies/gates/**/*.py", "policies/vectors.py"),
    "guarantees": ("policies/guarantees/*.py",),
    "local": ("policies/local/*.py",),
    "worker": ("model/worker/*.py",),
    "accounts": ("model/service/*.py", "model/monitor/*.py"),
    "gateway": ("engines/gateway/window/*.py",),
}
"""The code around the kernels, in order of danger."""
_FORKING_S = 0.05
"""What is spent on a test beside its own time, about."""
LONGEST_S = 600.0
"""No change is run longer than so, nor longer than ten times what its tests take."""
MEMORY_BYTES = 6 << 30
QUIETLY = [
    "-q",
    "-s",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]
"""The modules are imported before pytest could rewrite their assertions."""
QUICK = ["-m", "not nightly"]
"""Batteries are too slow to be run for each change."""


@attrs.define
class Running:
    """A child process that runs one change."""

    mutant: CodeMutant
    deadline: float
    noticed_by: int
    """The pipe into which it writes the number of the test that failed."""


@attrs.define
class MutationRun:
    """A plugin of pytest: in place of the tests it runs the changes."""

    modules: list[str]
    jobs: int
    every: int
    seconds: float
    on_found: Callable[[dict[str, dict[str, Any]]], None]
    found: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    problem: str = ""
    noticed: Counter[int] = attrs.field(factory=Counter)
    """How many changes each test was the first to notice."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every change of every module."""
        files = {str(Path(str(sys.modules[name].__file__)).resolve()) for name in self.modules}
        calls, seconds, failed = _recorded(session.items, files)
        if failed:
            self.problem = f"tests fail without any change: {', '.join(failed)}"
            return True
        for module in self.modules:
            self._module(module, session.items, calls, seconds)
        return True

    def _module(self, module: str, items: list[pytest.Item], calls: dict[str, set[int]], seconds: list[float]) -> None:
        begun = time.monotonic()
        known, fates = same_changes(), dict[str, str]()
        running: dict[int, Running] = {}
        for number, mutant in enumerate(code_mutants(module)):
            if number % self.every:
                continue
            if mutant.change in known.get(f"{module}.{mutant.function}", {}):
                fates[mutant.name] = "same"
                continue
            tests = sorted(
                calls.get(f"{module}.{mutant.function}", ()),
                key=lambda i: (-self.noticed[i] / (seconds[i] + _FORKING_S), seconds[i], i),
            )
            spent = list(accumulate(seconds[i] for i in tests))
            tests = tests[: max(bisect_right(spent, self.seconds), 1)]
            if not tests:
                fates[mutant.name] = "unreached"
                continue
            while len(running) >= self.jobs:
                self._reap(running, fates)
            limit = min(LONGEST_S, 20.0 + 10.0 * sum(seconds[i] for i in tests))
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                _child(mutant, {i: items[i] for i in tests}, writing)
            os.close(writing)
            running[child] = Running(mutant, time.monotonic() + limit, reading)
        while running:
            self._reap(running, fates)
        self.found[module] = _entry(module, fates, self.every, time.monotonic() - begun)
        self.on_found({module: self.found[module]})

    def _reap(self, running: dict[int, Running], fates: dict[str, str]) -> None:
        """Take the children that are done; one that takes too long is ended, which a test would notice, too."""
        for child, each in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            late = not done and time.monotonic() > each.deadline
            if late:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if done or late:
                fates[each.mutant.name] = "slow" if late else "noticed" if status else "unnoticed"
                with os.fdopen(each.noticed_by) as pipe:
                    self.noticed.update(int(test) for test in pipe.read().split())
                del running[child]
                return
        time.sleep(0.002)


def _entry(module: str, fates: dict[str, str], every: int, seconds: float) -> dict[str, Any]:
    def count(*which: str) -> int:
        return sum(fate in which for fate in fates.values())

    file = f"{module.removeprefix('fairsched.').replace('.', '/')}.py"
    return {
        "file": file,
        "text": text_of(ROOT / file),
        "mutants": len(fates),
        "noticed": count("noticed", "slow"),
        "same": count("same"),
        "slow": count("slow"),
        "every": every,
        "seconds": round(seconds),
        "unnoticed": sorted(name for name, fate in fates.items() if fate == "unnoticed"),
        "unreached": sorted(name for name, fate in fates.items() if fate == "unreached"),
    }


def _child(mutant: CodeMutant, items: dict[int, pytest.Item], writing: int) -> None:
    """Run the tests under the change, and exit with 1 when one fails, whose number is written; never returns."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        with mutant.running():
            failed = next((i for i, item in items.items() if _fails(item)), None)
        if failed is None:
            status = 0
        else:
            os.write(writing, str(failed).encode())
    finally:
        os._exit(status)


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _recorded(items: list[pytest.Item], files: set[str]) -> tuple[dict[str, set[int]], list[float], list[str]]:
    """Which tests call each function of these files, how long each takes, and which fail, found out in a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(list(_profiled(items, files)), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = json.load(pipe)
    os.waitpid(child, 0)
    calls: dict[str, set[int]] = {}
    for i, (_, names, _) in enumerate(said):
        for name in names:
            calls.setdefault(name, set()).add(i)
    return calls, [seconds for seconds, _, _ in said], [items[i].nodeid for i, each in enumerate(said) if each[2]]


def _profiled(items: list[pytest.Item], files: set[str]) -> Iterator[tuple[float, list[str], bool]]:
    called: set[str] = set()
    of_file: dict[str, str | None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        file = code.co_filename
        if file not in of_file:
            of_file[file] = frame.f_globals.get("__name__") if str(Path(file).resolve()) in files else None
        module = of_file[file]
        if module:
            called.add(f"{module}.{code.co_qualname.split('.<locals>')[0]}")

    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)
    for item in items:
        called.clear()
        begun = time.process_time()
        sys.setprofile(profile)
        failed = _fails(item)
        sys.setprofile(None)
        yield time.process_time() - begun, sorted(called), failed


def modules_of(area: str) -> list[str]:
    """The modules of an area that have functions to change."""
    paths = sorted(path for pattern in AREAS[area] for path in ROOT.glob(pattern) if path.name != "__init__.py")
    return [".".join(("fairsched", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths]


def main(arguments: list[str] | None = None) -> int:
    """Run the changes of some areas or modules, and keep what was found."""
    parser = argparse.ArgumentParser(description="Mutation of the code around the kernels.")
    parser.add_argument("only", nargs="*", help="areas or modules (all by default)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--every", type=int, default=1, help="each so many-th change only")
    parser.add_argument("--seconds", type=float, default=LONGEST_S, help="of processor time for tests of a change")
    parser.add_argument("--tests", nargs="+", default=[], help="files or folders of tests, in place of the quick ones")
    parser.add_argument("--keep", action="store_true", help="write what was found beside the code")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    if options.only == ["kernels"]:
        return _kernels(options.jobs)
    quick = settings(
        settings.get_profile(REDUCED), phases=(Phase.explicit, Phase.generate), database=None, derandomize=True
    )
    settings.register_profile(REDUCED, quick)
    status = 0
    for area in AREAS:
        names = modules_of(area)
        if options.only and area not in options.only:
            names = [name for name in names if name.removeprefix("fairsched.") in options.only]
        if not names:
            continue
        for name in names:
            __import__(name)
        run = MutationRun(names, options.jobs, options.every, options.seconds, partial(_found, options))
        paths = options.tests or SHOULD_NOTICE[area]
        pytest.main([*paths, *QUIETLY, *QUICK], plugins=[run])
        if run.problem or not run.found:
            sys.stderr.write(f"{run.problem or 'nothing was run'}\n")
            status = 1
    return status


def _kernels(jobs: int) -> int:
    """Find the fates of all mutants of kernels, prices and claims anew, and keep them if none is unknown."""
    tasks, text = mutation_tasks(), rested_on()
    with pool(jobs) as executor:
        rows = dict(zip(map(" ".join, tasks), executor.map(fresh_rows, tasks), strict=True))
    rested_on.cache_clear()
    unknown = [each.kernel for of in rows.values() for each in of if each.unknown]
    if unknown or rested_on() != text:
        sys.stderr.write(f"not kept: {', '.join(unknown) or 'a file was changed meanwhile'}\n")
        return 1
    KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(KeptRows(text, rows)), indent=1) + b"\n")
    return 0


def _found(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    """Say what became of the changes of a module, and keep it."""
    lines = []
    for module, entry in found.items():
        noticed, same = f"{entry['noticed']} of {entry['mutants']} noticed", f"{entry['same']} the same"
        lines.append(f"{module}: {noticed}, {same}, {entry['seconds']} s")
        lines += [f"{fate}: {name}" for fate in ("unnoticed", "unreached") for name in entry[fate]]
    os.write(2, ("\n".join(lines) + "\n").encode())
    if not options.keep:
        return
    before = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    day = datetime.now(UTC).date().isoformat()
    command = f"make mutation ARGS='{' '.join(sys.argv[1:])}'".replace(" ARGS=''", "")
    for name, entry in found.items():
        before[name] = {"date": day, "command": command, **entry}
    FOUND.write_text(json.dumps(dict(sorted(before.items())), indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
