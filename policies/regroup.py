"""Those who wait are ranked anew together, for an order whose ranks depend on all of them.

It happens in `observe`, after a step that computed part of a prompt and only if the order says that it is due, so a
decision never waits for it, and no decision of a stretch of decode steps can change by it.
"""

import msgspec
from immutables import Map

from fairsched.model.sorted_tuple import SortedTuple
from fairsched.policies.order import Order
from fairsched.policies.waiting import Waiting, own_rank, score_of, with_heads


def regrouped(waiting: Waiting, order: Order, grouped: bool) -> Waiting:
    """The index in which everybody has the rank that the order finds for all together; the same if that is not due.

    O(n log n) for n waiting, and what the order itself takes.
    """
    entries = waiting.entries
    if not order.regroups(len(entries), waiting.arrivals - waiting.grouped):
        return waiting
    everybody = sorted(entries.values(), key=lambda entry: entry.age)
    together = order.ranks_together([entry.request for entry in everybody])
    ranks = [own_rank(waiting, order, entry) for entry in everybody] if together is None else together.tolist()
    scores: dict[int, int] = {}
    lines: dict[int, list[int]] = {}
    for entry, rank in zip(everybody, ranks, strict=True):
        score = score_of(rank, entry.age)
        scores[entry.request.id] = score
        lines.setdefault(entry.request.client if grouped else 0, []).append(score)
    queues = {group: SortedTuple.from_sorted(sorted(line)) for group, line in lines.items()}
    anew = msgspec.structs.replace(waiting, scores=Map(scores), queues=Map(queues), grouped=waiting.arrivals)
    return with_heads(anew, order)
