"""Every shipped policy that holds requests passes the battery, and the battery finds what is wrong."""

import attrs
import pytest
from hypothesis import Phase, settings

from fairsched.model.plan import ClusterPlan, Dispatch
from fairsched.model.view import ClusterView
from fairsched.policies.base import AnyClusterPolicy, Router
from fairsched.policies.placement import Aladdin
from fairsched.policies.placement.aladdin.placement_state import AladdinState
from fairsched.policies.registry import CLUSTER_POLICIES, router_with
from fairsched.verify.conformance.router import check_cluster_policy

HOLDING = {name: policy for name, policy in CLUSTER_POLICIES.items() if not isinstance(policy, Router)}
VARIANTS: dict[str, AnyClusterPolicy] = {
    "aladdin without patience": router_with(
        HOLDING["aladdin"], {"patience_us": "0", "errors": "rebalance", "reserve": "peaks", "slack": "ahead"}
    ),
    "aladdin under tight targets": router_with(HOLDING["aladdin"], {"ttft_us": "1", "tpot_us": "13000"}),
}


@pytest.mark.parametrize("policy", [*HOLDING.values(), *VARIANTS.values()], ids=[*HOLDING, *VARIANTS])
def test_shipped_policies_conform(policy: AnyClusterPolicy) -> None:
    """Pure, kept through JSON, sound; what is dispatched was held, once, and goes to a worker of the view."""
    check_cluster_policy(policy, settings(max_examples=15, stateful_step_count=30))


@attrs.frozen
class Astray(Aladdin):
    """Dispatches to an unknown worker."""

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        """The plan, with all dispatches to one worker too far."""
        plan, after = super().decide(state, view)
        return ClusterPlan(tuple(Dispatch(each.request_id, 99) for each in plan.dispatches)), after


def test_what_is_wrong_is_found() -> None:
    """A policy that dispatches to nowhere."""
    once = settings(max_examples=50, stateful_step_count=20, print_blob=False, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="no worker 99"):
        check_cluster_policy(Astray(), once)
