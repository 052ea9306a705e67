"""What work costs: the one place where tokens become charges.

A charge is an integer number of cost units.  Rates are integers, and a client of weight w pays `lcm / w` times as much
as one of weight lcm, so that every division is exact and every charge is at least 1 for at least one token.
"""

from collections.abc import Sequence
from math import lcm
from typing import TypeVar

import attrs
import numpy as np
import numpy.typing as npt

IntOrInts = TypeVar("IntOrInts", int, npt.NDArray[np.int64])


CHARGE_MAX = 1 << 60
"""The most cost units of one charge, one quantum, or U: twice that and more fits into int64.

It follows from what is accepted (theorem charge-limit), so that no kernel overflows (D-int64, V-int64):
"""
RATE_MAX = 1 << 16
"""The largest rate: only the ratio of two rates matters."""
UNIT_RATE_MAX = 1 << 30
"""The largest rate times the lcm of weights, where prices are multiplied by that over the client's own weight."""
CAPACITY_TOKENS_MAX = 1 << 30
"""The largest KV memory of a worker, or window of all servers together, in tokens."""
WEIGHT_MAX = 1 << 20
"""The largest weight, and the largest lcm of weights where prices are multiplied by it."""
QUANTUM_MAX = 1 << 40
"""The largest quantum for weight 1, in cost units."""
RUNNING_MAX = 1 << 20
"""The largest batch, in requests."""


def accepted(what: str, value: int, most: int, least: int = 1) -> None:
    """Raise `ValueError` unless it is a whole number from `least` to `most`: beyond that charges could overflow."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} is a whole number from {least} to {most:,}, not {value!r}")


def _rate(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    accepted(attribute.name, value, RATE_MAX)


@attrs.frozen
class Rates:
    """Cost units for one input token (extend or prompt, as the gate charges) and for one output token.

    The defaults are those of VTC's published code (OSDI'24): an output token costs twice an input token.
    """

    input: int = attrs.field(default=1, validator=_rate)
    output: int = attrs.field(default=2, validator=_rate)


COMMON = Rates(1, 2)
"""The one cost by which policies are compared, whatever each of them charges: computed tokens, 1 in, 2 out."""


def unit_fits(rates: Rates, common: int) -> bool:
    """Return whether prices may be multiplied by the lcm `common` of weights: beyond that charges could overflow."""
    return common <= WEIGHT_MAX and rates.input * common <= UNIT_RATE_MAX and rates.output * common <= UNIT_RATE_MAX


def multipliers(weights: Sequence[int]) -> tuple[int, ...]:
    """Return how many times the basic rate each client pays: lcm of all weights over its own.

    >>> multipliers([4, 1, 2])
    (1, 4, 2)
    """
    common = lcm(*weights)
    return tuple(common // weight for weight in weights)


def price(tokens: int, rate: int, multiplier: int = 1) -> int:
    """Cost units of `tokens` tokens: monotone in each argument, and at least 1 for at least one token."""
    return tokens * rate * multiplier


def charged_tokens(extend_tokens: IntOrInts, cached_tokens: IntOrInts, cached_percent: int) -> IntOrInts:
    """Input tokens that an admission is charged for: those to be computed, and so many per cent of those from the
    cache, rounded up.  Arrays of numbers are taken entry by entry.

    >>> charged_tokens(100, 1_001, 10)
    201
    """
    return extend_tokens + -(-cached_tokens * cached_percent // 100)


def charge_max_reserved(rates: Rates, kv_capacity_tokens: int, input_tokens_max: int) -> int:
    """U when every charged token takes memory: most that one client can be charged after it was last let in.

    Under `MemReserve` the charged input of an admission and the reserved outputs of all the client's requests fit into
    `kv_capacity_tokens` (M), and each admission has 1 to `input_tokens_max` (L) input tokens.  A prompt that is charged
    whole takes memory whole as well, since the cached part of it is pinned while it runs.  The value is tight:
    w_q * M + (w_e - w_q) * (L if w_e >= w_q else 1).

    >>> charge_max_reserved(Rates(1, 2), kv_capacity_tokens=4, input_tokens_max=3)
    7
    """
    last = input_tokens_max if rates.input >= rates.output else 1
    return rates.output * kv_capacity_tokens + (rates.input - rates.output) * last


def charge_max_optimistic(rates: Rates, input_tokens_max: int, output_tokens_max: int, running_max: int) -> int:
    """U when outputs are not reserved: at most `running_max` requests of one client decode `output_tokens_max` each.

    It is what an engine without reservation can promise (`U_dyn` of the refuted row *mem*): larger, but a bound.
    """
    return rates.input * input_tokens_max + rates.output * running_max * output_tokens_max


def charge_max_paused(rates: Rates, context_tokens: int, running_max: int) -> int:
    """U: most that one client can be charged between two looks of the gate, and before the first, in cost units.

    A client in credit is let in for a context of at most `context_tokens`, or one that owes less than the price of
    that goes on; then each of at most `running_max` requests yields a token before the gate looks again.

    >>> charge_max_paused(Rates(1, 2), context_tokens=8_000, running_max=256)
    8512
    """
    return rates.output * running_max + rates.input * context_tokens
