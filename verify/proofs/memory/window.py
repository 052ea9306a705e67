"""What the gateway's window promises the deficit gate: U follows from the tokens of the windows alone.

The gate's theorems rest on MemReserve: what a client is charged from its last admission on is at most U.  Before
servers whose memory is not seen it follows from the window.  U-windows is about any number of servers, U-window about
any number of a client's calls at them, in the window's equations; the others run the shipped functions of
`policies.guarantees.window` on unknown integers and show that they satisfy those equations.  The gap is then D-4.1's
and D-weighted's with this U.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.model.pricing import COMMON
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, Theorem
from fairsched.verify.logic import (
    ArithmeticClaim,
    Bug,
    Claim,
    Clause,
    Condition,
    Event,
    Functions,
    Kind,
    Need,
    Shown,
    System,
    World,
    same,
    total,
    with_names,
)
from fairsched.verify.proofs import arithmetic
from fairsched.verify.proofs.kernels import window

_SOURCE = "this library; for a gateway before servers, whose memory is a window of tokens in flight"

U_WINDOWS = Theorem(
    "U-windows",
    "calls in flight at all servers together hold at most W tokens, the sum of the servers' windows",
    f"{_SOURCE}; for any number of servers",
    (MEM_RESERVE,),
    bound="W",
)
U_WINDOW = Theorem(
    "U-window",
    "from its last admission on a client is charged for at most W tokens, one of a prompt at least among them, "
    "whatever part of a prompt (one token at least) is charged at admission and whatever was in flight",
    f"{_SOURCE}; for any number of calls",
    (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
    bound="W",
    rests_on=("U-windows",),
)
U_COST = Theorem(
    "U-cost",
    "W tokens, one of a prompt at least among them, cost at most U = w_q W - (w_q - w_e) if w_e <= w_q, which one call "
    "attains: U for the gate",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
    bound="w_q W - (w_q - w_e)",
    rests_on=("U-window", "U-half"),
)
U_HALF = Theorem(
    "U-half",
    "of a prompt half, and 1 token at least, is charged at once, and a call holds all that it can be charged",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
)
U_CALLS = Theorem(
    "U-calls",
    "q calls of at most L tokens hold at most qL: a window of calls is one of W = qL tokens",
    f"{_SOURCE}; the shipped text on unknown integers, one call beside q - 1 others",
    (),
    bound="q L",
)
U_ESTIMATE = Theorem(
    "U-estimate",
    "if prompts are at most b times their estimate, calls that hold W tokens come to at most b W: the bound with that",
    f"{_SOURCE}; the shipped text on unknown integers, one call at a time",
    (),
    bound="b W",
)
WINDOW_THEOREMS = (U_WINDOWS, U_WINDOW, U_COST, U_HALF, U_CALLS, U_ESTIMATE)


# --- any number of servers ------------------------------------------------------------------------------------------


def _servers() -> Claim:
    """`held` is what calls hold at each server, of its `window`."""

    def end(o: Any, w: World) -> Mapping[str, Any]:
        return {"held": o.bump(w.held, w.s, -w.x)}

    one = {"s": Kind.POINT, "x": Kind.SCALAR}
    exists = Need(lambda o, w: o.exists(w.s) & (w.x >= 0))
    room = Need(lambda o, w: w.x <= o.pick(w.window, w.s, 0) - o.pick(w.held, w.s, 0), MEM_RESERVE)
    return Claim(
        U_WINDOWS,
        System(
            "windows of servers",
            parameters={"window": Kind.VECTOR},
            laws=(Need(lambda o, w: w.window >= 0),),
            fields={"held": Kind.VECTOR},
            events=(
                Event("forward", lambda o, w: {"held": o.bump(w.held, w.s, w.x)}, one, (exists, room)),
                Event("end", end, one, (exists, Need(lambda o, w: w.x <= o.pick(w.held, w.s, 0)))),
            ),
            derived={"all": lambda o, w: total(o, w.held), "W": lambda o, w: total(o, w.window)},
        ),
        (Clause("nothing is in flight", lambda o, w: same(w.held, 0)),),
        (Clause("0 <= held <= window", lambda o, w: (w.held >= 0) & (w.held <= w.window)),),
        (Clause("sum of held <= W", lambda o, w: w.all <= w.W),),
    )


# --- any number of calls --------------------------------------------------------------------------------------------


def _events() -> tuple[Event, ...]:
    """Of one client's calls: `may` are tokens that may still be charged, `A` and `B` those of prompts and of outputs
    that were charged from the last admission on."""
    one = {"r": Kind.POINT}
    exists = Need(lambda o, w: o.exists(w.r))

    some = Need(lambda o, w: w.x >= 0)
    return (
        Event(
            "forward",
            lambda o, w: {"held": o.put(w.held, w.r, w.c + w.x), "may": o.put(w.may, w.r, w.x), "A": w.c, "B": 0},
            {**one, "c": Kind.SCALAR, "x": Kind.SCALAR},
            (
                exists,
                some,
                Need(lambda o, w: o.pick(w.held, w.r, 0) <= 0),
                Need(lambda o, w: w.c >= 1, CHARGES_AT_LEAST_ONE),
                Need(lambda o, w: w.c >= 0),
                Need(lambda o, w: w.c + w.x <= w.W - w.held_sum, MEM_RESERVE),
            ),
        ),
        Event(
            "output passes",
            lambda o, w: {"may": o.bump(w.may, w.r, -w.x), "B": w.B + w.x},
            {**one, "x": Kind.SCALAR},
            (exists, some, Need(lambda o, w: w.x <= o.pick(w.may, w.r, 0), MEM_RESERVE)),
        ),
        Event(
            "the prompt is settled",
            lambda o, w: {"may": o.bump(w.may, w.r, -w.x - w.less), "A": w.A + w.x},
            {**one, "x": Kind.SCALAR, "less": Kind.SCALAR},
            (
                exists,
                some,
                Need(lambda o, w: w.less >= 0),
                Need(lambda o, w: w.x + w.less <= o.pick(w.may, w.r, 0), MEM_RESERVE),
            ),
        ),
        Event("end", lambda o, w: {"held": o.put(w.held, w.r, 0), "may": o.put(w.may, w.r, 0)}, one, (exists,)),
    )


def _calls() -> Claim:
    def one_of_a_prompt(o: Any, w: World) -> Any:
        return o.where(w.A >= 1, True, (w.B <= 0) & (w.may_sum <= 0))

    return Claim(
        U_WINDOW,
        System(
            "a client's calls in the window",
            parameters={"W": Kind.SCALAR},
            laws=(Need(lambda o, w: w.W >= 2),),
            fields={**dict.fromkeys(("held", "may"), Kind.VECTOR), **dict.fromkeys(("A", "B"), Kind.SCALAR)},
            events=_events(),
            derived={
                "held_sum": lambda o, w: total(o, w.held),
                "may_sum": lambda o, w: total(o, w.may),
            },
        ),
        (
            Clause("nothing is in flight", lambda o, w: same(w.held, 0) & same(w.may, 0)),
            Clause("nothing is charged", lambda o, w: same(w.A, 0) & same(w.B, 0)),
        ),
        (
            Clause("0 <= may <= held", lambda o, w: (w.may >= 0) & (w.may <= w.held)),
            Clause("sum of held <= W", lambda o, w: w.held_sum <= w.W),
            Clause("A, B >= 0", lambda o, w: (w.A >= 0) & (w.B >= 0)),
            Clause("A + B + sum of may <= W", lambda o, w: w.A + w.B + w.may_sum <= w.W),
            Clause("A >= 1 if anything was charged, or may be", one_of_a_prompt),
        ),
        (
            Clause("A + B <= W", lambda o, w: w.A + w.B <= w.W),
            Clause("A >= 1 if anything was charged", lambda o, w: o.where(w.A >= 1, True, w.B <= 0)),
        ),
    )


# --- the window's text, one call beside any others ------------------------------------------------------------------

_CALL = Condition(lambda w: (w.prompt >= 1) & (w.most >= 0))


def _largest_call() -> tuple[int, int]:
    """One call that fills a window of 60 with outputs; `tests/engines/gateway/test_window.py` runs it there."""
    tokens = 60
    outputs = tokens - window.held_tokens(1, 0)
    charged = COMMON.input * window.charged_at_once(1) + COMMON.output * outputs
    return charged, window.charge_max_window(COMMON, tokens)


@arithmetic(
    U_COST,
    ("W", "w_e", "w_q", "A", "B"),
    Condition(lambda w: (w.w_e >= 1) & (w.w_q >= w.w_e)),
    Condition(lambda w: (w.A >= 1) & (w.B >= 0) & (w.A + w.B <= w.W)),
    attained=_largest_call,
)
def cost(w: SimpleNamespace, functions: Functions = window) -> Shown:
    """`A` tokens of prompts and `B` of outputs."""
    charge_max = functions.charge_max_window(SimpleNamespace(input=w.w_e, output=w.w_q), w.W)
    largest = w.w_e * functions.charged_at_once(1) + w.w_q * (w.W - functions.held_tokens(1, 0))
    return {"at most U": w.w_e * w.A + w.w_q * w.B <= charge_max, "U is attained": largest == charge_max}


@arithmetic(U_HALF, ("prompt", "most"), _CALL)
def half(w: SimpleNamespace, functions: Functions = window) -> Shown:
    """What of a prompt is charged when."""
    at_once, held = functions.charged_at_once(w.prompt), functions.held_tokens(w.prompt, w.most)
    return {
        "at least a token is charged at once": at_once >= 1,
        "at most half is left": (at_once <= w.prompt) & (w.prompt - at_once <= at_once),
        "a call holds what it can be charged": held == at_once + (w.prompt - at_once) + w.most,
    }


@arithmetic(
    U_CALLS,
    ("prompt", "most", "q", "L", "others"),
    _CALL,
    Condition(lambda w: (w.prompt + w.most <= w.L) & (w.others <= (w.q - 1) * w.L)),
)
def calls(w: SimpleNamespace, functions: Functions = window) -> Shown:
    """One call of at most L tokens beside q - 1 such."""
    return {"q calls of L tokens": w.others + functions.held_tokens(w.prompt, w.most) <= w.q * w.L}


@arithmetic(
    U_ESTIMATE,
    ("prompt", "most", "prompt_true", "output_true", "b"),
    _CALL,
    Condition(lambda w: (w.b >= 1) & (w.prompt_true <= w.b * w.prompt) & (w.output_true <= w.most)),
)
def estimate(w: SimpleNamespace, functions: Functions = window) -> Shown:
    """A call whose prompt and output were really `prompt_true` and `output_true`."""
    true, held = functions.held_tokens(w.prompt_true, w.output_true), functions.held_tokens(w.prompt, w.most)
    return {"estimates that are b times too low": true <= w.b * held}


def claims(functions: Functions = window) -> tuple[Claim | ArithmeticClaim, ...]:
    """The claims about servers, calls, and the functions."""
    return (_servers(), _calls(), cost(functions), half(functions), calls(functions), estimate(functions))


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""

    def wrong(claim: Callable[..., ArithmeticClaim] = half, **functions: Callable[..., Any]) -> ArithmeticClaim:
        return claim(SimpleNamespace(**{**vars(window), **functions}))

    return (
        Bug("half is rounded down: a prompt of one token goes in for nothing", wrong(charged_at_once=lambda p: p // 2)),
        Bug("a third is charged: a truth of half is charged more than was left", wrong(charged_at_once=_third)),
        Bug("outputs are not held", wrong(held_tokens=lambda p, o: p)),
        Bug("a prompt is held twice: more than L", wrong(calls, held_tokens=lambda p, o: 2 * p + o)),
        Bug("outputs make room", wrong(estimate, held_tokens=lambda p, o: p - o)),
        Bug("a call may be charged what it does not hold", wrong(held_tokens=lambda p, o: p + o - 1)),
        Bug(
            "U is more than any call attains",
            wrong(cost, charge_max_window=lambda rates, tokens: rates.output * tokens),
        ),
        Bug(
            "U forgets outputs",
            wrong(cost, charge_max_window=with_names(window.charge_max_window, charge_max_reserved=_inputs)),
        ),
    )


def _third(prompt: Any) -> Any:
    return (prompt + 2) // 3


def _inputs(rates: Any, tokens: Any, _input_tokens_max: Any) -> Any:
    return rates.input * tokens
