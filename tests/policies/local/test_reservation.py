"""Admission by predicted outputs: which rules never run short of memory, and which of them admits more."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fairsched.model.decision import WorkerView
from fairsched.model.events import Preempted
from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import BATCHINGS, Batch, Batching, Chunked, EagerPrefill, Reserve
from fairsched.policies.catalog import FCFS
from fairsched.policies.local.reservation import Foreseen, first_finish_slack, most_held, peak_slack, steps_refused
from fairsched.policies.orders import QueuedRequest
from tests.support.policy_play import Play

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(1, 12), st.integers(0, 5)), max_size=12)
"""Requests as (steps after the one before, prompt, output, how much more was predicted)."""
SAFE: tuple[Reserve, ...] = ("predicted", "profile")


def preemptions(batching: Batching, capacity: int, rows: list[tuple[int, int, int, int]]) -> int:
    """How many requests lose their memory until all are served."""
    play = Play(FCFS(batching=batching), capacity)
    for gap, prompt, output, more in rows:
        play.step(gap)
        play.arrive(prompt=prompt, output=output, output_max=output + more, predicted_output_tokens=output + more)
    served(play)
    return sum(isinstance(event, Preempted) for event in play.events)


def served(play: Play) -> None:
    """Take steps until no request is left."""
    for _ in range(2_000):
        if not play.worker.queue and not play.worker.running:
            return
        play.step()
    raise AssertionError("requests are never served")


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("reserve", SAFE)
@settings(max_examples=25)
@given(rows=ROWS, capacity=st.integers(30, 60))
def test_safe_rules_never_run_short(
    batching: str, reserve: Reserve, rows: list[tuple[int, int, int, int]], capacity: int
) -> None:
    """With outputs no longer than predicted no request is preempted, whatever the batching rule, and all are served."""
    rule = BATCHINGS[batching](max_batched_tokens=7, max_running=6, reserve=reserve)
    assert preemptions(rule, capacity, rows) == 0


ENTRIES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), max_size=8).map(sorted)


def foreseen(reserve: Reserve, entries: list[tuple[int, int]], later: int, free: int, eager: bool) -> Foreseen:
    """One decision in which these decode (steps left, tokens held), and `later` tokens are reserved for others."""
    rule = (EagerPrefill if eager else Chunked)(reserve=reserve)
    policy = FCFS(batching=rule)
    empty: WorkerView = Play(policy).worker.view(0)
    made = Foreseen(rule, policy.init(), empty, Batch([], 0, 1), free)
    made.entries, made._later, made._growth = list(entries), later, later + sum(left for left, _ in entries)
    return made


@given(ENTRIES, st.integers(0, 30), st.integers(0, 200), st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_profile_admits_what_peaks_admit(
    entries: list[tuple[int, int]], later: int, free: int, size: int, output: int, eager: bool
) -> None:
    """At any state a request that fits by peaks fits by profile, in one step or in several (P-TI-3)."""
    entry = QueuedRequest(Request(0, 0, 0, Prompt(size), output), 0, 0)
    for whole in (True, False):
        peaks = foreseen("predicted", entries, later, free, eager).slack(entry, size, whole)
        profile = foreseen("profile", entries, later, free, eager).slack(entry, size, whole)
        assert profile >= peaks
        for pinned in (0, 5, max(peaks, 0), max(profile, 0)):
            beside = foreseen("profile", entries, later, free, eager).slack_beside(entry, size, pinned, whole)
            assert beside <= profile - pinned
            assert (beside >= 0) is (profile - pinned >= 0)


@given(ENTRIES, st.integers(0, 200), st.integers(1, 30), st.integers(1, 30))
def test_profile_is_the_fullest_step(entries: list[tuple[int, int]], free: int, size: int, output: int) -> None:
    """The slack is what is left in the fullest step until the request ends, counted step by step."""
    entry = QueuedRequest(Request(0, 0, 0, Prompt(size), output), 0, 0)
    everyone = [*entries, (output, size)]
    capacity = free + sum(held for _, held in entries)
    held = [sum(level + k for end, level in everyone if end >= k) for k in range(output + 1)]
    assert foreseen("profile", entries, 0, free, eager=False).slack(entry, size, True) == capacity - max(held)
    last = max((end for end, _ in entries), default=0)
    alone = [sum(level + k for end, level in entries if end >= k) for k in range(1, last + 1)]
    assert most_held(entries) == max(alone, default=0)


@given(ENTRIES.filter(bool), st.integers(0, 60), st.integers(1, 30), st.integers(1, 30))
def test_a_refusal_stands_as_long_as_it_says(entries: list[tuple[int, int]], free: int, size: int, output: int) -> None:
    """While the running requests only decode, one that was refused is refused in each step before the one named."""
    entry = QueuedRequest(Request(0, 0, 0, Prompt(size), output), 0, 0)
    for reserve in ("first-finish", "profile", "predicted"):
        now = foreseen(reserve, entries, 0, free, eager=False)
        slack = now.slack(entry, size, True)
        if slack >= 0:
            continue
        steps = now.steps_refused(slack)
        for step in range(1, min(steps if steps is not None else 99, entries[0][0])):
            moved = [(end - step, held + step) for end, held in entries]
            later = foreseen(reserve, moved, 0, free - step * len(entries), eager=False)
            assert later.slack(entry, size, True) < 0


def test_where_none_decodes_the_first_to_finish_frees_nothing() -> None:
    """The printed rule leaves what fits now, to the token: a request that protects one more is refused."""
    entry = QueuedRequest(Request(0, 0, 0, Prompt(5), 9), 0, 0)
    assert foreseen("first-finish", [], 0, 20, eager=False).slack(entry, 5, True) == 0


def test_the_examples_of_the_kernels() -> None:
    """The paper's rule admits into 11 tokens what the peaks refuse: A holds 1 and ends first, B grows by ten."""
    assert first_finish_slack(free=9, count=2, first=1, freed=1, new=8) >= 0
    assert peak_slack(free=9, growth=11, size=7, output=10) < 0
    assert steps_refused(5, 3) == 3
    assert steps_refused(2, 3) == 2
