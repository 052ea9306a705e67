"""The hierarchical gate's theorems for any tree of any number of nodes: H-range, H-siblings, H-weighted, H-split.

Vectors are over nodes, clients and groups alike.  A *family* is any mask: a refill of a family runs the deficit gate's
kernel on which clients wait and are known in it, and the theorems hold for whatever families there are, as long as f
and g are in the same ones.  (Production refills all families at once: `fairsched.model.algebra` runs the same text on
masks cut to each family, which tests hold it to.)  An admission is the gate's own choice of a client, whose groups are
two other nodes or none, and what the kernel saw of these is what they have.  Which groups those are is left open from
one event to the next, so the range and the gaps hold for trees that change, too; H-split speaks of the clients `mine`
of g.

The clauses are those of the deficit gate's theorems (`fairsched.verify.proofs.gates.deficit`), now said of
nodes.
"""

from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import MEM_RESERVE, Theorem
from fairsched.policies import gates
from fairsched.verify import events, logic
from fairsched.verify.proofs.gates import changes as change_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit, hierarchical

# --- what may happen ------------------------------------------------------------------------------------------------

PATH = {"p": logic.POINT, "inner": logic.POINT, "outer": logic.POINT}
_AMOUNT = {**PATH, "x": logic.SCALAR}


def along(o: Algebra, v: logic.Term, w: logic.World, amount: logic.Term) -> logic.Term:
    """A ghost's change at a client and at its groups; not the kernel of that name, which is under proof."""
    return o.bump(o.bump(o.bump(v, w.p, amount), w.inner, amount), w.outer, amount)


def is_other(o: Algebra, like: logic.Term, one: logic.Term, two: logic.Term) -> logic.Term:
    """Whether two points are not one client."""
    return o.where(o.pick(logic.only(o, like, one), two, False), False, True)


def _a_path(o: Algebra, w: logic.World) -> logic.Term:
    """A client and its groups are different nodes, and no other groups are asked for."""
    apart = is_other(o, w.Q, w.p, w.inner) & is_other(o, w.Q, w.p, w.outer) & is_other(o, w.Q, w.inner, w.outer)
    return o.exists(w.p) & apart


def _charged_within(o: Algebra, w: logic.World) -> logic.Term:
    """What is charged now and what is still reserved is at most U, for the client and for each of its groups."""

    def within(p: Any) -> Any:
        return w.x + o.pick(w.R, p, 0) + w.r <= o.pick(w.U, p, w.x + w.r)

    return within(w.p) & within(w.inner) & within(w.outer)


def _was_reserved(o: Algebra, w: logic.World) -> logic.Term:
    return (w.x <= o.pick(w.R, w.p, 0)) & (w.x <= o.pick(w.R, w.inner, w.x)) & (w.x <= o.pick(w.R, w.outer, w.x))


def _seen(o: Algebra, w: logic.World) -> logic.Term:
    """What the gate saw of the client's groups is what they have, and 1 where there is none."""
    inner = logic.same(o.pick(w.inner_q, w.p, 1), o.pick(w.q, w.inner, 1))
    return inner & logic.same(o.pick(w.outer_q, w.p, 1), o.pick(w.q, w.outer, 1))


def _part_back(o: Algebra, w: logic.World) -> logic.Term:
    """k of x will be given back, to the client and to its groups, each of which is given back at most B at one time."""

    def within(p: Any) -> Any:
        return o.pick(w.K, p, 0) + w.k <= o.pick(w.back, p, w.k)

    return (w.k >= 0) & (w.k <= w.x) & within(w.p) & within(w.inner) & within(w.outer)


def _was_charged(o: Algebra, w: logic.World) -> logic.Term:
    """Only what was charged to the client and to its groups is given back."""
    return (w.x <= o.pick(w.K, w.p, 0)) & (w.x <= o.pick(w.K, w.inner, w.x)) & (w.x <= o.pick(w.K, w.outer, w.x))


_PART_BACK = logic.Need(_part_back)
IS_PATH = logic.Need(_a_path)
_RESERVED = logic.Need(_was_reserved, MEM_RESERVE)


def refill_event(flat: logic.Functions, *needs: logic.Need) -> logic.Event:
    """One round of credit in one family, of which f and g both are, or neither."""

    def refill(o: Algebra, w: logic.World) -> logic.Written:
        q = flat.refill(o, w.q, w.queued & w.family, w.known & w.family, w.Q)
        return {"q": q, "P": w.P + (q - w.q)}

    def siblings(o: Algebra, w: logic.World) -> logic.Term:
        here, there = o.pick(w.family, w.f, True), o.pick(w.family, w.g, True)
        return o.where(here, there, True) & o.where(there, here, True)

    return logic.Event(
        "refill a family",
        refill,
        {"family": logic.MASK},
        (siblings, *needs),
        (flat.refill_due, flat.refill),
        happens=lambda o, w: flat.refill_due(o, w.q, w.queued & w.family),
    )


def _admission_events(kernel: logic.Functions) -> tuple[logic.Event, ...]:
    """The client p, in `inner`, which is in `outer`, is admitted, charged x, and r more may be charged to it later."""

    def admit(o: Algebra, w: logic.World) -> logic.Written:
        q = kernel.admit(o, w.q, w.p, w.inner, w.outer, w.x)
        return {"q": q, "R": along(o, w.R, w, w.r), "K": along(o, w.K, w, w.k), "W": along(o, w.W, w, w.x)}

    def choose(o: Algebra, w: logic.World) -> logic.Term:
        return kernel.choose(o, w.q, w.inner_q, w.outer_q, w.queued, w.ready, w.score)

    groups = {"inner": logic.POINT, "outer": logic.POINT, **logic.scalars("x", "r", "k")}
    needs = (
        IS_PATH,
        events.NOT_NEGATIVE,
        _PART_BACK,
        logic.Need(lambda o, w: w.r >= 0),
        logic.Need(_charged_within, MEM_RESERVE),
    )
    seen = {**logic.vectors("inner_q", "outer_q", "score"), "ready": logic.MASK}
    chosen, past = events.admissions(admit, groups, needs, choose, seen, (kernel.choose,), (kernel.admit,))
    return chosen.with_needs(_seen), past


def _running_events(kernel: logic.Functions, flat: logic.Functions) -> tuple[logic.Event, ...]:
    """What happens to requests in flight."""

    def correct(o: Algebra, w: logic.World) -> logic.Written:
        q = kernel.admit(o, w.q, w.p, w.inner, w.outer, w.x)
        return {"q": q, "R": along(o, w.R, w, -w.x), "K": along(o, w.K, w, w.k), "W": along(o, w.W, w, w.x)}

    def release(o: Algebra, w: logic.World) -> logic.Written:
        return {"R": along(o, w.R, w, -w.x)}

    def preempt(o: Algebra, w: logic.World) -> logic.Written:
        return {**release(o, w), "queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    def refund(o: Algebra, w: logic.World) -> logic.Written:
        q = kernel.refund(o, w.q, w.p, w.inner, w.outer, w.x)
        return {"q": q, "K": along(o, w.K, w, -w.x), "W": along(o, w.W, w, -w.x)}

    reserved = (IS_PATH, events.NOT_NEGATIVE, _RESERVED)
    return (
        logic.Event(
            "decode",
            lambda o, w: {"q": flat.decode(o, w.q, w.d), "R": w.R - w.d, "W": w.W + w.d},
            {"d": logic.VECTOR},
            events.DECODED,
            (flat.decode,),
        ),
        logic.Event("correct", correct, {**_AMOUNT, "k": logic.SCALAR}, (*reserved, _PART_BACK), (kernel.admit,)),
        logic.Event("finish", release, _AMOUNT, reserved),
        logic.Event("preempt", preempt, _AMOUNT, reserved),
        logic.Event("refund", refund, _AMOUNT, (IS_PATH, events.NOT_NEGATIVE, _was_charged), (kernel.refund,)),
    )


def hierarchical_system(
    kernel: logic.Functions = hierarchical, flat: logic.Functions = deficit, *, backlogged: tuple[str, ...] = ()
) -> logic.System:
    """The gate over an interval in which a client waits at or below each of `backlogged` ("f", "g")."""
    queues = ("arrive", "arrive behind one's own", "leave the queue")
    kept = (event for event in deficit_proofs.deficit_system(flat).events if event.name in queues)
    refill = refill_event(flat, *map(events.waits, backlogged))
    every = (*kept, refill, *_admission_events(kernel), *_running_events(kernel, flat))
    return logic.System(
        "hierarchical gate", deficit_proofs.PARAMETERS, deficit_proofs.LAWS, deficit_proofs.FIELDS, every
    )


# --- an organisation and its clients --------------------------------------------------------------------------------


def _of_g(o: Algebra, w: logic.World) -> logic.Term:
    """g is one of the client's groups exactly if the client is one of `mine`."""
    above = o.where(is_other(o, w.Q, w.g, w.inner), o.where(is_other(o, w.Q, w.g, w.outer), False, True), True)
    mine = o.pick(w.mine, w.p, False)
    return o.where(mine, above, o.where(above, False, True)) & is_other(o, w.Q, w.g, w.p)


def _not_mine(o: Algebra, w: logic.World) -> logic.Term:
    """Groups are no clients."""
    return o.where(o.pick(w.mine, w.inner, False) | o.pick(w.mine, w.outer, False), False, True)


def _sum_of_mine(o: Algebra, w: logic.World, v: logic.Term) -> logic.Term:
    return logic.total(o, o.where(w.mine, v, 0))


def _split_system(kernel: logic.Functions, flat: logic.Functions) -> logic.System:
    """The gate in which g is charged whatever its clients are, and nothing else."""
    one = hierarchical_system(kernel, flat, backlogged=("f",))
    decoded = logic.Need(lambda o, w: logic.same(o.pick(w.d, w.g, 0), _sum_of_mine(o, w, w.d)))

    def of_clients(event: logic.Event) -> logic.Event:
        if "inner" in event.facts:
            return event.with_needs(_of_g, _not_mine)
        return event.with_needs(decoded) if event.name == "decode" else event

    return attrs.evolve(
        one,
        parameters={**one.parameters, "mine": logic.MASK},
        laws=(*one.laws, deficit_proofs.EQUAL, lambda o, w: o.where(o.pick(w.mine, w.g, True), False, True)),
        events=tuple(map(of_clients, one.events)),
        derived={"clients_of_g": lambda o, w: _sum_of_mine(o, w, w.W)},
    )


def _no_more_than_f(o: Algebra, w: logic.World) -> logic.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    most = (quantum_f + charge_f - 1) + (quantum_g + charge_g - 1) + deficit_proofs.both_backs(o, w)
    return w.clients_of_g - o.pick(w.W, w.f, 0) <= most


# --- claims ---------------------------------------------------------------------------------------------------------

_FLAT = {claim.theorem.id: claim for claim in deficit_proofs.claims()}


def _as_of_clients(theorem: Theorem, of: logic.System, flat: str) -> logic.Claim:
    """The deficit gate's claim about clients as one about the nodes of a tree."""
    return attrs.evolve(_FLAT[flat], theorem=theorem, system=of)


def _change_claim(kernel: logic.Functions, flat: logic.Functions) -> logic.Claim:
    """The deficit gate's claim about quanta that change; the event in which they do is its own."""
    of = change_proofs.claims(flat)[0]
    events = (
        *hierarchical_system(kernel, flat).events,
        *(event for event in of.system.events if event.name == "configured"),
    )
    changing = attrs.evolve(of.system, name="hierarchical gate, quanta change", events=events)
    return attrs.evolve(of, theorem=gates.H_CHANGE, system=changing)


# --- one step of the kernels ------------------------------------------------------------------------------------------

_SEEN = {**logic.vectors("q", "inner_q", "outer_q", "score"), **dict.fromkeys(("queued", "ready"), logic.MASK)}


def _gate_claim(kernel: logic.Functions) -> logic.Claim:
    """`served` is the client that the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: logic.World) -> logic.Written:
        seen = {name: getattr(w, f"{name}_now") for name in _SEEN}
        order = ("q", "inner_q", "outer_q", "queued", "ready", "score")
        return {**seen, "served": kernel.choose(o, *(seen[name] for name in order))}

    def may_go(w: logic.World) -> logic.Term:
        return w.queued & w.ready & (w.q > 0) & (w.inner_q > 0) & (w.outer_q > 0)

    def best(o: Algebra, w: logic.World) -> logic.Term:
        found = logic.spread(o.exists(w.served), w.score) & (w.score <= o.pick(w.score, w.served, 0))
        return logic.implies(o, may_go(w), found)

    well_chosen = (
        logic.Clause(
            "who is served waits, is ready, and has credit as its groups have",
            lambda o, w: o.pick(may_go(w), w.served, True),
        ),
        logic.Clause("none of them scores better, and one is served if there is one", best),
    )
    facts = {f"{name}_now": kind for name, kind in _SEEN.items()}
    event = logic.Event("choose", choose, facts, kernels=(kernel.choose,))
    return logic.one_step(
        gates.H_GATE, "hierarchical gate, its choice", {**_SEEN, "served": logic.POINT}, event, well_chosen
    )


def _first_claim(kernel: logic.Functions) -> logic.Claim:
    """`first` has the best score of all that wait, and `goes` is what the gate says of it before it looks at others."""

    def ask(o: Algebra, w: logic.World) -> logic.Written:
        seen = {name: getattr(w, f"{name}_now") for name in _SEEN}
        first = o.argmax(seen["score"], seen["queued"])
        own, inner, outer = (o.pick(seen[name], first, 0) for name in ("q", "inner_q", "outer_q"))
        return {**seen, "first": first, "goes": kernel.goes_first(o, seen["ready"], first, own, inner, outer)}

    def may_go(w: logic.World) -> logic.Term:
        return w.queued & w.ready & (w.q > 0) & (w.inner_q > 0) & (w.outer_q > 0)

    clauses = (
        logic.Clause(
            "it waits, is ready, and has credit as its groups have",
            lambda o, w: o.where(w.goes, o.pick(may_go(w), w.first, False), True),
        ),
        logic.Clause(
            "none of those scores better",
            lambda o, w: logic.implies(
                o, logic.spread(w.goes, w.score) & may_go(w), w.score <= o.pick(w.score, w.first, 0)
            ),
        ),
        logic.Clause(
            "so it is where that holds", lambda o, w: o.where(o.pick(may_go(w), w.first, False), w.goes, True)
        ),
    )
    facts = {f"{name}_now": kind for name, kind in _SEEN.items()}
    event = logic.Event("ask", ask, facts, (_READY_WAITS,), (kernel.goes_first,))
    fields = {**_SEEN, "first": logic.POINT, "goes": logic.FLAG}
    return logic.one_step(gates.H_FIRST, "hierarchical gate, the first in line", fields, event, clauses)


_READY_WAITS = logic.Need(lambda o, w: logic.implies(o, w.ready_now, w.queued_now))


def _rounds_claim(kernel: logic.Functions, flat: logic.Functions) -> logic.Claim:
    """Rounds of the family `ours` in a row, counted in quanta as `G`: others are refilled meanwhile, and whatever else
    happens starts the count again."""
    tree = hierarchical_system(kernel, flat)

    def counted(event: logic.Event) -> logic.Event:
        if event.name == "refill a family":
            elsewhere = logic.Need(lambda o, w: logic.implies(o, w.ours & w.family, False))
            return event.with_needs(elsewhere)
        return logic.and_also(event, G=lambda o, w, _: w.G - w.G)

    def refill(o: Algebra, w: logic.World) -> logic.Written:
        q = flat.refill(o, w.q, w.queued & w.ours, w.known & w.ours, w.Q)
        return {"q": q, "P": w.P + (q - w.q), "G": w.G + w.Q}

    due = logic.Need(lambda o, w: w.due)
    ours = logic.Event("refill", refill, {}, (due,), (flat.refill_due, flat.refill))
    of = attrs.evolve(
        tree,
        parameters={**tree.parameters, "ours": logic.MASK},
        fields={**tree.fields, "G": logic.VECTOR},
        events=(ours, *map(counted, tree.events)),
        derived={"due": lambda o, w: flat.refill_due(o, w.q, w.queued & w.ours)},
    )
    raised = logic.Clause(
        "the rounds so far raised waiting clients by G",
        lambda o, w: logic.implies(o, w.queued & w.ours, w.q - w.G >= 1 - w.U),
    )
    return logic.Claim(
        gates.H_ROUNDS,
        of,
        (*deficit_proofs.NOTHING_YET, logic.Clause("G = 0", lambda o, w: logic.same(w.G, 0))),
        (*deficit_proofs.RANGE, raised),
        (logic.Clause("a round more is due only if G_i <= U_i - 1", _few_rounds),),
    )


def _few_rounds(o: Algebra, w: logic.World) -> logic.Term:
    """After k rounds G = k Q, so one more is due only if k <= floor((U_i - 1) / Q_i)."""
    return logic.implies(o, w.queued & w.ours & w.due, w.G <= w.U - 1)


def _progress_claim(kernel: logic.Functions, flat: logic.Functions) -> logic.Claim:
    """`served` is what the gate would let in of `family`, whose groups have credit, with every client ready."""

    def choose(o: Algebra, w: logic.World) -> logic.Written:
        waiting = w.queued_now & w.family_now
        served = kernel.choose(o, w.q_now, w.inner_q, w.outer_q, waiting, waiting, w.score)
        return {"q": w.q_now, "queued": w.queued_now, "family": w.family_now, "served": served}

    def nothing_due(o: Algebra, w: logic.World) -> logic.Term:
        return o.where(flat.refill_due(o, w.q_now, w.queued_now & w.family_now), False, True)

    in_credit = logic.Need(lambda o, w: logic.implies(o, w.family_now, (w.inner_q > 0) & (w.outer_q > 0)))
    seen = {"inner_q": logic.VECTOR, "outer_q": logic.VECTOR, "score": logic.VECTOR}
    facts = {**seen, "q_now": logic.VECTOR, "queued_now": logic.MASK, "family_now": logic.MASK}
    served = logic.Clause(
        "if a client of it waits, one of it is let in",
        lambda o, w: logic.implies(o, w.queued & w.family, logic.spread(o.exists(w.served), w.q)),
    )
    event = logic.Event("choose", choose, facts, (nothing_due, in_credit), (kernel.choose, flat.refill_due))
    fields = {"q": logic.VECTOR, "queued": logic.MASK, "family": logic.MASK, "served": logic.POINT}
    return logic.one_step(gates.H_PROGRESS, "hierarchical gate, a family", fields, event, (served,))


def _refund_claim(kernel: logic.Functions) -> logic.Claim:
    """`was` are the deficits before the client p and its groups were given back `x`."""

    def refund(o: Algebra, w: logic.World) -> logic.Written:
        q = kernel.refund(o, w.q_now, w.p_now, w.inner_now, w.outer_now, w.x_now)
        now = {"p": w.p_now, "inner": w.inner_now, "outer": w.outer_now}
        return {"was": w.q_now, "q": q, "x": w.x_now, **now}

    def given(o: Algebra, w: logic.World) -> logic.Term:
        on_path = o.put(o.put(o.put(logic.spread(False, w.q), w.p, True), w.inner, True), w.outer, True)
        return o.where(on_path, logic.same(w.q, w.was + w.x), logic.same(w.q, w.was))

    clauses = (logic.Clause("each gets what was asked, others nothing", given),)
    facts = {f"{name}_now": kind for name, kind in {"q": logic.VECTOR, **PATH, "x": logic.SCALAR}.items()}

    def is_path(o: Algebra, w: logic.World) -> logic.Term:
        return IS_PATH.holds(o, logic.World(Q=w.Q, p=w.p_now, inner=w.inner_now, outer=w.outer_now))

    needs = (logic.Need(is_path), logic.Need(lambda o, w: w.x_now >= 0))
    fields = {"q": logic.VECTOR, "was": logic.VECTOR, "x": logic.SCALAR, **PATH}
    event = logic.Event("refund", refund, facts, needs, (kernel.refund,))
    return logic.one_step(
        gates.H_REFUND,
        "hierarchical gate, a refund",
        fields,
        event,
        clauses,
        parameters={"Q": logic.VECTOR},
        laws=(lambda o, w: w.Q >= 1,),
    )


def claims(kernel: logic.Functions = hierarchical, flat: logic.Functions = deficit) -> tuple[logic.Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s and, in families, `flat`'s."""
    pair = hierarchical_system(kernel, flat, backlogged=("f", "g"))
    split = _as_of_clients(gates.H_SPLIT, _split_system(kernel, flat), "D-4.2")
    of_g = logic.Clause("W_g is the sum over g's clients", lambda o, w: logic.same(o.pick(w.W, w.g, 0), w.clients_of_g))
    return (
        _as_of_clients(gates.H_RANGE, hierarchical_system(kernel, flat), "D-range"),
        _as_of_clients(gates.H_SIBLINGS, pair.with_laws(deficit_proofs.EQUAL), "D-4.1"),
        _as_of_clients(gates.H_WEIGHTED, pair, "D-weighted"),
        attrs.evolve(
            split,
            invariants=(*split.invariants, of_g),
            conclusions=(logic.Clause("sum over g's clients - W_f <= 2(Q + U - 1) + B_f + B_g", _no_more_than_f),),
        ),
        _change_claim(kernel, flat),
        _gate_claim(kernel),
        _first_claim(kernel),
        _rounds_claim(kernel, flat),
        _progress_claim(kernel, flat),
        _refund_claim(kernel),
    )
