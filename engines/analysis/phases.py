"""Where the time of requests went: the six phases of a request, and the times between its tokens.

The first token divides a request's life in two.  Before it the request waits (*prefill queue*) or is in a batch
(*prefill*), after it the same is *decode queue* and *decode*; what is lost and computed again belongs to the part in
which it is computed again.  In between, where phases are split, its KV waits at its source for a target and for room
there (*transfer wait*), and goes (*transfer*).  A paused request is in its batch, so that its pause is *decode*.

In a step all requests of a batch make a token, or only those whose prefill it completes.  So times between tokens are
those between steps of whole batches, and those of requests that join, come back, or go on after a pause.  An event may
stand for many steps of one batch, each of which takes as much longer than the one before it as the latency model says.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.model import events as ev
from fairsched.model.machine import LatencyModel
from fairsched.model.service import Ints, Table, Tables

Phase = Literal["prefill_queue", "prefill", "transfer_wait", "transfer", "decode_queue", "decode"]
PHASES: tuple[Phase, ...] = ("prefill_queue", "prefill", "transfer_wait", "transfer", "decode_queue", "decode")
"""In the order in which a request passes through them."""

_WAITS, _RUNS, _STAGED, _SENT, _OVER, _FAILED = range(6)
_STATES: dict[type[ev.Event], int] = {
    ev.Arrived: _WAITS,
    ev.Admitted: _RUNS,
    ev.Prefilled: _RUNS,
    ev.Preempted: _WAITS,
    ev.Migrated: _STAGED,
    ev.TransferStarted: _SENT,
    ev.TransferFailed: _FAILED,
    ev.Finished: _OVER,
    ev.Cancelled: _OVER,
    ev.Rejected: _OVER,
}
"""What a request does after its event."""
_PHASE_OF = np.array([[0, 1, 2, 3, -1, 2], [4, 5, 2, 3, -1, 2]], dtype=np.int64)
"""By whether the first token is out, and by state."""


def begins_phase(event: ev.Event, phase: Phase | None) -> bool:
    """Return whether the request of this event, in that phase, may be in another one after it."""
    if isinstance(event, ev.TransferFailed):
        return phase == "transfer"
    return type(event) in _STATES and not (isinstance(event, ev.Prefilled) and event.remaining_tokens)


def phase_of(event: ev.Event, has_first: bool) -> Phase | None:
    """Return the phase of a request after such an event, by whether its first token is out then; None once it is
    over."""
    place = int(_PHASE_OF[int(has_first), _STATES[type(event)]])
    return PHASES[place] if place >= 0 else None


_LEAVES = (ev.Preempted, ev.Migrated, ev.Arrived, ev.Finished, ev.Cancelled)
"""Events after which a request is not in the batch any more that it was in."""

_END = (1 << 36) - 1
"""A position behind all events of a run."""
_LOW = (1 << 40) - 1


def phase_times(trace: Tables, row: Callable[[Ints], Ints], count: int) -> Ints:
    """Return nanoseconds in each of `PHASES`, a row a request: `row` says which.  O(n log n) in the events of
    requests."""
    parts = []
    for kind, code in _STATES.items():
        table = trace[kind]
        chosen = table["remaining_tokens"] == 0 if kind is ev.Prefilled else np.ones(len(table["time_ns"]), np.bool_)
        rows = row(table["request_id"][chosen])
        parts.append((rows, table["position"][chosen], table["time_ns"][chosen], np.full(len(rows), code)))
    rows, position, time_ns, state = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((position, rows))
    rows, position, time_ns, state = rows[order], position[order], time_ns[order], state[order]
    # A transfer may be called off before it begins: then its request is where it was.
    begun = np.append(False, (rows[1:] == rows[:-1]) & (state[:-1] == _SENT))[: len(rows)]
    kept = (state != _FAILED) | begun
    rows, position, time_ns, state = rows[kept], position[kept], time_ns[kept], state[kept]
    first = np.full(count, np.iinfo(np.int64).max)
    prefilled = trace[ev.Prefilled]
    done = prefilled["remaining_tokens"] == 0
    np.minimum.at(first, row(prefilled["request_id"][done]), prefilled["position"][done])
    phase = _PHASE_OF[(position >= first[rows]).astype(np.int64), state][:-1]
    lasts = (rows[1:] == rows[:-1]) & (phase >= 0)
    times = np.zeros((count, len(PHASES)), dtype=np.int64)
    np.add.at(times, (rows[:-1][lasts], phase[lasts]), np.diff(time_ns)[lasts])
    return times


def pause_times(trace: Tables, row: Callable[[Ints], Ints], count: int, stop_ns: int) -> Ints:
    """Return nanoseconds for which each request was paused: `row` says which; one that still is, until `stop_ns`."""
    table, ends = trace[ev.Paused], [trace[kind] for kind in (ev.Resumed, *_LEAVES)]
    request_id, position, time_ns = (
        np.concatenate([one[name] for one in ends]) for name in ("request_id", "position", "time_ns")
    )
    pairs = _pair(request_id, position)
    order = np.argsort(pairs)
    pairs, time_ns = np.append(pairs[order], _pair(np.array([-1]), np.array([0]))), np.append(time_ns[order], 0)
    place = np.searchsorted(pairs[:-1], _pair(table["request_id"], table["position"]))
    over = pairs[place] >> 36 == table["request_id"]
    times = np.zeros(count, dtype=np.int64)
    np.add.at(times, row(table["request_id"]), np.where(over, time_ns[place], stop_ns) - table["time_ns"])
    return times


@attrs.frozen(eq=False)
class TokenGaps:
    """Times between two tokens of a request: `weight[k]` gaps of `ns[k]` nanoseconds at requests of `client[k]`.

    `second_ns[k]` is the one between first and second token of request `second_id[k]`, in which a transfer lies; the
    gaps have it too.
    """

    client: Ints
    ns: Ints
    weight: Ints
    second_id: Ints
    second_ns: Ints


@attrs.frozen(eq=False)
class _Steps:
    """The events `Decoded` by worker and position: their ends, and those of the first of their `steps`.

    Each step takes `growth_ns` longer than the one before it.
    """

    key: Ints
    worker: Ints
    time_ns: Ints
    steps: Ints
    first_end_ns: Ints
    second_ns: Ints
    growth_ns: Ints
    tokens: Ints

    @classmethod
    def of(cls, decoded: Table, latencies: Sequence[LatencyModel]) -> "tuple[_Steps, Ints]":
        """Return the steps, and for each row of the table its event."""
        position, index = np.unique(decoded["position"], return_inverse=True)
        begins = np.searchsorted(decoded["position"], position)
        tokens = np.add.reduceat(decoded["tokens"], begins) if len(begins) else begins
        worker = decoded["worker"][begins]
        order = np.lexsort((position, worker))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        key, worker, tokens = _key(worker, position)[order], worker[order], tokens[order]
        time_ns, steps = decoded["time_ns"][begins][order], decoded["steps"][begins][order]
        same = np.append(False, worker[1:] == worker[:-1])[: len(worker)]
        span = np.where(same, time_ns - np.roll(time_ns, 1), 0)
        growth = _growth(worker, tokens // steps, steps, latencies)
        first = (span - growth * (steps * (steps - 1) // 2)) // steps
        first_end = time_ns - (steps - 1) * first - growth * (steps * (steps - 1) // 2)
        return cls(key, worker, time_ns, steps, first_end, first + growth, growth, tokens), place[index]

    def next_to(self, worker: Ints, position: Ints) -> Ints:
        """Return the first event behind a position of its worker; of another one, if none is left."""
        return np.searchsorted(self.key, _key(worker, position))


def _key(worker: Ints, position: Ints) -> Ints:
    """Worker and position (or anything below 2^40) as one number."""
    return (worker << 40) + position


def _growth(worker: Ints, batch: Ints, steps: Ints, latencies: Sequence[LatencyModel]) -> Ints:
    """Return how much longer a step takes than the one before it, by worker and batch; only where there are several."""
    growth = np.zeros_like(batch)
    several = np.flatnonzero(steps > 1)
    pairs, index = np.unique(_key(worker[several], batch[several]), return_inverse=True)
    each = []
    for pair in pairs.tolist():
        latency, size = latencies[pair >> 40], pair & _LOW
        each.append(latency.decode_ns(size, size) - latency.decode_ns(size, 0))
    growth[several] = np.array(each, dtype=np.int64)[index] if each else 0
    return growth


@attrs.frozen(eq=False)
class _Stints:
    """The times for which requests make tokens with a batch, in order of request and position.

    A stint begins with the prefill that a request completes in step `event`, whose token is its first, or where it goes
    on after a pause (`joins` is False, and `event` the first step that may have a token of it).  `until` is the
    position of the event with which the stint ends.
    """

    request_id: Ints
    client: Ints
    worker: Ints
    joins: npt.NDArray[np.bool_]
    event: Ints
    until: Ints

    @classmethod
    def of(cls, trace: Tables, steps: _Steps) -> "_Stints":
        done, on = trace[ev.Prefilled]["remaining_tokens"] == 0, trace[ev.Resumed]
        columns = ("request_id", "client", "worker", "position")
        table = {name: np.concatenate((trace[ev.Prefilled][name][done], on[name])) for name in columns}
        joins = np.arange(len(table["position"])) < done.sum()
        order = np.lexsort((table["position"], table["request_id"]))
        request_id, client, worker, position = (table[name][order] for name in columns)
        leaves = [trace[kind] for kind in (ev.Paused, *_LEAVES)]
        left = np.sort(_pair(*(np.concatenate([one[name] for one in leaves]) for name in ("request_id", "position"))))
        place = np.searchsorted(left, _pair(request_id, position))
        left = np.append(left, _pair(np.array([-1]), np.array([0])))
        until = np.where(left[place] >> 36 == request_id, left[place] & _END, _END)
        return cls(request_id, client, worker, joins[order], steps.next_to(worker, position), until)


def token_gaps(trace: Tables, latencies: Sequence[LatencyModel]) -> TokenGaps:
    """Return all times between tokens, of workers with these latency models.  O(n log n) in events, plus steps.

    In a step whose tokens are all first ones of a batch, the rest of the batch pauses.
    """
    decoded = trace[ev.Decoded]
    steps, event = _Steps.of(decoded, latencies)
    stints = _Stints.of(trace, steps)
    count = len(steps.key)
    joined = stints.event[stints.joins], stints.client[stints.joins]
    full = np.flatnonzero(steps.tokens > np.bincount(joined[0], minlength=count)[:count])
    # The first token that a stint has with the batch is reckoned alone, those after it with the batch.
    after, goes_on = _next_of(steps, full, stints)
    new = after[goes_on], stints.client[goes_on]
    ns, weight, client = _of_batches(decoded, steps, event, full, joined, new)
    # When each stint begins and ends: where it has no token, that of the stint before.
    number = np.arange(len(after))
    own = stints.joins | goes_on
    before = np.roll(np.maximum.accumulate(np.where(own, number, 0)), 1)
    again = np.append(False, stints.request_id[1:] == stints.request_id[:-1])[: len(number)]
    last_ns = _last_ns(steps, full, stints)[before]
    joined_ns = np.append(steps.time_ns, 0)[np.where(stints.joins, stints.event, count)]
    goes_on_ns = np.append(steps.first_end_ns, 0)[after]
    back = again & stints.joins
    back_ns = (joined_ns - last_ns)[back]
    new_ns = (goes_on_ns - np.where(stints.joins, joined_ns, last_ns))[goes_on]
    # The second token of a request comes in its first stint, or in the next that has one.
    second = again & ~goes_on[before] & ~again[before] & own
    second_ns = np.where(stints.joins, joined_ns, goes_on_ns) - last_ns
    first = ~again & goes_on
    return TokenGaps(
        np.concatenate((client, new[1], stints.client[back])),
        np.concatenate((ns, new_ns, back_ns)),
        np.concatenate((weight, np.ones_like(new_ns), np.ones_like(back_ns))),
        np.concatenate((stints.request_id[first], stints.request_id[second])),
        np.concatenate((new_ns[first[goes_on]], second_ns[second])),
    )


def _next_of(steps: _Steps, full: Ints, stints: _Stints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the first step that each stint has with the whole batch, and whether it comes before the stint ends."""
    place = np.searchsorted(full, stints.event + stints.joins)
    after = np.append(full, -1)[place]
    here = (after >= 0) & (steps.worker[after] == stints.worker) & (steps.key[after] & _LOW < stints.until)
    return after, here


def _last_ns(steps: _Steps, full: Ints, stints: _Stints) -> Ints:
    """Return when each stint with tokens made its last one."""
    left = steps.next_to(stints.worker, stints.until)
    last = np.append(-1, full)[np.searchsorted(full, left)]
    times: Ints = np.append(steps.time_ns, 0)[np.maximum(last, np.where(stints.joins, stints.event, 0))]
    return times


def _of_batches(
    decoded: Table, steps: _Steps, event: Ints, full: Ints, joined: tuple[Ints, Ints], new: tuple[Ints, Ints]
) -> tuple[Ints, Ints, Ints]:
    """Return gaps of requests that made a token in the step of the whole batch before: nanoseconds, how often, and
    client."""
    each = _key(event, decoded["client"])
    batch = (decoded["tokens"] - _counted(each, _key(*joined))) // np.maximum(steps.steps[event], 1)
    old = batch - _counted(each, _key(*new))
    kept = np.flatnonzero(old > 0)
    before = np.append(-1, full)[np.searchsorted(full, event[kept])]
    firsts = steps.first_end_ns[event[kept]] - steps.time_ns[before]
    # The steps of an event after its first one are those of all.
    more = np.flatnonzero(steps.steps[event] > 1)
    several = steps.steps[event[more]] - 1
    number = np.arange(int(several.sum())) - np.repeat(np.cumsum(several) - several, several)
    rest = np.repeat(steps.second_ns[event[more]], several) + number * np.repeat(steps.growth_ns[event[more]], several)
    return (
        np.concatenate((firsts, rest)),
        np.concatenate((old[kept], np.repeat(batch[more], several))),
        np.concatenate((decoded["client"][kept], np.repeat(decoded["client"][more], several))),
    )


def _counted(keys: Ints, among: Ints) -> Ints:
    among = np.sort(among)
    return np.searchsorted(among, keys, side="right") - np.searchsorted(among, keys)


def _pair(request_id: Ints, position: Ints) -> Ints:
    """Request and position as one number; a run has fewer than 2^36 events."""
    return (request_id << 36) + position
