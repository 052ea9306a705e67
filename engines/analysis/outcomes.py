"""What became of each request, and what that was like: latencies, rates and shares, for a run and for each client.

`Measures` defines every figure.  They rest on these:

Arrival     when the caller sent the request: for one that follows others, when it reached a worker.
Client service   prompt + 2 output tokens as the client sees them: the prompt at the first token, outputs as decoded.
Active      a client is active from its first arrival to the end of its last request, whether finished or cancelled.
Percentiles, rates and ratios are None where there is nothing to measure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.phases import PHASES, pause_times, phase_times, token_gaps
from fairsched.engines.analysis.series import CLIENTS_MAX, Series, cumulative, responses, thinned
from fairsched.engines.analysis.worker_figures import client_queues
from fairsched.model import events as ev
from fairsched.model.algebra import Bools
from fairsched.model.machine import LatencyModel
from fairsched.model.pricing import COMMON
from fairsched.model.request import Job, Workload
from fairsched.model.service import Gap, Ints, Table, Tables, concatenate, prompt_hits, tables
from fairsched.model.shown import short_repr

_NEVER = -1
_PIECE = 1 << 12
_PERCENT = (50, 90, 95, 99)
OUTCOMES = ("unfinished", "finished", "cancelled", "rejected")
"""What may have become of a request, by its number in `Outcomes.requests`."""


@attrs.frozen
class Summary:
    """Mean and nearest-rank percentiles of some samples, in the samples' unit; all None without samples."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@attrs.frozen
class PhaseTimes:
    """Where finished requests spent their time; the means add up to the mean latency."""

    prefill_queue: Summary = Summary()
    """Waiting for the first token, in no batch."""
    prefill: Summary = Summary()
    """In a batch, until the first token is out."""
    transfer_wait: Summary = Summary()
    """With the KV ready to leave: until a target is named, and has room."""
    transfer: Summary = Summary()
    """Until the KV is at the other worker; where its link carries one transfer at a time, the wait for it is here."""
    decode_queue: Summary = Summary()
    """After the first token, in no batch and not on the way."""
    decode: Summary = Summary()
    """In a batch, after the first token; what was lost is computed again here, too."""


@attrs.frozen
class Measures:
    """What is measured of a whole run and of each client alone; a client's rates are over its own makespan."""

    __repr__ = short_repr

    requests: int
    """Requests of the workload."""
    finished: int
    """Requests that finished."""
    rejected: int
    """Requests that were rejected."""
    cancelled: int
    """Requests that were cancelled; a call whose predecessor did not finish is cancelled."""
    makespan_us: float
    """Last finish or cancellation, less first arrival."""
    throughput_rps: float | None
    """Finished requests a second of makespan."""
    output_tokens_per_s: float | None
    """Decoded tokens of all requests a second of makespan."""
    client_service_rate: float | None
    """Client service of all clients, in cost units a second of makespan."""
    ttft_us: Summary
    """End of the step that completed the prefill (it yields the first token), less arrival."""
    normalized_ttft_us: Summary
    """The same divided by prompt tokens."""
    tpot_us: Summary
    """(finish - first token) / (output tokens - 1), of finished requests with two output tokens or more."""
    latency_us: Summary
    """Finish less arrival, of finished requests."""
    program_latency_us: Summary
    """Last finish less arrival of the first call, of programs whose every call finished."""
    prefix_hit_ratio: float | None
    """Tokens from the prefix cache / tokens of prompts, when requests were first admitted: what a request finds of its
    own after a preemption or a transfer is no hit."""
    preemptions: int
    """How often a running request was taken out."""
    slo_attainment: float | None
    """Share of the requests with targets that met all of them (an unfinished one met none); absent without targets."""
    swaps: int = 0
    """How often a preempted request's KV went to host memory."""
    phases_us: PhaseTimes = PhaseTimes()
    """Where finished requests spent their time."""
    tbt_us: Summary = Summary()
    """Time between two tokens of a request, over all tokens but the first of each."""
    second_token_us: Summary = Summary()
    """Second token less first; where phases are split, KV moves in between."""
    scheduling_delay_us: Summary = Summary()
    """First admission to a batch, less arrival."""
    normalized_latency_us: Summary = Summary()
    """Latency divided by output tokens, of finished requests."""
    transfers: int = 0
    """How often a request's KV went to another worker."""
    transferred_tokens: int = 0
    """Tokens of KV that went."""
    pauses: int = 0
    """How often a running request was paused."""
    paused_us: Summary = Summary()
    """Time for which requests were paused in all, of those that were."""
    joules_per_request: float | None = None
    """Joules that all GPUs drew / finished requests; null of a client, and where GPUs are unknown."""
    joules_per_token: float | None = None
    """The same / output tokens."""


def summary(samples: npt.NDArray[np.int64] | npt.NDArray[np.float64], scale: float = 1e3) -> Summary:
    """Mean and percentiles of samples, divided by `scale` (1,000: nanoseconds to microseconds)."""
    count = len(samples)
    if not count:
        return Summary()
    ordered = np.sort(samples)
    ranks = (ordered[(percent * count + 99) // 100 - 1].item() / scale for percent in _PERCENT)
    total = int(ordered.sum()) if ordered.dtype.kind == "i" else fsum(ordered)
    return Summary(total / count / scale, *ranks)


def weighted_summary(samples: Ints, weights: Ints) -> Summary:
    """Return the summary of ascending samples, each of which occurs so often, divided by 1,000.

    >>> weighted_summary(np.array([1, 9]), np.array([3, 1])) == summary(np.array([1, 1, 1, 9]))
    True
    """
    count = int(weights.sum())
    if not count:
        return Summary()
    places = np.searchsorted(np.cumsum(weights), [(percent * count + 99) // 100 for percent in _PERCENT])
    ranks = (sample / 1e3 for sample in samples[places].tolist())
    return Summary(int((samples * weights).sum()) / count / 1e3, *ranks)


def sorted_rows(*columns: Ints) -> tuple[Ints, ...]:
    """Return the rows of columns of integers, none negative, in order of the first column, then of the second, and so
    on.

    Rows that 63 bits hold are sorted as one number each, several times as fast.

    >>> [column.tolist() for column in sorted_rows(np.array([2, 1, 2]), np.array([5, 7, 4]))]
    [[1, 2, 2], [7, 4, 5]]
    """
    widths = [int(column.max(initial=0)).bit_length() for column in columns]
    if sum(widths) > 63:
        order = np.lexsort(columns[::-1])
        return tuple([column[order] for column in columns])
    rows = columns[0].copy()
    for column, width in zip(columns[1:], widths[1:], strict=True):
        rows <<= width
        rows |= column
    rows.sort()
    ordered = []
    for width in reversed(widths[1:]):
        ordered.append(rows & ((1 << width) - 1))
        rows >>= width
    return (rows, *reversed(ordered))


class EventTables:
    """Collects a run's events as columns, a piece at a time; `seen` is shown each piece."""

    def __init__(self, seen: Callable[[list[ev.Event]], object] | None = None) -> None:
        self._seen = seen
        self._pending: list[ev.Event] = []
        self._pieces: list[Tables] = []
        self._position = 0

    def add(self, events: Iterable[ev.Event]) -> None:
        self._pending.extend(events)
        if len(self._pending) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._seen is not None:
            self._seen(self._pending)
        self._pieces.append(tables(self._pending, self._position))
        self._position += len(self._pending)
        self._pending = []

    def whole(self) -> Tables:
        self._flush()
        return concatenate(self._pieces)


@attrs.frozen(eq=False)
class ProgramSpans:
    """Programs by their `numbers`, `of` which of them each call is (a place there), when the `first` call of each was
    due and the `last` ended, and whether the `whole` of it finished.  Arrays of int64, and of bool."""

    numbers: Ints
    of: Ints
    first: Ints
    last: Ints
    whole: Bools


class Outcomes:
    """The requests of a workload, one row each, with what became of them; times since the first arrival.

    `phases[i, k]` are the nanoseconds that request i spent in phase `PHASES[k]`.  Times between tokens are known where
    the workers' `latencies` are: an event may stand for many steps.
    """

    def __init__(self, workload: Workload, trace: Tables, latencies: Sequence[LatencyModel] = ()) -> None:
        jobs = workload.jobs
        count = len(jobs)
        self.n_clients = len(workload.clients)
        self.trace = trace
        ids = np.fromiter((job.request.id for job in jobs), np.int64, count)
        self.ids = ids
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self.client = np.fromiter((job.request.client for job in jobs), np.int64, count)
        self.prompt = np.fromiter((job.request.prompt.tokens for job in jobs), np.int64, count)
        self.output = np.fromiter((job.output_tokens for job in jobs), np.int64, count)
        ended = trace[ev.Finished]  # an output may have ended earlier than was foreseen
        self.output[self.row(ended["request_id"])] = ended["output_tokens"]
        self.arrival = np.fromiter((job.request.arrival_ns for job in jobs), np.int64, count)
        self.origin = int(self.arrival.min(initial=np.iinfo(np.int64).max)) if count else 0
        follows = np.fromiter((bool(job.after) for job in jobs), np.bool_, count)
        sent = self.times(ev.Arrived)
        self.program = np.fromiter((-1 if job.program is None else job.program for job in jobs), np.int64, count)
        self.started = self.arrival - self.origin  # of the program, for a request that follows others
        self.arrival = np.where(follows & (sent != _NEVER), sent, self.started)
        done = trace[ev.Prefilled]["remaining_tokens"] == 0
        self.first = self.times(ev.Prefilled, done)
        self.scheduled = self.times(ev.Admitted)
        self.finish, given_up = self.times(ev.Finished), self.times(ev.Cancelled)
        self.rejected = self.times(ev.Rejected) != _NEVER
        self.cancelled = given_up != _NEVER
        self.ended = np.maximum(self.finish, given_up)
        self.finished = self.finish != _NEVER
        self._met = self._targets_met(jobs)
        self.senders = np.unique(self.client[~self.rejected])
        self._by_client = np.argsort(self.client, kind="stable")
        self._edges = np.searchsorted(self.client[self._by_client], np.arange(self.n_clients + 1))
        self.last_ns = self._last_ns()
        self.hits = prompt_hits(trace)
        self.client_service = self._client_service()
        self.phases = phase_times(trace, self.row, count)
        self.paused_ns = pause_times(trace, self.row, count, self.origin + self.last_ns)
        self.gaps = token_gaps(trace, latencies) if latencies else None
        if self.gaps is not None:
            self._client_gaps = sorted_rows(self.gaps.client, self.gaps.ns, self.gaps.weight)
            self._client_seconds = sorted_rows(self.client[self.row(self.gaps.second_id)], self.gaps.second_ns)
        self._totals = self._sums()

    def row(self, request_ids: Ints) -> Ints:
        return self._order[np.searchsorted(self._ids, request_ids)]

    def times(self, kind: type[ev.Event], chosen: npt.NDArray[np.bool_] | None = None) -> Ints:
        """Return for each request the time of its first (chosen) event of this kind, or `_NEVER`."""
        table = self.trace[kind]
        times = np.full(len(self.client), _NEVER, dtype=np.int64)
        rows, when = self.row(table["request_id"]), table["time_ns"] - self.origin
        if chosen is not None:
            rows, when = rows[chosen], when[chosen]
        times[rows[::-1]] = when[::-1]  # of equal rows the last write stays
        return times

    def requests(self) -> Table:
        """Return the requests as columns, times on the clock of the trace, -1 where there is nothing; `OUTCOMES` are
        named."""
        cancelled = self.trace[ev.Cancelled]
        rows = self.row(self.hits["request_id"])
        worker, cached, output = (np.full(len(self.client), _NEVER, dtype=np.int64) for _ in range(3))
        worker[rows], cached[rows] = self.hits["worker"], self.hits["cached"]
        output[self.finished] = self.output[self.finished]
        output[self.row(cancelled["request_id"])] = cancelled["generated_tokens"]
        refused = self.times(ev.Rejected)
        outcome = np.select([self.finished, self.cancelled, refused != _NEVER], [1, 2, 3], 0)
        ids = np.empty_like(self._ids)
        ids[self._order] = self._ids

        def absolute(times: Ints) -> Ints:
            return np.where(times == _NEVER, _NEVER, times + self.origin)

        return {
            "request": ids,
            "client": self.client,
            "worker": worker,
            "arrival_ns": self.arrival + self.origin,
            "admitted_ns": absolute(self.scheduled),
            "first_token_ns": absolute(self.first),
            "end_ns": absolute(np.maximum(self.ended, refused)),
            "outcome": outcome,
            "prompt_tokens": self.prompt,
            "cached_tokens": cached,
            "output_tokens": output,
        }

    def _last_ns(self) -> int:
        latest = [int(table["time_ns"].max(initial=self.origin)) for table in self.trace.values()]
        return max(latest) - self.origin

    def _client_service(self) -> Table:
        """Client service as columns time_ns, client, amount."""
        seen = np.flatnonzero(self.first != _NEVER)
        decoded = self.trace[ev.Decoded]
        return {
            "time_ns": np.concatenate((self.first[seen] + self.origin, decoded["time_ns"])),
            "client": np.concatenate((self.client[seen], decoded["client"])),
            "amount": np.concatenate((self.prompt[seen] * COMMON.input, decoded["tokens"] * COMMON.output)),
        }

    def _sums(self) -> dict[str, Ints]:
        rows = {
            "output": (self.trace[ev.Decoded]["client"], self.trace[ev.Decoded]["tokens"]),
            "service": (self.client_service["client"], self.client_service["amount"]),
            "context": (self.hits["client"], self.hits["context"]),
            "cached": (self.hits["client"], self.hits["cached"]),
            "swaps": (self.trace[ev.SwappedOut]["client"], np.ones_like(self.trace[ev.SwappedOut]["client"])),
            "preemptions": (self.trace[ev.Preempted]["client"], np.ones_like(self.trace[ev.Preempted]["client"])),
            "pauses": (self.trace[ev.Paused]["client"], np.ones_like(self.trace[ev.Paused]["client"])),
            "transfers": (
                self.trace[ev.TransferStarted]["client"],
                np.ones_like(self.trace[ev.TransferStarted]["client"]),
            ),
            "transferred": (self.trace[ev.TransferStarted]["client"], self.trace[ev.TransferStarted]["kv_tokens"]),
        }
        totals = {name: np.zeros(self.n_clients, dtype=np.int64) for name in rows}
        for name, (client, amount) in rows.items():
            np.add.at(totals[name], client, amount)
        return totals

    def all_active(self) -> tuple[int, int] | None:
        """Return the interval [t1, t2) of the run's clock in which all clients that sent something are active, if any.

        The last finish is inside: the step that ended then served before.
        """
        start, stop = 0, self.last_ns
        for client in self.senders.tolist():
            rows = self._rows(client)
            rows = rows[~self.rejected[rows]]
            start = max(start, int(self.arrival[rows].min()))
            if (self.ended[rows] != _NEVER).all():
                stop = min(stop, int(self.ended[rows].max()))
        return (self.origin + start, self.origin + stop + 1) if start < stop else None

    def _rows(self, client: int | None) -> Ints:
        if client is None:
            return self._by_client
        return self._by_client[self._edges[client] : self._edges[client + 1]]

    def measures(self, client: int | None) -> Measures:
        """Return what is measured of one client's requests, or of all."""
        rows = self._rows(client)
        done = rows[self.finished[rows]]
        begun = rows[self.first[rows] != _NEVER]
        several = done[self.output[done] > 1]
        placed = rows[self.scheduled[rows] != _NEVER]
        ttft = self.first[begun] - self.arrival[begun]
        ended = rows[self.ended[rows] != _NEVER]
        span = int(self.ended[ended].max() - self.arrival[rows].min()) if ended.size else 0
        totals = {
            name: int(values.sum() if client is None else values[client]) for name, values in self._totals.items()
        }
        return Measures(
            requests=len(rows),
            finished=len(done),
            rejected=int(self.rejected[rows].sum()),
            cancelled=int(self.cancelled[rows].sum()),
            makespan_us=span / 1e3,
            throughput_rps=_rate(len(done), span),
            output_tokens_per_s=_rate(totals["output"], span),
            client_service_rate=_rate(totals["service"], span),
            ttft_us=summary(ttft),
            normalized_ttft_us=summary(ttft / self.prompt[begun]),
            tpot_us=summary((self.finish[several] - self.first[several]) / (self.output[several] - 1)),
            latency_us=summary(self.finish[done] - self.arrival[done]),
            program_latency_us=summary(self._program_latencies(rows)),
            prefix_hit_ratio=totals["cached"] / totals["context"] if totals["context"] else None,
            preemptions=totals["preemptions"],
            swaps=totals["swaps"],
            slo_attainment=self._slo_attainment(rows),
            phases_us=PhaseTimes(*(summary(self.phases[done, i]) for i in range(len(PHASES)))),
            tbt_us=self._tbt(client),
            second_token_us=self._second_token(client),
            scheduling_delay_us=summary(self.scheduled[placed] - self.arrival[placed]),
            normalized_latency_us=summary((self.finish[done] - self.arrival[done]) / self.output[done]),
            transfers=totals["transfers"],
            transferred_tokens=totals["transferred"],
            pauses=totals["pauses"],
            paused_us=summary(self.paused_ns[rows[self.paused_ns[rows] > 0]]),
        )

    def _tbt(self, client: int | None) -> Summary:
        """Return the times between tokens of one client's requests, or of all."""
        if self.gaps is None:
            return Summary()
        if client is None:
            ns, weight = sorted_rows(self.gaps.ns, self.gaps.weight)
            return weighted_summary(ns, weight)
        clients, ns, weight = self._client_gaps
        start, stop = np.searchsorted(clients, (client, client + 1))
        return weighted_summary(ns[start:stop], weight[start:stop])

    def _second_token(self, client: int | None) -> Summary:
        if self.gaps is None:
            return Summary()
        clients, second_ns = self._client_seconds
        start, stop = (0, len(clients)) if client is None else np.searchsorted(clients, (client, client + 1))
        return summary(second_ns[start:stop])

    def program_spans(self, rows: Ints) -> ProgramSpans:
        """Return the programs that these calls are of; each call must be of one."""
        numbers, of = np.unique(self.program[rows], return_inverse=True)
        first = np.full(len(numbers), np.iinfo(np.int64).max)
        last, whole = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
        np.minimum.at(first, of, self.started[rows])
        np.maximum.at(last, of, self.finish[rows])
        np.logical_and.at(whole, of, self.finished[rows])
        return ProgramSpans(numbers, of, first, last, whole)

    def _program_latencies(self, rows: Ints) -> Ints:
        """Latency of each program all of whose calls finished."""
        spans = self.program_spans(rows[self.program[rows] >= 0])
        latencies: Ints = (spans.last - spans.first)[spans.whole]
        return latencies

    def _targets_met(self, jobs: Sequence[Job]) -> Ints:
        """Return which requests met all of their targets, -1 where there are none; one that did not finish met none."""
        met = np.full(len(jobs), -1)
        for i, job in enumerate(jobs):
            if (slo := job.request.slo) is not None:
                met[i] = (
                    self.finished[i]
                    and (slo.ttft_ns is None or self.first[i] - self.arrival[i] <= slo.ttft_ns)
                    and (slo.latency_ns is None or self.finish[i] - self.arrival[i] <= slo.latency_ns)
                    and (slo.tpot_ns is None or self.finish[i] - self.first[i] <= slo.tpot_ns * (self.output[i] - 1))
                )
        return met

    def _slo_attainment(self, rows: Ints) -> float | None:
        """Share of the requests with targets that met all of them."""
        met = self._met[rows]
        met = met[met >= 0]
        return int(met.sum()) / len(met) if len(met) else None

    def series(self, gap: Gap, kv: Mapping[int, Ints]) -> Series:
        demand = np.zeros(self.n_clients, dtype=np.int64)
        np.add.at(demand, self.client, self.prompt * COMMON.input + self.output * COMMON.output)
        largest = np.argsort(-demand, kind="stable")[:CLIENTS_MAX].tolist()
        shown = tuple(dict.fromkeys((*largest, *(each for each in (gap.ahead, gap.behind) if each is not None))))
        seen = self.client_service
        begun = np.flatnonzero(self.first != _NEVER)
        ttft = self.first[begun] - self.arrival[begun]
        span = self.last_ns
        service_s, received = cumulative(seen["time_ns"] - self.origin, seen["client"], seen["amount"], shown, span)
        response_s, response_us = responses(self.arrival[begun], self.client[begun], ttft, shown, span)
        progress = thinned(gap.progress)
        return Series(
            clients=shown,
            service_s=service_s,
            service=received,
            queue=client_queues(self.trace, shown, self.origin + np.round(service_s * 1e9).astype(np.int64)),
            response_s=response_s,
            response_us=response_us,
            gap_s=(progress[:, 0] - self.origin) / 1e9,
            gap=progress[:, 1],
            ttft_us=thinned(np.sort(ttft)) / 1e3,
            kv={worker: self._kv_rows(rows) for worker, rows in kv.items()},
        )

    def _kv_rows(self, rows: Ints) -> npt.NDArray[np.float64]:
        columns = thinned(rows).astype(np.float64)
        columns[:, 0] = (columns[:, 0] - self.origin) / 1e9
        return columns


def _rate(amount: int, span_ns: int) -> float | None:
    """Return a second's share of an amount."""
    return amount * 1e9 / span_ns if span_ns else None
