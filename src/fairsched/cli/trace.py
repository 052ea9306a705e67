"""`fairsched trace info`, `save` and `convert`: look at a workload, keep a generated one, or make one out of a log."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import msgspec

from fairsched.cli_audit import add_reading_arguments, workload_of_any
from fairsched.cli_common import add_workload_arguments, apart, workload_of
from fairsched.engines.workloads.info import render_info, trace_info
from fairsched.engines.workloads.save import save_workload


def add_trace(commands: Any) -> None:
    """Declare the commands."""
    command: ArgumentParser = commands.add_parser("trace", help="look at a trace or a generated workload, or save one")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="counts, rates, lengths, clients, and how much of the prompts is shared")
    info.add_argument("file", nargs="?", metavar="FILE", help="a trace file (or use --trace or --workload)")
    info.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_workload_arguments(info)
    info.set_defaults(run=show)
    save = actions.add_parser("save", help="write a workload in our JSONL format")
    save.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    add_workload_arguments(save)
    save.set_defaults(run=keep)
    into = actions.add_parser(
        "convert", help="make a trace out of a log: an access log of yours, or an event log of ours"
    )
    into.add_argument("log", type=Path, metavar="LOG", help="the log, as for `fairsched audit`")
    into.add_argument("file", type=Path, metavar="FILE", help="the file to write, in our JSONL format")
    add_reading_arguments(into)
    into.set_defaults(run=convert)


def show(arguments: Namespace) -> int:
    """Print what there is to know about a workload."""
    if arguments.file is not None:
        arguments.trace = arguments.file
    info = trace_info(workload_of(arguments))
    print(msgspec.json.format(msgspec.json.encode(info)).decode() if arguments.json else render_info(info))
    return 0


def keep(arguments: Namespace) -> int:
    """Write a workload to a file."""
    workload = workload_of(arguments)
    save_workload(workload, arguments.file)
    print(f"{len(workload.jobs)} requests: {arguments.file}")
    return 0


def convert(arguments: Namespace) -> int:
    """Write a log's requests as a trace."""
    apart(arguments.log, FILE=arguments.file)
    workload = workload_of_any(arguments)
    if not workload.jobs:
        raise ValueError(f"{arguments.log}: no request in it had an output")
    save_workload(workload, arguments.file)
    for note in workload.notes:
        print(note)
    print(f"{len(workload.jobs)} requests: {arguments.file}")
    return 0
