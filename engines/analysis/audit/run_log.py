"""Waits and service out of a run's own event log: exactly what `compare` measured, or a live engine could have.

The logs of several gateways before the same servers are one run, with a worker for each: `read_gateway_logs`.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from pathlib import Path

import attrs
import msgspec
import numpy as np

from fairsched.engines.analysis.assumptions import log_assumptions, log_limits, run_charging
from fairsched.engines.analysis.audit.evidence import APART_NS, AuditRun, Calls
from fairsched.engines.analysis.outcomes import EventTables, Outcomes
from fairsched.engines.logs import LogError, LogHeader, LogReader
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model import events as ev
from fairsched.model.pricing import COMMON, charged_tokens, multipliers
from fairsched.model.request import Client, Job, Workload
from fairsched.model.service import Charging, Ints, Table, Tables, backlogs, charges, concatenate, corrections
from fairsched.policies.base import AnyLocalPolicy

PIECES_MAX = 1 << 20
_PROGRESS_EVERY = 1_000

BuildPolicy = Callable[[LogHeader], AnyLocalPolicy | None]
"""Makes the policy that a log's header names; None where it is not there, which costs the bound."""


def read_run_log(
    path: Path, build_policy: BuildPolicy, progress: Callable[[int], None] | None = None
) -> tuple[AuditRun, Workload]:
    """Return what a run's log shows, and the workload that it served.

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
    charging = _charging(charging, log.clients)
    if policy is not None and limits is not None and not changed and run.lease is None:
        bound = policy.guarantee.service_gap_bound(workload.clients, limits)
    evidence = AuditRun(
        path=path,
        kind="run log",
        about=f"{run.policy} behind {run.router}, {run.workers} worker(s), workload {run.workload}",
        clients=workload.clients,
        calls=_calls(Outcomes(workload, trace), trace, charging),
        charged=charges(_spread(trace), charging),
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


def _charging(charging: Charging | None, clients: Sequence[Client]) -> Charging:
    """Return where no client was charged: computed tokens at rates 1 and 2, as in a comparison."""
    return charging or Charging(COMMON, "extend", multipliers([client.weight for client in clients]))


@attrs.frozen
class _GatewayLog:
    """The log of one gateway, read; with what a pair of its clients was given back, if its policy promises a bound."""

    log: LogReader
    policy: AnyLocalPolicy | None
    trace: Tables
    changed: bool
    bound: int | None
    widening: int


def _read_gateway(path: Path, build_policy: BuildPolicy, told: Callable[[int], None] | None) -> _GatewayLog:
    log = LogReader(path)
    run, policy = log.header.run, build_policy(log.header)
    if run.begun_ns is None or run.workers != 1:
        raise LogError(path, 1, "run.begun_ns", "the log of a gateway, to be audited together with those of others")
    trace, changed = _read(log, told)
    bound, widening = None, 0
    if policy is not None and run.lease is not None:
        limits = log_limits(log, policy, run.workers)
        if limits is not None:
            bound = policy.guarantee.service_gap_bound(tuple(log.clients), limits)
            widening = log_assumptions(log, policy, limits, _told(log, told)).widening
    return _GatewayLog(log, policy, trace, changed, bound, widening)


def read_gateway_logs(
    paths: Sequence[Path], build_policy: BuildPolicy, progress: Callable[[int], None] | None = None
) -> tuple[AuditRun, Workload]:
    """Return what the logs of several gateways show together, each of which is a worker, and what they served.

    Events stand in the order of the gateways' clocks.  The bound is that of all gateways of one account, and what each
    gave back to two clients widens it; none where gateways have no account, or a log of one is missing.  Clients are
    known by name.  Raises `LogError`, also for logs that are not of gateways, or of gateways with other terms.
    """
    read = [_read_gateway(path, build_policy, progress) for path in paths]
    first = read[0].log.header.run
    for other in read[1:]:
        run = other.log.header.run
        for field in ("policy", "params", "lease"):
            if getattr(run, field) != getattr(first, field):
                said = f"as in {paths[0].name}: {getattr(first, field)}"
                raise LogError(other.log.path, 1, f"run.{field}", said, str(getattr(run, field)))
    clients = _clients(read)
    weights = {(client.name, client.weight) for each in read for client in each.log.clients}
    changed = any(each.changed for each in read) or len(weights) > len(clients)
    trace, jobs, of_log, offsets = _together(read, {client.name: client.id for client in clients})
    workload = Workload(first.workload, jobs, clients)
    policy = read[0].policy
    charging = _charging(None if policy is None else run_charging(policy, clients), clients)
    bounds = [each.bound for each in read]
    holders = 0 if first.lease is None else first.lease.holders
    bound = None
    if not changed and len(read) >= holders > 0 and None not in bounds:
        bound = max(filter(None, bounds)) + sum(each.widening for each in read)
    calls = _calls(Outcomes(workload, trace), trace, charging)
    evidence = AuditRun(
        path=paths[0],
        kind="run logs",
        about=f"and {len(paths) - 1} more: {first.policy} at {len(paths)} gateways",
        clients=clients,
        calls=attrs.evolve(calls, number=calls.number - offsets[of_log], file=of_log),
        charged=charges(_spread(trace), charging),
        waited=backlogs(trace),
        charging=charging,
        workers=len(paths),
        bound=bound,
        scope="cluster",
        files=tuple(paths),
        upstreams=tuple(path.name for path in paths),
        zone=UTC,
        notes=tuple(_gateway_notes(read, holders, changed)),
    )
    return evidence, workload


def _clients(read: Sequence[_GatewayLog]) -> tuple[Client, ...]:
    """Return the clients of all logs by name, with new numbers; weights as the first log has them."""
    found: dict[str, Client] = {}
    for each in read:
        for client in each.log.clients:
            found.setdefault(client.name, msgspec.structs.replace(client, id=len(found)))
    return tuple(found.values())


def _together(read: Sequence[_GatewayLog], numbers: dict[str, int]) -> tuple[Tables, tuple[Job, ...], Ints, Ints]:
    """Return the events of all logs in the order of their times, each log a worker; the requests in order of arrival,
    with the log of each, and what was added to the numbers of each log's requests."""
    pieces: list[Tables] = []
    rows: list[tuple[Job, int]] = []
    offsets = np.zeros(len(read), dtype=np.int64)
    next_id = 0
    for i, each in enumerate(read):
        offsets[i], begun = next_id, each.log.header.run.begun_ns or 0
        client = np.array([numbers[client.name] for client in each.log.clients], dtype=np.int64)
        pieces.append({kind: _moved(table, i, begun, client, next_id) for kind, table in each.trace.items()})
        for job in _workload(each.log, each.trace).jobs:
            told = job.request
            request = msgspec.structs.replace(
                told, id=told.id + next_id, client=int(client[told.client]), arrival_ns=told.arrival_ns + begun
            )
            rows.append((msgspec.structs.replace(job, request=request), i))
        next_id += max(each.log.jobs, default=-1) + 1
    rows.sort(key=lambda row: (row[0].request.arrival_ns, row[0].request.id))
    of_log = np.array([i for _, i in rows], dtype=np.int64)
    return _in_order(pieces), tuple(job for job, _ in rows), of_log, offsets


def _moved(table: Table, worker: int, begun_ns: int, client: Ints, next_id: int) -> Table:
    """Return a table of one gateway with the numbers and times of all."""
    moved = dict(table)
    moved["time_ns"] = table["time_ns"] + begun_ns
    moved["worker"] = np.where(table["worker"] < 0, table["worker"], worker)
    if "client" in table:
        moved["client"] = client[table["client"]]
    if "request_id" in table:
        moved["request_id"] = table["request_id"] + next_id
    return moved


def _in_order(pieces: Sequence[Tables]) -> Tables:
    """Return all events with positions in the order of their times; of one time, a log's are together and in its
    order."""
    positions, times = [], []
    for piece in pieces:
        both = [np.concatenate([table[name] for table in piece.values()]) for name in ("position", "time_ns")]
        position, first = np.unique(both[0], return_index=True)
        positions.append(position)
        times.append(both[1][first])
    sizes = [len(position) for position in positions]
    # A log's positions grow with its times, and `lexsort` is stable.
    order = np.lexsort((np.concatenate(times),))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    ranks = np.split(rank, np.cumsum(sizes)[:-1])
    placed = [
        {kind: t | {"position": mine[np.searchsorted(position, t["position"])]} for kind, t in piece.items()}
        for piece, position, mine in zip(pieces, positions, ranks, strict=True)
    ]
    found = {}
    for kind, table in concatenate(placed).items():
        by_position = np.argsort(table["position"], kind="stable")
        found[kind] = {name: column[by_position] for name, column in table.items()}
    return found


def _gateway_notes(read: Sequence[_GatewayLog], holders: int, changed: bool) -> Iterator[str]:
    yield "Events are in the order of the machines' clocks: the gap may be off by what is served while they differ."
    for each in read:
        name = each.log.path.name
        if each.log.footer is None:
            yield f"The log {name} has no last line: its gateway was killed, or still runs."
        elif each.log.changed is not None:
            yield f"The log {name} is not what was written: {each.log.changed}."
    if not holders:
        yield "The gateways share no account: the gap of all is held to no bound."
    elif len(read) < holders:
        yield f"{holders} gateways may share the account, and there are {len(read)} logs: the gap is held to no bound."
    else:
        yield "The bound is without what faults of gateways and of their store cost, which their page says."
    if changed:
        yield "Weights changed on the way, or differ: shares are by the first, and the gap is held to no bound."


def _told(log: LogReader, progress: Callable[[int], None] | None) -> Iterator[ev.Event]:
    for number, event in log:
        if progress is not None and not number % _PROGRESS_EVERY:
            progress(number)
        yield event


def _read(log: LogReader, progress: Callable[[int], None] | None) -> tuple[Tables, bool]:
    """Return the events as tables, and whether a weight changed on the way."""
    found, changed = EventTables(), False
    for event in _told(log, progress):
        if type(event) is ev.ClientConfigured:
            changed |= log.clients[event.client].weight != event.weight
        found.add((event,))
    return found.whole(), changed


def _workload(log: LogReader, trace: Tables) -> Workload:
    """Return the requests of the log, in order of arrival, with the outputs that they had."""
    ended = dict(
        zip(trace[ev.Finished]["request_id"].tolist(), trace[ev.Finished]["output_tokens"].tolist(), strict=True)
    )

    def known(job: Job) -> Job:
        # A server behind a gateway may have produced more than was asked for, or nothing.
        output = min(max(ended.get(job.request.id, job.output_tokens), 1), job.request.max_output_tokens)
        return job if output == job.output_tokens else msgspec.structs.replace(job, output_tokens=output)

    jobs = sorted(map(known, log.jobs.values()), key=lambda job: (job.request.arrival_ns, job.request.id))
    return Workload(log.header.run.workload, tuple(jobs), tuple(log.clients))


def _spread(trace: Tables) -> Tables:
    """Return the trace with each run of decode steps in pieces of `APART_NS`, or of longer where they are too many.

    A run is one event, at its end, and its tokens come evenly.  The pieces keep its position, and the end comes first.
    """
    decoded = trace[ev.Decoded]
    steps = [trace[kind] for kind in (ev.Admitted, ev.Prefilled, ev.Decoded)]
    keys, times = (np.concatenate([read(table) for table in steps]) for read in (_worker_place, _time))
    order = np.argsort(keys, kind="stable")
    keys, times = keys[order], times[order]
    before = np.searchsorted(keys, _worker_place(decoded)) - 1
    known = (before >= 0) & (keys[before] >> 44 == decoded["worker"])
    length = np.where(known & (decoded["steps"] > 1), decoded["time_ns"] - times[before], 0)
    apart_ns = max(APART_NS, int(length.sum(dtype=np.float64) / PIECES_MAX))
    pieces = np.maximum(np.minimum(-(-length // apart_ns), decoded["steps"]), 1)
    which = np.repeat(np.arange(len(pieces)), pieces)
    back = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    found = {name: column[which] for name, column in decoded.items()}
    of, count = found["tokens"], pieces[which]
    found["tokens"] = of * (count - back) // count - of * (count - back - 1) // count
    found["time_ns"] = found["time_ns"] - back * (length // pieces)[which]
    return {**trace, ev.Decoded: found}


def _worker_place(table: Table) -> Ints:
    place: Ints = (table["worker"] << 44) + table["position"]
    return place


def _time(table: Table) -> Ints:
    return table["time_ns"]


def _calls(outcomes: Outcomes, trace: Tables, charging: Charging) -> Calls:
    """Return the requests, on the clock of the log; a call that was never sent came and went when it was cancelled."""

    def absolute(times: Ints) -> Ints:
        return np.where(times == UNKNOWN, UNKNOWN, times + outcomes.origin)

    end = absolute(outcomes.ended)
    arrival = outcomes.arrival + outcomes.origin
    given_up = np.where(outcomes.cancelled, Ending.CANCELLED, Ending.FINISHED)
    unsaid, none = np.full_like(arrival, UNKNOWN), np.zeros_like(arrival)
    return Calls(
        number=outcomes.ids,
        file=none,
        client=outcomes.client,
        arrival_ns=np.where((outcomes.times(ev.Arrived) == UNKNOWN) & (end != UNKNOWN), end, arrival),
        served_ns=absolute(outcomes.times(ev.Admitted)),
        first_ns=absolute(outcomes.first),
        end_ns=np.maximum(end, absolute(outcomes.times(ev.Rejected))),
        cost=_costs(outcomes, trace, charging),
        outcome=np.where(outcomes.rejected, Ending.REJECTED, given_up),
        attempt=none,
        model=unsaid,
        worker=unsaid,
        status=unsaid,
        margin_ns=none,
        untold=none,
        doubtful=none,
    )


def _costs(outcomes: Outcomes, trace: Tables, charging: Charging) -> Ints:
    """Return what each request was charged in all: its admissions, what was given back, and its outputs."""

    def rows(table: Table) -> Ints:
        return outcomes.row(table["request_id"])

    rates, percent = charging.rates, charging.percent
    admitted = trace[ev.Admitted]
    never = np.ones(len(outcomes.client), dtype=np.bool_)
    never[rows(admitted)] = False
    ended = np.maximum(outcomes.ended, np.where(outcomes.rejected, 0, UNKNOWN)) != UNKNOWN
    output = outcomes.output.copy()
    output[rows(trace[ev.Cancelled])] = trace[ev.Cancelled]["generated_tokens"]
    output[rows(trace[ev.Rejected])] = 0
    cost = output * rates.output
    tokens = charged_tokens(admitted["extend_tokens"], admitted["cached_prefix_tokens"], percent)
    np.add.at(cost, rows(admitted), tokens * rates.input)
    np.add.at(cost, rows(trace[ev.Settled]), corrections(trace, percent) * rates.input)
    for kind in (ev.Cancelled, ev.Migrated):
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
    if log.header.run.lease is not None:
        said.append("Several gateways share the credit, and the log is one's: the gap of its part is held to no bound.")
    if changed:
        said.append("Weights changed on the way: shares are by the first, and the gap is held to no bound.")
    return said
