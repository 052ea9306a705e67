"""What each worker of a run did: requests, tokens, hits, how long it was busy, and how much was where when.

Everything comes from the run's events, like the figures of clients.  A worker is *busy* while requests are in its
batch.  Its *work* is what it computed: one for each prompt token, two for each output token.  A *step* lasts from the
end of the one before, or from when a request entered an empty batch; where steps were leapt over, all of them are one.
"""

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.series import Floats, cumulative
from fairsched.model import events as ev
from fairsched.model.machine import GPUS, LatencyModel, idle_nj, mfu, step_nj
from fairsched.model.pricing import COMMON
from fairsched.model.service import Ints, Table, Tables, prompt_hits

WORKERS_SHOWN = 32
"""Workers in the plots of a run."""
WORKERS_NAMED = 8
"""Up to so many workers are told apart in plots; of more, the ones with the most and the least work."""
_QUEUE = (ev.Arrived, ev.Preempted, ev.Admitted, ev.Rejected, ev.Cancelled, ev.Migrated)
"""What makes a queue longer or shorter, beside a worker that leaves."""


@attrs.frozen
class WorkerMeasures:
    """What one worker did."""

    worker: int
    """Its number."""
    requests: int
    """Sent to it, each time."""
    finished: int
    """Ended there."""
    preemptions: int
    """Lost their memory there."""
    migrations: int
    """Left for another worker."""
    computed_tokens: int
    """Computed prompt tokens."""
    output_tokens: int
    """Output tokens."""
    work: int
    """Computed prompt tokens plus twice the output tokens."""
    prefix_hit_ratio: float | None
    """Cached tokens / tokens of prompts, of requests that were first admitted there."""
    busy_share: float | None
    """Time in which requests were in its batch / length of the run."""
    mfu: float | None
    """Model FLOPs utilization while busy: FLOPs of what it computed / peak FLOPs of its GPUs; null where unknown."""
    energy_j: float | None
    """Joules that its GPUs drew, by each step's MFU and while idle; null where the GPUs are unknown."""
    queue_mean: float | None
    """Requests that waited there, on average over the run."""


@attrs.frozen(eq=False)
class WorkerSeries:
    """Courses of the `workers` that plots show.

    All in order if there are no more than `WORKERS_NAMED`; else at most `WORKERS_SHOWN`, evenly chosen by their work,
    the most first and the least last.  Of `workers[i]` at second `seconds[k]` since the first arrival: `work[k, i]` and
    `sent[k, i]` (requests) so far, `waiting[k, i]` requests.
    """

    workers: tuple[int, ...]
    seconds: Floats
    work: Ints
    sent: Ints
    waiting: Ints


def imbalance(measures: Sequence[WorkerMeasures]) -> float | None:
    """Return the most work of a worker over the mean of all, 1 when all did the same; None if no worker did any."""
    work = [each.work for each in measures]
    return max(work) * len(work) / sum(work) if any(work) else None


def worker_figures(
    trace: Tables, workers: int, origin_ns: int, span_ns: int, latencies: Sequence[LatencyModel] = ()
) -> tuple[tuple[WorkerMeasures, ...], WorkerSeries]:
    """Return figures and courses of `workers` workers (and more, if events name them); O(events log events)."""
    count = max(workers, 1 + max(int(table["worker"].max(initial=-1)) for table in trace.values()))
    work = _work(trace)
    waiting, running = _waiting(trace), _running(trace)
    stop_ns = origin_ns + span_ns
    known, energy = _known(latencies), energy_nj(trace, latencies, origin_ns, stop_ns)
    hits = prompt_hits(trace)
    cached, context = _totals(hits, count, "cached"), _totals(hits, count, "context")
    totals = {
        "requests": _totals(trace[ev.Arrived], count),
        "finished": _totals(trace[ev.Finished], count),
        "preemptions": _totals(trace[ev.Preempted], count),
        "migrations": _totals(trace[ev.Migrated], count),
        "computed_tokens": _totals(trace[ev.Prefilled], count, "tokens"),
        "output_tokens": _totals(trace[ev.Decoded], count, "tokens"),
        "work": _totals(work, count, "amount"),
    }
    computed = totals["computed_tokens"] + totals["output_tokens"]
    busy = _integral(running, np.minimum(running["level"], 1), count, stop_ns)
    queued = _integral(waiting, waiting["level"], count, stop_ns)
    measures = tuple(
        WorkerMeasures(
            worker=worker,
            **{name: int(values[worker]) for name, values in totals.items()},
            prefix_hit_ratio=_ratio(int(cached[worker]), int(context[worker])),
            busy_share=_ratio(int(busy[worker]), span_ns),
            mfu=mfu(known[worker], int(computed[worker]), int(busy[worker]))
            if busy[worker] and worker in known
            else None,
            energy_j=energy[worker] / 1e9 if worker in known else None,
            queue_mean=_ratio(int(queued[worker]), span_ns),
        )
        for worker in range(count)
    )
    shown = _shown(totals["work"])
    seconds, done = cumulative(work["time_ns"] - origin_ns, work["worker"], work["amount"], shown, span_ns)
    arrived = _somewhere(trace[ev.Arrived])
    _, sent = cumulative(
        arrived["time_ns"] - origin_ns, arrived["worker"], np.ones_like(arrived["worker"]), shown, span_ns
    )
    at_ns = origin_ns + np.round(seconds * 1e9).astype(np.int64)
    return measures, WorkerSeries(shown, seconds, done, sent, _sampled(waiting, shown, at_ns))


def client_queues(trace: Tables, clients: Sequence[int], at_ns: Ints) -> Ints:
    """Return how many requests of each of `clients` wait, at all workers together, at each time: an array (times,
    clients)."""
    columns = np.full(max((*clients, *(int(trace[kind]["client"].max(initial=-1)) for kind in _QUEUE))) + 1, -1)
    columns[list(clients)] = np.arange(len(clients))
    # What waits for a client at a worker is counted as if that were a worker of its own.
    apart: dict[type[ev.Event], Table] = {}
    for kind in _QUEUE:
        table = _somewhere(trace[kind], columns[trace[kind]["client"]] >= 0)
        apart[kind] = table | {"worker": table["worker"] * len(clients) + columns[table["client"]]}
    left: Table = {name: np.repeat(values, len(clients)) for name, values in trace[ev.WorkerLeft].items()}
    places = np.tile(np.arange(len(clients)), len(trace[ev.WorkerLeft]["worker"]))
    apart[ev.WorkerLeft] = left | {"worker": left["worker"] * len(clients) + places}
    rows = _waiting(apart)
    count = int(rows["worker"].max(initial=-1)) // max(len(clients), 1) + 1
    sampled = _sampled(rows, range(count * len(clients)), at_ns)
    queues: Ints = sampled.reshape(len(at_ns), count, len(clients)).sum(axis=1)
    return queues


def energy_nj(trace: Tables, latencies: Sequence[LatencyModel], start_ns: int, stop_ns: int) -> dict[int, int]:
    """Return the nanojoules that each worker drew from `start_ns` to `stop_ns`, of those whose GPUs are known.

    What is computed counts when it is done, and a worker that is not there is idle.
    """
    known = _known(latencies)
    if not known:
        return {}
    running, computed, decoded = _running(trace), trace[ev.Prefilled], trace[ev.Decoded]
    ends: Table = {name: np.concatenate((computed[name], decoded[name])) for name in ("worker", "time_ns", "tokens")}
    energy = {}
    for worker, latency in known.items():
        mine = (ends["worker"] == worker) & (start_ns < ends["time_ns"]) & (ends["time_ns"] <= stop_ns)
        at_ns, step = np.unique(ends["time_ns"][mine], return_inverse=True)
        tokens = np.zeros(len(at_ns) + 1, dtype=np.int64)
        np.add.at(tokens, step, ends["tokens"][mine])
        # What is left at the end computed nothing that was seen.
        busy_ns = np.diff(_until(running, worker, np.concatenate(([start_ns], at_ns, [stop_ns]))))
        idle_ns = stop_ns - start_ns - int(busy_ns.sum())
        energy[worker] = int(step_nj(latency, tokens, busy_ns).sum()) + idle_nj(latency, idle_ns)
    return energy


def _until(rows: Table, worker: int, at_ns: Ints) -> Ints:
    """Return for how long a worker's level was above 0 until each of these times."""
    start, stop = np.searchsorted(rows["worker"], (worker, worker + 1))
    since, above = rows["time_ns"][start:stop], np.minimum(rows["level"][start:stop], 1)
    spent = np.concatenate(([0, 0], np.cumsum(np.diff(since) * above[:-1])))[: len(since) + 1]
    place = np.searchsorted(since, at_ns, side="right")
    padded = np.concatenate(([0], above)), np.concatenate(([0], since))
    lasted: Ints = spent[place] + padded[0][place] * (at_ns - padded[1][place])
    return lasted


def _known(latencies: Sequence[LatencyModel]) -> dict[int, LatencyModel]:
    """Return the models of workers whose GPUs are known, by worker."""
    models = enumerate(latencies)
    return {worker: each for worker, each in models if each.deployment is not None and each.deployment.gpu in GPUS}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _shown(work: Ints) -> tuple[int, ...]:
    """Return which workers plots show, in which order."""
    if len(work) <= WORKERS_NAMED:
        return tuple(range(len(work)))
    order = np.argsort(-work, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), WORKERS_SHOWN)).round().astype(np.int64)
    return tuple(order[places].tolist())


def _somewhere(table: Table, rows: npt.NDArray[np.bool_] | None = None) -> Table:
    """Return the (chosen) rows that happened at a worker."""
    chosen = table["worker"] >= 0 if rows is None else (table["worker"] >= 0) & rows
    return {column: values[chosen] for column, values in table.items()}


def _totals(table: Table, count: int, column: str | None = None) -> Ints:
    """Return rows of each worker, or the sums of a column."""
    table = _somewhere(table)
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, table["worker"], 1 if column is None else table[column])
    return total


def _work(trace: Tables) -> Table:
    """Return what was computed, as columns time_ns, worker, amount."""
    computed, decoded = trace[ev.Prefilled], trace[ev.Decoded]
    return {
        "time_ns": np.concatenate((computed["time_ns"], decoded["time_ns"])),
        "worker": np.concatenate((computed["worker"], decoded["worker"])),
        "amount": np.concatenate((computed["tokens"] * COMMON.input, decoded["tokens"] * COMMON.output)),
    }


def _waiting(trace: Tables) -> Table:
    """Return requests that wait at each worker, whenever that changes."""
    arrived = _somewhere(trace[ev.Arrived])
    came = _pairs(arrived)
    # Who is rejected at the door, or gives up before being sent, never joined the queue.
    left = [_somewhere(trace[kind], trace[kind]["was_running"] == 0) for kind in (ev.Cancelled, ev.Migrated)]
    left = [table for table in (*left, _somewhere(trace[ev.Rejected])) if table["position"].size]
    left = [_somewhere(table, np.isin(_pairs(table), came)) for table in left]
    return _levels(trace, [arrived, trace[ev.Preempted]], [trace[ev.Admitted], *left])


def occupied_ns(trace: Tables) -> Ints:
    """Return for each worker how long any request was there, waiting or running."""
    arrived = _somewhere(trace[ev.Arrived])
    left = [_somewhere(trace[kind]) for kind in (ev.Finished, ev.Cancelled, ev.Rejected, ev.Migrated)]
    # Who is rejected at the door was never there.
    left = [_somewhere(table, np.isin(_pairs(table), _pairs(arrived))) for table in left if table["position"].size]
    there = _levels(trace, [arrived], left)
    return _integral(there, np.minimum(there["level"], 1), int(there["worker"].max(initial=-1)) + 1, 0)


def _running(trace: Tables) -> Table:
    """Return requests in each worker's batch, whenever that changes."""
    left = [_somewhere(trace[kind], trace[kind]["was_running"] == 1) for kind in (ev.Cancelled, ev.Migrated)]
    return _levels(trace, [trace[ev.Admitted]], [trace[ev.Finished], trace[ev.Preempted], *left])


def _pairs(table: Table) -> Ints:
    """Return which request at which worker, as one number."""
    pairs: Ints = (table["worker"] << 44) + table["request_id"]
    return pairs


def _levels(trace: Tables, more: Sequence[Table], less: Sequence[Table]) -> Table:
    """Return columns worker, time_ns and level, in order of worker and position: how many there are from then on.

    Each row of `more` adds one at its worker, each of `less` takes one away, and a worker that leaves has none.
    """
    parts = [*((table, 1) for table in more), *((table, -1) for table in less), (trace[ev.WorkerLeft], 0)]
    worker, position, time_ns = (
        np.concatenate([table[column] for table, _ in parts]) for column in ("worker", "position", "time_ns")
    )
    change = np.concatenate([np.full(len(table["worker"]), step, dtype=np.int64) for table, step in parts])
    order = np.lexsort((position, worker))
    worker, time_ns, change = worker[order], time_ns[order], change[order]
    total = np.cumsum(change)
    starts = np.diff(worker, prepend=-1) != 0
    # From where a worker's rows begin, and where it leaves, its level counts anew.
    anew = np.maximum.accumulate(np.where(starts | (change == 0), np.arange(len(worker)), 0))
    base = (total - np.where(starts, change, 0))[anew]
    return {"worker": worker, "time_ns": time_ns, "level": total - base}


def _integral(rows: Table, values: Ints, count: int, stop_ns: int) -> Ints:
    """Return for each worker the sum of value times nanoseconds, each row's until the next or `stop_ns`."""
    total = np.zeros(count, dtype=np.int64)
    worker, time_ns = rows["worker"], rows["time_ns"]
    if len(worker):
        last = np.append(np.diff(worker) != 0, True)
        until = np.where(last, stop_ns, np.append(time_ns[1:], stop_ns))
        np.add.at(total, worker, values * np.maximum(until - time_ns, 0))
    return total


def _sampled(rows: Table, workers: Sequence[int], at_ns: Ints) -> Ints:
    """Return the level of each of `workers` at each time: an array (times, workers)."""
    sampled = np.zeros((len(at_ns), len(workers)), dtype=np.int64)
    edges = np.searchsorted(rows["worker"], [workers, [worker + 1 for worker in workers]]).T
    for i, (start, stop) in enumerate(edges.tolist()):
        place = np.searchsorted(rows["time_ns"][start:stop], at_ns, side="right")
        sampled[:, i] = np.concatenate(([0], rows["level"][start:stop]))[place]
    return sampled
