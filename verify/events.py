"""What may happen to a gate, derived once from its declaration.

Clients start and stop to wait, requests are admitted, decode, are settled, finish and are preempted, whatever the order
and the batching rule.  The ghosts of every proof are here: `R` is what may still be charged to each client for requests
in flight, `K` what was charged for them and will be given back, where the gate gives back, and `W` the service since
the interval began: counted from what was charged, never by a kernel.  What an admission must fit, invariants and
witnesses stay beside the claims.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import BACKLOGGED_DURING, GATE_RESPECTED, MEM_RESERVE, Assumption
from fairsched.policies.gates import EVENTS, Kernel, KernelGate, call, parameters
from fairsched.verify import logic as v

POINT = {"p": v.POINT}
ONE = {"p": v.POINT, "x": v.SCALAR}
EXISTS = v.Need(lambda o, w: o.exists(w.p))
WAITS = v.Need(lambda o, w: o.pick(w.queued, w.p, True))
AWAY = v.Need(lambda o, w: o.where(o.pick(w.queued, w.p, False), False, True))
NOT_NEGATIVE = v.Need(lambda o, w: w.x >= 0)
MORE = v.Need(lambda o, w: w.r >= 0)
"""Of an admission: what may be charged later."""
RESERVED = (NOT_NEGATIVE, v.Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0), MEM_RESERVE))
DECODED = (v.Need(lambda o, w: w.d >= 0), v.Need(lambda o, w: w.d <= w.R, MEM_RESERVE))
WAS_CHARGED = v.Need(lambda o, w: w.x <= o.pick(w.K, w.p, 0))
"""Of a refund: only what was charged is given back."""

_CHOOSING = {"score": v.VECTOR, "ready": v.MASK, "lot": v.VECTOR}


def charge_fits(charged: Any, reserved: Any, more: Any, most: Any) -> Any:
    """What an admission is charged, what was reserved for its client and what more is reserved now is at most U."""
    return charged + reserved + more <= most


FITS = v.Need(lambda o, w: charge_fits(w.x, o.pick(w.R, w.p, 0), w.r, o.pick(w.U, w.p, w.x + w.r)), MEM_RESERVE)
"""Of an admission: what is charged now and what may be later is at most U."""


def waits(client: str) -> v.Need:
    """Return that the client has something waiting, "f" or "g"."""
    return v.Need(lambda o, w: o.pick(w.queued, getattr(w, client), True), BACKLOGGED_DURING)


def at_least_one(name: str) -> v.Need:
    """Return that a number, or a vector's number of each client, is 1 or more."""
    return v.Need(lambda o, w: getattr(w, name) >= 1)


@attrs.frozen
class Declared:
    """A gate's kernels by event and vector, and what proofs call the things that a kernel may ask for.

    What only a proof knows no kernel can ask for.
    """

    choose: Kernel
    kernels: Mapping[str, Mapping[str, Kernel]]
    names: Mapping[str, str]

    def call(self, kernel: Kernel, o: Algebra, w: v.World, **also: Any) -> Any:
        """Return what a kernel makes of what its parameters name."""
        known = {name: getattr(w, place) for name, place in self.names.items() if hasattr(w, place)}
        return call(kernel, known | also, o)

    def run(self, event: str, o: Algebra, w: v.World, **also: Any) -> dict[str, Any]:
        """Return the vectors after the kernels of an event."""
        return {name: self.call(kernel, o, w, **also) for name, kernel in self.kernels[event].items()}

    def of(self, event: str) -> tuple[Kernel, ...]:
        """Return the kernels of an event."""
        return tuple(self.kernels[event].values())

    def asks(self, name: str) -> bool:
        """Return whether any kernel asks for this."""
        every = (self.choose, *(kernel for event in EVENTS for kernel in self.of(event)))
        return any(name in parameters(kernel) for kernel in every)

    @property
    def seen(self) -> dict[str, v.Kind]:
        """What a choice sees beside the state: in proofs, anything."""
        return {name: kind for name, kind in _CHOOSING.items() if name in parameters(self.choose)}


def declared(gate: type[KernelGate], functions: v.Functions | None = None, **names: str) -> Declared:
    """Return the declaration of a gate, or of its variant whose kernels are these functions; proofs have other names
    for some things, such as ``quantum="Q"``."""

    def shipped(kernel: Kernel) -> Kernel:
        found: Kernel = kernel if functions is None else getattr(functions, kernel.__name__)
        return found

    own = (*gate.state, *gate.constants, *gate.per_weight, *gate.over_weight)
    kernels = {event: {name: shipped(each) for name, each in gate.kernels(event).items()} for event in EVENTS}
    known = ("queued", "last", "p", *_CHOOSING, *own)
    return Declared(shipped(gate.choose), kernels, {**{name: name for name in known}, **names})


@attrs.frozen
class Otherwise:
    """How clients come back where an assumption is not made: other kernels of `join`, each in a vector's place."""

    assumption: Assumption
    how: str
    kernels: Mapping[str, Kernel]


def gate_events(
    of: Declared,
    fits: tuple[v.Need, ...],
    *,
    settled: tuple[v.Need, ...] = (),
    reserved: tuple[v.Need, ...] = RESERVED,
    decoded: tuple[v.Need, ...] = DECODED,
    otherwise: Otherwise | None = None,
    was: bool = False,
    last: bool = False,
) -> tuple[v.Event, ...]:
    """Return everything that may happen to a gate.

    An admission of p is charged x, and r more may be charged to it later, within what `fits`.  Of a gate that gives
    back, k of x will be; and of what is computed beyond the plan as well where `settled` says how much.  `reserved`
    are needs of what is charged or released later, `decoded` of outputs.  With `was`, who waited before the last
    event is remembered, so that an admission may empty a queue; with `last`, whose queue became empty last.
    """
    refunds, keeps = bool(of.kernels["refund"]), bool(settled)

    def charged(o: Algebra, w: v.World, more: v.Term, back: bool) -> v.Written:
        ghosts = {"R": o.bump(w.R, w.p, more), "W": o.bump(w.W, w.p, w.x)}
        owed = {"K": o.bump(w.K, w.p, w.k)} if back else {}
        return {**of.run("admit", o, w, charge=w.x), **ghosts, **owed}

    def admit(o: Algebra, w: v.World) -> v.Written:
        return charged(o, w, w.r, refunds)

    def correct(o: Algebra, w: v.World) -> v.Written:
        return charged(o, w, -w.x, keeps)

    def choose(o: Algebra, w: v.World) -> v.Term:
        return of.call(of.choose, o, w)

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {**of.run("decode", o, w, charge=w.d), "R": w.R - w.d, "W": w.W + w.d}

    def refund(o: Algebra, w: v.World) -> v.Written:
        given = of.run("refund", o, w, amount=w.x)
        return {**given, "K": o.bump(w.K, w.p, -w.x), "W": o.bump(w.W, w.p, -w.x)}

    amounts, back = v.scalars("x", "r", *(("k",) if refunds else ())), v.scalars("k") if keeps else {}
    chosen, past = admissions(admit, amounts, fits, choose, of.seen, (of.choose,), of.of("admit"))
    events = [*queue_events(of, reserved=reserved, otherwise=otherwise, last=last), chosen]
    if was:
        events.append(attrs.evolve(_emptying(chosen, last), name="admit the last that waits"))
    events += [
        past,
        v.Event("correct", correct, {**ONE, **back}, (EXISTS, *reserved, *settled), of.of("admit")),
        v.Event("decode", decode, {"d": v.VECTOR}, decoded, of.of("decode")),
    ]
    if refunds:
        events.append(v.Event("refund", refund, ONE, (EXISTS, NOT_NEGATIVE, WAS_CHARGED), of.of("refund")))
    if of.kernels["refill"]:
        events.append(v.Event("refill", lambda o, w: of.run("refill", o, w), kernels=of.of("refill")))
    return tuple(event.also(was=lambda w: w.queued) for event in events) if was else tuple(events)


def _leaves(o: Algebra, w: v.World, last: bool) -> v.Written:
    return {"queued": o.put(w.queued, w.p, False), **({"last": w.p} if last else {})}


def _emptying(event: v.Event, last: bool) -> v.Event:
    step = event.step
    return attrs.evolve(event, step=lambda o, w: {**step(o, w), **_leaves(o, w, last)})


def queue_events(
    of: Declared,
    *,
    reserved: tuple[v.Need, ...] = RESERVED,
    otherwise: Otherwise | None = None,
    last: bool = False,
) -> tuple[v.Event, ...]:
    """Return how clients start and stop to wait, and how requests leave."""

    def behind(o: Algebra, w: v.World) -> v.Written:
        return {"queued": o.put(w.queued, w.p, True)}

    def released(o: Algebra, w: v.World) -> v.Written:
        return {"R": o.bump(w.R, w.p, -w.x)}

    def comes_back(by: Declared, how: str, assumption: Assumption | None) -> tuple[v.Event, ...]:
        def arrive(o: Algebra, w: v.World) -> v.Written:
            return {**behind(o, w), **by.run("join", o, w)}

        def preempt(o: Algebra, w: v.World) -> v.Written:
            return {**arrive(o, w), **released(o, w)}

        kernels = by.of("join")
        return (
            v.Event(f"arrive{how}", arrive, POINT, (EXISTS, AWAY), kernels, excluded_by=assumption),
            v.Event(f"preempt{how}", preempt, ONE, (EXISTS, *reserved, AWAY), kernels, excluded_by=assumption),
        )

    events = comes_back(of, "", None)
    if otherwise is not None:
        joins = attrs.evolve(of, kernels={**of.kernels, "join": otherwise.kernels})
        events += comes_back(joins, f" {otherwise.how}", otherwise.assumption)
    return (
        *events,
        v.Event("arrive behind one's own", behind, POINT, (EXISTS, WAITS)),
        v.Event("leave the queue", lambda o, w: _leaves(o, w, last), POINT, (EXISTS, WAITS)),
        v.Event("preempt, others of it wait", released, ONE, (EXISTS, *reserved, WAITS)),
        v.Event("finish", released, ONE, (EXISTS, *reserved)),
    )


def admissions(
    admit: v.Rule,
    amounts: Mapping[str, v.Kind],
    needs: tuple[v.Need, ...],
    choose: v.Formula,
    seen: Mapping[str, v.Kind],
    choosing: tuple[Callable[..., Any], ...],
    charging: tuple[Callable[..., Any], ...],
) -> tuple[v.Event, v.Event]:
    """Return that the client which the kernel chooses is admitted, or one past the gate; `amounts` are what is charged
    for it, and `seen` is what the choice sees beside the state."""
    needs, kernels = (EXISTS, *needs), (*choosing, *charging)
    past = (*needs, WAITS)
    return (
        v.Event("admit", admit, {**amounts, **seen}, needs, kernels, decides=lambda o, w: {"p": choose(o, w)}),
        v.Event("admit past the gate", admit, {**amounts, **POINT}, past, charging, excluded_by=GATE_RESPECTED),
    )
