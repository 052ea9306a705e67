"""`fairsched batch`: in which order to run a batch of offline jobs, and how much of their prompts that saves."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import attrs

from fairsched.cli.output import progress_bar, writable, write_figures
from fairsched.engines.capacity import BatchSummary, order_batch
from fairsched.policies.offline import GROUP_ORDERS, GROUPINGS


def add_batch(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Group the prompts of a batch by prefixes and write the order in which to run them: one JSON line a job, with "
        "its id, its group and how many tokens the group shares."
    )
    command.add_argument("jobs", type=Path, metavar="JOBS.jsonl", help="the jobs, in any format of traces")
    command.add_argument("--out", type=Path, metavar="ORDER.jsonl", help="write the order")
    command.add_argument(
        "--grouping",
        choices=GROUPINGS,
        default="exact",
        help="exact saves most; greedy is BatchLLM's as printed, greedy-absorb-last as released (default: %(default)s)",
    )
    command.add_argument(
        "--order",
        choices=GROUP_ORDERS,
        default="per_request",
        help="which groups go first: most requests, or (known_lengths) most output tokens, for each token computed "
        "(default: %(default)s)",
    )
    command.add_argument("--format", help="the file's format, if it should not be recognised")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    command.set_defaults(run=run_batch)


def run_batch(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    out = arguments.out
    writable(out=out, json=arguments.json)
    if out is not None and out.exists() and out.samefile(arguments.jobs):
        raise ValueError(f"--out: {out} is the file of the jobs")
    with progress_bar() as progress:
        found = order_batch(
            arguments.jobs,
            grouping=arguments.grouping,
            order=arguments.order,
            format=arguments.format,
            progress=lambda count: progress("jobs read", count, 0),
        )
        if out is not None:
            found.write(out, lambda count: progress("jobs written", count, found.summary.jobs))
    _show(found.summary)
    if out is not None:
        print(f"Order: {out}")
    write_figures(arguments.json, attrs.asdict(found.summary))
    return 0


def _show(summary: BatchSummary) -> None:
    print(f"{summary.jobs:,} jobs in {summary.groups:,} groups, {summary.shared_groups:,} of more than one")
    print(
        f"saving ratio {summary.saving_ratio:.2%}: {summary.saved_tokens:,} of {summary.prompt_tokens:,} prompt tokens"
    )
    print(f"with sharing on all levels it would be {summary.saving_ratio_max:.2%}")
    print(f"read in {summary.read_s:.1f} s, grouped in {summary.group_s:.2f} s")
