"""How figures and names are written for people: times in the unit that fits, large numbers in thousands and millions,
and names that came from outside in characters that are safe to show.

A missing figure is a dash, never a zero.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, Protocol

import attrs

from fairsched.engines.analysis.metrics import Run
from fairsched.model.monitor import Finding
from fairsched.model.service import Gap

NOTHING = "–"
UNBROKEN = "none is broken, as far as events show"
NAME_MAX = 80
"""Characters of a name that are shown; a longer one is shortened in the middle."""
ELLIPSIS = "…"
_MARKS_MAX = 4
"""Combining marks that are shown on one letter: no script needs more, and a pile of them covers the lines above."""
_DOTTED_CIRCLE = "\u25cc"
_JOINERS = "\u200c\u200d"
_ISOLATE, _ISOLATED = "\u2068", "\u2069"
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters that show nothing."""
_THEOREMS_SHOWN = 4
_TIMES = ((1e6, "s"), (1e3, "ms"))
_COUNTS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def number(value: object) -> float | None:
    """Return a parameter's value as a number, if it is one; a command line's are texts.

    >>> number("512"), number(0.5), number("static")
    (512.0, 0.5, None)
    """
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


class Named(Protocol):
    """What names a run: a `Run`, or what is going to be one."""

    @property
    def policy(self) -> str: ...
    @property
    def router(self) -> str: ...
    @property
    def params(self) -> Mapping[str, object]: ...
    @property
    def predictor(self) -> str | None: ...
    @property
    def rate_scale(self) -> float: ...


@attrs.frozen
class RunName:
    """The name of a run that is yet to come."""

    policy: str
    router: str
    params: Mapping[str, object]
    predictor: str | None
    rate_scale: float


def labels_of(runs: Sequence[Named]) -> list[str]:
    """Return what each of these runs is called beside the others."""
    scales = {run.rate_scale for run in runs}
    rates = [f" rate x{run.rate_scale:g}" if len(scales) > 1 else "" for run in runs]
    names = [name + rate for name, rate in zip(_families(runs), rates, strict=True)]
    twice = Counter(names)
    return [f"{name} #{i + 1}" if twice[name] > 1 else name for i, name in enumerate(names)]


def _families(runs: Sequence[Named]) -> list[str]:
    routers, predictors = ({getattr(run, name) for run in runs} for name in ("router", "predictor"))
    return [
        " ".join(
            (
                run.policy,
                *((run.router,) if len(routers) > 1 else ()),
                *(f"{name}={value}" for name, value in run.params.items()),
                *((run.predictor or "own predictions",) if len(predictors) > 1 else ()),
            )
        )
        for run in runs
    ]


@attrs.frozen
class Compared:
    """The runs of a comparison, in the order of its table.

    `trace` holds facts about the workload and the cluster (and notes), `command` is the line that repeats it.
    """

    version: str
    command: str
    trace: Mapping[str, Any]
    runs: Sequence[Run]

    def labels(self) -> list[str]:
        """Return a short name for each run: its policy, the parameters that were set, and of router, predictor and rate
        those of which there are several."""
        return labels_of(self.runs)

    def named(self) -> list[tuple[str, Run]]:
        return list(zip(self.labels(), self.runs, strict=True))

    def families(self) -> list[str]:
        """Return the same without the rate: runs that differ in nothing else have one name."""
        return _families(self.runs)

    def swept(self) -> str | None:
        """Return the parameter that was given several numbers, if there is exactly one."""
        values: dict[str, set[float | None]] = {}
        for run in self.runs:
            for name, value in run.params.items():
                if number(value) is not None:
                    values.setdefault(name, set()).add(number(value))
        several = [name for name, found in values.items() if len(found) > 1]
        return several[0] if len(several) == 1 else None


def digits(value: float) -> str:
    """Return three significant digits, without an exponent.

    >>> [digits(x) for x in (0.01234, 1.5, 123.4, 98765.0)]
    ['0.0123', '1.5', '123', '98,765']
    """
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def time(us: float | None) -> str:
    """Write microseconds as a time.

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
    """Return a large number, such as a service gap in cost units.

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
    """Return a rate, three significant digits."""
    return NOTHING if value is None else digits(value)


def share(value: float | None) -> str:
    """Return a ratio as a percentage."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def index(value: float | None) -> str:
    """Return an index between 0 and 1."""
    return NOTHING if value is None else f"{value:.3f}"


def who(name: str) -> str:
    """Return a client's name, safe to show, with a word before it where it is a bare number."""
    return safe_text(f"client {name}" if name.isdigit() else name)


def safe_text(text: str, most: int | None = NAME_MAX) -> str:
    """A name, or other text from outside, as it may be shown in terminals, HTML, SVG and CSV; twice is as once.

    Control, bidirectional and invisible characters are written as escapes, a pile of combining marks is cut, a text of
    more than `most` characters (None: any number) is shortened in the middle, and one that runs from right to left is
    isolated, so that it does not reorder what stands beside it.  HTML's own escapes are the template's business.

    >>> safe_text("gold\\x1b[31m"), safe_text("a\\nb\\u202e"), safe_text("team-" + 9 * "x", most=9), safe_text("")
    ('gold\\\\x1b[31m', 'a\\\\nb\\\\u202e', 'team…xxxx', "''")
    """
    if text.startswith(_ISOLATE) and text.endswith(_ISOLATED):
        text = text[1:-1]
    if not text.strip():
        text = repr(text)
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_safe_cluster, clusters(text)))
    if most is not None and len(text) > most:
        text = shortened(text, most)
    return f"{_ISOLATE}{text}{_ISOLATED}" if any(map(_runs_left, text)) else text


def clusters(text: str) -> list[str]:
    """Return each letter with the marks and joiners that follow it: where a text may be cut."""
    found: list[str] = []
    for letter in text:
        joins = letter in _JOINERS and found and _is_letter(found[-1][0])
        if joins or (found and unicodedata.category(letter) in ("Mn", "Me")):
            found[-1] += letter
        else:
            found.append(letter)
    return found


def shortened(text: str, most: int) -> str:
    """Return the text with its middle left out, in at most `most` characters."""
    if len(text) <= most:
        return text
    pieces = clusters(text)
    rest = max(most - 1, 0)
    behind = _fitting(pieces[::-1], rest // 2)[::-1]
    return "".join((*_fitting(pieces, rest - len("".join(behind))), ELLIPSIS, *behind))


def _fitting(pieces: Sequence[str], most: int) -> list[str]:
    """Return the first pieces that are together no longer than `most`."""
    lengths = accumulate(map(len, pieces))
    return list(pieces[: sum(1 for _ in takewhile(lambda each: each <= most, lengths))])


def _safe_cluster(cluster: str) -> str:
    base, marks = cluster[0], cluster[1:]
    if unicodedata.category(base) in ("Mn", "Me"):
        base, marks = _DOTTED_CIRCLE, cluster
    elif unicodedata.category(base) == "Zs":
        base = " "
    elif not base.isprintable() or base in _BLANK:
        base = base.encode("unicode_escape").decode()
    return base + (marks if len(marks) <= _MARKS_MAX else marks[:_MARKS_MAX] + ELLIPSIS)


def _is_letter(letter: str) -> bool:
    return unicodedata.category(letter)[0] == "L" and letter not in _BLANK


def _runs_left(letter: str) -> bool:
    return unicodedata.bidirectional(letter) in ("R", "AL", "AN")


def standing(run: Run) -> str:
    """Return how the run's gap stands to its bound: inside it, over it, not binding, or without one."""
    if run.service_gap_bound is None:
        return "no bound"
    cost = run.bounded_gap.cost
    if cost > run.service_gap_bound:
        return "over bound"
    if not run.is_binding:
        return "not binding"
    return f"{share(cost / run.service_gap_bound)} of bound"


def worst(run: Run) -> str:
    """Return the largest gap of those that the bound is about, in one sentence: who got how much more than whom, and
    when."""
    gap = run.bounded_gap
    if gap.ahead is None or gap.behind is None:
        return "no two clients ever waited at the same worker together"
    where = " on all workers" if gap.worker is None else f" on worker {gap.worker}"
    names = run.names
    return gap_between(gap, names[gap.ahead], names[gap.behind], where, lambda ns: time((ns - run.origin_ns) / 1e3))


def gap_between(gap: Gap, ahead: str, behind: str, where: str, at: Callable[[int], str]) -> str:
    """Return how much more one client received than the other, and when; `at` tells a moment."""
    return (
        f"{who(ahead)} received {count(gap.cost)} cost units more than {who(behind)}{where} from {at(gap.start_ns)} to "
        f"{at(gap.stop_ns)}; the two waited together for {time(gap.together_ns / 1e3)}"
    )


def broken(assumptions: Mapping[str, Finding], names: Sequence[str], origin_ns: int = 0) -> list[str]:
    """Return the assumptions that a run broke and on which a theorem of its policy rests, a sentence each.

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


def promised(comparison: Compared) -> list[tuple[str, list[str]]]:
    """Return which assumptions broke, for each run with a theorem, by its label."""
    return [
        (label, broken(run.assumptions, run.names, run.origin_ns) or [UNBROKEN])
        for label, run in comparison.named()
        if run.assumptions
    ]
