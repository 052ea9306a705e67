"""Nothing overflows: every intermediate of every kernel stays within 2^62, for declared ranges of its inputs.

Proofs are about unbounded integers and production runs on int64.  Here each kernel function is run under an algebra
that notes every number it computes on the way; the claim is that all of them are in range, for every number of
clients.  Deficits never leave [1 - U, Q + B] (D-range), so quanta, U and B of at most 2^60 suffice for ever.  Counters
grow: 2^61 units is the horizon (V-total says that no counter is above all that was ever charged), and the gate stops
there with an error, after every charge and every change of its unit.

charge-limit says that no charge, quantum or U of what is accepted is above 2^60: it runs the shipped prices on the
largest lengths, rates, weights and memories that configurations and events take (`model.pricing.accepted`).
"""

import operator
from collections.abc import Callable, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any

import attrs

from fairsched.model import pricing
from fairsched.model.algebra import Algebra
from fairsched.model.request import TOKENS_MAX
from fairsched.model.theorem import Theorem
from fairsched.policies.gates import BAND_INT64, COUNTER_MAX, L_INT64, PERCENT, V_INT64, V_TOTAL
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import counter_system
from fairsched.verify.proofs.kernels import bands, counter, deficit, leased

LIMIT = 1 << 62
"""Every intermediate is below this, which leaves int64 a bit to spare."""
CHARGE_LIMIT = pricing.CHARGE_MAX
"""Most that a quantum, a charge, U or B may be."""
HORIZON = COUNTER_MAX
"""Most that a counter may be: the gate ends in an error where one would be more."""


def _noted(operate: Callable[[Any, Any], Any], *, logged: bool = True) -> Callable[["_Noted", Any], "_Noted"]:
    """Return the method that computes on the values, and notes what it computes if that is a number."""

    def method(self: "_Noted", other: Any) -> "_Noted":
        value = operate(self.value, _plain(other))
        if logged:
            self.log.append(value)
        return _Noted(value, self.log)

    return method


class _Noted:
    """A value of some interpretation that notes every number computed from it."""

    __slots__ = ("log", "value")

    def __init__(self, value: Any, log: list[Any]) -> None:
        self.value = value
        self.log = log

    def __neg__(self) -> "_Noted":
        return 0 - self

    __add__ = __radd__ = _noted(operator.add)
    __sub__ = _noted(operator.sub)
    __rsub__ = _noted(lambda a, b: b - a)
    __mul__ = _noted(operator.mul)
    __floordiv__ = _noted(operator.floordiv)
    __gt__ = _noted(operator.gt, logged=False)
    __ge__ = _noted(operator.ge, logged=False)
    __lt__ = _noted(operator.lt, logged=False)
    __le__ = _noted(operator.le, logged=False)
    __and__ = __rand__ = _noted(operator.and_, logged=False)
    __or__ = __ror__ = _noted(operator.or_, logged=False)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Noted) else value


class _Noting:
    """The words of `o` on noted values: a result of `pick`, `bump`, `put`, `where` and the like is noted too."""

    def __init__(self, o: Algebra, log: list[Any]) -> None:
        self.o = o
        self.log = log

    def __getattr__(self, word: str) -> Callable[..., _Noted]:
        def run(*arguments: Any) -> _Noted:
            result = getattr(self.o, word)(*map(_plain, arguments))
            if word == "bump":
                self.log.append(result)
            return _Noted(result, self.log)

        return run


def in_range(o: Algebra, kernel: Callable[..., Any], like: v.Term, *arguments: Any) -> v.Term:
    """Return the mask of the clients at which every number that `kernel` computes of `arguments` is within `LIMIT`."""
    log: list[Any] = []
    kernel(_Noting(o, log), *(_Noted(argument, log) for argument in arguments))
    within = like | True
    for number in log:
        within = within & ((number <= LIMIT) & (number >= -LIMIT))
    return within


_CLOSED_FORMS = frozenset({"refill_rounds", "rescaled", "topped_up"})
"""What multiplies or divides, and so is no kernel for the guard."""


def _computes(name: str, kernel: Callable[..., Any], facts: Mapping[str, v.Kind], *needs: v.Need) -> v.Event:
    """Return the event in which a kernel function is run; the arguments are the fields and facts of its parameters'
    names."""
    names = list(signature(kernel).parameters)[1:]

    def step(o: Algebra, w: v.World) -> v.Written:
        return {"fits": in_range(o, kernel, w.fits, *(getattr(w, name) for name in names))}

    return v.Event(name, step, facts, needs, () if name in _CLOSED_FORMS else (kernel,))


_POINT = {"p": v.POINT}
_CHARGE = {"charge": v.SCALAR}
_CHARGES = {"charge": v.VECTOR}
_AMOUNT = {"amount": v.SCALAR}
_SMALL_CHARGE = v.Need(lambda o, w: (w.charge >= 0) & (w.charge <= CHARGE_LIMIT))
_SMALL_AMOUNT = v.Need(lambda o, w: (w.amount >= 0) & (w.amount <= CHARGE_LIMIT))
_SMALL_KV = v.Need(lambda o, w: (w.kv_tokens <= CHARGE_LIMIT) & (w.kv_tokens >= -CHARGE_LIMIT))

_FITS = v.Clause("every number is within 2^62", lambda o, w: w.fits)


def _claim(
    theorem: Any, name: str, parameters: Mapping[str, v.Kind], laws: tuple[v.Need, ...], *events: v.Event
) -> v.Claim:
    of = v.System(name, parameters, laws, {"fits": v.MASK}, events, closed_forms=True)
    return v.Claim(theorem, of, (_FITS,), (_FITS,), (_FITS,))


def _deficit_claim(kernel: v.Functions) -> v.Claim:
    names = ("q", "quantum", "score", "in_flight")
    return _claim(
        deficit.D_INT64,
        "numbers of the deficit gate",
        {**v.vectors(*names), **dict.fromkeys(("queued", "known", "ready"), v.MASK)},
        (
            v.Need(lambda o, w: (w.quantum >= 1) & (w.quantum <= CHARGE_LIMIT)),
            v.Need(lambda o, w: (w.q >= 1 - CHARGE_LIMIT) & (w.q <= w.quantum + CHARGE_LIMIT)),
            v.Need(lambda o, w: (w.in_flight >= 0) & (w.in_flight <= CHARGE_LIMIT)),
        ),
        _computes("refill", kernel.refill, {}),
        _computes("refill_rounds", kernel.refill_rounds, {}),
        _computes("choose", kernel.choose, {}),
        _computes("admit", kernel.admit, {**_POINT, **_CHARGE}, _SMALL_CHARGE),
        _computes("decode", kernel.decode, _CHARGES, _SMALL_CHARGE),
        _computes("refund", kernel.refund, {**_POINT, **_AMOUNT}, _SMALL_AMOUNT),
        _computes("reconfigure", kernel.reconfigure, {}),
        _computes("reserve", kernel.reserve, {**_POINT, "kv_tokens": v.SCALAR}, _SMALL_KV),
        _computes("under_cap", kernel.under_cap, {**_POINT, "kv_tokens": v.SCALAR, "cap": v.SCALAR}, _SMALL_KV),
        _computes("rejoin_printed", kernel.rejoin_printed, _POINT),
    )


def _lease_claim(kernel: v.Functions) -> v.Claim:
    """Serials are of 64 bits and are only compared."""
    small = ("q", "pool", "balance", "moved")
    return _claim(
        L_INT64,
        "numbers of a shared account",
        {**v.vectors(*small, "quantum"), **dict.fromkeys(("waiting", "asks", "known"), v.MASK), "most": v.SCALAR},
        (
            v.Need(lambda o, w: (w.quantum >= 1) & (w.quantum <= CHARGE_LIMIT)),
            v.Need(lambda o, w: (w.most >= 1) & (w.most <= CHARGE_LIMIT)),
            *(v.Need(lambda o, w, name=name: _small(w, name, CHARGE_LIMIT, -CHARGE_LIMIT)) for name in small),  # type: ignore[misc]
            v.Need(lambda o, w: v.implies(o, w.waiting, w.known)),
        ),
        _computes("pooled", kernel.pooled, {}),
        _computes("topped_up", kernel.topped_up, {}),
        _computes("leased", kernel.leased, {}),
        _computes("left_over", kernel.left_over, {}),
    )


def _counter_claim(kernel: v.Functions) -> v.Claim:
    return _claim(
        V_INT64,
        "numbers of the counter gate",
        {"c": v.VECTOR, "floor": v.VECTOR, "queued": v.MASK, "last": v.POINT},
        (v.Need(lambda o, w: (w.c <= HORIZON) & (w.floor >= 0) & (w.floor <= w.c)),),
        _computes("level", kernel.level, {}),
        _computes("lift", kernel.lift, _POINT),
        _computes("lifted_to", kernel.lifted_to, _POINT),
        _computes("choose", kernel.choose, {}),
        _computes("admit", kernel.admit, {**_POINT, **_CHARGE}, _SMALL_CHARGE),
        _computes("decode", kernel.decode, _CHARGES, _SMALL_CHARGE),
        _computes("refund", kernel.refund, {**_POINT, **_AMOUNT}, _SMALL_AMOUNT),
        _computes(
            "rescaled",
            kernel.rescaled,
            {"finer": v.SCALAR},
            v.Need(lambda o, w: (w.finer >= 1) & (v.product(w.c, w.finer) <= HORIZON)),
        ),
    )


def _small(w: v.World, name: str, most: int = CHARGE_LIMIT, least: int = 0) -> v.Term:
    return (getattr(w, name) >= least) & (getattr(w, name) <= most)


def _band_claim(kernel: v.Functions) -> v.Claim:
    counts = v.Need(lambda o, w: _small(w, "gain") & _small(w, "cost"))
    both = v.vectors("gain", "cost")
    masks = dict.fromkeys(("waiting", "ready", "alone"), v.MASK)
    return _claim(
        BAND_INT64,
        "numbers of priority bands",
        v.vectors("lag", "floor", "rank"),
        (v.Need(lambda o, w: _small(w, "floor") & _small(w, "lag", 2 * CHARGE_LIMIT, -2 * CHARGE_LIMIT)),),
        _computes("choose", kernel.choose, masks),
        _computes("charged", kernel.charged, {**both, "alone": v.MASK}, counts),
        _computes("refunded", kernel.refunded, both, counts),
    )


def _total_claim(kernel: v.Functions) -> v.Claim:
    """`S` is all that was ever charged; a lift only copies a counter, so none is above it."""
    alone = counter_system(kernel)
    charged: dict[str, Callable[[Algebra, v.World], Any]] = {
        "admit": lambda o, w: w.x,
        "admit the last that waits": lambda o, w: w.x,
        "correct": lambda o, w: w.x,
        "decode": lambda o, w: v.total(o, w.d),
    }

    def summed(event: v.Event) -> v.Event:
        cost = charged.get(event.name)
        return event if cost is None else v.and_also(event, S=lambda o, w, _: w.S + cost(o, w))

    held = tuple(event for event in alone.events if event.excluded_by is None)
    below = v.Clause("0 <= floor <= c <= S", lambda o, w: (w.floor >= 0) & (w.floor <= w.c) & (w.c <= w.S))
    return v.Claim(
        V_TOTAL,
        attrs.evolve(alone, fields={**alone.fields, "S": v.SCALAR}, events=tuple(map(summed, held))),
        (v.Clause("c = 0, floor = 0, S = 0", lambda o, w: v.same(w.c, 0) & v.same(w.floor, 0) & v.same(w.S, 0)),),
        (below,),
        (below,),
    )


# --- what is accepted -------------------------------------------------------------------------------------------------

CHARGE_LIMIT_HOLDS = Theorem(
    "charge-limit",
    "no event charges more than 2^60 cost units, no quantum is larger, and neither is U: for tokens, rates, weights, "
    "batches and memories of any size that is accepted",
    "this library; the shipped text of model/pricing.py on its shipped limits, which constructors and events enforce",
    bound="2^60",
)


def _up_to(most: int, *names: str, least: int = 0) -> tuple[v.Condition, ...]:
    below = (v.Condition(lambda w, name=name: getattr(w, name) <= most) for name in names)  # type: ignore[misc]
    return (*v.at_least(least, *names), *below)


@v.arithmetic(
    CHARGE_LIMIT_HOLDS,
    ("tokens", "rate", "share", "M", "A", "H", "L", "w_e", "w_q", "longest", "k", "weight", "quantum"),
    *_up_to(pricing.CAPACITY_TOKENS_MAX, "tokens", "M", "A", "H"),
    *_up_to(TOKENS_MAX, "L", "longest"),
    *_up_to(pricing.RATE_MAX, "rate", "w_e", "w_q", least=1),
    *_up_to(pricing.WEIGHT_MAX, "weight", least=1),
    *v.at_least(1, "share"),
    v.Condition(lambda w: w.rate * w.share <= pricing.UNIT_RATE_MAX),
    *_up_to(pricing.RUNNING_MAX, "k"),
    *_up_to(pricing.QUANTUM_MAX, "quantum", least=1),
    relaxed=True,
)
def limits(w: SimpleNamespace, functions: v.Functions = pricing) -> v.Shown:
    """State that an event of one client has at most `tokens` tokens: a prompt, or the outputs of a step, which all lie
    in memory.

    `A` and `H` are what a window before servers adds; `share` is what a price is multiplied by, the lcm of weights over
    the client's at most (`pricing.unit_fits`).
    """
    rates = SimpleNamespace(input=w.w_e, output=w.w_q)
    reserved = functions.charge_max_reserved(rates, w.M + w.A, w.L) + functions.price(w.H, w.w_q)
    optimistic = functions.charge_max_optimistic(rates, w.L + w.longest, w.longest, w.k)
    return {
        "a charge in units of no weight": functions.price(w.tokens, w.rate) <= CHARGE_LIMIT,
        "a charge": functions.price(w.tokens, w.rate, w.share) <= CHARGE_LIMIT,
        "U of reserved outputs": reserved <= CHARGE_LIMIT,
        "U of others": optimistic <= CHARGE_LIMIT,
        "what bands count of a charge": PERCENT * functions.price(w.tokens, w.rate) <= CHARGE_LIMIT,
        "what bands are behind where outputs are reserved": PERCENT * reserved <= CHARGE_LIMIT,
        "a quantum": w.weight * w.quantum <= CHARGE_LIMIT,
    }


def claims(
    deficit_kernel: v.Functions = deficit,
    counter_kernel: v.Functions = counter,
    band_kernel: v.Functions = bands,
    lease_kernel: v.Functions = leased,
) -> tuple[v.Claim | v.ArithmeticClaim, ...]:
    """Return the claims about the kernel functions of the gates, and about what is accepted."""
    of_counters = (_total_claim(counter_kernel), _counter_claim(counter_kernel))
    gates = (_deficit_claim(deficit_kernel), *of_counters, _band_claim(band_kernel), _lease_claim(lease_kernel))
    return (*gates, limits())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""

    def twice(tokens: Any, rate: Any, multiplier: Any = 1) -> Any:
        return 2 * tokens * rate * multiplier

    return (v.Bug("a price is twice what it says", limits(price=twice)),)
