"""Values of options: numbers and sizes, lengths of time, names and assignments, written alike in every command.

A whole number may have a suffix: 8k is 8,000 and 32Ki is 32,768 (k, M, G, T; Ki, Mi, Gi, Ti).  A length of time is 5s,
500ms, 20us, 2min or 1h; a number without a unit has the unit that the option's help names.  Each value has a largest
one, so that what could never be computed is refused at once.
"""

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable

from fairsched.policies.validators import WHOLE_MAX, whole_number

WORKERS_MAX = 10_000
"""Workers, GPUs or processes of one run; a simulated worker takes memory from the start."""
JOBS_MAX = 1024
"""Processes, or threads of one."""
NS_MAX = 2**62
FOUND_CHARS_MAX = 60
"""So much of a wrong value is repeated."""

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|min|h)?")
_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_UNITS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds"}


def found(text: str) -> str:
    """Return a wrong value as a message repeats it."""
    return repr(text if len(text) <= FOUND_CHARS_MAX else f"{text[:40]}...{text[-15:]}")


def number(text: str, expected: str, fits: Callable[[float], bool]) -> float:
    """Return the number in a text; the error says what was expected if there is none, or it does not fit."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise ArgumentTypeError(f"expected {expected}, found {found(text)}")
    return value


def whole(expected: str, least: int = 0, most: int = WHOLE_MAX) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, with or without a suffix."""

    def read(text: str) -> int:
        value = whole_number(text)
        if value is None or not least <= value <= most:
            limit = f" of at most {most:,}" if value is not None and value > most else ""
            raise ArgumentTypeError(f"expected {expected}{limit}, found {found(text)}")
        return value

    return read


natural = whole("a whole number")
positive_int = whole("a positive whole number", 1)
worker_count = whole("a positive whole number", 1, WORKERS_MAX)
job_count = whole("a positive whole number", 1, JOBS_MAX)
seed = whole("a whole number")


def positive_number(text: str) -> float:
    """Return a positive number."""
    return number(text, "a positive number, from 1e-9 to 1e12", lambda value: 1e-9 <= value <= 1e12)


def share(text: str) -> float:
    """Return a share from 0 to 1."""
    return number(text, "a share from 0 to 1", lambda value: 0 <= value <= 1)


def names(text: str) -> list[str]:
    """Return names separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ArgumentTypeError("expected names separated by commas")
    if len(set(parts)) < len(parts):
        raise ArgumentTypeError(f"a name is given twice in {found(text)}")
    return parts


def output_limit(text: str) -> str | int:
    """Return `trace-max`, `oracle` or a positive whole number."""
    return text if text in ("trace-max", "oracle") else positive_int(text)


def rate_scales(text: str) -> list[float]:
    """Return numbers separated by commas, each once."""
    try:
        scales = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected numbers separated by commas, found {found(text)}") from None
    if len(set(scales)) < len(scales):
        raise ArgumentTypeError(f"a rate scale is given twice in {found(text)}")
    return scales


def time_ns(text: str, bare: str = "s") -> int | None:
    """Return a length of time in nanoseconds, whose unit is `bare` unless it names one; None if it is none."""
    matched = _TIME.fullmatch(text.strip())
    value = float(matched[1]) * _NS[matched[2] or bare] if matched else math.inf
    return round(value) if value <= NS_MAX else None


def span(bare: str = "s", least_ns: int = 1) -> Callable[[str], int]:
    """Return what reads a length of time of at least `least_ns`, in nanoseconds."""

    def read(text: str) -> int:
        value = time_ns(text, bare)
        if value is None or value < least_ns:
            raise ArgumentTypeError(
                f"expected a length of time as 5s, 500ms or 2min, or a number of {_UNITS[bare]}, found {found(text)}"
            )
        return value

    return read


span_ns = span()


def assignment(text: str) -> tuple[str, str]:
    """Return the parameter and the value of `PARAM=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ArgumentTypeError(f"expected PARAM=VALUE, found {found(text)}")
    return name, value


def pairs(text: str) -> dict[str, str]:
    """Return the parameters behind a workload's name, `PARAM=VALUE,...`."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in values:
            raise ValueError(f"expected PARAM=VALUE once each after the workload's name, found {found(part)}")
        of, dot, param = key.rpartition(".")
        values[of + dot + param.replace("-", "_")] = value
    return values
