"""Copies of a shared gate that tell each other late: each holder charges its own, and says so now and then.

A holder (a worker, or a router with a queue of its own) sees the ledger less what it charged and has not told yet.  It
tells when the unsent charges of some client would pass `most` cost units, so a copy is ahead of the truth by at most
what the other holders have not told: (holders - 1) * most, the S of StaleReads.  Refills, and where clients wait, are
told at once; so is a refund that exceeds what is unsent.  A holder with nothing to do tells everything: else two that
each lack the other's last charges could wait for each other for ever.

Theorems: D2-unsent (what is not told stays in [0, most], and nothing is lost on the way) and D2-stale, which has
S more than D2-global (`policies.gates.shared`).
"""

from typing import Any

import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from fairsched.model.algebra import NUMPY, Algebra, Ints, Scalar, Vector
from fairsched.policies.vectors import grown

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: q the ledger's deficits, unsent what the holder charged and has not told.


def seen(o: Algebra, q: Vector, unsent: Vector) -> Vector:
    """The holder's copy: the ledger, less its own charges that the ledger lacks."""
    return q - unsent


def unsent_after(o: Algebra, unsent: Vector, charge: Vector, most: Scalar) -> Vector:
    """What is unsent after a charge: all of it as long as it is within bounds for every client, else nothing."""
    owed = unsent + charge
    within = (owed >= 0) & (owed <= most)
    return o.where(within & o.all(within), owed, 0)


def ledger_after(o: Algebra, q: Vector, unsent: Vector, charge: Vector, grant: Vector, most: Scalar) -> Vector:
    """The ledger after a holder's charge and the credit that it granted."""
    return q + grant - (unsent + charge - unsent_after(o, unsent, charge, most))


# --- gate state, as far as it was told ------------------------------------------------------------------------------

_NONE = np.zeros(0, np.int64)


class CreditLedger(msgspec.Struct, frozen=True):
    """The gate's `state` as far as it was told, what each holder has not told, and how often any of them told."""

    state: Any
    unsent: Map[int, Ints] = Map()
    messages: int = 0

    def seen(self, holder: int) -> Any:
        """The gate's state as the holder sees it."""
        q = self.state.q
        return _with(self.state, seen(NUMPY, q, grown(self.unsent.get(holder, _NONE), len(q), 0)))

    def told(self, holder: int, after: Any, most: int) -> "CreditLedger":
        """The ledger after the holder made `after` of what it saw; the ledger itself if that is the same."""
        return self if _same(after, self.seen(holder)) else self._told(holder, after, most)

    def rested(self, holder: int) -> "CreditLedger":
        """The ledger after a holder that has nothing to do told all that it had not."""
        unsent = self.unsent.get(holder)
        return self if unsent is None or not unsent.any() else self._told(holder, self.seen(holder), _ALL)

    def _told(self, holder: int, after: Any, most: int) -> "CreditLedger":
        size = len(after.places)
        q, granted = grown(self.state.q, size, 0), grown(self.state.granted, size, 0)
        unsent = grown(self.unsent.get(holder, _NONE), size, 0)
        grant = after.granted - granted
        charge = seen(NUMPY, q, unsent) + grant - after.q
        left = unsent_after(NUMPY, unsent, charge, most)
        state = _with(after, ledger_after(NUMPY, q, unsent, charge, grant, most))
        told = bool((left != unsent + charge).any())
        return replace(self, state=state, unsent=self.unsent.set(holder, left), messages=self.messages + told)


_ALL = -1
"""A bound of the unsent that nothing keeps: everything is told."""


def _same(one: Any, two: Any) -> bool:
    mine, theirs = ([getattr(state, name) for name in one.__struct_fields__] for state in (one, two))
    return all(a is b or np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _with(state: Any, q: Ints) -> Any:
    return replace(state, q=q)
