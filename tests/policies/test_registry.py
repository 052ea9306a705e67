"""Policies by name: any order under any gate, and what a wrong name gets."""

from itertools import product

import pytest

from fairsched.model.request import Client
from fairsched.policies.batching import MemoryCentric
from fairsched.policies.catalog import FCFS
from fairsched.policies.gates import BoundedGate, DeficitGate
from fairsched.policies.registry import GATES, LOCAL_POLICIES, local_policy, with_parameters


@pytest.mark.parametrize(("name", "gate"), list(product(LOCAL_POLICIES, GATES)))
def test_any_order_under_any_gate(name: str, gate: str) -> None:
    """NAME+GATE has the policy's order and batching rule, the gate, and the gate's promise and nothing else of it.  A
    policy that plans whole batches refuses a gate that pauses what runs."""
    if (name, gate) in product(("s3", "pia"), ("in-batch",)):
        with pytest.raises(ValueError, match=f"{name}.in-batch: gate in-batch pauses what runs, and this policy's own"):
            local_policy(f"{name}+{gate}")
        return
    policy = local_policy(f"{name}+{gate}")
    plain = LOCAL_POLICIES[name]
    assert (policy.order, policy.batching, policy.gate) == (plain.order, plain.batching, GATES[gate])
    two = (Client(0, "a"), Client(1, "b"))
    limits = policy.guarantee.limits(10_000, 100)
    own = GATES[gate]
    bound = own.service_gap_bound(two, limits) if isinstance(own, BoundedGate) else None
    assert policy.guarantee.service_gap_bound(two, limits) == bound


def test_parameters_of_the_gate_can_be_set() -> None:
    """What NAME+GATE has for parameters is what its parts have."""
    policy = with_parameters(local_policy("lpm+deficit"), {"quantum": "77"})
    assert policy.gate == DeficitGate(quantum=77)
    with pytest.raises(ValueError, match=r"lpm\+counter.*quantum"):
        with_parameters(local_policy("lpm+counter"), {"quantum": "77"})


def test_parameters_of_another_batching_rule_can_be_set() -> None:
    """A batching rule that is given by name brings its own parameters, and only with it are they known; those that it
    shares with the policy's own rule keep their values."""
    policy = with_parameters(local_policy("fcfs"), {"batching": "memory-centric", "kv_threshold_percent": "70"})
    assert policy.batching == MemoryCentric(max_running=FCFS().batching.max_running, kv_threshold_percent=70)
    with pytest.raises(ValueError, match=r"fcfs.*kv_threshold_percent"):
        with_parameters(local_policy("fcfs"), {"kv_threshold_percent": "70"})


@pytest.mark.parametrize(
    ("name", "said"), [("lmp", "did you mean.*lpm"), ("VTC", "mean vtc"), ("lpm+deficite", "gate.*mean deficit")]
)
def test_unknown_names(name: str, said: str) -> None:
    """A name or a gate that is not there is answered with the nearest ones."""
    with pytest.raises(ValueError, match=said):
        local_policy(name)
