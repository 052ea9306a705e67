"""The values of an access log: moments and lengths of time to nanoseconds, numbers of tokens, how a request ended.

A value that stands for nothing (`-`, `null`, `NaN`, ...) is none.  A moment that was written as a fraction of seconds
since 1970, or as a date and time, is good to a microsecond.  A comma is understood where it can mean only one thing.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from functools import lru_cache
from typing import Literal

from fairsched.model.request import TOKENS_MAX

UNKNOWN = -1
"""Stands for what a row does not say."""
Unit = Literal["s", "ms", "us", "ns", "iso"]
UNITS: tuple[Unit, ...] = ("s", "ms", "us", "ns", "iso")
"""Units of times; `iso` is a date and time of day, as ISO 8601, nginx, syslog and HTTP write it."""
NS: dict[str, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME_NS_MAX = 2**62
LENGTH_S_MAX = 10**7
SINCE_1970_S_MIN = 10**8
"""Clocks below this, in 1973, count from something else."""
NULLS = frozenset({"", "-", "null", "NULL", "Null", "none", "None", "NONE", "nil", "NaN", "nan", "N/A", "n/a", "\\N"})
"""Texts that stand for no value."""

Read = Callable[[object], int]


class Ending(IntEnum):
    """How a request ended: with its whole answer, given up by its caller, refused before it ran, or broken off."""

    FINISHED = 0
    CANCELLED = 1
    REJECTED = 2
    ERROR = 3


class ValueFault(Exception):
    """A value that is none: what was expected."""


def is_null(value: object) -> bool:
    """Return whether a value stands for nothing."""
    if type(value) is str:
        return value in NULLS or value.isspace()
    return value is None or value != value


def value_at(row: Mapping[str, object], path: tuple[str, ...]) -> object:
    """Return what the keys lead to in a row; None if there is nothing."""
    found: object = row
    for key in path:
        if type(found) is not dict:
            return None
        found = found.get(key)
    return found


def name(value: object) -> str:
    """Return a name as text, empty where there is none."""
    if type(value) is str:
        text = value.strip()
        return "" if text in NULLS else text
    return "" if is_null(value) else str(value)


def number(value: object, expected: str, whole: bool = False) -> int | float:
    """Return a finite number, written as one or as text; `whole` says that a fraction is out of the question."""
    if type(value) is int or type(value) is float:
        found: int | float = value
    elif type(value) is str:
        try:
            found = int(value) if value.isdecimal() else float(_plain(value, whole) if "," in value else value)
        except ValueError:
            raise ValueFault(expected) from None
    else:
        raise ValueFault(expected)
    if not -1e300 < found < 1e300:
        raise ValueFault(expected)
    return found


_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
_FRACTION = re.compile(r"[1-9]\d{0,2}(,\d{3})+\.\d+")
_DECIMAL = re.compile(r"(\d+|\d{1,3}(\.\d{3})+),\d+")


def _plain(text: str, whole: bool) -> str:
    """Return a number with commas without them.  Raises `ValueFault` where a comma may mean either, as in 1,234."""
    text = text.strip()
    if _THOUSANDS.fullmatch(text):
        if whole or text.count(",") > 1:
            return text.replace(",", "")
        raise ValueFault("a number whose comma can mean one thing only")
    if _FRACTION.fullmatch(text):
        return text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text


# --- moments ----------------------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_TIME = r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE = r"(?: ?(?P<zone>[+-]\d\d:?\d\d|Z|UTC|GMT))?"
_DATED = (
    # nginx and Apache, HTTP and mail: 10/Oct/2000:13:55:36 -0700; Tue, 10 Oct 2000 13:55:36 GMT
    re.compile(
        rf"(?:[A-Za-z]{{3}}, )?(?P<day>\d\d?)[/ -](?P<month>[A-Za-z]{{3}})[/ -](?P<year>\d{{4}})[: ]{_TIME}{_ZONE}"
    ),
    # syslog and C: Oct 10 13:55:36 (no year), Oct 10 2000 13:55:36 -0700, Tue Oct 10 13:55:36 UTC 2000
    re.compile(
        rf"(?:[A-Za-z]{{3}} )?(?P<month>[A-Za-z]{{3}}) +(?P<day>\d\d?)(?: (?P<year>\d{{4}}))? {_TIME}{_ZONE}"
        r"(?: (?P<last>\d{4}))?"
    ),
    # ISO 8601 with slashes or a zone apart: 2026/11/21 18:00:00, 2026-11-21 18:00:00.5 +0100
    re.compile(rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]{_TIME}{_ZONE}"),
)
YEAR = 2000
"""The year of dates that name none."""


def unit_of_moment(value: object) -> Unit:
    """Return the unit in which a moment seems to be written: text that is no number is a date, numbers tell by size."""
    try:
        size = abs(number(value, ""))
    except ValueFault:
        return "iso"
    return "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"


def moment_reader(unit: Unit) -> Read:
    """Read moments in a unit, as nanoseconds since 1970 (or since whenever the log counts from)."""
    if unit == "iso":
        return _dated_ns
    scale = NS[unit]
    expected = f"a time in {unit} since 1970"

    def read(value: object) -> int:
        found = number(value, expected)
        ns = found * scale if type(found) is int else round(found * (scale // 1000 or 1)) * (1000 if scale > 1 else 1)
        if not -TIME_NS_MAX < ns < TIME_NS_MAX:
            raise ValueFault(expected)
        return ns

    return read


def _dated_ns(value: object) -> int:
    moment = date_of(value)
    if moment is None:
        raise ValueFault("a date and time as 2026-11-21T18:00:00.5Z or 21/Nov/2026:18:00:00 +0000")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ns = (moment - _EPOCH) // _MICROSECOND * 1000
    if not -TIME_NS_MAX < ns < TIME_NS_MAX:
        raise ValueFault("a date of this time")
    return ns


def date_of(value: object) -> datetime | None:
    """Return a date and time as it stands in a log, with its zone if it has one; None for what is none.

    Without a year it is one of `YEAR`.
    """
    if type(value) is not str:
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        pass
    text = value.strip().strip("[]")
    for pattern in _DATED:
        found = pattern.fullmatch(text)
        if found is not None:
            try:
                return _dated(**found.groupdict())
            except (ValueError, OverflowError):
                return None
    return None


def _dated(
    year: str | None, month: str, day: str, time: str, fraction: str | None, zone: str | None, last: str | None = None
) -> datetime:
    hour, minute, second = int(time[:2]), int(time[3:5]), int(time[6:])
    micros = int((fraction or "0").ljust(6, "0")[:6])
    return _midnight(year or last, month, day, zone) + timedelta(
        hours=_below(hour, 24), minutes=_below(minute, 60), seconds=_below(second, 61), microseconds=micros
    )


def _below(value: int, limit: int) -> int:
    if value >= limit:
        raise ValueError
    return value


@lru_cache
def _midnight(year: str | None, month: str, day: str, zone: str | None) -> datetime:
    place = _MONTHS.find(month.lower())
    number = int(month) if month.isdecimal() else 0 if place % 3 else place // 3 + 1
    offset = None
    if zone is not None:
        minutes = 0 if zone.isalpha() else int(zone[1:3]) * 60 + int(zone[-2:])
        offset = timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes))
    return datetime(int(year or YEAR), number, int(day), tzinfo=offset)


# --- lengths of time, tokens ------------------------------------------------------------------------------------------

_UNIT_NAMES = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "msec": 10**6, "s": 10**9, "sec": 10**9, "secs": 10**9,
    "seconds": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9,
}  # fmt: skip
_PART = r"(\d[\d.,]*) ?([a-zµμ]+)"
_PARTS = re.compile(_PART)
_LENGTH = re.compile(rf"(?:{_PART} ?)+")
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:[.,]\d+)?)")


def length_reader(unit: Unit) -> Read:
    """Read lengths of time in a unit, as nanoseconds; a value with units of its own (323ms, 1m2.5s) is in these."""
    scale = NS[unit]
    expected, most = f"a length of time in {unit}, not negative", LENGTH_S_MAX * NS["s"]

    def read(value: object) -> int:
        if type(value) is str and (not value[-1:].isdecimal() or ":" in value):
            named = _named_ns(value, expected)
            found = number(value, expected) * scale if named is None else named
        else:
            found = number(value, expected) * scale
        if not 0 <= found <= most:
            raise ValueFault(expected)
        return round(found)

    return read


def _named_ns(value: object, expected: str) -> float | None:
    """Return a length of time that names its units, or is written as on a clock; None for one that does not."""
    text = str(value).strip().lower()
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        seconds = float(clock[3].replace(",", "."))
        return ((int(clock[1]) * 60 + int(clock[2])) * 60 + seconds) * NS["s"]
    if _LENGTH.fullmatch(text) is None:
        return None
    total = 0.0
    for amount, unit in _PARTS.findall(text):
        if unit not in _UNIT_NAMES:
            raise ValueFault(expected)
        total += number(amount, expected) * _UNIT_NAMES[unit]
    return total


def names_unit(value: object) -> bool:
    """Return whether a length of time says itself in which unit it is."""
    try:
        return type(value) is str and not is_null(value) and _named_ns(value, "") is not None
    except ValueFault:  # a unit that is none, as in 5b3c
        return False


def tokens(value: object) -> int:
    """Return a number of tokens."""
    if type(value) is int and 0 <= value <= TOKENS_MAX:
        return value
    expected = f"a whole number of tokens from 0 to {TOKENS_MAX}"
    found = number(value, expected, whole=True)
    whole = int(found)
    if whole != found or not 0 <= whole <= TOKENS_MAX:
        raise ValueFault(expected)
    return whole


# --- how a request ended ----------------------------------------------------------------------------------------------

_OUTCOMES = {
    Ending.FINISHED: "ok success succeeded true completed complete finished done stop length tool_calls function_call "
    "content_filter end_turn max_tokens",
    Ending.CANCELLED: "0 000 499 cancelled canceled cancel abort aborted disconnected client_disconnected "
    "client_closed_request",
    Ending.REJECTED: "503 rejected refused denied throttled rate_limited overloaded",
}
_WORDS = {word: outcome for outcome, words in _OUTCOMES.items() for word in words.split()} | {"": Ending.FINISHED}
_TRUE = frozenset({"true", "1", "yes", "stream", "streaming", "sse"})
_FALSE = frozenset({"false", "0", "no"})


def outcome_of(status: str, ok: frozenset[str]) -> Ending:
    """Return how a request ended, by its status.

    Without `ok` an HTTP status tells (2xx finished, 499 given up, other 4xx and 503 refused), or a usual word.  With
    `ok`, only those statuses mean success.
    """
    text = status.lower()
    if text in ok:
        return Ending.FINISHED
    found = _WORDS.get(text)
    if found is None:
        is_http = len(text) == 3 and text.isdecimal()
        found = {"2": Ending.FINISHED, "4": Ending.REJECTED}.get(text[0], Ending.ERROR) if is_http else Ending.ERROR
    return Ending.ERROR if ok and found == Ending.FINISHED else found


def streamed_of(value: object) -> int:
    """Return whether an answer was streamed: 1, 0 or UNKNOWN."""
    text = str(value).lower()
    return 1 if text in _TRUE else 0 if text in _FALSE else UNKNOWN
