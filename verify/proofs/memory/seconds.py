"""What is said of waits in seconds, on the shipped text: steps by the latency model, and what a worker does in each.

D-A.2-weighted says what is charged while a client waits.  Here it becomes a time: T-step bounds a step, T-batch says
how many requests run where one more finds no room, T-pace divides a step among the tokens that it computes, and T-curve
adds steps up.  T-first and T-longest go on from the admission to the tokens of the request; T-wait puts them together.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from fairsched.model.algebra import EXACT
from fairsched.model.machine import LatencyModel, Performance
from fairsched.model.pricing import price
from fairsched.model.service import ServiceCurve
from fairsched.model.theorem import CAPACITY_FLOOR, FITS_ALONE, NOTHING_REFUNDED, QUANTUM_POSITIVE, STEPS_IN_TIME
from fairsched.policies.batching import chunks_of
from fairsched.policies.guarantees import SECOND_NS
from fairsched.verify.logic import (
    ArithmeticClaim,
    Bug,
    Condition,
    Functions,
    Shown,
    arithmetic,
    at_least,
    reworded_bugs,
    with_names,
)
from fairsched.verify.proofs.kernels import in_batch, seconds

_PACE = ("c", "k_e", "k_q", "B", "k", "m")
_STEPS = (*at_least(0, "c", "k_e", "k_q"), *at_least(1, "m"), Condition(lambda w: (w.m <= w.k) & (w.k <= w.B)))


def _pace(w: SimpleNamespace) -> Any:
    return SimpleNamespace(constant_ns=w.c, token_ns=w.k_e, row_ns=w.k_q, step_tokens=w.B, running=w.k, least=w.m)


# --- steps by the latency model ---------------------------------------------------------------------------------------


def _model(w: SimpleNamespace) -> Any:
    """Return a latency model of these coefficients, with one piece of decode."""
    piece = SimpleNamespace(batch_min=1, constant_ns=w.c_q, context_token_ns=w.d, request_ns=w.r)
    model = SimpleNamespace(
        prefill_constant_ns=w.c_e,
        prefill_token_ns=w.p,
        prefill_attention_ps=w.a,
        decode=(piece,),
        stages=w.stages,
        kernels=None,
        _piece=lambda _: piece,
    )
    model.decode_ns = partial(LatencyModel.decode_ns, model)  # type: ignore[arg-type]
    return model


@arithmetic(
    seconds.T_STEP,
    ("c_e", "c_q", "p", "a", "d", "r", "stages", "X", "rows", "context", "n1", "x1", "n2", "x2", "products"),
    *at_least(0, "c_e", "c_q", "p", "a", "d", "r", "rows", "context", "n1", "x1", "n2", "x2"),
    *at_least(1, "stages", "X"),
    Condition(lambda w: (w.n1 + w.x1 <= w.X) & (w.n2 + w.x2 <= w.X)),
    Condition(lambda w: w.context <= w.rows * w.X),
    Condition(lambda w: w.n1 + w.n2 + w.rows >= 1),
    Condition(lambda w: w.products == w.n1 * (w.x1 + w.n1) + w.n2 * (w.x2 + w.n2)),
    relaxed=True,
)
def step(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Return two chunks, each behind its context, beside requests that decode over some context in all."""
    model = _model(w)
    line = Performance.of.__func__(SimpleNamespace, model, w.X)  # type: ignore[attr-defined]
    pace = functions.pace_on(line, w.X, w.X, 1, 1)
    attention, tokens = line.prefill_token_ns - w.p, w.n1 + w.n2
    prefill_ps = 1000 * w.p * tokens + w.a * w.products
    taken = LatencyModel.step_ns(model, [(w.n1, w.x1), (w.n2, w.x2)], w.rows, w.context)
    prefill_ns = taken - pace.constant_ns - w.d * w.context - w.r * w.rows
    return {
        "context": w.d * (w.rows * w.X - w.context) >= 0,
        "attention of the first chunk": w.n1 * (w.X - w.x1 - w.n1) >= 0,
        "attention of the second chunk": w.n2 * (w.X - w.x2 - w.n2) >= 0,
        "attention of both": w.a * (tokens * w.X - w.products) >= 0,
        "attention of a token": tokens * (1000 * attention - w.a * w.X) >= 0,
        "prompts": prefill_ps <= 1000 * (w.p + attention) * tokens,
        "prompts take time": (w.p * tokens >= 0) & (w.products >= 0) & (w.a * w.products >= 0),
        "stages do not add to it": (w.stages - 1) * prefill_ps >= 0,
        "less than a nanosecond more for each stage": w.stages * (1000 * (prefill_ns - 1) - prefill_ps) < 0,
        "less than a nanosecond more for prompts": 1000 * (prefill_ns - 1) < prefill_ps,
        "less than a nanosecond more": taken < functions.step_ns_max(pace, tokens, w.rows) + 1,
    }


# --- what a step does -------------------------------------------------------------------------------------------------


@arithmetic(
    seconds.T_BATCH,
    ("M", "X", "k", "running", "held"),
    *at_least(1, "X", "k"),
    *at_least(0, "running", "held"),
    Condition(lambda w: w.held <= w.running * w.X),
    Condition(lambda w: w.X <= w.M, FITS_ALONE),
    Condition(lambda w: (w.M - w.held < w.X) | (w.running >= w.k)),
    attained=lambda: (-(-(100 - 30 + 1) // 30), seconds.least_batch(100, 30, 8)),
)
def batch(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """`running` requests hold `held` tokens, each X at most, and another of X finds no room, or all that may run."""
    least = functions.least_batch(w.M, w.X, w.k)
    if w.running >= w.k:
        return {"all that may run": w.running >= least}
    return {
        "one fewer would leave room": w.X * (least - 1) <= w.M - w.X,
        "more than that is held": w.X * (least - 1 - w.running) < 0,
        "m run": w.running >= least,
    }


@arithmetic(
    seconds.T_PACE,
    (*_PACE, "n", "rows", "first"),
    *_STEPS,
    *at_least(0, "n", "rows", "first"),
    Condition(lambda w: (w.n + w.rows >= w.B) | (w.rows + w.first >= w.m)),
)
def pace(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Return a step of `n` tokens of prompts, which yields a token of `rows` requests and the first one of `first`
    others."""
    of, yields = _pace(w), w.rows + w.first
    output_ns, input_ns = functions.output_ns(of), functions.input_ns(of)
    by_many, by_budget = output_ns - w.k_q, input_ns - w.k_e
    if w.n + w.rows >= w.B:
        spent = {"the budget is spent": by_budget * (w.n + w.rows - w.B) >= 0}
    else:
        spent = {"many yield": by_many * (yields - w.m) >= 0}
    return {
        "of m tokens each has its share": w.m * by_many >= w.c,
        "of B tokens each has its share": (w.B * by_budget >= w.c) & (w.B * (by_budget - 1) < w.c),
        "shares are not negative": (by_many >= 0) & (by_budget >= 0),
        "m <= B": by_many * (w.B - w.m) >= 0,
        "B shares": w.B * (by_budget - 1) < w.B * by_many,
        "a share of m is the larger": by_budget <= by_many,
        "what decodes": w.rows * (by_many - by_budget) >= 0,
        **spent,
        "the rest is not negative": (w.first * by_many >= 0) & (w.first * w.k_q >= 0) & (w.n * by_budget >= 0),
        "within what its tokens take": functions.step_ns_max(of, w.n, w.rows) <= output_ns * yields + input_ns * w.n,
    }


# --- steps one after the other ----------------------------------------------------------------------------------------


@arithmetic(
    seconds.T_CURVE,
    (
        *("c", "B", "a", "b", "w_e", "w_q", "L"),
        *("outputs", "entered", "before", "computed", "charged", "used", "taken", "t", "h"),
    ),
    *at_least(0, "c", "a", "b", "outputs", "entered", "before", "computed", "h"),
    *at_least(1, "B", "w_e", "w_q", "L"),
    Condition(lambda w: w.computed <= w.before + w.entered),
    Condition(lambda w: w.before <= w.B - 1 + w.L),
    Condition(lambda w: w.w_q * w.outputs + w.w_e * w.entered <= w.charged),
    Condition(lambda w: w.used == w.a * w.outputs + w.b * w.entered),
    Condition(lambda w: w.taken <= w.c * (1 + w.h) + w.a * w.outputs + w.b * w.computed),
    Condition(lambda w: w.t <= w.taken, STEPS_IN_TIME),
    relaxed=True,
)
def curve(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Since f began to wait, `outputs` tokens were yielded and `computed` ones of prompts, of which `before` were
    charged earlier; `entered` ones were charged since, and with the outputs `used` is what all of these take.
    By T-pace the steps take, by the latency model, a for each output token, b for each of a prompt, and c more for the
    step under way and for each of the h others."""
    of, rates = SimpleNamespace(constant_ns=w.c, step_tokens=w.B), SimpleNamespace(input=w.w_e, output=w.w_q)
    named = {"output_ns": lambda _: w.a, "input_ns": lambda _: w.b, "ServiceCurve": _curve}
    made = with_names(functions.worker_curve, **named)(of, rates, w.L, w.h)
    until = ServiceCurve.time_ns(made, w.charged)
    whole = until - made.delay_ns
    return {
        "all of it or less": (w.used < whole + 1) | ((made.cost - 1) * (w.used - whole - 1) >= 0),
        "an output token at the rate": made.cost * w.a <= made.ns * w.w_q,
        "a token of a prompt at the rate": made.cost * w.b <= made.ns * w.w_e,
        "outputs": w.outputs * (made.ns * w.w_q - made.cost * w.a) >= 0,
        "prompts": w.entered * (made.ns * w.w_e - made.cost * w.b) >= 0,
        "what is charged": made.ns * (w.charged - w.w_q * w.outputs - w.w_e * w.entered) >= 0,
        "at the rate": made.cost * w.used <= made.ns * w.charged,
        "less than a unit more": made.cost * (whole + 1 - w.used) > 0,
        "rounded down": w.used < whole + 1,
        "prompts begun": w.b * (w.before + w.entered - w.computed) >= 0,
        "not more than may be begun": w.b * (w.B - 1 + w.L - w.before) >= 0,
        "beyond the delay": w.t <= made.delay_ns + w.used,
        "less than a nanosecond more": w.t < until + 1,
    }


def _curve(delay_ns: Any, ns: Any, cost: Any) -> Any:
    """Return a service curve of unknown integers, which are not checked."""
    return SimpleNamespace(delay_ns=delay_ns, ns=ns, cost=cost)


@arithmetic(
    seconds.T_REFILLS,
    ("U", "Q", "refills", "before", "last", "q", "w_e", "x", "longest"),
    *at_least(1, "U", "refills", "w_e", "x"),
    Condition(lambda w: w.Q >= 1, QUANTUM_POSITIVE),
    Condition(lambda w: (w.Q >= 1) | (w.Q <= -1)),  # nothing is divided by zero
    Condition(lambda w: w.before >= 1 - w.U),
    Condition(lambda w: w.before + (w.refills - 1) * w.Q <= w.last),
    Condition(lambda w: w.last <= 0),
    Condition(lambda w: (w.q >= 1) & (w.longest >= w.x + 1)),
    attained=lambda: (3, seconds.refills_max(4, 9)),
)
def refills(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Less what may still be charged for what runs, f owes `before` when it begins to wait, at most U - 1
    (D-pause-range), and has `last` when the last of these refills is made, which is due since f has no credit.  A
    client in credit of q is let in with x tokens to compute of at most `longest`, of which one is an output."""
    most = functions.refills_max(w.Q, w.U)
    return {
        "all but the last": (w.refills - 1) * w.Q <= w.U - 1,
        "no more than fit": w.Q * (w.refills - 1 - most) < 0,
        "refills": w.refills <= most,
        "less than the longest costs": w.w_e * (w.longest - w.x - 1) >= 0,
        "its client may decode": in_batch.may_decode(EXACT, w.q - price(w.x, w.w_e), price(w.longest, w.w_e)),
    }


@arithmetic(
    seconds.T_FIRST,
    ("e", "share", "k", "rows", "steps", "computed", "left"),
    *at_least(1, "e", "share", "k", "steps", "left"),
    *at_least(0, "rows"),
    Condition(lambda w: w.rows <= w.k - 1),
    Condition(lambda w: (w.computed >= 1 + (w.steps - 1) * w.share) & (w.computed + w.left <= w.e)),
    attained=lambda: (3, seconds.prefill_steps(11, 10, 6)),
)
def first(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """After `steps` steps `left` of e tokens are still to compute; the next one decodes `rows` requests, and has at
    least `share` tokens of the budget for prompts."""
    budget, share = w.share + w.k - 1, w.share
    chunks, _ = chunks_of(((0, w.left),), budget - w.rows)
    chunk = chunks[0][1] if chunks else 0
    most = functions.prefill_steps(w.e, budget, w.k)
    return {
        "a step computes its share, or all": (chunk >= share) | (chunk == w.left),
        "shares of the steps in all": (most - 1) * share >= w.e - 1,
        "fewer shares than steps": (w.steps - 1) * share < (most - 1) * share,
        "less than a share more": share * (w.steps - most) < 0,
        "another step is left": w.steps + 1 <= most,
    }


@arithmetic(
    seconds.T_LONGEST,
    (*_PACE, "n", "rows"),
    *_STEPS,
    *at_least(0, "n", "rows"),
    Condition(lambda w: (w.n + w.rows <= w.B) & (w.rows <= w.k)),
)
def longest(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Return a step of `n` tokens of prompts beside `rows` requests that decode."""
    of = _pace(w)
    return {
        "the budget": w.k_e * (w.B - w.n - w.rows) >= 0,
        "more for those that decode": (w.rows * (w.k_q - w.k_e) <= w.k * (w.k_q - w.k_e)) | (w.k_q <= w.k_e),
        "and not less": (w.rows * (w.k_q - w.k_e) <= 0) | (w.k_q >= w.k_e),
        "no step is longer": functions.step_ns_max(of, w.n, w.rows) <= functions.longest_step_ns(of),
    }


_WAIT = (
    *("Q_f", "U_f", "Q_g", "U_g", "D", "W_g", "back", "others", "rest"),
    *("delay_ns", "ns", "cost", "t", "longest", "steps", "first", "taken"),
)
_WAITS = (
    *at_least(1, "Q_f", "Q_g", "U_f", "U_g", "cost"),
    *at_least(0, "D", "back", "ns", "steps"),
    Condition(lambda w: w.back <= 0, NOTHING_REFUNDED),
    Condition(lambda w: w.U_f - 1 >= w.D),
    Condition(lambda w: w.others <= w.rest),
    Condition(lambda w: w.cost * (w.t - w.delay_ns) <= w.ns * (w.others + w.W_g), CAPACITY_FLOOR),
    Condition(lambda w: w.steps <= w.first),
    Condition(lambda w: w.taken <= w.steps * w.longest, STEPS_IN_TIME),
    Condition(lambda w: w.longest >= 0),
)


def _charged(quanta: int) -> Condition:
    """Return what D-A.2-weighted says of W_g, and with one quantum D-late."""
    return Condition(lambda w: w.Q_f * w.W_g <= w.Q_f * (quanta * w.Q_g + w.U_g - 1 + w.back) + w.Q_g * w.D)


def _turns(w: SimpleNamespace, quanta: int, functions: Functions) -> Shown:
    """While f waits g is charged W_g, and all others together `others`, at most `rest`; f is let in after t, and has
    its first token after `steps` steps, which take `taken`."""
    turns = functions.turns_cost(w.Q_f, w.U_f, w.Q_g, quanta)
    beyond, rounds = w.W_g - quanta * w.Q_g - w.U_g + 1, turns - quanta * w.Q_g
    whole = w.rest + turns + w.U_g - 1
    until = ServiceCurve.time_ns(w, whole)  # type: ignore[arg-type]
    return {
        "the deepest debt": w.Q_g * (w.U_f - 1 - w.D) >= 0,
        "rounds": w.Q_f * beyond <= w.Q_g * (w.U_f - 1),
        "less than a round more": w.Q_f * (beyond - rounds) < w.Q_f,
        "at most its turns and what is in flight": w.W_g <= turns + w.U_g - 1,
        "beside all others": w.others + w.W_g <= whole,
        "no slower for more": w.ns * (whole - w.others - w.W_g) >= 0,
        "less than a unit more": w.cost * (w.t - until) < w.cost,
        "let in": w.t <= until,
        "the longest steps": w.longest * (w.first - w.steps) >= 0,
        "the first token": w.t + w.taken <= until + w.first * w.longest,
    }


@arithmetic(seconds.T_WAIT, _WAIT, *_WAITS, _charged(2))
def wait(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Of any client that waits."""
    return _turns(w, 2, functions)


@arithmetic(seconds.T_LATE, _WAIT, *_WAITS, _charged(1))
def late(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """Of one whose request is first in order."""
    return _turns(w, 1, functions)


@arithmetic(
    seconds.T_PAUSED_COST,
    ("n", "Q", "U", "own", "W_f", "W_g", "each", "back", "others"),
    *at_least(1, "Q", "U"),
    Condition(lambda w: w.n >= 2),
    Condition(lambda w: w.back <= 0, NOTHING_REFUNDED),
    Condition(lambda w: w.W_f <= w.own),
    Condition(lambda w: w.each == w.W_f + 2 * (w.Q + w.U - 1) + w.back),
    Condition(lambda w: (w.W_g <= w.each) & (w.others <= (w.n - 2) * w.each)),
    attained=lambda: (2 * (5 + 9 - 1), sum(seconds.paused_costs(2, 5, 9, 0))),
)
def paused_cost(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """By D-pause-lag g is charged W_g while f waits and is charged W_f, at most `each`, and n - 2 others together
    `others`."""
    most = w.own + 2 * (w.Q + w.U - 1)
    return {
        "each at most that": w.each <= most,
        "all others": (w.n - 2) * (most - w.each) >= 0,
        "in all": w.W_f + w.others + w.W_g <= sum(functions.paused_costs(w.n, w.Q, w.U, w.own)),
    }


@arithmetic(
    seconds.T_COUNTED_COST,
    ("n", "U", "R_f", "left", "W_g", "back", "others"),
    *at_least(1, "U"),
    Condition(lambda w: w.n >= 2),
    Condition(lambda w: w.back <= 0, NOTHING_REFUNDED),
    Condition(lambda w: (w.left + w.back >= 0) & (w.R_f <= w.U)),
    Condition(lambda w: (w.W_g <= 2 * w.U - w.left) & (w.others <= (w.n - 2) * (2 * w.U - w.left))),
    attained=lambda: (3 * 7, sum(seconds.counted_costs(2, 7))),
)
def counted_cost(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """While f is not let in it is charged for what was in flight, R_f, all but `left`; by V-4.9-worker, which says that
    W_g - W_f is at most 2U - R_f, g is charged W_g, and n - 2 others together `others`."""
    return {
        "what is left spares others": (w.n - 2) * w.left >= 0,
        "in all": w.R_f - w.left + w.others + w.W_g <= sum(functions.counted_costs(w.n, w.U)),
    }


def _on_curve(w: SimpleNamespace) -> Shown:
    """At most W are charged to all while f waits, for a time t; its first token follows after `steps` steps."""
    until = ServiceCurve.time_ns(w, w.W)  # type: ignore[arg-type]
    return {
        "no slower for more": w.ns * (w.W - w.charged) >= 0,
        "less than a unit more": w.cost * (w.t - until) < w.cost,
        "let in": w.t <= until,
        "the longest steps": w.longest * (w.first - w.steps) >= 0,
        "the first token": w.t + w.taken <= until + w.first * w.longest,
    }


wait_paused, wait_counted = (
    arithmetic(
        theorem,
        ("charged", "W", "delay_ns", "ns", "cost", "t", "longest", "steps", "first", "taken"),
        *at_least(1, "cost"),
        *at_least(0, "ns", "longest"),
        Condition(lambda w: w.charged <= w.W),
        Condition(lambda w: w.cost * (w.t - w.delay_ns) <= w.ns * w.charged, CAPACITY_FLOOR),
        Condition(lambda w: w.steps <= w.first),
        Condition(lambda w: w.taken <= w.steps * w.longest, STEPS_IN_TIME),
    )(_on_curve)
    for theorem in (seconds.T_WAIT_PAUSED, seconds.T_WAIT_COUNTED)
)


@arithmetic(
    seconds.T_WINDOW,
    ("w_e", "w_q", "M", "a", "W", "charged", "work", "early", "late", "back", "t", "of"),
    *at_least(0, "w_e", "w_q", "M", "early", "late", "t"),
    *at_least(1, "a"),
    Condition(lambda w: (w.back <= 0) & (w.of == (w.w_e + w.w_q) * w.M), NOTHING_REFUNDED),
    Condition(lambda w: (w.early + w.late <= w.of) & (w.charged <= w.W + w.back)),
    Condition(lambda w: w.work <= w.charged + w.early + w.late),
    Condition(lambda w: w.a * w.t <= SECOND_NS * w.work, CAPACITY_FLOOR),
    relaxed=True,
)
def window(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """While a client waits for a time t the servers do so much work; some of it was charged before, as prompts, and
    some is charged later, as outputs, at most what a window of tokens costs as one and as the other."""
    rates = SimpleNamespace(input=w.w_e, output=w.w_q)
    made = with_names(functions.work_curve, ServiceCurve=_curve)(rates, w.M, w.a)
    until = ServiceCurve.time_ns(made, w.W)
    return {
        "in units": w.a * w.t <= SECOND_NS * (w.W + w.of),
        "the delay": w.a * made.delay_ns >= SECOND_NS * w.of,
        "the rate": w.a * (until - made.delay_ns + 1) > SECOND_NS * w.W,
        "less than a nanosecond more": w.a * (w.t - until - 1) < 0,
        "in time": w.t < until + 1,
    }


# --- limits of arrivals -----------------------------------------------------------------------------------------------


@arithmetic(
    seconds.T_FIT,
    ("M", "X", "k", "R", "others", "held", "share", "rows", "left", "more"),
    *at_least(1, "X", "k", "share", "left"),
    *at_least(0, "M", "others", "rows", "more"),
    Condition(lambda w: (w.k >= w.R) & (w.R * w.X <= w.M)),
    Condition(lambda w: (w.others + 1 <= w.R) & (w.held <= w.others * w.X)),
    Condition(lambda w: w.rows + 1 <= w.R),
)
def fit(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """`others` hold `held` tokens where one more comes; a step with `rows` requests that decode has two prompts with
    `left` and `more` tokens to compute."""
    chunks, _ = chunks_of(((0, w.left), (1, w.more)), w.share + w.R - 1 - w.rows)
    computed = sum((tokens for _, tokens in chunks), 0)
    return {
        "room in memory": w.X * (w.R - 1 - w.others) >= 0,
        "one more fits": (w.M - w.held >= w.X) & (w.others < w.k),
        "nothing is left, or the share is computed": (computed >= w.share) | (computed == w.left + w.more),
    }


@arithmetic(
    seconds.T_LIMITED,
    ("S", "E", "b", "r", "N", "computed", "arrived", "t"),
    *at_least(0, "S", "b", "r", "computed"),
    *at_least(1, "N"),
    Condition(lambda w: w.r < w.E),
    Condition(lambda w: w.computed >= (w.N - 1) * w.E),
    Condition(lambda w: w.computed + 1 <= w.arrived),
    Condition(lambda w: w.arrived <= w.b + w.r * w.N),
    Condition(lambda w: w.t <= (w.N + 1) * w.S, STEPS_IN_TIME),
    attained=lambda: (4, seconds.limited_steps(10, 21, 0)),
)
def limited(w: SimpleNamespace, functions: Functions = seconds) -> Shown:
    """After the last step that left nothing of what was waiting when it began N further ones follow, in the last of
    which the request has its first token.  By T-fit the others of these compute E tokens each, of the prompts that came
    in the time of N longest steps, and of the request one more is to be computed; t is from the beginning of that step
    to the end of the last one."""
    most = functions.limited_steps(w.E, w.b, w.r)
    return {
        "as many as are full": w.N * (w.E - w.r) <= w.b + w.E - 1,
        "fewer than one more": (w.E - w.r) * (w.N - most) < 0,
        "steps": most >= w.N + 1,
        "longest steps": w.S * (most - w.N - 1) >= 0,
        "in time": w.t <= most * w.S,
    }


def claims() -> tuple[ArithmeticClaim, ...]:
    """Return the claims about the functions."""
    waits = (wait, late, paused_cost, wait_paused, counted_cost, wait_counted)
    return tuple(text() for text in (step, batch, pace, curve, refills, first, longest, *waits, fit, limited, window))


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return reworded_bugs(
        seconds,
        ("prompts take no time", step, "pace_on", "line.prefill_token_ns", "0"),
        ("context is forgotten", step, "step_ns_max", "+ pace.row_ns * rows", ""),
        ("one more runs than must", batch, "least_batch", "max(min(-(-(", "max(min(1-(-("),
        ("a batch is rounded up", batch, "least_batch", "memory_tokens - context_tokens + 1", "memory_tokens"),
        ("a step's constant is shared by all that may run", pace, "output_ns", "pace.least", "pace.running"),
        ("a prompt has no share of the step", pace, "input_ns", "(-pace.constant_ns // pace.step_tokens)", "0"),
        ("the step under way is forgotten", curve, "worker_curve", "(1 + short_steps)", "short_steps"),
        ("short steps are forgotten", curve, "worker_curve", "(1 + short_steps)", "1"),
        ("prompts begun are forgotten", curve, "worker_curve", "begun_tokens(pace, prompt_tokens_max)", "0"),
        ("the faster of two rates", curve, "worker_curve", ">=", "<"),
        (
            "the budget is the prompt's alone",
            first,
            "prefill_steps",
            "step_tokens - running_max + 1",
            "step_tokens",
        ),
        ("the longest step decodes nothing", longest, "longest_step_ns", "* pace.running", "* 0"),
        ("the last refill is forgotten", refills, "refills_max", "return 1 +", "return"),
        (
            "a client is behind by a quantum",
            paused_cost,
            "paused_costs",
            "others * quantum",
            "(clients - 1) * quantum",
        ),
        ("what runs of its own is charged once", paused_cost, "paused_costs", "clients * own_cost", "own_cost"),
        (
            "what is in flight is charged to others only",
            counted_cost,
            "counted_costs",
            "clients * charge",
            "(clients - 1) * charge",
        ),
        ("the step under way is not waited for", limited, "limited_steps", "1 +", "0 +"),
        ("what comes meanwhile is forgotten", limited, "limited_steps", "(share - step_tokens)", "share"),
        ("a debt costs no rounds", wait, "turns_cost", "+ quantum_g *", "+ 0 *"),
        ("outputs are never charged late", window, "work_curve", "(rates.input + rates.output)", "rates.input"),
        ("the last round is forgotten", wait, "turns_cost", "quanta * quantum_g", "quantum_g"),
        ("credit is forgotten", late, "turns_cost", "quanta * quantum_g", "0"),
    )
