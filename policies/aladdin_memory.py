"""(e) for all workers side by side, as they were when the heartbeat began: where a request surely has no memory.

Where memory is what is short, nearly every worker refuses nearly everybody.  Two iterations of each worker tell it of
most: the one to come, and the one in which its requests will hold most.  Who passes both may still be refused:
`profile_slack`, about which the theorems are, judges each placement.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fairsched.model.performance import Performance
from fairsched.policies.aladdin_worker import Believed

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Memory:
    """What the requests of each worker hold now, and in the iteration `fullest_at` in which that is most."""

    def __init__(self, performance: Performance, workers: Sequence[Believed], capacity: Ints) -> None:
        """O(requests of all workers)."""
        p = self.performance = performance
        self.capacity = capacity
        self.clocks = np.array([worker.clock for worker in workers], np.int64)
        counts = np.array([worker.ends.size for worker in workers], np.int64)
        row = np.repeat(np.arange(len(workers)), counts)
        place = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(worker.ends for worker in workers)), np.int64)
        ends, levels, left = (
            flat[0::3],
            np.zeros((len(workers), 1 + counts.max(initial=0)), np.int64),
            counts[row] - place,
        )
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

    def has_room(self, prompt_tokens: Any, output_tokens: Any) -> Flags:
        """Where it is not plain that `profile_slack` would be below 0; with columns of requests, a row for each."""
        p = self.performance
        grown = p.kv(prompt_tokens - self.clocks)
        fits: Flags = (self.fullest + grown <= self.capacity) | (self.clocks + output_tokens < self.fullest_at)
        fits &= self.now + p.kv(prompt_tokens) <= self.capacity
        return fits
