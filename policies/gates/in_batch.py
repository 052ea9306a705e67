"""The deficit gate inside the batch: while others wait, a client that owes enough stands still there as well.

Source: this library.  The plain deficit gate looks at a client when a request of it wants to enter, and not again: all
that its running requests may produce is charged later, so U grows with the memory that holds them.  This gate looks
before every step.  A client that owes P or more is *paused* while any client waits: its decoding requests keep their KV
and produce nothing.  Where a client that has credit then lacks memory, the deepest debtor's youngest paused request is
taken out.

P is the price of the longest request that was let in so far, of all that it computes and its declared output as input.
A smaller one would make no bound smaller, since a client in credit may owe the price of a prompt at once, and would
take long requests out before they got far: with this one a client is charged more than the price of its request's
output, as input, between being let in and being paused (D-pause-work).

Theorem: two clients of equal weight that both wait differ in charged service by at most 2(Q + U - 1) over any interval,
with U = w_q B + w_e L, whatever the memory: B requests run, of at most L tokens (D-pause-gap, exact).

State: that of the deficit gate and P, *settled* after every event.  While no client waits, no client owes P or more: a
debt beyond that is forgiven, since no client was kept waiting for it (kept, it would be owed to the next that waits:
D-pause-debt).  While clients wait and none of them has credit, all without credit are topped up at once, not only with
the next admission.  So a lone client is never paused, and which clients are is a matter of deficits alone.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import msgspec

from fairsched.model import theorem as th
from fairsched.model.algebra import NO_SCORE, NUMPY, Algebra, Bools, Ints, Mask, Point, Scalar, Vector
from fairsched.model.pricing import charge_max_paused, price
from fairsched.policies.base import Limits
from fairsched.policies.gates.authoring import common, in_queue
from fairsched.policies.gates.base import Returns
from fairsched.policies.gates.deficit import (
    D_FIRST,
    D_GATE,
    D_INT64,
    D_REFILL,
    D_SUMS,
    D_UNDER_CAP,
    DeficitAdmissions,
    DeficitGate,
    DeficitState,
    gap_theorem,
    in_credit,
    refill_due,
    refill_rounds,
    weighted_gap_cost,
)
from fairsched.policies.validators import positive
from fairsched.policies.vectors import column, least

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors as in the deficit gate; `holds` are the clients that have paused requests in the batch, `depth` is P.


def forgive(o: Algebra, q: Vector, queued: Mask, known: Mask, depth: Scalar) -> Vector:
    """While no client waits, no known client owes the depth or more."""
    return o.where(known & o.none(queued), o.maximum(q, 1 - depth), q)


def may_decode(o: Algebra, q: Vector, depth: Scalar) -> Mask:
    """Which clients go on decoding: those that owe less than the depth."""
    return q > -depth


def deepest_debtor(o: Algebra, q: Vector, holds: Mask, depth: Scalar) -> Point:
    """The paused client that owes most, a request of which is taken out first."""
    return o.argmin(q, holds & (q <= -depth))


# --- gate: statements -------------------------------------------------------------------------------------------------

_RANGE = (th.BATCH_BOUNDED, th.EXTEND_AS_PLANNED, th.GATE_RESPECTED, th.PAUSES_OBEYED, th.QUANTUM_POSITIVE)
_BASE = (*_RANGE, th.REJOIN_KEEPS_DEBT)
_PAIR = (*_BASE, th.EQUAL_QUANTA, th.BACKLOGGED_DURING)
_SOURCE = "this library: a gate that looks before every step"

D_PAUSE_RANGE = th.Theorem(
    "D-pause-range",
    "1 - U <= q_i - R_i and q_i <= Q_i + B_i, whatever the memory, with U = w_q B + w_e L",
    f"{_SOURCE}; D-range, with a batch in place of the memory",
    _RANGE,
    bound="[1 - U, Q_i + B_i]",
)
D_PAUSE_GAP = gap_theorem(
    "D-pause-gap",
    "f and g backlogged over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g",
    f"{_SOURCE}; D-4.1, with a batch in place of the memory",
    _PAIR,
)
D_PAUSE_LAG = gap_theorem(
    "D-pause-lag",
    "f backlogged over [t1, t2), g any client: W_f >= W_g - 2(Q + U - 1) - B_f - B_g",
    f"{_SOURCE}; D-4.2, with a batch in place of the memory",
    _PAIR,
)
D_PAUSE_WEIGHTED = th.Theorem(
    "D-pause-weighted",
    "f and g backlogged over [t1, t2): |Q_g W_f - Q_f W_g| <= Q_g (Q_f + U - 1 + B_f) + Q_f (Q_g + U - 1 + B_g)",
    f"{_SOURCE}; D-weighted, with a batch in place of the memory",
    (*_BASE, th.BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
D_PAUSE_DEBT = th.Theorem(
    "D-pause-debt",
    "from any deficits, of a gate that forgives nothing too: f and g backlogged over [t1, t2): W_f - W_g <= "
    "2(Q + U - 1) + B_f + B_g + D_g, where D_g is what g owed at t1 beyond U - 1",
    f"{_SOURCE}: what a debt costs that was made while no client waited",
    _PAIR,
    bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g + D_g",
)
D_PAUSE = th.Theorem(
    "D-pause",
    "a client is paused exactly while it owes P or more, so never in credit; while no client waits no client is, and "
    "what is taken out is of the client that owes most among those that are paused",
    "theorems of the kernel itself: what PausesObeyed means",
)
D_PAUSE_PROGRESS = th.Theorem(
    "D-pause-progress",
    "once settled: if clients wait, one of them has credit, so that it may decode and be let in, and is never taken "
    "out; if none waits, every client that was seen may decode",
    f"{_SOURCE}: no client stands still for ever",
)
D_PAUSE_WORK = th.Theorem(
    "D-pause-work",
    "a client that is paused was charged more than w_e o for outputs since a request of it was last let in, of which o "
    "output tokens were declared and left",
    f"{_SOURCE}: requests are not taken out again and again before they get far",
    (th.EXTEND_AS_PLANNED, th.GATE_RESPECTED, th.QUANTUM_POSITIVE),
    bound="w_e o + 1",
)

THEOREMS = (
    *(D_PAUSE_RANGE, D_PAUSE_GAP, D_PAUSE_LAG, D_PAUSE_WEIGHTED, D_PAUSE_DEBT),
    *(D_PAUSE, D_PAUSE_PROGRESS, D_PAUSE_WORK, D_GATE, D_FIRST, D_REFILL, D_SUMS, D_UNDER_CAP, D_INT64),
)
"""Those about what ships, in the order of the report."""

# --- declaration ------------------------------------------------------------------------------------------------------


class InBatchState(DeficitState, frozen=True, gc=False):
    """Beside the deficits, the most tokens that a request needed when it was let in."""

    longest: int = 0


class _InBatchAdmissions(DeficitAdmissions):
    longest: int

    def entered(self, group: int, kv_tokens: int) -> None:
        super().entered(group, kv_tokens)
        self.longest = max(self.longest, kv_tokens)


@attrs.frozen
class InBatchGate(DeficitGate):
    """The deficit gate, which also pauses what runs: its bound does not grow with memory."""

    name: ClassVar[str] = "in-batch"
    state_type: ClassVar[Any] = InBatchState
    kept = ("in_flight", "longest")
    admissions = _InBatchAdmissions
    theorems: ClassVar[tuple[th.Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = (D_PAUSE_PROGRESS.id, D_GATE.id)
    gap_theorems: ClassVar[tuple[str, ...]] = (D_PAUSE_WEIGHTED.id,)
    returns: ClassVar[Returns] = {
        "return-debt": "a debt of P or more is forgiven while no client waits, since none was kept waiting for it",
        "return-credit": "no theorem counts what refills give; credit stays in its range (D-pause-range)",
        "return-lead": (D_PAUSE_LAG.id,),
    }

    context_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Longest prompt with its declared output; a longer request is rejected, and none: as they come."""

    def __attrs_post_init__(self) -> None:
        if self.elastic:
            raise ValueError("in-batch: cap_holds=contended is not taken, since what runs is paused while others wait")

    def depth(self, state: InBatchState) -> int:
        """P: what a client owes that is paused while any client waits, in cost units."""
        return price(state.longest, self.rates.input)

    def settled_up(self, state: InBatchState, heads: Ints) -> InBatchState:
        """The state in which what is forgiven is forgiven, and credit that is due is given."""
        queued, depth = in_queue(heads), self.depth(state)
        if refill_due(NUMPY, state.q, queued):
            q = refill_rounds(NUMPY, state.q, queued, state.known, common(state.quantum))
        elif NUMPY.any(state.known & (state.q <= -depth)):
            q = forgive(NUMPY, state.q, queued, state.known, depth)
        else:
            return state
        return msgspec.structs.replace(state, q=q)

    def may_decode(self, state: InBatchState) -> Bools:
        """Which clients may decode."""
        allowed: Bools = may_decode(NUMPY, state.q, self.depth(state))
        return allowed

    def debtor(self, state: InBatchState, holds: Bools) -> int:
        """The client of which a paused request is taken out first, among those that hold some; NO_GROUP if none."""
        return int(deepest_debtor(NUMPY, state.q, holds, self.depth(state)))

    def pause_reason(self, state: InBatchState, client: int) -> str:
        """Why requests of a client were just paused: what it owes, if that is not what enters in the same step."""
        owed = -int(state.q[client])
        if owed < self.depth(state):
            return "a request of its client enters now, which puts the client into debt, and others wait"
        return f"its client owed {owed:,} and others waited"

    def steady_steps(
        self, state: InBatchState, heads: Ints, clients: Sequence[int], counts: Sequence[int], most: int | None
    ) -> int | None:
        """For how many steps, of at most so many (None: any number), no client is paused and none topped up while
        `counts[k]` requests of `clients[k]` decode; None: until another event."""
        if not len(clients):
            return most
        who, charge = column(clients), column(counts, self.rates.output)
        q = state.q.take(who)
        pauses = least((q + (self.depth(state) - 1)) // charge) + 1
        within, richest = pauses if most is None else min(pauses, most), int(q.argmax())
        # A refill is due when the last client that waits in credit has spent it: not before the richest has.
        if heads[who[richest]] != NO_SCORE and (int(q[richest]) - 1) // int(charge[richest]) + 1 >= within:
            return within
        credit = in_credit(NUMPY, state.q, in_queue(heads))
        if not NUMPY.any(credit):
            return most
        spends = credit.take(who).nonzero()[0]
        if len(spends) < len(credit.nonzero()[0]):
            return within
        lasts = (q.take(spends) - 1) // charge.take(spends)
        return min(within, int(lasts[lasts.argmax()]) + 1)

    def refuses(self, kv_tokens: int) -> str | None:
        longest = self.context_tokens
        if longest is not None and kv_tokens > longest:
            return f"{kv_tokens} tokens are over the longest context of {longest}"
        return super().refuses(kv_tokens)

    def charge_max(self, limits: Limits) -> int:
        memory = limits.kv_capacity_tokens
        longest = min(limits.prompt_tokens_max + limits.output_tokens_max, limits.request_tokens_max, memory)
        longest = min(longest, self.context_tokens or memory)
        charge = charge_max_paused(self.rates, longest, min(limits.running_max, memory))
        return charge + self.rates.output * limits.hold_tokens
