"""What the hierarchical gate's kernels do in one step: H-gate, H-refund, and that somebody can always go.

H-rounds counts the rounds that a family needs, whatever happens in other families meanwhile; H-progress is the step
from a node to its children.  A client is let in whenever one waits: somebody waits below the root, so a family below a
node with credit, in which somebody waits, has after its rounds a child with credit below which somebody waits; that is
a client, or the next such node, and the tree is at most three deep.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.policies import deficit, hierarchical
from fairsched.policies.hierarchical_theorems import H_GATE, H_PROGRESS, H_REFUND, H_ROUNDS
from fairsched.verify.deficit_proofs import NOTHING_YET, RANGE
from fairsched.verify.hierarchical_proofs import IS_PATH, PATH, granted, system
from fairsched.verify.system import (
    Claim,
    Clause,
    Event,
    Kind,
    Need,
    System,
    World,
    and_also,
    implies,
    same,
    spread,
)

_SEEN = {
    **dict.fromkeys(("q", "inner_q", "outer_q", "score"), Kind.VECTOR),
    **dict.fromkeys(("queued", "ready"), Kind.MASK),
}


def _gate_claim(kernel: Any) -> Claim:
    """`served` is whom the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        seen = {name: getattr(w, f"{name}_now") for name in _SEEN}
        order = ("q", "inner_q", "outer_q", "queued", "ready", "score")
        return {**seen, "served": kernel.choose(o, *(seen[name] for name in order))}

    def may_go(w: World) -> Any:
        return w.queued & w.ready & (w.q > 0) & (w.inner_q > 0) & (w.outer_q > 0)

    def best(o: Algebra, w: World) -> Any:
        found = spread(o.exists(w.served), w.score) & (w.score <= o.pick(w.score, w.served, 0))
        return implies(o, may_go(w), found)

    well_chosen = (
        Clause(
            "who is served waits, is ready, and has credit as its groups have",
            lambda o, w: o.pick(may_go(w), w.served, True),
        ),
        Clause("nobody of them scores better, and somebody is served if there is one", best),
    )
    facts = {f"{name}_now": kind for name, kind in _SEEN.items()}
    event = Event("choose", choose, facts, kernels=(kernel.choose,))
    of = System("hierarchical gate, its choice", {}, (), {**_SEEN, "served": Kind.POINT}, (event,))
    return Claim(H_GATE, of, well_chosen, well_chosen, well_chosen)


def _rounds_claim(kernel: Any, flat: Any) -> Claim:
    """Rounds of the family `ours` in a row, counted in quanta as `G`: others are refilled meanwhile, and whatever else
    happens starts the count again."""
    tree = system(kernel, flat)

    def counted(event: Event) -> Event:
        if event.name == "refill a family":
            elsewhere = Need(lambda o, w: implies(o, w.ours & w.family, False))
            return event.with_needs(elsewhere)
        return and_also(event, G=lambda o, w, _: w.G - w.G)

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        q = flat.refill(o, w.q, w.queued & w.ours, w.known & w.ours, w.Q)
        return {"q": q, "P": w.P + (q - w.q), "G": w.G + w.Q}

    due = Need(lambda o, w: w.due)
    ours = Event("refill", refill, {}, (due,), (flat.refill_due, flat.refill))
    of = attrs.evolve(
        tree,
        parameters={**tree.parameters, "ours": Kind.MASK},
        fields={**tree.fields, "G": Kind.VECTOR},
        events=(ours, *map(counted, tree.events)),
        derived={"due": lambda o, w: flat.refill_due(o, w.q, w.queued & w.ours)},
    )
    raised = Clause(
        "the rounds so far raised who waits by G", lambda o, w: implies(o, w.queued & w.ours, w.q - w.G >= 1 - w.U)
    )
    return Claim(
        H_ROUNDS,
        of,
        (*NOTHING_YET, Clause("G = 0", lambda o, w: same(w.G, 0))),
        (*RANGE, raised),
        (Clause("a round more is due only if G_i <= U_i - 1", _few_rounds),),
    )


def _few_rounds(o: Algebra, w: World) -> Any:
    """After k rounds G = k Q, so one more is due only if k <= floor((U_i - 1) / Q_i)."""
    return implies(o, w.queued & w.ours & w.due, w.G <= w.U - 1)


def _progress_claim(kernel: Any, flat: Any) -> Claim:
    """`served` is whom the gate would let in of `family`, whose groups have credit, with everybody ready."""

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        waiting = w.queued_now & w.family_now
        served = kernel.choose(o, w.q_now, w.inner_q, w.outer_q, waiting, waiting, w.score)
        return {"q": w.q_now, "queued": w.queued_now, "family": w.family_now, "served": served}

    def nothing_due(o: Algebra, w: World) -> Any:
        return o.where(flat.refill_due(o, w.q_now, w.queued_now & w.family_now), False, True)

    in_credit = Need(lambda o, w: implies(o, w.family_now, (w.inner_q > 0) & (w.outer_q > 0)))
    seen = {"inner_q": Kind.VECTOR, "outer_q": Kind.VECTOR, "score": Kind.VECTOR}
    facts = {**seen, "q_now": Kind.VECTOR, "queued_now": Kind.MASK, "family_now": Kind.MASK}
    somebody = Clause(
        "if anybody of it waits, somebody of it is let in",
        lambda o, w: implies(o, w.queued & w.family, spread(o.exists(w.served), w.q)),
    )
    event = Event("choose", choose, facts, (Need(nothing_due), in_credit), (kernel.choose, flat.refill_due))
    fields = {"q": Kind.VECTOR, "queued": Kind.MASK, "family": Kind.MASK, "served": Kind.POINT}
    of = System("hierarchical gate, a family", {}, (), fields, (event,))
    return Claim(H_PROGRESS, of, (somebody,), (somebody,), (somebody,))


def _refund_claim(kernel: Any) -> Claim:
    """`was` are the deficits before the client p and its groups were given back up to `x`."""

    def refund(o: Algebra, w: World) -> Mapping[str, Any]:
        taken = kernel.takes_back(o, w.q_now, w.p_now, w.inner_now, w.outer_now, w.x_now, w.Q)
        q = kernel.refund(o, w.q_now, w.p_now, w.inner_now, w.outer_now, w.x_now, w.Q)
        now = {"p": w.p_now, "inner": w.inner_now, "outer": w.outer_now}
        return {"was": w.q_now, "q": q, "taken": taken, "x": w.x_now, **now}

    def given(o: Algebra, w: World) -> Any:
        on_path = o.put(o.put(o.put(spread(False, w.q), w.p, True), w.inner, True), w.outer, True)
        return o.where(on_path, same(w.q, w.was + granted(o, w, w.was)), same(w.q, w.was))

    clauses = (
        Clause("each gets what all of them may, others nothing", given),
        Clause("that is what is taken back", lambda o, w: same(w.taken, granted(o, w, w.was))),
    )
    facts = {f"{name}_now": kind for name, kind in {"q": Kind.VECTOR, **PATH, "x": Kind.SCALAR}.items()}

    def is_path(o: Algebra, w: World) -> Any:
        return IS_PATH.holds(o, World(Q=w.Q, p=w.p_now, inner=w.inner_now, outer=w.outer_now))

    needs = (Need(is_path), Need(lambda o, w: w.x_now >= 0), Need(lambda o, w: w.q_now <= w.Q))
    fields = {"q": Kind.VECTOR, "was": Kind.VECTOR, "x": Kind.SCALAR, "taken": Kind.SCALAR, **PATH}
    event = Event("refund", refund, facts, needs, (kernel.takes_back, kernel.refund))
    of = System("hierarchical gate, a refund", {"Q": Kind.VECTOR}, (Need(lambda o, w: w.Q >= 1),), fields, (event,))
    return Claim(H_REFUND, of, clauses, clauses, clauses)


def claims(kernel: Any = hierarchical, flat: Any = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel` and, in families, of `flat`."""
    return (
        _gate_claim(kernel),
        _rounds_claim(kernel, flat),
        _progress_claim(kernel, flat),
        _refund_claim(kernel),
    )
