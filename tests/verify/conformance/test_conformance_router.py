"""Every router, and every policy that holds requests, passes its battery; one that is wrong in one way does not."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any, ClassVar

import attrs
import msgspec
import pytest
from hypothesis import Phase, settings
from msgspec.structs import replace

from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch
from fairsched.model.events import Event, TransferFailed
from fairsched.model.request import Prompt, Request
from fairsched.policies.base import AnyClusterPolicy, AnyRouter, Router
from fairsched.policies.placement import Aladdin
from fairsched.policies.registry import CLUSTER_POLICIES, ROUTERS, router_with
from fairsched.policies.routers import RoundRobin, SplitPhases, ValleyFilling
from fairsched.policies.routers.load_based import TurnState
from fairsched.verify.conformance import check_cluster_policy, check_router
from fairsched.verify.conformance.router import RouterMachine
from tests.support.policies.misbehaving import wrong

pytestmark = pytest.mark.kept

EXAMPLES = 30
STEPS = 25

VARIANTS = {
    "power-of-two by tokens": router_with(ROUTERS["power-of-two"], {"measure": "tokens", "seed": "3"}),
    "join-shortest-queue by tokens": router_with(ROUTERS["join-shortest-queue"], {"measure": "tokens"}),
    "llumnix, the waiting, at every chance": router_with(
        ROUTERS["llumnix"], {"moves": "waiting", "migrate_out_tokens": "20", "rhythm_us": "1"}
    ),
    "sal that polls always": router_with(ROUTERS["sal"], {"poll_us": "0"}),
    "sal that polls hardly ever": router_with(ROUTERS["sal"], {"poll_us": "1000000000", "decode_step_us": "1000"}),
    "sal with a short memory": router_with(ROUTERS["sal"], {"window_us": "1000"}),
    "e2 with a short memory": router_with(ROUTERS["e2"], {"window_us": "1000", "decode_share_percent": "10"}),
    "e2 by what is under way": router_with(ROUTERS["e2"], {"load_mode": "outstanding"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("router", [*ROUTERS.values(), *VARIANTS.values()], ids=[*ROUTERS, *VARIANTS])
def test_every_router_conforms(router: AnyRouter, full_budget: bool) -> None:
    """Whatever the router and its parameters: pure, to a worker that is there, kept, sound."""
    check_router(router, settings(max_examples=200 if full_budget else EXAMPLES, stateful_step_count=STEPS))


def forgetful() -> Any:
    """It keeps a mutable list beside its state, so that routing twice differs."""
    seen = list[int]()

    def route(_self: Any, _own: Any, state: TurnState, request: Request, view: ClusterView) -> Any:
        seen.append(request.id)
        return Dispatch(request.id, view.workers[len(seen) % len(view.workers)].worker), state

    return wrong(RoundRobin, route=route)


def dispatching(dispatch: Callable[[Request, ClusterView], Dispatch]) -> Any:
    """It dispatches otherwise."""
    return wrong(RoundRobin, route=lambda _self, _own, state, request, view: (dispatch(request, view), state))


def _again(_self: Any, _own: Any, state: TurnState, view: ClusterView) -> tuple[ClusterPlan, TurnState]:
    return ClusterPlan((Dispatch(0, view.workers[0].worker),)), state


class Growing(msgspec.Struct):
    """A state that can be changed."""

    placed: int = 0


@attrs.frozen
class Mutator(Router[Growing]):
    """Changes the state that it is given when a worker tells something."""

    name: ClassVar[str] = "mutator"
    state_type: ClassVar[Any] = Growing

    def init(self) -> Growing:
        return Growing()

    def observe(self, state: Growing, event: Event) -> Growing:
        state.placed += 1
        return state

    def route(self, state: Growing, request: Request, view: ClusterView) -> tuple[Dispatch, Growing]:
        return Dispatch(request.id, view.workers[0].worker), state


BAD: dict[str, tuple[Any, str]] = {
    "forgets": (forgetful(), "the same state and view gave"),
    "sends where no worker is": (dispatching(lambda request, _: Dispatch(request.id, 0)), "the view has no worker 0"),
    "dispatches another request": (
        dispatching(lambda request, view: Dispatch(request.id - 1, view.workers[0].worker)),
        "asked about request",
    ),
    "dispatches again what it was asked before": (wrong(RoundRobin, decide=_again), "holds nothing"),
    "starts anew when its state is read": (
        wrong(RoundRobin, state_from_json=lambda *_: TurnState()),
        "read as another",
    ),
    "changes the state that it is given": (Mutator, "observe changed the state"),
}
"""Routers that are wrong in one way each, and what the battery says of them."""


@pytest.mark.parametrize("bad", BAD)
def test_battery_finds_bad_routers(bad: str) -> None:
    """Six routers, each wrong in one way, are found out, each by the claim that it breaks."""
    kind, said = BAD[bad]
    generate = settings(
        max_examples=100, stateful_step_count=STEPS, phases=(Phase.generate,), report_multiple_bugs=False
    )
    with pytest.raises(AssertionError, match=said):
        check_router(kind(), generate)


# --- policies that hold requests --------------------------------------------------------------------------------------


class AllWait(ValleyFilling):
    """Every request may wait."""

    def start_ns(self, request: Request, now_ns: int) -> int:
        return super().start_ns(replace(request, priority=-1), now_ns)


HOLDING = {name: policy for name, policy in CLUSTER_POLICIES.items() if not isinstance(policy, Router)}
HOLDING_VARIANTS: dict[str, AnyClusterPolicy] = {
    "aladdin without patience": router_with(
        HOLDING["aladdin"], {"patience_us": "0", "errors": "rebalance", "reserve": "peaks", "slack": "printed"}
    ),
    "aladdin under tight targets": router_with(HOLDING["aladdin"], {"ttft_us": "1", "tpot_us": "13000"}),
    "a valley that all wait for": AllWait(prices="0:3+50:1+300:4", defer_s=99),
}


@pytest.mark.parametrize("policy", [*HOLDING.values(), *HOLDING_VARIANTS.values()], ids=[*HOLDING, *HOLDING_VARIANTS])
def test_every_policy_that_holds_requests_conforms(policy: AnyClusterPolicy) -> None:
    """Pure, kept through JSON, sound; what is dispatched was held, once, and goes to a worker of the view."""
    check_cluster_policy(policy, settings(max_examples=15, stateful_step_count=30))


def _astray(self: Any, own: Any, state: Any, view: ClusterView) -> Any:
    """What is dispatched or staged goes to a worker that is not there."""
    plan, after = own(self, state, view)
    dispatches = tuple(Dispatch(each.request_id, 99) for each in plan.dispatches)
    return ClusterPlan(dispatches, tuple(replace(each, target=99) for each in plan.migrations)), after


def test_a_policy_that_dispatches_to_nowhere_is_found() -> None:
    """It breaks the claim about workers that are there."""
    once = settings(max_examples=50, stateful_step_count=20, print_blob=False, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="no worker 99"):
        check_cluster_policy(wrong(Aladdin, decide=_astray)(), once)


SINGLE = {name: router for name, router in ROUTERS.items() if not isinstance(router, SplitPhases)}
PAIRS = list(product(SINGLE, SINGLE))
DRAWN = Random(15).sample(PAIRS, 10)


@pytest.mark.nightly
def test_pairs_of_routers_conform(full_budget: bool) -> None:
    """Pure, kept, sound, and every request ends once, whichever routers choose for the two phases: ten drawn pairs, or
    all of them."""
    for prefill, decode in PAIRS if full_budget else DRAWN:
        router = SplitPhases(prefill=SINGLE[prefill], decode=SINGLE[decode])
        check_router(router, settings(max_examples=20 if full_budget else 10, stateful_step_count=25))


def _forgets_what_it_sent(self: Any, own: Any, state: Any, view: ClusterView) -> Any:
    return own(self, state, view)[0], state


def _deaf(self: Any, own: Any, state: Any, event: Event) -> Any:
    """It does not hear that a transfer failed."""
    return state if isinstance(event, TransferFailed) else own(self, state, event)


BAD_PAIRS: dict[str, tuple[Callable[..., Any], str]] = {
    "never sends what is staged": (lambda _self, _own, state, _view: (ClusterPlan(), state), "never end"),
    "sends twice": (_forgets_what_it_sent, "is not at worker|on its way already"),
    "sends astray": (_astray, "cannot go to worker 99"),
}


@pytest.mark.parametrize("bad", BAD_PAIRS)
def test_the_battery_finds_what_is_wrong_between_phases(bad: str) -> None:
    """Three pairs, each wrong in one way, are found out by the claim that they break."""
    decide, said = BAD_PAIRS[bad]
    generate = settings(max_examples=300, stateful_step_count=25, phases=(Phase.generate,), report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=said):
        check_router(wrong(SplitPhases, decide=decide)(), generate)


@pytest.mark.parametrize("hears", [True, False])
def test_a_transfer_that_failed_and_is_not_sent_again_is_found(hears: bool) -> None:
    """The link of the only transfer fails: a pair that does not hear of it leaves the request where it is for ever."""
    router = SplitPhases() if hears else wrong(SplitPhases, observe=_deaf)()
    machine = type("Played", (RouterMachine,), {"router": router})()
    machine.open(["prefill", "decode"], 40)
    machine.arrive([Request(0, 0, 0, Prompt(6), 5)], 0)
    machine.work(0, 3, True)
    machine.cut(0)
    if hears:
        machine.settle()
        assert machine.over == {0}
    else:
        with pytest.raises(AssertionError, match="never end"):
            machine.settle()
