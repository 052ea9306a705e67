"""One client floods, another asks now and then: at every step of a live engine their gap is inside the bound.

The same load under policies that promise nothing passes that bound, so the test can fail.
"""

import pytest

from fairsched.engines.serving import BlockKeys, monitor_of
from fairsched.model.monitor import Monitor
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from tests.engines.serving.test_loop import engine_of

CAPACITY = 128
PAGE = 8
STEPS = 300
FAIR, UNFAIR = ("vtc", "dlpm"), ("fcfs", "lpm")


def policy_of(name: str) -> ComposedPolicy:
    """The policy with a budget and a quantum that fit so small a worker."""
    policy = with_parameters(LOCAL_POLICIES[name], {"max_batched_tokens": "32"})
    return with_parameters(policy, {"quantum": "64", "max_batched_tokens": "32"}) if name == "dlpm" else policy


def flooded(policy: ComposedPolicy, monitor: Monitor) -> None:
    """Serve the load: whenever the queue is short the flooder sends ten requests with one prefix, and the other client
    one of its own; both wait all the time.  The monitor is looked at after each step."""
    engine = engine_of(
        policy,
        kv_capacity_tokens=CAPACITY,
        block_keys=BlockKeys(PAGE, secret=b"fixed"),
        listeners=[monitor.observe_all],
    )
    sent = 0
    for step in range(STEPS):
        if sum(answer.client == 0 for answer in engine.answers.values()) < 20:
            for _ in range(10):
                engine.ask("flooder", [7] * 24 + [sent % 50, step % 50], 12)
                sent += 1
        if sum(answer.client == 1 for answer in engine.answers.values()) < 4:
            engine.ask("other", [sent % 50, step % 50] * 8, 12)
        engine.step()
        if policy.name in FAIR:
            report = monitor.report()
            assert report.gap is not None
            assert report.gap_bound is not None
            assert report.gap.cost <= report.gap_bound
            assert report.bound_violations == 0
            assert not report.violated()
    assert not engine.guard.interventions
    assert engine.executor_failures == 0


@pytest.mark.parametrize("name", [*FAIR, *UNFAIR])
def test_a_flood_is_held_to_the_bound(name: str) -> None:
    """Under VTC and DLPM no step passes the bound or breaks an assumption; under FCFS and LPM the same load does."""
    policy = policy_of(name)
    monitor = monitor_of(policy if name in FAIR else policy_of("vtc"), CAPACITY, 12)
    assert monitor is not None
    flooded(policy, monitor)
    report = monitor.report()
    assert report.gap is not None
    assert report.gap_bound is not None
    assert report.gap.cost > 0  # Both waited together.
    if name in UNFAIR:
        assert report.gap.cost > report.gap_bound
        assert report.gap_violations > 0
