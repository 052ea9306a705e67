"""One deficit a client for all workers: who was served anywhere pays everywhere (the deficit gate's state, shared).

Source: this library; the distributed gate of the DLPM paper (D2LPM) keeps a deficit for each client and worker, and
bounds the gap only between clients that wait on every worker.  Here a refill is due when no client that waits at *any*
worker has credit, so being backlogged somewhere is enough.

Assumptions: those of the deficit gate on each worker.  Theorem: two clients that wait, each at any worker, differ in
charged service by at most 2(Q + m(U - 1)) on m workers (D2-global), where U is what one worker can charge a client
after it let it in.  What is given up is said by `keeps`:

- "fairness": the theorem.  A worker where only clients without credit wait may idle, as long as one waits
  elsewhere in credit.
- "work": a worker where no client has credit refills those that wait there, so it never idles while something
  fits.  The gap of two clients then grows by the difference of these gifts (D2-gift), and has no bound, unless they
  wait at the same workers (D2-together).

With `unsent_max` each worker charges a copy of its own, and the others learn of it when a client's unsent charges would
pass that many cost units: U becomes U + S, where S = (m - 1) unsent_max (D2-stale;
`policies.gates.credit_ledger`).

State: that of the deficit gate, and at how many workers each client waits.  It lives in the cluster: an engine that
runs a worker checks it out for each decision and event, and commits what became of it (`SharesCredit`).
"""

from typing import Any, ClassVar, Literal

import attrs
import msgspec
import numpy as np
from msgspec.structs import replace

from fairsched.model import theorem as th
from fairsched.model.algebra import NO_SCORE, NUMPY, Algebra, Ints, Mask, Point, Vector
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.model.request import Client
from fairsched.model.serialization import from_json, to_json
from fairsched.policies.base import Limits
from fairsched.policies.gates.base import Returns
from fairsched.policies.gates.credit_ledger import CreditLedger
from fairsched.policies.gates.deficit import (
    DeficitAdmissions,
    DeficitGate,
    DeficitState,
    gap_cost,
    gap_theorem,
    refill_due,
    refill_rounds,
)
from fairsched.policies.validators import not_negative, one_of
from fairsched.policies.vectors import grown

# --- theorems -------------------------------------------------------------------------------------------------------
# m workers; U_w is the U of worker w, U = sum over w of (U_w - 1) + 1 that of the cluster.  W_i is what all workers
# together charged client i.  Proved in `fairsched.verify.proofs.gates.shared` for every number of clients, and
# of workers. All of it is this library's; the paper's gate keeps a deficit for each client and worker (see
# docs/policies/routers/d2lpm.md).

_NEW = "this library"
_BASE = (th.MEM_RESERVE, th.GATE_RESPECTED, th.QUANTUM_POSITIVE, th.REJOIN_KEEPS_DEBT)
_GAP = (*_BASE, th.EQUAL_QUANTA, th.BACKLOGGED_DURING)
_RESTS = ("D2-memory", "D2-places")

D2_MEMORY = th.Theorem(
    "D2-memory",
    "if each worker w charges a client at most U_w after it let it in, the cluster charges it at most "
    "sum of (U_w - 1) + 1 after any worker did",
    _NEW,
    (th.MEM_RESERVE, th.CHARGES_AT_LEAST_ONE),
    bound="sum over w of (U_w - 1) + 1",
)
D2_PLACES = th.Theorem(
    "D2-places",
    "the gate counts at how many workers a client waits: it waits somewhere if and only if the count is above zero, "
    "also while its requests move",
    _NEW,
)
D2_GLOBAL = th.Theorem(
    "D2-global",
    "f and g backlogged anywhere over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g, U - 1 the sum of (U_w - 1), "
    "whatever routes, orders and moves their requests",
    _NEW,
    (*_GAP, th.GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g, U = sum over w of (U_w - 1) + 1",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_LAG = th.Theorem(
    "D2-lag",
    "f backlogged anywhere over [t1, t2), g any client: W_f >= W_g - 2(Q + U - 1) - B_f - B_g",
    _NEW,
    (*_GAP, th.GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g, U = sum over w of (U_w - 1) + 1",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_STEAL = th.Theorem(
    "D2-steal",
    "whenever clients wait anywhere and no refill is due, a client in credit waits somewhere: an idle worker may "
    "take its request, so with stealing none idles while something waits that fits it",
    _NEW,
)
D2_GIFT = th.Theorem(
    "D2-gift",
    "with keeps=work, f and g backlogged anywhere: |W_f - W_g - (G_f - G_g)| <= 2(Q + U - 1) + B_f + B_g, where G_i is "
    "the credit that workers gave i to keep themselves busy",
    _NEW,
    _GAP,
    bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g, beside the gifts",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_TOGETHER = gap_theorem(
    "D2-together",
    "with keeps=work, f and g backlogged at the same workers over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g",
    _NEW,
    (*_GAP, th.BACKLOGGED_TOGETHER),
    rests_on=_RESTS,
)
D2_UNSENT = th.Theorem(
    "D2-unsent",
    "what a holder has not told stays in [0, most] for each client, and ledger less all that is unsent is the truth",
    _NEW,
    bound="most",
)
D2_STALE = th.Theorem(
    "D2-stale",
    "copies that lack at most S charges of each client, f and g backlogged anywhere: "
    "|W_f - W_g| <= 2(Q + U + S - 1) + B_f + B_g",
    _NEW,
    (*_GAP, th.GLOBAL_REFILL, th.STALE_READS),
    bound="(Q + U_f + S - 1) + (Q + U_g + S - 1) + B_f + B_g",
    bound_cost=gap_cost,
    rests_on=(*_RESTS, "D2-unsent"),
)

# What a shared deficit promises where prefill and decode workers are apart, and what a gate at prefill alone does not.
#
# A request passes the gate twice: at a prefill worker for its prompt, and, when its KV has landed, at a decode worker
# for one token more.  Both, and every output token, are charged to one deficit of its client.  A client is *backlogged*
# while a request of it waits in any worker's queue, for its prefill or, landed, for its decoding; not while all of its
# requests run, are staged or are on their way.
#
# Theorem: clients backlogged throughout differ in what both phases together charged them by at most 2(Q + U - 1)
# (S-gap), where U adds up what one worker of either kind can charge (S-U-prefill, S-U-decode).  With a gate at the
# prefill workers alone, or one of its own at each worker, nothing bounds the difference of decode service (F-S-1): what
# is left is S-prefill (`policies.gates.deficit`).

S_GAP = th.Theorem(
    "S-gap",
    "one deficit for prefill and decode workers, f and g backlogged at any of them over [t1, t2): what both phases "
    "charged differs by |(S_f + T_f) - (S_g + T_g)| <= 2(Q + U - 1) + B_f + B_g, S at prefill workers and T at decode "
    "workers",
    _NEW,
    (*_GAP, th.GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1), U = sum over prefill workers of (U_p - 1) + sum over decode workers of "
    "(U_d - 1) + 1; and B_f + B_g",
    bound_cost=gap_cost,
    rests_on=("D2-memory", "D2-places", "S-U-prefill", "S-U-decode"),
)
S_U_PREFILL = th.Theorem(
    "S-U-prefill",
    "where requests leave with their first token and w_q <= 2 w_e: an admission's charge and the first tokens of all "
    "requests of the client are at most U_p, and U_p is attained",
    _NEW,
    (th.MEM_RESERVE, th.PHASES_APART),
    bound="w_e (M - 1) + w_q",
)
S_U_DECODE = th.Theorem(
    "S-U-decode",
    "where requests come with their first token and all KV but that token's: an admission's charge and all outputs "
    "reserved for the client are at most U_d, and U_d is attained",
    _NEW,
    (th.MEM_RESERVE, th.PHASES_APART),
    bound="w_e + w_q (M - 2)",
)

THEOREMS = (
    *(D2_MEMORY, D2_PLACES, D2_GLOBAL, D2_LAG, D2_STEAL),
    *(D2_GIFT, D2_TOGETHER, D2_UNSENT, D2_STALE),
    *(S_GAP, S_U_PREFILL, S_U_DECODE),
)
"""In the order of the report."""

# --- kernel ---------------------------------------------------------------------------------------------------------
# Beside the deficit gate's: places at how many workers each client waits.


def enter(o: Algebra, places: Vector, p: Point) -> Vector:
    """The client begins to wait at one more worker."""
    return o.bump(places, p, 1)


def depart(o: Algebra, places: Vector, p: Point) -> Vector:
    """Nothing of the client waits any more at one of its workers."""
    return o.bump(places, p, -1)


def waits(o: Algebra, places: Vector) -> Mask:
    """Which clients wait somewhere."""
    return places > 0


# --- gate -----------------------------------------------------------------------------------------------------------


def prefill_charge_max(rates: Rates, kv_capacity_tokens: int) -> int:
    """U of a worker that a request leaves with its first token: of one request all but a token is prompt.

    Where an output costs more than two inputs many short requests would be charged more; then it is the U of a worker
    for both phases.

    >>> prefill_charge_max(Rates(1, 2), 4)
    5
    """
    if rates.output > 2 * rates.input:
        return charge_max_reserved(rates, kv_capacity_tokens, kv_capacity_tokens - 1)
    return rates.input * (kv_capacity_tokens - 1) + rates.output


def decode_charge_max(rates: Rates, kv_capacity_tokens: int) -> int:
    """U of a worker to which requests come decoding: at least two tokens of context are no output of its own.

    >>> decode_charge_max(Rates(1, 2), 4)
    5
    """
    return rates.input + rates.output * (kv_capacity_tokens - 2)


_NONE = np.zeros(0, np.int64)


class GlobalState(DeficitState, frozen=True, gc=False):
    """The deficit gate's vectors, at how many workers each client waits, and all credit that refills ever gave.

    `landed` counts the requests that wait with KV which came with them, from a prefill worker.  A client's other
    requests go after those: else it would spend its credit on prefills, and their KV would fill the memory of all
    workers.  To the theorems that is a client which is not ready.
    """

    places: Ints = msgspec.field(default_factory=lambda: _NONE)
    granted: Ints = msgspec.field(default_factory=lambda: _NONE)
    landed: Ints = msgspec.field(default_factory=lambda: _NONE)


class _GlobalAdmissions(DeficitAdmissions):
    """A worker's decision: `queued` are the clients that wait anywhere, `here` those that wait at this worker."""

    places: Ints
    granted: Ints
    landed: Ints

    def __init__(self, gate: "GlobalDeficitGate", state: GlobalState, heads: Ints) -> None:
        super().__init__(gate, state, grown(heads, len(state.places), NO_SCORE))
        self.keeps_work = gate.keeps == "work"
        self.here = self.queued
        self.queued = waits(NUMPY, state.places)

    def choose(self, heads: Ints) -> int:
        return super().choose(grown(heads, len(self.places), NO_SCORE))

    def withdraw(self, group: int) -> None:
        # A client that lacks a slot here may find one at another worker: it waits on.
        self.skip(group)

    def give(self) -> None:
        before = self.q
        super().give()
        if self.keeps_work and refill_due(NUMPY, self.q, self.here):
            self.before = (before,)
            self.q = refill_rounds(NUMPY, self.q, self.here, self.here, self.state.quantum)

    def behind_landed(self, client: int) -> bool:
        return client < len(self.landed) and bool(self.landed[client])

    def unheld(self, client: int) -> bool:
        self.landed = NUMPY.bump(grown(self.landed, client + 1, 0), client, -1)
        return True

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        if self.before is not None:
            self.granted = self.granted + (self.q - self.before[0])
        super().admit(group, input_tokens, kv_tokens, emptied)

    def emptied(self, group: int) -> None:
        self.places = depart(NUMPY, self.places, group)
        self.here[group] = self.ready[group] = False
        self.queued[group] = self.places[group] > 0


Credit = GlobalState | CreditLedger
"""What workers share: the state itself, or the ledger behind their copies."""


@attrs.frozen
class GlobalDeficitGate(DeficitGate):
    """The deficit gate over all workers.

    The in-flight cap is over all of them too, and shrinks U to the cap, however many there are.
    """

    name: ClassVar[str] = "global-deficit"
    state_type: ClassVar[Any] = GlobalState
    kept = ("in_flight", "places", "granted", "landed")
    rooms = ("in_flight", "places", "granted")
    admissions = _GlobalAdmissions
    withdraws = False
    theorems: ClassVar[tuple[th.Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = ("D2-steal",)
    gap_theorems: ClassVar[tuple[str, ...]] = (D2_GLOBAL.id, D2_STALE.id)
    returns: ClassVar[Returns] = {
        "return-debt": "no theorem follows one client over all workers (D-A.1 does at one worker)",
        "return-credit": "no theorem follows one client over all workers (D-A.1 does at one worker)",
        "return-lead": (D2_LAG.id,),
    }

    keeps: Literal["fairness", "work"] = attrs.field(default="fairness", validator=one_of("fairness", "work"))
    """What is kept where one of both is lost: fairness (a worker may idle) or work (it refills the clients that
    wait there)."""
    unsent_max: int = attrs.field(default=0, validator=not_negative)
    """Cost units of a client that a worker may charge before it tells the others."""

    # --- what workers share -----------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        return not self.unsent_max

    def credit(self) -> Credit:
        """The shared state at first: itself, or the ledger behind the workers' copies."""
        state = self.init()
        return CreditLedger(state) if self.unsent_max else state

    def checkout(self, state: GlobalState, credit: Credit, worker: int) -> GlobalState:
        return credit.seen(worker) if isinstance(credit, CreditLedger) else credit

    def commit(self, credit: Credit, state: GlobalState, worker: int) -> Credit:
        return credit.told(worker, state, self.unsent_max) if isinstance(credit, CreditLedger) else state

    def idle(self, credit: Credit, worker: int) -> Credit:
        return credit.rested(worker) if isinstance(credit, CreditLedger) else credit

    def snapshot(self, credit: Credit) -> GlobalState:
        return credit.state if isinstance(credit, CreditLedger) else credit

    def seen_to_json(self, credit: Credit, worker: int) -> dict[str, Any]:
        return to_json(credit.seen(worker) if isinstance(credit, CreditLedger) else credit)

    def seen_from_json(self, document: dict[str, Any]) -> GlobalState:
        return from_json(GlobalState, document)

    # --- one worker -------------------------------------------------------------------------------------------------

    def joined(self, state: Any, client: int, heads: Ints, waited: bool) -> Any:
        state = super().joined(state, client, heads, waited)
        return state if waited else replace(state, places=enter(NUMPY, state.places, client))

    def left(self, state: Any, client: int) -> Any:
        return replace(state, places=depart(NUMPY, state.places, client))

    def held(self, state: Any, client: int, change: int) -> Any:
        """Return the state in which so many more (or fewer) of the client's requests wait that came with their KV:
        these hold memory, and go before its others."""
        landed = grown(state.landed, max(client + 1, len(state.places)), 0)
        return replace(state, landed=NUMPY.bump(landed, client, change))

    # --- bounds -----------------------------------------------------------------------------------------------------

    def charge_max(self, limits: Limits) -> int:
        """U of the cluster, staleness included: most that one client can be charged after its true credit was above
        zero.  A worker that let a client in before may still charge it U - 1, since an admission charges at least one;
        a cap holds for all workers together.  Where phases are split, each worker has the U of its kind."""
        whole = limits.workers * (super().charge_max(limits) - 1) + 1
        if limits.prefill_workers and limits.outputs_reserved and not self.cached_percent:
            memory, decode_workers = limits.kv_capacity_tokens, limits.workers - limits.prefill_workers
            prefill = limits.prefill_workers * (prefill_charge_max(self.rates, memory) - 1)
            whole = prefill + decode_workers * (decode_charge_max(self.rates, memory) - 1) + 1
        if self.in_flight_cap_tokens is not None and limits.outputs_reserved and not self.elastic:
            memory = min(self.in_flight_cap_tokens, limits.workers * limits.kv_capacity_tokens)
            whole = min(whole, limits.charge_max(self.rates, memory))
        return whole + (limits.workers - 1) * self.unsent_max

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """D2-global: of the services that all workers gave two clients that wait anywhere."""
        if self.keeps == "work" and limits.workers > 1:
            return None
        return super().service_gap_bound(clients, limits)

    @property
    def broken_assumptions(self) -> frozenset[th.Assumption]:
        given_up = {th.GLOBAL_REFILL} if self.keeps == "work" else set()
        return super().broken_assumptions | given_up

    def check(self, state: Any) -> None:
        super().check(state)
        # No client waits at fewer workers than none, and all that wait are known.
        assert bool((state.places >= 0).all())
        # Nor do fewer requests wait with KV than none.
        assert bool((state.landed >= 0).all())
        assert bool(state.known[state.places > 0].all())
