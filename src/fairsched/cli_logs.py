"""`fairsched replay` and `fairsched explain`: read the event log of a run, or run a saved counterexample again."""

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairsched.cli_common import policy_of
from fairsched.engines.explain import explain
from fairsched.engines.log_file import LogHeader
from fairsched.engines.replay import replay
from fairsched.policies.base import LocalPolicy
from fairsched.verify import counterexample

if TYPE_CHECKING:
    from fairsched.verify.world_file import WorldReplay

DIFFERENT = 1
"""Exit status when a replay is not equal to its log."""


def add_replay(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "replay",
        help="rebuild every state of a logged run, or run a counterexample again, and compare",
        description="Replay a log of `compare --log`: every state is rebuilt, every hash compared.  Or replay a "
        "counterexample that `verify` saved, on the kernel as it is now.  Exits with 1 if anything differs.",
    )
    command.add_argument("log", type=Path, metavar="FILE", help="a log, or a counterexample")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(run=run_replay)


def add_explain(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "explain",
        help="why a request of a logged run waited",
        description="The life of one request: what kept it waiting (gate, memory, order, ...), how long each, and "
        "who went first.",
    )
    command.add_argument("log", type=Path, metavar="LOG", help="a log file")
    command.add_argument("--request", type=int, required=True, metavar="ID", help="the request's id")
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.set_defaults(run=run_explain)


def run_replay(arguments: Namespace) -> int:
    """Replay; returns the exit status."""
    replayed = _counterexample(arguments.log)
    if replayed is not None:
        print(_json(replayed.to_json()) if arguments.json else replayed.text())
        return 0 if replayed.confirmed else DIFFERENT
    report = replay(arguments.log, _policy)
    print(_json(report.to_json()) if arguments.json else report.text())
    return DIFFERENT if report.difference is not None else 0


def _counterexample(path: Path) -> "counterexample.Replay | WorldReplay | None":
    """A saved counterexample, run again; None for a log."""
    # A claim of one's own lies in the current folder more often than on the path.
    sys.path.insert(0, os.getcwd())
    if counterexample.is_counterexample(path):
        return counterexample.replay(counterexample.read(path))
    if counterexample.is_world(path):
        from fairsched.verify import world_file

        return world_file.replay(world_file.read(path))
    return None


def run_explain(arguments: Namespace) -> int:
    """Explain; returns the exit status."""
    explanation = explain(arguments.log, arguments.request, _policy)
    print(_json(explanation.to_json()) if arguments.json else explanation.text())
    return 0


def _policy(header: LogHeader) -> LocalPolicy[Any]:
    return policy_of(header.run.policy, header.run.params)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
