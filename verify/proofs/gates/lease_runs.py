"""Runs of two holders that attain the bounds of shared accounts: no constant could be smaller.

Each holder has a memory of two tokens, so a request has an input token and an output token, and U_h is 3.  A lease is
as large as a quantum, 4.  `_Run` keeps the books of both holders by the shipped kernels, so that no step claims a
balance that is not there.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from fairsched.model.algebra import EXACT, Algebra, ExactVector, Mask, Scalar, Vector
from fairsched.model.pricing import charge_max_reserved, price
from fairsched.policies.gates import leased, renewed
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates.leases import claims as lease_claims
from fairsched.verify.proofs.kernels import deficit
from fairsched.verify.proofs.kernels import leased as leases

HOLDERS = 2
CHARGE_MAX = charge_max_reserved(v.RATES, 2, 1)
OUTPUT = price(1, v.RATES.output)
QUANTUM = LEASE = 4
U = HOLDERS * (CHARGE_MAX - 1) + 1
LENT = (HOLDERS - 1) * LEASE
F, G = 0, 1
BOTH = (True, True)


class _Run:
    """Two clients at two holders; each method adds the steps of what happens."""

    def __init__(self) -> None:
        self.steps: list[v.RunStep] = [("arrive", {"p": client}) for client in (F, G)]
        self.q = ExactVector((0, 0))
        self.d = [ExactVector((0, 0)) for _ in range(HOLDERS)]

    def _add(self, name: str, holder: int | None = None, **facts: Any) -> None:
        balances = {} if holder is None else {"d": tuple(self.d[holder])}
        self.steps.append((name, {**balances, **facts}))

    def move(self, holder: int, *asks: int) -> None:
        """All that the holder has goes back, and of the clients that ask it is lent what there is."""
        asking = tuple(client in asks for client in (F, G))
        self._add("a holder's balances are moved", holder, asks=asking)
        pool = leases.pooled(EXACT, self.q, self.d[holder])
        self.d[holder] = leases.leased(EXACT, pool, self.d[holder], ExactVector(asking), LEASE)
        self.q = leases.left_over(EXACT, pool, self.d[holder])

    def round(self, holder: int) -> None:
        """The account gives credit when this holder renews."""
        self._add("a round", holder, told=BOTH)
        pool = leases.pooled(EXACT, self.q, self.d[holder])
        both = ExactVector(BOTH)
        topped = deficit.refill(EXACT, pool, both, both, ExactVector((QUANTUM, QUANTUM)))
        self.q = self.q + (topped - pool)

    def spend(self, holder: int, client: int) -> None:
        """The client spends what it has there, at last on a request that is let in on one unit: it owes U_h - 1."""
        while self.d[holder][client] > 0:
            whole = self.d[holder][client] in (1, CHARGE_MAX + 1)
            chosen = {"here": BOTH, "ready": BOTH, "score": v.one(2, client, 1)}
            others = tuple(i == client for i in (F, G))
            self._add("admit", holder, **{**chosen, "ready": others}, x=1, r=OUTPUT)
            self.d[holder] = deficit.admit(EXACT, self.d[holder], client, 1)
            if whole:
                charge = v.one(2, client, OUTPUT)
                self._add("decode", holder, c=charge)
                self.d[holder] = deficit.decode(EXACT, self.d[holder], ExactVector(charge))
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


def _gap(faults: bool = False) -> tuple[v.RunStep, ...]:
    run = _to_the_interval()
    # The account once had this: f's round, and g's no more.
    version = tuple(run.q)
    run.steps.append((v.BEGIN, {}))
    _spent(run)
    if faults:
        run.lose(*version)
        run.move(1, F)
        run.spend(1, F)
        run.round(1)
        run.move(1, F)
        run.spend(1, F)
    return tuple(run.steps)


def _claim(theorem: str) -> v.Claim:
    return v.claim_named(theorem, lease_claims())


def _pair(theorem: str, bound: int, f: int = F, g: int = G, *, faults: bool = False, **more: Any) -> v.Witness:
    parameters: v.Values = {"Q": (QUANTUM,) * 2, "U": (U,) * 2, "S": LEASE, "E": LENT, "f": f, "g": g}
    return v.Witness(_claim(theorem), 2, parameters, _gap(faults), bound, {"q0": "T"}, **more)


def _weighted_gap(w: v.World) -> int:
    return abs(int(w.Q[w.g]) * int(w.W[w.f]) - int(w.Q[w.f]) * int(w.W[w.g]))


# --- one client at both holders ---------------------------------------------------------------------------------------


def _at_both(theorem: str, steps: Iterable[v.RunStep], measure: Callable[[v.World], int], bound: int) -> v.Witness:
    parameters: v.Values = {
        **{"U": (CHARGE_MAX,) * HOLDERS, "back": (0,) * HOLDERS},
        **{"S": LEASE, "Q": QUANTUM, "N": HOLDERS * LEASE, "h": 0},
    }
    claim = _claim(theorem)
    # What follows from L-debt has no events of its own.
    happens = claim.system if claim.system.events else _claim("L-debt").system
    return v.Witness(claim, HOLDERS, parameters, tuple(steps), bound, measure=measure, history=happens)


def _spends(holder: int) -> list[v.RunStep]:
    """From 4 to 1 and to -2: each request is charged 1, and 2 for its output."""
    let_in: v.RunStep = ("admit", {"p": holder, "x": 1, "r": OUTPUT, "k": 0})
    return [let_in, ("holders charge what was reserved", {"c": v.one(HOLDERS, holder, OUTPUT)})] * 2


_ROUND, _LENT, _RETURNS = "a round", "a holder is lent credit", "a holder returns what it has"


def _round(holder: int) -> v.RunStep:
    return _ROUND, {"p": holder, "told": v.one(HOLDERS, holder, 1)}


def _each(name: str) -> list[v.RunStep]:
    return [(name, {"p": holder}) for holder in range(HOLDERS)]


def _of_one_client() -> tuple[v.Witness, ...]:
    hidden: list[v.RunStep] = [_round(0), (_LENT, {"p": 0}), _round(1)]
    owes = [*hidden[:2], *_spends(0), hidden[2], (_LENT, {"p": 1}), *_spends(1)]
    returned: list[v.RunStep] = [*hidden, (_RETURNS, {"p": 0})]
    had = QUANTUM + LENT
    twice = [*returned, *_each(_LENT), ("the account loses writes", {"z": had}), *_each(_RETURNS)]
    return (
        _at_both("L-balance", owes[:6], lambda w: int(w.R[0]) - int(w.d[0]), CHARGE_MAX - 1),
        _at_both("L-most", hidden, lambda w: int(w.q) + sum(map(int, w.d)), had),
        _at_both("L-least", owes, lambda w: sum(map(int, w.R)) - int(w.q) - sum(map(int, w.d)), U - 1),
        _at_both("L-account", twice, lambda w: int(w.q), had + HOLDERS * LEASE),
    )


def witnesses() -> tuple[v.Witness, ...]:
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


# --- what is false ----------------------------------------------------------------------------------------------------

_CLIENT = "f"
_HOLDERS = 2


class _Holder:
    """A gateway that says what it has, and hears each answer."""

    def __init__(self, name: str, terms: leased.Terms, quantum: int, renew: Any) -> None:
        self.name, self.terms, self.quantum, self.renew = name, terms, quantum, renew
        self.serial = 0
        self.balance = 0

    def renewed(self, account: leased.SharedAccount, *, waits: bool) -> leased.SharedAccount:
        """The account after a renewal."""
        waiting = (_CLIENT,) if waits else ()
        balances, quanta = {_CLIENT: self.balance}, {_CLIENT: self.quantum}
        said = leased.Renewal(self.name, self.terms, self.serial + 1, self.serial, balances, waiting, quanta)
        account, answer = self.renew(account, said, 0, 1)
        self.serial += 1
        self.balance += answer.moved.get(_CLIENT, 0)
        return account


def _forgets(w: SimpleNamespace) -> v.Shown:
    """Two gateways have credit of the client on lease, return it, and the account forgets everything."""
    terms = leased.Terms(w.lease, _HOLDERS)
    account = leased.SharedAccount(terms)
    holders = [_Holder(f"gateway {number}", terms, w.quantum, renewed) for number in range(_HOLDERS)]
    for waits in (True, False):
        for holder in holders:
            account = holder.renewed(account, waits=waits)
    return {"it is wrong by at most a quantum": account.clients[_CLIENT].units <= w.quantum}


def _takes_all_debts(o: Algebra, pool: Vector, balance: Vector, asks: Mask, most: Scalar) -> Vector:
    return o.minimum(pool, o.where(asks, most, 0))


def _restarts(w: SimpleNamespace, renew: Any) -> v.Shown:
    """One gateway is started anew again and again, each time after its client spent all; the other only stays."""
    terms = leased.Terms(w.lease, _HOLDERS)
    account, stays = leased.SharedAccount(terms), _Holder("stays", terms, w.quantum, renew)
    for start in range(w.starts):
        starts = _Holder(f"start {start}", terms, w.quantum, renew)
        account = starts.renewed(account, waits=True)
        if starts.balance > 0:
            # It is let in on the last unit, and charged U for it.
            starts.balance = 1 - w.charge_max
        account = starts.renewed(account, waits=False)
        account = leased.left(account, starts.name)
        account = stays.renewed(account, waits=False)
    return {"T >= sum of (1 - U_h)": account.clients[_CLIENT].units + stays.balance >= _HOLDERS * (1 - w.charge_max)}


def claims() -> tuple[()]:
    """None: what is true instead is proved in `leases`."""
    return ()


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Two statements that this library's own first version of leases rested on."""
    source = "this library, in its first version"
    return (
        v.refuted(
            "F-L-1",
            "an account that loses its last writes is wrong by at most a quantum a client, since it has no more of it",
            source,
            _forgets,
            {"lease": 4, "quantum": 4},
            variant="any account of two holders or more",
            instead=leased.L_ACCOUNT.id,
            text="one holder has a lease unspent, the other has the account give a round, and both return what they "
            "have: the account has two quanta of the client, and loses them",
        ),
        v.refuted(
            "F-L-2",
            "a holder may take over whatever a client owes, so that credit in the account is never negative",
            source,
            lambda w: _restarts(w, v.with_names(renewed, leased=_takes_all_debts)),
            {"lease": 4, "quantum": 4, "charge_max": 7, "starts": 3},
            variant="leased without the last balance",
            instead=leased.L_LEAST.id,
            text="a gateway is started three times, each time after its client spent all: the debts gather at the "
            "other gateway, where they stop no start from spending a round",
        ),
    )


def shipped_restarts(world: Any) -> v.Shown:
    """What F-L-2 says of the account that ships."""
    return _restarts(SimpleNamespace(**world), renewed)
