"""The requests that E2 sent, summed per worker, and how long requests of each prefix waited.

**Sent.**  A request is recorded when it is sent and gets its output when it ends.  It leaves the window when it is H
old, and the sums with it.  So each request costs O(1) (the log of their number, for the maps), and a decision reads
only the sums.  Requests sent to a worker that left are forgotten at once: none waits there any more.

**Waits.**  They tell E2 when one worker for a prefix is no longer enough.  Time is cut into halves of the window, and
the mean wait of the current half is compared with that of the half before it.  A prefix is a node of the index; it is
forgotten when it brought no request of the window to a worker.

**Work.**  The work of each worker's requests is kept at hand: a decision reads it, and only what changed is priced
anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.serialization import Derived
from fairsched.policies.routers.e2.choice import decodes_much, lightest
from fairsched.policies.routers.e2.cost import Prices

UNKNOWN = -1
"""The output of a request that has not ended."""


class PlacedPrompt(msgspec.Struct, frozen=True, gc=False):
    """Request `request_id` went to `worker` at `sent_ns`, as the `number`th.

    Its prefill was priced at `prefill_ns` there, `missed_tokens` of its `prompt_tokens` were not cached.  `prefix` is
    the node of the index that brought it there (the root: none did).  `waits` until it was admitted once.
    """

    number: int
    request_id: int
    worker: int
    sent_ns: int
    prefix: int
    prefill_ns: int
    prompt_tokens: int
    missed_tokens: int
    output_tokens: int = UNKNOWN
    waits: bool = True


class WindowSums(msgspec.Struct, frozen=True, gc=False):
    """Of the requests of the window sent to one worker: how many, what their prefills cost, their prompts' tokens; how
    many of them ended with an output, and the outputs' tokens.  Of those under way there, in the window or not: how
    many, what their prefills cost, their prompts' tokens, in all and without those cached."""

    requests: int = 0
    prefill_ns: int = 0
    prompt_tokens: int = 0
    outputs: int = 0
    output_tokens: int = 0
    open_requests: int = 0
    open_prefill_ns: int = 0
    open_prompt_tokens: int = 0
    open_missed_tokens: int = 0


NO_SUMS = WindowSums()


def _closed(old: WindowSums, sent: PlacedPrompt, outputs: int = 0, output_tokens: int = 0) -> WindowSums:
    """Return the sums without a request under way, which had so many outputs of so many tokens in all."""
    return WindowSums(
        old.requests,
        old.prefill_ns,
        old.prompt_tokens,
        old.outputs + outputs,
        old.output_tokens + output_tokens,
        old.open_requests - 1,
        old.open_prefill_ns - sent.prefill_ns,
        old.open_prompt_tokens - sent.prompt_tokens,
        old.open_missed_tokens - sent.missed_tokens,
    )


def _put(sums: Map[int, WindowSums], worker: int, new: WindowSums) -> Map[int, WindowSums]:
    """Return the sums with those of a worker; one without requests has none."""
    return sums.set(worker, new) if new.requests or new.open_requests else sums.delete(worker)


class History(msgspec.Struct, frozen=True, gc=False):
    """Requests of the window by number and of those under way by id, with the sums of each worker.

    Numbers are given in the order of sending; all below `oldest` left the window.
    """

    window: Map[int, PlacedPrompt] = Map()
    open: Map[int, PlacedPrompt] = Map()
    sums: Map[int, WindowSums] = Map()
    next_number: int = 0
    oldest: int = 0

    def sent(self, sent: PlacedPrompt) -> "History":
        """Return a copy with a request, whose number is `next_number`.  One of this id under way elsewhere is gone
        there.

        O(log n).
        """
        before, sums, worker = self.open.get(sent.request_id), self.sums, sent.worker
        if before is not None:
            sums = _put(sums, before.worker, _closed(sums[before.worker], before))
        old, prefill_ns, prompt_tokens = sums.get(worker, NO_SUMS), sent.prefill_ns, sent.prompt_tokens
        new = WindowSums(
            old.requests + 1,
            old.prefill_ns + prefill_ns,
            old.prompt_tokens + prompt_tokens,
            old.outputs,
            old.output_tokens,
            old.open_requests + 1,
            old.open_prefill_ns + prefill_ns,
            old.open_prompt_tokens + prompt_tokens,
            old.open_missed_tokens + sent.missed_tokens,
        )
        number = sent.number
        window, under_way = self.window.set(number, sent), self.open.set(sent.request_id, sent)
        return History(window, under_way, sums.set(worker, new), number + 1, self.oldest)

    def admitted(self, sent: PlacedPrompt) -> "History":
        """Note that a request under way waits no longer.  O(log n)."""
        return replace(self, open=self.open.set(sent.request_id, replace(sent, waits=False)))

    def ended(self, sent: PlacedPrompt, output_tokens: int) -> "History":
        """End a request under way; with its output, if it has one.  O(log n)."""
        window, sums, worker, outputs = self.window, self.sums, sent.worker, 0
        if output_tokens != UNKNOWN and sent.number in window:
            window, outputs = window.set(sent.number, replace(sent, output_tokens=output_tokens)), 1
        new = _closed(sums[worker], sent, outputs, output_tokens * outputs)
        under_way = self.open.delete(sent.request_id)
        return History(window, under_way, _put(sums, worker, new), self.next_number, self.oldest)

    def expired(self, until_ns: int) -> tuple["History", tuple[PlacedPrompt, ...]]:
        """Let what was sent at `until_ns` or before leave the window; also what did.  O(1), and O(log n) for each."""
        window, sums, oldest = self.window, self.sums, self.oldest
        gone: tuple[PlacedPrompt, ...] = ()
        while oldest < self.next_number:
            sent = window.get(oldest)
            if sent is not None:
                if sent.sent_ns > until_ns:
                    break
                worker = sent.worker
                old, outputs, output_tokens = sums[worker], 0, 0
                if sent.output_tokens != UNKNOWN:
                    outputs, output_tokens = 1, sent.output_tokens
                new = replace(
                    old,
                    requests=old.requests - 1,
                    prefill_ns=old.prefill_ns - sent.prefill_ns,
                    prompt_tokens=old.prompt_tokens - sent.prompt_tokens,
                    outputs=old.outputs - outputs,
                    output_tokens=old.output_tokens - output_tokens,
                )
                window, sums, gone = window.delete(oldest), _put(sums, worker, new), (*gone, sent)
            oldest += 1
        if oldest == self.oldest:
            return self, ()
        return History(window, self.open, sums, self.next_number, oldest), gone

    def without(self, worker: int) -> tuple["History", tuple[PlacedPrompt, ...]]:
        """Return a copy without what was sent to a worker; also what of that was in the window.  O(all requests)."""
        if worker not in self.sums:
            return self, ()
        gone = tuple(sent for _, sent in sorted(self.window.items()) if sent.worker == worker)
        window, still = self.window.mutate(), self.open.mutate()
        for sent in gone:
            del window[sent.number]
        for request_id, sent in self.open.items():
            if sent.worker == worker:
                del still[request_id]
        return History(window.finish(), still.finish(), self.sums.delete(worker), self.next_number, self.oldest), gone

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds.  O(all requests)."""
        # Requests of the window have numbers that were given and have not left it; later numbers were sent later.
        assert all(self.oldest <= n < self.next_number and s.number == n for n, s in self.window.items())
        times = [self.window[n].sent_ns for n in sorted(self.window)]
        assert times == sorted(times)
        # Sums are the sums of what is there, and no worker without requests has any.
        assert dict(self.sums) == _summed(self.window.values(), self.open.values())
        # Requests are under way under their own id, without an output.
        assert all(s.request_id == i and s.output_tokens == UNKNOWN for i, s in self.open.items())


def _summed(window: Iterable[PlacedPrompt], under_way: Iterable[PlacedPrompt]) -> dict[int, WindowSums]:
    """Return the sums anew."""
    totals: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 9)
    for sent in window:
        ended = sent.output_tokens != UNKNOWN
        sizes = [1, sent.prefill_ns, sent.prompt_tokens, int(ended), ended * sent.output_tokens, 0, 0, 0, 0]
        totals[sent.worker] = [a + b for a, b in zip(totals[sent.worker], sizes, strict=True)]
    for sent in under_way:
        sizes = [0, 0, 0, 0, 0, 1, sent.prefill_ns, sent.prompt_tokens, sent.missed_tokens]
        totals[sent.worker] = [a + b for a, b in zip(totals[sent.worker], sizes, strict=True)]
    return {worker: WindowSums(*total) for worker, total in totals.items()}


# --- queueing times by prefix -----------------------------------------------------------------------------------------


class Waits(msgspec.Struct, frozen=True, gc=False):
    """How long requests of one prefix waited in half `half` and the half before; it has `requests` in the window."""

    requests: int = 0
    half: int = 0
    count: int = 0
    wait_ns: int = 0
    count_before: int = 0
    wait_before_ns: int = 0

    def at(self, half: int) -> "Waits":
        """Return the same in a later half.  O(1)."""
        if half <= self.half:
            return self
        if half == self.half + 1:
            return Waits(self.requests, half, 0, 0, self.count, self.wait_ns)
        return Waits(self.requests, half)

    def doubled(self, half: int) -> bool:
        """Return whether the mean wait of this half is at least twice that of the half before.

        Both halves must have seen an admission, so not if there was none yet in this one; means are compared exactly.
        O(1).
        """
        if half > self.half or not self.count or not self.count_before:
            return False
        return self.wait_ns * self.count_before >= 2 * self.wait_before_ns * self.count

    def at_least(self, floor_ns: int) -> bool:
        """Return whether the mean wait of the latest half is so long.  O(1)."""
        return self.wait_ns >= floor_ns * self.count


NO_WAITS = Waits()
WaitsByPrefix = Map[int, Waits]


def wait_sent(waits: WaitsByPrefix, prefix: int) -> WaitsByPrefix:
    """Return a copy with a request more that the prefix brought to a worker.  O(log n)."""
    old = waits.get(prefix)
    return waits.set(prefix, Waits(1) if old is None else replace(old, requests=old.requests + 1))


def wait_gone(waits: WaitsByPrefix, prefix: int) -> WaitsByPrefix:
    """Return a copy with one less in the window; a prefix without any is forgotten.  O(log n)."""
    old = waits[prefix]
    if old.requests == 1:
        return waits.delete(prefix)
    return waits.set(prefix, replace(old, requests=old.requests - 1))


def waited(waits: WaitsByPrefix, prefix: int, half: int, wait_ns: int) -> WaitsByPrefix:
    """Return a copy with a request that was admitted in this half after `wait_ns`.  O(log n)."""
    old = waits.get(prefix)
    if old is None:
        return waits
    now = old.at(half)
    count, total = now.count + 1, now.wait_ns + wait_ns
    return waits.set(prefix, Waits(now.requests, now.half, count, total, now.count_before, now.wait_before_ns))


def wait_restarted(waits: WaitsByPrefix, prefix: int) -> WaitsByPrefix:
    """Restart the wait of a prefix that has a worker more: what was measured without it no longer counts.  O(log n)."""
    return waits.set(prefix, Waits(waits[prefix].requests)) if prefix in waits else waits


# --- work -------------------------------------------------------------------------------------------------------------


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
