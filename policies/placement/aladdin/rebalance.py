"""Aladdin's re-balancing: new requests go from workers that have more to do than was planned to those with less.

Source: Aladdin, section 4.4 and Algorithm 2, cleaned up.  A worker's error is by how much its iterations are longer
than the plan believed, in the units of equation 3: requests that run on past their prediction count with their real
context, those that ended early against it.  A move carries the whole request, prompt included (Algorithm 2 forgets it),
so the errors' sum stays, and is accepted only if the constraints hold where the request goes.
"""

from collections.abc import Sequence

import attrs

from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Wanted
from fairsched.policies.aladdin_limits import apart, context_cost, moved, weight
from fairsched.policies.aladdin_worker import Believed


@attrs.frozen
class Placed:
    """A request that was placed in this heartbeat, and the row where."""

    request_id: int
    row: int
    wanted: Wanted


def errors(draft: Draft) -> list[int]:
    """Each worker's error, in 10 ps an iteration."""
    return [_error(draft, row.believed) for row in draft.rows]


def _error(draft: Draft, believed: Believed) -> int:
    over, ghost = believed.over, believed.ghost
    context = draft.rules.cost(over) - draft.rules.cost(ghost)
    error: int = weight(draft.performance, context, over.batch - ghost.batch)
    return error


def size(draft: Draft, wanted: Wanted) -> int:
    """How much of an error a request takes along."""
    cost = context_cost(wanted.prompt_tokens, wanted.counted_tokens, draft.rules.gamma_percent)
    found: int = weight(draft.performance, cost, 1)
    return found


def rebalanced(draft: Draft, off: list[int], placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """The placements after all moves that help; `off`, the workers' errors, is changed along with them.

    From the worker with the largest error above 0 to the one with the smallest below, the request that leaves the two
    least apart, until none helps.  Each move makes the sum of the errors' sizes smaller, so it ends.
    """
    now = list(placed)
    while now:
        source, target = off.index(max(off)), off.index(min(off))
        if off[source] <= 0 or off[target] >= 0:
            break
        best: tuple[int, int] | None = None
        for i, each in enumerate(now):
            if each.row == source:
                after = apart(*moved(off[source], off[target], size(draft, each.wanted)))
                if after < apart(off[source], off[target]) and (best is None or after < best[0]):
                    best = (after, i) if draft.holds(target, each.wanted) else best
        if best is None:
            break
        each = now[best[1]]
        now[best[1]] = attrs.evolve(each, row=target)
        off[source], off[target] = moved(off[source], off[target], size(draft, each.wanted))
        draft.drop(source, each.wanted, _deadline(draft, now, source))
        draft.take(target, each.wanted)
    return tuple(now)


def _deadline(draft: Draft, placed: Sequence[Placed], row: int) -> int:
    """The earliest deadline of a row and of what was placed there."""
    due = [each.wanted.deadline_ns for each in placed if each.row == row]
    return min([draft.rows[row].deadline_ns, *(ns for ns in due if ns is not None)], default=FOREVER_NS)
