"""One deficit a client for all workers: D2-global, D2-lag, D2-gift, D2-together, D2-stale and D2-steal.

For every number of clients, and of workers, since a worker appears only as a mask: a decision lets in whom `ready`
says (any mask, such as the clients that wait there), and a worker's own refill tops up the mask `here`.  R is what may
still be charged to a client on all workers together (D2-memory), and the gate's counts say which clients wait anywhere
(D2-places).

What is charged, and the refill of all clients, are the deficit gate's own events.  A decision that rests on stale reads
sees q + s with 0 <= s <= S, and what it does is added to the true q.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.gates import shared
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import credit_ledger, deficit, global_deficit

_STALE = v.Need(lambda o, w: (w.s >= 0) & (w.s <= w.S), th.STALE_READS)


def _from_a_copy(event: v.Event) -> v.Event:
    """The event, which decides and charges from a copy that is ahead by `s`; what it does is added to the true q."""

    def seen(w: v.World) -> v.World:
        return v.World(**{**vars(w), "q": w.q + w.s})

    def step(o: Algebra, w: v.World) -> v.Written:
        copy = seen(w)
        written = event.step(o, copy)
        return {**written, "q": w.q + (written["q"] - copy.q)}

    return attrs.evolve(
        event.with_needs(_STALE),
        step=step,
        facts={**event.facts, "s": v.VECTOR},
        decides=lambda o, w: event.decides(o, seen(w)),
    )


def _queues(kernel: v.Functions, gate: v.Functions) -> tuple[v.Event, ...]:
    def arrive(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.enter(o, w.places, w.p), "known": o.put(w.known, w.p, True)}

    def leave(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.depart(o, w.places, w.p)}

    def rejoin(o: Algebra, w: v.World) -> v.Written:
        return {**arrive(o, w), "q": gate.rejoin_printed(o, w.q, w.p)}

    def preempt(o: Algebra, w: v.World) -> v.Written:
        return {**arrive(o, w), "R": o.bump(w.R, w.p, -w.x)}

    waiting = v.Need(lambda o, w: o.pick(w.places, w.p, 1) >= 1)
    return (
        v.Event("arrive at a worker", arrive, {"p": v.POINT}, kernels=(kernel.enter,)),
        v.Event("arrive as printed, at zero", rejoin, {"p": v.POINT}, excluded_by=th.REJOIN_KEEPS_DEBT),
        v.Event("leave a worker's queue", leave, {"p": v.POINT}, (waiting,), kernels=(kernel.depart,)),
        v.Event("preempt", preempt, events.ONE, events.RESERVED, kernels=(kernel.enter,)),
    )


def _own_refill(gate: v.Functions, gift: str | None) -> v.Event:
    """A worker's own; `gift` names what counts it (None: it happens only if GlobalRefill is dropped)."""
    counted = gift or "P"

    def refill(o: Algebra, w: v.World) -> v.Written:
        q = gate.refill(o, w.q, w.here, w.here, w.Q)
        return {"q": q, counted: getattr(w, counted) + (q - w.q)}

    def together(o: Algebra, w: v.World) -> v.Term:
        return same_truth(o, o.pick(w.here, w.f, False), o.pick(w.here, w.g, False))

    needs = [v.Need(lambda o, w: v.implies(o, w.here, w.queued))]
    if gift == "P":
        needs.append(v.Need(together, th.BACKLOGGED_TOGETHER))
    return v.Event(
        "refill of one worker",
        refill,
        {"here": v.MASK},
        tuple(needs),
        (gate.refill_due, gate.refill),
        excluded_by=None if gift else th.GLOBAL_REFILL,
    )


def cluster_system(
    kernel: v.Functions, gate: v.Functions, backlogged: tuple[str, ...], *, stale: bool = False, gift: str | None = None
) -> v.System:
    """The shared gate over an interval in which `backlogged` wait anywhere: what may happen to the deficit gate's
    clients, and what is the cluster's own; `kernel` has what is its own, `gate` the deficit gate's functions.

    With `stale` every decision and charge starts from a copy that is ahead.  `gift` names the ghost that counts what
    workers give on their own (None: that happens only if GlobalRefill is dropped).
    """
    alone = deficit_proofs.deficit_system(gate, backlogged=backlogged)
    kept = {event.name: event for event in alone.events}
    both = ("refill", "admit", "admit past the gate", "decode", "correct", "refund")
    charges = [*(kept[name] for name in both), _own_refill(gate, gift)]
    return v.System(
        "deficit gate of a cluster",
        {**alone.parameters, **(v.scalars("S") if stale else {})},
        (*alone.laws, *((v.Need(lambda o, w: w.S >= 0),) if stale else ())),
        {**v.vectors("q", "places", "R", "K", "W", "P"), "known": v.MASK, **(v.vectors("G") if gift == "G" else {})},
        (*_queues(kernel, gate), kept["finish"], *(map(_from_a_copy, charges) if stale else charges)),
        derived={"queued": lambda o, w: kernel.waits(o, w.places)},
    )


def same_truth(o: Algebra, a: v.Term, b: v.Term) -> v.Term:
    """Whether two truth values agree."""
    return o.where(a, b, o.where(b, False, True))


# --- what holds over clients ----------------------------------------------------------------------------------------


def range_of(stale: bool = False) -> tuple[v.Clause, ...]:
    """What holds of deficits at any time, under one deficit for all workers."""

    def least(w: v.World) -> v.Term:
        return 1 - w.U - w.S if stale else 1 - w.U

    return (
        v.Clause("1 - U - S <= q - R" if stale else "1 - U <= q - R", lambda o, w: w.q - w.R >= least(w)),
        *deficit_proofs.CREDIT,
        v.Clause("R >= 0", lambda o, w: w.R >= 0),
        deficit_proofs.KNOWN,
        v.Clause("q0 in range", lambda o, w: (w.q0 >= least(w)) & (w.q0 <= w.Q + w.back)),
    )


def starts(stale: bool = False, *ghosts: str) -> tuple[v.Clause, ...]:
    """What holds where an interval begins; the named ghosts count from there."""
    named = ("W", "P", *ghosts)

    def nothing(o: Algebra, w: v.World, name: str) -> v.Term:
        return v.same(getattr(w, name), 0)

    zero = tuple(v.Clause(f"{name} = 0", partial(nothing, name=name)) for name in named)
    return (*range_of(stale)[:-1], *zero, v.Clause("q = q0", lambda o, w: v.same(w.q, w.q0)))


_BALANCE = v.Clause("W + q = q0 + P", lambda o, w: v.same(w.W + w.q, w.q0 + w.P))
_BALANCE_WITH_GIFTS = v.Clause("W + q = q0 + P + G", lambda o, w: v.same(w.W + w.q, w.q0 + w.P + w.G))
_SAME = v.Clause("P_f = P_g", deficit_proofs.same_credit)


def _beside_gifts(o: Algebra, w: v.World) -> v.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    (service_f, service_g), (gift_f, gift_g) = deficit_proofs.both(o, w, "W"), deficit_proofs.both(o, w, "G")
    beyond = (service_f - gift_f) - (service_g - gift_g)
    bound = deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g) + deficit_proofs.both_backs(o, w)
    return (beyond <= bound) & (-beyond <= bound)


def _stale_gap(o: Algebra, w: v.World) -> v.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    service_f, service_g = deficit_proofs.both(o, w, "W")
    bound = deficit.gap_cost(quantum_f, charge_f + w.S, quantum_g, charge_g + w.S) + deficit_proofs.both_backs(o, w)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _interval(
    theorem: th.Theorem, cluster: v.System, joint: v.Clause, conclusion: v.Clause, *, stale: bool = False
) -> v.Claim:
    ghosts = ("G",) if "G" in cluster.fields else ()
    kept = (*range_of(stale), _BALANCE_WITH_GIFTS if ghosts else _BALANCE, joint)
    return v.Claim(theorem, cluster.with_laws(deficit_proofs.EQUAL), starts(stale, *ghosts), kept, (conclusion,))


def _steal(kernel: v.Functions, gate: v.Functions) -> v.Claim:
    """A worker that may take any waiting request is one for which every waiting client is ready."""
    alone = cluster_system(kernel, gate, (), gift="P")

    def waiting(o: Algebra, w: v.World) -> v.Term:
        return kernel.waits(o, w.places)

    derived = {
        **alone.derived,
        "waits": lambda o, w: o.any(waiting(o, w)),
        "due": lambda o, w: gate.refill_due(o, w.q, waiting(o, w)),
        "served": lambda o, w: o.exists(gate.choose(o, w.q, waiting(o, w), waiting(o, w), w.q)),
    }

    def served(o: Algebra, w: v.World) -> v.Term:
        return o.where(w.waits, o.where(w.due, True, w.served), True)

    return v.Claim(
        shared.D2_STEAL,
        attrs.evolve(alone, derived=derived),
        (deficit_proofs.KNOWN,),
        (deficit_proofs.KNOWN,),
        (v.Clause("if none is due, a waiting client is served", served),),
    )


# --- what workers come to together ------------------------------------------------------------------------------------
# How the gate's counts follow where each client waits is shown for one worker and any number of others, and every
# number of clients.  How the workers' bounds add up is about vectors over *workers*, any number of them, for one
# client.


def _places(kernel: v.Functions) -> v.Claim:
    """`here` are the clients that wait at one worker, `elsewhere` at how many others each does."""

    def begins(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.enter(o, w.places, w.p), "here": o.put(w.here, w.p, True)}

    def ends(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.depart(o, w.places, w.p), "here": o.put(w.here, w.p, False)}

    def begins_there(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.enter(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, 1)}

    def ends_there(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.depart(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, -1)}

    one, somewhere = {"p": v.POINT}, v.Need(lambda o, w: o.pick(w.elsewhere, w.p, 1) >= 1)
    there = v.Need(lambda o, w: o.pick(w.here, w.p, True))
    absent = v.Need(lambda o, w: o.where(o.pick(w.here, w.p, False), False, True))
    counted = (
        v.Clause(
            "places = here + elsewhere",
            lambda o, w: v.same(w.places, o.where(w.here, w.elsewhere + 1, w.elsewhere)),
        ),
        v.Clause("elsewhere >= 0", lambda o, w: w.elsewhere >= 0),
    )
    return v.Claim(
        shared.D2_PLACES,
        v.System(
            "queues of a cluster",
            {},
            (),
            {"places": v.VECTOR, "here": v.MASK, "elsewhere": v.VECTOR},
            (
                v.Event("begins to wait here", begins, one, (absent,), kernels=(kernel.enter,)),
                v.Event("waits no more here", ends, one, (there,), kernels=(kernel.depart,)),
                v.Event("begins to wait elsewhere", begins_there, one, kernels=(kernel.enter,)),
                v.Event("waits no more elsewhere", ends_there, one, (somewhere,), kernels=(kernel.depart,)),
            ),
            derived={"waiting": lambda o, w: kernel.waits(o, w.places)},
        ),
        counted,
        counted,
        (
            v.Clause(
                "clients that wait here or elsewhere are counted",
                lambda o, w: v.implies(o, _anywhere(w), w.waiting),
            ),
            v.Clause("who is counted waits here or elsewhere", lambda o, w: v.implies(o, w.waiting, _anywhere(w))),
        ),
    )


def _anywhere(w: v.World) -> v.Term:
    return w.here | (w.elsewhere >= 1)


# --- what workers may charge together -------------------------------------------------------------------------------


def _memory() -> v.Claim:
    """Vectors are over workers, for one client: R is what each may still charge it.  `v` let it in last, for X."""

    whole = {
        "charged": lambda o, w: v.total(o, o.bump(w.R, w.v, w.X - 1)),
        "most": lambda o, w: v.total(o, w.U - 1),
    }
    held = (
        v.Clause("0 <= R <= U - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
        v.Clause("X + R_v <= U_v", lambda o, w: w.X + o.pick(w.R, w.v, 0) <= o.pick(w.U, w.v, w.X)),
        v.Clause("v is a worker", lambda o, w: o.exists(w.v)),
    )
    return v.Claim(
        shared.D2_MEMORY,
        v.System(
            "one client on all workers",
            {"U": v.VECTOR},
            (v.Need(lambda o, w: w.U >= 1),),
            {"R": v.VECTOR, "v": v.POINT, "X": v.SCALAR},
            (
                v.Event(
                    "a worker lets the client in",
                    lambda o, w: {"R": o.bump(w.R, w.p, w.r), "v": w.p, "X": w.x},
                    {"p": v.POINT, "x": v.SCALAR, "r": v.SCALAR},
                    (
                        lambda o, w: o.exists(w.p) & (w.x >= 0) & (w.r >= 0),
                        v.Need(lambda o, w: w.x >= 1, th.CHARGES_AT_LEAST_ONE),
                        v.Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= o.pick(w.U, w.p, 0), th.MEM_RESERVE),
                    ),
                ),
                v.Event(
                    "workers charge what was reserved",
                    lambda o, w: {"R": w.R - w.d},
                    {"d": v.VECTOR},
                    (lambda o, w: w.d >= 0, v.Need(lambda o, w: w.d <= w.R, th.MEM_RESERVE)),
                ),
            ),
            derived=whole,
        ),
        held,
        held,
        (v.Clause("sum of R, and of X - 1 at v, <= sum of (U - 1)", lambda o, w: w.charged <= w.most),),
    )


# --- charges that are reported late -----------------------------------------------------------------------------------


def _ledger_claims(kernel: v.Functions = credit_ledger) -> tuple[v.Claim, ...]:
    """The claim about the kernel functions of `kernel`."""

    def own(o: Algebra, w: v.World) -> v.Written:
        """The holder charges d (negative: gives back) and grants c."""
        return {
            "q": w.q - w.d + w.c,
            "u": kernel.unsent_after(o, w.u, w.d, w.T),
            "L": kernel.ledger_after(o, w.L, w.u, w.d, w.c, w.T),
            "owed": w.u + w.d,
        }

    def others(o: Algebra, w: v.World) -> v.Written:
        """Others charge d and grant c, and then have not told `later`."""
        return {"q": w.q - w.d + w.c, "v": w.later, "L": w.L + w.c - (w.v + w.d - w.later)}

    def rests(o: Algebra, w: v.World) -> v.Written:
        """The holder tells everything: no bound keeps it."""
        nothing = w.u - w.u
        return {
            "u": kernel.unsent_after(o, w.u, nothing, -1),
            "L": kernel.ledger_after(o, w.L, w.u, nothing, nothing, -1),
            "owed": nothing - 1,
        }

    amounts = {"d": v.VECTOR, "c": v.VECTOR}
    held = (
        v.Clause("0 <= u <= T", lambda o, w: (w.u >= 0) & (w.u <= w.T)),
        v.Clause("v >= 0", lambda o, w: w.v >= 0),
        v.Clause("L = q + u + v", lambda o, w: v.same(w.L, w.q + w.u + w.v)),
        v.Clause(
            "within T nothing is told",
            lambda o, w: v.implies(o, v.spread(w.within, w.u), v.same(w.u, w.owed)),
        ),
        v.Clause("else everything is", lambda o, w: o.where(v.spread(w.within, w.u), True, v.same(w.u, 0))),
    )
    system = v.System(
        "one holder's copy of the credit",
        {"T": v.SCALAR},
        (v.Need(lambda o, w: w.T >= 0),),
        v.vectors("q", "L", "u", "v", "owed"),
        (
            v.Event("the holder charges", own, amounts, kernels=(kernel.unsent_after, kernel.ledger_after)),
            v.Event("the holder rests", rests, kernels=(kernel.unsent_after, kernel.ledger_after)),
            v.Event("others charge", others, {**amounts, "later": v.VECTOR}, (lambda o, w: w.later >= 0,)),
        ),
        derived={
            "within": lambda o, w: o.all((w.owed >= 0) & (w.owed <= w.T)),
            "seen": lambda o, w: kernel.seen(o, w.L, w.u),
        },
    )
    ahead = v.Clause("the copy is ahead by what others have not told", lambda o, w: v.same(w.seen, w.q + w.v))
    return (v.Claim(shared.D2_UNSENT, system, held, held, (*held[:3], ahead)),)


def claims(
    kernel: v.Functions = global_deficit, gate: v.Functions = deficit, ledger: v.Functions = credit_ledger
) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as the cluster runs them."""
    within = v.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", deficit_proofs.gap_within)
    lag = v.Clause("P_f >= P_g", deficit_proofs.at_least_as_much_credit)
    behind = v.Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", deficit_proofs.no_less_than_g)
    beside = v.Clause("|W - G of f and g| <= bound", _beside_gifts)
    later = v.Clause("|W_f - W_g| <= 2(Q + U + S - 1) + B_f + B_g", _stale_gap)
    pair = partial(cluster_system, kernel, gate, ("f", "g"))
    return (
        _memory(),
        _places(kernel),
        *_ledger_claims(ledger),
        _interval(shared.D2_GLOBAL, pair(), _SAME, within),
        _interval(shared.D2_LAG, cluster_system(kernel, gate, ("f",)), lag, behind),
        _steal(kernel, gate),
        _interval(shared.D2_GIFT, pair(gift="G"), _SAME, beside),
        _interval(shared.D2_TOGETHER, pair(gift="P"), _SAME, within),
        _interval(shared.D2_STALE, pair(stale=True), _SAME, later, stale=True),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

WORKERS = 2
CHARGE_MAX = WORKERS * (charge_max_reserved(v.RATES, 3, 2) - 1) + 1
QUANTUM = 8
F, G = 0, 1

STALE = 4
STALE_QUANTUM = 12
"""(U + S - 1) = 12 is a multiple of it, so that a refill takes the deepest debt to a whole quantum."""


def _admitted(client: int, outputs: int, ahead: int) -> v.RunStep:
    facts = {"x": 1, "r": v.RATES.output * outputs, "k": 0, "ready": (1, 1), "score": v.one(2, client, 1)}
    return "admit", {**facts, "s": v.one(2, client, ahead)}


def _decoded(client: int, tokens: int) -> v.RunStep:
    return "decode", {"d": v.one(2, client, v.RATES.output * tokens), "s": (0, 0)}


def _spends_all(client: int, before: Sequence[int], ahead: int) -> Iterator[v.RunStep]:
    """Requests of so many outputs one by one, then one of two outputs on both workers at once."""
    for outputs in before:
        yield _admitted(client, outputs, ahead)
        yield _decoded(client, outputs)
    yield _admitted(client, 2, ahead)
    yield _admitted(client, 2, ahead)
    yield _decoded(client, 4)


def _run(before: Sequence[int], ahead: int) -> tuple[v.RunStep, ...]:
    """Client 1 spends all that it can, and in the interval client 0 does so twice."""
    refill: v.RunStep = ("refill", {"s": (0, 0)})
    arrivals: list[v.RunStep] = [("arrive at a worker", {"p": client}) for client in (0, 1) for _ in range(WORKERS)]
    spends = [*_spends_all(0, before, ahead)]
    own = (*arrivals, refill, *_spends_all(1, before, ahead), (v.BEGIN, {}), *spends, refill, refill, *spends)
    return own if ahead else tuple((name, {k: v for k, v in facts.items() if k != "s"}) for name, facts in own)


def _witness(theorem: str, f: int = F, g: int = G) -> v.Witness:
    parameters: v.Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": f, "g": g}
    bound = deficit.gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return v.Witness(v.claim_named(theorem, claims()), 2, parameters, _run((1, 1), 0), bound, {"q0": "q"})


def _stale() -> v.Witness:
    """Each admission is let in by a copy that lacks four cost units of what its client was charged."""
    parameters: v.Values = {"Q": (STALE_QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G, "S": STALE}
    charge_max = CHARGE_MAX + STALE
    bound = deficit.gap_cost(STALE_QUANTUM, charge_max, STALE_QUANTUM, charge_max)
    return v.Witness(v.claim_named("D2-stale", claims()), 2, parameters, _run((1, 1, 1, 2), STALE), bound, {"q0": "q"})


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound."""
    pairs = tuple(_witness(theorem) for theorem in ("D2-global", "D2-gift", "D2-together"))
    return (*pairs, _witness("D2-lag", f=G, g=F), _stale())
