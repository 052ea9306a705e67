"""`fairsched reproduce`: run panels of papers again, and print which come out."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fairsched.cli.options import REQUESTS, Jobs, processes
from fairsched.cli.output import as_json, print_files, progress_bar, shown, writable
from fairsched.cli.values import Json, Natural, PositiveInt
from fairsched.engines.analysis import output_width, print_lines
from fairsched.engines.files import write_whole
from fairsched.engines.simulation import cpus
from fairsched.policies.registry import unknown

if TYPE_CHECKING:
    from fairsched.reproduce import Judged, PanelRow, Result

WIDTH_MAX = 110
MISSED = 1
"""Exit status when a claim does not hold."""


def reproduce(
    *rows: Annotated[str, Parameter(metavar="ROW|PAPER")],
    list: Literal["rows", "panels"] | None = None,
    quick: bool = False,
    seeds: PositiveInt | None = None,
    first_seed: Natural = 0,
    jobs: Jobs = None,
    json: Json = None,
) -> int:
    """Run panels of papers again on their papers' terms, over several seeds, and print for each claim what is printed,
    what comes out with its 95 % interval, the control, and the verdict.  Exits with 1 if a claim does not hold.

    Args:
        rows: rows or papers to run (default: all)
        list: run none: list the rows and about how long each takes, or the papers' panels and what became of each
        quick: only the rows that continuous integration runs
        seeds: run so many seeds of a row that has chance in it (default: the row's)
        first_seed: the first of them; rows were made while seeds from 0 were looked at
        json: write every figure; rows of the file that do not run now stay in it
    """
    from fairsched.reproduce import ROWS, Verdict
    from fairsched.reproduce import reproduce as reproduced

    chosen = _chosen(rows)
    if quick:
        chosen = [row for row in chosen if row.quick]
    if list is not None:
        lines = _panels(chosen) if list == "panels" else map(_row, chosen)
        with shown() as console:
            for words, indent in lines:
                print_lines(console, wrap(words, console.width, subsequent_indent=" " * indent, break_on_hyphens=False))
        return 0
    writable(json=json)
    where = processes(jobs, REQUESTS * cpus())
    entries = _kept(json)
    held = count = 0
    with progress_bar() as step:

        def progress(row: "PanelRow", ended: int, total: int) -> None:
            step(f"{row.id} {row.about}", ended, total)

        found = reproduced(chosen, seeds=seeds, first_seed=first_seed, progress=progress, **where)
        for result in found:
            held, count = held + (result.verdict is Verdict.HELD), count + 1
            if json is not None:
                # After each row, so that an interrupted run keeps what it has.
                entries[result.row.id] = result.to_json()
                ordered = [entries[name] for name in ROWS if name in entries]
                write_whole(json, as_json({"rows": ordered}))
            # Where the output is a pipe that was closed, nothing more is run.
            print(text(result, min(output_width() or WIDTH_MAX, WIDTH_MAX)), flush=True)
    with shown() as console:
        print_lines(console, [f"{held} of {count} rows hold."])
        print_files(console, Figures=json)
    return 0 if held == count else MISSED


def _panels(rows: "list[PanelRow]") -> "Iterator[tuple[str, int]]":
    """Yield the panels of the rows' papers, and how far their other lines are indented."""
    from fairsched.reproduce import PANELS

    for paper in dict.fromkeys(row.paper for row in rows if row.paper in PANELS):
        for panel in PANELS[paper]:
            yield f"{paper}, {panel.name}: {panel.about} ({panel.status})", 4


def _row(row: "PanelRow") -> tuple[str, int]:
    """Return a row and how long it takes, and how far its other lines are indented."""
    took = f"{row.seeds} seeds of about {row.seconds:g} s{', quick' if row.quick else ''}"
    return f"{row.id:>4}  {row.about}  ({row.paper}, {row.panel}; {took})", 6


def _chosen(names: Sequence[str]) -> "list[PanelRow]":
    from fairsched.reproduce import PAPERS, ROWS

    for name in names:
        if name not in ROWS and name not in PAPERS:
            raise unknown("row or paper", name, [*PAPERS, *ROWS])
    return [row for row in ROWS.values() if not names or row.id in names or row.paper in names]


def _kept(path: Path | None) -> dict[str, dict[str, object]]:
    """Return the entries of a file that an earlier run wrote; raises `ValueError` if it is something else."""
    if path is None or not path.exists() or not path.read_bytes().strip():
        return {}
    try:
        return {str(entry["id"]): entry for entry in json.loads(path.read_bytes())["rows"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: not a file of this command; another name keeps it") from None


def text(result: "Result", width: int) -> str:
    """Return a row with its claims, in lines of at most `width` characters."""
    from fairsched.reproduce import Verdict

    row = result.row
    held = sum(each.verdict is Verdict.HELD for each in result.judged)
    lines = [f"{row.id}  {row.about}  [{held} of {len(result.judged)} claims held]"]
    seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}"
    about = (("paper", f"{row.paper}, {row.panel}"), ("runs", f"{row.platform.text}; {seeds}; {row.setting}"))
    for name, words in (*about, *((("note", row.note),) if row.note else ())):
        lines.append(fill(words, width, initial_indent=f"    {name:<6} ", subsequent_indent=" " * 11))
    for each in result.judged:
        words = f"{each.claim.about}: {each.ours.text}, printed {each.claim.printed}{control(each)}  [{each.verdict}]"
        lines.append(fill(words, width, initial_indent="    claim  ", subsequent_indent=" " * 11))
    return "\n".join(lines)


def control(judged: "Judged") -> str:
    """Return what the control gives, or nothing."""
    if judged.claim.control is None or judged.without is None:
        return ""
    return f"; without the cause ({judged.claim.control.cause}) {judged.without.text}"
