"""One deficit a client for all workers: D2-global, D2-lag, D2-gift, D2-together, D2-stale and D2-steal.

For every number of clients, and of workers, since a worker appears only as a mask: a decision lets in whom `ready`
says (any mask, such as the clients that wait there), and a worker's own refill tops up the mask `here`.  R is what may
still be charged to a client on all workers together (D2-memory), and the gate's counts say which clients wait anywhere
(D2-places); both are in `fairsched.verify.proofs.gates.shared_workers`.

What is charged, and the refill of all clients, are the deficit gate's own events.  A decision that rests on stale reads
sees q + s with 0 <= s <= S, and what it does is added to the true q.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import BACKLOGGED_TOGETHER, GLOBAL_REFILL, REJOIN_KEEPS_DEBT, STALE_READS, Theorem
from fairsched.policies.gates.deficit import gap_cost
from fairsched.policies.gates.shared import D2_GIFT, D2_GLOBAL, D2_LAG, D2_STALE, D2_STEAL, D2_TOGETHER
from fairsched.verify.logic import (
    BEGIN,
    RATES,
    Claim,
    Clause,
    Event,
    Functions,
    Kind,
    Need,
    RunStep,
    System,
    Term,
    Values,
    Witness,
    World,
    Written,
    claim_named,
    implies,
    one,
    same,
)
from fairsched.verify.proofs.gates.deficit import (
    CREDIT,
    EQUAL,
    KNOWN,
    ONE,
    RESERVED,
    at_least_as_much_credit,
    both,
    both_backs,
    deficit_system,
    gap_within,
    no_less_than_g,
    same_credit,
)
from fairsched.verify.proofs.kernels import deficit, global_deficit

_STALE = Need(lambda o, w: (w.s >= 0) & (w.s <= w.S), STALE_READS)


def _from_a_copy(event: Event) -> Event:
    """The event, which decides and charges from a copy that is ahead by `s`; what it does is added to the true q."""

    def seen(w: World) -> World:
        return World(**{**vars(w), "q": w.q + w.s})

    def step(o: Algebra, w: World) -> Written:
        copy = seen(w)
        written = event.step(o, copy)
        return {**written, "q": w.q + (written["q"] - copy.q)}

    return attrs.evolve(
        event.with_needs(_STALE),
        step=step,
        facts={**event.facts, "s": Kind.VECTOR},
        decides=lambda o, w: event.decides(o, seen(w)),
    )


def _queues(kernel: Functions, gate: Functions) -> tuple[Event, ...]:
    def arrive(o: Algebra, w: World) -> Written:
        return {"places": kernel.enter(o, w.places, w.p), "known": o.put(w.known, w.p, True)}

    def leave(o: Algebra, w: World) -> Written:
        return {"places": kernel.depart(o, w.places, w.p)}

    def rejoin(o: Algebra, w: World) -> Written:
        return {**arrive(o, w), "q": gate.rejoin_printed(o, w.q, w.p)}

    def preempt(o: Algebra, w: World) -> Written:
        return {**arrive(o, w), "R": o.bump(w.R, w.p, -w.x)}

    waiting = Need(lambda o, w: o.pick(w.places, w.p, 1) >= 1)
    return (
        Event("arrive at a worker", arrive, {"p": Kind.POINT}, kernels=(kernel.enter,)),
        Event("arrive as printed, at zero", rejoin, {"p": Kind.POINT}, excluded_by=REJOIN_KEEPS_DEBT),
        Event("leave a worker's queue", leave, {"p": Kind.POINT}, (waiting,), kernels=(kernel.depart,)),
        Event("preempt", preempt, ONE, RESERVED, kernels=(kernel.enter,)),
    )


def _own_refill(gate: Functions, gift: str | None) -> Event:
    """A worker's own; `gift` names what counts it (None: it happens only if GlobalRefill is dropped)."""
    counted = gift or "P"

    def refill(o: Algebra, w: World) -> Written:
        q = gate.refill(o, w.q, w.here, w.here, w.Q)
        return {"q": q, counted: getattr(w, counted) + (q - w.q)}

    def together(o: Algebra, w: World) -> Term:
        return same_truth(o, o.pick(w.here, w.f, False), o.pick(w.here, w.g, False))

    needs = [Need(lambda o, w: implies(o, w.here, w.queued))]
    if gift == "P":
        needs.append(Need(together, BACKLOGGED_TOGETHER))
    return Event(
        "refill of one worker",
        refill,
        {"here": Kind.MASK},
        tuple(needs),
        (gate.refill_due, gate.refill),
        excluded_by=None if gift else GLOBAL_REFILL,
    )


@attrs.frozen
class _Cluster:
    """The shared gate; `kernel` has what is its own, `gate` the deficit gate's functions.

    With `stale` every decision and charge starts from a copy that is ahead.  `gift` names the ghost that counts what
    workers give on their own (None: that happens only if GlobalRefill is dropped).
    """

    kernel: Functions
    gate: Functions
    backlogged: tuple[str, ...]
    stale: bool
    gift: str | None

    def system(self, *laws: Need) -> System:
        """What may happen to the deficit gate's clients, and what is the cluster's own."""
        alone = deficit_system(self.gate, backlogged=self.backlogged)
        kept = {event.name: event for event in alone.events}
        both = ("refill", "admit", "admit past the gate", "decode", "correct", "refund")
        charges = [*(kept[name] for name in both), _own_refill(self.gate, self.gift)]
        if self.stale:
            charges = list(map(_from_a_copy, charges))
        ghosts = {"G": Kind.VECTOR} if self.gift == "G" else {}
        return System(
            "deficit gate of a cluster",
            {**alone.parameters, **({"S": Kind.SCALAR} if self.stale else {})},
            (*alone.laws, *((Need(lambda o, w: w.S >= 0),) if self.stale else ()), *laws),
            {**dict.fromkeys(("q", "places", "R", "K", "W", "P"), Kind.VECTOR), "known": Kind.MASK, **ghosts},
            (*_queues(self.kernel, self.gate), kept["finish"], *charges),
            derived={"queued": lambda o, w: self.kernel.waits(o, w.places)},
        )


def cluster_system(kernel: Functions, gate: Functions, backlogged: tuple[str, ...]) -> System:
    """The shared gate with refills of all clients, over an interval in which `backlogged` wait anywhere."""
    return _Cluster(kernel, gate, backlogged, stale=False, gift=None).system()


def same_truth(o: Algebra, a: Term, b: Term) -> Term:
    """Whether two truth values agree."""
    return o.where(a, b, o.where(b, False, True))


# --- what holds over clients ----------------------------------------------------------------------------------------


def range_of(stale: bool = False) -> tuple[Clause, ...]:
    """What holds of deficits at any time, under one deficit for all workers."""

    def least(w: World) -> Term:
        return 1 - w.U - w.S if stale else 1 - w.U

    return (
        Clause("1 - U - S <= q - R" if stale else "1 - U <= q - R", lambda o, w: w.q - w.R >= least(w)),
        *CREDIT,
        Clause("R >= 0", lambda o, w: w.R >= 0),
        KNOWN,
        Clause("q0 in range", lambda o, w: (w.q0 >= least(w)) & (w.q0 <= w.Q + w.back)),
    )


def starts(stale: bool = False, *ghosts: str) -> tuple[Clause, ...]:
    """What holds where an interval begins; the named ghosts count from there."""
    named = ("W", "P", *ghosts)

    def nothing(o: Algebra, w: World, name: str) -> Term:
        return same(getattr(w, name), 0)

    zero = tuple(Clause(f"{name} = 0", partial(nothing, name=name)) for name in named)
    return (*range_of(stale)[:-1], *zero, Clause("q = q0", lambda o, w: same(w.q, w.q0)))


_BALANCE = Clause("W + q = q0 + P", lambda o, w: same(w.W + w.q, w.q0 + w.P))
_BALANCE_WITH_GIFTS = Clause("W + q = q0 + P + G", lambda o, w: same(w.W + w.q, w.q0 + w.P + w.G))
_SAME = Clause("P_f = P_g", same_credit)


def _beside_gifts(o: Algebra, w: World) -> Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q"), both(o, w, "U")
    (service_f, service_g), (gift_f, gift_g) = both(o, w, "W"), both(o, w, "G")
    beyond = (service_f - gift_f) - (service_g - gift_g)
    bound = gap_cost(quantum_f, charge_f, quantum_g, charge_g) + both_backs(o, w)
    return (beyond <= bound) & (-beyond <= bound)


def _stale_gap(o: Algebra, w: World) -> Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q"), both(o, w, "U")
    service_f, service_g = both(o, w, "W")
    bound = gap_cost(quantum_f, charge_f + w.S, quantum_g, charge_g + w.S) + both_backs(o, w)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _interval(theorem: Theorem, cluster: _Cluster, joint: Clause, *conclusions: Clause) -> Claim:
    balance = _BALANCE_WITH_GIFTS if cluster.gift == "G" else _BALANCE
    ghosts = ("G",) if cluster.gift == "G" else ()
    return Claim(
        theorem,
        cluster.system(EQUAL),
        starts(cluster.stale, *ghosts),
        (*range_of(cluster.stale), balance, joint),
        conclusions,
    )


def _steal(kernel: Functions, gate: Functions) -> Claim:
    """A worker that may take any waiting request is one for which every waiting client is ready."""
    alone = _Cluster(kernel, gate, (), False, "P").system()

    def waiting(o: Algebra, w: World) -> Term:
        return kernel.waits(o, w.places)

    derived = {
        **alone.derived,
        "waits": lambda o, w: o.any(waiting(o, w)),
        "due": lambda o, w: gate.refill_due(o, w.q, waiting(o, w)),
        "served": lambda o, w: o.exists(gate.choose(o, w.q, waiting(o, w), waiting(o, w), w.q)),
    }

    def served(o: Algebra, w: World) -> Term:
        return o.where(w.waits, o.where(w.due, True, w.served), True)

    return Claim(
        D2_STEAL,
        attrs.evolve(alone, derived=derived),
        (KNOWN,),
        (KNOWN,),
        (Clause("if none is due, a waiting client is served", served),),
    )


def claims(kernel: Functions = global_deficit, gate: Functions = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as the cluster runs them."""
    within = Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", gap_within)
    lag = Clause("P_f >= P_g", at_least_as_much_credit)
    pair = partial(_Cluster, kernel, gate, ("f", "g"))
    return (
        _interval(D2_GLOBAL, pair(stale=False, gift=None), _SAME, within),
        _interval(
            D2_LAG,
            _Cluster(kernel, gate, ("f",), stale=False, gift=None),
            lag,
            Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", no_less_than_g),
        ),
        _steal(kernel, gate),
        _interval(D2_GIFT, pair(stale=False, gift="G"), _SAME, Clause("|W - G of f and g| <= bound", _beside_gifts)),
        _interval(D2_TOGETHER, pair(stale=False, gift="P"), _SAME, within),
        _interval(
            D2_STALE,
            pair(stale=True, gift=None),
            _SAME,
            Clause("|W_f - W_g| <= 2(Q + U + S - 1) + B_f + B_g", _stale_gap),
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

WORKERS = 2
CHARGE_MAX = WORKERS * (charge_max_reserved(RATES, 3, 2) - 1) + 1
QUANTUM = 8
F, G = 0, 1

STALE = 4
STALE_QUANTUM = 12
"""(U + S - 1) = 12 is a multiple of it, so that a refill takes the deepest debt to a whole quantum."""


def _admitted(client: int, outputs: int, ahead: int) -> RunStep:
    facts = {"x": 1, "r": RATES.output * outputs, "k": 0, "ready": (1, 1), "score": one(2, client, 1)}
    return "admit", {**facts, "s": one(2, client, ahead)}


def _decoded(client: int, tokens: int) -> RunStep:
    return "decode", {"d": one(2, client, RATES.output * tokens), "s": (0, 0)}


def _spends_all(client: int, before: Sequence[int], ahead: int) -> Iterator[RunStep]:
    """Requests of so many outputs one by one, then one of two outputs on both workers at once."""
    for outputs in before:
        yield _admitted(client, outputs, ahead)
        yield _decoded(client, outputs)
    yield _admitted(client, 2, ahead)
    yield _admitted(client, 2, ahead)
    yield _decoded(client, 4)


def _run(before: Sequence[int], ahead: int) -> tuple[RunStep, ...]:
    """Client 1 spends all that it can, and in the interval client 0 does so twice."""
    refill: RunStep = ("refill", {"s": (0, 0)})
    arrivals: list[RunStep] = [("arrive at a worker", {"p": client}) for client in (0, 1) for _ in range(WORKERS)]
    spends = [*_spends_all(0, before, ahead)]
    own = (*arrivals, refill, *_spends_all(1, before, ahead), (BEGIN, {}), *spends, refill, refill, *spends)
    return own if ahead else tuple((name, {k: v for k, v in facts.items() if k != "s"}) for name, facts in own)


def _witness(theorem: str, f: int = F, g: int = G) -> Witness:
    parameters: Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": f, "g": g}
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(claim_named(theorem, claims()), 2, parameters, _run((1, 1), 0), bound, {"q0": "q"})


def _stale() -> Witness:
    """Each admission is let in by a copy that lacks four cost units of what its client was charged."""
    parameters: Values = {"Q": (STALE_QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G, "S": STALE}
    charge_max = CHARGE_MAX + STALE
    bound = gap_cost(STALE_QUANTUM, charge_max, STALE_QUANTUM, charge_max)
    return Witness(claim_named("D2-stale", claims()), 2, parameters, _run((1, 1, 1, 2), STALE), bound, {"q0": "q"})


def witnesses() -> tuple[Witness, ...]:
    """One run a bound."""
    pairs = tuple(_witness(theorem) for theorem in ("D2-global", "D2-gift", "D2-together"))
    return (*pairs, _witness("D2-lag", f=G, g=F), _stale())
