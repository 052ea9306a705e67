"""Why a waiting request is not admitted now: what the next decision would say of it."""

from typing import TYPE_CHECKING, Any

from fairsched.model.view import WorkerView
from fairsched.policies.base import WaitingFor
from fairsched.policies.local_state import LocalState, group_of, waits_for_prefix
from fairsched.policies.round import Round

if TYPE_CHECKING:
    from fairsched.policies.local import ComposedPolicy


def waiting_cause(
    policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, free: int, request_id: int
) -> WaitingFor:
    """The cause, where so much KV is free.  O(clients)."""
    why = _cause(policy, state, view, free, request_id)
    return "swapped" if request_id in view.host.kv and why in ("order", "memory", "budget") else why


def _cause(
    policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, free: int, request_id: int
) -> WaitingFor:
    order, gate, batching = policy.order, policy.gate, policy.batching
    entry = state.waiting.entries[request_id]
    client = entry.request.client
    batch = batching.open(view)
    round_ = Round(order, gate, batching, state, view, batch, free)
    turn = round_.turn
    chosen = turn.choose(round_.heads)
    if gate.credit_shortage(turn, client):
        return "gate"
    if gate.capped(turn, client, entry.context_tokens + entry.output_tokens_left):
        return "cap"
    if waits_for_prefix(order, state, entry):
        return "prefix"
    if chosen != group_of(gate, client):
        return "order"
    if round_.best(chosen).request.id != request_id:
        return "bypass" if state.waiting.due(order, chosen) else "order"
    return "memory" if batching.first_chunk(batch, 1) and not round_.fits(entry) else "budget"
