"""`fairsched replay`, `explain` and `audit`: run a log or a saved counterexample again, say why a request of it waited,
and which clients waited, starved and gained."""

import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairsched.cli.arguments import span_ns
from fairsched.cli.output import WIDTH, apart, as_json, command_line, folders, progress_bar, writable, write_figures
from fairsched.engines.logs.access import FIELDS, Columns, read_map
from fairsched.engines.workloads import ClientSpec

DIFFERENT = 1
"""Exit status when a replay is not equal to its log."""


def add_replay(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Replay a log of `compare --log`: every state is rebuilt, every hash compared.  Or replay a counterexample "
        "that `verify` saved, on the kernel as it is now.  Exits with 1 if anything differs."
    )
    command.add_argument("log", type=Path, metavar="FILE", help="a log, or a counterexample")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(run=run_replay)


def add_explain(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "The life of one request: what kept it waiting (gate, memory, order, ...), how long each, and which requests "
        "went first."
    )
    command.add_argument("log", type=Path, metavar="LOG", help="a log file")
    command.add_argument("--request", type=int, required=True, metavar="ID", help="the request's id")
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.set_defaults(run=run_explain)


def add_audit(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Audit a log: an event log of `compare --log` or of a live engine, or an access log of your own (JSON lines "
        "or CSV, a line for each request that ended): service of each client, the largest gap and its bound, which "
        "clients starved, which gained, and which assumptions failed."
    )
    command.add_argument("log", type=Path, metavar="LOG", help="the log")
    add_reading_arguments(command)
    command.add_argument("--clients", metavar="weights:NAME=W,...", help="weights of clients of an access log")
    command.add_argument(
        "--starved-after",
        type=span_ns,
        default="10s",
        metavar="TIME",
        help="a client starves that waits so long without service while others are served (default: %(default)s)",
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
    command.add_argument(
        "--to-frame",
        type=Path,
        metavar="DIR|FILE.parquet",
        help="write the requests as a parquet file; into a folder also the events of an event log",
    )
    command.set_defaults(run=run_audit)


def add_reading_arguments(command: ArgumentParser) -> None:
    """Declare how an access log is read."""
    command.add_argument(
        "--map",
        type=Path,
        metavar="FILE.toml",
        help=f"which column of an access log is what, where it is not guessed: {', '.join(FIELDS)}",
    )
    command.add_argument(
        "--skip-malformed", action="store_true", help="leave out rows that cannot be read, and say how many"
    )


def columns_of(arguments: Namespace) -> Columns | None:
    """Return the columns that `--map` names."""
    return None if arguments.map is None else read_map(arguments.map)


def run_replay(arguments: Namespace) -> int:
    """Replay; returns the exit status."""
    from fairsched.engines.analysis import replay
    from fairsched.verify.logic import replay_saved

    found = replay_saved(arguments.log)
    if found is not None:
        print(as_json(found.to_json()) if arguments.json else found.text())
        return 0 if found.confirmed else DIFFERENT
    report = replay(arguments.log)
    print(as_json(report.to_json()) if arguments.json else report.text())
    return DIFFERENT if report.difference is not None else 0


def run_explain(arguments: Namespace) -> int:
    """Explain; returns the exit status."""
    from fairsched.engines.analysis import explain

    explanation = explain(arguments.log, arguments.request)
    print(as_json(explanation.to_json()) if arguments.json else explanation.text())
    return 0


def run_audit(arguments: Namespace) -> int:
    """Audit; returns the exit status."""
    from fairsched.engines.analysis.audit import audit_log, print_audit

    writable(json=arguments.json)
    folders(report=arguments.report)
    apart(arguments.log, json=arguments.json)
    with progress_bar() as progress:
        found = audit_log(
            arguments.log,
            weights=weights_of(arguments.clients),
            columns=columns_of(arguments),
            skip_malformed=arguments.skip_malformed,
            starved_after_ns=arguments.starved_after,
            window_ns=arguments.window,
            progress=lambda done, total: progress(f"reading {arguments.log.name}", done, total),
        )
    print_audit(found, width=None if sys.stdout.isatty() else WIDTH)
    if found.evidence.kind == "access log":
        print(
            f"\nWhat policies would have done: fairsched trace convert {shlex.quote(str(arguments.log))} trace.jsonl, "
            "then fairsched compare --trace trace.jsonl --policies fcfs,dlpm"
        )
    write_figures(arguments.json, found.to_json())
    if arguments.report is not None:
        from fairsched.engines.analysis.audit import write_audit

        print(f"Report: {write_audit(arguments.report, found, command_line())}")
    if arguments.to_frame is not None:
        from fairsched.engines.analysis.audit import write_audit_frames

        write_audit_frames(arguments.to_frame, found)
        print(f"Frames: {arguments.to_frame}")
    return 0


def weights_of(text: str | None) -> dict[str, int] | None:
    """Return the weights that `--clients` gives to an access log's clients."""
    if text is None:
        return None
    spec = ClientSpec.parse(text)
    if not spec.names_trace or spec.paths:
        raise ValueError("--clients sets weights of the log's own clients, as weights:gold=4,free=1")
    return dict(zip(spec.names, spec.weights, strict=True))
