"""Algorithm 1 on requests that are all there at once: how many workers best fit opens.

What the planner takes below the rate at which the number of workers becomes a line, and what the exact optimum is
compared with.  O(requests) for each request.
"""

from collections.abc import Sequence

from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Row, Rules, Wanted
from fairsched.policies.aladdin_worker import Believed


def pack(rules: Rules, wanted: Sequence[Wanted], kv_capacity: int) -> tuple[int | None, ...]:
    """The worker of each request, numbered as they are opened; None for one that fits no empty worker.

    >>> from fairsched.model.performance import Performance
    >>> rules = Rules(Performance(1, 0, 1, 1, 1), 100, 100, 100, "normalised", "peaks")
    >>> pack(rules, [Wanted(5, 5, 5, None)] * 3, 20)
    (0, 0, 1)
    """
    draft = Draft(rules, [Row(i, kv_capacity, Believed(), 0, 0, 0, FOREVER_NS, FOREVER_NS) for i in range(len(wanted))])
    at = []
    for each in wanted:
        row = draft.choose(each)
        if row is not None:
            draft.take(row, each)
        at.append(row)
    return tuple(at)
