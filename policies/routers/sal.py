"""SAL: the worker where a request waits least for memory and for the prompts before it.

Source: the SAL load balancer, equation 2, which `SALPrinted` keeps as printed.  With T tokens a step, B requests
running, mean input and output lengths mu_in and mu_out, and a prompt of N tokens,

    load = max( max(0, N - free) / ((mu_in / mu_out) B),  (queued + N) / T )        in steps.

The second term is how long the backlog of prompts takes.  The first is how long until enough memory is free: of B
running requests one ends every mu_out / B steps and frees mu_in + mu_out tokens, while each takes one token a step, so
B mu_in / mu_out become free a step.  The printed equation multiplies the deficit by beta = (mu_in + mu_out) / mu_out
instead, which is no time, knows no batch and grows where memory is freed faster.

Loads are ratios of integers and are compared exactly.  `max` hides its smaller term, so of equal loads the one with
the smaller hidden term wins, then with fewer tokens queued, then with more free memory, then the lowest id.

Between two polls of the workers the router adds N to `queued` and takes it from `free` for each request that it sends,
and takes nothing to be over.
"""

from typing import ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.events import Event, Finished, WorkerJoined, WorkerLeft
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import Router
from fairsched.policies.validators import not_negative, positive

# --- mean lengths -----------------------------------------------------------------------------------------------------


class LoadSums(msgspec.Struct, frozen=True):
    """How many inputs and outputs there were in one window, and their tokens."""

    inputs: int = 0
    input_tokens: int = 0
    outputs: int = 0
    output_tokens: int = 0


class WindowMeans(msgspec.Struct, frozen=True):
    """Mean lengths of the requests seen lately, as an exact ratio, in constant memory.

    Sums of the window of this number and of the one before it: a mean covers between one and two windows of the past.
    """

    window: int = 0
    now: LoadSums = LoadSums()
    before: LoadSums = LoadSums()

    def at(self, window: int) -> "WindowMeans":
        if window <= self.window:
            return self
        return WindowMeans(window, LoadSums(), self.now if window == self.window + 1 else LoadSums())

    def with_input(self, window: int, tokens: int) -> "WindowMeans":
        means = self.at(window)
        now = means.now
        grown = LoadSums(now.inputs + 1, now.input_tokens + tokens, now.outputs, now.output_tokens)
        return WindowMeans(means.window, grown, means.before)

    def with_output(self, window: int, tokens: int) -> "WindowMeans":
        means = self.at(window)
        now = means.now
        grown = LoadSums(now.inputs, now.input_tokens, now.outputs + 1, now.output_tokens + tokens)
        return WindowMeans(means.window, grown, means.before)

    def ratio(self, window: int, prior_input_tokens: int, prior_output_tokens: int) -> tuple[int, int]:
        """Mean input over mean output at this window, as numerator and denominator, both positive.

        The priors are positive and count as one input and one output, so that there is a mean from the start.  O(1).
        """
        means = self.at(window)
        now, before = means.now, means.before
        input_tokens = prior_input_tokens + now.input_tokens + before.input_tokens
        output_tokens = prior_output_tokens + now.output_tokens + before.output_tokens
        outputs, inputs = 1 + now.outputs + before.outputs, 1 + now.inputs + before.inputs
        return input_tokens * outputs, output_tokens * inputs


_SOURCE = "SAL, equation 2; statement, correction and proof are of this library"

NO_GROWTH = Assumption("NoGrowth", "Outputs are not thought to grow between polls (`decode_step_us` is not given).")
NO_BUSIER = Assumption("NoBusier", "The worker that is worse in both runs no more requests than the better one.")
ONE_ROUTER = Assumption("OneRouter", "No other router sends requests to the worker.")
OUTPUTS_RESERVED = Assumption("OutputsReserved", "Outputs grow into memory that was not free anyway.")
NOBODY_PREEMPTED = Assumption("NobodyPreempted", "No running request has to wait again.")
NOBODY_WAITED = Assumption("NobodyWaited", "No request waited at the worker when it was polled.")

P_SAL_1 = Theorem(
    "P-SAL-1",
    "a worker with less free memory and a longer queue than another is not chosen",
    _SOURCE,
    (NO_BUSIER, NO_GROWTH),
    rests_on=("P-SAL-least",),
)
P_SAL_1_PRINTED = Theorem(
    "P-SAL-1-printed",
    "as printed: a worker with less free memory and a longer queue than another is not chosen",
    _SOURCE,
    (NO_GROWTH,),
    rests_on=("P-SAL-least",),
)
P_SAL_2 = Theorem("P-SAL-2", "more free memory or fewer queued tokens never raise a worker's load", _SOURCE)
P_SAL_2_PRINTED = Theorem(
    "P-SAL-2-printed", "as printed: more free memory or fewer queued tokens never raise a worker's load", _SOURCE
)
P_SAL_TIES = Theorem(
    "P-SAL-ties",
    "of workers that run as many requests none is chosen that is worse than another in memory or queue and no better "
    "in the other",
    "this library",
    rests_on=("P-SAL-least",),
)
P_SAL_3 = Theorem(
    "P-SAL-3",
    "between two polls free memory is never overestimated, and the queue never underestimated",
    _SOURCE,
    (ONE_ROUTER, OUTPUTS_RESERVED, NOBODY_PREEMPTED, NOBODY_WAITED),
)
P_SAL_LEAST = Theorem(
    "P-SAL-least",
    "the worker chosen has the least load, of equals the least hidden term, queue, and most free memory, in this order",
    _SOURCE,
)


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """What a worker said when it was polled, and what it was sent since.  The free memory may be below 0."""

    kv_free_tokens: int
    queued_tokens: int
    running_requests: int


class SALState(msgspec.Struct, frozen=True):
    """When the workers were polled last (-1: never), what is thought of them since, and the mean lengths."""

    polled_ns: int = -1
    estimates: Map[int, Estimate] = Map()
    means: WindowMeans = WindowMeans()


Terms = tuple[int, int, int, int, int]
"""The larger and the smaller term of a load over a common denominator, which is the third; then what decides between
equal loads, less being better."""


def _polled(load: WorkerLoad) -> Estimate:
    return Estimate(load.kv_free_tokens, load.waiting_tokens, load.running_requests)


@attrs.frozen
class SAL(Router[SALState]):
    """The worker with the least steps to wait, for memory or for prompts queued before, whichever takes longer.

    O(workers), and as much again at a poll.
    """

    name: ClassVar[str] = "sal"
    theorems: ClassVar[tuple[Theorem, ...]] = (P_SAL_1, P_SAL_2, P_SAL_TIES, P_SAL_3, P_SAL_LEAST)
    follows_decoding: ClassVar[bool] = False
    state_type: ClassVar[type[SALState]] = SALState

    max_batched_tokens: int = attrs.field(default=2048, validator=positive)
    """T, tokens that a worker prefills a step; it should be the workers' own (1,024 in the paper)."""
    poll_us: int = attrs.field(default=100_000, validator=not_negative)
    """How often workers are polled; 0: before every request."""
    window_us: int = attrs.field(default=300_000_000, validator=positive)
    """Mean lengths are of the last one to two windows."""
    prior_input_tokens: int = attrs.field(default=1154, validator=positive)
    """Mean input before any request was seen."""
    prior_output_tokens: int = attrs.field(default=211, validator=positive)
    """Mean lengths before anything was seen (the paper's for chat); they count as one request."""
    decode_step_us: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Shortest decode step: each output that ran at the poll counts as a token longer for each such step since.
    None where workers reserve outputs, so that they grow into memory that is not free anyway."""

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        return frozenset() if self.decode_step_us is None else frozenset({NO_GROWTH})

    def check(self, state: SALState) -> None:
        """Check that nothing is known of workers before the first poll."""
        assert state.polled_ns >= -1
        assert all(one.queued_tokens >= 0 and one.running_requests >= 0 for one in state.estimates.values())

    def observe(self, state: SALState, event: Event) -> SALState:
        """Count the length of each output; a worker that is new or gone is not what it was when it was polled."""
        if type(event) is Finished:
            means = state.means.with_output(self._window(event.time_ns), event.output_tokens)
            return SALState(state.polled_ns, state.estimates, means)
        if (type(event) is WorkerJoined or type(event) is WorkerLeft) and event.worker in state.estimates:
            return SALState(state.polled_ns, state.estimates.delete(event.worker), state.means)
        return state

    def route(self, state: SALState, request: Request, view: ClusterView) -> tuple[Dispatch, SALState]:
        now_ns, tokens = view.now_ns, request.prompt.tokens
        polled_ns, estimates = state.polled_ns, state.estimates
        if polled_ns < 0 or now_ns - polled_ns >= self.poll_us * 1_000:
            polled_ns, estimates = now_ns, Map({load.worker: _polled(load) for load in view.workers})
        window = self._window(now_ns)
        ratio = state.means.ratio(window, self.prior_input_tokens, self.prior_output_tokens)
        step_us = self.decode_step_us
        steps = 0 if step_us is None else -((polled_ns - now_ns) // (step_us * 1_000))
        chosen, least = -1, (0, 0, 1, 0, 0)
        for load in view.workers:
            terms = self.terms(tokens, estimates.get(load.worker) or _polled(load), steps, ratio)
            mine, others = terms[0] * least[2], least[0] * terms[2]
            if chosen < 0 or mine < others or (mine == others and _wins_tie(terms, least)):
                chosen, least, reported = load.worker, terms, load
        old = estimates.get(chosen) or _polled(reported)
        sent = Estimate(old.kv_free_tokens - tokens, old.queued_tokens + tokens, old.running_requests)
        means = state.means.with_input(window, tokens)
        return Dispatch(request.id, chosen), SALState(polled_ns, estimates.set(chosen, sent), means)

    def terms(self, tokens: int, estimate: Estimate, steps: int, ratio: tuple[int, int]) -> Terms:
        """Return the load of a worker for a prompt of so many tokens, `steps` decode steps after it was polled.

        `ratio` is mu_in / mu_out; terms are in steps times T and the ratio's numerator, for all workers alike.
        """
        mean_in, mean_out = ratio
        running = estimate.running_requests or 1
        deficit = tokens + steps * estimate.running_requests - estimate.kv_free_tokens
        memory = deficit * mean_out * self.max_batched_tokens if deficit > 0 else 0
        queue = (estimate.queued_tokens + tokens) * mean_in * running
        high, low = (memory, queue) if memory > queue else (queue, memory)
        return high, low, running, estimate.queued_tokens, -estimate.kv_free_tokens

    def _window(self, now_ns: int) -> int:
        return now_ns // (self.window_us * 1_000)


def _wins_tie(one: Terms, other: Terms) -> bool:
    """Return whether the first of two equal loads is the better one."""
    left, right = one[1] * other[2], other[1] * one[2]
    return left < right if left != right else one[3:] < other[3:]


@attrs.frozen
class SALPrinted(SAL):
    """SAL with the load as printed, max(beta (N - free), (queued + N) / T); the lowest id of equals.  For comparison.

    A deficit of one token outweighs a long queue, so its memory term is hardly more than a filter.
    """

    name: ClassVar[str] = "sal-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = (P_SAL_1_PRINTED, P_SAL_2_PRINTED, P_SAL_3, P_SAL_LEAST)

    def terms(self, tokens: int, estimate: Estimate, steps: int, ratio: tuple[int, int]) -> Terms:
        """Return the load as printed, in steps times T and the ratio's denominator; it says nothing of equal loads."""
        mean_in, mean_out = ratio
        deficit = tokens + steps * estimate.running_requests - estimate.kv_free_tokens
        memory = deficit * (mean_in + mean_out) * self.max_batched_tokens
        queue = (estimate.queued_tokens + tokens) * mean_out
        return max(memory, queue), 0, 1, 0, 0
