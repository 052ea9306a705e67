"""One heartbeat's placements: the constraints of all workers side by side, one request after the other.

The columns are made once a heartbeat, and a placement changes one row of them, so a request costs a few operations over
the workers, and one pass over the profile of each worker that might not have the memory.
"""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import msgspec
import numpy as np

from fairsched.model.performance import Performance
from fairsched.policies.aladdin_limits import (
    Profile,
    context_cost,
    decode_slack,
    norm_normalised,
    norm_printed,
    peak_kv,
    peaks_slack,
    prefill_slack,
    profile_of,
    profile_slack,
    stall_slack,
)
from fairsched.policies.aladdin_memory import Flags, Ints, Memory
from fairsched.policies.aladdin_worker import Believed, Sums

Norm = Literal["normalised", "printed"]
Reserve = Literal["lock-step", "peaks"]

FOREVER_NS = 1 << 61
"""No deadline, and as much saved time as nobody can use."""
REFUSED = 3
"""After so many workers refused a request for want of memory, all others are looked at together."""


@attrs.frozen
class Rules:
    """What a placement is held to: the worker's lines, the targets, theta and gamma in per cent, and which variants.

    `checks` are the constraints that are looked at: a prefill worker has only (c), a decode worker (b) and (e).
    """

    performance: Performance
    tpot_ns: int
    theta_percent: int
    gamma_percent: int
    norm: Norm
    reserve: Reserve
    checks: str = "bcde"

    def cost(self, sums: Sums) -> int:
        """The context of (b) for so many requests, in hundredths of a token."""
        cost: int = context_cost(sums.prompt_tokens, sums.output_tokens, self.gamma_percent)
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
    """A request to be placed: its context, the output that is foreseen, and what of that (b) counts.

    `deadline_ns` is None if it is late already, and then it has none to keep.
    """

    prompt_tokens: int
    output_tokens: int
    counted_tokens: int
    deadline_ns: int | None


class Draft:
    """The workers while requests are placed.  `choose` looks, `take` places, `drop` takes back."""

    def __init__(self, rules: Rules, rows: Sequence[Row]) -> None:
        p = self.performance = rules.performance
        self.rules = rules
        self.rows = rows
        self.batch = column([row.batch for row in rows])
        self.context = column([row.context for row in rows])
        self.new_tokens = column([row.believed.new_tokens for row in rows])
        self.begins = column([row.begins_ns for row in rows])
        self.deadline = column([row.deadline_ns for row in rows])
        self.saved = column([row.saved for row in rows])
        self.capacity = column([row.capacity for row in rows])
        sums = [row.believed.everybody for row in rows]
        self.peaks = column([p.kv_token * (s.prompt_tokens + s.output_tokens) + p.kv_constant * s.batch for s in sums])
        self._batch_max = max(p.batch_max(rules.tpot_ns), 1)
        self._context_max = max(p.context_max(1, rules.tpot_ns), 1)
        self.norms: Ints = self._norm(self.batch, self.context)
        ahead = self.begins, self.deadline, self.saved
        self.decode_room, self.prefill_room = self._room(self.batch, self.context, self.new_tokens, *ahead)
        # When all new prompts are computed; (c) of a request is about that, beside what is left to those there.
        self.computed: Ints = -prefill_slack(p, self.new_tokens, self.begins, 0)
        if "c" not in rules.checks:
            self.computed -= FOREVER_NS
        self.memory: Memory | None = None
        self._profiles: dict[int, Profile] = {}
        self._come: dict[int, list[tuple[int, int]]] = {}

    def fitting(self, prompt_tokens: Any, counted_tokens: Any, deadline_ns: Any) -> Flags:
        """Where the request keeps (b), (c) and (d), so far as they are checked; FOREVER_NS for no deadline.

        A request takes the same from every worker, so its part is compared with what each has left.  With columns of
        requests, one below the other, a row for each.
        """
        p = self.performance
        prefill_ns = p.prefill_token_ns * prompt_tokens
        context = context_cost(prompt_tokens, counted_tokens, self.rules.gamma_percent)
        fits: Flags = p.context_token_ns * context <= self.decode_room
        fits &= prefill_ns <= self.prefill_room
        fits &= self.computed <= deadline_ns - prefill_ns
        return fits

    def _room(self, batch: Any, context: Any, new_tokens: Any, begins: Any, deadline: Any, saved: Any) -> Any:
        """What (b) leaves for the context of one more request, in 10 ps, and (c) and (d) for its prefill, in ns.

        For a row, or for columns of them.  (c) here is about those that are there already.
        """
        p, rules = self.performance, self.rules
        decode = decode_slack(p, rules.theta_percent, rules.tpot_ns, batch + 1, context)
        late = prefill_slack(p, new_tokens, begins, deadline)
        stalled = stall_slack(p, new_tokens, saved) // 100
        forever = 0 * batch + FOREVER_NS
        least = np.minimum(late if "c" in rules.checks else forever, stalled if "d" in rules.checks else forever)
        return decode if "b" in rules.checks else forever, least

    def choose(self, wanted: Wanted) -> int | None:
        """The row of the largest norm, the first of equals, where everything holds; None if there is none."""
        norms = np.where(self._fitting(wanted), self.norms, -1)
        refused = 0
        while norms[row := int(norms.argmax())] >= 0:
            if self.has_memory(row, wanted):
                return row
            norms[row] = -1
            refused += 1
            if refused == REFUSED and self.rules.reserve == "lock-step":
                self.memory = self.memory or Memory(self.performance, [r.believed for r in self.rows], self.capacity)
                norms[~self.memory.has_room(wanted.prompt_tokens, wanted.output_tokens)] = -1
        return None

    def _norm(self, batch: Any, context: Any) -> Any:
        """The squared norm of a row, or of columns of them."""
        if self.rules.norm == "normalised":
            return norm_normalised(batch, context, self._batch_max, self._context_max)
        return norm_printed(batch, context)

    def _fitting(self, wanted: Wanted) -> Flags:
        due = FOREVER_NS if wanted.deadline_ns is None else wanted.deadline_ns
        return self.fitting(wanted.prompt_tokens, wanted.counted_tokens, due)

    def has_memory(self, row: int, wanted: Wanted) -> bool:
        """(e): with peaks, or else in lock-step from this iteration on.  Peaks that fit are never passed, so where they
        do nothing else is looked at."""
        if "e" not in self.rules.checks:
            return True
        p, capacity = self.performance, self.capacity.item(row)
        peak = peak_kv(p, wanted.prompt_tokens, wanted.output_tokens)
        if peaks_slack(capacity, self.peaks.item(row), peak) >= 0:
            return True
        if self.rules.reserve == "peaks":
            return False
        return bool(profile_slack(p, capacity, self._profile(row), *self._entry(row, wanted)) >= 0)

    def holds(self, row: int, wanted: Wanted) -> bool:
        """Whether the row keeps everything with the request."""
        return bool(self._fitting(wanted)[row]) and self.has_memory(row, wanted)

    def least(self, wanted: Wanted) -> int:
        """The row of the smallest norm that could ever hold the request, or of all if none could."""
        norms = self.norms
        could = self.capacity >= peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)
        return int(np.where(could, norms, norms.max() + 1).argmin()) if could.any() else int(norms.argmin())

    def take(self, row: int, wanted: Wanted) -> None:
        """The request goes there."""
        if wanted.deadline_ns is not None:
            self.deadline[row] = min(self.deadline.item(row), wanted.deadline_ns)
        self._change(row, wanted, 1)
        self._come.setdefault(row, []).append(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def drop(self, row: int, wanted: Wanted, deadline_ns: int) -> None:
        """It goes elsewhere; `deadline_ns` is the earliest of those that stay."""
        self.deadline[row] = deadline_ns
        self._change(row, wanted, -1)
        self._come[row].remove(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def _change(self, row: int, wanted: Wanted, count: int) -> None:
        cost = context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.rules.gamma_percent)
        self.batch[row] += count
        self.context[row] += count * cost
        self.new_tokens[row] += count * wanted.prompt_tokens
        self.peaks[row] += count * peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)
        self.computed[row] += count * self.performance.prefill_token_ns * wanted.prompt_tokens
        batch, context = self.batch.item(row), self.context.item(row)
        self.norms[row] = self._norm(batch, context)
        ahead = self.begins.item(row), self.deadline.item(row), self.saved.item(row)
        self.decode_room[row], self.prefill_room[row] = self._room(batch, context, self.new_tokens.item(row), *ahead)

    def _profile(self, row: int) -> Profile:
        if row not in self._profiles:
            entries = self.rows[row].believed.entries + self._come.get(row, [])
            self._profiles[row] = profile_of(self.performance, sorted(entries))
        return self._profiles[row]

    def _entry(self, row: int, wanted: Wanted) -> tuple[int, int]:
        clock = self.rows[row].believed.clock
        return clock + wanted.output_tokens, wanted.prompt_tokens - clock


def column(values: Sequence[int]) -> Ints:
    """These numbers as a column."""
    return np.fromiter(values, np.int64, len(values))
