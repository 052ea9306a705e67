"""Prefixes of several clients under the deficit gate's charge rules: D-split, D-split-even, D-share-U, D-eviction.

That D-range, D-4.1 and the rest hold under the equal split is proved where they are: a share that is taken over is an
event of their system.  Here is what the rules themselves do, on the shipped kernel, books and prices.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from fairsched.model import pricing
from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, Scope, Theorem
from fairsched.policies import deficit, prefix_ledger
from fairsched.policies.deficit import DeficitGate, Sharing
from fairsched.policies.deficit_sharing import D_EVICTION, D_SHARE_U, D_SPLIT, D_SPLIT_EVEN
from fairsched.verify.arithmetic import ArithmeticClaim, Condition
from fairsched.verify.false_claim import Bug, FalseClaim
from fairsched.verify.sharing_worlds import riders_shares, victims_charges
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, only, same
from fairsched.verify.tested import TestedClaim

_SOURCE = "this library: what one would expect of prefixes of several clients"


def _split(kernel: Any) -> Claim:
    """`was` are the deficits before `one` took over up to `asked` from `giver`."""

    def take_over(o: Algebra, w: World) -> Mapping[str, Any]:
        return {
            "was": w.q_now,
            "q": kernel.take_over(o, w.q_now, w.p, w.g, w.x, w.Q),
            "one": w.p,
            "giver": w.g,
            "asked": w.x,
        }

    def given_back(o: Algebra, w: World) -> Any:
        return o.pick(w.q, w.giver, 0) - o.pick(w.was, w.giver, 0)

    def as_asked(o: Algebra, w: World) -> Any:
        room = o.pick(w.Q, w.giver, 0) - o.pick(w.was, w.giver, 0)
        return same(given_back(o, w), o.minimum(w.asked, room))

    def paid(o: Algebra, w: World) -> Any:
        return same(o.pick(w.was, w.one, 0) - o.pick(w.q, w.one, 0), given_back(o, w))

    def others(o: Algebra, w: World) -> Any:
        taking_part = o.put(only(o, w.q, w.one), w.giver, True)
        return o.where(taking_part, True, same(w.q, w.was))

    clauses = (
        Clause("the giver gets what was asked, up to its quantum", as_asked),
        Clause("who takes over pays that", paid),
        Clause("nobody else's deficit changes", others),
    )
    needs = (
        Need(lambda o, w: w.x >= 0),
        Need(lambda o, w: w.q_now <= w.Q),
        Need(lambda o, w: o.exists(w.p) & o.exists(w.g) & o.where(o.pick(only(o, w.Q, w.g), w.p, False), False, True)),
    )
    facts = {"q_now": Kind.VECTOR, "p": Kind.POINT, "g": Kind.POINT, "x": Kind.SCALAR}
    vectors = {"q": Kind.VECTOR, "was": Kind.VECTOR}
    system = System(
        "deficit gate, a share that is taken over",
        {"Q": Kind.VECTOR},
        (Need(lambda o, w: w.Q >= 1),),
        {**vectors, "one": Kind.POINT, "giver": Kind.POINT, "asked": Kind.SCALAR},
        (Event("take over a share", take_over, facts, needs, (kernel.takes_back, kernel.take_over)),),
    )
    return Claim(D_SPLIT, system, clauses, clauses, clauses)


CLIENTS_MAX, PRICE_MAX = 8, 120
"""Up to so many clients and so high a price D-split-even is tried."""


def _even(books: Any) -> TestedClaim:
    """`clients` come one after the other to a piece of price `price`, which the first has paid."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        paid: tuple[int, ...] = (w.price,)
        for _ in range(1, w.clients):
            asked = books.asked(paid)
            paid = (*(own - back for own, back in zip(paid, asked, strict=True)), sum(asked))
        low = w.price // w.clients
        return {"together the price": sum(paid) == w.price, "evenly": all(low <= own <= low + 1 for own in paid)}

    def worlds() -> Iterator[Mapping[str, Any]]:
        sizes = product(range(PRICE_MAX + 1), range(1, CLIENTS_MAX + 1))
        return ({"price": price, "clients": clients} for price, clients in sizes)

    return TestedClaim(D_SPLIT_EVEN, worlds, shows)


def _same_charge_max(prices: Any) -> ArithmeticClaim:
    """A prompt of `p` tokens, cached or not, lies in memory beside the client's `outputs`; it is charged `x`."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        charge_max = prices.charge_max_reserved(SimpleNamespace(input=w.w_e, output=w.w_q), w.M, w.L)
        return {"charge + R <= U": w.x + prices.price(w.outputs, w.w_q) <= charge_max}

    return ArithmeticClaim(
        D_SHARE_U,
        ("M", "L", "w_e", "w_q", "p", "x", "outputs"),
        (
            Condition(lambda w: w.w_e >= 1),
            Condition(lambda w: w.w_q >= 1),
            Condition(lambda w: w.p >= 1, CHARGES_AT_LEAST_ONE),
            Condition(lambda w: w.p <= w.L),
            Condition(lambda w: w.L <= w.M - 1),
            Condition(lambda w: w.x <= w.p * w.w_e),
            Condition(lambda w: w.outputs >= 0),
            Condition(lambda w: w.p + w.outputs <= w.M, MEM_RESERVE),
        ),
        shows,
        relaxed=True,
        attained=_whole_prompt,
    )


def _whole_prompt() -> tuple[int, int]:
    """A prompt of L tokens that is charged whole, and the rest of memory reserved for outputs."""
    rates, capacity, longest = pricing.Rates(2, 1), 10, 4
    charged = pricing.price(longest, rates.input) + pricing.price(capacity - longest, rates.output)
    return charged, pricing.charge_max_reserved(rates, capacity, longest)


def _eviction(prices: Any) -> ArithmeticClaim:
    """Of a prompt `e` tokens are computed and `k` cached, however many of either the cache leaves."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        charged = prices.charged_tokens(w.e, w.k, w.c)
        return {
            "at most the whole prompt": charged <= w.e + w.k,
            "at least what is computed": charged >= w.e,
            "at least c per cent of the prompt": (w.e + w.k) * w.c <= charged * 100,
        }

    return ArithmeticClaim(
        D_EVICTION,
        ("e", "k", "c"),
        (
            Condition(lambda w: w.e >= 1),
            Condition(lambda w: w.k >= 0),
            Condition(lambda w: w.c >= 1),
            Condition(lambda w: w.c <= 100),
        ),
        shows,
    )


# --- what is false --------------------------------------------------------------------------------------------------


def _settled_late() -> FalseClaim:
    """What a client used and no longer holds is in nobody's reservation when it is divided."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        rates: Any = SimpleNamespace(input=w.w_e, output=w.w_q)
        charge_max = pricing.charge_max_reserved(rates, w.M, w.L)
        whole = pricing.price(w.e, w.w_e) + pricing.price(w.outputs, w.w_q) + pricing.price(w.late, w.w_e)
        return {"charge + R + late shares <= U": whole <= charge_max}

    return FalseClaim(
        ArithmeticClaim(
            Theorem("CS1", "w_e e + w_q O + w_e l <= U for shares of l tokens settled at their eviction", _SOURCE, ()),
            ("M", "L", "w_e", "w_q", "e", "late", "outputs"),
            (
                Condition(lambda w: w.w_e >= 1),
                Condition(lambda w: w.w_q >= 1),
                Condition(lambda w: w.e >= 1),
                Condition(lambda w: w.e <= w.L),
                Condition(lambda w: w.L <= w.M - 1),
                Condition(lambda w: w.outputs >= 0),
                Condition(lambda w: w.late >= 0),
                Condition(lambda w: w.late <= w.M - 1),
                Condition(lambda w: w.e + w.outputs <= w.M),
            ),
            shows,
        ),
        "an equal split that is settled when a prefix is evicted, without another look at the gate",
        D_SHARE_U.id,
        "M = 4: an admission of 1 token with 3 outputs reserved is charged up to U = 7, and 3 tokens that its client "
        "used before are evicted and divided: 10",
        {"M": 4, "L": 3, "w_e": 1, "w_q": 2, "e": 1, "late": 3, "outputs": 3},
    )


def _played(name: str, statement: str, sharing: Sharing, shows: Callable[[DeficitGate, int], bool]) -> TestedClaim:
    """The statement about prompts of 2, 3, ... tokens, under a charge rule."""
    gate = DeficitGate(quantum=1_000, sharing=sharing)
    theorem = Theorem(name, statement, _SOURCE, (), scope=Scope.BOUNDED)
    worlds = [{"tokens": tokens} for tokens in range(2, 41)]
    return TestedClaim(theorem, lambda: worlds, lambda w: {statement: shows(gate, w.tokens)})


def _evicted(name: str, sharing: Sharing) -> FalseClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        alone, attacked = (sum(victims_charges(gate, tokens, there)[1:]) for there in (False, True))
        return attacked <= 10 * alone

    statement = "evicting a prefix multiplies its client's later charges by at most 10"
    text = "20 tokens, cached: 1 a request; evicted by another client's prompts before each: 20 a request"
    world = {"tokens": 20}
    return FalseClaim(_played(name, statement, sharing, shows), f"sharing={sharing}", D_EVICTION.id, text, world)


def _free_rider() -> FalseClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        first, second = riders_shares(gate, tokens, 2).values()
        return first <= 2 * second

    statement = "who waits for another client to compute a prefix pays at least half of what that one pays"
    text = "20 tokens: who comes first pays 20, who waits for it 1"
    return FalseClaim(
        _played("CS4", statement, "first-toucher", shows),
        "sharing=first-toucher",
        D_SPLIT_EVEN.id,
        text,
        {"tokens": 20},
    )


def refutations() -> tuple[FalseClaim, ...]:
    """What sounds right about shared prefixes and is not."""
    return (_settled_late(), _evicted("CS2", "first-toucher"), _evicted("CS3", "equal-split"), _free_rider())


# --- all of them ----------------------------------------------------------------------------------------------------


def kernel_claims(kernel: Any = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_split(kernel),)


def price_claims(functions: Any = pricing) -> tuple[ArithmeticClaim, ...]:
    """The claims about the pricing functions of `functions`."""
    return (_same_charge_max(functions), _eviction(functions))


def claims() -> tuple[Claim | ArithmeticClaim | TestedClaim, ...]:
    """The claims about kernel, books and prices that ship."""
    return (*kernel_claims(), _even(prefix_ledger), *price_claims())


def bugs() -> tuple[Bug, ...]:
    """Rules that are wrong in one way each."""

    def asked_of_the_first(paid: tuple[Any, ...]) -> tuple[Any, ...]:
        """Everything is asked of whoever came first."""
        whole = sum(paid)
        return (whole // (len(paid) + 1), *(whole - whole for _ in paid[1:]))

    def cached_twice(extend_tokens: Any, cached_tokens: Any, cached_percent: Any) -> Any:
        return extend_tokens + cached_tokens + cached_tokens

    def outputs_only(rates: Any, kv_capacity_tokens: Any, input_tokens_max: Any) -> Any:
        return rates.output * kv_capacity_tokens

    def rounded_down(extend_tokens: Any, cached_tokens: Any, cached_percent: Any) -> Any:
        return extend_tokens + cached_tokens * cached_percent // 100 - 1

    def prices(**changed: Any) -> Any:
        return SimpleNamespace(**{**vars(pricing), **changed})

    return (
        Bug("the newcomer takes over from the first only", _even(SimpleNamespace(asked=asked_of_the_first))),
        Bug(
            "U as if an input never cost more than an output",
            _same_charge_max(prices(charge_max_reserved=outputs_only)),
        ),
        Bug("cached tokens cost double", _eviction(prices(charged_tokens=cached_twice))),
        Bug("a cached prefix is a token cheaper", _eviction(prices(charged_tokens=rounded_down))),
    )
