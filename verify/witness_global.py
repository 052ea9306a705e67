"""Runs that attain the bounds of one deficit for two workers of M = 3 tokens, with rates 1 and 2: U_w = 5, U = 9.

A client has a request of one token in and two out (5) on both workers at once: it is let in twice, pays 1 each
time, and owes 4 on each.
"""

from collections.abc import Iterator, Sequence

from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.deficit_progress import gap_cost
from fairsched.verify import global_proofs
from fairsched.verify.concrete import Values
from fairsched.verify.witness_run import INTERVAL_STARTS, RATES, Step, Witness, one

WORKERS = 2
CHARGE_MAX = WORKERS * (charge_max_reserved(RATES, 3, 2) - 1) + 1
QUANTUM = 8
F, G = 0, 1

STALE = 4
STALE_QUANTUM = 12
"""(U + S - 1) = 12 is a multiple of it, so that a refill takes the deepest debt to a whole quantum."""


def _admitted(client: int, outputs: int, ahead: int) -> Step:
    facts = {"x": 1, "r": RATES.output * outputs, "ready": (1, 1), "score": one(2, client, 1)}
    return "admit", {**facts, "s": one(2, client, ahead)}


def _decoded(client: int, tokens: int) -> Step:
    return "decode", {"d": one(2, client, RATES.output * tokens), "s": (0, 0)}


def _spends_all(client: int, before: Sequence[int], ahead: int) -> Iterator[Step]:
    """Requests of so many outputs one by one, then one of two outputs on both workers at once."""
    for outputs in before:
        yield _admitted(client, outputs, ahead)
        yield _decoded(client, outputs)
    yield _admitted(client, 2, ahead)
    yield _admitted(client, 2, ahead)
    yield _decoded(client, 4)


def _run(before: Sequence[int], ahead: int) -> tuple[Step, ...]:
    """Client 1 spends all that it can, and in the interval client 0 does so twice."""
    refill: Step = ("refill", {"s": (0, 0)})
    arrivals: list[Step] = [("arrive at a worker", {"p": client}) for client in (0, 1) for _ in range(WORKERS)]
    spends = [*_spends_all(0, before, ahead)]
    own = (*arrivals, refill, *_spends_all(1, before, ahead), (INTERVAL_STARTS, {}), *spends, refill, refill, *spends)
    return own if ahead else tuple((name, {k: v for k, v in facts.items() if k != "s"}) for name, facts in own)


def _witness(theorem: str, f: int = F, g: int = G) -> Witness:
    claim = next(claim for claim in global_proofs.claims() if claim.theorem.id == theorem)
    parameters: Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": f, "g": g}
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(claim, 2, parameters, _run((1, 1), 0), bound, {"q0": "q"})


def _stale() -> Witness:
    """Each admission is let in by a copy that lacks four cost units of what its client was charged."""
    claim = next(claim for claim in global_proofs.claims() if claim.theorem.id == "D2-stale")
    parameters: Values = {"Q": (STALE_QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G, "S": STALE}
    charge_max = CHARGE_MAX + STALE
    bound = gap_cost(STALE_QUANTUM, charge_max, STALE_QUANTUM, charge_max)
    return Witness(claim, 2, parameters, _run((1, 1, 1, 2), STALE), bound, {"q0": "q"})


def witnesses() -> tuple[Witness, ...]:
    """One run a bound."""
    pairs = tuple(_witness(theorem) for theorem in ("D2-global", "D2-gift", "D2-together"))
    return (*pairs, _witness("D2-lag", f=G, g=F), _stale())
