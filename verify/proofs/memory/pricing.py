"""That U, as `fairsched.model.pricing` computes it, is what the gates' theorems need: enough, and not more.

The gates assume MemReserve in cost units: an admission's charge and all that may still be charged to its client are at
most U.  Here it follows from MemReserve in tokens, for every capacity, length and rate, by running the shipped
functions on symbolic integers; and each U is attained, so no smaller constant would do.
"""

from fractions import Fraction
from math import gcd, lcm
from types import FunctionType, SimpleNamespace
from typing import Any

from fairsched.model import pricing
from fairsched.model.theorem import BATCH_BOUNDED, CHARGES_AT_LEAST_ONE, MEM_RESERVE, Scope, Theorem
from fairsched.verify.logic import ArithmeticClaim, Condition, Functions, Shown, SymbolicInt, arithmetic, at_least

_SOURCE = "this library; the papers' constants are loose (w_e L + w_q M) or false (max(w_p L, w_q M) if w_p > w_q)"


_RATES = at_least(1, "w_e", "w_q")
_INPUT = (
    *at_least(0, "computed"),
    Condition(lambda w: w.computed <= w.input),
    *at_least(1, "input"),
    Condition(lambda w: w.input <= w.L),
    Condition(lambda w: w.L <= w.M - 1),
    *at_least(0, "outputs"),
)
_SOMETHING_COMPUTED = Condition(lambda w: w.computed >= 1, CHARGES_AT_LEAST_ONE)
_FITS = Condition(lambda w: w.computed + w.outputs <= w.M, MEM_RESERVE)


def _charged(functions: Functions, w: SimpleNamespace, input_tokens: Any, output_tokens: Any) -> Any:
    return functions.price(input_tokens, w.w_e) + functions.price(output_tokens, w.w_q)


def _rates(w: SimpleNamespace) -> Any:
    return SimpleNamespace(input=w.w_e, output=w.w_q)


@arithmetic(
    Theorem(
        "U-reserved",
        "w_e e + w_q O <= U for an admission of e computed tokens and O reserved outputs, and U is attained",
        _SOURCE,
        (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
        bound="w_q M + (w_e - w_q) (L if w_e >= w_q else 1)",
    ),
    ("M", "L", "w_e", "w_q", "input", "computed", "outputs"),
    *_RATES,
    *_INPUT,
    _SOMETHING_COMPUTED,
    _FITS,
    relaxed=True,
)
def _reserved(w: SimpleNamespace, functions: Functions) -> Shown:
    """Only computed tokens are charged, and each has its own KV."""
    charge_max = functions.charge_max_reserved(_rates(w), w.M, w.L)
    last = w.L if w.w_e >= w.w_q else 1
    return {
        "outputs beside the prompt": w.w_q * (w.M - w.computed - w.outputs) >= 0,
        "the dearest prompt": (w.w_e - w.w_q) * (last - w.computed) >= 0,
        "charge + R <= U": _charged(functions, w, w.computed, w.outputs) <= charge_max,
        "U is attained": _charged(functions, w, last, w.M - last) == charge_max,
    }


@arithmetic(
    Theorem(
        "U-optimistic",
        "w_p p + w_q O <= U when at most k requests of the client run, of at most O_max outputs each; attained",
        _SOURCE,
        (),
        bound="w_p L + w_q k O_max",
    ),
    ("L", "w_e", "w_q", "input", "outputs", "longest", "k"),
    *_RATES,
    Condition(lambda w: w.input <= w.L),
    *at_least(1, "longest", "k"),
    Condition(lambda w: w.outputs <= w.k * w.longest),
)
def _optimistic(w: SimpleNamespace, functions: Functions) -> Shown:
    """Outputs are not reserved, and `k` requests of the client run, each with at most `longest` output tokens."""
    charge_max = functions.charge_max_optimistic(_rates(w), w.L, w.longest, w.k)
    return {
        "charge + R <= U": _charged(functions, w, w.input, w.outputs) <= charge_max,
        "U is attained": _charged(functions, w, w.L, w.k * w.longest) == charge_max,
    }


@arithmetic(
    Theorem(
        "U-paused",
        "w_e e + w_q k <= U for an admission or a debt of e <= L tokens, and then k <= B tokens before the gate looks "
        "again; attained",
        "this library; w_q B or w_e L alone are not enough: B first tokens may be due when the last prompt is let in",
        (BATCH_BOUNDED,),
        bound="w_q B + w_e L",
    ),
    ("L", "B", "w_e", "w_q", "computed", "tokens"),
    *_RATES,
    *at_least(0, "computed", "tokens"),
    *at_least(1, "L", "B"),
    Condition(lambda w: w.computed <= w.L, BATCH_BOUNDED),
    Condition(lambda w: w.tokens <= w.B, BATCH_BOUNDED),
)
def _paused(w: SimpleNamespace, functions: Functions) -> Shown:
    """Look at a client before every step: it is let in while it has credit, and goes on while it owes less."""
    charge_max = functions.charge_max_paused(_rates(w), w.L, w.B)
    return {
        "an admission or a debt, and a batch fit": _charged(functions, w, w.computed, w.tokens) <= charge_max,
        "U is attained": charge_max == _charged(functions, w, w.L, w.B),
    }


@arithmetic(
    Theorem(
        "price",
        "a price is at least 1 for at least one token, monotone, additive, and proportional to the multiplier",
        "this library; a public port prices int(tokens * 0.1), which makes short requests free",
        (CHARGES_AT_LEAST_ONE,),
    ),
    ("tokens", "rate", "multiplier", "more"),
    *at_least(0, "tokens"),
    Condition(lambda w: w.tokens >= 1, CHARGES_AT_LEAST_ONE),
    *at_least(1, "rate", "multiplier"),
    *at_least(0, "more"),
)
def _price(w: SimpleNamespace, functions: Functions) -> Shown:
    """State that a price is fit for theorems that only know it as an integer of at least 1 under a bound."""
    charge = functions.price(w.tokens, w.rate, w.multiplier)
    return {
        "at least 1": charge >= 1,
        "monotone in tokens": charge <= functions.price(w.tokens + w.more, w.rate, w.multiplier),
        "monotone in the rate": charge <= functions.price(w.tokens, w.rate + w.more, w.multiplier),
        "proportional to the multiplier": charge == w.multiplier * functions.price(w.tokens, w.rate),
        "additive in tokens": charge + functions.price(w.more, w.rate, w.multiplier)
        == functions.price(w.tokens + w.more, w.rate, w.multiplier),
    }


@arithmetic(
    Theorem(
        "share",
        "every client pays a whole multiple of the basic rate, at least 1, and the multiples are as 1 / weight",
        "this library: weights without a division that rounds",
        (),
    ),
    ("a", "b"),
    *at_least(1, "a", "b"),
)
def _multipliers(w: SimpleNamespace, functions: Functions) -> Shown:
    """Let two weights stand for any number: a share depends on the others through their common multiple only."""
    a, b = with_contracts(functions.multipliers)((w.a, w.b))
    return {"at least 1": a >= 1, "inverse to the weights": a * w.a == b * w.b}


def with_contracts(function: Any) -> Any:
    """Return the function, in which `lcm` and `gcd` of unknown integers are what their contracts say."""
    return FunctionType(function.__code__, {**function.__globals__, "lcm": _lcm, "gcd": _gcd})


def _lcm(*numbers: Any) -> Any:
    """Return some common multiple; which one is not to be relied on."""
    if not any(isinstance(number, SymbolicInt) for number in numbers):
        return lcm(*numbers)
    common = numbers[0].paths.fresh("lcm")
    for number in numbers:
        common.paths.is_multiple(common, number)
    return common


def _gcd(*numbers: Any) -> Any:
    """Return some common divisor (for mutants, which may ask for it)."""
    if not any(isinstance(number, SymbolicInt) for number in numbers):
        return gcd(*numbers)
    common = numbers[0].paths.fresh("gcd")
    common.paths.assume(common.term >= 1)
    for number in numbers:
        common.paths.is_multiple(number, common)
    return common


# --- staggered finishes -----------------------------------------------------------------------------------------------


def _fits(k: int) -> tuple[Condition, ...]:
    """Return the check, with one input token a request."""
    ordered = [Condition(lambda w: w.r1 >= 0)]
    ordered += [Condition(lambda w, j=j: left(w, j) <= left(w, j + 1)) for j in range(1, k)]  # type: ignore[misc]
    peaks = [
        Condition(lambda w, j=j: (k - j + 1) * (left(w, j) + 1) <= w.M)  # type: ignore[misc]
        for j in range(1, k + 1)
    ]
    return (*ordered, *peaks)


def left(w: SimpleNamespace, j: int) -> Any:
    """r_j."""
    return getattr(w, f"r{j}")


def _decoded(w: SimpleNamespace, k: int) -> Any:
    return sum(left(w, j) for j in range(1, k + 1))


def staggered(k: int) -> ArithmeticClaim:
    """Return the claim for k requests."""
    common = lcm(*range(1, k + 1))
    harmonic = int(sum(Fraction(common, j) for j in range(1, k + 1)))

    def shows(w: SimpleNamespace) -> Shown:
        most = [(common // (k - j + 1)) * w.m - 1 for j in range(1, k + 1)]
        fits = {
            f"attained: fits at finish {j}": (k - j + 1) * (most[j - 1] + 1) <= common * w.m for j in range(1, k + 1)
        }
        return {
            "decoded <= H_k M - k": common * (_decoded(w, k) + k) <= harmonic * w.M,
            "attained at every multiple of lcm(1..k)": sum(most) + k == harmonic * w.m,
            **fits,
        }

    return ArithmeticClaim(
        Theorem(
            f"mem-{k}",
            f"{k} requests admitted by a check that counts staggered finishes decode at most H_{k} M - {k} tokens",
            "this library; the printed 'at most M' is false",
            (),
            bound=f"H_{k} M - {k}",
            scope=Scope.BOUNDED,
        ),
        ("M", "m", *(f"r{j}" for j in range(1, k + 1))),
        (*_fits(k), Condition(lambda w: w.m >= 1)),
        shows,
    )


def staggered_as_printed(k: int = 3) -> ArithmeticClaim:
    """Return what was said instead: that they decode at most M tokens (CV1)."""
    return ArithmeticClaim(
        Theorem("CV1", f"{k} requests admitted so decode at most M tokens", "the constant w_q M", ()),
        ("M", *(f"r{j}" for j in range(1, k + 1))),
        _fits(k),
        lambda w: {"decoded <= M": _decoded(w, k) <= w.M},
    )


def price_claims(functions: Functions = pricing) -> tuple[ArithmeticClaim, ...]:
    """Return the theorems about the pricing functions of `functions`."""
    return (
        _price(functions),
        _multipliers(functions),
        _reserved(functions),
        _optimistic(functions),
        _paused(functions),
    )


def claims() -> tuple[ArithmeticClaim, ...]:
    """Return the theorems about the pricing functions that ship, and about 2 to 5 requests with staggered finishes."""
    return (*price_claims(), *(staggered(k) for k in range(2, 6)))


PRICING_THEOREMS = tuple(claim.theorem for claim in price_claims())
"""The theorems about prices and the constants made of them."""
