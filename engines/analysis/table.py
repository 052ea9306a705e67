"""Tables and sentences in the terminal, which fit it: what does not fit is left out by importance, and said so.

`print_table` is the one renderer of all commands; a figure is never cut, and a name is folded.  Below it is what a
comparison prints: one row a run, footnotes that say what the figures mean, and who fares worst.

Needs the `cli` extra (rich), imported when a table is printed.
"""

import inspect
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Literal

import attrs

from fairsched.engines.analysis.figures import (
    UNBROKEN,
    Compared,
    count,
    index,
    promised,
    rate,
    safe_text,
    share,
    standing,
    time,
    who,
)
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.verdict import largest_client, others_wait_us, verdict
from fairsched.policies.registry import LOCAL_POLICIES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEGEND = (
    "TTFT: time to the first token of a request's answer; p99: 99% of the requests have it sooner.",
    "Others: all clients but the one that asks for most.",
    "Cache hits: prompt tokens that the worker had in its cache, since an earlier prompt began alike.",
    "Gap: the largest difference of charged service between two clients while both waited at one worker, in cost units "
    "(an input token 1, an output token 2), as each policy charges, by weight.",
    "Bound: what the gap is proved to stay below, whatever clients send.",
    "Not binding: the bound, of all that memory or a batch may hold at once (dlpm-in-batch: of one request), is more "
    "than the busiest client was charged, so nothing here could break it.",
    "Cluster gap: the same between clients that waited at any worker, for the service of all workers.",
    "Common gap: the gap where all policies charge alike, 1 a computed input token and 2 an output token.",
    "Jain's index: 1 when all clients received the same per weight while all were active, 1/n when one took all.",
)
"""What figures mean: the first sentences those of every table in a terminal."""
PIPE_WIDTH = 110
"""Columns of text that is laid out for no terminal."""
_LEGEND_SHOWN = 5
_TERMINAL_WIDTH = 80
"""Columns of a terminal that does not say."""
_WIDTH_LEAST = 20
_CLIENTS_SHOWN = 8
_NAME_LEAST = 12
"""Columns that a name or words have at least, if they are so long."""
_NAME_FAIR = 20
"""Columns of a name for which figures are left out that are not of the first importance."""
_GUTTER = "  "
_HEAD_MOST = 16
"""Columns of the name of a run above its figures."""
_BREAKS = re.compile(r"(?<=[=_:/,])(?!,)|(?<=-)(?![0-9])")
"""Where a word of a name may go on in the next line: in no number."""

Cell = str | tuple[str, str]
"""A text, or a text and its style."""


@attrs.frozen
class Column:
    """A column of a table.

    `spare` is 0 for what a table is about; of the others the largest goes first where the width is short, of equals the
    one on the right.  A figure is never cut; names and words are folded.  `name` is the head in one line, where that
    does not follow.
    """

    head: str
    spare: int = 0
    kind: Literal["figure", "word", "name"] = "figure"
    name: str = ""

    @property
    def label(self) -> str:
        """The head in one line."""
        return self.name or " ".join(self.head.replace("-\n", "").split())


def name_lines(name: str, width: int) -> list[str]:
    """Return a name in lines: broken between words, in words that are too long after their signs, and never in a number
    that has room on a line.

    >>> name_lines("dlpm quantum=1000000 max_batched_tokens=2048", 16)
    ['dlpm', 'quantum=1000000', 'max_batched_', 'tokens=2048']
    """
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for word in name.split(" "):
        if cell_len(f"{lines[-1]} {word}".lstrip()) <= width:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
            continue
        lines.append("")
        for piece in _BREAKS.split(word):
            if cell_len(lines[-1] + piece) <= width:
                lines[-1] += piece
            else:
                lines += chop_cells(piece, width)
    return [line for line in lines if line]


def output_width(file: IO[str] | None = None) -> int | None:
    """Return columns of an output: `COLUMNS` where it is set, or the terminal's; None where it is a pipe or file.

    What goes into a pipe is read by programs and pagers: tables are whole there, and sentences are not broken.
    """
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return max(int(asked), _WIDTH_LEAST)
    try:
        return max(os.get_terminal_size((file or sys.stdout).fileno()).columns or _TERMINAL_WIDTH, _WIDTH_LEAST)
    except (OSError, ValueError):
        return None


def open_console(file: IO[str] | None = None, width: int | None = None) -> "Console":
    """Return where a command prints: as wide as `width` or the terminal, or without an end in a pipe (`soft_wrap`).

    A closed pipe raises `BrokenPipeError`, as `print` does.
    """
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    columns = output_width(file) if width is None else width
    # With a height rich asks no terminal, and takes no dumb one for one of 80 columns.
    return Output(file=file, width=columns or PIPE_WIDTH, height=25, soft_wrap=columns is None)


def fitted_table(
    console: "Console", columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> "tuple[Table, list[str]]":
    """Return a table that fits the console, and the labels of the columns that did not.

    Columns go by importance until the others fit, names folded.  Where even a name and one figure do not fit, the lines
    are longer than the width: a terminal breaks them, and no figure is lost.
    """
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    texts = [[Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row] for row in rows]
    sizes = [
        max(map(cell_len, [*column.head.split("\n"), *(row[i].plain for row in texts)]))
        for i, column in enumerate(columns)
    ]
    kept, least = list(range(len(columns))), _NAME_FAIR

    def needed() -> int:
        names = {"figure": max(sizes), "word": _NAME_LEAST, "name": least}
        return sum(min(sizes[i], names[columns[i].kind]) for i in kept) + len(_GUTTER) * (len(kept) - 1)

    while not console.soft_wrap and needed() > console.width:
        spare = max((columns[i].spare, i) for i in kept[1:]) if kept[2:] else (0, 0)
        if not spare[0] and least > _NAME_LEAST:
            least = _NAME_LEAST
        elif spare[1]:
            kept.remove(spare[1])
        else:
            break
    whole = sum(sizes[i] for i in kept) + len(_GUTTER) * (len(kept) - 1)
    over = 0 if console.soft_wrap else max(whole - console.width, 0)
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, len(_GUTTER) - 1, 0, 0),
        border_style="dim",
        width=whole if console.soft_wrap else max(needed(), min(whole, console.width)),
    )
    heads = [Text(column.head) for column in columns]
    for i in kept:
        figure, name = (columns[i].kind == kind for kind in ("figure", "name"))
        if name and over:
            room = max(sizes[i] - over, min(sizes[i], least))
            for row in (heads, *texts):
                lines = [line for part in row[i].plain.split("\n") for line in name_lines(part, room)]
                row[i] = Text("\n".join(lines), row[i].style)
        table.add_column(
            heads[i],
            justify="right" if figure else "left",
            vertical="top" if name and sizes[i] > _NAME_LEAST else "bottom",
            no_wrap=figure or name,
            overflow="fold",
        )
    for row in texts:
        table.add_row(*(row[i] for i in kept))
    return table, [column.label for i, column in enumerate(columns) if i not in kept]


def print_table(
    console: "Console",
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    elsewhere: str = "--json has them",
) -> None:
    """Print a table that fits, and below it which columns were left out and where they are."""
    from rich.text import Text

    table, left_out = fitted_table(console, columns, rows)
    if title:
        console.print(Text(title, style="bold"))
    console.print(table, crop=False, overflow="ignore", no_wrap=True)
    if left_out:
        print_small(console, [f"Left out at {console.width} columns: {', '.join(left_out)}; {elsewhere}."])
    console.print()


def print_lines(console: "Console", lines: Iterable[str], style: str = "", indent: str = "") -> None:
    """Print sentences, each on lines of its own; `indent` stands before what goes on below."""
    from rich.text import Text

    for line in lines:
        text = Text(line, style=style)
        pieces = [text] if console.soft_wrap else text.wrap(console, max(console.width - len(indent), 1))
        for i, piece in enumerate(pieces):
            piece.rstrip()
            console.print(Text(indent if i else "") + piece, soft_wrap=True)


def print_small(console: "Console", lines: Iterable[str]) -> None:
    """Print what figures mean and rest on."""
    print_lines(console, lines, "dim")


def print_section(console: "Console", heading: str, sentences: Iterable[str]) -> None:
    """Print sentences under a heading."""
    print_lines(console, [heading], "bold")
    print_lines(console, (f"  {sentence}." for sentence in sentences), indent="  ")


def print_text(console: "Console", text: str) -> None:
    """Print text that has lines of its own; one that is too long goes on below, a little further in."""
    for line in text.splitlines():
        print_lines(console, [line], indent=" " * min(len(line) - len(line.lstrip()) + 2, console.width // 2))


# --- a comparison ----------------------------------------------------------------------------------------------------


def notes_of(comparison: Compared) -> list[str]:
    """Return sentences that must be read with the figures: the trace's, then the runs', each once."""
    notes = [str(note) for note in comparison.trace.get("notes", ())]
    notes += [note for run in comparison.runs for note in run.notes]
    return list(dict.fromkeys(notes))


_SUMMARY = (
    Column("policy", kind="name"),
    Column("lost", 1),
    Column("req/s"),
    Column("cache\nhits", 2),
    Column("others' TTFT\np99", 0),
    Column("TTFT\np50", 1),
    Column("TTFT\np99", 0),
    Column("TBT\np99", 4),
    Column("2nd token\np99", 7),
    Column("gap", 1),
    Column("cluster\ngap", 4),
    Column("bound", 1),
    Column("pre-\nempted", 6),
    Column("of these\nswapped", 7),
    Column("paused", 6),
)
"""Columns of the table of runs: what a policy does to those that wait, what it costs, and what it promises."""


def _cells(label: str, run: Run) -> list[Cell]:
    """Return a run's row."""
    measures, several = run.measures, largest_client(run) is not None
    lost = measures.rejected + measures.cancelled
    where = standing(run)
    bound: Cell = (f"{count(run.service_gap_bound)}, {where}", "bold red") if where == "over bound" else ("none", "dim")
    if run.service_gap_bound is not None and where != "over bound":
        bound = count(run.service_gap_bound) + (f", {where}" if where == "not binding" else "")
    return [
        safe_text(label),
        f"{lost:,}" if lost else "",
        rate(measures.throughput_rps),
        share(measures.prefix_hit_ratio),
        time(others_wait_us(run)) if several else "",
        "" if several else time(measures.ttft_us.p50),
        "" if several else time(measures.ttft_us.p99),
        time(measures.tbt_us.p99) if measures.transfers or measures.pauses else "",
        time(measures.second_token_us.p99) if measures.transfers else "",
        count(run.gap.cost) if several else "",
        "" if run.cluster_gap is None else count(run.cluster_gap.cost),
        bound if several else "",
        f"{measures.preemptions:,}" if measures.preemptions else "",
        f"{measures.swaps:,}" if measures.swaps else "",
        f"{measures.pauses:,}" if measures.pauses else "",
    ]


def summary_rows(comparison: Compared) -> tuple[list[Column], list[list[Cell]]]:
    """Return one row a run; columns in which no run has anything are left out."""
    rows = [_cells(label, run) for label, run in comparison.named()]
    used = [i for i in range(len(_SUMMARY)) if any(row[i] for row in rows)]
    return [_SUMMARY[i] for i in used], [[row[i] for i in used] for row in rows]


def simulated(comparison: Compared) -> list[str]:
    """Return the sentence that says which machine and model were simulated."""
    machine = comparison.trace.get("machine")
    return [f"Simulated: {machine}."] if machine else []


def policy_lines(comparison: Compared) -> list[str]:
    """Return what each policy does, a sentence each; nothing of policies of one's own."""
    said = []
    for name in dict.fromkeys(run.policy for run in comparison.runs):
        first = re.split(r"[.]\s", inspect.getdoc(LOCAL_POLICIES.get(name)) or "")[0] if name in LOCAL_POLICIES else ""
        said += [f"{name}: {' '.join(first.split()).rstrip('.')}."] if first else []
    return said


def client_rows(comparison: Compared) -> tuple[list[Column], list[list[Cell]]]:
    """Return the clients with the largest demand: their p99 TTFT under each run, the first eight runs."""
    runs = comparison.named()[:_CLIENTS_SHOWN]
    columns = [Column("TTFT p99 of", kind="name"), Column("requests", 1)]
    columns += [_run_column(label) for label, _ in runs]
    rows: list[list[Cell]] = []
    for client in runs[0][1].series.clients[:_CLIENTS_SHOWN]:
        name = runs[0][1].names[client]
        figures = [time(run.clients[name].ttft_us.p99) for _, run in runs]
        rows.append([who(name), f"{runs[0][1].clients[name].requests:,}", *figures])
    return columns, rows


def _run_column(label: str) -> Column:
    """A column of a run's figures."""
    name = safe_text(label)
    return Column("\n".join(name_lines(name, _HEAD_MOST)), name=name)


def organisation_cells(comparison: Compared, most: int) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, where clients are in groups: each organisation's share of service and p99 TTFT under each run,
    and the gap between two beside its bound; at most so many organisations.  Nothing where no client is in a group."""
    runs = [(label, run.organisations) for label, run in comparison.named()]
    shown = [(label, found) for label, found in runs if found is not None]
    if not shown:
        return [], []
    rows = []
    for name, first in list(shown[0][1].each.items())[:most]:
        ones = [found.each[name] for _, found in shown]
        figures = [f"{share(one.share)}  {time(one.measures.ttft_us.p99)}" for one in ones]
        rows.append([who(name), f"{first.clients:,}", *figures])
    gaps = [count(found.gap.cost) + (f" of {count(found.bound)}" if found.bound else "") for _, found in shown]
    rows.append(["largest gap (of its bound)", "", *gaps])
    return ["share and TTFT p99 of", "clients", *(label for label, _ in shown)], rows


def program_cells(comparison: Compared) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, where calls belong to programs: how many finished under each run, how long they took, and how
    service was shared while all were under way."""
    rows = []
    for label, run in comparison.named():
        if (found := run.programs) is not None and found.programs < run.measures.requests:
            latency = run.measures.program_latency_us
            finished = f"{found.finished:,} of {found.programs:,}"
            rows.append(
                [label, finished, time(latency.mean), time(latency.p99), share(found.share_max), index(found.jain)]
            )
    return ["programs under", "finished", "latency mean", "p99", "largest share", "Jain"] if rows else [], rows


def print_comparison(comparison: Compared, console: "Console | None" = None) -> None:
    """Print the comparison: its table, its clients where there are several, the worst gaps, and what all that means."""
    if console is None:
        console = open_console()
    if not comparison.runs:
        print_lines(console, ["No run was completed."])
        return
    elsewhere = "--json and --report have them"
    print_lines(console, verdict(comparison)[:1], "bold")
    print_lines(console, simulated(comparison))
    console.print()
    print_table(console, *summary_rows(comparison), elsewhere=elsewhere)
    if len(comparison.runs[0].names) > 1:
        print_table(console, *client_rows(comparison), elsewhere=elsewhere)
        heads, rows = organisation_cells(comparison, _CLIENTS_SHOWN)
        if rows:
            shown = heads[: 2 + _CLIENTS_SHOWN]
            columns = [Column("share and\nTTFT p99 of", kind="name"), Column("clients", 1)]
            columns += map(_run_column, shown[2:])
            print_table(console, columns, [row[: len(shown)] for row in rows], elsewhere=elsewhere)
        heads, rows = program_cells(comparison)
        if rows:
            columns = [Column(heads[0], kind="name"), *map(Column, heads[1:])]
            print_table(console, columns, rows, elsewhere=elsewhere)
    told = [f"{label}: {sentence}" for label, sentences in promised(comparison) for sentence in sentences]
    if broken := [sentence for sentence in told if not sentence.endswith(UNBROKEN)]:
        print_section(console, "Assumptions of the theorems", broken)
        console.print()
    runs = comparison.runs
    shown = [*LEGEND[:_LEGEND_SHOWN], LEGEND[5] if any(standing(run) == "not binding" for run in runs) else ""]
    shown += [LEGEND[6] if any(run.cluster_gap is not None for run in runs) else ""]
    for lines in (policy_lines(comparison), shown, notes_of(comparison)):
        print_small(console, filter(None, [" ".join(filter(None, lines))]))
