"""Least loaded by KV memory: the worker with the most free memory for each request that it has.

Source: Llumnix (OSDI'24), whose released code dispatches by this rule; migration by it is `policies.llumnix`.
"""

from typing import Any, ClassVar

import attrs

from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import Router
from fairsched.policies.router import NoRouterState


def freeness(load: WorkerLoad) -> tuple[int, int]:
    """A worker's freeness as a ratio: free KV tokens less those that wait (may be below 0), and its requests.

    With no requests it is infinite.  Never divided: `freest` and `llumnix` multiply across.
    """
    return load.kv_free_tokens - load.waiting_tokens, load.waiting_requests + load.running_requests


def freest(view: ClusterView) -> int:
    """The worker with the largest freeness, one with no request before all others, the lowest id of equals.

    O(workers).
    """
    chosen, most_free, fewest = -1, 0, 0
    for load in view.workers:
        requests = load.waiting_requests + load.running_requests
        if not requests:
            return load.worker
        free = load.kv_free_tokens - load.waiting_tokens
        if chosen < 0 or free * fewest > most_free * requests:
            chosen, most_free, fewest = load.worker, free, requests
    return chosen


@attrs.frozen
class Freeness(Router[NoRouterState]):
    """The worker with the most free KV tokens, less those that wait there, for each request waiting or running; one
    with no request before all others, the lowest id of equals.  O(workers).

    Freeness is a ratio and is compared exactly, by cross multiplication, so that it orders workers strictly.
    """

    name: ClassVar[str] = "freeness"
    state_type: ClassVar[Any] = NoRouterState

    def init(self) -> NoRouterState:
        return NoRouterState()

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        return Dispatch(request.id, freest(view)), state
