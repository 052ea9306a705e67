"""SAL: its choice against the equation, figures that its page quotes, and what it remembers.

What is true and false of any number of workers (P-SAL-1 to 3, F-SAL-1 to 3) is in `verify.proofs.routers.sal`.
"""

from fractions import Fraction
from typing import Any

import attrs
import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import WorkerLeft
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import SAL, SALPrinted
from fairsched.policies.routers.sal import Estimate, WindowMeans

CHAT = {"prior_input_tokens": 1365 - 211, "prior_output_tokens": 211, "max_batched_tokens": 1024}
CODE = {"prior_input_tokens": 2074 - 27, "prior_output_tokens": 27, "max_batched_tokens": 1024}
"""beta = 1365/211 and 2074/27 with 1,024 tokens a step, as in the paper."""

small = st.integers(0, 9)
sals = st.builds(
    SAL,
    max_batched_tokens=st.integers(1, 9),
    prior_input_tokens=st.integers(1, 9),
    prior_output_tokens=st.integers(1, 9),
)


def load(worker: int, *, free: int, queued: int = 0, running: int = 1) -> WorkerLoad:
    """What a worker of any size reports."""
    return WorkerLoad(worker, 0, running, queued, free, 1 << 20)


loads = st.builds(load, worker=st.just(0), free=small, queued=small, running=st.integers(0, 4))


@st.composite
def clusters(draw: st.DrawFn) -> list[WorkerLoad]:
    """One to five workers with small loads."""
    drawn = draw(st.lists(loads, min_size=1, max_size=5))
    return [msgspec.structs.replace(one, worker=i) for i, one in enumerate(drawn)]


def request(i: int, tokens: int) -> Request:
    """A request of which only the prompt's length matters."""
    return Request(i, 0, 0, Prompt(tokens), 1)


def choice(router: SAL, workers: list[WorkerLoad], tokens: int) -> int:
    """Where the first request goes."""
    dispatch, _ = router.route(router.init(), request(0, tokens), ClusterView(0, tuple(workers)))
    return dispatch.worker


def printed(router: SAL) -> SALPrinted:
    """The printed variant with the same parameters."""
    return SALPrinted(**attrs.asdict(router))


def terms(router: SAL, one: WorkerLoad, tokens: int) -> tuple[Fraction, Fraction]:
    """The two terms of the equation as it is written, in steps."""
    queue = Fraction(one.waiting_tokens + tokens, router.max_batched_tokens)
    beta = Fraction(router.prior_input_tokens + router.prior_output_tokens, router.prior_output_tokens)
    deficit = tokens - one.kv_free_tokens
    if isinstance(router, SALPrinted):
        return beta * deficit, queue
    return max(0, deficit) / ((beta - 1) * max(1, one.running_requests)), queue


@given(sals, clusters(), st.integers(1, 9))
def test_the_choice_is_the_equation_s(router: SAL, workers: list[WorkerLoad], tokens: int) -> None:
    """The worker chosen has the least load by the equation in fractions, and of equals the one that ties say."""

    def rank(one: WorkerLoad) -> tuple[Any, ...]:
        both = terms(router, one, tokens)
        return max(both), min(both), one.waiting_tokens, -one.kv_free_tokens, one.worker

    assert choice(router, workers, tokens) == min(workers, key=rank).worker
    variant = printed(router)
    least = min(workers, key=lambda one: (max(terms(variant, one, tokens)), one.worker))
    assert choice(variant, workers, tokens) == least.worker


# --- single behaviours ------------------------------------------------------------------------------------------------


def test_growth_is_foreseen_with_the_length_of_a_step() -> None:
    """With `decode_step_us` those who ran at the poll have grown: 4 of them by 3 tokens leave no room for 8 of 10."""
    workers = (load(0, free=10, running=0), load(1, free=10, running=4))
    for router, chosen in ((SAL(), 1), (SAL(decode_step_us=1), 0)):
        _, state = router.route(router.init(), request(0, 1), ClusterView(0, workers))
        dispatch, _ = router.route(state, request(1, 8), ClusterView(3_000, workers))
        assert dispatch.worker == chosen


def test_a_worker_that_could_admit_now_is_not_always_chosen() -> None:
    """F-SAL-1: ours prefers a deficit of one token to a queue of 8,000; the printed form changes its mind between
    78,658 and 78,659 queued tokens, for code."""
    fits, short = load(0, free=100, queued=8_000), load(1, free=99)
    assert choice(SAL(**CHAT), [fits, short], 100) == 1
    assert choice(SALPrinted(**CODE), [fits, short], 100) == 0
    for queued, chosen in ((78_658, 0), (78_659, 1)):
        fits = load(0, free=100, queued=queued - 100)
        assert choice(SALPrinted(**CODE), [fits, short], 100) == chosen


# --- what it remembers ------------------------------------------------------------------------------------------------


def test_reports_count_when_it_polls() -> None:
    """Between polls a new report changes nothing; after `poll_us` it does, and what was sent before is forgotten."""
    router = SAL(poll_us=100)
    old, new = (load(0, free=50), load(1, free=40)), (load(0, free=0, queued=99), load(1, free=40))
    _, state = router.route(router.init(), request(0, 5), ClusterView(0, old))
    assert state.estimates[0] == Estimate(45, 5, 1)
    dispatch, early = router.route(state, request(1, 1), ClusterView(99_999, new))
    assert (dispatch.worker, early.polled_ns) == (1, 0)
    assert early.estimates[0] == Estimate(45, 5, 1)
    _, late = router.route(early, request(2, 1), ClusterView(100_000, new))
    assert (late.polled_ns, late.estimates[0]) == (100_000, Estimate(0, 99, 1))


def test_a_worker_that_left_is_forgotten() -> None:
    """Who comes back under the number of one that left is taken at its word."""
    router = SAL()
    _, state = router.route(router.init(), request(0, 5), ClusterView(0, (load(0, free=50),)))
    state = router.observe(state, WorkerLeft(1, 0))
    _, state = router.route(state, request(1, 5), ClusterView(2, (load(0, free=7, running=0),)))
    assert state.estimates[0] == Estimate(2, 5, 0)


lengths = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 99)), max_size=12)


@given(lengths, small, small)
def test_window_means_are_sums_over_two_windows(steps: list[tuple[int, bool, int]], prior_in: int, later: int) -> None:
    """The ratio is that of the means over the window asked for and the one before it, priors included."""
    means, window, seen = WindowMeans(), 0, []
    for ahead, is_input, tokens in steps:
        window += ahead
        seen.append((window, is_input, tokens))
        means = means.with_input(window, tokens) if is_input else means.with_output(window, tokens)
    assume(prior_in)
    asked = window + later

    def mean(is_input: bool, prior: int) -> Fraction:
        recent = [prior, *(tokens for at, kind, tokens in seen if kind == is_input and at >= asked - 1)]
        return Fraction(sum(recent), len(recent))

    assert Fraction(*means.ratio(asked, prior_in, 7)) == mean(True, prior_in) / mean(False, 7)
