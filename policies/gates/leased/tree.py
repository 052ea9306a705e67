"""The hierarchical gate of one of several holders: what an organisation has is on lease, what is in it is shared here.

The nodes below the root (organisations, clients in none, or clients whose programs have accounts) have balances that
come from the account as those of the clients of a `LeasedGate` do; every family below them is refilled here, as the
hierarchical gate refills it.

A call is let in where its client and all its groups have credit (H-gate), and what it costs is charged to each of them
(H-refund says the same of what is given back).  So the nodes below the root are the clients of the lease theorems, and
the gap of two of them over all holders has the bound of L-gap.  Two siblings further down are held to H-siblings, at
each holder by itself: one that is served at two holders gets a share of its group's at each of them.
"""

from typing import ClassVar

import attrs
import msgspec
import numpy as np

from fairsched.model.algebra import EXACT, NUMPY, ExactVector, Ints
from fairsched.model.request import Client
from fairsched.model.theorem import Theorem
from fairsched.policies.base import Limits
from fairsched.policies.gates.base import AnyGate
from fairsched.policies.gates.deficit import DeficitGate, refill_due, refill_rounds
from fairsched.policies.gates.hierarchical import HierarchicalGate, HierarchicalState, TreeOfDeficits
from fairsched.policies.gates.interpreters import interpreter
from fairsched.policies.gates.leased.gate import LeasedGate, pooled
from fairsched.policies.gates.leased.theorems import L_PROGRESS, LEASE_THEOREMS
from fairsched.policies.validators import positive, quantum


@attrs.frozen
class LeasedTreeGate(HierarchicalGate):
    """The hierarchical gate of a holder.  In the account a node below the root stands for all clients in it: of these
    the first by number names it."""

    name: ClassVar[str] = "leased-hierarchical"
    theorems: ClassVar[tuple[Theorem, ...]] = (*HierarchicalGate.theorems, *LEASE_THEOREMS)
    progress: ClassVar[tuple[str, ...]] = (*HierarchicalGate.progress, L_PROGRESS.id)
    refills_top: ClassVar[bool] = False

    lease: int = attrs.field(default=4096, validator=quantum)
    """Most credit of a node below the root that a holder has on lease, in cost units."""
    holders: int = attrs.field(default=2, validator=positive)
    """How many there may be."""

    @property
    def top(self) -> LeasedGate:
        """The gate that works among the nodes below the root."""
        return LeasedGate(self.rates, self.quantum, lease=self.lease, holders=self.holders)

    @property
    def unshared(self) -> HierarchicalGate:
        """The gate that gives credit by itself."""
        return HierarchicalGate(self.rates, self.quantum, self.in_flight_cap_tokens)

    def balance(self, state: HierarchicalState, client: int) -> int:
        """What the node below the root that a client is in has, in cost units; negative where it owes."""
        return int(state.q[_tops(state)[client]]) if client < len(state.node) else 0

    def balances(self, state: HierarchicalState) -> dict[int, int]:
        """The balances of those that have one."""
        tops, firsts = np.unique(_tops(state), return_index=True)
        found = zip(firsts.tolist(), state.q[tops].tolist(), strict=True)
        return {client: units for client, units in found if units}

    def lent(self, state: HierarchicalState, clients: tuple[int, ...], units: tuple[int, ...]) -> HierarchicalState:
        """The state after so many cost units were moved to balances from the account, or back (negative)."""
        amounts = np.zeros_like(state.q)
        amounts[_tops(state)[list(clients)]] = units
        return msgspec.structs.replace(state, q=pooled(NUMPY, state.q, amounts))

    def rounds(self, state: HierarchicalState, waiting: list[int]) -> dict[int, int]:
        """What each would get in the rounds that are due where these clients wait, if the account were its own."""
        tops, firsts = np.unique(_tops(state), return_index=True)
        q, known, quanta = state.q[tops], state.known[tops], state.quantum[tops]
        queued = np.isin(tops, _tops(state)[waiting])
        if not refill_due(NUMPY, q, queued):
            return {}
        given = refill_rounds(NUMPY, q, queued, known, quanta) - q
        return {int(firsts[i]): int(given[i]) for i in np.flatnonzero(given)}

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """L-weighted for clients in no group, H-weighted for siblings in one, at one holder."""
        if any(client.place for client in clients):
            return super().service_gap_bound(clients, limits)
        return self.top.service_gap_bound(clients, limits)

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        return self.top.service_gap_bound(groups, limits)


def _tops(state: HierarchicalState) -> Ints:
    """The node below the root that each client is, or is in."""
    tops: Ints = np.where(state.outer > 0, state.outer, np.where(state.inner > 0, state.inner, state.node))
    return tops


class LeasedTree(TreeOfDeficits):
    """The gate's rules for a monitor (`policies.gates.interpreters`)."""

    def lent(self, clients: tuple[int, ...], units: tuple[int, ...]) -> None:
        """So many cost units came from the account, or went back."""
        for client, amount in zip(clients, units, strict=True):
            top = self._path(client)[-1]
            [self.q[top]] = pooled(EXACT, ExactVector([self.q[top]]), ExactVector([amount]))


interpreter.register(LeasedTreeGate, LeasedTree)


AnyLeasedGate = LeasedGate | LeasedTreeGate


def on_lease(gate: AnyGate, lease: int, holders: int) -> AnyLeasedGate:
    """Return the gate of one of so many holders, with leases of at most so many cost units of the credit that the gate
    would give by itself.  Raises `ValueError` for a gate whose credit cannot be on lease."""
    if getattr(gate, "in_flight_cap_tokens", None) is None:
        if type(gate) is DeficitGate and not gate.cached_percent:
            return LeasedGate(gate.rates, gate.quantum, lease=lease, holders=holders)
        if type(gate) is HierarchicalGate:
            return LeasedTreeGate(gate.rates, gate.quantum, lease=lease, holders=holders)
    raise ValueError('what is shared is the credit of a deficit gate: policy = "fcfs+deficit" or "fcfs+hierarchical"')
