"""Prefixes of several clients under the deficit gate, which may charge cached tokens in part: D-share-U, D-eviction."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fairsched.model import pricing
from fairsched.model.events import Admitted
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate, deficit
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay

# --- small worlds -----------------------------------------------------------------------------------------------------

VICTIM, ADVERSARY = 0, 1
Sends = Sequence[tuple[int, Sequence[int]]]
"""Requests in order: the client, and a key for each token of its prompt."""


def played(gate: DeficitGate, sends: Sends, capacity: int) -> list[tuple[int, int]]:
    """Return the client and the charge of each request, sent to one worker that holds `capacity` tokens; each produces
    one token."""
    play = WorkerPlay(DLPM(gate=gate, batching=Chunked(max_batched_tokens=capacity)), WorkerState(0, capacity))
    found = []
    for number, (client, keys) in enumerate(sends):
        request = Request(number, client, number, Prompt.from_keys(keys, block_tokens=1), 1)
        for event in (*play.arrive(request, 1, number), *play.step(number)):
            if isinstance(event, Admitted):
                found.append((event.client, gate.charged(event.extend_tokens, event.cached_prefix_tokens)))
    return found


def victims_charges(gate: DeficitGate, tokens: int, attacked: bool) -> list[int]:
    """Return what the victim is charged for each of three requests for one prompt of so many tokens.

    Memory holds one prompt, and an adversary who is there asks for others in between.
    """
    prompt = range(tokens)
    sends: list[tuple[int, Sequence[int]]] = []
    for turn in range(1, 4):
        sends.append((VICTIM, prompt))
        if attacked:
            sends.append((ADVERSARY, range(turn * tokens, (turn + 1) * tokens)))
    return [charged for client, charged in played(gate, sends, tokens + 1) if client == VICTIM]


def riders_charges(gate: DeficitGate, tokens: int, clients: int) -> list[int]:
    """Return what each client pays for one prompt that all ask for, one after the other."""
    return [charged for _, charged in played(gate, [(c, range(tokens)) for c in range(clients)], 2 * tokens + 1)]


_SOURCE = "this library: what one would expect of prefixes of several clients"


def _whole_prompt() -> tuple[int, int]:
    """A prompt of L tokens that is charged whole, and the rest of memory reserved for outputs."""
    rates, capacity, longest = pricing.Rates(2, 1), 10, 4
    charged = pricing.price(longest, rates.input) + pricing.price(capacity - longest, rates.output)
    return charged, pricing.charge_max_reserved(rates, capacity, longest)


@v.arithmetic(
    deficit.D_SHARE_U,
    ("M", "L", "w_e", "w_q", "p", "x", "outputs"),
    *v.at_least(1, "w_e", "w_q"),
    v.Condition(lambda w: w.p >= 1, CHARGES_AT_LEAST_ONE),
    v.Condition(lambda w: w.p <= w.L),
    v.Condition(lambda w: w.L <= w.M - 1),
    v.Condition(lambda w: w.x <= w.p * w.w_e),
    *v.at_least(0, "outputs"),
    v.Condition(lambda w: w.p + w.outputs <= w.M, MEM_RESERVE),
    relaxed=True,
    attained=_whole_prompt,
)
def _same_charge_max(w: SimpleNamespace, prices: v.Functions) -> v.Shown:
    """A prompt of `p` tokens, cached or not, lies in memory beside the client's `outputs`; it is charged `x`."""
    charge_max = prices.charge_max_reserved(SimpleNamespace(input=w.w_e, output=w.w_q), w.M, w.L)
    last = w.L if w.w_e >= w.w_q else 1
    return {
        "outputs beside the prompt": w.w_q * (w.M - w.p - w.outputs) >= 0,
        "the dearest prompt": (w.w_e - w.w_q) * (last - w.p) >= 0,
        "charge + R <= U": w.x + prices.price(w.outputs, w.w_q) <= charge_max,
    }


@v.arithmetic(
    deficit.D_EVICTION,
    ("e", "k", "c"),
    *v.at_least(1, "e"),
    *v.at_least(0, "k"),
    *v.at_least(1, "c"),
    v.Condition(lambda w: w.c <= 100),
)
def _eviction(w: SimpleNamespace, prices: v.Functions) -> v.Shown:
    """Of a prompt `e` tokens are computed and `k` cached, however many of either the cache leaves."""
    charged = prices.charged_tokens(w.e, w.k, w.c)
    return {
        "at most the whole prompt": charged <= w.e + w.k,
        "at least what is computed": charged >= w.e,
        "at least c per cent of the prompt": (w.e + w.k) * w.c <= charged * 100,
    }


# --- what is false --------------------------------------------------------------------------------------------------


def _of_a_prompt(name: str, statement: str, shows: Callable[[DeficitGate, int], bool], text: str) -> v.RefutedClaim:
    """A statement about prompts of 2, 3, ... tokens where cached tokens cost nothing; false of 20 tokens."""
    gate = DeficitGate(quantum=1_000)
    return v.refuted(
        name,
        statement,
        _SOURCE,
        lambda w: {statement: shows(gate, w.tokens)},
        {"tokens": 20},
        variant="cached_percent=0",
        instead=deficit.D_EVICTION.id,
        text=text,
        worlds=lambda: ({"tokens": tokens} for tokens in range(2, 41)),
    )


def _evicted() -> v.RefutedClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        alone, attacked = (sum(victims_charges(gate, tokens, there)[1:]) for there in (False, True))
        return attacked <= 10 * alone

    statement = "evicting a prefix multiplies its client's later charges by at most 10"
    text = "20 tokens, cached: 1 a request; evicted by another client's prompts before each: 20 a request"
    return _of_a_prompt("CS2", statement, shows, text)


def _free_rider() -> v.RefutedClaim:
    def shows(gate: DeficitGate, tokens: int) -> bool:
        first, second = riders_charges(gate, tokens, 2)
        return first <= 2 * second

    statement = "a client that waits for another to compute a prefix pays at least half of what that one pays"
    text = "20 tokens: the client that comes first pays 20, the one that waits for it 1"
    return _of_a_prompt("CS4", statement, shows, text)


def refutations() -> tuple[v.RefutedClaim, ...]:
    """What sounds right about shared prefixes and is not."""
    return (_evicted(), _free_rider())


def price_claims(functions: v.Functions = pricing) -> tuple[v.ArithmeticClaim, ...]:
    """The claims about the pricing functions of `functions`."""
    return (_same_charge_max(functions), _eviction(functions))


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """The claims about the prices that ship."""
    return price_claims()


def bugs() -> tuple[v.Bug, ...]:
    """Rules that are wrong in one way each."""

    def cached_twice(extend_tokens: Any, cached_tokens: Any, cached_percent: Any) -> Any:
        return extend_tokens + cached_tokens + cached_tokens

    def outputs_only(rates: Any, kv_capacity_tokens: Any, input_tokens_max: Any) -> Any:
        return rates.output * kv_capacity_tokens

    def rounded_down(extend_tokens: Any, cached_tokens: Any, cached_percent: Any) -> Any:
        return extend_tokens + cached_tokens * cached_percent // 100 - 1

    def prices(**changed: Any) -> Any:
        return SimpleNamespace(**{**vars(pricing), **changed})

    return (
        v.Bug(
            "U as if an input never cost more than an output",
            _same_charge_max(prices(charge_max_reserved=outputs_only)),
        ),
        v.Bug("cached tokens cost double", _eviction(prices(charged_tokens=cached_twice))),
        v.Bug("a cached prefix is a token cheaper", _eviction(prices(charged_tokens=rounded_down))),
    )
