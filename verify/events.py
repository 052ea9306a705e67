"""What may happen to a gate, and what its fast paths say, derived once from its declaration.

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
from fairsched.model.theorem import BACKLOGGED_DURING, GATE_RESPECTED, MEM_RESERVE, Assumption, Theorem
from fairsched.policies.gates import EVENTS, Kernel, KernelGate, call, parameters
from fairsched.verify import logic as v

ONE = {"p": v.POINT, "x": v.SCALAR}
EXISTS = v.Need(lambda o, w: o.exists(w.p))
WAITS = v.Need(lambda o, w: o.pick(w.queued, w.p, True))
AWAY = v.Need(lambda o, w: o.where(o.pick(w.queued, w.p, False), False, True))
NOT_NEGATIVE = v.Need(lambda o, w: w.x >= 0)
MORE = v.Need(lambda o, w: w.r >= 0)
"""Of an admission: what may be charged later."""
DECODED = (v.Need(lambda o, w: w.d >= 0), v.Need(lambda o, w: w.d <= w.R, MEM_RESERVE))
P = ("p",)
"""Where an event of one client is counted: at the client itself, in a tree also at the groups that it is in."""


def at_each(nodes: tuple[str, ...], holds: Callable[[Algebra, v.World, v.Term], v.Term]) -> v.Formula:
    """Return that something holds of each of these points."""

    def each(o: Algebra, w: v.World) -> v.Term:
        first, *others = (holds(o, w, getattr(w, node)) for node in nodes)
        for other in others:
            first = first & other
        return first

    return each


def _at_most(nodes: tuple[str, ...], ghost: str) -> v.Formula:
    return at_each(nodes, lambda o, w, p: w.x <= o.pick(getattr(w, ghost), p, 0 if p is w.p else w.x))


def counted(o: Algebra, w: v.World, vector: v.Term, amount: v.Term, nodes: tuple[str, ...] = P) -> v.Term:
    """Return a vector with an amount more at each of these points."""
    for node in nodes:
        vector = o.bump(vector, getattr(w, node), amount)
    return vector


def reserved_at(*nodes: str) -> tuple[v.Need, v.Need]:
    """Return the needs of what is charged or released later: it was reserved."""
    return NOT_NEGATIVE, v.Need(
        at_each(nodes, lambda o, w, p: w.x <= o.pick(w.R, p, 0 if p is w.p else w.x)), MEM_RESERVE
    )


def charge_fits(charged: Any, reserved: Any, more: Any, most: Any) -> Any:
    """What an admission is charged, what was reserved for its client and what more is reserved now is at most U."""
    return charged + reserved + more <= most


def fits_at(*nodes: str) -> v.Need:
    """Return the need of an admission: what is charged now and what may be later is at most U."""

    def fits(o: Algebra, w: v.World, p: v.Term) -> v.Term:
        return charge_fits(w.x, o.pick(w.R, p, 0), w.r, o.pick(w.U, p, w.x + w.r))

    return v.Need(at_each(nodes, fits), MEM_RESERVE)


def part_comes_back(*nodes: str) -> tuple[v.Need, v.Need]:
    """Return the needs of a charge x: k of it will be given back, and B is the most that is so at one time."""

    def within(o: Algebra, w: v.World, p: v.Term) -> v.Term:
        return o.pick(w.K, p, 0) + w.k <= o.pick(w.back, p, w.k)

    return v.Need(lambda o, w: (w.k >= 0) & (w.k <= w.x)), v.Need(at_each(nodes, within))


def was_charged_at(*nodes: str) -> v.Need:
    """Return the need of a refund: only what was charged is given back."""
    return v.Need(_at_most(nodes, "K"))


RESERVED, FITS = reserved_at("p"), fits_at("p")
PART_COMES_BACK = part_comes_back("p")

_CHOOSING = {"score": v.VECTOR, "ready": v.MASK, "lot": v.VECTOR}


def waits(client: str) -> v.Need:
    """Return that the client has something waiting, "f" or "g"."""
    return v.Need(lambda o, w: o.pick(w.queued, getattr(w, client), True), BACKLOGGED_DURING)


def at_least_one(name: str) -> v.Need:
    """Return that a number, or a vector's number of each client, is 1 or more."""
    return v.Need(lambda o, w: getattr(w, name) >= 1)


@attrs.frozen
class Declared:
    """A gate's kernels by event and vector, and what proofs call the things that a kernel may ask for.

    What only a proof knows no kernel can ask for.  `choosing` are other names that a choice has for what it sees.
    """

    choose: Kernel
    kernels: Mapping[str, Mapping[str, Kernel]]
    names: Mapping[str, str]
    choosing: Mapping[str, str] = attrs.field(factory=dict)

    def call(self, kernel: Kernel, o: Algebra, w: v.World, **also: Any) -> Any:
        """Return what a kernel makes of what its parameters name."""
        known = {name: getattr(w, place) for name, place in self.names.items() if hasattr(w, place)}
        try:
            return call(kernel, known | also, o)
        except v.KernelError as error:
            raise ValueError(f"{v.line_of(error, kernel)}: {error}") from None

    def run(self, event: str, o: Algebra, w: v.World, **also: Any) -> dict[str, Any]:
        return {name: self.call(kernel, o, w, **also) for name, kernel in self.kernels[event].items()}

    def of(self, event: str) -> tuple[Kernel, ...]:
        return tuple(self.kernels[event].values())

    def asks(self, name: str) -> bool:
        """Return whether any kernel asks for this."""
        every = (self.choose, *(kernel for event in EVENTS for kernel in self.of(event)))
        return any(name in parameters(kernel) for kernel in every)

    @property
    def seen(self) -> dict[str, v.Kind]:
        """What a choice sees beside the state: in proofs, anything."""
        beside = {**_CHOOSING, **dict.fromkeys(self.choosing, v.VECTOR)}
        return {self.choosing.get(name, name): beside[name] for name in parameters(self.choose) if name in beside}

    def choice(self, o: Algebra, w: v.World) -> v.Term:
        return self.call(self.choose, o, w, **{name: getattr(w, place) for name, place in self.choosing.items()})


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
    nodes: tuple[str, ...] = P,
    exists: v.Need = EXISTS,
) -> tuple[v.Event, ...]:
    """Return everything that may happen to a gate.

    An admission of p is charged x, and r more may be charged to it later, within what `fits`.  Of a gate that gives
    back, k of x will be; and of what is computed beyond the plan as well where `settled` says how much.  `reserved`
    are needs of what is charged or released later, `decoded` of outputs.  With `was`, who waited before the last
    event is remembered, so that an admission may empty a queue; with `last`, whose queue became empty last.  Ghosts
    are counted at these `nodes`, which `exists` says are there.
    """
    refunds, keeps = bool(of.kernels["refund"]), bool(settled)

    def charged(o: Algebra, w: v.World, more: v.Term, back: bool) -> v.Written:
        ghosts = {"R": counted(o, w, w.R, more, nodes), "W": counted(o, w, w.W, w.x, nodes)}
        owed = {"K": counted(o, w, w.K, w.k, nodes)} if back else {}
        return {**of.run("admit", o, w, charge=w.x), **ghosts, **owed}

    def admit(o: Algebra, w: v.World) -> v.Written:
        return charged(o, w, w.r, refunds)

    def correct(o: Algebra, w: v.World) -> v.Written:
        return charged(o, w, -w.x, keeps)

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {**of.run("decode", o, w, charge=w.d), "R": w.R - w.d, "W": w.W + w.d}

    def refund(o: Algebra, w: v.World) -> v.Written:
        given = of.run("refund", o, w, amount=w.x)
        return {**given, "K": counted(o, w, w.K, -w.x, nodes), "W": counted(o, w, w.W, -w.x, nodes)}

    one, back = {**dict.fromkeys(nodes, v.POINT), "x": v.SCALAR}, v.scalars("k") if keeps else {}
    amounts = {name: kind for name, kind in one.items() if name != "p"} | v.scalars("r", *(("k",) if refunds else ()))
    admitted = (exists, *fits)
    chosen, past = admissions(admit, amounts, admitted, of.choice, of.seen, (of.choose,), of.of("admit"))
    queues = queue_events(of, (exists, *reserved), one, nodes, otherwise=otherwise, last=last)
    events = [*queues, chosen]
    if was:
        events.append(attrs.evolve(_emptying(chosen, last), name="admit the last that waits"))
    events += [
        past,
        v.Event("correct", correct, {**one, **back}, (exists, *reserved, *settled), of.of("admit")),
        v.Event("decode", decode, {"d": v.VECTOR}, decoded, of.of("decode")),
    ]
    if refunds:
        events.append(v.Event("refund", refund, one, (exists, NOT_NEGATIVE, was_charged_at(*nodes)), of.of("refund")))
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
    reserved: tuple[v.Need, ...],
    one: Mapping[str, v.Kind],
    nodes: tuple[str, ...],
    *,
    otherwise: Otherwise | None,
    last: bool,
) -> tuple[v.Event, ...]:
    """Return how clients start and stop to wait, and how requests leave, of which `reserved` are needs."""
    point = {"p": v.POINT}

    def behind(o: Algebra, w: v.World) -> v.Written:
        return {"queued": o.put(w.queued, w.p, True)}

    def released(o: Algebra, w: v.World) -> v.Written:
        return {"R": counted(o, w, w.R, -w.x, nodes)}

    def comes_back(by: Declared, how: str, assumption: Assumption | None) -> tuple[v.Event, ...]:
        def arrive(o: Algebra, w: v.World) -> v.Written:
            return {**behind(o, w), **by.run("join", o, w)}

        def preempt(o: Algebra, w: v.World) -> v.Written:
            return {**arrive(o, w), **released(o, w)}

        kernels = by.of("join")
        return (
            v.Event(f"arrive{how}", arrive, point, (EXISTS, AWAY), kernels, excluded_by=assumption),
            v.Event(f"preempt{how}", preempt, one, (*reserved, AWAY), kernels, excluded_by=assumption),
        )

    events = comes_back(of, "", None)
    if otherwise is not None:
        joins = attrs.evolve(of, kernels={**of.kernels, "join": otherwise.kernels})
        events += comes_back(joins, f" {otherwise.how}", otherwise.assumption)
    return (
        *events,
        v.Event("arrive behind one's own", behind, point, (EXISTS, WAITS)),
        v.Event("leave the queue", lambda o, w: _leaves(o, w, last), point, (EXISTS, WAITS)),
        v.Event("preempt, others of it wait", released, one, (*reserved, WAITS)),
        v.Event("finish", released, one, reserved),
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
    kernels, past = (*choosing, *charging), (*needs, WAITS)
    return (
        v.Event("admit", admit, {**amounts, **seen}, needs, kernels, decides=lambda o, w: {"p": choose(o, w)}),
        v.Event("admit past the gate", admit, {**amounts, "p": v.POINT}, past, charging, excluded_by=GATE_RESPECTED),
    )


# --- fast paths -------------------------------------------------------------------------------------------------------
# While requests decode, `stays` and `leads` answer for many decisions at once: nothing is asked of the gate until so
# many steps are over.  Both are counted down here, one decode step a time, for any number of clients and any charges:
# as long as one is left, the kernels say of the chosen client what they said before, and then no longer.  A gate that
# is `sparse` charges entries alone.

SOURCE = "this library: why decisions may be left out between two decode steps"
STAYS = Theorem(
    "fast-stays",
    "after each decode step but the last of so many, the chosen client may go, and none that might not go before may, "
    "whatever refills are due; after the last it may not, unless it is refilled",
    SOURCE,
)
LEADS = Theorem(
    "fast-leads",
    "after each decode step but the last of so many, the client that was first goes before another; after the last the "
    "other does",
    SOURCE,
)
SPARSE = Theorem(
    "fast-sparse",
    "what a client has after outputs follows from what it had and what it is charged; a charge of 0 changes nothing, "
    "and neither does what another client is charged or given back",
    SOURCE,
)
PROVED = frozenset({"stays", "leads"})
"""Fast paths of which there are claims here; `due`, `refill` and `choose` need theorems of their gates."""


def fast_claims(
    gate: type[KernelGate], functions: v.Functions | None = None, given: tuple[v.Clause, ...] = ()
) -> tuple[v.Claim, ...]:
    """Return the claims about how long a choice stays, of the gate or of its variant with these functions, whose refill
    at once is the gate's own, which has a theorem; `given` is what is always true of its state."""
    of, made = declared(gate, functions), {"stays": _stays, "leads": _leads}
    other = PROVED if functions is not None else ()
    fast = {n: getattr(functions, k.__name__) if n in other else k for n, k in gate.fast.items()}
    claims = tuple(attrs.evolve(made[name](gate, of, fast), given=given) for name in fast if name in PROVED)
    return (*claims, _sparse(gate, of)) if gate.sparse else claims


def _exact(
    gate: type[KernelGate],
    of: Declared,
    theorem: Theorem,
    what: str,
    more: Mapping[str, v.Kind],
    derived: Mapping[str, v.Formula],
    kept: tuple[v.Clause, ...],
) -> v.Claim:
    """Return that what is `kept` stays so for as many decode steps as are `left`, in each of which clients pay their
    `charge`; of a `loss` of 1 or more in a step those are `at_once`, and then it `goes_on` no longer."""

    def step(o: Algebra, w: v.World) -> v.Written:
        return {**of.run("decode", o, w, charge=w.charge), "left": w.left - 1}

    def ended(o: Algebra, w: v.World) -> v.Term:
        return o.where(w.loss >= 1, o.where(w.goes_on, w.left >= 2, w.left <= 1), True)

    vectors = v.vectors(*gate.per_weight, *gate.over_weight, "charge")
    positive = (at_least_one(name) for name in (*gate.constants, *gate.per_weight, *gate.over_weight))
    counted = v.Clause(
        "as many are left as at once, of a loss",
        lambda o, w: o.where(w.loss >= 1, v.same(w.left, w.at_once), w.left >= 1),
    )
    shown = (*kept, v.Clause("one is left", lambda o, w: w.left >= 1), v.Clause("another only if it goes on", ended))
    system = v.System(
        f"{gate.__name__}, {what}",
        {**v.scalars(*gate.constants), **vectors, **of.seen, "queued": v.MASK, "p": v.POINT, "i": v.POINT, **more},
        (lambda o, w: w.charge >= 0, lambda o, w: o.exists(w.p) & o.exists(w.i), *positive),
        {**{name: v.MASK if name in gate.masks else v.VECTOR for name in gate.state}, "left": v.SCALAR},
        (v.Event("one decode step", step, needs=(lambda o, w: w.left >= 2,), kernels=of.of("decode")),),
        derived,
        closed_forms=True,
    )
    return v.Claim(theorem, system, (*kept, counted), (*kept, counted), shown)


def _stays(gate: type[KernelGate], of: Declared, fast: Mapping[str, Kernel]) -> v.Claim:
    """p is the client that was chosen, or one that might be were it ready, which holds back refills; i is any client,
    and `might` says whether it might go, too.  A refill that is due is given before each choice."""
    due, at_once = fast.get("due"), {name: fast.get(f"refill_{name}") for name in gate.state}

    def refilled(o: Algebra, w: v.World) -> v.World:
        if due is None:
            return w
        now = v.spread(of.call(due, o, w), w.charge)
        given = {n: o.where(now, of.call(k, o, w), getattr(w, n)) for n, k in at_once.items() if k is not None}
        return v.World(**{**vars(w), **given})

    def spans(o: Algebra, w: v.World) -> v.Term:
        return o.pick(of.call(fast["stays"], o, refilled(o, w), charge=o.maximum(w.charge, 1)), w.p, 0)

    def goes(o: Algebra, w: v.World) -> v.Term:
        return o.exists(of.call(of.choose, o, refilled(o, w), ready=v.only(o, w.charge, w.p)))

    def goes_on(o: Algebra, w: v.World) -> v.Term:
        after = v.World(**{**vars(w), **of.run("decode", o, refilled(o, w), charge=w.charge)})
        return o.exists(of.call(of.choose, o, after, ready=v.only(o, w.charge, w.p)))

    def other_goes(o: Algebra, w: v.World) -> v.Term:
        return o.exists(of.call(of.choose, o, refilled(o, w), ready=w.ready & v.only(o, w.charge, w.i)))

    kept = (
        v.Clause("p may go, were it ready", lambda o, w: w.goes),
        v.Clause("i may go only if it might", lambda o, w: o.where(w.i_goes, w.might, True)),
    )
    derived = {"loss": lambda o, w: o.pick(w.charge, w.p, 0), "i_goes": other_goes, "goes": goes, "goes_on": goes_on}
    return _exact(gate, of, STAYS, "how long a choice stays", {"might": v.FLAG}, {"at_once": spans, **derived}, kept)


def _leads(gate: type[KernelGate], of: Declared, fast: Mapping[str, Kernel]) -> v.Claim:
    """i is any other client; of equals those in `ahead` are served before p."""

    def gains(o: Algebra, w: v.World) -> v.Term:
        return o.pick(w.charge, w.p, 0) - w.charge

    def steps(o: Algebra, w: v.World) -> v.Term:
        own = o.pick(getattr(w, gate.grows), w.p, 0)
        every = of.call(fast["leads"], o, w, own=own, gains=o.maximum(gains(o, w), 1), ahead=w.ahead)
        return o.pick(every, w.i, 0)

    def first(o: Algebra, w: v.World) -> v.Term:
        behind = o.where(w.ahead, 1, 0) + o.pick(getattr(w, gate.grows), w.p, 0) <= getattr(w, gate.grows)
        return o.pick(v.only(o, w.charge, w.p) | behind, w.i, True)

    def goes_on(o: Algebra, w: v.World) -> v.Term:
        return first(o, v.World(**{**vars(w), **of.run("decode", o, w, charge=w.charge)}))

    leading = v.Clause("p goes before i", first)
    derived = {"at_once": steps, "loss": lambda o, w: o.pick(gains(o, w), w.i, 0), "goes_on": goes_on}
    return _exact(gate, of, LEADS, "how long the first leads", {"ahead": v.MASK}, derived, (leading,))


def _sparse(gate: type[KernelGate], of: Declared) -> v.Claim:
    """`alone` are p's numbers among any others, after p's charge among any others."""
    vectors = {name: v.MASK if name in gate.masks else v.VECTOR for name in gate.state}
    decoded, single = of.kernels["decode"], {"admit": {"charge": "x"}, "refund": {"amount": "x"}}
    touched = {f"{name} after {event}": name for event in single for name in of.kernels[event]}

    def charged(o: Algebra, w: v.World) -> v.Written:
        written = {"one": w.p, "charged": w.charge}
        for name, kernel in decoded.items():
            own = getattr(w, name)
            others, charges = o.put(w.others, w.p, o.pick(own, w.p, 0)), o.put(w.charges, w.p, o.pick(w.charge, w.p, 0))
            written |= {f"{name} after decode": kernel(o, own, w.charge), f"{name} alone": kernel(o, others, charges)}
        for event, asked in single.items():
            after = of.run(event, o, w, **{name: getattr(w, place) for name, place in asked.items()})
            written |= {f"{name} after {event}": vector for name, vector in after.items()}
        return written

    def alone(name: str) -> v.Formula:
        both = (f"{name} after decode", f"{name} alone")
        return lambda o, w: v.same(*(o.pick(getattr(w, each), w.one, 0) for each in both))

    def uncharged(name: str) -> v.Formula:
        return lambda o, w: v.implies(o, w.charged <= 0, v.same(getattr(w, f"{name} after decode"), getattr(w, name)))

    def untouched(after: str) -> v.Formula:
        def others(o: Algebra, w: v.World) -> v.Term:
            kept = v.same(getattr(w, after), getattr(w, touched[after]))
            return o.where(v.only(o, w.charged, w.one), True, kept)

        return others

    clauses = [v.Clause(f"{name}: from its own alone", alone(name)) for name in decoded]
    clauses += [v.Clause(f"{name}: as it was where nothing is charged", uncharged(name)) for name in decoded]
    clauses += [v.Clause(f"{after}: no other's", untouched(after)) for after in touched]
    results = [*(f"{name} {what}" for name in decoded for what in ("after decode", "alone")), *touched]
    return v.one_step(
        SPARSE,
        f"{gate.__name__}, charges alone",
        {**dict.fromkeys(results, v.VECTOR), "one": v.POINT, "charged": v.VECTOR},
        v.Event(
            "charge",
            charged,
            {**v.vectors("charge", "charges", "others"), **ONE},
            (EXISTS, lambda o, w: w.charge >= 0),
            tuple(dict.fromkeys((*decoded.values(), *of.of("admit"), *of.of("refund")))),
        ),
        tuple(clauses),
        parameters=vectors,
    )
