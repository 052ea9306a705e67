"""Which of the held requests may still fit a worker in this heartbeat, all of them side by side.

In overload nearly every request is tried in vain.  Two tests tell so without trying.  *The most room*: a request that
breaks (b), (c), (d) or (e) on the worker with most room for that constraint breaks it everywhere.  *No smaller*: within
a heartbeat placements only take room away, so a request with no shorter prompt, no shorter output and no later deadline
than one that fitted no worker fits none either.  Both are exact: a request that is left out would have been tried in
vain.
"""

import numpy as np
from msgspec.structs import astuple

from fairsched.model.algebra import Bools
from fairsched.policies.placement.aladdin.limits import context_cost
from fairsched.policies.placement.aladdin.placement_batch import PlacementBatch, Wanted


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
