"""The work of each worker's requests, kept at hand: a decision reads it, and only what changed is priced anew."""

from collections.abc import Iterable, Sequence

import attrs

from fairsched.model.serialization import Derived
from fairsched.policies.routers.e2.choice import decodes_much
from fairsched.policies.routers.e2.cost import Prices
from fairsched.policies.routers.e2.history import NO_SUMS, History, Sums


@attrs.frozen
class Terms:
    """All that the work of requests depends on, beside the requests: prices, the mean output of a worker of which no
    request has ended, the share of decoding that is much, and whether L counts the window or what is under way."""

    prices: Prices
    prior_output_tokens: int
    decode_share_percent: int
    by_window: bool

    def mean_output(self, sums: Sums) -> tuple[int, int]:
        """The tokens of how many outputs give the mean of a worker."""
        return (sums.output_tokens, sums.outputs) if sums.outputs else (self.prior_output_tokens, 1)

    def decode_ns(self, sums: Sums, window: Sums) -> int:
        """What decoding of requests takes; a mean output is that of the requests of the window that ended, whichever
        requests are counted."""
        return self.prices.decode_ns(sums.requests, sums.prompt_tokens, *self.mean_output(window))

    def load(self, window: Sums) -> int:
        """L of the window's requests of a worker."""
        return window.prefill_ns + self.decode_ns(window, window)


class Work(Derived, frozen=True, eq=False, gc=False):
    """Of each worker, by its id: its load L, the prefills and the decoding of its window, in nanoseconds, and whether
    decoding is much of that.

    It is of the history as that was before the requests of the workers in `changed` changed.
    """

    terms: Terms | None = None
    loads: tuple[int, ...] = ()
    prefill_ns: tuple[int, ...] = ()
    decode_ns: tuple[int, ...] = ()
    much: tuple[bool, ...] = ()
    changed: tuple[int, ...] = ()

    def after(self, worker: int) -> "Work":
        """The same after requests of the worker changed.  O(1)."""
        changed = (*self.changed, worker)
        return Work(self.terms, self.loads, self.prefill_ns, self.decode_ns, self.much, changed)

    def of(self, workers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[bool, ...]]:
        """Loads, prefills, decoding and whether that is much, of these workers.  O(workers)."""
        known = len(self.loads)
        loads, prefill_ns, decode_ns = (
            tuple([column[i] if i < known else 0 for i in workers])
            for column in (self.loads, self.prefill_ns, self.decode_ns)
        )
        return loads, prefill_ns, decode_ns, tuple([i < known and self.much[i] for i in workers])


NO_WORK = Work()


def worked(work: Work, history: History, terms: Terms) -> Work:
    """The work of a history from what is known of it.  O(workers that changed), and a copy for all."""
    changed: Iterable[int] = work.changed
    if work.terms != terms:
        work, changed = Work(terms), {*history.sums, *history.open_sums}
    elif not changed:
        return work
    more = max(changed, default=-1) + 1 - len(work.loads)
    loads, prefill_ns, decode_ns, much = [*work.loads], [*work.prefill_ns], [*work.decode_ns], [*work.much]
    if more > 0:
        for column in (loads, prefill_ns, decode_ns):
            column += [0] * more
        much += [False] * more
    for worker in changed:
        window = history.sums.get(worker, NO_SUMS)
        prefills, decoding = window.prefill_ns, terms.decode_ns(window, window)
        prefill_ns[worker], decode_ns[worker] = prefills, decoding
        much[worker] = decodes_much(prefills, decoding, terms.decode_share_percent)
        if terms.by_window:
            loads[worker] = prefills + decoding
        else:
            opened = history.open_sums.get(worker, NO_SUMS)
            loads[worker] = opened.prefill_ns + terms.decode_ns(opened, window)
    return Work(terms, tuple(loads), tuple(prefill_ns), tuple(decode_ns), tuple(much))
