"""What a parameter may be: attrs validators whose messages name parameter and value, how text is a number, and what is
said of a wrong one."""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from math import inf
from typing import Any

import attrs

from fairsched.model.pricing import QUANTUM_MAX, RATE_MAX, RUNNING_MAX

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


WHOLE_MAX = 10**12
"""The largest whole number that is taken as text: what is counted with it still fits into 64 bits."""
_WHOLE = re.compile(r"(-?[0-9](?:_?[0-9])*)([kKMGT]|[KMGT]i)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


FOUND_CHARS_MAX = 60
"""So much of a wrong value is repeated."""


def found(text: str) -> str:
    """Return a wrong value as a message repeats it."""
    return repr(text if len(text) <= FOUND_CHARS_MAX else f"{text[:40]}...{text[-15:]}")


def meant(what: str, name: str, known: Iterable[str]) -> str:
    """Return what is said of a name that is not known: the nearest ones, or all."""
    names = list(known)
    lower = {each.lower(): each for each in names}
    near = [lower[each] for each in get_close_matches(name[:100].lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {found(name)}; {hint}"


def whole_number(text: str) -> int | None:
    """Return the whole number in a text, which may have a suffix, or None: 8k is 8,000, 32Ki is 32,768.

    >>> whole_number("8k"), whole_number("2Mi"), whole_number("2.5")
    (8000, 2097152, None)
    """
    matched = _WHOLE.fullmatch(text.strip())
    if matched is None:
        return None
    digits, suffix = matched[1], matched[2] or ""
    if len(digits) > 30:
        return -(WHOLE_MAX**2) if digits.startswith("-") else WHOLE_MAX**2  # More digits than `int` may read.
    unit: int = (1024 if suffix.endswith("i") else 1000) ** _POWERS.get(suffix[:1], 0)
    return int(digits) * unit


def _whole(least: int, most: float, said: str) -> Validator:
    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{attribute.name} is {said}, not {value!r}")

    return validate


positive = _whole(1, inf, "a positive integer")
not_negative = _whole(0, inf, "a whole number of at least 0")
percent = _whole(0, 100, "a whole number from 0 to 100")
rate = _whole(1, RATE_MAX, f"a whole number from 1 to {RATE_MAX:,}")
quantum = _whole(1, QUANTUM_MAX, f"a whole number from 1 to {QUANTUM_MAX:,}")
credit = _whole(0, QUANTUM_MAX, f"a whole number from 0 to {QUANTUM_MAX:,}")
running = _whole(1, RUNNING_MAX, f"a whole number from 1 to {RUNNING_MAX:,}")


def one_of(*choices: str) -> Validator:
    """Return one of a few words."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in choices:
            raise ValueError(f"{attribute.name} is one of {', '.join(choices)}, not {value!r}")

    return validate
