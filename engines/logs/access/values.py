"""The values of an access log, exactly: moments and lengths of time to nanoseconds, numbers of tokens, a status.

A moment that was written as a fraction of seconds since 1970 is good to a microsecond, as floats of that size are.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from fairsched.engines.logs.access.columns import Unit
from fairsched.model.request import TOKENS_MAX

UNKNOWN = -1
"""Stands for what a row does not say."""
NS: dict[str, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME_NS_MAX = 2**62
LENGTH_S_MAX = 10**7

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OK = frozenset(
    {"", "ok", "success", "succeeded", "true", "completed", "complete", "finished", "done", "stop", "length"}
)

Read = Callable[[object], int]


class ValueFault(Exception):
    """A value that is none: what was expected."""


def value_at(row: Mapping[str, object], path: tuple[str, ...]) -> object:
    """What the keys lead to in a row; None if there is nothing."""
    found: object = row
    for key in path:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def number(value: object, expected: str) -> int | float:
    """A finite number, written as one or as text."""
    if type(value) is int or type(value) is float:
        found: int | float = value
    elif type(value) is str:
        try:
            found = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise ValueFault(expected) from None
    else:
        raise ValueFault(expected)
    if not -1e300 < found < 1e300:
        raise ValueFault(expected)
    return found


def unit_of_moment(value: object) -> Unit:
    """The unit in which a moment seems to be written: text that is no number is ISO 8601, numbers tell by size."""
    try:
        size = abs(number(value, ""))
    except ValueFault:
        return "iso"
    return "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"


def moment_reader(unit: Unit) -> Read:
    """Reads moments in a unit, as nanoseconds since 1970 (or since whenever the log counts from)."""
    if unit == "iso":
        return _iso_ns
    scale = NS[unit]
    expected = f"a time in {unit} since 1970"

    def read(value: object) -> int:
        found = number(value, expected)
        ns = found * scale if type(found) is int else round(found * (scale // 1000 or 1)) * (1000 if scale > 1 else 1)
        if not -TIME_NS_MAX < ns < TIME_NS_MAX:
            raise ValueFault(expected)
        return ns

    return read


def _iso_ns(value: object) -> int:
    expected = "a time as in ISO 8601 (2026-11-21T18:00:00.5Z)"
    if type(value) is not str:
        raise ValueFault(expected)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueFault(expected) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ns = (moment - _EPOCH) // _MICROSECOND * 1000
    if not -TIME_NS_MAX < ns < TIME_NS_MAX:
        raise ValueFault(expected)
    return ns


def without_zone(value: object) -> bool:
    """Whether a moment is a time of day somewhere, and its zone is not given."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is None
    except (TypeError, ValueError):
        return False


def length_reader(unit: Unit) -> Read:
    """Reads lengths of time in a unit, as nanoseconds."""
    scale = NS[unit]
    expected = f"a length of time in {unit}, not negative"

    def read(value: object) -> int:
        found = number(value, expected)
        if not 0 <= found * scale <= LENGTH_S_MAX * NS["s"]:
            raise ValueFault(expected)
        return round(found * scale)

    return read


def tokens(value: object) -> int:
    """A number of tokens."""
    expected = f"a whole number of tokens from 0 to {TOKENS_MAX}"
    found = number(value, expected)
    whole = int(found)
    if whole != found or not 0 <= whole <= TOKENS_MAX:
        raise ValueFault(expected)
    return whole


def succeeded(value: object, ok: frozenset[str]) -> bool:
    """Whether a status means success: one of `ok`, or, without any, an HTTP status of 2xx or a usual word."""
    text = str(value).lower()
    if ok:
        return text in ok
    return text in _OK or (len(text) == 3 and text[0] == "2" and text.isdecimal()) or text == "none"
