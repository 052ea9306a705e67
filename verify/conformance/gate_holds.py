"""For how long a gate's choice holds, asked step by step.

A gate says for how many decode steps it goes on choosing the same client (`AdmissionTransaction.stays`), and a worker
leaps over them.  Here the same decision is made anew after single steps, and must come out the same.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fairsched.model.algebra import NO_GROUP, Ints
from fairsched.policies.gates import AdmissionTransaction, AnyGate

FAR = 1_000
"""After so many steps one looks again where a choice is said to hold until something else happens."""


def decided(gate: AnyGate, state: Any, heads: Ints, unready: Collection[int]) -> tuple[AdmissionTransaction, int]:
    """A decision that passes over the heads of some groups, and the group that it comes to."""
    turn = gate.begin(state, heads)
    chosen = turn.choose(heads)
    while chosen in unready:
        turn.skip(chosen)
        chosen = turn.choose(heads)
    return turn, chosen


def check_choice_holds(gate: AnyGate, state: Any, heads: Ints, clients: Sequence[int], counts: Sequence[int]) -> None:
    """Raise `AssertionError` unless each choice of a decision holds for as many steps as the gate says.

    `counts[k]` requests of `clients[k]` decode.  The groups chosen are passed over one after the other, until none is
    left: so every choice is looked at, and that of none.
    """
    unready: set[int] = set()
    chosen = None
    while chosen != NO_GROUP:
        turn, chosen = decided(gate, state, heads, unready)
        steps = turn.stays(chosen, clients, counts)
        for step in _looked_at(steps):
            later = gate.decoded(state, tuple(clients), tuple(count * step for count in counts))
            _, then = decided(gate, later, heads, unready)
            assert then == chosen, (
                f"group {chosen} is chosen, for {'ever' if steps is None else f'{steps} steps'}, "
                f"and group {then} after {step}; {sorted(unready)} are passed over"
            )
        unready.add(chosen)


def _looked_at(steps: int | None) -> Iterator[int]:
    """The last step before which nothing may have changed, and some on the way there."""
    last = FAR if steps is None else steps - 1
    yield from sorted({step for step in (1, 2, last // 2, last) if 0 < step <= last})
