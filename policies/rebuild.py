"""A policy that lost track of its worker is told the worker's present anew, and what clients owe is kept.

An engine's guard does this when `observe` raised: queue, batch and cache come from the worker, debts from the last
state that the policy had.  What is lost is what the refused event would have charged.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from fairsched.model.events import Event
from fairsched.policies.base import LocalPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local_state import LocalState
from fairsched.policies.migrate import migrate
from fairsched.policies.waiting import with_groups


def keep_debts(policy: LocalPolicy[Any], last: Any, history: Iterable[Event]) -> Any:
    """The state of a policy that is told the worker's present (`engines.guard_history`), with the debts of `last`.

    Whoever waits now and did not as `last` knew it starts to wait, as the gate has it.  A policy that is no composition
    keeps no debts: only its author knows what they are.  O(history + clients).
    """
    told = policy.init()
    for event in history:
        told = policy.observe(told, event)
    if not isinstance(policy, ComposedPolicy) or not isinstance(last, LocalState):
        return told
    # Clients that have nothing here any more still owe.
    waiting = with_groups(told.waiting, len(last.waiting.heads)) if policy.gate.grouped else told.waiting
    gate, heads = last.gate, waiting.heads
    waited = {entry.request.client for entry in last.waiting.entries.values()}
    for client in sorted({entry.request.client for entry in told.waiting.entries.values()} - waited):
        gate = policy.gate.joined(gate, client, heads, False)
    return migrate(policy, msgspec.structs.replace(told, gate=gate, waiting=waiting), policy)
