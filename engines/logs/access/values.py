"""The values of an access log, exactly: moments and lengths of time to nanoseconds, numbers of tokens, a status.

A moment that was written as a fraction of seconds since 1970 is good to a microsecond, as floats of that size are.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from fairsched.engines.logs.access.columns import Unit
from fairsched.model.request import TOKENS_MAX

UNKNOWN = -1
"""Stands for what a row does not say."""
NS: dict[str, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME_NS_MAX = 2**62
LENGTH_S_MAX = 10**7

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Outcome(IntEnum):
    """How a request ended: with its whole answer, given up by its caller, refused before it ran, or broken off."""

    FINISHED = 0
    CANCELLED = 1
    REJECTED = 2
    ERROR = 3


_OUTCOMES = {
    Outcome.FINISHED: " ok success succeeded true completed complete finished done none null stop length tool_calls "
    "function_call content_filter end_turn max_tokens",
    Outcome.CANCELLED: "0 000 499 cancelled canceled cancel abort aborted disconnected client_disconnected "
    "client_closed_request",
    Outcome.REJECTED: "503 rejected refused denied throttled rate_limited overloaded",
}
_WORDS = {word: outcome for outcome, words in _OUTCOMES.items() for word in words.split()} | {"": Outcome.FINISHED}
_TRUE = frozenset({"true", "1", "yes", "stream", "streaming", "sse"})
_FALSE = frozenset({"false", "0", "no"})

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


def outcome_of(status: str, ok: frozenset[str]) -> Outcome:
    """How a request ended, by its status.

    Without `ok` an HTTP status tells (2xx finished, 499 given up, other 4xx and 503 refused), or a usual word.  With
    `ok`, only those statuses mean success.
    """
    text = status.lower()
    if ok:
        return Outcome.FINISHED if text in ok else _usual(text) or Outcome.ERROR
    return _usual(text)


def _usual(text: str) -> Outcome:
    found = _WORDS.get(text)
    if found is not None:
        return found
    if len(text) == 3 and text.isdecimal():
        return {"2": Outcome.FINISHED, "4": Outcome.REJECTED}.get(text[0], Outcome.ERROR)
    return Outcome.ERROR


def streamed_of(value: object) -> int:
    """Whether an answer was streamed: 1, 0 or UNKNOWN."""
    text = str(value).lower()
    return 1 if text in _TRUE else 0 if text in _FALSE else UNKNOWN
