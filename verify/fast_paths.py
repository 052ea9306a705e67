"""What a gate's fast paths say, proved of the kernels for which they stand: derived from the declaration's `fast`.

While requests decode, `stays` and `leads` answer for many decisions at once: nothing is asked of the gate until so many
steps are over.  Both are counted down here, one decode step a time, for any number of clients and any charges: as long
as one is left, the kernels say of the chosen client what they said before.  A gate that is `sparse` charges entries
alone.
"""

from collections.abc import Mapping

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import Theorem
from fairsched.policies.gates import Kernel, KernelGate
from fairsched.verify import events
from fairsched.verify import logic as v

SOURCE = "this library: why decisions may be left out between two decode steps"
STAYS = Theorem(
    "fast-stays",
    "after each decode step but the last of so many, the chosen client may go, and none that might not go before may, "
    "whatever refills are due",
    SOURCE,
)
LEADS = Theorem(
    "fast-leads",
    "after each decode step but the last of so many, the client that was first goes before every other that waits",
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
    """Return the claims about how long a choice stays, of the gate or of its variant with these functions; `given` is
    what is always true of its state."""
    of, made = events.declared(gate, functions), {"stays": _stays, "leads": _leads}
    fast = {n: k if functions is None else getattr(functions, k.__name__) for n, k in gate.fast.items()}
    claims = tuple(attrs.evolve(made[name](gate, of, fast), given=given) for name in fast if name in PROVED)
    return (*claims, _sparse(gate, of)) if gate.sparse else claims


def _counted_down(
    gate: type[KernelGate],
    of: events.Declared,
    what: str,
    more: Mapping[str, v.Kind],
    derived: Mapping[str, v.Formula],
    *laws: v.Formula,
) -> v.System:
    """Return decode steps in a row, in each of which clients pay their `charge`; `left` are those that remain."""

    def step(o: Algebra, w: v.World) -> v.Written:
        return {**of.run("decode", o, w, charge=w.charge), "left": w.left - 1}

    vectors = v.vectors(*gate.per_weight, *gate.over_weight, "charge")
    positive = (events.at_least_one(name) for name in (*gate.constants, *gate.per_weight, *gate.over_weight))
    return v.System(
        f"{gate.__name__}, {what}",
        {**v.scalars(*gate.constants), **vectors, **of.seen, "queued": v.MASK, "p": v.POINT, **more},
        (lambda o, w: w.charge >= 0, lambda o, w: o.exists(w.p), *positive, *laws),
        {**{name: v.MASK if name in gate.masks else v.VECTOR for name in gate.state}, "left": v.SCALAR},
        (v.Event("one decode step", step, needs=(lambda o, w: w.left >= 2,), kernels=of.of("decode")),),
        derived,
        closed_forms=True,
    )


def _stays(gate: type[KernelGate], of: events.Declared, fast: Mapping[str, Kernel]) -> v.Claim:
    """p is the client that was chosen, or one that might be were it ready, which holds back refills; i is any client,
    and `might` says whether it might go, too.  A refill that is due is given before each choice."""
    due, at_once = fast.get("due"), {name: fast.get(f"refill_{name}") for name in gate.state}

    def refilled(o: Algebra, w: v.World) -> v.World:
        if due is None:
            return w
        now = v.spread(of.call(due, o, w), w.charge)
        given = {n: o.where(now, of.call(k, o, w), getattr(w, n)) for n, k in at_once.items() if k is not None}
        return v.World(**{**vars(w), **given})

    def goes(o: Algebra, w: v.World) -> v.Term:
        return o.exists(of.call(of.choose, o, refilled(o, w), ready=v.only(o, w.charge, w.p)))

    def other_goes(o: Algebra, w: v.World) -> v.Term:
        return o.exists(of.call(of.choose, o, refilled(o, w), ready=w.ready & v.only(o, w.charge, w.i)))

    def spans(o: Algebra, w: v.World) -> v.Term:
        return o.pick(of.call(fast["stays"], o, refilled(o, w), charge=o.maximum(w.charge, 1)), w.p, 0)

    def enough(o: Algebra, w: v.World) -> v.Term:
        return o.where(o.pick(w.charge, w.p, 0) >= 1, w.left <= w.at_once, True)

    kept = (
        v.Clause("p may go, were it ready", lambda o, w: w.goes),
        v.Clause("i may go only if it might", lambda o, w: o.where(w.i_goes, w.might, True)),
    )
    counted = (
        v.Clause("no more are left than at once, if p is charged", enough),
        v.Clause("one is left", lambda o, w: w.left >= 1),
    )
    system = _counted_down(
        gate,
        of,
        "how long a choice stays",
        {"i": v.POINT, "might": v.FLAG},
        {"at_once": spans, "goes": goes, "i_goes": other_goes},
        lambda o, w: o.exists(w.i),
    )
    return v.Claim(STAYS, system, (*kept, *counted), (*kept, *counted), kept)


def _leads(gate: type[KernelGate], of: events.Declared, fast: Mapping[str, Kernel]) -> v.Claim:
    """Of equals those in `ahead` are served before p."""

    def numbers(w: v.World) -> v.Term:
        return getattr(w, gate.grows)

    def gains(o: Algebra, w: v.World) -> v.Term:
        return o.pick(w.charge, w.p, 0) - w.charge

    def steps(o: Algebra, w: v.World) -> v.Term:
        own = o.pick(numbers(w), w.p, 0)
        return of.call(fast["leads"], o, w, own=own, gains=o.maximum(gains(o, w), 1), ahead=w.ahead)

    def first(o: Algebra, w: v.World) -> v.Term:
        behind = o.where(w.ahead, 1, 0) + o.pick(numbers(w), w.p, 0) <= numbers(w)
        return v.implies(o, o.put(w.queued, w.p, False), behind)

    def enough(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, o.put(w.queued, w.p, False) & (gains(o, w) >= 1), w.at_once >= w.left)

    leading = v.Clause("p goes before every other that waits", first)
    counted = (
        v.Clause("no more are left than at once of any that is charged less", enough),
        v.Clause("one is left", lambda o, w: w.left >= 1),
    )
    system = _counted_down(gate, of, "how long the first leads", {"ahead": v.MASK}, {"at_once": steps})
    return v.Claim(LEADS, system, (leading, *counted), (leading, *counted), (leading,))


def _sparse(gate: type[KernelGate], of: events.Declared) -> v.Claim:
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
            {**v.vectors("charge", "charges", "others"), **events.ONE},
            (events.EXISTS, lambda o, w: w.charge >= 0),
            tuple(dict.fromkeys((*decoded.values(), *of.of("admit"), *of.of("refund")))),
        ),
        tuple(clauses),
        parameters=vectors,
    )
