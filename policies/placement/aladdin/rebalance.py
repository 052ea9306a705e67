"""Aladdin's re-balancing: new requests go from workers that have more to do than was planned to those with less.

Source: Aladdin, section 4.4 and Algorithm 2, cleaned up.  A worker's error is by how much its iterations are longer
than the plan believed, in the units of equation 3: requests that outlive their prediction count with their real
context, those that ended early against it.  A move carries the whole request, prompt included (Algorithm 2 omits it),
so the sum of errors stays.  It is accepted only if the constraints hold where the request goes.
"""

from collections.abc import Sequence

import attrs

from fairsched.policies.placement.aladdin.limits import apart, context_cost, moved, weight
from fairsched.policies.placement.aladdin.placement_batch import PlacementBatch, Wanted


@attrs.frozen
class Placed:
    """A request that was placed in this heartbeat, and the row where."""

    request_id: int
    row: int
    wanted: Wanted


def errors(batch: PlacementBatch) -> list[int]:
    """Each worker's error, in 10 ps an iteration."""
    parts = [(row.believed.over, row.believed.ghost) for row in batch.rows]
    cost = batch.rules.cost
    return [weight(batch.performance, cost(over) - cost(ghost), over.batch - ghost.batch) for over, ghost in parts]


def size(batch: PlacementBatch, wanted: Wanted) -> int:
    """How much of an error a request takes along."""
    cost = context_cost(wanted.prompt_tokens, wanted.counted_tokens, batch.rules.gamma_percent)
    found: int = weight(batch.performance, cost, 1)
    return found


def rebalanced(batch: PlacementBatch, off: list[int], placed: Sequence[Placed]) -> tuple[Placed, ...]:
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
                after = apart(*moved(off[source], off[target], size(batch, each.wanted)))
                if after < apart(off[source], off[target]) and (best is None or after < best[0]):
                    best = (after, i) if batch.holds(target, each.wanted) else best
        if best is None:
            break
        each = now[best[1]]
        now[best[1]] = attrs.evolve(each, row=target)
        off[source], off[target] = moved(off[source], off[target], size(batch, each.wanted))
        stay = (one.wanted.deadline_ns for one in now if one.row == source)
        batch.drop(source, each.wanted, min([batch.rows[source].deadline_ns, *stay]))
        batch.take(target, each.wanted)
    return tuple(now)
