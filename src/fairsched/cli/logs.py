"""`fairsched audit`: who waited, who starved and who gained, in a log that exists."""

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fairsched.cli_common import apart, folders, policy_of, span_ns, writable
from fairsched.engines.audit.access_log import AccessLog, read_access_log
from fairsched.engines.audit.columns import FIELDS, read_map
from fairsched.engines.audit.convert import workload_of_log
from fairsched.engines.audit.evidence import Evidence
from fairsched.engines.audit.findings import audit
from fairsched.engines.audit.reconstruct import evidence_of
from fairsched.engines.audit.run_log import read_run_log
from fairsched.engines.log_file import LogHeader
from fairsched.engines.workloads.clients import ClientSpec
from fairsched.model.workload import Workload
from fairsched.policies.base import LocalPolicy
from fairsched.policies.registry import unknown

WIDTH = 120
"""Columns of the output where it is no terminal, which has a width of its own."""


def add_audit(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "audit",
        help="who waited, who starved and who gained, in a log of yours",
        description="Audit a log: an event log of `compare --log` or of a live engine, or an access log of your own "
        "(JSON lines or CSV, a line for each request that ended): service of each client, the largest gap and its "
        "bound, who starved, who gained, and which assumptions failed.",
    )
    command.add_argument("log", type=Path, metavar="LOG", help="the log")
    add_reading_arguments(command)
    command.add_argument("--clients", metavar="weights:NAME=W,...", help="weights of clients of an access log")
    command.add_argument(
        "--starved-after",
        type=span_ns,
        default="10s",
        metavar="TIME",
        help="a client starves that waits so long for nothing while others are served (default: %(default)s)",
    )
    command.add_argument(
        "--window",
        type=span_ns,
        default="10s",
        metavar="TIME",
        help="how often leads over the fair share are looked at; turns within so long do not count (default: "
        "%(default)s)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with plots")
    command.set_defaults(run=run_audit)


def add_reading_arguments(command: ArgumentParser) -> None:
    """How an access log is read."""
    command.add_argument(
        "--map",
        type=Path,
        metavar="FILE.toml",
        help=f"which column of an access log is what, where it is not guessed: {', '.join(FIELDS)}",
    )
    command.add_argument(
        "--skip-malformed", action="store_true", help="leave out rows that cannot be read, and say how many"
    )


def run_audit(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.engines.audit.text import print_audit

    writable(json=arguments.json)
    folders(report=arguments.report)
    apart(arguments.log, json=arguments.json)
    found = audit(_evidence(arguments), starved_after_ns=arguments.starved_after, window_ns=arguments.window)
    print_audit(found, width=None if sys.stdout.isatty() else WIDTH)
    if found.evidence.kind == "access log":
        print(
            f"\nWhat policies would have done: fairsched trace convert {shlex.quote(str(arguments.log))} trace.jsonl, "
            "then fairsched compare --trace trace.jsonl --policies fcfs,dlpm"
        )
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(found.to_json()), indent=2))
        print(f"Figures: {arguments.json}")
    if arguments.report is not None:
        from fairsched.engines.audit.page import write_audit

        print(f"Report: {write_audit(arguments.report, found, shlex.join(['fairsched', *sys.argv[1:]]))}")
    return 0


def is_run_log(path: Path) -> bool:
    """Whether the file is one of our own event logs; raises `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"fairsched_log"')


def _evidence(arguments: Namespace) -> Evidence:
    """What the log shows, whichever kind it is."""
    if is_run_log(arguments.log):
        if arguments.clients is not None:
            raise ValueError("--clients is for access logs; an event log says who its clients are itself")
        return _run_log(arguments)[0]
    log = _access_log(arguments)
    return evidence_of(log, _weights(arguments.clients, log.clients))


def workload_of_any(arguments: Namespace) -> Workload:
    """What was asked for in a log of either kind."""
    return _run_log(arguments)[1] if is_run_log(arguments.log) else workload_of_log(_access_log(arguments))


def _run_log(arguments: Namespace) -> tuple[Evidence, Workload]:
    path: Path = arguments.log
    if arguments.map is not None or arguments.skip_malformed:
        raise ValueError("--map and --skip-malformed are for access logs; an event log is read as it is")
    with reading(path, _lines(path)) as progress:
        return read_run_log(path, policy_if_there, progress)


def _access_log(arguments: Namespace) -> AccessLog:
    path: Path = arguments.log
    columns = None if arguments.map is None else read_map(arguments.map)
    with reading(path, path.stat().st_size) as progress:
        return read_access_log(path, columns, skip=arguments.skip_malformed, progress=progress)


def policy_if_there(header: LogHeader) -> LocalPolicy[Any] | None:
    """The policy that a log names, if it can be had here."""
    try:
        return policy_of(header.run.policy, header.run.params)
    except ValueError:
        return None


def _weights(text: str | None, names: tuple[str, ...]) -> list[int]:
    """The weights of an access log's clients."""
    if text is None:
        return [1] * len(names)
    spec = ClientSpec.parse(text)
    if not spec.names_trace or spec.paths:
        raise ValueError("--clients sets weights of the log's own clients, as weights:gold=4,free=1")
    for name in spec.names:
        if name not in names:
            raise unknown("client", name, names)
    given = dict(zip(spec.names, spec.weights, strict=True))
    return [given.get(name, 1) for name in names]


def _lines(path: Path) -> int:
    """How many lines the file has."""
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


@contextmanager
def reading(path: Path, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error while a log is read."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"reading {path.name}"[:40], total=max(total, 1))
        yield lambda done: bar.update(task, completed=done)
