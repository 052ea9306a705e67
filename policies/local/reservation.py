"""Whether one more request fits by what is foreseen of outputs: the rules of admission under which outputs grow.

Source: TetriInfer's decode scheduler (greedy, reserve-static, reserve-dynamic), and Aladdin's constraint (e).  A
request has a predicted output; what it holds grows by a token a step until its predicted end.  By a batching rule's
`reserve`:

    optimistic          greedy: what fits now
    predicted           reserve-static: the peaks of all requests fit together, whenever each of them comes
    predicted-printed   the same as printed: the new peak fits beside what is in use, and running ones grow all the same
    first-finish        reserve-dynamic: it fits when the first of those that run has left; what comes later is not seen
    profile             it fits in every step until all have left, in lock-step

All rules ask what fits now, too.  `predicted` and `profile` never run short of memory if no output is longer than
predicted (P-TI-1), and `profile` admits whatever `predicted` admits (P-TI-3).  The other two run short with perfect
predictions (F-TI-1, F-TI-2).  TetriInfer predicts a bucket and counts its lower end, with which no rule is safe
(F-TI-3); which end is predicted is a matter of the predictor.

The functions of slack are plain arithmetic on integers; 0 or more means that it fits.  They count what each request
holds of its own: a prefix that it shares is protected as long as the other requests need it, and counts as held for
ever.
"""

from bisect import insort
from collections.abc import Sequence

from fairsched.model.decision import WorkerView
from fairsched.model.machine import Performance
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.batching import Batch, Batching
from fairsched.policies.local.state import AnyLocalState
from fairsched.policies.orders import QueuedRequest, predicted
from fairsched.policies.placement.aladdin import PREDICTIONS_BOUND, Amount, profile_of, profile_slack

NO_OTHER = Assumption("NoOtherAllocator", "No other memory of the worker is taken than by requests that are let in.")

P_TI_1 = Theorem(
    "P-TI-1",
    "under `predicted` and `profile` the requests of a worker never hold more than there is, for any number of them",
    "TetriInfer's reserve-static with the peaks of running requests counted, Aladdin's (e); this library",
    (PREDICTIONS_BOUND, NO_OTHER),
    bound="kv_capacity_tokens",
)
P_TI_3 = Theorem(
    "P-TI-3",
    "at the same state `profile` admits every request that `predicted` admits",
    "this library",
)

TOKENS = Performance(0, 0, 0, 0, 0)
"""Memory in tokens: a token of context is one, and a request takes none beside that."""


# --- kernels ----------------------------------------------------------------------------------------------------------


def peak_slack(free: Amount, growth: Amount, size: Amount, output: Amount) -> Amount:
    """reserve-static as meant: what is left of `free` when all that run have grown by `growth`, beside a new request of
    `size` with so much output."""
    return free - growth - size - output


def peak_slack_printed(free: Amount, growth: Amount, size: Amount, output: Amount) -> Amount:
    """reserve-static as printed: running requests hold what they hold now."""
    return free - size - output


def first_finish_slack(free: Amount, count: Amount, first: Amount, freed: Amount, new: Amount) -> Amount:
    """reserve-dynamic: what is left after `first` steps beside a request that holds `new` then, when one of `count`
    that grow has left, which holds `freed` now."""
    return free - count * first + (freed + first) - new


def steps_refused(shortage: Amount, first: Amount) -> Amount:
    """Return for how many steps at least a request stays refused that lacks so much, with the first to leave after
    `first`.

    One that comes a step later holds one token less at each moment to come.
    """
    return shortage if shortage <= first else first


# --- one decision -----------------------------------------------------------------------------------------------------


class Foreseen:
    """What the requests of a worker are foreseen to hold in the steps to come, in one decision: mutable.

    `free` is what is left beside what they hold now.  Of those that decode, `entries` lists (steps left, tokens held
    now); what they hold after k steps is k more.  Requests that do not decode have their peaks reserved, since it is
    not known when they begin, or go on.
    """

    def __init__(self, batching: Batching, state: AnyLocalState, view: WorkerView, batch: Batch, free: int) -> None:
        """Sort the running requests, in O(n log n) for n of them.  `free` is without what this step's output takes, as
        decisions have it."""
        self._rule = batching.reserve
        # A request that is prefilled in a step in which no other decodes is one token ahead of them.
        self._ahead = int(batching.prefills_alone)
        self.entries: list[tuple[int, int]] = []
        self.free = free
        self._later = 0
        chunks = {request_id for request_id, _ in (*batch.chunks, *batch.postponed)}
        for request_id, flight in state.flights.items():
            there = view.in_flight.get(request_id)
            if there is None or there.reserved:
                continue
            produced = view.decoded_tokens(request_id)
            left = _left(flight.entry, produced)
            if not there.decodes:
                self.free += request_id in chunks
                self._later += left
            else:
                self.free += batch.decode
                self.entries.append((left, there.kv_tokens + produced))
        self.entries.sort()
        self._growth = self._later + sum(left for left, _ in self.entries)

    def slack_beside(self, entry: QueuedRequest, size: int, pinned: int, whole: bool) -> int:
        """Return what is left if the entry enters and protects `pinned` more tokens; at most that where it fits.

        O(1) where it fits with all peaks together, and so in every step (P-TI-3).
        """
        if self._rule == "profile":
            by_peaks: int = peak_slack(self.free - pinned, self._growth, size, _left(entry, 0))
            if by_peaks >= 0:
                return by_peaks
        return self.slack(entry, size, whole) - pinned

    def slack(self, entry: QueuedRequest, size: int, whole: bool) -> int:
        """Return what is left if the entry enters with `size` tokens of its own; `whole`: it is prefilled in this
        step."""
        output, entries = _left(entry, 0), self.entries
        if self._rule == "predicted":
            return int(peak_slack(self.free, self._growth, size, output))
        if self._rule == "predicted-printed":
            return int(peak_slack_printed(self.free, self._growth, size, output))
        if self._rule == "first-finish":
            if not entries:
                return 0
            first, freed = entries[0]
            return int(first_finish_slack(self.free, len(entries), first, freed, size + min(first, output)))
        return self._profile_slack(size, output, whole)

    def enter(self, entry: QueuedRequest, size: int, pinned: int, whole: bool) -> None:
        """Enter the entry, which protects `pinned` more tokens of cached prefixes.  O(n)."""
        self.free -= size + pinned
        left = _left(entry, 0)
        if whole:
            left -= self._ahead
            insort(self.entries, (left, size + self._ahead))
        else:
            self._later += left
        self._growth += left

    def steps_refused(self, slack: int) -> int | None:
        """Return for how many decode steps a request stays refused that lacks something; None: until something happens.

        Peaks are the same until a request outlives its prediction, and then they only rise.
        """
        if self._rule in ("predicted", "predicted-printed") or not self.entries:
            return None
        steps: int = steps_refused(-slack, self.entries[0][0])
        return steps

    def _profile_slack(self, size: int, output: int, whole: bool) -> int:
        capacity = self.free - self._later + sum(held for _, held in self.entries)
        if not whole:
            return capacity - most_held(self.entries) - size - output
        profile = profile_of(TOKENS, self.entries)
        slack: int = profile_slack(TOKENS, capacity, profile, output - self._ahead, size + self._ahead)
        return slack


def most_held(entries: Sequence[tuple[int, int]]) -> int:
    """Return the most that requests of (steps left, tokens held now), ends ascending, hold together at one of their
    ends."""
    held, most = sum(level for _, level in entries), 0
    for place, (end, level) in enumerate(entries):
        at_end = held + (len(entries) - place) * end
        most = at_end if at_end > most else most
        held -= level
    return most


def _left(entry: QueuedRequest, produced: int) -> int:
    """Return how many tokens a request is foreseen to produce yet; one that outlived its prediction produces one
    more."""
    return max(predicted(entry.request) - entry.generated_tokens - produced, 1)
