"""Runs that attain the bounds of an interval with a swap in it: on a worker of M = 3 tokens, so that U = 5, with Q = 4.

Before the swap and after it the one client is served all that it can be, the other nothing, and at the swap each has
what makes the most of it: credit that is not carried, or a debt that is.
"""

from collections.abc import Iterator

from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.migrate import gap_to_counter_cost, gap_to_deficit_cost
from fairsched.verify import migrate_proofs
from fairsched.verify.concrete import Values
from fairsched.verify.system import Claim
from fairsched.verify.witness_run import INTERVAL_STARTS, RATES, Step, Witness, served

MEMORY = 3
QUANTUM = 4
CHARGE_MAX = charge_max_reserved(RATES, MEMORY, 2)


def _claim(name: str) -> Claim:
    return next(claim for claim in migrate_proofs.claims() if claim.theorem.id == name)


def _under(gate: str, *steps: Step) -> list[Step]:
    """The steps as the system of both gates names them."""
    return [(f"{gate} gate: {name}", facts) for name, facts in steps]


def _deficit_turn(client: int, input_tokens: int, output_tokens: int) -> list[Step]:
    """One request of a client that the order prefers."""
    preferred = tuple(int(i == client) for i in range(2))
    return _under("deficit", *served(2, client, input_tokens, output_tokens, ready=(1, 1), score=preferred))


def _counter_turn(client: int) -> list[Step]:
    """A prompt of one token, and outputs that fill the memory: U."""
    return _under("counter", *served(2, client, 1, MEMORY - 1))


def _both_arrive(gate: str) -> list[Step]:
    return _under(gate, ("arrive", {"p": 0}), ("arrive", {"p": 1}))


def _parameters(f: int, g: int) -> Values:
    return {"U": (CHARGE_MAX,) * 2, "Q": (QUANTUM,) * 2, "share": (1, 1), "f": f, "g": g}


def _to_counter() -> Witness:
    """swap-gap-V: f spends 3Q of credit, the last of it as g comes to a credit that the swap does not carry; at 0 both,
    f goes first and is served U."""
    refill = _under("deficit", ("refill", {}))
    before = [*_both_arrive("deficit"), *refill, *_deficit_turn(1, 1, 1), *_deficit_turn(1, 1, MEMORY - 1)]
    spent = _deficit_turn(0, 2, 1)
    during = [*spent, *refill, *spent, *refill, *spent, ("counters take over", {"nobody": -1}), *_counter_turn(0)]
    steps = (*before, (INTERVAL_STARTS, {}), *during)
    bound = gap_to_counter_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(_claim("swap-gap-V"), 2, _parameters(0, 1), steps, bound, {"q0": "q", "c0": "c"})


def _to_deficit() -> Witness:
    """swap-gap-D: g is ahead by U and owes that after the swap, and Q more is given to it while f is served."""
    refill = _under("deficit", ("refill", {}))
    spent = _deficit_turn(1, 2, 1)
    during = [("deficits take over", {}), *spent, *refill, *spent, *refill, *_deficit_turn(1, 1, MEMORY - 1)]
    steps = (*_both_arrive("counter"), *_counter_turn(0), (INTERVAL_STARTS, {}), *during)
    bound = gap_to_deficit_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(_claim("swap-gap-D"), 2, _parameters(1, 0), steps, bound, {"q0": "q", "c0": "c"})


def witnesses() -> Iterator[Witness]:
    """One run a bound."""
    yield from (_to_counter(), _to_deficit())
