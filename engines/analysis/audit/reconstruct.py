"""Waits and service made out of an access log: what each request must have done between the times that it has.

**Waiting.**  A request waits from its arrival to its first token (to the end of its time in the queue, where the log
has that).  Where it has neither, the first token is inferred if that can be done well (`inference`); else the request
is kept out of all waits, as if it had been served on arrival.  One that was refused, or given up while others stream,
without a first token waits until its end.  Of one that ended in an error, or may have been given up while an answer was
made that comes whole, nothing tells whether it waited.
**Service.**  Its prompt is charged when the wait is over, less what came from the cache, where that is known; its
outputs come at even distances, the first at the first token and the last at the end, at twice the price of a prompt
token.  What happens at one time is one event, in the order: outputs, arrivals, admissions, ends of those that failed;
so nothing depends on the order of the rows.

Outputs are summed up between two *instants*.  Instants are all times at which a request comes, is served or ends, and,
while outputs come, so many more that no two are further apart than `APART_NS`.  Where that takes too many sums
(`ROWS_MAX`), they are thinned out evenly, and a note says how far apart they are.  Starvation does not rest on them: a
client is served all the time while one of its requests decodes without long pauses.
"""

from collections.abc import Sequence
from datetime import timedelta, timezone
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.audit.evidence import APART_NS, AuditRun, Calls
from fairsched.engines.analysis.audit.inference import first_tokens, left_queue
from fairsched.engines.analysis.figures import safe_text
from fairsched.engines.logs.access import NO_NAME, UNKNOWN, AccessLog, Ending
from fairsched.model.events import Admitted, Arrived, Decoded, Event, Rejected
from fairsched.model.pricing import COMMON, multipliers
from fairsched.model.request import Client
from fairsched.model.service import Charging, Ints, Table, Tables, backlogs, charges, concatenate

ROWS_MAX = 4_000_000
_FILL = 4
"""One sum in so many may be for instants at which nothing comes or ends."""
_OUTPUTS, _ARRIVALS, _ADMISSIONS, _FAILURES = range(4)


def evidence_of(
    log: AccessLog,
    weights: Sequence[int] = (),
    rows_max: int = ROWS_MAX,
    model: str | None = None,
    apart_ns: int = APART_NS,
) -> AuditRun:
    """Return what the access log shows; `weights` are the clients' shares in the order of their names (default: equal).

    `model` names the models that it is about, where there are others beside them.  O(n log n) for n requests, and
    O(`rows_max`) memory.
    """
    clients = tuple(
        Client(i, name, weight)
        for i, (name, weight) in enumerate(zip(log.clients, weights or [1] * len(log.clients), strict=True))
    )
    charging = Charging(COMMON, "extend", multipliers([client.weight for client in clients]))
    told, queued = first_tokens(log), left_queue(log)
    nothing = (log.outcome != Ending.FINISHED) & (log.output < 1) & (log.served_ns == UNKNOWN)
    doubtful = nothing & _may_be_served(log)
    served_ns = np.where(nothing, UNKNOWN, np.where(queued, log.served_ns, told.first_ns))
    kept_out = ~nothing & (served_ns == UNKNOWN)
    # What is charged must be charged at some time: without a better one, from the arrival on.
    admitted_ns = np.where(kept_out, log.arrival_ns, served_ns)
    begun_ns = np.where(told.first_ns == UNKNOWN, admitted_ns, told.first_ns)
    unnamed = np.isin(log.client, [i for i, name in enumerate(log.clients) if name == NO_NAME and len(log.clients) > 1])
    play = partial(_played, log, charging, rows_max, apart_ns)
    charged, waited, coarse_ns = play(nothing, admitted_ns, begun_ns, ~(kept_out | doubtful | unnamed))
    evidence = AuditRun(
        path=log.path,
        kind="access log",
        about="an access log" if model is None else f"an access log, {safe_text(model)}",
        clients=clients,
        calls=Calls(
            number=log.line,
            file=log.file,
            client=log.client,
            arrival_ns=log.arrival_ns,
            served_ns=served_ns,
            first_ns=np.where(nothing, UNKNOWN, told.first_ns),
            end_ns=log.end_ns,
            cost=np.where(nothing, 0, (log.prompt - log.cached) * COMMON.input + log.output * COMMON.output),
            outcome=log.outcome,
            attempt=log.attempt,
            model=log.model,
            worker=log.worker,
            status=log.status,
            margin_ns=told.margin_ns,
            untold=(~nothing & (told.first_ns == UNKNOWN)).astype(np.int64),
            doubtful=doubtful.astype(np.int64),
        ),
        charged=charged,
        waited=waited,
        decoding=_decoding(log, begun_ns),
        charging=charging,
        workers=len(log.workers),
        model=model,
        files=log.files,
        models=log.models,
        upstreams=log.workers,
        statuses=log.statuses,
        inferences=told.inferences,
        zone=None if log.utc_offset_s is None else timezone(timedelta(seconds=log.utc_offset_s)),
        opening=log.opening,
        reading=log.reading,
        limits=_limits(log, coarse_ns, int(kept_out.sum()), int(doubtful.sum()), int(unnamed.sum())),
        notes=log.notes,
    )
    if not (kept_out | doubtful).any():
        return evidence
    # They may have waited until their ends, and when they were served is not known.
    begun_ns = np.where(kept_out, UNKNOWN, begun_ns)
    charged, waited, _ = play(nothing | kept_out, admitted_ns, begun_ns, ~unnamed)
    most = attrs.evolve(evidence, charged=charged, waited=waited, decoding=_decoding(log, begun_ns))
    return attrs.evolve(evidence, at_most=most)


def _played(
    log: AccessLog,
    charging: Charging,
    rows_max: int,
    apart_ns: int,
    nothing: npt.NDArray[np.bool_],
    admitted_ns: Ints,
    begun_ns: Ints,
    waits: npt.NDArray[np.bool_],
) -> tuple[Table, Table, int]:
    """Return charges, the waits of these requests, and how far instants are apart where that is worth a note."""
    outputs, coarse_ns = _outputs(log, begun_ns, rows_max, apart_ns)
    served, lost = np.flatnonzero(~nothing), np.flatnonzero(nothing)
    every = np.arange(len(log.client))
    parts: list[tuple[int, Table]] = [
        (_OUTPUTS, outputs),
        (_ARRIVALS, _heads(log, every, log.arrival_ns)),
        (
            _ADMISSIONS,
            _heads(log, served, admitted_ns[served])
            | {"extend_tokens": (log.prompt - log.cached)[served], "cached_prefix_tokens": log.cached[served]},
        ),
        (_FAILURES, _heads(log, lost, log.end_ns[lost])),
    ]
    _number([each for _, each in parts], [kind for kind, _ in parts])
    kinds: tuple[type[Event], ...] = (Decoded, Arrived, Admitted, Rejected)
    trace = concatenate([{kind: table for kind, (_, table) in zip(kinds, parts, strict=True)}])
    return charges(trace, charging), backlogs(_waiting(trace, waits)), coarse_ns


def _waiting(trace: Tables, known: npt.NDArray[np.bool_]) -> Tables:
    """Return the trace without arrivals and admissions of requests whose waits are not known."""
    chosen = dict(trace)
    for kind in (Arrived, Admitted):
        kept = known[trace[kind]["request_id"]]
        chosen[kind] = {name: values[kept] for name, values in trace[kind].items()}
    return chosen


def _heads(log: AccessLog, rows: Ints, time_ns: Ints) -> Table:
    return {"time_ns": time_ns, "worker": log.worker[rows], "request_id": rows, "client": log.client[rows]}


def _number(tables: Sequence[Table], kinds: Sequence[int]) -> None:
    """Give every row its position: what happens at one time and is of one kind is one event.

    Arrivals are one each, since two waits that are compared must begin one after the other; they charge nothing, so
    their order does not matter.
    """
    times = np.concatenate([table["time_ns"] for table in tables])
    kind = np.concatenate([np.full(len(table["time_ns"]), code) for table, code in zip(tables, kinds, strict=True)])
    order = np.lexsort((kind, times))
    new = np.append(True, (np.diff(times[order]) != 0) | (np.diff(kind[order]) != 0))[: len(order)]
    new |= kind[order] == _ARRIVALS
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.cumsum(new) - 1
    first = 0
    for table in tables:
        count = len(table["time_ns"])
        mine = position[first : first + count]
        # The tables of a run are in order of position.
        by_position = np.argsort(mine, kind="stable")
        for name in list(table):
            table[name] = table[name][by_position]
        table["position"] = mine[by_position]
        first += count


def _may_be_served(log: AccessLog) -> npt.NDArray[np.bool_]:
    """Return which requests without a first token may have been computed for all that the log says."""
    streams = ((log.first_ns != UNKNOWN) & (log.streamed != 0))[(log.outcome == Ending.FINISHED) & (log.output > 0)]
    error: npt.NDArray[np.bool_] = log.outcome == Ending.ERROR
    return error if streams.all() else error | (log.outcome == Ending.CANCELLED)


def _decoding(log: AccessLog, begun_ns: Ints) -> Table:
    """Return from when to when requests decode, and how far their tokens are apart (0 where they are not counted)."""
    rows = np.flatnonzero((begun_ns != UNKNOWN) & ((log.output > 1) | (log.measured == 0)))
    start, stop = begun_ns[rows], log.end_ns[rows]
    return {
        "client": log.client[rows],
        "start_ns": start,
        "stop_ns": stop,
        "apart_ns": np.where(log.measured[rows] == 0, 0, (stop - start) // np.maximum(log.output[rows] - 1, 1)),
    }


def _instants(log: AccessLog, begun_ns: Ints, rows: Ints, sums: tuple[int, int], apart_ns: int) -> tuple[Ints, int]:
    """Return the times up to which outputs of `rows` are summed up, so many `sums` where something happens and between,
    and how far they are apart where that is more than `apart_ns` (else 0)."""
    first, end = np.sort(begun_ns[rows]), np.sort(log.end_ns[rows])
    edges = np.unique(np.concatenate((log.arrival_ns, log.served_ns[rows], first, end)))
    edges = edges[edges != UNKNOWN]
    need = int(np.searchsorted(edges, end).sum() - np.searchsorted(edges, first).sum()) + len(rows)
    if thin := need > sums[0]:
        kept = max(2, int(len(edges) * (sums[0] / need)))
        edges = edges[np.unique(np.linspace(0, len(edges) - 1, kept).round().astype(np.int64))]
    fill_ns = max(apart_ns, int((end - first).sum(dtype=np.float64) / max(sums[1], 1)))
    length = np.diff(edges)
    decode = np.searchsorted(first, edges[1:]) > np.searchsorted(end, edges[:-1], side="right")
    pieces = np.where(decode, -(-length // fill_ns), 1)
    which = np.repeat(np.arange(len(length)), pieces)
    part = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    instants = np.append(edges[which] + (part * (length / pieces)[which]).astype(np.int64), edges[-1:])
    longest = int(np.diff(instants)[np.append(decode, False)[which]].max(initial=0)) if which.size else 0
    return instants, longest if thin or longest > apart_ns else 0


def _outputs(log: AccessLog, begun_ns: Ints, rows_max: int, apart_ns: int) -> tuple[Table, int]:
    """Output tokens by instant, worker and client, and how far instants are apart where that is worth a note."""
    rows = np.flatnonzero((begun_ns != UNKNOWN) & (log.output > 0))
    first, end, count = begun_ns[rows], log.end_ns[rows], log.output[rows]
    instants, coarse_ns = _instants(log, begun_ns, rows, (rows_max, rows_max // _FILL), apart_ns)
    at_once = first == end
    begin = np.where(at_once, np.searchsorted(instants, end), np.searchsorted(instants, first, side="right"))
    stop = np.searchsorted(instants, end) + 1
    sizes = stop - begin
    which = np.repeat(np.arange(len(rows)), sizes)
    starts = np.cumsum(sizes) - sizes
    instant = np.arange(int(sizes.sum())) - np.repeat(starts - begin, sizes)
    so_far = _produced(instants[instant], first[which], end[which], count[which])
    new = np.diff(so_far, prepend=0)
    new[starts] = so_far[starts]
    return _summed(instants, instant, log.worker[rows][which], log.client[rows][which], new), coarse_ns


def _produced(time_ns: Ints, first: Ints, end: Ints, count: Ints) -> Ints:
    """Return tokens out of `count` that came before or at each time: the first after `first`, the last at `end`."""
    span = np.maximum(end - first, 1)
    passed = np.clip((time_ns - first) / span, 0.0, 1.0)
    inside = 1 + np.floor((count - 1) * passed).astype(np.int64)
    return np.where(time_ns >= end, count, inside)


def _summed(instants: Ints, instant: Ints, worker: Ints, client: Ints, tokens: Ints) -> Table:
    """Return one row for each instant, worker and client with any tokens."""
    clients, workers = int(client.max(initial=0)) + 1, int(worker.max(initial=0)) + 1
    key = (instant * workers + worker) * clients + client
    keys, inverse = np.unique(key, return_inverse=True)
    total = np.zeros(len(keys), dtype=np.int64)
    np.add.at(total, inverse, tokens)
    keys, total = keys[total > 0], total[total > 0]
    place = keys // clients
    return {
        "time_ns": instants[place // workers],
        "worker": place % workers,
        "steps": np.ones_like(total),
        "client": keys % clients,
        "tokens": total,
    }


def _limits(log: AccessLog, coarse_ns: int, kept_out: int, doubtful: int, unnamed: int) -> tuple[str, ...]:
    """Return what this log cannot tell."""
    said = []
    if kept_out:
        said.append(
            f"Requests of which nothing tells when their wait was over: {kept_out:,}. They count in no wait and starve "
            "for no time, and are charged evenly from arrival to end."
        )
    if doubtful:
        said.append(
            f"Requests that failed without any output, of which nothing tells whether they waited: {doubtful:,}. They "
            "starve for no time."
        )
    if unnamed:
        said.append(
            f"Requests that name no client: {unnamed:,}. They may be of any client, so {NO_NAME} starves for no time "
            "and is in no gap."
        )
    if "queue" not in log.fields:
        said.append(
            "Waiting and computing the prompt cannot be told apart: all time until the first token counts as waiting."
        )
    if "cached_tokens" not in log.fields:
        said.append("What came from a prefix cache is unknown: every prompt is charged whole.")
    said.append("When each output token came is unknown: they are taken to come evenly between the first and the end.")
    said.append(
        "Requests that were not over when the log was taken are not in it, nor are calls that were never logged."
    )
    said.append("No gate is named in it, so there is no bound to hold the gap to, and no assumption to check.")
    if coarse_ns:
        said.append(f"Outputs are summed up over at most {coarse_ns / 1e9:,.3g} s at a time, the log being long.")
    return tuple(said)
