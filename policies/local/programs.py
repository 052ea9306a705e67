"""Which programs are in progress: a call enters if its KV fits beside what others hold and will use again.

Rule.  A call that may come to hold n tokens is let in if these fit, n and what running calls may come to hold and what
is *kept*: the contexts of programs between two calls (`orders.abilities.programs`).  So a program is admitted, goes on
while its growing context fits, and where it does not fit pauses between two calls and holds nothing; the memory rule
then evicts what it left, or finds it again.  Where nothing runs the call that goes next is let in, whatever is kept.

Under a gate, kept is only what belongs to clients with credit: a client that was served its turn loses its room to
those that wait.  Memory has shares, too.  A client's share is by weight among those that run, are kept or wait, of the
outermost group of each; what is kept for it counts within its share only, and beyond its share it is let in only if
no other one waits with credit that holds less by weight (or if it holds nothing at all).

Sources: ThunderAgent (2602.13692) pauses programs between two calls where memory is short, Concur (2601.22705) limits
how many are in progress by how many returning calls find their KV, Continuum (2511.02230) keeps KV for a time.
Differences, credit, and shares are this library's.
"""

from typing import NamedTuple

import numpy as np

from fairsched.model.algebra import NO_SCORE, NUMPY, Algebra, Ints, Scalar, Vector
from fairsched.model.decision import WorkerView
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.gates import AdmissionTransaction, AnyGate
from fairsched.policies.local.state import AnyLocalState
from fairsched.policies.orders import Queue, QueuedRequest
from fairsched.policies.orders import abilities as able
from fairsched.policies.vectors import column

P_PROG_SHARE = Theorem(
    "P-PROG-share",
    "over t decode steps in which another client of equal weight waits with credit and holds no more than its share, "
    "what a client's programs hold sums to at most t (S + N), and what its calls hold that ran when that began; S is "
    "the largest that the share is meanwhile, N the most that a call may come to hold",
    "this library: cache-steps, of what running calls may come to hold and what is kept for programs between calls",
    bound="t (S + N)",
)
P_PROG_FITS = Theorem(
    "P-PROG-fits",
    "while something is kept, a call is let in beside others exactly if it fits with what running calls may come to "
    "hold and what counts of what is kept: of a client all, or as much as fills its share, or one program, beside what "
    "runs; then all fits after it as well",
    "theorems of the kernel itself: what programs in progress will use again need not be evicted for others",
)
P_PROG_SERVES = Theorem(
    "P-PROG-serves",
    "where each program is a client, while one waits each other one is served at most 2Q + U - 1 + D, whatever is kept "
    "for others, and where calls wait one runs; with n programs the others are served at most (n - 1) (2Q + U - 1 + D) "
    "before it goes on",
    "this library; D-A.2 where clients are passed over, in drawn worlds of the shipped policy",
    bound="2Q + U - 1 + D",
    scope=Scope.TESTED,
    rests_on=("D-A.2",),
)
THEOREMS = (P_PROG_SHARE, P_PROG_FITS, P_PROG_SERVES)

# --- kernel -----------------------------------------------------------------------------------------------------------


def kept_within(o: Algebra, share: Vector, running: Vector, kept: Vector, one: Vector) -> Vector:
    """Return how much of what is kept for a client counts, of which the largest program has `one`."""
    return o.maximum(o.minimum(kept, o.maximum(share, one) - running), 0)


def fits(o: Algebra, memory: Scalar, running: Scalar, kept: Scalar, need: Scalar) -> Scalar:
    """Return whether so much more fits beside what runs and what is kept."""
    return running + kept + need <= memory


def goes_before(o: Algebra, other: Scalar, own: Scalar) -> Scalar:
    """Return whether another client holds less: both holdings times the weight of the other one of the two."""
    return other < own


def beyond_share(o: Algebra, share: Scalar, held: Scalar, need: Scalar, before: Scalar) -> Scalar:
    """Return whether a client would be beyond its share that holds something, while another one that waits goes
    `before`."""
    return (held > 0) & (held + need > share) & before


# --- ability of a decision ------------------------------------------------------------------------------------------


class Holdings(NamedTuple):
    """What programs hold: tokens of `running` calls, and of programs between calls that are `counted`; who is the
    `owner` of each client's share; vectors over owners of what each holds, its weight and its share; which wait."""

    running: int
    counted: int
    owner: Ints
    holds: Ints
    weights: Ints
    shares: Ints
    waits: Ints

    def beyond_share(self, client: int, need: int) -> bool:
        """Return whether so much more is beyond the share of the client's owner, and others come first.  O(owners)."""
        own = self.owner[client]
        held, weight = int(self.holds[own]), int(self.weights[own])
        others = self.holds[self.waits] * weight, held * self.weights[self.waits]
        return bool(beyond_share(NUMPY, self.shares[own], held, need, goes_before(NUMPY, *others).any()))


_NONE = np.zeros(0, np.int64)
NOTHING_HELD = Holdings(0, 0, _NONE, _NONE, _NONE, _NONE, _NONE)


class ProgramPlaces:
    """What programs hold in one decision, and which calls are kept out."""

    def __init__(self, order: able.KeepsPrograms, gate: AnyGate, turn: AdmissionTransaction | None) -> None:
        self._order = order
        self._gate = gate
        self._turn = turn
        self._of: Queue | None = None
        self._holdings = NOTHING_HELD
        self.refuses_for_a_while = False
        """Whether a call was kept out by what is kept for others, or by their credit."""

    def full(self, state: AnyLocalState, view: WorkerView) -> bool:
        """Return whether the smallest call that waits is kept out, and so all.  As `lacks`."""
        if self._order.limit == "window":
            return False
        memory, need, found = view.kv_capacity_tokens, _held(state).waiting.first()[0], self._found(state, view)
        full = found.counted > 0 and not fits(NUMPY, memory, found.running, found.counted, need)
        self.refuses_for_a_while |= full
        return full

    def lacks(self, state: AnyLocalState, view: WorkerView, entry: QueuedRequest) -> bool:
        """Return whether a call is kept out, where others run.  O(1), and O(clients that run, are kept or wait) for the
        first of a decision and after each that is let in."""
        if self._order.limit == "window":
            held = _held(state)
            return entry.tag == entry.age and len(held.calls) + len(held.between) >= held.window
        memory, need, found = view.kv_capacity_tokens, able.needed(entry), self._found(state, view)
        refused = found.counted > 0 and not fits(NUMPY, memory, found.running, found.counted, need)
        if not refused and self._turn is not None:
            refused = found.beyond_share(entry.request.client, need)
        self.refuses_for_a_while |= refused
        return refused

    def steps(self, state: AnyLocalState, view: WorkerView) -> int | None:
        """Return for how many decode steps what was refused stays refused; None: until another event."""
        if not self.refuses_for_a_while:
            return None
        held, turn = _held(state), self._turn
        limits = [held.due.first()[0] - held.steps] if held.due.size else []
        if turn is not None:
            limits.append(turn.credit_lasts(view.decoding_clients, view.decoding_counts))
        return min(limits, default=None)

    def _found(self, state: AnyLocalState, view: WorkerView) -> Holdings:
        if self._of is not state.queue:
            self._of, self._holdings = state.queue, self._counted(state, view.kv_capacity_tokens)
        return self._holdings

    def _counted(self, state: AnyLocalState, memory: int) -> Holdings:
        turn, held = self._turn, _held(state)
        between = held.between.values()
        clients, tokens = column([each.client for each in between]), column([each.tokens for each in between])
        if turn is None:
            return NOTHING_HELD._replace(running=sum(held.running.values()), counted=int(tokens.sum()))
        size = len(state.queue.heads)
        owner, weight = self._gate.owners(state.gate, size)
        running, kept, most, weights = (np.zeros(int(owner.max()) + 1, np.int64) for _ in range(4))
        weights[owner] = weight // np.gcd.reduce(weight)
        credit = turn.in_credit(size)
        clients, tokens = clients[credit[clients]], tokens[credit[clients]]
        np.add.at(running, owner[column(list(held.running))], column(list(held.running.values())))
        np.add.at(kept, owner[clients], tokens)
        np.maximum.at(most, owner[clients], tokens)
        waits = owner[(state.queue.heads != NO_SCORE) & credit]
        there = (running > 0) | (kept > 0)
        there[waits] = True
        shares = memory * weights // max(int(weights[there].sum()), 1)
        counted = kept_within(NUMPY, shares, running, kept, most)
        sums = int(running.sum()), int(counted.sum())
        return Holdings(*sums, owner, running + counted, weights, shares, waits)


def _held(state: AnyLocalState) -> able.ProgramsHeld:
    held = state.queue.extension(able.ProgramsHeld)
    assert held is not None
    return held
