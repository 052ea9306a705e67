"""Prefill and decode workers in runs under one deficit for both; what bounds them is S-gap, S-U-prefill, S-U-decode."""

import pytest
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import WorkerState
from fairsched.policies.gates import GlobalDeficitGate
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance import WorkerPlay

pytestmark = pytest.mark.kept

LATENCY = PRESETS["llama-3.1-8b-a100"]
OUTPUTS = (16, 112)


def _both_wait(each: int) -> Workload:
    """Two clients send all at once, with prompts of 64 tokens of their own and outputs of either length."""
    jobs = []
    for i in range(2 * each):
        output = OUTPUTS[i % 2]
        prompt = Prompt.from_keys([-1 - 64 * i - k for k in range(64)])
        jobs.append(Job(Request(i, i % 2, 0, prompt, output), output))
    return Workload("both-wait", tuple(jobs), (Client(0, "short"), Client(1, "long")))


def _run(policy: str, each: int = 200, memory: int = 4_000, **params: int) -> Run:
    fleet = (WorkerSpec(LATENCY, memory, role="prefill"), WorkerSpec(LATENCY, memory, role="decode"))
    return simulate(_both_wait(each), policy, "jsq-split", cluster=Cluster(LATENCY, fleet), params=params)


def test_a_run_is_judged_by_the_bound_of_both_phases() -> None:
    """The bound holds and binds: under a tenth of what the busiest client got; first come first served breaks it."""
    fair = _run("dlpm-global", quantum=256, in_flight_cap_tokens=500)
    assert fair.measures.finished == 400
    assert fair.gap_scope == "cluster"
    assert fair.service_gap_bound is not None
    assert fair.cluster_gap is not None
    assert fair.cluster_gap.cost <= fair.service_gap_bound
    assert fair.bound_over_busiest is not None
    assert fair.bound_over_busiest < 0.1
    assert not [name for name, finding in fair.assumptions.items() if finding.violated]
    for other in (_run("fcfs"), _run("dlpm", quantum=256, in_flight_cap_tokens=500)):
        assert other.cluster_gap is not None
        assert other.cluster_gap.cost > 5 * fair.service_gap_bound


@pytest.mark.parametrize("memory", [400, 1_000, 4_000])
def test_shared_credit_never_stands_still_on_split_workers(memory: int) -> None:
    """KV that waits for credit gives way in the end, however small the memory: every request ends."""
    run = _run("dlpm-global", each=60, memory=memory, quantum=64)
    assert run.measures.finished == 120
    assert run.cluster_gap is not None
    assert run.service_gap_bound is not None
    assert run.cluster_gap.cost <= run.service_gap_bound


def test_a_client_s_landed_requests_go_before_its_others() -> None:
    """A prefill worker passes over a client whose KV waits for credit elsewhere, and takes another one's request."""
    policy = LOCAL_POLICIES["dlpm-global"]
    play = WorkerPlay(policy, WorkerState(0, 1_000))
    for client in (0, 0, 1):
        request = Request(len(play.worker.queue), client, 0, Prompt.from_keys([-1 - len(play.worker.queue)]), 4)
        play.arrive(request, 4, 0)
    assert isinstance(policy.gate, GlobalDeficitGate)
    play.state = replace(play.state, gate=policy.gate.held(play.state.gate, 0, 1))
    assert [admission.client for admission in play.decide(0).admit] == [1]
