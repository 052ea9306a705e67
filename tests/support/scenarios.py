"""Small worlds in which a claim is shown false: one worker, a few requests, and a clock that ticks once a step.

A replay in tests/replays is such a world as JSON: its requests, and for each policy the log of the run.  Rows of
`jobs` are id, client, step of arrival, prompt tokens, declared output, true output, and the ids it comes after.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fairsched.engines.analysis import run_charging
from fairsched.engines.logs import CanonicalLog
from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Admitted, Event
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


class ReplayRun(msgspec.Struct, frozen=True):
    """A policy over the world, and the lines of its canonical log."""

    policy: str
    params: dict[str, str]
    log: list[list[Any]]


class Replay(msgspec.Struct, frozen=True):
    """A counterexample as data."""

    claim: str
    kv_capacity_tokens: int
    clients: list[str]
    jobs: list[tuple[int, int, int, int, int, int, tuple[int, ...]]]
    runs: list[ReplayRun]

    def workload(self) -> Workload:
        """The requests of the world."""
        jobs = [job(i, client, at, prompt, most, true, after) for i, client, at, prompt, most, true, after in self.jobs]
        return world(jobs, self.clients)

    def run(self, policy: str) -> ReplayRun:
        """The run of a policy."""
        return next(run for run in self.runs if run.policy == policy)


def load_replay(name: str) -> Replay:
    """The replay of that name."""
    return msgspec.json.decode((REPLAYS / f"{name}.json").read_bytes(), type=Replay)


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


def log_lines(events: list[Event]) -> list[list[Any]]:
    """The canonical log as JSON values."""
    lines: list[list[Any]] = []
    log = CanonicalLog(lambda _, line: lines.append(msgspec.json.decode(line)))
    log.record(events)
    log.sha256()
    return lines


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


def admitted(events: list[Event]) -> dict[int, int]:
    """The step at which each request was admitted."""
    return {event.request_id: event.time_ns for event in events if isinstance(event, Admitted)}
