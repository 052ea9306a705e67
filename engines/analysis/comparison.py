"""A comparison: several runs over one workload, as a table, plain values, an Arrow table or a report with plots."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from fairsched.engines.analysis.figures import Compared
from fairsched.model import extra_named
from fairsched.model.shown import short_repr

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class Comparison(Compared):
    """What was compared: `trace` holds facts about it (and its notes), `command` the line that repeats it.

    >>> import fairsched as fs
    >>> comparison = fs.compare(fs.generate("demo", limit=20), ["fcfs", "dlpm"])
    >>> [run["finished"] for run in comparison.to_dict()["runs"]], comparison.complete
    ([20, 20], True)
    """

    __repr__ = short_repr

    @property
    def complete(self) -> bool:
        """Whether every run came to its end; after an interrupt the last one holds what happened until then."""
        return bool(self.trace.get("complete", True))

    @extra_named()
    def table(self, width: int | None = None) -> str:
        """Return the table of `fairsched compare` as text, with what its figures mean, as wide as the terminal (without
        one: 110).  Needs rich."""
        from fairsched.engines.analysis.table import open_console, output_width, print_comparison

        text = io.StringIO()
        print_comparison(self, open_console(text, width or output_width() or 110))
        return "\n".join(line.rstrip() for line in text.getvalue().split("\n"))

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fairsched compare --json`: plain values, None where there was nothing to measure."""
        return {"fairsched": self.version, "trace": dict(self.trace), "runs": [run.to_json() for run in self.runs]}

    @extra_named()
    def to_frame(self) -> "pa.Table":
        """Return an Arrow table: a row for each run by its label (`run`), a column for each figure (`ttft_us.p99`).

        Raises `ModuleNotFoundError` without pyarrow (the extra `frame`).
        """
        from pyarrow import Table

        rows = [{"run": label} | dict(_flat(run.to_json())) for label, run in self.named()]
        return Table.from_pydict({name: [row.get(name) for row in rows] for row in rows for name in row})

    @extra_named()
    def report(self, folder: str | Path) -> Path:
        """Write the HTML report with plots into a folder, which is made if need be, and return its path.

        Needs jinja2 and matplotlib (the extra `cli`).  Raises `OSError` where the folder cannot be written.
        """
        from fairsched.engines.analysis.report import write_report

        return write_report(Path(folder), self)

    def _repr_html_(self) -> str:
        """Return the summary as an HTML table, which notebooks show."""
        from fairsched.engines.analysis.report import summary_html

        return summary_html(self)


def _flat(figures: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the figures with dotted names; lists, and what is told of each client, are left out."""
    for name, value in figures.items():
        if isinstance(value, Mapping) and name not in ("clients", "assumptions", "organisations"):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float):
            yield prefix + name, value
