"""What a parameter may be: attrs validators whose messages name the parameter and the value."""

from collections.abc import Callable
from typing import Any

import attrs

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def positive(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """A positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{attribute.name} is a positive integer, not {value!r}")


def not_negative(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """An integer from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{attribute.name} is a whole number of at least 0, not {value!r}")


def percent(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """A whole number of per cent, from 0 to 100."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{attribute.name} is a whole number from 0 to 100, not {value!r}")


def one_of(*choices: str) -> Validator:
    """One of a few words."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in choices:
            raise ValueError(f"{attribute.name} is one of {', '.join(choices)}, not {value!r}")

    return validate
