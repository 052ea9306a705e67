"""Waits and service out of a run's own event log: exactly what `compare` measured, or a live engine could have."""

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import msgspec
import numpy as np

from fairsched.engines.analysis.assumptions import log_assumptions, log_limits, run_charging
from fairsched.engines.analysis.audit.evidence import Calls, Evidence
from fairsched.engines.analysis.outcomes import EventTables, Outcomes
from fairsched.engines.logs import LogHeader, LogReader
from fairsched.engines.logs.access import UNKNOWN, Outcome
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Event,
    Finished,
    Migrated,
    Rejected,
    Settled,
)
from fairsched.model.pricing import COMMON, charged_tokens, multipliers
from fairsched.model.request import Job, Workload
from fairsched.model.service import Charging, Ints, Table, Tables, backlogs, charges, corrections
from fairsched.policies.base import AnyLocalPolicy

_PROGRESS_EVERY = 1_000

BuildPolicy = Callable[[LogHeader], AnyLocalPolicy | None]
"""Makes the policy that a log's header names; None where it is not there, which costs the bound."""


def read_run_log(
    path: Path, build_policy: BuildPolicy, progress: Callable[[int], None] | None = None
) -> tuple[Evidence, Workload]:
    """What a run's log shows, and the workload that it served.

    `progress` is told how many lines were read, in each of two passes over the log where a policy promises something:
    what is promised depends on all requests.  Raises `LogError`.
    """
    log = LogReader(path)
    policy = build_policy(log.header)
    trace, changed = _read(log, progress)
    workload = _workload(log, trace)
    run, limits, charging, bound = log.header.run, None, None, None
    if policy is not None:
        limits = log_limits(log, policy, run.workers)
        charging = run_charging(policy, log.clients)
    if charging is None:
        # No client was charged: computed tokens at rates 1 and 2, as in a comparison.
        charging = Charging(COMMON, "extend", multipliers([client.weight for client in log.clients]))
    if policy is not None and limits is not None and not changed and run.lease is None:
        bound = policy.guarantee.service_gap_bound(workload.clients, limits)
    evidence = Evidence(
        path=path,
        kind="run log",
        about=f"{run.policy} behind {run.router}, {run.workers} worker(s), workload {run.workload}",
        clients=workload.clients,
        calls=_calls(Outcomes(workload, trace), trace, charging),
        charged=charges(trace, charging),
        waited=backlogs(trace),
        charging=charging,
        workers=run.workers,
        bound=bound,
        scope="worker" if limits is None or limits.workers == 1 else "cluster",
        notes=tuple(_notes(log, policy, changed)),
    )
    if policy is not None and limits is not None and limits.workers == 1:
        found = log_assumptions(log, policy, limits, _told(log, progress))
        bound = None if bound is None else bound + found.widening
        evidence = attrs.evolve(evidence, assumptions=found.findings, bound=bound, excuses=found.excuses())
    return evidence, workload


def _told(log: LogReader, progress: Callable[[int], None] | None) -> Iterator[Event]:
    for number, event in log:
        if progress is not None and not number % _PROGRESS_EVERY:
            progress(number)
        yield event


def _read(log: LogReader, progress: Callable[[int], None] | None) -> tuple[Tables, bool]:
    """The events as tables, and whether a weight changed on the way."""
    found, changed = EventTables(), False
    for event in _told(log, progress):
        if type(event) is ClientConfigured:
            changed |= log.clients[event.client].weight != event.weight
        found.add((event,))
    return found.whole(), changed


def _workload(log: LogReader, trace: Tables) -> Workload:
    """The requests of the log, in order of arrival, with the outputs that they had."""
    ended = dict(zip(trace[Finished]["request_id"].tolist(), trace[Finished]["output_tokens"].tolist(), strict=True))

    def known(job: Job) -> Job:
        # A server behind a gateway may have produced more than was asked for, or nothing.
        output = min(max(ended.get(job.request.id, job.output_tokens), 1), job.request.max_output_tokens)
        return job if output == job.output_tokens else msgspec.structs.replace(job, output_tokens=output)

    jobs = sorted(map(known, log.jobs.values()), key=lambda job: (job.request.arrival_ns, job.request.id))
    return Workload(log.header.run.workload, tuple(jobs), tuple(log.clients))


def _calls(outcomes: Outcomes, trace: Tables, charging: Charging) -> Calls:
    """The requests, on the clock of the log; a call that was never sent came and went when it was cancelled."""

    def absolute(times: Ints) -> Ints:
        return np.where(times == UNKNOWN, UNKNOWN, times + outcomes.origin)

    end = absolute(outcomes.ended)
    arrival = outcomes.arrival + outcomes.origin
    given_up = np.where(outcomes.cancelled, Outcome.CANCELLED, Outcome.FINISHED)
    unsaid, none = np.full_like(arrival, UNKNOWN), np.zeros_like(arrival)
    return Calls(
        number=outcomes.ids,
        file=none,
        client=outcomes.client,
        arrival_ns=np.where((outcomes.times(Arrived) == UNKNOWN) & (end != UNKNOWN), end, arrival),
        served_ns=absolute(outcomes.times(Admitted)),
        first_ns=absolute(outcomes.first),
        end_ns=np.maximum(end, absolute(outcomes.times(Rejected))),
        cost=_costs(outcomes, trace, charging),
        outcome=np.where(outcomes.rejected, Outcome.REJECTED, given_up),
        attempt=none,
        model=unsaid,
        worker=unsaid,
        status=unsaid,
        margin_ns=none,
        untold=none,
    )


def _costs(outcomes: Outcomes, trace: Tables, charging: Charging) -> Ints:
    """What each request was charged in all: its admissions, what was given back, and its outputs."""

    def rows(table: Table) -> Ints:
        return outcomes.row(table["request_id"])

    rates, percent = charging.rates, charging.percent
    admitted = trace[Admitted]
    never = np.ones(len(outcomes.client), dtype=np.bool_)
    never[rows(admitted)] = False
    ended = np.maximum(outcomes.ended, np.where(outcomes.rejected, 0, UNKNOWN)) != UNKNOWN
    output = outcomes.output.copy()
    output[rows(trace[Cancelled])] = trace[Cancelled]["generated_tokens"]
    output[rows(trace[Rejected])] = 0
    cost = output * rates.output
    tokens = charged_tokens(admitted["extend_tokens"], admitted["cached_prefix_tokens"], percent)
    np.add.at(cost, rows(admitted), tokens * rates.input)
    np.add.at(cost, rows(trace[Settled]), corrections(trace, percent) * rates.input)
    for kind in (Cancelled, Migrated):
        np.add.at(cost, rows(trace[kind]), -trace[kind]["uncomputed_tokens"] * rates.input)
    waits = never & ~ended
    cost[waits] += outcomes.prompt[waits] * rates.input
    return cost


def _notes(log: LogReader, policy: AnyLocalPolicy | None, changed: bool) -> list[str]:
    said = []
    if log.footer is None:
        said.append("The log has no last line: the run was interrupted, or is still going on.")
    elif log.changed is not None:
        said.append(f"The log is not what was written: {log.changed}.")
    if policy is None:
        said.append(f"The policy {log.header.run.policy} is not to be had here, so nothing is known of its bound.")
    elif policy.shared_credit is not None and log.header.run.workers > 1:
        said.append("The workers share credit, and a log does not tell who used it first: no assumption is checked.")
    if changed:
        said.append("Weights changed on the way: shares are by the first, and the gap is held to no bound.")
    return said
