"""Why the requests of a window wait, and what clients have left of their credit: for people, not for the hot path."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from fairsched.engines.gateway.window.window import Window
from fairsched.engines.serving import Document, empty_worker
from fairsched.model.algebra import NO_GROUP
from fairsched.model.request import Client, Request
from fairsched.policies.base import Explains
from fairsched.policies.gates import DeficitState, HierarchicalState
from fairsched.policies.guarantees import SECOND_NS

Why = Literal["credit", "store", "order", "room", "own calls", "no server"]
"""Its client has no credit, and clients that have some go first; it has none, and the store that would give it some is
away; another request is next; it is the next, and no server has room for it; its client declares more outputs than it
has, and waits for calls of its own; no server takes requests."""

EXPLAINED_MAX = 32
"""Of more clients that wait, those that wait for longest are explained: a reason costs what a decision does."""


def waits(window: Window, clients: Iterable[Client], now_ns: int, *, store_away: bool = False) -> dict[str, Document]:
    """Return for each client of which requests wait, the longest wait first: how many, for how many seconds the oldest
    of them, and why that one does, as plain JSON values.  Clients of one name are told as one.  `store_away`: no client
    is given credit at present."""
    names = {client.id: client.name for client in clients}
    oldest: dict[str, Request] = {}
    calls: Counter[str] = Counter()
    for request in window.queue:
        oldest.setdefault(names[request.client], request)
        calls[names[request.client]] += 1
    return {
        name: {
            "calls": calls[name],
            "seconds": round((now_ns - request.arrival_ns) / SECOND_NS, 3),
            "why": _why(window, request, now_ns, store_away) if i < EXPLAINED_MAX else None,
        }
        for i, (name, request) in enumerate(oldest.items())
    }


def credit(window: Window, clients: Iterable[Client]) -> dict[str, int]:
    """Return what clients may still be charged before they wait for others, in cost units, by name, of several of one
    name the most; at 0 and below a client owes, or a group that it is in.  Of an account that several gateways share it
    is what this one has on lease.  It is empty for gates that keep no such balance."""
    state = getattr(window.guard.state, "gate", None)
    found: dict[str, int] = {}
    for client in clients:
        units = _credit(state, client.id)
        if units is not None:
            found[client.name] = max(units, found.get(client.name, units))
    return found


def _credit(state: object, client: int) -> int | None:
    match state:
        case DeficitState() if client < len(state.q):
            return int(state.q[client])
        case HierarchicalState() if client < len(state.node):
            return min(int(state.q[node]) for node in state.path(client) if node != NO_GROUP)
        case _:
            return None


def _why(window: Window, request: Request, now_ns: int, store_away: bool) -> Why | None:
    policy, state = window.guard.policy, window.guard.state
    if not any(server.up for server in window.servers.present):
        return "no server"
    if not isinstance(policy, Explains):
        return None
    if request.id not in state.queue.entries:
        return "own calls"
    why = policy.wait_reason(state, empty_worker(now_ns, window.tokens, window.tokens), request.id)
    if why == "gate":
        return "store" if store_away else "credit"
    return "order" if why == "order" else "room"
