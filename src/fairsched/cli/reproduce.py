"""`fairsched reproduce`: run results of papers again, and print which come out."""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from fairsched.cli.output import as_json, writable
from fairsched.policies.registry import unknown

if TYPE_CHECKING:
    from rich.status import Status

    from fairsched.reproduce import Row

WIDTH = 110
MISSED = 1
"""Exit status when a row lies outside its band."""


def add_reproduce(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Run results of papers again and print which come out here, with the paper's figure, ours, the band and why "
        "they differ.  Exits with 1 if a row lies outside its band."
    )
    command.add_argument("ids", nargs="*", metavar="ID", help="rows to run (default: all)")
    command.add_argument("--list", action="store_true", help="list the rows and about how long each takes, run none")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=run_reproduce)


def run_reproduce(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.reproduce import ROWS

    for name in arguments.ids:
        if name not in ROWS:
            raise unknown("row", name, ROWS)
    writable(json=arguments.json)
    rows = [ROWS[name] for name in dict.fromkeys(arguments.ids or ROWS)]
    if arguments.list:
        for row in rows:
            print(f"{row.id:>4}  {row.about}  ({row.source}; tier {row.tier}, about {row.seconds} s)")
        return 0
    from rich.console import Console

    status = Console(stderr=True).status("")
    entries = []
    for row in rows:
        with status:
            ours = row.measure(partial(_say, status, row))
        print(f"{row.id}  {row.about}  [{'held' if ours.held else 'MISSED'}, tier {row.tier}]")
        for name, text in (
            *(("source", row.source), ("paper", row.paper), ("ours", ours.text)),
            *(("band", row.band), ("why", row.why)),
        ):
            print(fill(text, WIDTH, initial_indent=f"    {name:<7} ", subsequent_indent=" " * 12))
        entries.append(row.to_json(ours))
        if arguments.json is not None:
            # After each row, so that an interrupted run keeps what it has.
            arguments.json.write_text(as_json({"rows": entries}), encoding="utf-8")
    held = sum(bool(entry["held"]) for entry in entries)
    print(f"{held} of {len(entries)} rows lie in their bands.")
    return 0 if held == len(entries) else MISSED


def _say(status: "Status", row: "Row", what: str) -> None:
    status.update(f"{row.id}: {row.about}: {what}")
