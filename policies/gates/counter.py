"""The counter gate: the client that has been charged least goes first (VTC's gate).

Paper: "Fairness in Serving Large Language Models" (VTC, OSDI'24).  Theorem 4.4's formula was seen, its other constants
are recalled; the lift uses the last-leaver branch that the paper states and its released code leaves out.

Theorem: between two clients that both wait, charged service differs by at most 2U over any interval, whatever the
order, where U is the most that one client can be charged after it was let in (V-4.4).

State: one counter c a client, and who left the queue last.  An admission adds the whole prompt, cached or not, a
decode step the decoded tokens, both times lcm / weight.  A client that comes back is lifted to the lowest counter that
waits, or to that of the last who left, so that idling earns nothing.  What is charged and never computed is given back,
but not below the level of the client's last lift: a client comes out as if the request had never been charged.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs
import msgspec

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra, Ints, Mask, Point, Scalar, Vector
from fairsched.model.pricing import multipliers
from fairsched.model.request import Client
from fairsched.policies.base import ChargeRule, Limits
from fairsched.policies.gates.authoring import Kernel, KernelGate
from fairsched.policies.gates.base import BoundTerms, Returns
from fairsched.policies.validators import one_of

# --- theorems, proved in fairsched.verify for every number of clients -----------------------------------------------

# Service is what was charged, less all that was given back.  What may be given back to one client lies in the same
# memory as what another is charged, so refunds cost the bounds nothing.

_BASE = (th.MEM_RESERVE, th.MEM_SHARED, th.GATE_RESPECTED, th.LIFT_ON_JOIN)


def gap_cost(_quantum_f: int, charge_max_f: int, _quantum_g: int, charge_max_g: int) -> int:
    """The bound of V-4.4 in cost units; the gate has no quanta."""
    return charge_max_f + charge_max_g


def one_sided_gap_cost(_quantum_f: int, charge_max_f: int, _quantum_g: int, charge_max_g: int) -> int:
    """The bound of V-4.9 in cost units."""
    return charge_max_f + 2 * charge_max_g - 1


def worker_gap_cost(_quantum_f: int, charge_max_f: int, _quantum_g: int, charge_max_g: int) -> int:
    """The bound of V-4.9-worker in cost units, where no third client has a larger U."""
    return charge_max_g + max(charge_max_f, charge_max_g)


V_43 = th.Theorem(
    "V-4.3",
    "c_i + R_i <= c_j + U_i for every i and every j that waits, whatever is given back",
    "VTC (OSDI'24), lemma 4.3, whose constant is recalled; here for the pessimistic counter and any weights",
    _BASE,
    bound="U_i",
)
V_DEBT = th.Theorem(
    "V-debt",
    "over any interval c_i grows at least by W_i: no rejoin forgives what was charged",
    "this library; needed wherever one client of a comparison is not backlogged",
)
V_44 = th.Theorem(
    "V-4.4",
    "f and g backlogged over [t1, t2): |W_f - W_g| <= 2U",
    "VTC (OSDI'24), theorem 4.4",
    (*_BASE, th.BACKLOGGED_DURING),
    bound="U_f + U_g",
    bound_cost=gap_cost,
)

V_49 = th.Theorem(
    "V-4.9",
    "f backlogged over [t1, t2), g any client: W_f >= W_g - (U_f + 2 U_g - 1)",
    "VTC (OSDI'24), theorem 4.9, whose constant is recalled as 4U",
    (*_BASE, th.CHARGES_AT_LEAST_ONE, th.BACKLOGGED_DURING),
    bound="U_f + 2 U_g - 1",
    bound_cost=one_sided_gap_cost,
)
V_49_WORKER = th.Theorem(
    "V-4.9-worker",
    "f backlogged over [t1, t2), g any client, all in one worker's memory: W_f >= W_g - (U_g + U) + R_f(t1), U the "
    "largest; so W_g <= U_g + U while f is not let in",
    "VTC (OSDI'24), theorem 4.9, recalled as 4U; new here: 2U, which V-4.4's run attains",
    (*_BASE, th.NOTHING_REFUNDED, th.BACKLOGGED_DURING),
    bound="U_g + the largest U",
    bound_cost=worker_gap_cost,
)
V_CHANGE = th.Theorem(
    "V-change",
    "whatever weights do: c_i + R_i <= c_j + U_i for every j that waits, and |W_f - W_g| <= U_f + U_g for f and g "
    "backlogged, with R and U at the dearest price that the client ever paid, in the finest unit",
    "this library: what survives a change of weights; charges are at the weight of their time",
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.LIFT_ON_JOIN, th.NOTHING_REFUNDED, th.BACKLOGGED_DURING),
    bound="U_f + U_g at the lowest weights of the run",
    bound_cost=gap_cost,
)
V_411 = th.Theorem(
    "V-4.11",
    "while f waits and is not let in: W_g <= U_f + U_g + R_g(t1) for every other g (without R_g(t1) if g waited at t1; "
    "without U_f if f was lifted at t1 to where no refund takes another that waits), and W_f <= R_f(t1)",
    "VTC (OSDI'24), theorem 4.11, whose constant is recalled: 2 (n - 1) U / a",
    (*_BASE, th.BACKLOGGED_DURING),
    bound="U_f + U_g + R_g(t1)",
)
V_411_TIME = th.Theorem(
    "V-4.11-time",
    "a (t2 - t1) <= R_f(t1) + the sum over g other than f of U_f + U_g + R_g(t1), for f waiting and not let in",
    "VTC (OSDI'24), theorem 4.11; V-4.11 summed over any number of clients",
    (*_BASE, th.BACKLOGGED_DURING, th.CAPACITY_FLOOR),
    bound="R_f(t1) + sum over g of U_f + U_g + R_g(t1)",
)

V_TOTAL = th.Theorem(
    "V-total",
    "c_i is at most S, all that was ever charged to all clients",
    "this library: a lift copies a counter and adds nothing",
    bound="S",
)
V_INT64 = th.Theorem(
    "V-int64",
    "with counters of at most 2^61, where the gate ends in an error, and charges of at most 2^60, as all are that is "
    "accepted, every number that a kernel computes is within 2^62",
    "this library: proofs are about integers, production about int64; by V-total the horizon is 2^61 units charged",
    bound="2^62",
    rests_on=("charge-limit",),
)
V_GATE = th.Theorem(
    "V-gate",
    "the gate admits only a client that waits, none that waits has a smaller counter, and one is admitted if any waits",
    "theorems of the kernel itself: what GateRespected means",
)
V_LIFT = th.Theorem(
    "V-lift",
    "a client that returns is raised no further than to the lowest that waits or, if none does, to the last that left; "
    "that is its floor",
    "this library: a lift takes from a client what it saved by idling and nothing more; found missing by a mutant",
)
V_LIFT_RELEASED = th.Theorem(
    "V-lift-released",
    "while a client waits, the released code's lift and its floor are those of V-lift; otherwise nothing changes",
    "VTC (OSDI'24), released code: all that is true of its lift; found missing by a mutant",
)
V_SUMS = th.Theorem(
    "V-sums",
    "outputs of two events, charged one after the other, leave the counters that they leave charged together",
    "this library: a monitor plays what was decoded when the counters are next looked at",
)
V_REFUND = th.Theorem(
    "V-refund",
    "a refund lowers its client's counter by the amount, or to the level of the client's last lift, and no other",
    "this library; found missing by a mutant",
)

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: c counters, floor the level of each one's last lift, queued which wait; last is the client whose
# queue emptied last.


def level(o: Algebra, c: Vector, queued: Mask, last: Point) -> Scalar:
    """Where a client whose queue was empty comes back: at the lowest that waits, or at the last that left."""
    return o.where(o.any(queued), o.pick(c, o.argmin(c, queued), 0), o.pick(c, last, 0))


def lift(o: Algebra, c: Vector, queued: Mask, p: Point, last: Point) -> Vector:
    """A client whose queue was empty comes back no lower than the level."""
    return o.put(c, p, o.maximum(o.pick(c, p, 0), level(o, c, queued, last)))


def lifted_to(o: Algebra, floor: Vector, c: Vector, queued: Mask, p: Point, last: Point) -> Vector:
    """From then on no refund takes the client below that level."""
    return o.put(floor, p, level(o, c, queued, last))


def choose(o: Algebra, c: Vector, queued: Mask) -> Point:
    """The client of smallest counter among those that wait."""
    return o.argmin(c, queued)


def admit(o: Algebra, c: Vector, p: Point, charge: Scalar) -> Vector:
    """The chosen client pays for its prompt."""
    return o.bump(c, p, charge)


def decode(o: Algebra, c: Vector, charge: Vector) -> Vector:
    """Each client pays for the tokens decoded for it."""
    return c + charge


def refund(o: Algebra, c: Vector, floor: Vector, p: Point, amount: Scalar) -> Vector:
    """What was charged and never computed is given back, but not below the level of the client's last lift."""
    return o.put(c, p, o.maximum(o.pick(c, p, 0) - amount, o.pick(floor, p, 0)))


def lift_released(o: Algebra, c: Vector, queued: Mask, p: Point) -> Vector:
    """The released code's rule, as a variant: where no client waits a client comes back at its own counter."""
    own = o.pick(c, p, 0)
    return o.put(c, p, o.where(o.any(queued), o.maximum(own, o.pick(c, o.argmin(c, queued), 0)), own))


def floor_released(o: Algebra, floor: Vector, c: Vector, queued: Mask, p: Point) -> Vector:
    """The level of such a lift; where no client waits it stays that of the last one."""
    return o.put(floor, p, o.where(o.any(queued), o.pick(c, o.argmin(c, queued), 0), o.pick(floor, p, 0)))


# --- closed form beside the kernel: other units, and the fast path --------------------------------------------------


def rescaled(o: Algebra, c: Vector, finer: Scalar) -> Vector:
    """Every counter in a unit that is so many times finer."""
    return c * finer


def stays_ahead(o: Algebra, c: Vector, own: Scalar, gains: Vector, ahead: Mask) -> Vector:
    """For how many steps a client whose counter is `own` goes before others that wait, on each of which it `gains`:
    until it passes them; of equals those `ahead` are served first."""
    return (c - own - o.where(ahead, 1, 0)) // gains + 1


# --- gate -----------------------------------------------------------------------------------------------------------


class CounterState(msgspec.Struct, frozen=True, gc=False):
    """Vectors over clients: counter `c`, `floor`, below which no refund takes it, and `share`, the lcm of all weights
    seen so far (`common`) over the client's own; `last` is the client whose queue emptied last (NO_GROUP at first)."""

    c: Ints
    share: Ints
    common: int
    last: int
    floor: Ints


@attrs.frozen
class CounterGate(KernelGate):
    """Serve the client with the smallest counter.

    `lift` is "last-leaver" (ours, and the paper's text) or "none" (the released code when the queue was momentarily
    empty, which breaks the theorem).
    """

    name: ClassVar[str] = "counter"
    state_type: ClassVar[Any] = CounterState
    state = units = ("c", "floor")
    rescale = staticmethod(rescaled)
    grows = "c"

    choose = staticmethod(choose)
    join_c = staticmethod(lift)
    join_floor = staticmethod(lifted_to)
    admit_c = staticmethod(admit)
    refund_c = staticmethod(refund)
    decode_c = staticmethod(decode)
    fast: ClassVar[Mapping[str, Kernel]] = {"leads": stays_ahead}
    sparse = True
    variants: ClassVar[Any] = {("lift", "none"): {"join_c": lift_released, "join_floor": floor_released}}

    follows_weights: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "prompt"
    gap_theorems: ClassVar[tuple[str, ...]] = (V_44.id,)
    returns: ClassVar[Returns] = {
        "return-debt": (V_DEBT.id,),
        "return-credit": "a client that returns is raised to the lowest that waits, whatever it saved (V-lift)",
        "return-lead": (V_49.id,),
    }
    theorems: ClassVar[tuple[th.Theorem, ...]] = (
        *(V_43, V_DEBT, V_44, V_49, V_49_WORKER, V_411, V_411_TIME, V_CHANGE),
        *(V_TOTAL, V_INT64, V_GATE, V_LIFT, V_REFUND, V_SUMS),
    )
    progress: ClassVar[tuple[str, ...]] = ("V-gate",)

    lift: Literal["last-leaver", "none"] = attrs.field(default="last-leaver", validator=one_of("last-leaver", "none"))
    """Where a client starts when no client waits: at the counter of the last that left the queue, or at its own."""

    def charge_max(self, limits: Limits) -> int:
        """U for weight lcm: most that one client can be charged after it was let in, in cost units.

        Whole prompts are charged, cached or not, and a worker counts the cached part that a request holds against its
        capacity too, so the last prompt and all reserved outputs of a client share that capacity; and so do prompts
        that are not computed, of this client and of any other, which may be given back.
        """
        return max(limits.charge_max(self.rates, limits.kv_capacity_tokens), limits.in_flight_max(self.rates))

    def _charge_maxima(self, shares: Sequence[int], limits: Limits) -> list[int]:
        """U of each client in its own unit: at the client's price, or at the dearest that another may be given back."""
        most, back = self.charge_max(limits), limits.prompts_max(self.rates) * max(shares)
        return [max(most * share, back) for share in shares]

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """V-4.4, in service times lcm / weight."""
        if self.lift == "none" or len(clients) < 2:
            return None
        shares = sorted(multipliers([client.weight for client in clients]))
        return sum(self._charge_maxima(shares, limits)[-2:])

    @property
    def broken_assumptions(self) -> frozenset[th.Assumption]:
        return frozenset({th.LIFT_ON_JOIN} if self.lift == "none" else ())

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        shares = multipliers([client.weight for client in clients])
        maxima = self._charge_maxima(shares, limits) if shares else ()
        return tuple(BoundTerms(0, charge, share) for charge, share in zip(maxima, shares, strict=True))

    def check(self, state: CounterState) -> None:
        super().check(state)
        # Counters start at zero and never fall below it, nor below the last lift; every share is the common multiple
        # over a weight.
        assert bool((state.floor >= 0).all())
        assert bool((state.c >= state.floor).all())
        assert not (state.common % state.share).any()
