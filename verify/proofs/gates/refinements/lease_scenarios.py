"""What sounds right of shared accounts and is false, run through the shipped account: F-L-1 and F-L-2."""

from types import SimpleNamespace
from typing import Any

from fairsched.model.algebra import Algebra, Mask, Scalar, Vector
from fairsched.policies.gates import leased
from fairsched.policies.gates.leased import renewed
from fairsched.verify.logic import RefutedClaim, Shown, refuted, with_names

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


def _units(account: leased.SharedAccount) -> int:
    return account.clients[_CLIENT].units


def _forgets(w: SimpleNamespace) -> Shown:
    """Two gateways have credit of the client on lease, return it, and the account forgets everything."""
    terms = leased.Terms(w.lease, _HOLDERS)
    account = leased.SharedAccount(terms)
    holders = [_Holder(f"gateway {number}", terms, w.quantum, renewed) for number in range(_HOLDERS)]
    for waits in (True, False):
        for holder in holders:
            account = holder.renewed(account, waits=waits)
    return {"it is wrong by at most a quantum": _units(account) <= w.quantum}


def _takes_all_debts(o: Algebra, pool: Vector, balance: Vector, asks: Mask, most: Scalar) -> Vector:
    return o.minimum(pool, o.where(asks, most, 0))


def _restarts(w: SimpleNamespace, renew: Any) -> Shown:
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
    return {"T >= sum of (1 - U_h)": _units(account) + stays.balance >= _HOLDERS * (1 - w.charge_max)}


def claims() -> tuple[()]:
    """None: what is true instead is proved in `lease_holders`."""
    return ()


def refutations() -> tuple[RefutedClaim, ...]:
    """Two statements that this library's own first version of leases rested on."""
    source = "this library, in its first version"
    return (
        refuted(
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
        refuted(
            "F-L-2",
            "a holder may take over whatever a client owes, so that credit in the account is never negative",
            source,
            lambda w: _restarts(w, with_names(renewed, leased=_takes_all_debts)),
            {"lease": 4, "quantum": 4, "charge_max": 7, "starts": 3},
            variant="leased without the last balance",
            instead=leased.L_LEAST.id,
            text="a gateway is started three times, each time after its client spent all: the debts gather at the "
            "other gateway, where they stop no start from spending a round",
        ),
    )


def shipped_restarts(world: Any) -> Shown:
    """What F-L-2 says of the account that ships."""
    return _restarts(SimpleNamespace(**world), renewed)
