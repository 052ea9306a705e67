"""`fairsched batch`: in which order to run a batch of offline jobs, and how much of their prompts that saves."""

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.cli_common import writable
from fairsched.engines.workloads.batch_jobs import BatchJobs, Progress, read_batch
from fairsched.policies.batch_tree import BatchTree, batch_tree
from fairsched.policies.group_order import GROUP_ORDERS, group_places
from fairsched.policies.prefix_groups import PrefixGroups
from fairsched.policies.prefix_groups_greedy import GROUPINGS, groups_by


class OrderedJob(msgspec.Struct, frozen=True):
    """A line of the order: the job, its group, and how many leading tokens all of the group share."""

    id: int
    group: int
    prefix_tokens: int


@attrs.frozen
class BatchSummary:
    """What the grouping of a batch comes to; `saved_tokens_max` is what sharing on all levels would save."""

    jobs: int
    groups: int
    shared_groups: int
    prompt_tokens: int
    saved_tokens: int
    saving_ratio: float
    saved_tokens_max: int
    saving_ratio_max: float
    grouping: str
    order: str
    read_s: float
    group_s: float


def add_batch(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "batch",
        help="order a batch of offline jobs so that shared prefixes are computed once",
        description="Group the prompts of a batch by prefixes and write the order in which to run them: one JSON line "
        "a job, with its id, its group and how many tokens the group shares.",
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
    command.set_defaults(run=batch)


def batch(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(out=arguments.out, json=arguments.json)
    if arguments.out is not None and arguments.out.exists() and arguments.out.samefile(arguments.jobs):
        raise ValueError(f"--out: {arguments.out} is the file of the jobs")
    begun = time.perf_counter()
    with _shown("reading") as progress:
        jobs = read_batch(arguments.jobs, progress, arguments.format)
    read = time.perf_counter()
    tree = batch_tree(jobs.chains, jobs.tokens, jobs.block_tokens, jobs.key_bytes)
    groups = groups_by(tree, arguments.grouping)
    places = group_places(tree, groups, arguments.order, jobs.output_tokens)
    done = time.perf_counter()
    if arguments.out is not None:
        with _shown("writing") as progress:
            _write(arguments.out, jobs, groups, places[groups.group_of], progress)
    summary = _summary(arguments, tree, groups, read - begun, done - read)
    _say(summary, arguments.out)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(attrs.asdict(summary)), indent=2))
    return 0


def _write(path: Path, jobs: BatchJobs, groups: PrefixGroups, places: Any, progress: Progress) -> None:
    """A line a job: groups in order, and in each group the jobs as they came.  A file half written is not left."""
    encode = msgspec.json.Encoder().encode
    prefixes = groups.prefix_tokens[groups.group_of]
    order = np.argsort(places, kind="stable")
    columns = (jobs.ids[order].tolist(), places[order].tolist(), prefixes[order].tolist())
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            for count, (job, place, prefix) in enumerate(zip(*columns, strict=True), 1):
                file.write(encode(OrderedJob(job, place, prefix)) + b"\n")
                if count % 10_000 == 0:
                    progress(count)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _summary(
    arguments: Namespace, tree: BatchTree, groups: PrefixGroups, read_s: float, group_s: float
) -> BatchSummary:
    return BatchSummary(
        jobs=len(tree.tokens),
        groups=len(groups.sizes),
        shared_groups=int((groups.sizes > 1).sum()),
        prompt_tokens=tree.prompt_tokens,
        saved_tokens=groups.saved_tokens,
        saving_ratio=groups.saving_ratio,
        saved_tokens_max=tree.saved_tokens_max,
        saving_ratio_max=tree.saved_tokens_max / tree.prompt_tokens,
        grouping=arguments.grouping,
        order=arguments.order,
        read_s=read_s,
        group_s=group_s,
    )


def _say(summary: BatchSummary, out: Path | None) -> None:
    print(f"{summary.jobs:,} jobs in {summary.groups:,} groups, {summary.shared_groups:,} of more than one")
    print(
        f"saving ratio {summary.saving_ratio:.2%}: {summary.saved_tokens:,} of {summary.prompt_tokens:,} prompt tokens"
    )
    print(f"with sharing on all levels it would be {summary.saving_ratio_max:.2%}")
    print(f"read in {summary.read_s:.1f} s, grouped in {summary.group_s:.2f} s")
    if out is not None:
        print(f"Order: {out}")


@contextmanager
def _shown(what: str) -> Iterator[Progress]:
    """Progress on a terminal: how many jobs so far."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(f"{what} {{task.completed:,}} jobs"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def told(count: int) -> None:
            bar.update(task, completed=count)

        yield told
