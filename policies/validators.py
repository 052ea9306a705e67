"""What a parameter may be: attrs validators whose messages name the parameter and the value."""

from collections.abc import Callable
from math import inf
from typing import Any

import attrs

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _whole(least: int, most: float, said: str) -> Validator:
    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{attribute.name} is {said}, not {value!r}")

    return validate


positive = _whole(1, inf, "a positive integer")
not_negative = _whole(0, inf, "a whole number of at least 0")
percent = _whole(0, 100, "a whole number from 0 to 100")


def one_of(*choices: str) -> Validator:
    """One of a few words."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in choices:
            raise ValueError(f"{attribute.name} is one of {', '.join(choices)}, not {value!r}")

    return validate
