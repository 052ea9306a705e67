"""One deficit a client for all workers: D2-global, D2-lag, D2-gift, D2-together, D2-stale and D2-steal.

For every number of clients, and of workers, since a worker appears only as a mask: a decision lets in whom `ready`
says (any mask, such as the clients that wait there), and a worker's own refill tops up the mask `here`.  R is what may
still be charged to a client on all workers together (D2-memory), and the gate's counts say which clients wait anywhere
(D2-places); both are in `fairsched.verify.proofs.gates.shared_workers`.

A decision that rests on stale reads sees q + s with 0 <= s <= S, and what it does is added to the true q.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import (
    BACKLOGGED_TOGETHER,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    GLOBAL_REFILL,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    STALE_READS,
    Theorem,
)
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
    implies,
    one,
    same,
)
from fairsched.verify.proofs.gates.deficit import (
    at_least_as_much_credit,
    both,
    gap_within,
    no_less_than_g,
    same_credit,
    waits,
)
from fairsched.verify.proofs.kernels import deficit, global_deficit

_ONE = {"p": Kind.POINT, "x": Kind.SCALAR}
_NOT_NEGATIVE = Need(lambda o, w: w.x >= 0)
_WAS_RESERVED = Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0), MEM_RESERVE)
_STALE = Need(lambda o, w: (w.s >= 0) & (w.s <= w.S), STALE_READS)


class _Cluster:
    """The events of the shared gate; `kernel` has what is its own, `gate` the deficit gate's functions.

    With `stale` every decision and charge starts from a copy that is ahead by `s`.  `gift` names the ghost that counts
    what workers give on their own (None: that happens only if GlobalRefill is dropped).
    """

    def __init__(
        self, kernel: Functions, gate: Functions, backlogged: tuple[str, ...], stale: bool, gift: str | None
    ) -> None:
        self.kernel = kernel
        self.gate = gate
        self.backlogged = backlogged
        self.stale = stale
        self.gift = gift

    def system(self, *laws: Need) -> System:
        """The gate with everything that may happen to it."""
        stale = {"S": Kind.SCALAR} if self.stale else {}
        floor = (Need(lambda o, w: w.S >= 0),) if self.stale else ()
        ghosts = {"G": Kind.VECTOR} if self.gift == "G" else {}
        return System(
            "deficit gate of a cluster",
            {"Q": Kind.VECTOR, "U": Kind.VECTOR, "q0": Kind.VECTOR, "f": Kind.POINT, "g": Kind.POINT, **stale},
            (
                Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
                Need(lambda o, w: w.U >= 1),
                Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
                *floor,
                *laws,
            ),
            {**dict.fromkeys(("q", "places", "R", "W", "P"), Kind.VECTOR), "known": Kind.MASK, **ghosts},
            (*self._queues(), *self._refills(), *self._admissions(), *self._running()),
            derived={"queued": lambda o, w: self.kernel.waits(o, w.places)},
        )

    def _event(self, name: str, step: Any, facts: Mapping[str, Kind], needs: tuple[Need, ...], **more: Any) -> Event:
        stale = {"s": Kind.VECTOR} if self.stale else {}
        return Event(name, step, {**facts, **stale}, (*needs, *((_STALE,) if self.stale else ())), **more)

    def _seen(self, w: World) -> Any:
        return w.q + w.s if self.stale else w.q

    def _then(self, w: World, act: Callable[[Any], Any]) -> Any:
        """The true deficits after what was done to the copy."""
        return w.q + (act(self._seen(w)) - self._seen(w))

    # --- queues -----------------------------------------------------------------------------------------------------

    def _queues(self) -> tuple[Event, ...]:
        kernel = self.kernel

        def arrive(o: Algebra, w: World) -> Written:
            return {"places": kernel.enter(o, w.places, w.p), "known": o.put(w.known, w.p, True)}

        def leave(o: Algebra, w: World) -> Written:
            return {"places": kernel.depart(o, w.places, w.p)}

        def rejoin(o: Algebra, w: World) -> Written:
            return {**arrive(o, w), "q": self.gate.rejoin_printed(o, w.q, w.p)}

        waiting = Need(lambda o, w: o.pick(w.places, w.p, 1) >= 1)
        return (
            Event("arrive at a worker", arrive, {"p": Kind.POINT}, kernels=(kernel.enter,)),
            Event("arrive as printed, at zero", rejoin, {"p": Kind.POINT}, excluded_by=REJOIN_KEEPS_DEBT),
            Event("leave a worker's queue", leave, {"p": Kind.POINT}, (waiting,), kernels=(kernel.depart,)),
        )

    # --- credit -----------------------------------------------------------------------------------------------------

    def _refills(self) -> tuple[Event, ...]:
        gate = self.gate

        def refill(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: gate.refill(o, seen, w.queued, w.known, w.Q))
            return {"q": q, "P": w.P + (q - w.q)}

        def own(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: gate.refill(o, seen, w.here, w.here, w.Q))
            counted = self.gift or "P"
            return {"q": q, counted: getattr(w, counted) + (q - w.q)}

        waiting = Need(lambda o, w: implies(o, w.here, w.queued))
        together = Need(
            lambda o, w: same_truth(o, o.pick(w.here, w.f, False), o.pick(w.here, w.g, False)), BACKLOGGED_TOGETHER
        )
        needs = (waiting, together) if self.gift == "P" else (waiting,)
        excluded = {"excluded_by": GLOBAL_REFILL} if self.gift is None else {}
        kernels = (gate.refill_due, gate.refill)
        return (
            self._event("refill", refill, {}, tuple(waits(client) for client in self.backlogged), kernels=kernels),
            self._event("refill of one worker", own, {"here": Kind.MASK}, needs, kernels=kernels, **excluded),
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def _admissions(self) -> tuple[Event, ...]:
        gate = self.gate

        def admit(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: gate.admit(o, seen, w.p, w.x))
            return {"q": q, "R": o.bump(w.R, w.p, w.r), "W": o.bump(w.W, w.p, w.x)}

        amounts = {"x": Kind.SCALAR, "r": Kind.SCALAR}
        needs = (
            _NOT_NEGATIVE,
            Need(lambda o, w: w.r >= 0),
            Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= o.pick(w.U, w.p, w.x + w.r), MEM_RESERVE),
        )
        return (
            self._event(
                "admit",
                admit,
                {**amounts, "ready": Kind.MASK, "score": Kind.VECTOR},
                needs,
                kernels=(gate.in_credit, gate.choose, gate.admit),
                decides=lambda o, w: {"p": gate.choose(o, self._seen(w), w.queued, w.ready, w.score)},
                happens=lambda o, w: o.exists(w.p),
            ),
            self._event(
                "admit past the gate",
                admit,
                {**amounts, "p": Kind.POINT},
                needs,
                kernels=(gate.admit,),
                excluded_by=GATE_RESPECTED,
            ),
        )

    def _running(self) -> tuple[Event, ...]:
        gate, kernel = self.gate, self.kernel

        def decode(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: gate.decode(o, seen, w.d))
            return {"q": q, "R": w.R - w.d, "W": w.W + w.d}

        def correct(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: gate.correct(o, seen, w.p, w.x))
            return {"q": q, "R": o.bump(w.R, w.p, -w.x), "W": o.bump(w.W, w.p, w.x)}

        def finish(o: Algebra, w: World) -> Written:
            return {"R": o.bump(w.R, w.p, -w.x)}

        def preempt(o: Algebra, w: World) -> Written:
            return {**finish(o, w), "places": kernel.enter(o, w.places, w.p), "known": o.put(w.known, w.p, True)}

        def refund(o: Algebra, w: World) -> Written:
            q = self._then(w, lambda seen: kernel.refund(o, seen, w.p, w.x, w.Q))
            room = o.pick(w.Q, w.p, 0) - o.pick(self._seen(w), w.p, 0)
            return {"q": q, "W": o.bump(w.W, w.p, -o.maximum(o.minimum(w.x, room), 0))}

        reserved = (_NOT_NEGATIVE, _WAS_RESERVED)
        decoded = (Need(lambda o, w: w.d >= 0), Need(lambda o, w: w.d <= w.R, MEM_RESERVE))
        return (
            self._event("decode", decode, {"d": Kind.VECTOR}, decoded, kernels=(gate.decode,)),
            self._event("correct", correct, _ONE, reserved, kernels=(gate.correct,)),
            Event("finish", finish, _ONE, reserved),
            Event("preempt", preempt, _ONE, reserved, kernels=(kernel.enter,)),
            self._event("refund", refund, _ONE, (_NOT_NEGATIVE,), kernels=(kernel.refund,)),
        )


def same_truth(o: Algebra, a: Term, b: Term) -> Term:
    """Whether two truth values agree."""
    return o.where(a, b, o.where(b, False, True))


# --- what holds over clients ----------------------------------------------------------------------------------------


def _range(stale: bool) -> tuple[Clause, ...]:
    def least(w: World) -> Term:
        return 1 - w.U - w.S if stale else 1 - w.U

    return (
        Clause("1 - U - S <= q - R" if stale else "1 - U <= q - R", lambda o, w: w.q - w.R >= least(w)),
        Clause("q <= Q", lambda o, w: w.q <= w.Q),
        Clause("R >= 0", lambda o, w: w.R >= 0),
        Clause("waiting clients are known", lambda o, w: implies(o, w.queued, w.known)),
        Clause("q0 in range", lambda o, w: (w.q0 >= least(w)) & (w.q0 <= w.Q)),
    )


def _starts(stale: bool, *ghosts: str) -> tuple[Clause, ...]:
    named = ("W", "P", *ghosts)

    def nothing(o: Algebra, w: World, name: str) -> Term:
        return same(getattr(w, name), 0)

    zero = tuple(Clause(f"{name} = 0", partial(nothing, name=name)) for name in named)
    return (*_range(stale)[:4], *zero, Clause("q = q0", lambda o, w: same(w.q, w.q0)))


_BALANCE = Clause("W + q = q0 + P", lambda o, w: same(w.W + w.q, w.q0 + w.P))
_BALANCE_WITH_GIFTS = Clause("W + q = q0 + P + G", lambda o, w: same(w.W + w.q, w.q0 + w.P + w.G))
_SAME = Clause("P_f = P_g", same_credit)
_EQUAL = Need(lambda o, w: same(*both(o, w, "Q")), EQUAL_QUANTA)


def _beside_gifts(o: Algebra, w: World) -> Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q"), both(o, w, "U")
    (service_f, service_g), (gift_f, gift_g) = both(o, w, "W"), both(o, w, "G")
    beyond = (service_f - gift_f) - (service_g - gift_g)
    bound = gap_cost(quantum_f, charge_f, quantum_g, charge_g)
    return (beyond <= bound) & (-beyond <= bound)


def _stale_gap(o: Algebra, w: World) -> Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q"), both(o, w, "U")
    service_f, service_g = both(o, w, "W")
    bound = gap_cost(quantum_f, charge_f + w.S, quantum_g, charge_g + w.S)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _interval(theorem: Theorem, cluster: _Cluster, joint: Clause, *conclusions: Clause) -> Claim:
    balance = _BALANCE_WITH_GIFTS if cluster.gift == "G" else _BALANCE
    ghosts = ("G",) if cluster.gift == "G" else ()
    return Claim(
        theorem,
        cluster.system(_EQUAL),
        _starts(cluster.stale, *ghosts),
        (*_range(cluster.stale), balance, joint),
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

    known = _range(False)[3]
    system = System(alone.name, alone.parameters, alone.laws, alone.fields, alone.events, derived)
    return Claim(D2_STEAL, system, (known,), (known,), (Clause("if none is due, a waiting client is served", served),))


def claims(kernel: Functions = global_deficit, gate: Functions = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as the cluster runs them."""
    within = Clause("|W_f - W_g| <= 2(Q + U - 1)", gap_within)
    lag = Clause("P_f >= P_g", at_least_as_much_credit)
    pair = partial(_Cluster, kernel, gate, ("f", "g"))
    return (
        _interval(D2_GLOBAL, pair(stale=False, gift=None), _SAME, within),
        _interval(
            D2_LAG,
            _Cluster(kernel, gate, ("f",), stale=False, gift=None),
            lag,
            Clause("W_g - W_f <= 2(Q + U - 1)", no_less_than_g),
        ),
        _steal(kernel, gate),
        _interval(D2_GIFT, pair(stale=False, gift="G"), _SAME, Clause("|W - G of f and g| <= bound", _beside_gifts)),
        _interval(D2_TOGETHER, pair(stale=False, gift="P"), _SAME, within),
        _interval(D2_STALE, pair(stale=True, gift=None), _SAME, Clause("|W_f - W_g| <= 2(Q + U + S - 1)", _stale_gap)),
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
    facts = {"x": 1, "r": RATES.output * outputs, "ready": (1, 1), "score": one(2, client, 1)}
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
    claim = next(claim for claim in claims() if claim.theorem.id == theorem)
    parameters: Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": f, "g": g}
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(claim, 2, parameters, _run((1, 1), 0), bound, {"q0": "q"})


def _stale() -> Witness:
    """Each admission is let in by a copy that lacks four cost units of what its client was charged."""
    claim = next(claim for claim in claims() if claim.theorem.id == "D2-stale")
    parameters: Values = {"Q": (STALE_QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G, "S": STALE}
    charge_max = CHARGE_MAX + STALE
    bound = gap_cost(STALE_QUANTUM, charge_max, STALE_QUANTUM, charge_max)
    return Witness(claim, 2, parameters, _run((1, 1, 1, 2), STALE), bound, {"q0": "q"})


def witnesses() -> tuple[Witness, ...]:
    """One run a bound."""
    pairs = tuple(_witness(theorem) for theorem in ("D2-global", "D2-gift", "D2-together"))
    return (*pairs, _witness("D2-lag", f=G, g=F), _stale())
