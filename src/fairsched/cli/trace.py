"""`fairsched trace info`, `save` and `convert`: look at a workload, keep a generated one, or make one out of a log."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairsched.cli.arguments import add_workload_arguments, workload_of
from fairsched.cli.logs import add_reading_arguments, columns_of
from fairsched.cli.output import apart, as_json, progress_bar
from fairsched.engines.analysis.audit import logged_workload
from fairsched.engines.workloads import render_info, save_workload, trace_info
from fairsched.model.request import Workload


def add_trace(command: ArgumentParser) -> None:
    """Declare the commands."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="counts, rates, lengths, clients, and how much of the prompts is shared")
    info.add_argument("file", nargs="?", metavar="FILE", help="a trace file (or use --trace or --workload)")
    info.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_workload_arguments(info)
    info.set_defaults(run=run_info)
    save = actions.add_parser("save", help="write a workload in our JSONL format")
    save.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    add_workload_arguments(save)
    save.set_defaults(run=lambda arguments: _save(workload_of(arguments), arguments.file))
    into = actions.add_parser(
        "convert", help="make a trace out of a log: an access log of yours, or an event log of ours"
    )
    into.add_argument("log", type=Path, metavar="LOG", help="the log, as for `fairsched audit`")
    into.add_argument("file", type=Path, metavar="FILE", help="the file to write, in our JSONL format")
    add_reading_arguments(into)
    into.set_defaults(run=run_convert)


def run_info(arguments: Namespace) -> int:
    """Print what there is to know about a workload."""
    if arguments.file is not None:
        arguments.trace = arguments.file
    info = trace_info(workload_of(arguments))
    print(as_json(info) if arguments.json else render_info(info))
    return 0


def run_convert(arguments: Namespace) -> int:
    """Write a log's requests as a trace."""
    apart(arguments.log, FILE=arguments.file)
    with progress_bar() as progress:
        workload = logged_workload(
            arguments.log,
            columns=columns_of(arguments),
            skip_malformed=arguments.skip_malformed,
            progress=lambda done, total: progress(f"reading {arguments.log.name}", done, total),
        )
    for note in workload.notes:
        print(note)
    return _save(workload, arguments.file)


def _save(workload: Workload, file: Path) -> int:
    save_workload(workload, file)
    print(f"{len(workload.jobs)} requests: {file}")
    return 0
