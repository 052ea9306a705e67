"""The work of each worker's requests, kept at hand: a decision reads it, and only what changed is priced anew."""

from collections.abc import Sequence

import attrs

from fairsched.model.serialization import Derived
from fairsched.policies.routers.e2.choice import decodes_much, lightest
from fairsched.policies.routers.e2.cost import Prices
from fairsched.policies.routers.e2.history import NO_SUMS, History, WindowSums


@attrs.frozen
class WorkTerms:
    """All that the work of requests depends on, beside the requests: prices, the mean output of a worker of which no
    request has ended, the share of decoding that is much, and whether L counts the window or what is under way."""

    prices: Prices
    prior_output_tokens: int
    decode_share_percent: int
    by_window: bool

    def mean_output(self, sums: WindowSums) -> tuple[int, int]:
        """Return the tokens of how many outputs give the mean of a worker."""
        return (sums.output_tokens, sums.outputs) if sums.outputs else (self.prior_output_tokens, 1)

    def decode_ns(self, sums: WindowSums) -> int:
        """Return what decoding of the window's requests takes, with outputs as long as their mean."""
        output_tokens, outputs = sums.output_tokens, sums.outputs
        if not outputs:
            output_tokens, outputs = self.prior_output_tokens, 1
        return self.prices.decode_ns(sums.requests, sums.prompt_tokens, output_tokens, outputs)

    def by_kind(self, history: History, workers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the prefills and the decoding of the windows of these workers.  O(workers)."""
        windows = [history.sums.get(worker, NO_SUMS) for worker in workers]
        return [window.prefill_ns for window in windows], [self.decode_ns(window) for window in windows]

    def load(self, window: WindowSums) -> int:
        """L of the window's requests of a worker."""
        return window.prefill_ns + self.decode_ns(window)

    def open_load(self, sums: WindowSums) -> int:
        """L of the requests under way at a worker, with outputs as long as the window's mean."""
        decoding = self.prices.decode_ns(sums.open_requests, sums.open_prompt_tokens, *self.mean_output(sums))
        return sums.open_prefill_ns + decoding


class Work(Derived, frozen=True, eq=False, gc=False):
    """Of each worker, by its id: its load L in nanoseconds, and as a bit of `much` whether decoding is much of the work
    of its window; `light` has the least load, the first of equals.

    It is of the history as that was before the requests of the workers in `changed` changed.
    """

    terms: WorkTerms | None = None
    loads: tuple[int, ...] = ()
    light: int = 0
    much: int = 0
    changed: tuple[int, ...] = ()

    def after(self, *workers: int) -> "Work":
        """Return the same after requests of the workers changed.  O(1) for each."""
        return Work(self.terms, self.loads, self.light, self.much, self.changed + workers)

    def of(self, workers: Sequence[int]) -> tuple[int, ...]:
        """Return the loads of these workers.  O(workers)."""
        loads, known = self.loads, len(self.loads)
        return tuple([loads[i] if i < known else 0 for i in workers])


NO_WORK = Work()


def worked(work: Work, history: History, terms: WorkTerms) -> Work:
    """Return the work of a history from what is known of it.

    O(workers that changed), and a copy for all; O(workers) where the lightest changed.
    """
    if work.terms is not terms and work.terms != terms:
        work, changed = Work(terms), {*history.sums}
    elif work.changed:
        changed = {*work.changed}
    else:
        return work
    loads, much, light, sums = [*work.loads], work.much, work.light, history.sums
    decode_ns, percent, by_window = terms.decode_ns, terms.decode_share_percent, terms.by_window
    anew = not loads or light in changed
    for worker in changed:
        if worker >= len(loads):
            loads += [0] * (worker + 1 - len(loads))
            anew = True
        one = sums.get(worker, NO_SUMS)
        prefill_ns, decoding_ns = one.prefill_ns, decode_ns(one)
        if decodes_much(prefill_ns, decoding_ns, percent) != much >> worker & 1:
            much ^= 1 << worker
        load = loads[worker] = prefill_ns + decoding_ns if by_window else terms.open_load(one)
        if not anew and (load < loads[light] or (load == loads[light] and worker < light)):
            light = worker
    return Work(terms, tuple(loads), lightest(loads) if anew and loads else light, much)
