"""One heartbeat's placements: the constraints of all workers side by side, one request after the other.

The columns are made once a heartbeat, and a placement changes one row of them, so a request costs a few operations over
the workers, and one pass over the profile of each worker that might not have the memory.

**Candidates**: which of the held requests may still fit a worker in this heartbeat, all of them side by side.

In overload nearly every request is tried in vain.  Two tests tell so without trying.  *The most room*: a request that
breaks (b), (c), (d) or (e) on the worker with most room for that constraint breaks it everywhere.  *No smaller*: within
a heartbeat placements only take room away, so a request with no shorter prompt, no shorter output, declared or not, and
no later deadline than one that fitted no worker fits none either.  Both are exact: a request that is left out would
have been tried in vain.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import attrs
import msgspec
import numpy as np
from msgspec.structs import astuple

from fairsched.model.algebra import Bools, Ints
from fairsched.model.machine import Performance
from fairsched.policies.placement.aladdin import limits as lim
from fairsched.policies.placement.aladdin.limits import Amount, context_cost, decode_slack
from fairsched.policies.placement.aladdin.placement_state import Believed, Sums

Norm = Literal["normalised", "printed"]
Reserve = Literal["lock-step", "peaks"]

FOREVER_NS = 1 << 61
"""No deadline, and more saved time than any request can use."""
REFUSED = 3
"""After so many workers refused a request for want of memory, all others are looked at together."""


@attrs.frozen
class Rules:
    """What a placement is held to: the worker's lines, the targets, theta and gamma in per cent, and which variants.

    `checks` are the constraints that are looked at: a prefill worker has only (c), a decode worker (b) and (e).  With
    `step_tokens` the new prompts of a worker have to be computed in one step of so many tokens, as a part of (d).
    `few` are lines for at most so many requests, with the same coefficient of context.
    """

    performance: Performance
    tpot_ns: int
    theta_percent: int
    gamma_percent: int
    norm: Norm
    reserve: Reserve
    checks: str = "bcde"
    step_tokens: int | None = None
    few: tuple[tuple[int, Performance], ...] = ()

    def decode_slack(self, batch: Amount, context: Amount) -> Amount:
        """(b) by the lines, or by the nearer ones of `few` where there are no more requests than those are for."""
        aims = self.theta_percent, self.tpot_ns
        slack = decode_slack(self.performance, *aims, batch, context)
        for most, lines in self.few:
            slack = np.where(batch <= most, np.maximum(slack, decode_slack(lines, *aims, batch, context)), slack)
        return slack

    def cost(self, sums: Sums) -> int:
        """Return the context of (b) for so many requests, in hundredths of a token."""
        cost: int = lim.context_cost(sums.prompt_tokens, sums.output_tokens, self.gamma_percent)
        return cost


class Row(msgspec.Struct, frozen=True, gc=False):
    """A worker as a heartbeat finds it: what the plan believes of it (`batch`, `context`), its memory, until when the
    iteration under way takes, the earliest deadline there, and what its requests have saved, in 10 ps."""

    worker: int
    capacity: int
    believed: Believed
    batch: int
    context: int
    begins_ns: int
    deadline_ns: int
    saved: int


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A request to be placed, or a column of each of many: its context, the output that is foreseen, what of that (b)
    counts, its deadline (one that is late already has none to keep), and with how much KV of its own, declared output
    included, a worker accepts it."""

    prompt_tokens: Amount
    output_tokens: Amount
    counted_tokens: Amount
    deadline_ns: Amount = FOREVER_NS
    declared_tokens: Amount = 0


class MemoryTable:
    """(e) for all workers side by side, as they were when the heartbeat began: where a request surely has no memory.

    Where memory is short, nearly every worker refuses nearly every request.  Two iterations of each worker decide most
    cases: the one to come, and `fullest_at`, in which its requests hold most.  A request that passes both may still be
    refused: `profile_slack`, about which the theorems are, judges each placement.
    """

    def __init__(self, performance: Performance, rows: Sequence[Row]) -> None:
        """Sum up, in O(requests of all workers)."""
        p = self.performance = performance
        self.capacity = column([row.capacity for row in rows])
        workers = [row.believed for row in rows]
        self.clocks = np.array([worker.clock for worker in workers], np.int64)
        counts = np.array([worker.ends.size for worker in workers], np.int64)
        row = np.repeat(np.arange(len(workers)), counts)
        place = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(worker.ends for worker in workers)), np.int64)
        ends, left = flat[0::3], counts[row] - place
        levels = np.zeros((len(workers), 1 + counts.max(initial=0)), np.int64)
        levels[row, place] = flat[2::3]
        levels = levels[:, ::-1].cumsum(axis=1)[:, ::-1]
        self.now = p.kv_token * (levels[:, 0] + counts * self.clocks) + p.kv_constant * counts
        # One more request grows along with the others, and counts with what it holds at each end.
        with_one_more = np.full(levels.shape, np.iinfo(np.int64).min)
        with_one_more[row, place] = p.kv_token * (levels[row, place] + (left + 1) * ends) + p.kv_constant * left
        fullest = with_one_more.argmax(axis=1)
        self.fullest = np.where(counts > 0, with_one_more[np.arange(len(workers)), fullest], 0)
        self.fullest_at = np.zeros(len(workers), np.int64)
        self.fullest_at[counts > 0] = ends[(counts.cumsum() - counts + fullest)[counts > 0]]

    def has_room(self, prompt_tokens: Amount, output_tokens: Amount) -> Bools:
        """Return where it is not plain that `profile_slack` would be below 0; with columns of requests, a row for
        each."""
        p = self.performance
        grown = p.kv(prompt_tokens - self.clocks)
        fits: Bools = (self.fullest + grown <= self.capacity) | (self.clocks + output_tokens < self.fullest_at)
        fits &= self.now + p.kv(prompt_tokens) <= self.capacity
        return fits


class PlacementBatch:
    """The workers while a heartbeat places requests: `choose` finds a row, `take` places there, `drop` takes back."""

    def __init__(self, rules: Rules, rows: Sequence[Row]) -> None:
        p = self.performance = rules.performance
        self.rules = rules
        self.rows = rows
        self.requests = column([row.batch for row in rows])
        self.context = column([row.context for row in rows])
        self.new_tokens = column([row.believed.new_tokens for row in rows])
        self.begins = column([row.begins_ns for row in rows])
        self.deadline = column([row.deadline_ns for row in rows])
        self.saved = column([row.saved for row in rows])
        self.capacity = column([row.capacity for row in rows])
        sums = [row.believed.total for row in rows]
        self.peaks = column([p.kv_token * (s.prompt_tokens + s.output_tokens) + p.kv_constant * s.batch for s in sums])
        self._batch_max = max(p.batch_max(rules.tpot_ns), 1)
        self._context_max = max(p.context_max(1, rules.tpot_ns), 1)
        self.norms: Ints = self._norm(self.requests, self.context)
        ahead = self.begins, self.deadline, self.saved
        self.decode_room, self.prefill_room = self._room(self.requests, self.context, self.new_tokens, *ahead)
        # When all new prompts are computed; (c) of a request is about that, beside what is left to those there.
        self.computed: Ints = -lim.prefill_slack(p, self.new_tokens, self.begins, 0)
        if "c" not in rules.checks:
            self.computed -= FOREVER_NS
        self.memory: MemoryTable | None = None
        self._profiles: dict[int, lim.Profile] = {}
        self._come: dict[int, list[tuple[int, int]]] = {}

    def fitting(self, wanted: Wanted) -> Bools:
        """Return where the request is accepted, and keeps (b), (c) and (d), so far as they are checked.

        A request takes the same from every worker, so its part is compared with what each has left.  With columns of
        requests, one below the other, a row for each.
        """
        p = self.performance
        prefill_ns = p.prefill_token_ns * wanted.prompt_tokens
        context = lim.context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.rules.gamma_percent)
        fits: Bools = p.context_token_ns * context <= self.decode_room
        fits &= prefill_ns <= self.prefill_room
        fits &= self.computed <= wanted.deadline_ns - prefill_ns
        fits &= self.capacity >= wanted.declared_tokens
        if self.rules.step_tokens is not None and "d" in self.rules.checks:
            fits &= lim.one_step(self.rules.step_tokens, self.new_tokens, wanted.prompt_tokens)
        return fits

    def _room(
        self, batch: Amount, context: Amount, new_tokens: Amount, begins: Amount, deadline: Amount, saved: Amount
    ) -> Amount:
        """Return what (b) leaves for the context of one more request, in 10 ps, and (c) and (d) for its prefill, in ns.

        For a row, or for columns of them.  (c) here is about those that are there already.
        """
        p, rules = self.performance, self.rules
        decode = rules.decode_slack(batch + 1, context)
        late = lim.prefill_slack(p, new_tokens, begins, deadline)
        stalled = lim.stall_slack(p, new_tokens, saved) // 100
        forever = 0 * batch + FOREVER_NS
        least = np.minimum(late if "c" in rules.checks else forever, stalled if "d" in rules.checks else forever)
        return decode if "b" in rules.checks else forever, least

    def choose(self, wanted: Wanted) -> int | None:
        """Return the row of the largest norm, the first of equals, where everything holds; None if there is none."""
        norms = np.where(self.fitting(wanted), self.norms, -1)
        refused = 0
        while norms[row := int(norms.argmax())] >= 0:
            if self.has_memory(row, wanted):
                return row
            norms[row] = -1
            refused += 1
            if refused == REFUSED and self.rules.reserve == "lock-step":
                self.memory = self.memory or MemoryTable(self.performance, self.rows)
                norms[~self.memory.has_room(wanted.prompt_tokens, wanted.output_tokens)] = -1
        return None

    def _norm(self, batch: Amount, context: Amount) -> Amount:
        if self.rules.norm == "normalised":
            return lim.norm_normalised(batch, context, self._batch_max, self._context_max)
        return lim.norm_printed(batch, context)

    def has_memory(self, row: int, wanted: Wanted) -> bool:
        """(e): with peaks, or else in lock-step from this iteration on.  Peaks that fit are never passed, so where they
        do nothing else is looked at."""
        if "e" not in self.rules.checks:
            return True
        p, capacity = self.performance, self.capacity.item(row)
        peak = lim.peak_kv(p, wanted.prompt_tokens, wanted.output_tokens)
        if lim.peaks_slack(capacity, self.peaks.item(row), peak) >= 0:
            return True
        if self.rules.reserve == "peaks":
            return False
        return bool(lim.profile_slack(p, capacity, self._profile(row), *self._entry(row, wanted)) >= 0)

    def holds(self, row: int, wanted: Wanted) -> bool:
        """Return whether the row keeps everything with the request."""
        return bool(self.fitting(wanted)[row]) and self.has_memory(row, wanted)

    def least(self, wanted: Wanted) -> int:
        """Return the row of the smallest norm that could ever hold the request, or of all if none could."""
        norms = self.norms
        peak = lim.peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)
        could = self.capacity >= max(peak, wanted.declared_tokens)
        return int(np.where(could, norms, norms.max() + 1).argmin()) if could.any() else int(norms.argmin())

    def take(self, row: int, wanted: Wanted) -> None:
        self.deadline[row] = min(self.deadline.item(row), wanted.deadline_ns)
        self._change(row, wanted, 1)
        self._come.setdefault(row, []).append(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def drop(self, row: int, wanted: Wanted, deadline_ns: int) -> None:
        """Let it go elsewhere; `deadline_ns` is the earliest of those that stay."""
        self.deadline[row] = deadline_ns
        self._change(row, wanted, -1)
        self._come[row].remove(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def _change(self, row: int, wanted: Wanted, count: int) -> None:
        cost = lim.context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.rules.gamma_percent)
        self.requests[row] += count
        self.context[row] += count * cost
        self.new_tokens[row] += count * wanted.prompt_tokens
        self.peaks[row] += count * lim.peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)
        self.computed[row] += count * self.performance.prefill_token_ns * wanted.prompt_tokens
        batch, context = self.requests.item(row), self.context.item(row)
        self.norms[row] = self._norm(batch, context)
        ahead = self.begins.item(row), self.deadline.item(row), self.saved.item(row)
        self.decode_room[row], self.prefill_room[row] = self._room(batch, context, self.new_tokens.item(row), *ahead)

    def _profile(self, row: int) -> lim.Profile:
        if row not in self._profiles:
            entries = self.rows[row].believed.entries + self._come.get(row, [])
            self._profiles[row] = lim.profile_of(self.performance, sorted(entries))
        return self._profiles[row]

    def _entry(self, row: int, wanted: Wanted) -> tuple[int, int]:
        clock = self.rows[row].believed.clock
        return clock + wanted.output_tokens, wanted.prompt_tokens - clock


def column(values: Sequence[int]) -> Ints:
    """Return these numbers as a column."""
    return np.fromiter(values, np.int64, len(values))


# --- re-balancing -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Placed:
    """A request that was placed in this heartbeat, and the row where."""

    request_id: int
    row: int
    wanted: Wanted


def rebalanced(batch: PlacementBatch, placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """Return the placements after new requests went from workers that have more to do than was planned to those with
    less.

    Source: Aladdin, section 4.4 and Algorithm 2, cleaned up.  A worker's error is by how much its iterations are longer
    than the plan believed, in 10 ps (equation 3): requests that outlive their prediction count with their real context,
    those that ended early against it.  A move carries the whole request, prompt included (Algorithm 2 omits it), so the
    sum of errors stays.  It is accepted only if the constraints hold where the request goes.

    From the worker with the largest error above 0 to the one with the smallest below, the request that leaves the two
    least apart, until none helps.  Each move makes the sum of the errors' sizes smaller, so it ends.
    """
    p, rules, now = batch.performance, batch.rules, list(placed)
    parts = [(row.believed.over, row.believed.ghost) for row in batch.rows]
    off = [lim.weight(p, rules.cost(over) - rules.cost(ghost), over.batch - ghost.batch) for over, ghost in parts]
    sizes = [
        lim.weight(p, lim.context_cost(each.wanted.prompt_tokens, each.wanted.counted_tokens, rules.gamma_percent), 1)
        for each in placed
    ]
    while now:
        source, target = off.index(max(off)), off.index(min(off))
        if off[source] <= 0 or off[target] >= 0:
            break
        best: tuple[int, int] | None = None
        for i, each in enumerate(now):
            if each.row == source:
                after = lim.apart(*lim.moved(off[source], off[target], sizes[i]))
                if after < lim.apart(off[source], off[target]) and (best is None or after < best[0]):
                    best = (after, i) if batch.holds(target, each.wanted) else best
        if best is None:
            break
        _, i = best
        wanted = now[i].wanted
        now[i] = attrs.evolve(now[i], row=target)
        off[source], off[target] = lim.moved(off[source], off[target], sizes[i])
        stay = (each.wanted.deadline_ns for each in now if each.row == source)
        batch.drop(source, wanted, min([batch.rows[source].deadline_ns, *stay]))
        batch.take(target, wanted)
    return tuple(now)


# --- requests that are all there at once ------------------------------------------------------------------------------


def pack(rules: Rules, wanted: Sequence[Wanted], kv_capacity: int) -> tuple[int | None, ...]:
    """Algorithm 1 on requests that are all there at once: the worker of each, numbered as they are opened.

    None for a request that fits no empty worker.  The planner takes this below the rate at which the number of workers
    becomes a line, and it is compared with the exact optimum.  O(requests) for each request.

    >>> from fairsched.model.machine.model import Performance
    >>> rules = Rules(Performance(1, 0, 1, 1, 1), 100, 100, 100, "normalised", "peaks")
    >>> pack(rules, [Wanted(5, 5, 5)] * 3, 20)
    (0, 0, 1)
    """
    rows = [Row(i, kv_capacity, Believed(), 0, 0, 0, FOREVER_NS, FOREVER_NS) for i in range(len(wanted))]
    batch, at = PlacementBatch(rules, rows), []
    for each in wanted:
        row = batch.choose(each)
        if row is not None:
            batch.take(row, each)
        at.append(row)
    return tuple(at)


# --- candidates -------------------------------------------------------------------------------------------------------


class CandidateFilter:
    """Which of the requests asked for, in columns, may fit a worker; those flagged in `anyway` are tried even so, since
    they are placed in any case."""

    def __init__(self, batch: PlacementBatch, asked: Wanted, anyway: Bools) -> None:
        self.batch = batch
        self.asked = asked
        self.anyway = anyway
        self.open: Bools = np.ones(len(anyway), np.bool_)
        self._with_memory = False
        self._look()

    def failed(self, at: int) -> None:
        """Note that the request at this place fits no worker, and neither does any that is no smaller.  O(requests)."""
        asked = self.asked
        spared = asked.prompt_tokens < asked.prompt_tokens[at]
        spared |= asked.output_tokens < asked.output_tokens[at]
        spared |= asked.deadline_ns > asked.deadline_ns[at]
        spared |= asked.declared_tokens < asked.declared_tokens[at]
        spared |= self.anyway
        self.open &= spared
        if self.batch.memory is not None and not self._with_memory:
            self._look()

    def after(self, at: int) -> int:
        """Return the place of the next request that may fit, or the number of requests.  O(requests) by memchr."""
        rest = self.open[at + 1 :]
        found = int(rest.argmax()) if rest.size else 0
        return at + 1 + found if rest.size and rest[found] else len(self.open)

    def _look(self) -> None:
        """Keep requests for which some worker has room.  O(requests + workers), and their product for likely ones."""
        batch, asked = self.batch, self.asked
        prefill_ns = batch.performance.prefill_token_ns * asked.prompt_tokens
        context = context_cost(asked.prompt_tokens, asked.counted_tokens, batch.rules.gamma_percent)
        might = self.open & (batch.performance.context_token_ns * context <= batch.decode_room.max())
        might &= prefill_ns <= batch.prefill_room.max()
        might &= batch.computed.min() <= asked.deadline_ns - prefill_ns
        left = np.flatnonzero(might)
        likely = Wanted(*(column[left, None] for column in astuple(asked)))
        fits = batch.fitting(likely)
        if batch.memory is not None:
            fits &= batch.memory.has_room(likely.prompt_tokens, likely.output_tokens)
            self._with_memory = True
        might[left] = fits.any(axis=1)
        self.open = might | (self.open & self.anyway)
