"""What a gate promises in one configuration, and what holds a run to it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import lcm
from typing import Any

import attrs

from fairsched.model import theorem as th
from fairsched.model.machine import LatencyModel
from fairsched.model.monitor import Promise, WaitBound
from fairsched.model.pricing import charge_max_optimistic, multipliers
from fairsched.model.request import Client, Groups
from fairsched.model.service import Charging, ServiceCurve
from fairsched.policies import gates
from fairsched.policies.base import ChargingRule, Guarantee, Limits, SharesCredit
from fairsched.policies.batching import Batching
from fairsched.policies.guarantees import seconds as sec
from fairsched.policies.guarantees.gate_monitor import GateMonitor
from fairsched.policies.guarantees.relation import KernelRelation

ONE_SIDED = frozenset({"D-4.2", "D-pause-lag", "V-4.9"})
"""Theorems about how far a waiting client falls behind any other."""


@attrs.frozen
class GateGuarantee(Guarantee):
    """What a gate promises under a batching rule, whatever the order.

    `skips` says that the policy may pass over a client whose request waits for its prefix, `displaces` that a request
    may be taken out of the batch for another one.
    """

    gate: gates.AnyGate
    batching: Batching
    skips: bool
    displaces: bool = False

    @property
    def charging(self) -> ChargingRule:
        return self.gate.charging

    def limits(self, kv_capacity_tokens: int, output_tokens_max: int) -> Limits:
        return self.batching.limits(kv_capacity_tokens, output_tokens_max)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        gate = self._bounded(limits)
        return None if gate is None else gate.service_gap_bound(clients, self._least(limits))

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        gate = self._bounded(limits)
        return None if gate is None else gate.group_gap_bound(groups, self._least(limits))

    def _bounded(self, limits: Limits) -> "gates.BoundedGate[Any] | None":
        """The gate, if a theorem says its bound."""
        if isinstance(self.gate, gates.BoundedGate) and self.gate.gap_theorems and not self._withdraws(limits):
            return self.gate
        return None

    def _least(self, limits: Limits) -> Limits:
        """Return the limits under which U is least: where declared outputs are short, places in the batch bound what
        may be charged sooner than memory does, and outputs count as not reserved (U-optimistic)."""
        gate, places = self.gate, attrs.evolve(limits, outputs_reserved=False)
        capped = getattr(gate, "in_flight_cap_tokens", None) is not None
        if not isinstance(gate, gates.DeficitGate) or capped or limits.outputs_predicted or limits.workers > 1:
            return limits
        return min(limits, places, key=gate.charge_max)

    def _withdraws(self, limits: Limits) -> bool:
        """Return whether clients that wait may count as ones that do not, since they lack a slot for an adapter."""
        return limits.slots_lack and self.gate.withdraws

    def worst_wait(self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel) -> sec.WorstWait | None:
        """T-wait: the longest wait on a worker with this latency model; `limits` name the largest request.

        None where it is not proved (`no_wait` says why).
        """
        return self._worst(clients, limits, latency, sec.TURNS)

    def worst_late(self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel) -> sec.WorstWait | None:
        """T-late: the longest wait of a request that ranks first of all; None where it is not proved."""
        return self._worst(clients, limits, latency, sec.LATE) if self.late_costs(clients, limits) else None

    def _worst(
        self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel, said_by: tuple[th.Theorem, ...]
    ) -> sec.WorstWait | None:
        gate, pace = self.gate, self._pace(limits, latency)
        if pace is None or self.no_wait(limits, latency):
            return None
        rates, longest, short_steps = gate.charging.rates, (limits.prompt_tokens_max, limits.output_tokens_max), 0
        terms, own_cost, quanta = bound_terms(gate, clients, limits), None, 1 if said_by is sec.LATE else 2
        if isinstance(gate, gates.InBatchGate | gates.CounterGate) and len({*terms}) > 1:
            return None
        if isinstance(gate, gates.InBatchGate):
            f, said_by = terms[0] if terms else gates.BoundTerms(1, 1), sec.PAUSED
            batch = charge_max_optimistic(rates, 0, limits.output_tokens_max, pace.running)
            own = min(batch, limits.charge_max(rates, limits.kv_capacity_tokens))
            turns, in_flight, own_cost = sec.paused_costs(len(terms), f.quantum, f.charge_max, own)
            short_steps = sec.refills_max(f.quantum, f.charge_max)
        else:
            # Where outputs are short, places in the batch bound what may be charged sooner than memory (U-optimistic).
            batch = charge_max_optimistic(rates, *longest, pace.running)
            terms = tuple(attrs.evolve(each, charge_max=min(each.charge_max, batch)) for each in terms)
            turns, in_flight = _wait_costs(gate, terms, quanta)
            said_by = sec.COUNTED if isinstance(gate, gates.CounterGate) else said_by
        curve = sec.worker_curve(pace, rates, limits.prompt_tokens_max, short_steps)
        return sec.WorstWait(turns, in_flight, curve, pace, *longest, own_cost, said_by)

    def late_costs(self, clients: tuple[Client, ...], limits: Limits) -> dict[str, int]:
        """Return the most cost units that others are charged while a request waits that ranks first of all (D-late),
        for the client that fares worst; by band, of all in its band (BAND-late), wherever clients are.

        Empty where it is not proved: without such a gate, or where requests may be passed over.
        """
        gate, limits = self.gate, self._least(limits)
        stated = isinstance(gate, gates.BandGate) or gates.deficit.D_LATE in gate.theorems
        broken = th.REJOIN_KEEPS_DEBT in gate.broken_assumptions or self.skips or self._withdraws(limits)
        if not stated or broken or limits.workers > 1 or getattr(gate, "in_flight_cap_tokens", None) is not None:
            return {}
        terms = bound_terms(gate, clients, limits)
        others = sum(sec.wait_costs(terms, 1)) - max((each.charge_max - 1 for each in terms), default=0)
        if isinstance(gate, gates.BandGate):
            most = gate.charge_max(limits) - 1
            beside = {name: gate.late_cost(band, others + most, limits) for band, name in enumerate(gate.names)}
            return {name: others + cost for name, cost in beside.items() if cost is not None}
        return {"": others}

    def window_wait(self, clients: tuple[Client, ...], limits: Limits, curve: ServiceCurve) -> sec.WindowWait | None:
        """T-window: the longest wait before servers that keep this curve; None where it is not proved."""
        cost = wait_bound_cost(self.gate, clients, limits)
        counted = sec.COUNTED[:1] if isinstance(self.gate, gates.CounterGate) else ()
        return None if cost is None or self._withdraws(limits) else sec.WindowWait(cost, curve, counted)

    def limited_wait(self, clients: int, limits: Limits, latency: LatencyModel) -> sec.LimitedWait | None:
        """T-limited: limits of arrivals, and the longest time to a first token under them; None where a request may
        wait though it has room."""
        gate = self.gate
        stated = {theorem.id for theorem in gate.theorems}
        serves = bool(gate.progress) and stated >= {*gate.progress}
        capped = getattr(gate, "in_flight_cap_tokens", None) is not None
        shares = isinstance(gate, SharesCredit | gates.AnyLeasedGate)
        if not serves or capped or shares or self.skips or self.no_curve(limits):
            return None
        return sec.limited_wait(latency, limits, self.batching.max_batched_tokens, clients)

    def loose(self, clients: tuple[Client, ...], limits: Limits, most: int) -> str:
        gate = self.gate
        if type(gate) not in (gates.CounterGate, gates.DeficitGate, gates.InBatchGate) or limits.workers > 1:
            return ""
        inside = gates.InBatchGate(rates=gate.rates, quantum=getattr(gate, "quantum", 4096))
        named = {"inside the batch (+in-batch)": inside, "there with a quantum of 1": attrs.evolve(inside, quantum=1)}
        for name, other in named.items():
            bound = attrs.evolve(self, gate=other).service_gap_bound(clients, limits)
            if bound is not None and bound < most:
                return f"{name} it would be {bound:,}"
        return "a step's batch and the longest request alone cost more"

    def no_wait(self, limits: Limits, latency: LatencyModel | None = None) -> str:
        why = no_wait_cost(self.gate, limits)
        if why or latency is None:
            return why
        too_many = "" if self._pace(limits, latency) else "decoding alone may spend the tokens of a step"
        return self.no_curve(limits) or too_many

    def no_curve(self, limits: Limits) -> str:
        """Return why nothing is said of a worker's steps, as a clause; "" where something is."""
        if self._withdraws(limits):
            return "a request may lack a slot for its adapter"
        if not self.batching.serves_all:
            return "a step of this batching rule may leave out requests that run"
        if not limits.outputs_reserved:
            return "outputs are not reserved"
        return "requests are taken out of the batch" if self.displaces else ""

    def _pace(self, limits: Limits, latency: LatencyModel) -> sec.Pace | None:
        gate = self.gate
        cap: int | None = getattr(gate, "in_flight_cap_tokens", None)
        passes_over = self.skips or getattr(gate, "elastic", False)
        memory = limits.kv_capacity_tokens if cap is None else min(cap, limits.kv_capacity_tokens)
        return sec.pace_of(latency, limits, self.batching.max_batched_tokens, None if passes_over else memory)

    def cautions(self, kv_capacity_tokens: int, needs: Sequence[int] = ()) -> tuple[str, ...]:
        return self.gate.cautions(kv_capacity_tokens, needs) if isinstance(self.gate, gates.Cautions) else ()

    def promise(
        self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel | ServiceCurve | None = None
    ) -> Promise:
        """Return the promise of the gate to these clients.

        The bound of a one-sided theorem is stated even where the configuration breaks one of its assumptions, which the
        promise names: a monitor then shows the theorem fail.  With the worker's `latency` waits are bounded in time.
        """
        gate, rule, leased = self.gate, self.gate.charging, isinstance(self.gate, gates.AnyLeasedGate)
        wait: WaitBound | None = None
        if isinstance(latency, ServiceCurve):
            wait = self.window_wait(clients, limits, latency)
        elif latency is not None:
            wait = self.worst_wait(clients, limits, latency)
        told, limits = limits, self._least(limits)
        weights = tuple(client.weight for client in clients)
        terms = bound_terms(gate, clients, limits)
        cap: int | None = getattr(gate, "in_flight_cap_tokens", None)
        uncapped = {th.CAPPED, th.CAPPED_TOGETHER} & gate.broken_assumptions
        theorems = [theorem for theorem in gate.theorems if not uncapped & {*theorem.assumptions}]
        cap = None if th.CAPPED in uncapped else cap
        theorems += wait.theorems if wait is not None else ()
        return Promise(
            charging=Charging(rule.rates, rule.input, multipliers(weights), rule.cached_percent),
            weights=weights,
            theorems=tuple(_stated(theorem, limits) for theorem in theorems),
            charge_max=min((each.charge_max // each.scale for each in terms), default=None),
            # The bounds of credit on lease are about what all holders charge, and a run is one holder's.
            gap_bound=None if leased else self.service_gap_bound(clients, limits),
            lag_bound=None if leased or self._withdraws(limits) else _lag_bound(gate, terms),
            quanta=tuple(each.quantum for each in terms if each.quantum),
            broken=gate.broken_assumptions,
            outputs_reserved=limits.outputs_reserved,
            unreserved_tokens=limits.unreserved_tokens,
            hold_tokens=limits.hold_tokens,
            outputs_predicted=limits.outputs_predicted,
            running_max=limits.running_max,
            in_flight_cap_tokens=cap,
            refunds_widen=isinstance(gate, gates.BoundedGate) and gate.refunds_widen,
            gap_theorems=gate.gap_theorems if isinstance(gate, gates.BoundedGate) else (),
            lag_theorems=tuple(theorem.id for theorem in gate.theorems if theorem.id in ONE_SIDED),
            worst_wait=wait,
            wait_theorems=() if wait is None else (wait.theorem.id,),
            groups=tuple(client.place for client in clients) if any(client.place for client in clients) else (),
            reweighted=partial(self._reweighted, told, latency, weights),
        )

    def _reweighted(
        self,
        limits: Limits,
        latency: LatencyModel | ServiceCurve | None,
        known: tuple[int, ...],
        now: tuple[int, ...],
        lowest: tuple[int, ...],
        groups: tuple[Groups, ...],
    ) -> Promise:
        """Return the promise from a change of weights or groups on.

        A deficit stays between what quanta and U say now (D-change), so its bounds are those of the weights now.  A
        counter remembers the dearest price that a client ever paid (V-change): its gap is bounded by that of the lowest
        weights, in the unit of those now, and its one-sided bound is not proved.
        """
        promise = self.promise(_clients(now, groups), limits, latency)
        if isinstance(self.gate, gates.KernelGate) and not self.gate.follows_weights:
            # Nothing is proved of an author's gate from a change of weights on; clients that come have weight 1.
            same = now[: len(known)] == known and set(now[len(known) :]) <= {1}
            return promise if same else attrs.evolve(promise, gap_bound=None, lag_bound=None, reweighted=None)
        if promise.quanta:
            return promise
        bound = self.service_gap_bound(_clients(lowest, groups), limits)
        if bound is not None:
            bound = bound * lcm(*now) // lcm(*lowest)
        return attrs.evolve(promise, gap_bound=bound, lag_bound=None, gap_theorems=(gates.counter.V_CHANGE.id,))

    def gate_monitor(self) -> GateMonitor | None:
        """Return a monitor of the gate's kernels; None for a gate whose kernels are not known."""
        rules = gates.interpreter(self.gate)
        return None if rules is None else GateMonitor(rules, self.gate.charging, self.skips)

    def relation(self) -> KernelRelation | None:
        """Return what holds the states of a policy to the gate's kernels; None for a gate whose kernels are not
        known."""
        rules = gates.interpreter(self.gate)
        if rules is None:
            return None
        return KernelRelation(self.gate, rules, GateMonitor(rules, self.gate.charging, self.skips))

    def gate_monitors(self) -> Callable[[], GateMonitor | None]:
        if not isinstance(self.gate, SharesCredit):
            return self.gate_monitor
        rules = gates.interpreter(self.gate)
        if rules is None or not self.gate.exact:
            return lambda: None
        return lambda: GateMonitor(rules, self.gate.charging, self.skips)


def bound_terms(gate: gates.AnyGate, clients: tuple[Client, ...], limits: Limits) -> tuple[gates.BoundTerms, ...]:
    """Return what each client's bounds are made of; nothing where no theorem has a constant."""
    return gate.bound_terms(clients, limits) if isinstance(gate, gates.BoundedGate) else ()


def _stated(theorem: th.Theorem, limits: Limits) -> th.Theorem:
    """Return the theorem with the assumption that stands for MemReserve where outputs are not reserved."""
    if limits.outputs_reserved or th.MEM_RESERVE not in theorem.assumptions:
        return theorem
    swapped = tuple(th.OUTPUTS_BOUNDED if each == th.MEM_RESERVE else each for each in theorem.assumptions)
    return attrs.evolve(theorem, assumptions=swapped)


def _lag_bound(gate: gates.AnyGate, terms: tuple[gates.BoundTerms, ...]) -> int | None:
    """Return the largest bound of the gate's one-sided theorem for any two clients; None if it has none for them all,
    as of clients whose quanta differ."""
    theorem = next((each for each in gate.theorems if each.id in ONE_SIDED), None)
    if theorem is None or theorem.bound_cost is None or len(terms) < 2:
        return None
    if len({each.quantum for each in terms}) > 1:
        return None
    kinds = set(terms)
    return max(
        theorem.bound_cost(f.quantum, f.charge_max, g.quantum, g.charge_max) for f, g in product(kinds, repeat=2)
    )


def _clients(weights: tuple[int, ...], groups: tuple[Groups, ...]) -> tuple[Client, ...]:
    return tuple(Client(i, str(i), *of) for i, of in enumerate(zip(weights, groups, strict=True)))


# --- how long a client waits ------------------------------------------------------------------------------------------
# D-A.2-time with every term at its largest: while f waits and is not admitted, a times that wait is at most R_f + the
# sum over every other g of 2 Q_g + U_g - 1 + D Q_g / Q_f, for a worker that charges at least a cost units a second
# (D-A.2-weighted, summed up as D-A.2-time is; docs/reference/theorems.md).  The configuration bounds what the state
# of the gate may be: R_f and the debt D are at most U_f - 1, since a client that owes anything was admitted for a
# token at least.


def wait_bound_cost(gate: gates.AnyGate, clients: tuple[Client, ...], limits: Limits) -> int | None:
    """Return the most cost units that a worker charges to all while any one of the clients waits and is not let in.

    Divided by a rate it is a time.  None where the gate does not promise it (`no_wait_cost` says why), or weights
    differ under a counter.  What another client is given back meanwhile (B) comes on top.  O(weights squared).
    """
    if no_wait_cost(gate, limits) or isinstance(gate, gates.InBatchGate):
        return None
    terms = bound_terms(gate, clients, limits)
    return None if isinstance(gate, gates.CounterGate) and len({*terms}) > 1 else sum(_wait_costs(gate, terms))


def _wait_costs(gate: gates.AnyGate, terms: tuple[gates.BoundTerms, ...], quanta: int = 2) -> tuple[int, int]:
    """Return what is charged in turns of others and for what is in flight, where one of these clients waits."""
    if isinstance(gate, gates.CounterGate):
        return sec.counted_costs(len(terms), max((each.charge_max for each in terms), default=0))
    return sec.wait_costs(terms, quanta)


_NO_WAIT: dict[Any, str] = {
    gates.OpenGate: "without a gate other clients may be served for ever",
    gates.HierarchicalGate: "theorems of trees say how far groups that wait differ, and not what is charged meanwhile",
    gates.BandGate: "turns inside a band are held in drawn worlds (BAND-within) and not proved",
    SharesCredit: "a client that waits at one worker may be served at another, and only D2-lag bounds what it lacks",
    gates.AnyLeasedGate: "credit is on lease: when a client has more of it depends on what other holders charge",
}
"""Why a gate promises no wait, the first that fits."""


def no_wait_cost(gate: gates.AnyGate, limits: Limits) -> str:
    """Return why a gate does not promise how much is charged while a client waits, as a clause; "" where it does."""
    if isinstance(gate, gates.InBatchGate) and gates.in_batch.D_PAUSE_LAG in gate.theorems:
        if gate.in_flight_cap_tokens is not None:
            return "a client at its cap holds others back beside pauses"
    elif not {gates.deficit.D_A2_WEIGHTED, gates.counter.V_49_WORKER} & {*gate.theorems}:
        no_theorem = "neither D-A.2-weighted nor V-4.9-worker is proved of this gate"
        return next((why for kind, why in _NO_WAIT.items() if isinstance(gate, kind)), no_theorem)
    if th.REJOIN_KEEPS_DEBT in gate.broken_assumptions:
        return "a client that comes back is forgiven its debt"
    if th.LIFT_ON_JOIN in gate.broken_assumptions:
        return "a client that comes back keeps what it saved by idling"
    return _NO_WAIT[SharesCredit] if limits.workers > 1 else ""
