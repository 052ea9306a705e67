"""Any two routers before split workers pass the battery; a pair that is wrong in one way does not."""

from itertools import product
from random import Random

import attrs
import pytest
from hypothesis import Phase, settings
from msgspec.structs import replace

from fairsched.model.events import Event, TransferFailed
from fairsched.model.plan import ClusterPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.view import ClusterView
from fairsched.policies.registry import ROUTERS
from fairsched.policies.routers import SplitPhases
from fairsched.policies.routers.phases.split import AnyState
from fairsched.verify.conformance import check_router
from fairsched.verify.conformance.router import RouterMachine

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


@attrs.frozen
class Keeping(SplitPhases):
    """Never sends what is staged."""

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        return ClusterPlan(), state


@attrs.frozen
class Deaf(SplitPhases):
    """Does not hear that a transfer failed."""

    def observe(self, state: AnyState, event: Event) -> AnyState:
        return state if isinstance(event, TransferFailed) else super().observe(state, event)


@attrs.frozen
class Twice(SplitPhases):
    """Sends what is staged, and forgets that it did."""

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        plan, _ = super().decide(state, view)
        return plan, state


@attrs.frozen
class Astray(SplitPhases):
    """Sends what is staged to a worker that is not there."""

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        plan, after = super().decide(state, view)
        return ClusterPlan((), tuple(replace(each, target=99) for each in plan.migrations)), after


BAD: dict[type[SplitPhases], str] = {
    Keeping: "never end",
    Twice: "is not at worker|on its way already",
    Astray: "cannot go to worker 99",
}


@pytest.mark.parametrize("bad", BAD)
def test_the_battery_finds_what_is_wrong_between_phases(bad: type[SplitPhases]) -> None:
    """Three pairs, each wrong in one way, are found out by the claim that they break."""
    generate = settings(max_examples=300, stateful_step_count=25, phases=(Phase.generate,), report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=BAD[bad]):
        check_router(bad(), generate)


@pytest.mark.parametrize(("router", "ends"), [(SplitPhases(), True), (Deaf(), False)], ids=["split", "deaf"])
def test_a_transfer_that_failed_and_is_not_sent_again_is_found(router: SplitPhases, ends: bool) -> None:
    """The link of the only transfer fails: a pair that does not hear of it leaves the request where it is for ever."""
    machine = type("Played", (RouterMachine,), {"router": router})()
    machine.open(["prefill", "decode"], 40)
    machine.arrive([Request(0, 0, 0, Prompt(6), 5)], 0)
    machine.work(0, 3, True)
    machine.cut(0)
    if ends:
        machine.settle()
        assert machine.over == {0}
    else:
        with pytest.raises(AssertionError, match="never end"):
            machine.settle()
