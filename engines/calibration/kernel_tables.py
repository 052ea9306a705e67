"""Kernel tables that LLMServingSim's profiler wrote, as the kernels of a machine.

Four tables in CSV: `dense` (a layer's kernels by tokens), `per_sequence` (head and sampler by sequences), `attention`
(by the tokens of prompts, the context before them, requests that decode and their mean context), and `skew_fit` (what
decodes of unequal context take more).  All times are microseconds, of one layer, of one kernel after the other.

- A dense kernel takes as long as the next larger number of tokens that was measured: its work is cut into tiles, and a
  line between two points would be below both stairs.
- Attention of prompts is another kernel than that of decodes alone, and so has its own table.  Its grid has holes: rows
  with less than half of what their neighbours have are left out, since lines through them are off by half.
- The skew correction is used for decodes alone: beside prompts its classes have two samples and less, and there are so
  many parts to compute that the longest hides behind the others.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from fairsched.model.machine import AllReduce, AttentionTable, Kernels, Skew, TimeTable

ONCE = ("embedding", "final_layernorm")
"""Dense kernels that a step has once; it has one of the others for each layer."""
TWICE = ("layernorm",)
"""Kernels of which a layer has two."""

_BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
_POSITIONS = {"sr<=5%": 50, "sr<=15%": 150, "sr<=40%": 400, "sr<=70%": 700, "sr>70%": 1000}
_LONGEST = {"kvB<=1k": 1024, "kvB<=4k": 4096, "kvB<=16k": 16_384}


def rows(path: Path, *numbers: str, names: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file, each with its number (`row`): these fields as numbers, and the `names` as text.

    Raises `ValueError` with file, row and field.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        for field in (*numbers, *names):
            if field not in (reader.fieldnames or ()):
                there = ", ".join(reader.fieldnames or ())
                raise ValueError(f"{path}: there is no column {field}, but {there[:200] or 'nothing'}")
        for number, row in enumerate(reader, 2):
            found: dict[str, Any] = {name: row[name] for name in names} | {"row": number}
            for field in numbers:
                try:
                    found[field] = float(row[field])
                except (TypeError, ValueError):
                    raise ValueError(f"{path}, row {number}: {field} is {row[field]!r}, not a number") from None
                if field.startswith("time_") and not found[field] >= 0:
                    raise ValueError(f"{path}, row {number}: {field} is {row[field]}, and no time is negative")
            yield found
        if reader.line_num < 2:
            raise ValueError(f"{path}: there are no rows")


def rising(values: Mapping[int, float]) -> TimeTable:
    """Return a table that never falls, halfway between the largest time before a point and the smallest after it:
    measured times fall by chance."""
    points = sorted(values)
    before = accumulate((values[point] for point in points), max)
    after = list(accumulate((values[point] for point in reversed(points)), min))
    return TimeTable(tuple(points), tuple(round(500 * (a + b)) for a, b in zip(before, reversed(after), strict=True)))


FALL_MAX = 0.25
"""Times that fall by more than this share where there is more to do are no noise."""


def risen(path: Path, field: str, values: Mapping[int, float]) -> None:
    """Raise `ValueError` where times fall by more than chance."""
    most = 0.0
    for point in sorted(values):
        if values[point] < (1 - FALL_MAX) * most:
            raise ValueError(f"{path}: {field} {point} take {values[point]:,.0f} us, and fewer take {most:,.0f} us")
        most = max(most, values[point])


def _stairs(table: TimeTable) -> TimeTable:
    """Return the table that has, between two points, the value of the upper one."""
    points, values = [table.points[0]], [table.values[0]]
    for point, value in zip(table.points[1:], table.values[1:], strict=True):
        if points[-1] + 1 < point:
            points.append(points[-1] + 1)
            values.append(value)
        points.append(point)
        values.append(value)
    if len(table.points) > 1:
        # Beyond the last stair it goes on as from half way to it.
        last, half = table.points[-1], table.points[-1] // 2
        points.append(2 * last - half)
        values.append(2 * table.at(last) - table.at(half))
    return TimeTable(tuple(points), tuple(values))


def _entries(tree: Any) -> int:
    return sum(map(_entries, tree.values())) if isinstance(tree, dict) else 1


def grid(tree: Any) -> TimeTable:
    """Return nested dictionaries as a table, without what is thin."""
    if not isinstance(next(iter(tree.values())), dict):
        return rising(tree)
    most = max(_entries(below) for point, below in tree.items() if point or len(tree) == 1)
    kept = {point: below for point, below in sorted(tree.items()) if not point or 2 * _entries(below) >= most}
    return TimeTable(tuple(kept), tuple(map(grid, kept.values())))


def table_file(prefix: Path, name: str) -> Path:
    """Return the file of a table: `PREFIX-NAME.csv`, or `NAME.csv` in a folder."""
    return prefix / f"{name}.csv" if prefix.is_dir() else prefix.with_name(f"{prefix.name}-{name}.csv")


def llmservingsim(
    prefix: Path, layers: int, *, skew: bool = True, reduce: AllReduce | None = None, graph_sizes: tuple[int, ...] = ()
) -> Kernels:
    """Return the kernels of a model of so many layers, from `PREFIX-dense.csv` and so on, or the files of a folder.

    The tables leave out the all-reduces.  Raises `ValueError` for what cannot be read.

    Source: casys-kaist/LLMServingSim on GitHub, `profiler/perf/`.
    """

    file = partial(table_file, prefix)
    dense, sequences = defaultdict[int, float](float), defaultdict[int, float](float)
    measured = defaultdict[str, set[int]](set)
    for row in rows(file("dense"), "tokens", "time_us", names=("layer",)):
        times = 1 if row["layer"] in ONCE else layers * (2 if row["layer"] in TWICE else 1)
        dense[int(row["tokens"])] += times * row["time_us"]
        measured[row["layer"]].add(int(row["tokens"]))
    for layer, points in measured.items():
        if hole := sorted(dense.keys() - points):
            raise ValueError(f"{file('dense')}: {layer} has no row of {hole[0]} tokens, as other layers have")
    risen(file("dense"), "tokens", dense)
    for row in rows(file("per_sequence"), "sequences", "time_us", names=("layer",)):
        sequences[int(row["sequences"])] += row["time_us"]
    decodes: dict[int, Any] = {}
    prompts: dict[int, Any] = {}
    axes = "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"
    for row in rows(file("attention"), *axes, "time_us"):
        tokens, before, batch, context = (int(row[name]) for name in axes)
        tree = decodes if not tokens else prompts.setdefault(tokens, {}).setdefault(before, {})
        tree.setdefault(batch, {})[context] = layers * row["time_us"]
    if not (decodes and prompts):
        raise ValueError(f"{file('attention')}: no row of {'prompts' if decodes else 'decodes alone'}")
    attention = AttentionTable(grid(decodes), grid(prompts), _skew(file("skew_fit")) if skew else None)
    return Kernels(_stairs(rising(dense)), attention, rising(sequences), reduce=reduce, graph_sizes=graph_sizes)


def _skew(path: Path) -> Skew:
    """Return the correction for decodes alone; a class that was not measured has none."""
    labels = "n_label", "skew_rate_label", "kv_big_label"
    shares = {
        tuple(row[label] for label in labels): round(1_000_000 * row["alpha"])
        for row in rows(path, "pc", "alpha", names=labels)
        if not row["pc"]
    }
    found = [
        shares.get((f"n<={batch}", position, longest), 0)
        for batch in _BATCHES
        for position in _POSITIONS
        for longest in _LONGEST
    ]
    return Skew(_BATCHES, tuple(_POSITIONS.values()), tuple(_LONGEST.values()), tuple(found))
