"""Prefixes of several clients under the deficit gate's charge rules: D-split, D-split-even, D-share-U, D-eviction.

That D-range, D-4.1 and the rest hold under the equal split is proved where they are: a share that is taken over is an
event of their system.  Here is what the rules themselves do, on the shipped kernel, books and prices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import attrs

from fairsched.model import pricing
from fairsched.model.algebra import Algebra
from fairsched.model.events import Admitted
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate, Sharing
from fairsched.policies.gates.deficit import D_EVICTION, D_SHARE_U, D_SPLIT, D_SPLIT_EVEN
from fairsched.verify.conformance import WorkerPlay
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
    RefutedClaim,
    SampledClaim,
    Shown,
    Term,
    World,
    Written,
    at_least,
    one_step,
    only,
    refuted,
    same,
)
from fairsched.verify.proofs import arithmetic, sampled
from fairsched.verify.proofs.kernels import deficit, prefix_ledger

# --- small worlds -----------------------------------------------------------------------------------------------------

VICTIM, ADVERSARY = 0, 1
Sends = Sequence[tuple[int, Sequence[int]]]
"""Requests in order: the client, and a key for each token of its prompt."""


@attrs.frozen
class Charge:
    """What one admission did: `computed` tokens by the worker, `charged` in all to its client, of which `moves` (from
    whom, how much) were given back to others."""

    client: int
    computed: int
    charged: int
    moves: tuple[tuple[int, int], ...] = ()


def played(gate: DeficitGate, sends: Sends, capacity: int) -> list[Charge]:
    """The charge of each request, sent to one worker that holds `capacity` tokens; each produces one token."""
    policy = DLPM(gate=gate, batching=Chunked(max_batched_tokens=capacity))
    play, watch, found = WorkerPlay(policy, WorkerState(0, capacity)), policy.guarantee.gate_monitor(), list[Charge]()
    assert watch is not None
    for number, (client, keys) in enumerate(sends):
        request = Request(number, client, number, Prompt.from_keys(keys, block_tokens=1), 1)
        for event in (*play.arrive(request, 1, number), *play.step(number)):
            watch.observe(event)
            if isinstance(event, Admitted):
                moves = tuple((giver, units) for _, giver, units in watch.moves)
                own = gate.charged(event.extend_tokens, event.cached_prefix_tokens)
                charged = own + sum(units for _, units in moves)
                found.append(Charge(event.client, event.extend_tokens, charged, moves))
    return found


def paid(charges: Sequence[Charge]) -> dict[int, int]:
    """What each client has paid in the end: its charges, less what others took over."""
    totals: dict[int, int] = {}
    for charge in charges:
        totals[charge.client] = totals.get(charge.client, 0) + charge.charged
        for giver, units in charge.moves:
            totals[giver] -= units
    return totals


def victims_charges(gate: DeficitGate, tokens: int, attacked: bool) -> list[int]:
    """What the victim is charged for each of three requests for one prompt of so many tokens.

    Memory holds one prompt, and an adversary who is there asks for others in between.
    """
    prompt = range(tokens)
    sends: list[tuple[int, Sequence[int]]] = []
    for turn in range(1, 4):
        sends.append((VICTIM, prompt))
        if attacked:
            sends.append((ADVERSARY, range(turn * tokens, (turn + 1) * tokens)))
    return [charge.charged for charge in played(gate, sends, tokens + 1) if charge.client == VICTIM]


def riders_shares(gate: DeficitGate, tokens: int, clients: int) -> dict[int, int]:
    """What each client has paid in the end for one prompt that all ask for, one after the other; 0 comes first."""
    return paid(played(gate, [(client, range(tokens)) for client in range(clients)], 2 * tokens + 1))


_SOURCE = "this library: what one would expect of prefixes of several clients"


def _split(kernel: Functions) -> Claim:
    """`was` are the deficits before `one` took over up to `asked` from `giver`."""

    def take_over(o: Algebra, w: World) -> Written:
        return {
            "was": w.q_now,
            "q": kernel.take_over(o, w.q_now, w.p, w.g, w.x, w.Q),
            "one": w.p,
            "giver": w.g,
            "asked": w.x,
        }

    def given_back(o: Algebra, w: World) -> Term:
        return o.pick(w.q, w.giver, 0) - o.pick(w.was, w.giver, 0)

    def as_asked(o: Algebra, w: World) -> Term:
        room = o.pick(w.Q, w.giver, 0) - o.pick(w.was, w.giver, 0)
        return same(given_back(o, w), o.maximum(o.minimum(w.asked, room), 0))

    def paid(o: Algebra, w: World) -> Term:
        return same(o.pick(w.was, w.one, 0) - o.pick(w.q, w.one, 0), given_back(o, w))

    def others(o: Algebra, w: World) -> Term:
        taking_part = o.put(only(o, w.q, w.one), w.giver, True)
        return o.where(taking_part, True, same(w.q, w.was))

    clauses = (
        Clause("the giver gets what was asked, up to its quantum", as_asked),
        Clause("who takes over pays that", paid),
        Clause("no other deficit changes", others),
    )
    needs = (
        Need(lambda o, w: w.x >= 0),
        Need(lambda o, w: o.exists(w.p) & o.exists(w.g) & o.where(o.pick(only(o, w.Q, w.g), w.p, False), False, True)),
    )
    facts = {"q_now": Kind.VECTOR, "p": Kind.POINT, "g": Kind.POINT, "x": Kind.SCALAR}
    vectors = {"q": Kind.VECTOR, "was": Kind.VECTOR}
    return one_step(
        D_SPLIT,
        "deficit gate, a share that is taken over",
        {**vectors, "one": Kind.POINT, "giver": Kind.POINT, "asked": Kind.SCALAR},
        Event("take over a share", take_over, facts, needs, (kernel.takes_back, kernel.take_over)),
        clauses,
        parameters={"Q": Kind.VECTOR},
        laws=(Need(lambda o, w: w.Q >= 1),),
    )


CLIENTS_MAX, PRICE_MAX = 8, 120
"""Up to so many clients and so high a price D-split-even is tried."""


def _prices() -> Iterator[Mapping[str, Any]]:
    sizes = product(range(PRICE_MAX + 1), range(1, CLIENTS_MAX + 1))
    return ({"price": price, "clients": clients} for price, clients in sizes)


@sampled(D_SPLIT_EVEN, _prices)
def _even(w: SimpleNamespace, books: Functions) -> Shown:
    """`clients` come one after the other to a piece of price `price`, which the first has paid."""
    paid: tuple[int, ...] = (w.price,)
    for _ in range(1, w.clients):
        asked = books.asked(paid)
        paid = (*(own - back for own, back in zip(paid, asked, strict=True)), sum(asked))
    low = w.price // w.clients
    return {"together the price": sum(paid) == w.price, "evenly": all(low <= own <= low + 1 for own in paid)}


def _whole_prompt() -> tuple[int, int]:
    """A prompt of L tokens that is charged whole, and the rest of memory reserved for outputs."""
    rates, capacity, longest = pricing.Rates(2, 1), 10, 4
    charged = pricing.price(longest, rates.input) + pricing.price(capacity - longest, rates.output)
    return charged, pricing.charge_max_reserved(rates, capacity, longest)


@arithmetic(
    D_SHARE_U,
    ("M", "L", "w_e", "w_q", "p", "x", "outputs"),
    *at_least(1, "w_e", "w_q"),
    Condition(lambda w: w.p >= 1, CHARGES_AT_LEAST_ONE),
    Condition(lambda w: w.p <= w.L),
    Condition(lambda w: w.L <= w.M - 1),
    Condition(lambda w: w.x <= w.p * w.w_e),
    *at_least(0, "outputs"),
    Condition(lambda w: w.p + w.outputs <= w.M, MEM_RESERVE),
    relaxed=True,
    attained=_whole_prompt,
)
def _same_charge_max(w: SimpleNamespace, prices: Functions) -> Shown:
    """A prompt of `p` tokens, cached or not, lies in memory beside the client's `outputs`; it is charged `x`."""
    charge_max = prices.charge_max_reserved(SimpleNamespace(input=w.w_e, output=w.w_q), w.M, w.L)
    last = w.L if w.w_e >= w.w_q else 1
    return {
        "outputs beside the prompt": w.w_q * (w.M - w.p - w.outputs) >= 0,
        "the dearest prompt": (w.w_e - w.w_q) * (last - w.p) >= 0,
        "charge + R <= U": w.x + prices.price(w.outputs, w.w_q) <= charge_max,
    }


@arithmetic(
    D_EVICTION,
    ("e", "k", "c"),
    *at_least(1, "e"),
    *at_least(0, "k"),
    *at_least(1, "c"),
    Condition(lambda w: w.c <= 100),
)
def _eviction(w: SimpleNamespace, prices: Functions) -> Shown:
    """Of a prompt `e` tokens are computed and `k` cached, however many of either the cache leaves."""
    charged = prices.charged_tokens(w.e, w.k, w.c)
    return {
        "at most the whole prompt": charged <= w.e + w.k,
        "at least what is computed": charged >= w.e,
        "at least c per cent of the prompt": (w.e + w.k) * w.c <= charged * 100,
    }


# --- what is false --------------------------------------------------------------------------------------------------


def _settled_late() -> RefutedClaim:
    """What a client used and no longer holds is in no reservation when it is divided."""

    def shows(w: SimpleNamespace) -> Shown:
        rates: Any = SimpleNamespace(input=w.w_e, output=w.w_q)
        charge_max = pricing.charge_max_reserved(rates, w.M, w.L)
        whole = pricing.price(w.e, w.w_e) + pricing.price(w.outputs, w.w_q) + pricing.price(w.late, w.w_e)
        return {"charge + R + late shares <= U": whole <= charge_max}

    return RefutedClaim(
        ArithmeticClaim(
            Theorem("CS1", "w_e e + w_q O + w_e l <= U for shares of l tokens settled at their eviction", _SOURCE, ()),
            ("M", "L", "w_e", "w_q", "e", "late", "outputs"),
            (
                *at_least(1, "w_e", "w_q", "e"),
                Condition(lambda w: w.e <= w.L),
                Condition(lambda w: w.L <= w.M - 1),
                *at_least(0, "outputs", "late"),
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


def _of_a_prompt(
    name: str, statement: str, sharing: Sharing, shows: Callable[[DeficitGate, int], bool], instead: str, text: str
) -> RefutedClaim:
    """The statement about prompts of 2, 3, ... tokens, under a charge rule; false of 20 tokens."""
    gate = DeficitGate(quantum=1_000, sharing=sharing)
    return refuted(
        name,
        statement,
        _SOURCE,
        lambda w: {statement: shows(gate, w.tokens)},
        {"tokens": 20},
        variant=f"sharing={sharing}",
        instead=instead,
        text=text,
        worlds=lambda: ({"tokens": tokens} for tokens in range(2, 41)),
    )


def _evicted(name: str, sharing: Sharing) -> RefutedClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        alone, attacked = (sum(victims_charges(gate, tokens, there)[1:]) for there in (False, True))
        return attacked <= 10 * alone

    statement = "evicting a prefix multiplies its client's later charges by at most 10"
    text = "20 tokens, cached: 1 a request; evicted by another client's prompts before each: 20 a request"
    return _of_a_prompt(name, statement, sharing, shows, D_EVICTION.id, text)


def _free_rider() -> RefutedClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        first, second = riders_shares(gate, tokens, 2).values()
        return first <= 2 * second

    statement = "a client that waits for another to compute a prefix pays at least half of what that one pays"
    text = "20 tokens: the client that comes first pays 20, the one that waits for it 1"
    return _of_a_prompt("CS4", statement, "first-toucher", shows, D_SPLIT_EVEN.id, text)


def refutations() -> tuple[RefutedClaim, ...]:
    """What sounds right about shared prefixes and is not."""
    return (_settled_late(), _evicted("CS2", "first-toucher"), _evicted("CS3", "equal-split"), _free_rider())


def kernel_claims(kernel: Functions = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_split(kernel),)


def price_claims(functions: Functions = pricing) -> tuple[ArithmeticClaim, ...]:
    """The claims about the pricing functions of `functions`."""
    return (_same_charge_max(functions), _eviction(functions))


def claims() -> tuple[Claim | ArithmeticClaim | SampledClaim, ...]:
    """The claims about kernel, books and prices that ship."""
    return (*kernel_claims(), _even(prefix_ledger), *price_claims())


def bugs() -> tuple[Bug, ...]:
    """Rules that are wrong in one way each."""

    def asked_of_the_first(paid: tuple[Any, ...]) -> tuple[Any, ...]:
        """Everything is asked of the client that came first."""
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
