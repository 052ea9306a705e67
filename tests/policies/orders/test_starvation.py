"""How far orders let a request fall behind, and what a gate makes of it, in worlds that can be counted."""

import pytest

import fairsched as fs
from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Finished
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters

LATENCY = "llama-3.2-3b-a10g"


def answered_before(policy: str, stream: int, client: int = 1) -> int:
    """How many of a stream of client 0 with one prompt are answered before a cold, longer request of `client` that
    came second."""
    requests = [fs.Request(i, 0, 0, fs.Prompt.from_keys(range(64)), 1) for i in range(stream + 1)]
    requests[1] = fs.Request(1, client, 0, fs.Prompt.from_keys(range(1000, 1128)), 1)
    jobs = [fs.Job(request, output_tokens=1) for request in requests]
    workload = fs.Workload("stream", jobs, (fs.Client(0, "many"), fs.Client(1, "one")))
    quantum = {"quantum": "128"} if policy == "dlpm" else {}
    chosen = with_parameters(LOCAL_POLICIES[policy], {"max_running": "1", **quantum})
    events = simulate_events(workload, chosen, fs.RoundRobin(), fs.latency_model(LATENCY))
    return [event.request_id for event in events if isinstance(event, Finished)].index(1)


@pytest.mark.parametrize("policy", ["shortest-prompt", "lpm"])
def test_open_orders_starve_a_cold_request(policy: str) -> None:
    """The whole stream passes it, however long the stream is."""
    assert [answered_before(policy, stream) for stream in (100, 200)] == [100, 200]


@pytest.mark.parametrize(("policy", "place"), [("fcfs", 1), ("vtc", 1), ("dlpm", 22)])
def test_arrival_order_and_gates_serve_a_cold_request(policy: str, place: int) -> None:
    """A stream of another client passes it a constant number of times."""
    assert [answered_before(policy, stream) for stream in (100, 200)] == [place, place]
