"""Credit of one account that several gates spend: each has some of it on lease, and none asks another.

Several gateways before the same servers each see a part of the calls.  With a gate each they turn weights of 4:1 into
1:1, since a client has a share at every one of them.  Here one account has the credit of every client, and each
*holder* (a gateway) serves a client on what it holds of that client's credit: its *balance*.

Rule.  A holder admits a request of a client whose balance is positive, charges balances as the deficit gate does, and
never refills.  When a client waits there without balance it *renews*: all balances, also debts, go back to the account;
when no client that waits at any holder has credit there, the account gives every client without credit a round, as the
deficit gate does; and the holder gets back of each client that waits there what the account has, at most `lease`, and
of each client what it owes.  So credit in the account is negative only for what holders owed as they left.

Theorem: two clients that wait, each at any holder, differ in charged service by at most 2(Q + n (U - 1) + (n - 1) S)
for n holders with leases of at most S, each of which can charge a client at most U after it let it in (L-gap).  Its
statement, and what each fault costs, are in `theorems`.

Source: this library.
"""

from collections.abc import Mapping
from typing import ClassVar

import attrs
import msgspec
import numpy as np

from fairsched.model.algebra import NO_GROUP, NUMPY, Algebra, ExactVector, Mask, Scalar, Vector
from fairsched.model.theorem import Theorem
from fairsched.policies.base import Limits
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.deficit import DeficitGate, DeficitState, credit_lasts, goes_first, refill_due
from fairsched.policies.gates.deficit import refill_rounds as rounds
from fairsched.policies.gates.interpreters import DeclaredRules, interpreter
from fairsched.policies.gates.leased.theorems import L_GAP, L_PROGRESS, L_WEIGHTED, LEASE_THEOREMS
from fairsched.policies.validators import positive, quantum
from fairsched.policies.vectors import dense

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: q the account's credit, balance what one holder has of it (a debt is negative), waiting which
# wait at any holder, asks which wait at the one that renews, known which were ever seen, quantum credit a round; most,
# what a holder may have on lease of a client.


def pooled(o: Algebra, q: Vector, balance: Vector) -> Vector:
    """The account with all that a holder has of it, and owes."""
    return q + balance


def topped_up(o: Algebra, pool: Vector, waiting: Mask, asks: Mask, known: Mask, quantum: Vector) -> Vector:
    """The account after the rounds that are due, if the holder that renews has clients that wait.

    None is while a client that waits has credit in the account.
    """
    return rounds(o, pool, waiting & o.any(asks), known, quantum)


def leased(o: Algebra, pool: Vector, balance: Vector, asks: Mask, most: Scalar) -> Vector:
    """A holder's new balances: of clients that wait there at most `most`, and of each what it owes.

    It takes over no debt that another left to the account: else those who come and go would hide what they owe.
    """
    return o.maximum(o.minimum(pool, o.where(asks, most, 0)), o.minimum(balance, 0))


def left_over(o: Algebra, pool: Vector, balance: Vector) -> Vector:
    """The account without what a holder has of it."""
    return pool - balance


def is_new(o: Algebra, serial: Scalar, said: Scalar) -> Scalar:
    """Whether a renewal is none that the account has had, where `serial` was the holder's last."""
    return said > serial


def taken_back(o: Algebra, q: Vector, moved: Vector, serial: Scalar, heard: Scalar) -> Vector:
    """The account, with what the holder's last renewal moved unless the holder heard its answer."""
    return q + o.where(serial > heard, moved, 0)


# --- gate -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class LeasedGate(DeficitGate):
    """The deficit gate of a holder.  Its state is the deficit gate's, whose deficits are the holder's balances."""

    name: ClassVar[str] = "leased-deficit"
    # What is on lease is all that a holder has: it gives no client credit.
    refill_q = None  # type: ignore[assignment]
    fast: ClassVar[Mapping[str, Kernel]] = {"choose": goes_first, "stays": credit_lasts}

    theorems: ClassVar[tuple[Theorem, ...]] = LEASE_THEOREMS
    progress: ClassVar[tuple[str, ...]] = (L_PROGRESS.id,)
    gap_theorems: ClassVar[tuple[str, ...]] = (L_GAP.id, L_WEIGHTED.id)

    lease: int = attrs.field(default=4096, validator=quantum)
    """Most credit of a client that a holder has on lease, in cost units."""
    holders: int = attrs.field(default=2, validator=positive)
    """How many there may be."""

    def balance(self, state: DeficitState, client: int) -> int:
        """What a client has on lease and did not spend, in cost units; negative where it owes."""
        return int(state.q[client]) if client < len(state.q) else 0

    def balances(self, state: DeficitState) -> dict[int, int]:
        """The balances of those that have one."""
        return {int(client): int(state.q[client]) for client in np.flatnonzero(state.q)}

    def rounds(self, state: DeficitState, waiting: list[int]) -> dict[int, int]:
        """What each would get in the rounds that are due where these clients wait, if the account were its own."""
        queued = np.zeros(len(state.q), np.bool_)
        queued[waiting] = True
        if not refill_due(NUMPY, state.q, queued):
            return {}
        given = rounds(NUMPY, state.q, queued, state.known, state.quantum) - state.q
        return {int(client): int(given[client]) for client in np.flatnonzero(given)}

    @property
    def unshared(self) -> DeficitGate:
        """The gate that gives credit by itself."""
        return DeficitGate(**{field.name: getattr(self, field.name) for field in attrs.fields(DeficitGate)})

    def lent(self, state: DeficitState, clients: tuple[int, ...], units: tuple[int, ...]) -> DeficitState:
        """The state after so many cost units were moved to balances from the account, or back (negative)."""
        return msgspec.structs.replace(state, q=pooled(NUMPY, state.q, dense(len(state.q), clients, units, 1)))

    def charge_max(self, limits: Limits) -> int:
        """U of all holders, leases included: most that one client can be charged after its true credit was above
        zero, and what the other holders may have of it when it gets a round."""
        return self.holders * (super().charge_max(limits) - 1) + (self.holders - 1) * self.lease + 1


class LeasedDeficits(DeclaredRules):
    """The gate's rules for a monitor (`policies.gates.interpreters`): a balance a client, and no refill."""

    def lent(self, clients: tuple[int, ...], units: tuple[int, ...]) -> None:
        """So many cost units came from the account, or went back."""
        self.meet(max(clients, default=NO_GROUP))
        self.put("q", clients, self.on(clients, pooled, balance=ExactVector(units)))


interpreter.register(LeasedGate, LeasedDeficits)
