"""How a figure is written for people: times in the unit that fits, large numbers in thousands and millions.

A missing figure is a dash, never a zero.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fairsched.engines.analysis.metrics import Run
from fairsched.model.monitor import Finding

NOTHING = "–"
UNBROKEN = "none is broken, as far as events show"
_THEOREMS_SHOWN = 4
_TIMES = ((1e6, "s"), (1e3, "ms"))
_COUNTS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def number(value: object) -> float | None:
    """A parameter's value as a number, if it is one; a command line's are texts.

    >>> number("512"), number(0.5), number("static")
    (512.0, 0.5, None)
    """
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


class Compared(Protocol):
    """What a table or a report shows of a comparison (`engines.analysis.comparison.Comparison`)."""

    @property
    def version(self) -> str:
        """The library's version."""

    @property
    def command(self) -> str:
        """The command that repeats it."""

    @property
    def trace(self) -> Mapping[str, Any]:
        """Facts about the workload and the cluster."""

    @property
    def runs(self) -> Sequence[Run]:
        """The runs, in the order of the table."""

    def labels(self) -> list[str]:
        """Return a name for each run."""

    def families(self) -> list[str]:
        """Return the names without the rate."""

    def swept(self) -> str | None:
        """Return the parameter that was given several numbers, if there is exactly one."""


def digits(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> [digits(x) for x in (0.01234, 1.5, 123.4, 98765.0)]
    ['0.0123', '1.5', '123', '98,765']
    """
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def time(us: float | None) -> str:
    """Microseconds as a time.

    >>> time(1_234.5), time(2_500_000), time(600_000_000), time(12), time(None)
    ('1.23 ms', '2.5 s', '600 s', '12 us', '–')
    """
    if us is None:
        return NOTHING
    for unit_us, unit in _TIMES:
        if us >= unit_us:
            return f"{digits(us / unit_us)} {unit}"
    return f"{digits(us)} us"


def count(value: float | None) -> str:
    """A large number, such as a service gap in cost units.

    >>> count(9_999), count(25_646), count(1_234_567), count(None)
    ('9,999', '25.6k', '1.23M', '–')
    """
    if value is None:
        return NOTHING
    for least, unit, letter in _COUNTS:
        if abs(value) >= least:
            return digits(value / unit) + letter
    return digits(value)


def rate(value: float | None) -> str:
    """A rate, three significant digits."""
    return NOTHING if value is None else digits(value)


def share(value: float | None) -> str:
    """A ratio as a percentage."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def index(value: float | None) -> str:
    """An index between 0 and 1."""
    return NOTHING if value is None else f"{value:.3f}"


def who(name: str) -> str:
    """A client's name, with a word before it where it is a bare number."""
    return f"client {name}" if name.isdigit() else name


def standing(run: Run) -> str:
    """How the run's gap stands to its bound: inside it, over it, not binding, or without one."""
    if run.service_gap_bound is None:
        return "no bound"
    cost = run.bounded_gap.cost
    if cost > run.service_gap_bound:
        return "over bound"
    if not run.is_binding:
        return "not binding"
    return f"{share(cost / run.service_gap_bound)} of bound"


def worst(run: Run) -> str:
    """The largest gap of those that the bound is about, in one sentence: who got how much more than whom, and when."""
    gap = run.bounded_gap
    if gap.ahead is None or gap.behind is None:
        return "no two clients ever waited at the same worker together"
    where = "on all workers" if gap.worker is None else f"on worker {gap.worker}"
    origin = run.origin_ns
    return (
        f"{who(run.names[gap.ahead])} received {count(gap.cost)} cost units more than {who(run.names[gap.behind])} "
        f"{where} from {time((gap.start_ns - origin) / 1e3)} to {time((gap.stop_ns - origin) / 1e3)}; "
        f"the two waited together for {time(gap.together_ns / 1e3)}"
    )


def broken(assumptions: Mapping[str, Finding], names: Sequence[str], origin_ns: int = 0) -> list[str]:
    """The assumptions that a run broke and on which a theorem of its policy rests, a sentence each.

    `names` are those of its clients, `origin_ns` is when its clock starts.
    """
    sentences = []
    for name, finding in assumptions.items():
        first = finding.first
        if first is None or not finding.matters:
            continue
        text = re.sub(r"\bclient (\d+)", lambda found: who(names[int(found[1])]), first.text)
        when = f" {count(finding.violated)} times, first" if finding.violated != 1 else ""
        after_ns = first.time_ns - origin_ns
        where = f" on worker {first.worker} at {time(after_ns / 1e3)}" if after_ns > 0 else ""
        shown, hidden = finding.theorems[:_THEOREMS_SHOWN], len(finding.theorems[_THEOREMS_SHOWN:])
        needed = ", ".join(shown) + (f" and {hidden} more" if hidden else "")
        sentences.append(f"{name} is broken{when}{where}: {text} (needed by {needed})")
    return sentences
