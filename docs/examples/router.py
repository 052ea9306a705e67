"""A router with a proof about its own code."""

from typing import Any

import attrs

from fairsched.model.decision import ClusterView, Dispatch
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.policies.base import Router
from fairsched.policies.routers.load_based import NoRouterState
from fairsched.verify.logic import ArithmeticClaim, Condition
from fairsched.verify.solvers import Proved, prove


def has_room(free: int, waiting: int, tokens: int) -> bool:
    """Whether a prompt still fits after those that wait."""
    return free - waiting >= tokens


@attrs.frozen
class FirstFit(Router[NoRouterState]):
    """The first worker that has room, or the last one."""

    name = "first-fit"
    state_type = NoRouterState

    def init(self) -> NoRouterState:
        return NoRouterState()

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        for load in view.workers:
            if has_room(load.kv_free_tokens, load.waiting_tokens, request.prompt.tokens):
                break
        return Dispatch(request.id, load.worker), state

    @classmethod
    def claims(cls) -> tuple[ArithmeticClaim, ...]:
        """What has room has room for all that waits there, and keeps it."""
        theorem = Theorem("room", "what is sent fits beside all that waits", "this page", ())

        def shows(w: Any) -> dict[str, Any]:
            if not has_room(w.free, w.waiting, w.tokens):
                return {}  # It is not sent there: nothing to show.
            return {"it fits": w.waiting + w.tokens <= w.free}

        return (ArithmeticClaim(theorem, ("free", "waiting", "tokens"), (Condition(lambda w: w.tokens >= 1),), shows),)


(claim,) = FirstFit.claims()
assert isinstance(prove(claim), Proved)
