"""What ships of the hierarchical gate beside its kernels, in worlds: H-families, and what is false of a flat gate.

F-HIER-1 is what a client gains that comes as many: under the deficit gate k clients get k shares, whoever they are.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairsched.model.algebra import NUMPY, Bools, Ints
from fairsched.model.siblings import SiblingAlgebra
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies import deficit, hierarchical
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate
from fairsched.policies.hierarchical import HierarchicalGate
from fairsched.policies.hierarchical_theorems import H_FAMILIES, H_SPLIT
from fairsched.verify.false_claim import Bug, FalseClaim
from fairsched.verify.hierarchical_worlds import QUANTUM, RATES, refilled_alone, split_bound, split_up, trees
from fairsched.verify.tested import TestedClaim

Refilled = Callable[[Ints, Bools, Any], Ints]


def _families(refilled: Refilled = hierarchical.refilled) -> TestedClaim:
    def shows(w: SimpleNamespace) -> Mapping[str, bool]:
        state: Any = SimpleNamespace(
            up=np.array(w.up), known=np.array(w.known, dtype=np.bool_), quantum=np.array(w.quantum)
        )
        found = refilled(np.array(w.q), np.array(w.waits, dtype=np.bool_), state).tolist()
        alone = refilled_alone(w)
        return {
            f"the children of node {above} are as if they were alone": [
                q for node, q in enumerate(found) if node and w.up[node] == above
            ]
            == children
            for above, children in alone.items()
        } | {"the root is left alone": found[0] == w.q[0]}

    return TestedClaim(H_FAMILIES, trees(), shows)


def claims() -> tuple[TestedClaim, ...]:
    """The claim about the refill that ships."""
    return (_families(),)


def bugs() -> tuple[Bug, ...]:
    """Refills that are wrong in one way each."""

    def as_one_family(q: Ints, waits: Bools, state: Any) -> Ints:
        if not deficit.refill_due(NUMPY, q, waits):
            return q
        topped: Ints = deficit.refill_rounds(NUMPY, q, waits, state.known, state.quantum)
        return topped

    def one_round(q: Ints, waits: Bools, state: Any) -> Ints:
        families = SiblingAlgebra(state.up)
        topped: Ints = deficit.refill(families, q, waits, state.known, state.quantum)
        return topped

    return (
        Bug("nobody is refilled while anybody has credit", _families(as_one_family)),
        Bug("one round, however deep the debt", _families(one_round)),
    )


# --- what is false --------------------------------------------------------------------------------------------------

KEYS_MAX, REQUESTS_MAX = 6, 120


def splits(gate: Gate[Any], name: str) -> TestedClaim:
    """That splitting up gains nothing, of a gate: for up to so many clients of an organisation and so many requests."""
    statement = "an organisation gets at most 2(Q + U - 1) more than a client beside it, however many clients it is"

    def shows(w: SimpleNamespace) -> Mapping[str, bool]:
        together, other = split_up(gate, w.keys, w.requests)
        return {statement: together - other <= split_bound()}

    def worlds() -> Iterator[Mapping[str, int]]:
        return ({"keys": k, "requests": n} for k in range(1, KEYS_MAX + 1) for n in range(1, REQUESTS_MAX + 1))

    theorem = Theorem(name, statement, "what one would expect of shares", (), scope=Scope.BOUNDED)
    return TestedClaim(theorem, worlds, shows)


GATES: dict[str, Gate[Any]] = {
    "flat": DeficitGate(RATES, QUANTUM),
    "hierarchical": HierarchicalGate(RATES, QUANTUM),
}
"""The two gates of the comparison."""


def refutations() -> tuple[FalseClaim, ...]:
    """What sounds right of shares among clients and is not."""
    return (
        FalseClaim(
            splits(GATES["flat"], "F-HIER-1"),
            "the deficit gate, whose shares are per client",
            H_SPLIT.id,
            "120 requests of 3 units: as 3 clients an organisation gets 270 units, and a client beside it 90",
            {"keys": 3, "requests": 120},
        ),
    )
