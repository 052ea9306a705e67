"""Which of the held requests may still find a worker in this heartbeat, all of them side by side.

In overload nearly everybody who is tried is tried in vain.  Two things tell so without trying.  *The most room there
is*: what breaks (b), (c), (d) or (e) on the worker with most room for just that constraint breaks it everywhere.  *Who
asks for no less*: within a heartbeat placements only take room away, so whoever has no shorter prompt, no shorter
output and no later deadline than one who found nobody finds nobody either.  Both are exact: who is left out would have
been tried in vain.
"""

import attrs
import numpy as np

from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Wanted
from fairsched.policies.aladdin_limits import context_cost
from fairsched.policies.aladdin_memory import Flags, Ints


@attrs.frozen(eq=False)
class Asked:
    """Columns of held requests, the oldest first: `Wanted` of each, FOREVER_NS for one that is late."""

    prompt_tokens: Ints
    output_tokens: Ints
    counted_tokens: Ints
    deadlines_ns: Ints

    def at(self, place: int) -> Wanted:
        """One of them."""
        due = self.deadlines_ns.item(place)
        return Wanted(
            self.prompt_tokens.item(place),
            self.output_tokens.item(place),
            self.counted_tokens.item(place),
            None if due == FOREVER_NS else due,
        )


class Hopes:
    """Those that may find a worker; `anyway` are tried even so, since they go somewhere in any case."""

    def __init__(self, draft: Draft, asked: Asked, anyway: Flags) -> None:
        self.draft = draft
        self.asked = asked
        self.anyway = anyway
        self.open: Flags = np.ones(len(anyway), np.bool_)
        self._with_memory = False
        self._look()

    def failed(self, at: int) -> None:
        """The request at this place found nobody, and so does everybody who asks for no less.  O(requests)."""
        asked = self.asked
        spared = asked.prompt_tokens < asked.prompt_tokens[at]
        spared |= asked.output_tokens < asked.output_tokens[at]
        spared |= asked.deadlines_ns > asked.deadlines_ns[at]
        spared |= self.anyway
        self.open &= spared
        if self.draft.memory is not None and not self._with_memory:
            self._look()

    def after(self, at: int) -> int:
        """The place of the next one that may find somebody, or the number of requests.  O(requests) by memchr."""
        rest = self.open[at + 1 :]
        found = int(rest.argmax()) if rest.size else 0
        return at + 1 + found if rest.size and rest[found] else len(self.open)

    def _look(self) -> None:
        """Leave those for whom some worker has room.  O(requests + workers), and their product for who might fit."""
        draft, asked = self.draft, self.asked
        prefill_ns = draft.performance.prefill_token_ns * asked.prompt_tokens
        context = context_cost(asked.prompt_tokens, asked.counted_tokens, draft.rules.gamma_percent)
        might = self.open & (draft.performance.context_token_ns * context <= draft.decode_room.max())
        might &= prefill_ns <= draft.prefill_room.max()
        might &= draft.computed.min() <= asked.deadlines_ns - prefill_ns
        left = np.flatnonzero(might)
        prompts, outputs = asked.prompt_tokens[left, None], asked.output_tokens[left, None]
        fits = draft.fitting(prompts, asked.counted_tokens[left, None], asked.deadlines_ns[left, None])
        if draft.memory is not None:
            fits &= draft.memory.has_room(prompts, outputs)
            self._with_memory = True
        might[left] = fits.any(axis=1)
        self.open = might | (self.open & self.anyway)
