"""Where independent runs of a command are computed.

--jobs N       so many processes (default: one for each core, if there is enough to do)
--ray ADDRESS  the cores of a Ray cluster instead
"""

from argparse import ArgumentParser, Namespace

from fairsched.cli.arguments.values import job_count
from fairsched.engines.simulation import cpus

REQUESTS = 1_000
"""A process is worth its start where it simulates so many requests."""


def add_jobs_arguments(command: ArgumentParser, what: str = "runs", default: int | None = None) -> None:
    """Declare them; `what` runs at a time."""
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs",
        type=job_count,
        default=default,
        metavar="N",
        help=f"{what} at a time, each in a process of its own (default: {default or 'one for each core'})",
    )
    where.add_argument("--ray", metavar="ADDRESS", help="run on the cores of a Ray cluster, auto for the one here")


def jobs_of(arguments: Namespace, requests: int) -> int:
    """Return how many processes run at a time, for so many requests to simulate in all runs together."""
    chosen: int | None = arguments.jobs
    return max(min(cpus(), requests // REQUESTS), 1) if chosen is None else chosen
