"""What the gateway's window promises the deficit gate: U follows from the tokens of the windows, and from its terms.

The gate's theorems rest on MemReserve: what a client is charged from its last admission on is at most U.  Before
servers whose memory is not seen it follows from the window: what calls in flight hold when another is let in (W), what
a client's calls came to beyond that (V), and for how long they hold it (C).  The window counts V, and the monitor has
U with it.  U-windows is about any number of servers, U-window about any number of a client's calls at them,
in the window's equations; the others run the shipped functions of `policies.guarantees.window` on unknown integers and
show that they satisfy those equations.  `tests/engines/gateway/window/test_window_as_proved.py` drives the window that
ships and both systems together.  The gap is then D-4.1's and D-weighted's with this U.
"""

from types import SimpleNamespace
from typing import Any

from fairsched.model.pricing import COMMON
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, Theorem
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import window

_SOURCE = "this library; for a gateway before servers, whose memory is a window of tokens in flight"

U_WINDOWS = Theorem(
    "U-windows",
    "when a call is let in, calls in flight at all servers together hold at most W tokens, the sum of the servers' "
    "windows, and what that call alone holds beyond the room that it needs, whatever some hold beyond their windows",
    f"{_SOURCE}; for any number of servers",
    (MEM_RESERVE,),
    bound="W",
    rests_on=("U-room",),
)
U_ROOM = Theorem(
    "U-room",
    "a call that is no larger than an eighth of the largest window is let in where all of it has room, a larger one "
    "where that eighth is free: no call waits for more, and none goes further beyond the window than it is larger",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
    bound="W / 8",
)
U_WINDOW = Theorem(
    "U-window",
    "from its last admission on a client is charged for at most W + V tokens, one of a prompt at least among them, if "
    "its calls come to at most V more than they hold, prompts, outputs, and what its last one holds beyond the window: "
    "whatever part of a prompt (one token at least) is charged at admission, and whatever was in flight",
    f"{_SOURCE}; for any number of calls",
    (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
    bound="W + V",
    rests_on=("U-windows", "U-reserve"),
)
U_RESERVE = Theorem(
    "U-reserve",
    "a call reserves no more than it declares, leaves no more unreserved than its client may, and its reservation "
    "grows with what comes, up to what it declared",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
)
U_HOLD = Theorem(
    "U-hold",
    "from its last admission on a client is charged at most H = (W + V) C / T output tokens, rounded up, for what its "
    "calls hold, each for a time C at most, and for room that is kept for its next call, together no more than what "
    "was free when the last one was let in for a time C, whenever that is charged",
    f"{_SOURCE}; the shipped text on unknown integers, one call beside any others",
    (),
    bound="(W + V) C / T",
    rests_on=("U-window",),
)
U_COST = Theorem(
    "U-cost",
    "W + V tokens, one of a prompt at least among them, and H output tokens for what was held cost at most "
    "U = w_q (W + V) - (w_q - w_e) + w_q H if w_e <= w_q, which is attained: U for the gate",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
    bound="w_q (W + V) - (w_q - w_e) + w_q H",
    rests_on=("U-window", "U-hold", "U-half"),
)
U_HALF = Theorem(
    "U-half",
    "of a prompt half, and 1 token at least, is charged at once, and what a call holds is all that it can be charged "
    "without being over",
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
U_TRUST = Theorem(
    "U-trust",
    "if calls came as often to what they declare as the last ones to far more than they reserved (one of n + 2 over "
    "o + 1), A of the outputs that a client leaves unreserved would come, whatever it declares",
    f"{_SOURCE}; the shipped text on unknown integers",
    (),
    bound="A (n + 2) / (o + 1)",
)
WINDOW_THEOREMS = (U_WINDOWS, U_ROOM, U_WINDOW, U_RESERVE, U_TRUST, U_HOLD, U_COST, U_HALF, U_CALLS)


# --- any number of servers ------------------------------------------------------------------------------------------


def _room(o: Any, w: v.World) -> Any:
    """Return what one more call may hold: servers that are up have what is left of their windows, the others what they
    are over them (`ServerPool.free_tokens`)."""
    return v.total(o, o.where(w.up, w.left, o.minimum(w.left, 0)))


def _servers() -> v.Claim:
    """`left` is what calls leave of each server's window, negative where they hold more; `then` is what they left of
    all windows when one was let in last, but for what that one held beyond the room that it needed (`n`)."""
    one = {"s": v.POINT, "x": v.SCALAR}
    exists = v.Need(lambda o, w: o.exists(w.s) & (w.x >= 0))
    fits = v.Need(lambda o, w: (w.n <= w.x) & (w.n <= w.room), MEM_RESERVE)
    return v.Claim(
        U_WINDOWS,
        v.System(
            "windows of servers",
            parameters={},
            laws=(),
            fields={"left": v.VECTOR, "up": v.MASK, "then": v.SCALAR},
            events=(
                v.Event(
                    "forward",
                    lambda o, w: {"left": o.bump(w.left, w.s, -w.x), "then": (w.all_left - w.x) + (w.x - w.n)},
                    {**one, "n": v.SCALAR},
                    (exists, fits),
                ),
                v.Event("a reservation grows", lambda o, w: {"left": o.bump(w.left, w.s, -w.x)}, one, (exists,)),
                v.Event("end", lambda o, w: {"left": o.bump(w.left, w.s, w.x)}, one, (exists,)),
                v.Event("servers go up or down", lambda o, w: {"up": w.m}, {"m": v.MASK}),
            ),
            derived={"all_left": lambda o, w: v.total(o, w.left), "room": _room},
        ),
        (v.Clause("nothing was let in", lambda o, w: v.same(w.then, 0)),),
        (
            v.Clause("W + what it was let in beyond its room >= sum of held", lambda o, w: w.then >= 0),
            v.Clause("what is free <= W - sum of held", lambda o, w: w.room <= w.all_left),
        ),
        (v.Clause("W + what it was let in beyond its room >= sum of held", lambda o, w: w.then >= 0),),
    )


# --- any number of calls --------------------------------------------------------------------------------------------


def _events() -> tuple[v.Event, ...]:
    """Of one client's calls: `may` are tokens that are held and not charged, `P` and `B` those of prompts and of
    outputs that were charged from the last admission on, `over` those that nothing held."""
    one = {"r": v.POINT, "x": v.SCALAR}
    exists = v.Need(lambda o, w: o.exists(w.r))
    some = v.Need(lambda o, w: w.x >= 0)
    there = v.Need(lambda o, w: o.pick(w.held, w.r, 0) >= 1)
    counted = v.Need(lambda o, w: w.over + w.x <= w.V, MEM_RESERVE)
    return (
        v.Event(
            "forward",
            lambda o, w: {
                "held": o.put(w.held, w.r, w.c + w.x),
                "may": o.put(w.may, w.r, w.x),
                "over": w.y,
                "P": w.c,
                "B": 0,
            },
            {**one, "c": v.SCALAR, "y": v.SCALAR},
            (
                exists,
                some,
                lambda o, w: (w.y >= 0) & (w.c >= 0),
                lambda o, w: o.pick(w.held, w.r, 0) <= 0,
                v.Need(lambda o, w: w.c >= 1, CHARGES_AT_LEAST_ONE),
                v.Need(lambda o, w: w.y <= w.V, MEM_RESERVE),
                v.Need(lambda o, w: w.c + w.x <= w.W + w.y - w.held_sum, MEM_RESERVE),
            ),
        ),
        v.Event(
            "output passes",
            lambda o, w: {"may": o.bump(w.may, w.r, -w.x), "B": w.B + w.x},
            one,
            (exists, some, v.Need(lambda o, w: w.x <= o.pick(w.may, w.r, 0), MEM_RESERVE)),
        ),
        v.Event(
            "more output than is reserved passes",
            lambda o, w: {"held": o.bump(w.held, w.r, w.grown), "B": w.B + w.x, "over": w.over + w.x},
            {**one, "grown": v.SCALAR},
            (exists, some, there, counted, lambda o, w: (w.grown >= 0) & (w.grown <= w.x)),
        ),
        v.Event(
            "the prompt is settled",
            lambda o, w: {"may": o.bump(w.may, w.r, -w.x - w.less), "P": w.P + w.x},
            {**one, "less": v.SCALAR},
            (
                exists,
                some,
                lambda o, w: w.less >= 0,
                v.Need(lambda o, w: w.x + w.less <= o.pick(w.may, w.r, 0), MEM_RESERVE),
            ),
        ),
        v.Event(
            "the prompt is settled for more than its estimate",
            lambda o, w: {"P": w.P + w.x, "over": w.over + w.x},
            one,
            (exists, some, there, counted),
        ),
        v.Event(
            "end",
            lambda o, w: {"held": o.put(w.held, w.r, 0), "may": o.put(w.may, w.r, 0)},
            {"r": v.POINT},
            (exists,),
        ),
    )


def _calls() -> v.Claim:
    """`held` is what each call holds, `over` what the client's calls came to beyond that since its last admission."""

    def one_of_a_prompt(o: Any, w: v.World) -> Any:
        return o.where(w.P >= 1, True, (w.B <= 0) & (w.held_sum <= 0))

    return v.Claim(
        U_WINDOW,
        v.System(
            "a client's calls in the window",
            parameters={"W": v.SCALAR, "V": v.SCALAR},
            laws=(lambda o, w: (w.W >= 2) & (w.V >= 0),),
            fields={**v.vectors("held", "may"), **v.scalars("over", "P", "B")},
            events=_events(),
            derived={"held_sum": lambda o, w: v.total(o, w.held), "may_sum": lambda o, w: v.total(o, w.may)},
        ),
        (
            v.Clause("nothing is in flight", lambda o, w: v.same(w.held, 0) & v.same(w.may, 0) & v.same(w.over, 0)),
            v.Clause("nothing is charged", lambda o, w: v.same(w.P, 0) & v.same(w.B, 0)),
        ),
        (
            v.Clause("0 <= may <= held", lambda o, w: (w.may >= 0) & (w.may <= w.held)),
            v.Clause("0 <= over <= V", lambda o, w: (w.over >= 0) & (w.over <= w.V)),
            v.Clause("P, B >= 0", lambda o, w: (w.P >= 0) & (w.B >= 0)),
            v.Clause("P + B + sum of may <= W + over", lambda o, w: w.P + w.B + w.may_sum <= w.W + w.over),
            v.Clause("P >= 1 if anything was charged, or is held", one_of_a_prompt),
        ),
        (
            v.Clause("P + B <= W + V", lambda o, w: w.P + w.B <= w.W + w.V),
            v.Clause("P >= 1 if anything was charged", lambda o, w: o.where(w.P >= 1, True, w.B <= 0)),
        ),
    )


# --- the window's text, one call beside any others ------------------------------------------------------------------

_CALL = v.Condition(lambda w: (w.prompt >= 1) & (w.reserved >= 0) & (w.reserved <= w.most))


def _largest_calls() -> tuple[int, int]:
    """Return calls that fill a window of 60 and come to 20 more, whose outputs all come at once and that are held for
    ten times T; `tests/engines/gateway/window/test_window.py` runs them there."""
    tokens, overrun, call_ns, hold_ns = 60, 20, 600, 60
    reserved = tokens - window.held_tokens(1, 0)
    outputs = window.grown_outputs(reserved, reserved + overrun, reserved + overrun)
    held = window.hold_units(window.held_tokens(1, outputs) * call_ns, hold_ns)
    charged = COMMON.input * window.charged_at_once(1) + COMMON.output * (outputs + held)
    most = window.hold_units_max(tokens + overrun, call_ns, hold_ns)
    return charged, window.charge_max_window(COMMON, tokens, overrun, most)


@v.arithmetic(
    U_COST,
    ("V", "w_e", "dearer", "more", "B", "left", "h", "spare"),
    v.Condition(lambda w: (w.w_e >= 1) & (w.dearer >= 0)),
    v.Condition(lambda w: (w.more >= 0) & (w.B >= 0) & (w.left >= 0) & (w.V >= 0) & (w.spare >= 0)),
    attained=_largest_calls,
)
def cost(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """`more` tokens of prompts than one, `B` of outputs, `h` for what was held; `left` of W + V, `spare` of H not used.

    So all products are of what is not negative, which both solvers decide.
    """
    w_q, prompts, held = w.w_e + w.dearer, 1 + w.more, w.h + w.spare
    tokens = prompts + w.B + w.left - w.V
    charge_max = functions.charge_max_window(SimpleNamespace(input=w.w_e, output=w_q), tokens, w.V, held)
    outputs = tokens - functions.held_tokens(1, 0) + w.V
    largest = w.w_e * functions.charged_at_once(1) + w_q * (outputs + held)
    return {"at most U": w.w_e * prompts + w_q * (w.B + w.h) <= charge_max, "U is attained": largest == charge_max}


@v.arithmetic(
    U_RESERVE,
    ("predicted", "declared", "left", "came"),
    v.Condition(lambda w: (w.predicted >= 0) & (w.declared >= 0) & (w.left >= 0)),
)
def reserve(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return a call whose client may leave `left` outputs unreserved, and of which `came` came."""
    reserved = functions.reserved_outputs(w.predicted, w.declared, w.left)
    grown = functions.grown_outputs(reserved, w.came, w.declared)
    return {
        "no more than is declared": (reserved >= 0) & (reserved <= w.declared),
        "the client's limit": w.declared - reserved <= w.left,
        "no more than is predicted if the limit allows": v.if_then(
            w.declared - w.predicted <= w.left, reserved <= w.predicted
        ),
        "it grows, up to what is declared": (grown >= reserved) & (grown <= w.declared),
        "what came is reserved": v.if_then(w.came <= w.declared, grown >= w.came),
        "and nothing else": v.if_then(w.came <= reserved, grown == reserved),
    }


@v.arithmetic(
    U_HOLD,
    ("before", "others", "rest", "held", "most", "span", "spare", "kept", "C", "T"),
    v.Condition(lambda w: (w.T >= 1) & (w.C >= 0) & (w.before >= 0)),
    v.Condition(lambda w: (w.rest >= 0) & (w.others <= w.rest * w.C) & (w.spare >= 0) & (w.kept <= w.spare * w.C)),
    v.Condition(lambda w: (w.held >= 0) & (w.held <= w.most) & (w.span >= 0) & (w.span <= w.C)),
    attained=lambda: (window.hold_units(80 * 600, 60), window.hold_units_max(80, 600, 60)),
)
def hold(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return tokens times time: `before` the last admission, and after it of `others`, which may hold `rest` tokens,
    and of one call, which may hold `most` and held `held` for a while; `spare` tokens were free, and `kept` is what was
    kept for the next call."""
    tokens = w.rest + w.most + w.spare
    after = w.others + w.held * w.span + w.kept
    charged = functions.hold_units(w.before + after, w.T) - functions.hold_units(w.before, w.T)
    return {
        "what a call holds is below what it may": w.held * w.span <= w.most * w.C,
        "what all hold is below what they may": after <= tokens * w.C,
        "at most H": charged <= functions.hold_units_max(tokens, w.C, w.T),
    }


@v.arithmetic(U_HALF, ("prompt", "most", "reserved"), _CALL)
def half(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return what of a prompt is charged when."""
    at_once, held = functions.charged_at_once(w.prompt), functions.held_tokens(w.prompt, w.reserved)
    return {
        "at least a token is charged at once": at_once >= 1,
        "at most half is left": (at_once <= w.prompt) & (w.prompt - at_once <= at_once),
        "what it holds is all that it can be charged": held == at_once + (w.prompt - at_once) + w.reserved,
    }


@v.arithmetic(
    U_CALLS,
    ("prompt", "most", "reserved", "q", "L", "others"),
    _CALL,
    v.Condition(lambda w: (w.prompt + w.most <= w.L) & (w.others <= (w.q - 1) * w.L)),
)
def calls(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return one call of at most L tokens beside q - 1 such."""
    return {"q calls of L tokens": w.others + functions.held_tokens(w.prompt, w.reserved) <= w.q * w.L}


@v.arithmetic(
    U_ROOM,
    ("tokens", "window", "free"),
    v.Condition(lambda w: (w.tokens >= 1) & (w.window >= 2) & (w.free >= 0)),
    attained=lambda: (window.room_needed(80, 80), 10),
)
def room(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return a call of so many tokens before servers of which the largest takes `window`, and `free` are free."""
    needed, fits = functions.room_needed(w.tokens, w.window), functions.room_needed(w.tokens, w.window) <= w.free
    return {
        "a token at least, and no more than it holds": (needed >= 1) & (needed <= w.tokens),
        "a small call has room for all of it": v.if_then(fits & (8 * w.tokens <= w.window), w.tokens <= w.free),
        "no call waits for more than an eighth": v.if_then(8 * w.free >= w.window, fits),
        "what is over is less than the call": v.if_then(fits & (w.tokens > w.free), w.tokens - w.free < w.tokens),
    }


@v.arithmetic(
    U_TRUST,
    ("A", "n", "o"),
    v.Condition(lambda w: (w.A >= 0) & (w.n >= 0) & (w.o >= 0) & (w.o <= w.n)),
)
def trust(w: SimpleNamespace, functions: v.Functions = window) -> v.Shown:
    """Return a client of whose last n requests o came to far more than they reserved."""
    most = functions.unreserved_max(w.A, w.n, w.o)
    return {
        "A is to be expected": most * (w.o + 1) <= w.A * (w.n + 2),
        "and no less": (most + 1) * (w.o + 1) > w.A * (w.n + 2),
        "at least A": most >= w.A,
    }


def claims() -> tuple[v.Claim | v.ArithmeticClaim, ...]:
    """Return the claims about servers, calls, and the functions."""
    texts = (room, reserve, trust, hold, cost, half, calls)
    return (_servers(), _calls(), *(text() for text in texts))


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return v.reworded_bugs(
        window,
        ("half is rounded down: a prompt of one token goes in for nothing", half, "charged_at_once", " + 1)", ")"),
        ("a third is charged: half of the truth is more than was left", half, "charged_at_once", "1) // 2", "2) // 3"),
        ("outputs are not held", half, "held_tokens", " + output_tokens", ""),
        ("a call may be charged what it does not hold", half, "held_tokens", "+ output_tokens", "+ output_tokens - 1"),
        ("a prompt is held twice: more than L", calls, "held_tokens", "prompt_tokens +", "2 * prompt_tokens +"),
        ("a large call empties the window", room, "room_needed", "max(window_tokens // 8, 1)", "tokens"),
        ("any room lets any call in", room, "room_needed", "return min(", "return min(1, "),
        ("nothing is needed of a tiny window", room, "room_needed", "max(window_tokens // 8, 1)", "window_tokens // 8"),
        ("a record of far more earns trust", trust, "unreserved_max", " // (overran + 1)\n", "\n"),
        ("trust without a record", trust, "unreserved_max", "tokens * (requests + 2)", "tokens * (requests + 3)"),
        ("what is predicted is reserved", reserve, "reserved_outputs", "declared - unreserved_left", "0"),
        ("a prediction beyond what is declared", reserve, "reserved_outputs", "min(declared, predicted)", "predicted"),
        ("all that is declared is reserved", reserve, "reserved_outputs", " - unreserved_left", ""),
        ("a reservation does not grow", reserve, "grown_outputs", "max(reserved, produced)", "reserved"),
        ("a reservation grows beyond what is declared", reserve, "grown_outputs", "return min(", "return max("),
        ("nanoseconds are charged as units", hold, "hold_units", " // hold_ns", ""),
        ("parts of a unit are forgotten: H is rounded down", hold, "hold_units_max", "-(-tokens", "(tokens"),
        ("U is more than any call attains", cost, "charge_max_window", "* hold_tokens", "* (hold_tokens + 1)"),
        ("U forgets what is over", cost, "charge_max_window", "window_tokens + overrun_tokens", "window_tokens"),
        ("U forgets what is held", cost, "charge_max_window", " + rates.output * hold_tokens", ""),
        (
            "U forgets outputs",
            cost,
            "charge_max_window",
            "charge_max_reserved(rates, window_tokens + overrun_tokens, 1)",
            "rates.input * window_tokens",
        ),
    )
