"""Credit of one account that several gates spend: each has some of it on lease, and none asks another.

Several gateways before the same servers each see a part of the calls.  With a gate each they turn weights of 4:1 into
1:1, since a client has a share at every one of them.  Here one account has the credit of every client, and each
*holder* (a gateway) serves a client on what it holds of that client's credit: its *balance*.

Rule.  A holder admits a request of a client whose balance is positive, charges balances as the deficit gate does, and
never refills.  When a client waits there without balance it *renews*: all balances, also debts, go back to the account;
when no client that waits at any holder has credit there, the account gives every client without credit a round, as the
deficit gate does; and the holder gets back of each client that waits there what the account has, at most `lease`, and
of each client what it owes.  So credit in the account is never negative: what is owed is owed at a holder.

Theorem: two clients that wait, each at any holder, differ in charged service by at most 2(Q + n (S + U - 1)) for n
holders with leases of at most S, each of which can charge a client at most U after it let it in (L-gap).  That is
D2-stale with what is on lease for what is unsaid.  What faults cost is in `shared_account`.

Source: this library.
"""

from collections.abc import Mapping
from typing import ClassVar

import attrs
import msgspec

from fairsched.model.algebra import NUMPY, Algebra, Ints, Mask, Scalar, Vector
from fairsched.policies.base import Limits
from fairsched.policies.gates.base import AdmissionTransaction
from fairsched.policies.gates.deficit import DeficitAdmissions, DeficitGate, DeficitState, choose, refill_due
from fairsched.policies.gates.deficit import refill_rounds as rounds
from fairsched.policies.validators import credit, positive
from fairsched.policies.vectors import dense

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: q the account's credit, balance what one holder has of it (a debt is negative), waiting which
# wait at any holder, asks which wait at the one that renews, known which were ever seen, quantum credit a round; most,
# what a holder may have on lease of a client.


def pooled(o: Algebra, q: Vector, balance: Vector) -> Vector:
    """The account with all that a holder has of it, and owes."""
    return q + balance


def topped_up(o: Algebra, pool: Vector, waiting: Mask, asks: Mask, known: Mask, quantum: Vector) -> Vector:
    """The account after the rounds that are due, if the holder that renews has clients that wait."""
    due = refill_due(o, pool, waiting) & o.any(asks)
    return o.where(due, rounds(o, pool, waiting, known, quantum), pool)


def leased(o: Algebra, pool: Vector, asks: Mask, most: Scalar) -> Vector:
    """A holder's new balances: of clients that wait there at most `most`, and of each what it owes."""
    return o.minimum(pool, o.where(asks, most, 0))


def left_over(o: Algebra, pool: Vector, balance: Vector) -> Vector:
    """The account without what a holder has of it."""
    return pool - balance


# --- gate -----------------------------------------------------------------------------------------------------------


class LeasedAdmissions(DeficitAdmissions):
    """One decision of a holder: it has what is on lease, and gives no client credit."""

    def choose(self, heads: Ints) -> int:
        return int(choose(NUMPY, self.q, self.queued, self.ready, heads))


@attrs.frozen
class LeasedGate(DeficitGate):
    """The deficit gate of a holder.  Its state is the deficit gate's, whose deficits are the holder's balances."""

    name: ClassVar[str] = "leased-deficit"
    progress: ClassVar[tuple[str, ...]] = ()

    lease: int = attrs.field(default=4096, validator=credit)
    """Most credit of a client that a holder has on lease, in cost units."""
    holders: int = attrs.field(default=2, validator=positive)
    """How many there may be."""

    def begin(self, state: DeficitState, heads: Ints) -> AdmissionTransaction:
        return LeasedAdmissions(self, state, heads)

    def lent(self, state: DeficitState, moved: Mapping[int, int]) -> DeficitState:
        """The state after so many cost units were moved to balances from the account, or back (negative)."""
        amounts = dense(len(state.q), tuple(moved), tuple(moved.values()), 1)
        return msgspec.structs.replace(state, q=pooled(NUMPY, state.q, amounts))

    def charge_max(self, limits: Limits) -> int:
        """U of all holders, leases included: most that one client can be charged after its true credit was above
        zero."""
        return self.holders * (super().charge_max(limits) - 1 + self.lease) + 1
