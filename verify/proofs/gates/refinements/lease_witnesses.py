"""Runs of two holders that attain the bounds of shared accounts: no constant could be smaller.

Each holder has a memory of two tokens, so a request has an input token and an output token, and U_h is 3.  A lease is
as large as a quantum, 4.  `_Run` keeps the books of both holders by the shipped kernels, so that no step claims a
balance that is not there.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fairsched.model.algebra import EXACT, ExactVector
from fairsched.model.pricing import charge_max_reserved, price
from fairsched.verify.logic import BEGIN, RATES, Claim, Functions, RunStep, Values, Witness, World, claim_named, one
from fairsched.verify.proofs.gates.refinements import lease_holders, lease_messages
from fairsched.verify.proofs.gates.refinements import leases as lease_proofs
from fairsched.verify.proofs.kernels import deficit
from fairsched.verify.proofs.kernels import leased as leases

HOLDERS = 2
CHARGE_MAX = charge_max_reserved(RATES, 2, 1)
OUTPUT = price(1, RATES.output)
QUANTUM = LEASE = 4
U = HOLDERS * (CHARGE_MAX - 1) + 1
LENT = (HOLDERS - 1) * LEASE
F, G = 0, 1
BOTH = (True, True)


class _Run:
    """Two clients at two holders; each method adds the steps of what happens."""

    def __init__(self, kernel: Functions = leases, gate: Functions = deficit) -> None:
        self.kernel, self.gate = kernel, gate
        self.steps: list[RunStep] = [("arrive", {"p": client}) for client in (F, G)]
        self.q = ExactVector((0, 0))
        self.d = [ExactVector((0, 0)) for _ in range(HOLDERS)]

    def _add(self, name: str, holder: int | None = None, **facts: Any) -> None:
        balances = {} if holder is None else {"d": tuple(self.d[holder])}
        self.steps.append((name, {**balances, **facts}))

    def move(self, holder: int, *asks: int) -> None:
        """All that the holder has goes back, and of the clients that ask it is lent what there is."""
        asking = tuple(client in asks for client in (F, G))
        self._add("a holder's balances are moved", holder, asks=asking)
        pool = self.kernel.pooled(EXACT, self.q, self.d[holder])
        self.d[holder] = self.kernel.leased(EXACT, pool, self.d[holder], ExactVector(asking), LEASE)
        self.q = self.kernel.left_over(EXACT, pool, self.d[holder])

    def round(self, holder: int) -> None:
        """The account gives credit when this holder renews."""
        self._add("a round", holder, told=BOTH)
        pool = self.kernel.pooled(EXACT, self.q, self.d[holder])
        both = ExactVector(BOTH)
        topped = self.gate.refill(EXACT, pool, both, both, ExactVector((QUANTUM, QUANTUM)))
        self.q = self.q + (topped - pool)

    def spend(self, holder: int, client: int) -> None:
        """The client spends what it has there, at last on a request that is let in on one unit: it owes U_h - 1."""
        while self.d[holder][client] > 0:
            whole = self.d[holder][client] in (1, CHARGE_MAX + 1)
            chosen = {"here": BOTH, "ready": BOTH, "score": one(2, client, 1)}
            others = tuple(i == client for i in (F, G))
            self._add("admit", holder, **{**chosen, "ready": others}, x=1, r=OUTPUT)
            self.d[holder] = self.gate.admit(EXACT, self.d[holder], client, 1)
            if whole:
                charge = one(2, client, OUTPUT)
                self._add("decode", holder, c=charge)
                self.d[holder] = self.gate.decode(EXACT, self.d[holder], ExactVector(charge))
            else:
                self._add("finish", p=client, x=OUTPUT)

    def lose(self, *version: int) -> None:
        """The account has what it had once."""
        self._add("the account loses writes", z=version)
        self.q = ExactVector(version)


def _to_the_interval() -> _Run:
    """f has Q + (n - 1) S in truth, and g owes all that it can."""
    run = _Run()
    run.round(0)
    run.move(0, F, G)
    run.spend(0, G)
    run.round(1)
    run.move(1, G)
    run.spend(1, G)
    return run


def _spent(run: _Run) -> None:
    """f spends all at both holders, and goes on until g has Q + (n - 1) S again, part of it hidden from the account."""
    run.spend(0, F)
    run.move(1, F)
    run.spend(1, F)
    for renewing in (0, 1):
        run.round(renewing)
        run.move(renewing, *((F, G) if renewing == 0 else (F,)))
        run.spend(renewing, F)
    run.move(0, G)
    run.round(1)
    run.move(1, F)
    run.spend(1, F)


def _gap(faults: bool = False) -> tuple[RunStep, ...]:
    run = _to_the_interval()
    # The account once had this: f's round, and g's no more.
    version = tuple(run.q)
    run.steps.append((BEGIN, {}))
    _spent(run)
    if faults:
        run.lose(*version)
        run.move(1, F)
        run.spend(1, F)
        run.round(1)
        run.move(1, F)
        run.spend(1, F)
    return tuple(run.steps)


def _claim(theorem: str) -> Claim:
    return claim_named(theorem, (*lease_holders.claims(), *lease_messages.claims(), *lease_proofs.claims()))


def _pair(theorem: str, bound: int, f: int = F, g: int = G, *, faults: bool = False, **more: Any) -> Witness:
    parameters: Values = {"Q": (QUANTUM,) * 2, "U": (U,) * 2, "S": LEASE, "E": LENT, "f": f, "g": g}
    return Witness(_claim(theorem), 2, parameters, _gap(faults), bound, {"q0": "T"}, **more)


def _weighted_gap(w: World) -> int:
    return abs(int(w.Q[w.g]) * int(w.W[w.f]) - int(w.Q[w.f]) * int(w.W[w.g]))


# --- one client at both holders ---------------------------------------------------------------------------------------


def _at_both(theorem: str, steps: Iterable[RunStep], measure: Callable[[World], int], bound: int) -> Witness:
    parameters: Values = {
        **{"U": (CHARGE_MAX,) * HOLDERS, "back": (0,) * HOLDERS},
        **{"S": LEASE, "Q": QUANTUM, "N": HOLDERS * LEASE, "h": 0},
    }
    claim = _claim(theorem)
    # What follows from L-debt has no events of its own.
    happens = claim.system if claim.system.events else _claim("L-debt").system
    return Witness(claim, HOLDERS, parameters, tuple(steps), bound, measure=measure, history=happens)


def _spends(holder: int) -> list[RunStep]:
    """From 4 to 1 and to -2: each request is charged 1, and 2 for its output."""
    let_in: RunStep = ("admit", {"p": holder, "x": 1, "r": OUTPUT, "k": 0})
    return [let_in, ("holders charge what was reserved", {"c": one(HOLDERS, holder, OUTPUT)})] * 2


_ROUND, _LENT, _RETURNS = "a round", "a holder is lent credit", "a holder returns what it has"


def _round(holder: int) -> RunStep:
    return _ROUND, {"p": holder, "told": one(HOLDERS, holder, 1)}


def _each(name: str) -> list[RunStep]:
    return [(name, {"p": holder}) for holder in range(HOLDERS)]


def _of_one_client() -> tuple[Witness, ...]:
    hidden: list[RunStep] = [_round(0), (_LENT, {"p": 0}), _round(1)]
    owes = [*hidden[:2], *_spends(0), hidden[2], (_LENT, {"p": 1}), *_spends(1)]
    returned: list[RunStep] = [*hidden, (_RETURNS, {"p": 0})]
    had = QUANTUM + LENT
    twice = [*returned, *_each(_LENT), ("the account loses writes", {"z": had}), *_each(_RETURNS)]
    return (
        _at_both("L-balance", owes[:6], lambda w: int(w.R[0]) - int(w.d[0]), CHARGE_MAX - 1),
        _at_both("L-most", hidden, lambda w: int(w.q) + sum(map(int, w.d)), had),
        _at_both("L-least", owes, lambda w: sum(map(int, w.R)) - int(w.q) - sum(map(int, w.d)), U - 1),
        _at_both("L-account", twice, lambda w: int(w.q), had + HOLDERS * LEASE),
    )


def witnesses() -> tuple[Witness, ...]:
    """One run a bound."""
    charge_max = U + LENT
    bound = deficit.gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)
    weighted = deficit.weighted_gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)
    made, taken = QUANTUM, QUANTUM
    return (
        _pair("L-gap", bound),
        _pair("L-lag", bound, f=G, g=F),
        _pair("L-weighted", weighted, measure=_weighted_gap),
        _pair("L-faults", bound + made + taken, faults=True),
        *_of_one_client(),
    )
