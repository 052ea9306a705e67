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
from fairsched.policies.gates.shared import D2_GIFT, D2_GLOBAL, D2_LAG, D2_STALE, D2_STEAL, D2_TOGETHER
from fairsched.verify import events, logic
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit, global_deficit

_STALE = logic.Need(lambda o, w: (w.s >= 0) & (w.s <= w.S), STALE_READS)


def _from_a_copy(event: logic.Event) -> logic.Event:
    """The event, which decides and charges from a copy that is ahead by `s`; what it does is added to the true q."""

    def seen(w: logic.World) -> logic.World:
        return logic.World(**{**vars(w), "q": w.q + w.s})

    def step(o: Algebra, w: logic.World) -> logic.Written:
        copy = seen(w)
        written = event.step(o, copy)
        return {**written, "q": w.q + (written["q"] - copy.q)}

    return attrs.evolve(
        event.with_needs(_STALE),
        step=step,
        facts={**event.facts, "s": logic.VECTOR},
        decides=lambda o, w: event.decides(o, seen(w)),
    )


def _queues(kernel: logic.Functions, gate: logic.Functions) -> tuple[logic.Event, ...]:
    def arrive(o: Algebra, w: logic.World) -> logic.Written:
        return {"places": kernel.enter(o, w.places, w.p), "known": o.put(w.known, w.p, True)}

    def leave(o: Algebra, w: logic.World) -> logic.Written:
        return {"places": kernel.depart(o, w.places, w.p)}

    def rejoin(o: Algebra, w: logic.World) -> logic.Written:
        return {**arrive(o, w), "q": gate.rejoin_printed(o, w.q, w.p)}

    def preempt(o: Algebra, w: logic.World) -> logic.Written:
        return {**arrive(o, w), "R": o.bump(w.R, w.p, -w.x)}

    waiting = logic.Need(lambda o, w: o.pick(w.places, w.p, 1) >= 1)
    return (
        logic.Event("arrive at a worker", arrive, {"p": logic.POINT}, kernels=(kernel.enter,)),
        logic.Event("arrive as printed, at zero", rejoin, {"p": logic.POINT}, excluded_by=REJOIN_KEEPS_DEBT),
        logic.Event("leave a worker's queue", leave, {"p": logic.POINT}, (waiting,), kernels=(kernel.depart,)),
        logic.Event("preempt", preempt, events.ONE, events.RESERVED, kernels=(kernel.enter,)),
    )


def _own_refill(gate: logic.Functions, gift: str | None) -> logic.Event:
    """A worker's own; `gift` names what counts it (None: it happens only if GlobalRefill is dropped)."""
    counted = gift or "P"

    def refill(o: Algebra, w: logic.World) -> logic.Written:
        q = gate.refill(o, w.q, w.here, w.here, w.Q)
        return {"q": q, counted: getattr(w, counted) + (q - w.q)}

    def together(o: Algebra, w: logic.World) -> logic.Term:
        return same_truth(o, o.pick(w.here, w.f, False), o.pick(w.here, w.g, False))

    needs = [logic.Need(lambda o, w: logic.implies(o, w.here, w.queued))]
    if gift == "P":
        needs.append(logic.Need(together, BACKLOGGED_TOGETHER))
    return logic.Event(
        "refill of one worker",
        refill,
        {"here": logic.MASK},
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

    kernel: logic.Functions
    gate: logic.Functions
    backlogged: tuple[str, ...]
    stale: bool
    gift: str | None

    def system(self, *laws: logic.Need) -> logic.System:
        """What may happen to the deficit gate's clients, and what is the cluster's own."""
        alone = deficit_proofs.deficit_system(self.gate, backlogged=self.backlogged)
        kept = {event.name: event for event in alone.events}
        both = ("refill", "admit", "admit past the gate", "decode", "correct", "refund")
        charges = [*(kept[name] for name in both), _own_refill(self.gate, self.gift)]
        if self.stale:
            charges = list(map(_from_a_copy, charges))
        ghosts = {"G": logic.VECTOR} if self.gift == "G" else {}
        return logic.System(
            "deficit gate of a cluster",
            {**alone.parameters, **({"S": logic.SCALAR} if self.stale else {})},
            (*alone.laws, *((logic.Need(lambda o, w: w.S >= 0),) if self.stale else ()), *laws),
            {**logic.vectors("q", "places", "R", "K", "W", "P"), "known": logic.MASK, **ghosts},
            (*_queues(self.kernel, self.gate), kept["finish"], *charges),
            derived={"queued": lambda o, w: self.kernel.waits(o, w.places)},
        )


def cluster_system(kernel: logic.Functions, gate: logic.Functions, backlogged: tuple[str, ...]) -> logic.System:
    """The shared gate with refills of all clients, over an interval in which `backlogged` wait anywhere."""
    return _Cluster(kernel, gate, backlogged, stale=False, gift=None).system()


def same_truth(o: Algebra, a: logic.Term, b: logic.Term) -> logic.Term:
    """Whether two truth values agree."""
    return o.where(a, b, o.where(b, False, True))


# --- what holds over clients ----------------------------------------------------------------------------------------


def range_of(stale: bool = False) -> tuple[logic.Clause, ...]:
    """What holds of deficits at any time, under one deficit for all workers."""

    def least(w: logic.World) -> logic.Term:
        return 1 - w.U - w.S if stale else 1 - w.U

    return (
        logic.Clause("1 - U - S <= q - R" if stale else "1 - U <= q - R", lambda o, w: w.q - w.R >= least(w)),
        *deficit_proofs.CREDIT,
        logic.Clause("R >= 0", lambda o, w: w.R >= 0),
        deficit_proofs.KNOWN,
        logic.Clause("q0 in range", lambda o, w: (w.q0 >= least(w)) & (w.q0 <= w.Q + w.back)),
    )


def starts(stale: bool = False, *ghosts: str) -> tuple[logic.Clause, ...]:
    """What holds where an interval begins; the named ghosts count from there."""
    named = ("W", "P", *ghosts)

    def nothing(o: Algebra, w: logic.World, name: str) -> logic.Term:
        return logic.same(getattr(w, name), 0)

    zero = tuple(logic.Clause(f"{name} = 0", partial(nothing, name=name)) for name in named)
    return (*range_of(stale)[:-1], *zero, logic.Clause("q = q0", lambda o, w: logic.same(w.q, w.q0)))


_BALANCE = logic.Clause("W + q = q0 + P", lambda o, w: logic.same(w.W + w.q, w.q0 + w.P))
_BALANCE_WITH_GIFTS = logic.Clause("W + q = q0 + P + G", lambda o, w: logic.same(w.W + w.q, w.q0 + w.P + w.G))
_SAME = logic.Clause("P_f = P_g", deficit_proofs.same_credit)


def _beside_gifts(o: Algebra, w: logic.World) -> logic.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    (service_f, service_g), (gift_f, gift_g) = deficit_proofs.both(o, w, "W"), deficit_proofs.both(o, w, "G")
    beyond = (service_f - gift_f) - (service_g - gift_g)
    bound = deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g) + deficit_proofs.both_backs(o, w)
    return (beyond <= bound) & (-beyond <= bound)


def _stale_gap(o: Algebra, w: logic.World) -> logic.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    service_f, service_g = deficit_proofs.both(o, w, "W")
    bound = deficit.gap_cost(quantum_f, charge_f + w.S, quantum_g, charge_g + w.S) + deficit_proofs.both_backs(o, w)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _interval(theorem: Theorem, cluster: _Cluster, joint: logic.Clause, *conclusions: logic.Clause) -> logic.Claim:
    balance = _BALANCE_WITH_GIFTS if cluster.gift == "G" else _BALANCE
    ghosts = ("G",) if cluster.gift == "G" else ()
    return logic.Claim(
        theorem,
        cluster.system(deficit_proofs.EQUAL),
        starts(cluster.stale, *ghosts),
        (*range_of(cluster.stale), balance, joint),
        conclusions,
    )


def _steal(kernel: logic.Functions, gate: logic.Functions) -> logic.Claim:
    """A worker that may take any waiting request is one for which every waiting client is ready."""
    alone = _Cluster(kernel, gate, (), False, "P").system()

    def waiting(o: Algebra, w: logic.World) -> logic.Term:
        return kernel.waits(o, w.places)

    derived = {
        **alone.derived,
        "waits": lambda o, w: o.any(waiting(o, w)),
        "due": lambda o, w: gate.refill_due(o, w.q, waiting(o, w)),
        "served": lambda o, w: o.exists(gate.choose(o, w.q, waiting(o, w), waiting(o, w), w.q)),
    }

    def served(o: Algebra, w: logic.World) -> logic.Term:
        return o.where(w.waits, o.where(w.due, True, w.served), True)

    return logic.Claim(
        D2_STEAL,
        attrs.evolve(alone, derived=derived),
        (deficit_proofs.KNOWN,),
        (deficit_proofs.KNOWN,),
        (logic.Clause("if none is due, a waiting client is served", served),),
    )


def claims(kernel: logic.Functions = global_deficit, gate: logic.Functions = deficit) -> tuple[logic.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as the cluster runs them."""
    within = logic.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", deficit_proofs.gap_within)
    lag = logic.Clause("P_f >= P_g", deficit_proofs.at_least_as_much_credit)
    pair = partial(_Cluster, kernel, gate, ("f", "g"))
    return (
        _interval(D2_GLOBAL, pair(stale=False, gift=None), _SAME, within),
        _interval(
            D2_LAG,
            _Cluster(kernel, gate, ("f",), stale=False, gift=None),
            lag,
            logic.Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", deficit_proofs.no_less_than_g),
        ),
        _steal(kernel, gate),
        _interval(
            D2_GIFT, pair(stale=False, gift="G"), _SAME, logic.Clause("|W - G of f and g| <= bound", _beside_gifts)
        ),
        _interval(D2_TOGETHER, pair(stale=False, gift="P"), _SAME, within),
        _interval(
            D2_STALE,
            pair(stale=True, gift=None),
            _SAME,
            logic.Clause("|W_f - W_g| <= 2(Q + U + S - 1) + B_f + B_g", _stale_gap),
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

WORKERS = 2
CHARGE_MAX = WORKERS * (charge_max_reserved(logic.RATES, 3, 2) - 1) + 1
QUANTUM = 8
F, G = 0, 1

STALE = 4
STALE_QUANTUM = 12
"""(U + S - 1) = 12 is a multiple of it, so that a refill takes the deepest debt to a whole quantum."""


def _admitted(client: int, outputs: int, ahead: int) -> logic.RunStep:
    facts = {"x": 1, "r": logic.RATES.output * outputs, "k": 0, "ready": (1, 1), "score": logic.one(2, client, 1)}
    return "admit", {**facts, "s": logic.one(2, client, ahead)}


def _decoded(client: int, tokens: int) -> logic.RunStep:
    return "decode", {"d": logic.one(2, client, logic.RATES.output * tokens), "s": (0, 0)}


def _spends_all(client: int, before: Sequence[int], ahead: int) -> Iterator[logic.RunStep]:
    """Requests of so many outputs one by one, then one of two outputs on both workers at once."""
    for outputs in before:
        yield _admitted(client, outputs, ahead)
        yield _decoded(client, outputs)
    yield _admitted(client, 2, ahead)
    yield _admitted(client, 2, ahead)
    yield _decoded(client, 4)


def _run(before: Sequence[int], ahead: int) -> tuple[logic.RunStep, ...]:
    """Client 1 spends all that it can, and in the interval client 0 does so twice."""
    refill: logic.RunStep = ("refill", {"s": (0, 0)})
    arrivals: list[logic.RunStep] = [("arrive at a worker", {"p": client}) for client in (0, 1) for _ in range(WORKERS)]
    spends = [*_spends_all(0, before, ahead)]
    own = (*arrivals, refill, *_spends_all(1, before, ahead), (logic.BEGIN, {}), *spends, refill, refill, *spends)
    return own if ahead else tuple((name, {k: v for k, v in facts.items() if k != "s"}) for name, facts in own)


def _witness(theorem: str, f: int = F, g: int = G) -> logic.Witness:
    parameters: logic.Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": f, "g": g}
    bound = deficit.gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return logic.Witness(logic.claim_named(theorem, claims()), 2, parameters, _run((1, 1), 0), bound, {"q0": "q"})


def _stale() -> logic.Witness:
    """Each admission is let in by a copy that lacks four cost units of what its client was charged."""
    parameters: logic.Values = {"Q": (STALE_QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G, "S": STALE}
    charge_max = CHARGE_MAX + STALE
    bound = deficit.gap_cost(STALE_QUANTUM, charge_max, STALE_QUANTUM, charge_max)
    return logic.Witness(
        logic.claim_named("D2-stale", claims()), 2, parameters, _run((1, 1, 1, 2), STALE), bound, {"q0": "q"}
    )


def witnesses() -> tuple[logic.Witness, ...]:
    """One run a bound."""
    pairs = tuple(_witness(theorem) for theorem in ("D2-global", "D2-gift", "D2-together"))
    return (*pairs, _witness("D2-lag", f=G, g=F), _stale())
