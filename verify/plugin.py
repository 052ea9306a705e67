"""pytest collects theorems: with ``--theorems`` every class that has `claims` gives one test a theorem.

A test fails when its theorem is refuted, with the counterexample as a run that can be replayed, or not decided.  The
terminal summary shows all of them in a table, and a file has them as JSON.  Nothing of this is imported, no solver
least of all, until ``--theorems`` is given.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = "theorems.json"
_KEY = "fairsched_theorem"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fairsched", "theorems about scheduling policies")
    group.addoption("--theorems", action="store_true", help="prove the theorems of every class that has claims")
    group.addoption(
        "--theorems-json", metavar="FILE", default=FILE, help="where they are listed (default: %(default)s)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Join in only if asked."""
    if config.getoption("theorems"):
        config.pluginmanager.register(Theorems(Path(config.getoption("theorems_json"))), "fairsched-theorems")


class Theorems:
    """Collects theorems and reports what became of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[str] = []

    @pytest.hookimpl
    def pytest_pycollect_makeitem(self, collector: pytest.Module | pytest.Class, name: str, obj: object) -> Any:
        """Return the theorems of a class that its module defines; anything else is left to pytest."""
        if (
            not inspect.isclass(obj)
            or obj.__module__ != collector.obj.__name__
            or not callable(getattr(obj, "claims", 0))
        ):
            return None
        return PolicyNode.from_parent(collector, name=name, policy=obj)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a theorem's row; it comes with the report, which may be from another process."""
        if report.when == "call":
            self._rows += [str(value) for key, value in report.user_properties if key == _KEY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, and write the file."""
        rows = [json.loads(row) for row in self._rows]
        self._path.write_text(json.dumps({"theorems": rows}, indent=2) + "\n")
        if rows:
            terminalreporter.section("theorems")
            for line in _table(rows):
                terminalreporter.write_line(line)
        terminalreporter.write_line(f"{len(rows)} theorems in {self._path}")


class PolicyNode(pytest.Collector):
    """A class with claims."""

    def __init__(self, *, policy: Any, **of: Any) -> None:
        super().__init__(**of)
        self.policy = policy

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one test a claim; those that others rest on come first, as the class lists them."""
        for claim in self.policy.claims():
            yield TheoremItem.from_parent(self, name=claim.theorem.id, claim=claim)


class TheoremFailure(Exception):
    """A theorem that is not proved."""


class TheoremItem(pytest.Item):
    """One theorem."""

    def __init__(self, *, claim: Any, **of: Any) -> None:
        super().__init__(**of)
        self.claim = claim
        self.policy: Any = getattr(self.parent, "policy", None)

    def runtest(self) -> None:
        """Decide it; raises `TheoremFailure` unless it is proved, and what it rests on, too."""
        from fairsched.verify.report import below, fallen
        from fairsched.verify.solvers import Task, decide

        theorem, where = self.claim.theorem, f"{self.policy.__module__}:{self.policy.__qualname__}"
        decision = decide(Task(where, theorem.id, quick=True))
        said, why = decision.verdict, decision.why
        if said == "proved":
            # What it rests on is decided here too, since that test may run elsewhere.
            theorems = {claim.theorem.id: claim.theorem for claim in self.policy.claims()}
            needed = [name for name in below(theorem, theorems.values()) if name in theorems]
            verdicts = {name: decide(Task(where, name, quick=True)).verdict for name in needed}
            why = fallen(theorem, theorems.values(), verdicts)
            said = "unknown" if why else said
        row = {
            "policy": self.policy.__name__,
            "id": theorem.id,
            "statement": theorem.statement,
            "verdict": said,
            "scope": theorem.scope.value,
            "bound": theorem.bound,
            "assumptions": [assumption.name for assumption in theorem.assumptions],
            "ms": round(decision.ms, 1),
        }
        self.user_properties.append((_KEY, json.dumps(row)))
        if said not in ("proved", "tested"):
            shown = self._replayed(decision.counterexample) if decision.counterexample else []
            fell = decision.verdict == "proved"
            raise TheoremFailure(
                "\n".join([*shown, f"{theorem.id} {why}" if fell else f"{theorem.id} is {said}: {why}"])
            )

    def _replayed(self, document: bytes) -> list[str]:
        """Return the run from the start that breaks it, or else the step that does; saved."""
        from fairsched.verify.logic import replay_saved

        folder = Path(self.config.getoption("theorems_json")).parent / "counterexamples"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.policy.__name__}-{self.claim.theorem.id}.json"
        path.write_bytes(document)
        replayed = replay_saved(path)
        return [replayed.text() if replayed else "", "", f"fairsched verify --replay {path}"]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what broke, without a traceback through the library."""
        if isinstance(excinfo.value, TheoremFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the class is."""
        return self.path, None, f"{self.policy.__name__}: {self.claim.theorem.statement}"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [("policy", "theorem", "verdict", "scope", "ms", "statement")]
    cells += [(r["policy"], r["id"], r["verdict"], r["scope"], f"{r['ms']:.0f}", r["statement"]) for r in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    for row in cells:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[5]]).rstrip()
