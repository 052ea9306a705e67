"""Small worlds: one worker, a few requests, and a clock that ticks once a step."""

from collections.abc import Iterable
from pathlib import Path

from fairsched.engines.analysis import run_charging
from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Event
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.service import Table, backlogs, charges, concatenate, service_gap, tables
from fairsched.model.service.received import service_lag
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.policies.routers import RoundRobin

REPLAYS = Path(__file__).parents[1] / "replays"


def latency_of(
    step_ns: int,
    *,
    prefill_token_ns: int = 0,
    request_ns: int = 0,
    context_token_ns: int = 0,
    kv_capacity_tokens: int = 16,
) -> LatencyModel:
    """Steps of integer times, small enough to be worked out by hand."""
    decode = (DecodePiece(1, step_ns, context_token_ns, request_ns),)
    return LatencyModel("test", "made for tests", step_ns, prefill_token_ns, 0, decode, kv_capacity_tokens)


UNIT = latency_of(1)
"""Every step takes one nanosecond, so that times are steps."""


def job(
    request_id: int,
    client: int,
    at: int,
    prompt: int | Prompt,
    declared: int,
    output: int | None = None,
    after: tuple[int, ...] = (),
) -> Job:
    """A request that arrives at a step; its output is what it declares unless said otherwise."""
    content = prompt if isinstance(prompt, Prompt) else Prompt(tokens=prompt)
    request = Request(id=request_id, client=client, arrival_ns=at, prompt=content, max_output_tokens=declared)
    return Job(request=request, output_tokens=declared if output is None else output, after=after)


def world(jobs: Iterable[Job], names: Iterable[str] = "fgh") -> Workload:
    """A workload of these jobs, in order of arrival."""
    ordered = sorted(jobs, key=lambda each: (each.request.arrival_ns, each.request.id))
    return Workload("world", tuple(ordered), tuple(Client(i, name) for i, name in enumerate(names)))


def policy(name: str, **params: object) -> ComposedPolicy:
    """A shipped policy with parameters."""
    return with_parameters(LOCAL_POLICIES[name], {key: str(value) for key, value in params.items()})


def run(workload: Workload, chosen: ComposedPolicy, kv_capacity_tokens: int, *, leap: bool = False) -> list[Event]:
    """The events of a run in which every step takes one nanosecond."""
    return simulate_events(workload, chosen, RoundRobin(), UNIT, kv_capacity_tokens=kv_capacity_tokens, leap=leap)


def _charged(workload: Workload, chosen: ComposedPolicy, events: list[Event]) -> tuple[Table, Table]:
    trace = concatenate([tables(events)])
    charging = run_charging(chosen, workload.clients)
    assert charging is not None
    return charges(trace, charging), backlogs(trace)


def lag(workload: Workload, chosen: ComposedPolicy, events: list[Event], ahead: int, behind: int) -> list[list[int]]:
    """Rows (step, largest W_ahead - W_behind so far while `behind` was backlogged), whenever it grew."""
    rows: list[list[int]] = service_lag(*_charged(workload, chosen, events), 0, ahead, behind).tolist()
    return rows


def gap(workload: Workload, chosen: ComposedPolicy, events: list[Event]) -> int:
    """The largest service gap between two clients while both were backlogged."""
    return service_gap(*_charged(workload, chosen, events)).cost
