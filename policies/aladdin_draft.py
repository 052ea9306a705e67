"""One heartbeat's placements: the constraints of all workers side by side, one request after the other.

The columns are made once a heartbeat, and a placement changes one row of them, so a request costs a few operations over
the workers, and one pass over the profile of each worker that might not have the memory.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt

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
from fairsched.policies.aladdin_worker import Believed, Sums

Ints = npt.NDArray[np.int64]
Norm = Literal["normalised", "printed"]
Reserve = Literal["lock-step", "peaks"]

FOREVER_NS = 1 << 61
"""No deadline, and as much saved time as nobody can use."""


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


@attrs.frozen
class Row:
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


@attrs.frozen
class Wanted:
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
        self.batch = _column(row.batch for row in rows)
        self.context = _column(row.context for row in rows)
        self.new_tokens = _column(row.believed.new_tokens for row in rows)
        self.begins = _column(row.begins_ns for row in rows)
        self.deadline = _column(row.deadline_ns for row in rows)
        self.saved = _column(row.saved for row in rows)
        self.capacity = _column(row.capacity for row in rows)
        sums = [row.believed.everybody for row in rows]
        self.peaks = _column(p.kv_token * (s.prompt_tokens + s.output_tokens) + p.kv_constant * s.batch for s in sums)
        self._batch_max = max(p.batch_max(rules.tpot_ns), 1)
        self._context_max = max(p.context_max(1, rules.tpot_ns), 1)
        self._profiles: dict[int, Profile] = {}
        self._come: dict[int, list[tuple[int, int]]] = {}

    def fitting(self, wanted: Wanted) -> npt.NDArray[np.bool_]:
        """Where the request keeps (b), (c) and (d), so far as they are checked."""
        rules, p = self.rules, self.performance
        fits = np.ones(len(self.rows), np.bool_)
        if "b" in rules.checks:
            context = self.context + context_cost(wanted.prompt_tokens, wanted.counted_tokens, rules.gamma_percent)
            fits &= decode_slack(p, rules.theta_percent, rules.tpot_ns, self.batch + 1, context) >= 0
        new_tokens = self.new_tokens + wanted.prompt_tokens
        if "c" in rules.checks:
            due = self.deadline if wanted.deadline_ns is None else np.minimum(self.deadline, wanted.deadline_ns)
            fits &= prefill_slack(p, new_tokens, self.begins, due) >= 0
        if "d" in rules.checks:
            fits &= stall_slack(p, new_tokens, self.saved) >= 0
        return fits

    def choose(self, wanted: Wanted) -> int | None:
        """The row of the largest norm, the first of equals, where everything holds; None if there is none."""
        fits = self.fitting(wanted)
        if not fits.any():
            return None
        norms = np.where(fits, self.norms(), -1)
        while norms[row := int(norms.argmax())] >= 0:
            if self.has_memory(row, wanted):
                return row
            norms[row] = -1
        return None

    def norms(self) -> Ints:
        """The squared norm of every row."""
        norms: Ints = (
            norm_normalised(self.batch, self.context, self._batch_max, self._context_max)
            if self.rules.norm == "normalised"
            else norm_printed(self.batch, self.context)
        )
        return norms

    def has_memory(self, row: int, wanted: Wanted) -> bool:
        """(e): with peaks, or else in lock-step from this iteration on.  Peaks that fit are never passed, so where they
        do nothing else is looked at."""
        if "e" not in self.rules.checks:
            return True
        p, capacity = self.performance, self.capacity[row].item()
        peak = peak_kv(p, wanted.prompt_tokens, wanted.output_tokens)
        if peaks_slack(capacity, self.peaks[row].item(), peak) >= 0:
            return True
        if self.rules.reserve == "peaks":
            return False
        return bool(profile_slack(p, capacity, self._profile(row), *self._entry(row, wanted)) >= 0)

    def holds(self, row: int, wanted: Wanted) -> bool:
        """Whether the row keeps everything with the request."""
        return bool(self.fitting(wanted)[row]) and self.has_memory(row, wanted)

    def least(self, wanted: Wanted) -> int:
        """The row of the smallest norm that could ever hold the request, or of all if none could."""
        norms = self.norms()
        could = self.capacity >= peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)
        return int(np.where(could, norms, norms.max() + 1).argmin()) if could.any() else int(norms.argmin())

    def take(self, row: int, wanted: Wanted) -> None:
        """The request goes there."""
        self._change(row, wanted, 1)
        if wanted.deadline_ns is not None:
            self.deadline[row] = min(self.deadline[row], wanted.deadline_ns)
        self._come.setdefault(row, []).append(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def drop(self, row: int, wanted: Wanted, deadline_ns: int) -> None:
        """It goes elsewhere; `deadline_ns` is the earliest of those that stay."""
        self._change(row, wanted, -1)
        self.deadline[row] = deadline_ns
        self._come[row].remove(self._entry(row, wanted))
        self._profiles.pop(row, None)

    def _change(self, row: int, wanted: Wanted, count: int) -> None:
        cost = context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.rules.gamma_percent)
        self.batch[row] += count
        self.context[row] += count * cost
        self.new_tokens[row] += count * wanted.prompt_tokens
        self.peaks[row] += count * peak_kv(self.performance, wanted.prompt_tokens, wanted.output_tokens)

    def _profile(self, row: int) -> Profile:
        if row not in self._profiles:
            entries = self.rows[row].believed.entries + self._come.get(row, [])
            self._profiles[row] = profile_of(self.performance, sorted(entries))
        return self._profiles[row]

    def _entry(self, row: int, wanted: Wanted) -> tuple[int, int]:
        clock = self.rows[row].believed.clock
        return clock + wanted.output_tokens, wanted.prompt_tokens - clock


def _column(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
