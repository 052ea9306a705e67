"""Which column of an access log says what: named in a few lines of TOML, or guessed from common names.

Names are compared without case, dashes and underscores, and a unit at a name's end is understood (`ttft_ms`).  In JSON
lines a name may lead inside: `usage.prompt_tokens`.  The guesses cover what LiteLLM's payload, vLLM's request metrics
and its spans, OpenAI's answers with their `usage`, and most proxies write.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from fairsched.engines.logs.access.identity import LEVELS, MAPPED
from fairsched.engines.logs.access.values import UNITS, Unit, is_null
from fairsched.engines.workloads import TraceError, unknown
from fairsched.model.serialization import parse

MOMENTS = ("arrival", "first_token", "end")
DURATIONS = ("queue", "ttft", "latency")
COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "max_output_tokens")
FIELDS = (*MOMENTS, *DURATIONS, *COUNTS, "client", "worker", "model", "status", "streamed", "request_id")
"""What a column may say."""

_NAMES: dict[str, str] = {
    "arrival": "arrival arrivaltime arrivaltimestamp arrivalts arrivedat starttime starttimestamp startedat start "
    "requeststart requeststarttime requestedat requesttimestamp submittedat sentat createdat created timestamp "
    "@timestamp ts datetime time",
    "first_token": "firsttokentime firsttokenat firsttokentimestamp firsttokents firsttoken completionstarttime",
    "end": "endtime endtimestamp endedat end finishtime finishedat finishedtime finish completedat completedtime",
    "queue": "queue queuetime timeinqueue queuedtime queuewait queuewaittime waittime waitingtime",
    "ttft": "ttft timetofirsttoken firsttokenlatency ttfb timetofirstbyte",
    "latency": "latency e2elatency e2e requestlatency totallatency duration requestduration totalduration totaltime "
    "elapsed elapsedtime responsetime",
    "prompt_tokens": "prompttokens inputtokens prompttokencount inputtokencount numprompttokens promptlen promptlength "
    "inputlen inputlength contexttokens requesttokens tokensin prompttok prompttoks inputtok inputtoks",
    "cached_tokens": "cachedtokens cachedprompttokens cachedinputtokens cachedprefixtokens numcachedtokens "
    "cachereadinputtokens",
    "output_tokens": "completiontokens outputtokens generatedtokens outputtokencount completiontokencount "
    "numoutputtokens numgenerationtokens outputlen outputlength responsetokens tokensout completiontok completiontoks "
    "outputtok outputtoks",
    "max_output_tokens": "maxoutputtokens maxcompletiontokens maxtokens maxnewtokens",
    "worker": "worker workerid replica replicaid server backend upstream apibase",
    "model": "model modelname modelid requestmodel modelgroup deployment",
    "status": "status statuscode httpstatus httpstatuscode responsestatus responsecode success outcome finishreason",
    "streamed": "stream streamed streaming isstream isstreaming",
    "request_id": "requestid xrequestid reqid callid litellmcallid",
}
NAMES = {field: text.split() for field, text in _NAMES.items()}
"""For each field the names that are understood, the likeliest first."""

_UNIT_NAMES: dict[Unit, str] = {
    "ms": "milliseconds millis ms",
    "us": "microseconds micros us",
    "ns": "nanoseconds ns",
    "s": "seconds secs sec s",
}
_PUNCTUATION = re.compile(r"[^a-z0-9.@]")
DEPTH_MAX = 4
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SIDES = {
    "prompt_tokens": {"prompt", "prompts", "input", "inputs", "in", "context", "request", "req"},
    "output_tokens": {"completion", "completions", "output", "outputs", "out", "generated", "generation", "response"},
}


@attrs.frozen
class LogColumn:
    """A column: its key (or the keys that lead to it), and its unit where it is a time and the unit is known."""

    path: tuple[str, ...]
    unit: Unit | None = None

    @property
    def name(self) -> str:
        """As it is written in a map."""
        return ".".join(self.path)


@attrs.frozen
class Columns:
    """The columns of an access log by field, the values of `status` that mean success (empty: the common ones), and the
    columns that may name clients, by level (`identity`)."""

    of: Mapping[str, LogColumn]
    ok: frozenset[str] = frozenset()
    levels: Mapping[str, LogColumn] = attrs.field(factory=dict)


@attrs.frozen
class Suggestion:
    """A map, the reason for each of its lines, and what is doubtful about it."""

    columns: Columns
    reasons: Mapping[str, str]
    doubts: tuple[str, ...]

    def toml(self) -> str:
        """Write it as a file for `--map`."""
        lines = ["# A suggestion: look at the reasons before you rely on it."]
        lines += [f"# Doubt: {doubt}" for doubt in self.doubts]
        for field, column in self.columns.of.items():
            value = _quoted(column.name)
            if column.unit is not None:
                value = f'{{ column = {value}, unit = "{column.unit}" }}'
            lines.append(f"{field} = {value}  # {printable(self.reasons[field])}")
        if self.columns.ok:
            lines.append(
                f"ok = [{', '.join(map(_quoted, sorted(self.columns.ok)))}]  # {printable(self.reasons['ok'])}"
            )
        return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def printable(text: str) -> str:
    """Text that cannot end a comment."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def read_map(path: Path) -> Columns:
    """Return the map in a TOML file: `field = "column"` or `field = { column = "...", unit = "ms" }`, and `ok = [...]`.

    A column with dots is split when the log is seen not to have it whole.  Raises `ValueError`, or `OSError` for a
    file that cannot be read.
    """
    try:
        document = parse(path.read_bytes(), "TOML")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    ok = document.pop("ok", [])
    if not isinstance(ok, list):
        raise ValueError(f"{path}: ok is a list of the values of status that mean success, not {ok!r}")
    columns = {}
    for field, value in document.items():
        if field not in FIELDS:
            raise ValueError(f"{path}: {unknown('field', field, [*FIELDS, 'ok'])}")
        columns[field] = _column(path, field, value)
    return Columns(columns, frozenset(_plain(each) for each in ok))


def _plain(value: object) -> str:
    """Return a status as text: true and 200 are written as in JSON."""
    return str(value).lower()


def _column(path: Path, field: str, value: object) -> LogColumn:
    known = {"column", "unit"}
    if isinstance(value, str) and value:
        return LogColumn((value,), None)
    if not isinstance(value, dict) or not isinstance(value.get("column"), str) or set(value) - known:
        raise ValueError(f'{path}: {field} is a column as "name" or {{ column = "name", unit = "ms" }}, not {value!r}')
    unit = value.get("unit")
    units = UNITS if field in MOMENTS else UNITS[:4] if field in DURATIONS else ()
    if unit is not None and unit not in units:
        said = f"one of {', '.join(units)}" if units else "nothing: this is no time"
        raise ValueError(f"{path}: the unit of {field} is {said}; found {unit!r}")
    return LogColumn((value["column"],), unit)


def resolved(
    path: Path,
    sample: Sequence[Mapping[str, object]],
    given: Columns | None = None,
    known: Columns | None = None,
    advice: str = "",
) -> Columns:
    """Return the columns of the log whose first rows are `sample`: those given, else those `known` of such logs, else
    guesses.

    `advice` is what makes such logs say more.  Raises `TraceError` where given columns are in none of these rows, or
    where times or tokens cannot be found.
    """
    filled = filled_paths(sample)
    found: dict[str, LogColumn] = {}
    for columns in (given, known):
        for field, column in columns.of.items() if columns else ():
            place = _place(column, filled)
            if place is not None and field not in found:
                found[field] = attrs.evolve(column, path=place)
    names = _listed(".".join(each) for each in filled)
    absent = [column.name for column in (given.of.values() if given else ()) if _place(column, filled) is None]
    if absent:
        expected = f"the column{'s' * (len(absent) > 1)} {_listed(map(repr, absent))}, which the map names"
        raise TraceError(path, None, None, expected, f"only {names}")
    _add_guesses(found, filled)
    _check(path, found, names, advice)
    ok = next((columns.ok for columns in (given, known) if columns and columns.ok), frozenset[str]())
    return Columns(found, ok, {MAPPED: found["client"]} if "client" in found else levels(filled, found))


def side(name: str) -> str | None:
    """Return whether a name speaks of the prompt or of the output: the field; None where it says neither, or both."""
    words = {word.lower() for word in _WORDS.findall(name)}
    said = [field for field, of_field in _SIDES.items() if words & of_field]
    return said[0] if len(said) == 1 else None


def levels(filled: Mapping[tuple[str, ...], bool], found: Mapping[str, LogColumn]) -> dict[str, LogColumn]:
    """Return the columns that may name clients, by level."""
    taken = {column.path for column in found.values()}
    return {level: column for level, names in LEVELS.items() if (column := _likeliest(names, filled, taken))}


def guesses(sample: Sequence[Mapping[str, object]], found: Mapping[str, LogColumn]) -> dict[str, LogColumn]:
    """Return the columns that would be guessed by name beside those that are found; of clients the most likely."""
    filled = filled_paths(sample)
    everything = dict(found)
    _add_guesses(everything, filled)
    return {field: column for field, column in everything.items() if field not in found}


def _add_guesses(found: dict[str, LogColumn], filled: Mapping[tuple[str, ...], bool]) -> None:
    taken = {column.path for column in found.values()}
    for field in FIELDS:
        if field in NAMES and field not in found and not _replaced(field, found):
            metrics = field == "ttft"  # vLLM counts that one from when the request was scheduled
            guess = _likeliest(NAMES[field], filled, taken, field in MOMENTS or field in DURATIONS, metrics)
            if guess is not None:
                found[field] = guess
                taken.add(guess.path)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _replaced(field: str, found: Mapping[str, LogColumn]) -> bool:
    """Return whether other columns say the same already."""
    by = {"ttft": {"first_token"}, "latency": {"arrival", "end"}, "arrival": {"end", "latency"}}
    return field in by and by[field] <= set(found)


def filled_paths(rows: Sequence[Mapping[str, object]]) -> dict[tuple[str, ...], bool]:
    """Return the paths that lead to plain values, and whether any row has a value there."""
    filled: dict[tuple[str, ...], bool] = {}
    for row in rows:
        _collect(row, (), filled)
    return filled


def _collect(row: Mapping[str, object], path: tuple[str, ...], filled: dict[tuple[str, ...], bool]) -> None:
    """Collect the paths of a row that lead to plain values, and whether any row had a value there."""
    for key, value in row.items():
        here = (*path, key)
        if isinstance(value, dict):
            if len(here) < DEPTH_MAX:
                _collect(value, here, filled)
        elif not isinstance(value, list):
            filled[here] = filled.get(here, False) or not is_null(value)


def _place(column: LogColumn, filled: Mapping[tuple[str, ...], bool]) -> tuple[str, ...] | None:
    """Return where a column is in the rows; one that is named with dots may stand whole or lead inside."""
    places = (column.path, tuple(column.name.split(".")))
    return next((place for place in places if place in filled), None)


def _likeliest(
    names: Sequence[str],
    filled: Mapping[tuple[str, ...], bool],
    taken: set[tuple[str, ...]],
    time: bool = False,
    no_metrics: bool = False,
) -> LogColumn | None:
    """Return the column with the likeliest of the names that is not empty throughout; of equal names the outermost."""
    best: tuple[int, int, tuple[str, ...], Unit | None] | None = None
    for path, any_value in filled.items():
        if not any_value or path in taken or (no_metrics and path[0] == "metrics" and len(path) > 1):
            continue
        rank, unit = _rank(names, path, time)
        if rank is not None and (best is None or (rank, len(path), path) < best[:3]):
            best = (rank, len(path), path, unit)
    return None if best is None else LogColumn(best[2], best[3])


def _rank(names: Sequence[str], path: tuple[str, ...], time: bool) -> tuple[int | None, Unit | None]:
    """Return how early a path's name stands among the names, and for a `time` the unit at its end."""
    name = _PUNCTUATION.sub("", ".".join(path).lower()).rpartition(".")[2]
    if name in names:
        return names.index(name), None
    for unit, suffixes in _UNIT_NAMES.items() if time else ():
        for suffix in suffixes.split():
            base = name.removesuffix(suffix)
            if base != name and base in names:
                return names.index(base), unit
    return None, None


def _check(path: Path, found: Mapping[str, LogColumn], names: str, advice: str) -> None:
    """Check that an arrival, an end, and both numbers of tokens are known; all that are not are named at once."""
    if missing := lacking(found):
        advice = advice or "name them with --map (`fairsched audit --suggest-map` writes one)"
        expected = f"columns that say {missing}: {advice}"
        raise TraceError(path, None, None, expected, f"only {names}")


def lacking(found: Mapping[str, LogColumn]) -> str:
    """Return what a log must say and these columns do not, in words; empty where nothing lacks."""
    have = set(found)
    needs = (
        ("arrival (when a request came)", "arrival" in have or {"end", "latency"} <= have),
        ("end or latency (when it ended, or how long it took)", bool({"end", "latency"} & have)),
        ("prompt_tokens (tokens of its prompt)", "prompt_tokens" in have),
        ("output_tokens (tokens of its output)", "output_tokens" in have),
    )
    return ", ".join(text for text, enough in needs if not enough)
