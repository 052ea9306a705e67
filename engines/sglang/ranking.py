"""The queue in the order in which a policy would let it in: decision after decision, each on the state in which the
ones before have happened.

States are values, so this is a thought: what SGLang really does is told to the policy's own state later.  An admission
that is thought of is charged what SGLang's last look at its cache said.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from fairsched.engines.inside.decider import Decider, FailedError
from fairsched.engines.sglang.desk import Call


def ranked(
    decider: Decider, calls: Sequence[Call], now_ns: int, most: int, keeps_order: bool = False
) -> list[Call] | None:
    """`calls`, the first `most` of them as the policy lets them in and the others as they came.

    With `keeps_order` the policy says whose turn it is, and a client's requests stay in the order of `calls`.  None if
    the policy failed.  O(min(most, calls)) decisions.
    """
    left = {call.known.id: call for call in calls}
    own = _by_client(calls) if keeps_order else {}
    first: list[Call] = []
    state: Any = decider.state
    try:
        while left and len(first) < most:
            decision = decider.decide(left, now_ns, state)
            if decision is None:
                decider.failed("stalled", f"{len(left)} wait, and nobody is let in")
                return None
            call = left[decision.admission.request_id]
            if keeps_order:
                call = own[call.known.client].popleft()
            first.append(call)
            del left[call.known.id]
            event = call.admission(now_ns, call.request.num_matched_prefix_tokens)
            state = decider.thought(state, event)
    except FailedError:
        return None
    decider.worked()
    return first + sorted(left.values(), key=lambda call: call.known.id)


def _by_client(calls: Sequence[Call]) -> dict[int, deque[Call]]:
    own: dict[int, deque[Call]] = {}
    for call in calls:
        own.setdefault(call.known.client, deque()).append(call)
    return own
