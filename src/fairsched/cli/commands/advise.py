"""`fairsched advise`: learn from a log what to do."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairsched.cli.arguments import positive_int, worker_count
from fairsched.cli.commands.logs import (
    add_client_arguments,
    add_log_argument,
    add_reading_arguments,
    reading_of,
    weights_of,
)
from fairsched.cli.output import (
    apart,
    command_line,
    folders,
    print_files,
    progress_bar,
    shown,
    writable,
    write_figures,
)
from fairsched.engines.capacity.advice import REQUESTS


def add_advise(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Say what an access log shows, and what to do: which clients wait and starve, how much a gate would help, at "
        "what cost, and how sure that is.  A machine is fitted to the log; where it does not repeat the log, no claim "
        "is made."
    )
    add_log_argument(command)
    add_reading_arguments(command)
    add_client_arguments(command)
    command.add_argument(
        "--workers",
        type=worker_count,
        metavar="N",
        help="number of servers (default: as many as the log names, or as fit it)",
    )
    command.add_argument(
        "--requests",
        type=positive_int,
        default=REQUESTS,
        metavar="N",
        help="of a long log the N requests are simulated that waited most (default: %(default)s)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument(
        "--report", type=Path, metavar="DIR", help="write an HTML report with plots, gateway.toml and vllm.toml"
    )
    command.set_defaults(run=run_advise)


def run_advise(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.engines.analysis import print_text
    from fairsched.engines.capacity.advice import advise

    writable(json=arguments.json)
    folders(report=arguments.report)
    apart(arguments.log, json=arguments.json)
    with progress_bar() as progress:
        advice = advise(
            arguments.log,
            weights=weights_of(arguments.clients),
            starved_after_ns=arguments.starved_after,
            workers=arguments.workers,
            requests=arguments.requests,
            progress=progress,
            **reading_of(arguments),
        )
    write_figures(arguments.json, advice.to_json())
    page, files = None, []
    if arguments.report is not None:
        from fairsched.engines.capacity.advice import write_advice, write_configurations

        page = write_advice(arguments.report, advice, command_line())
        files = [] if advice.verdict == "leave" else write_configurations(arguments.report, advice)
    with shown(arguments.json) as console:
        print_text(console, advice.paragraph)
        print_files(console, Figures=arguments.json, Report=page)
        for path in files:
            print_files(console, Configuration=path)
    return 0 if advice.complete else 130
