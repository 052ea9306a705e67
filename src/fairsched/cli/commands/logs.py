"""`fairsched replay`, `explain` and `audit`: run a log or a saved counterexample again, say why a request of it waited,
and which clients waited, starved and gained."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from fairsched.cli.arguments import natural, span_ns
from fairsched.cli.output import (
    apart,
    as_json,
    command_line,
    folders,
    print_commands,
    print_files,
    progress_bar,
    shown,
    unexplained,
    writable,
    write_figures,
)
from fairsched.engines.analysis import print_lines, print_text
from fairsched.engines.analysis.audit import (
    FIGURES,
    Threshold,
    audit_document,
    exit_status,
    judged,
    junit,
    read_thresholds,
)
from fairsched.engines.files import write_whole
from fairsched.engines.logs.access import FIELDS, Columns, Filters, When, expanded, read_map, suggest_map
from fairsched.engines.workloads import ClientSpec

DIFFERENT = 1
"""Exit status when a replay is not equal to its log."""

_MARKS = {"ok": "ok", "failed": "FAILED", "unknown": "UNKNOWN"}
"""How a verdict on a threshold is told."""


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
    command.add_argument("--request", type=natural, required=True, metavar="ID", help="the request's id")
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.set_defaults(run=run_explain)


def add_audit(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Audit a log: an event log of `compare --log` or of a live engine, several of gateways before the same "
        "servers, or an access log of your own (JSON or CSV, a row for each request that ended): service of each "
        "client, the largest gap and its bound, which clients starved, which gained, and which assumptions failed."
    )
    add_log_argument(command)
    add_reading_arguments(command)
    add_client_arguments(command)
    command.add_argument(
        "--window",
        type=span_ns,
        default="10s",
        metavar="TIME",
        help="how often leads over the fair share are looked at, as 10s or a number of seconds; turns within so long "
        "do not count (default: %(default)s)",
    )
    command.add_argument(
        "--fail-on",
        type=_thresholds,
        default=(),
        metavar="THRESHOLDS",
        help="figures that must not be, as 'starved>0,p99_wait>5s,free.errors>1%%': exit with 1 if one is, with 2 if "
        f"the log cannot tell; of {', '.join(FIGURES)}",
    )
    command.add_argument(
        "--junit", type=Path, metavar="FILE", help="write the thresholds as JUnit XML, a test case each"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with plots")
    command.add_argument(
        "--to-frame",
        type=Path,
        metavar="DIR|FILE.parquet",
        help="write the requests as a parquet file; into a folder also the events of an event log",
    )
    command.add_argument(
        "--suggest-map",
        action="store_true",
        help="audit nothing: print a map for --map by the names and values of the log's first rows, with the reason "
        "for each line and what is doubtful",
    )
    command.set_defaults(run=run_audit)


def _thresholds(text: str) -> tuple[Threshold, ...]:
    try:
        return read_thresholds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_client_arguments(command: ArgumentParser) -> None:
    """Declare the weights of an access log's clients, and when one starves."""
    command.add_argument(
        "--clients", metavar="weights:NAME=W,...", help="weights of clients of an access log (default: equal)"
    )
    command.add_argument(
        "--starved-after",
        type=span_ns,
        default="10s",
        metavar="TIME",
        help="a client starves that waits so long without service while others are served, as 10s or a number of "
        "seconds (default: %(default)s)",
    )


def add_log_argument(command: ArgumentParser) -> None:
    """Declare the logs that are read as one."""
    command.add_argument(
        "log",
        nargs="+",
        metavar="LOG",
        help="the log: a file, - for standard input, or several files or patterns, as 'access.log*', of one access log "
        "that was rotated or comes from several servers, or the event logs of several gateways; .gz, .bz2, .xz "
        "and .zst are unpacked",
    )


def add_reading_arguments(command: ArgumentParser, *, model: str = "only requests for these models") -> None:
    """Declare how an access log is read, and which of its requests are looked at."""
    command.add_argument(
        "--map",
        type=Path,
        metavar="FILE.toml",
        help=f"which column of an access log is what, where it is not guessed: {', '.join(FIELDS)}",
    )
    command.add_argument(
        "--skip-malformed", action="store_true", help="leave out rows that cannot be read, and say how many"
    )
    command.add_argument("--model", metavar="NAME,...", help=model)
    command.add_argument(
        "--from",
        dest="start",
        type=_when,
        metavar="TIME",
        help="only requests that came from then on: a date and time (in the log's zone, unless it names one), or how "
        "long after the first request, as 10m",
    )
    command.add_argument("--until", type=_when, metavar="TIME", help="only requests that came before then")
    command.add_argument(
        "--status", metavar="STATUS,...", help="only requests with these statuses: 200, 5xx, finished, cancelled, ..."
    )


def _when(text: str) -> When:
    try:
        return When.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


class Reading(TypedDict):
    """How an access log is read, as functions that read one take it."""

    columns: Columns | None
    skip_malformed: bool
    filters: Filters | None


def reading_of(arguments: Namespace) -> Reading:
    """Return how the arguments say that a log is read."""
    filters = Filters(
        models=_listed(arguments.model),
        start=arguments.start,
        until=arguments.until,
        statuses=_listed(arguments.status),
    )
    return {
        "columns": None if arguments.map is None else read_map(arguments.map),
        "skip_malformed": arguments.skip_malformed,
        "filters": None if filters == Filters() else filters,
    }


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text is not None else ()


def log_name(logs: Sequence[str]) -> str:
    """Return the name of the logs for a progress bar."""
    return Path(logs[0]).name if len(logs) == 1 else f"{len(logs)} logs"


def run_replay(arguments: Namespace) -> int:
    """Replay; returns the exit status."""
    from fairsched.engines.analysis import replay
    from fairsched.verify.logic import replay_saved

    found = replay_saved(arguments.log)
    if found is not None:
        _print(found.to_json, lambda width: found.text(), arguments.json)
        return 0 if found.confirmed else DIFFERENT
    report = replay(arguments.log)
    _print(report.to_json, lambda width: report.text(), arguments.json)
    if report.difference is not None:
        return DIFFERENT
    return unexplained([str(arguments.log)] if report.unexplained else [])


def _print(document: Callable[[], object], text: Callable[[int], str], json: bool) -> None:
    """Print a result as JSON or as text."""
    with shown() as console:
        if json:
            print(as_json(document()))
        else:
            print_text(console, text(console.width))


def run_explain(arguments: Namespace) -> int:
    """Explain; returns the exit status."""
    from fairsched.engines.analysis import explain

    explanation = explain(arguments.log, arguments.request)
    _print(explanation.to_json, explanation.text, arguments.json)
    return 0


def _print_map(logs: Sequence[str]) -> int:
    if len(logs) > 1:
        raise ValueError("--suggest-map looks at one log")
    print(suggest_map(logs[0]).toml(), end="")
    return 0


def run_audit(arguments: Namespace) -> int:
    """Audit; returns the exit status."""
    from fairsched.engines.analysis.audit import audit_models, print_audit, write_audit_frames

    if arguments.suggest_map:
        return _print_map(arguments.log)
    if arguments.junit is not None and not arguments.fail_on:
        raise ValueError("--junit writes the thresholds of --fail-on, and there are none")
    writable(json=arguments.json, junit=arguments.junit)
    folders(report=arguments.report)
    apart(expanded(arguments.log), json=arguments.json, junit=arguments.junit)
    name = log_name(arguments.log)
    with progress_bar() as progress:
        found = audit_models(
            arguments.log,
            weights=weights_of(arguments.clients),
            starved_after_ns=arguments.starved_after,
            window_ns=arguments.window,
            progress=lambda done, total: progress(f"reading {name}", done, total),
            **reading_of(arguments),
        )
    judgements = judged(found, arguments.fail_on)
    write_figures(arguments.json, audit_document(found, judgements))
    if arguments.junit is not None:
        write_whole(arguments.junit, junit(judgements, name))
    pages: list[Path | None] = []
    if arguments.report is not None:
        from fairsched.engines.analysis.audit import write_audit

        for i, audit in enumerate(found):
            folder = arguments.report if len(found) == 1 else arguments.report / f"{i + 1:02}"
            pages.append(write_audit(folder, audit, command_line()))
    if arguments.to_frame is not None:
        write_audit_frames(arguments.to_frame, found)
    with shown(arguments.json) as console:
        for i, audit in enumerate(found):
            if i:
                console.print()
            print_audit(audit, console)
        if found[0].evidence.kind == "access log":
            print_lines(console, ["", "What policies would have done:"])
            print_commands(
                console,
                ["fairsched", "trace", "convert", *arguments.log, "trace.jsonl"],
                ["fairsched", "compare", "--trace", "trace.jsonl", "--policies", "fcfs,dlpm"],
            )
        if judgements:
            told = [f"{_MARKS[each.verdict]} {each.threshold.text}: {each.said}." for each in judgements]
            print_lines(console, ["", *told])
        print_files(console, Figures=arguments.json, Thresholds=arguments.junit, Frames=arguments.to_frame)
        for page in pages:
            print_files(console, Report=page)
    return unexplained([name] if any(audit.unexplained for audit in found) else []) or exit_status(judgements)


def weights_of(text: str | None) -> dict[str, int] | None:
    """Return the weights that `--clients` gives to an access log's clients."""
    if text is None:
        return None
    spec = ClientSpec.parse(text)
    if not spec.names_trace or spec.paths:
        raise ValueError("--clients sets weights of the log's own clients, as weights:gold=4,free=1")
    return dict(zip(spec.names, spec.weights, strict=True))
