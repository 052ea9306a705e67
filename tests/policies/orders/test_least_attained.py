"""Least attained service with a half-life: each admission is the one that llm-d-router's rule names."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import LAS
from fairsched.policies.orders import AttainedService, LeastAttained
from fairsched.verify.conformance import WorkerPlay, admitted

NS_PER_S = 10**9
HALF_LIFE_S = 4
GRAIN = 64
"""Costs are multiples of it, so that halving them a few times leaves integers."""


def weight(at_s: int, half_life_s: int) -> Fraction:
    """What service at a time weighs: it doubles in each half-life, in a line."""
    if not half_life_s:
        return Fraction(1)
    return Fraction(2) ** (at_s // half_life_s) * (1 + Fraction(at_s % half_life_s, half_life_s))


@pytest.mark.parametrize("half_life_s", [HALF_LIFE_S, 0])
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=16),
    wait_percent=st.integers(0, 100),
)
def test_the_best_score_is_let_in(half_life_s: int, rows: list[tuple[int, int, int]], wait_percent: int) -> None:
    """One call a step of a second: scores by what each program's calls that ended cost, decayed to that time, and by
    waits until then, each over its range; of equals the older is next."""
    order = LeastAttained(half_life_ms=1_000 * half_life_s, wait_percent=wait_percent)
    play = WorkerPlay(LAS(order=order, batching=RequestLevel(max_running=1)), WorkerState(0, 1_000))
    due = [sum(gap for gap, *_ in rows[: i + 1]) for i in range(len(rows))]
    waiting: dict[int, list[int]] = {}
    service = dict.fromkeys(range(4), Fraction(0))

    def share(value: Fraction, values: list[Fraction]) -> Fraction:
        low, high = min(values), max(values)
        return (value - low) / (high - low) if high > low else Fraction(1, 2)

    for step in range(due[-1] + len(rows) + 1):
        for i in (i for i, at in enumerate(due) if at == step):
            _, program, size = rows[i]
            play.arrive(Request(i, program, step * NS_PER_S, Prompt(GRAIN * size - 2), 1), 1, step * NS_PER_S)
            waiting.setdefault(program, []).append(i)
        had = {p: service[p] / weight(step, half_life_s) for p in waiting}
        waits = {p: Fraction(step - due[calls[0]]) for p, calls in waiting.items()}
        for i in admitted(play.step(step * NS_PER_S)):
            _, program, size = rows[i]
            scores = {
                p: (100 - wait_percent) * (1 - share(had[p], [*had.values()]))
                + wait_percent * share(waits[p], [*waits.values()])
                for p in waiting
            }
            assert program == max(waiting, key=lambda p: (scores[p], -waiting[p][0]))
            assert i == waiting[program].pop(0)
            waiting = {p: calls for p, calls in waiting.items() if calls}
            service[program] += GRAIN * size * weight(step, half_life_s)
    assert not waiting


def test_service_counts_half_after_a_half_life_and_is_forgotten() -> None:
    """Sums stay small whatever the clock says, and a clock that goes back changes no sum."""
    order, kept = LeastAttained(half_life_ms=1_000), AttainedService()
    call, year_s = Request(0, 7, 0, Prompt(8), 1), 31_536_000
    kept = kept.finished(order, call, 1, year_s * NS_PER_S)
    assert dict(kept.attained) == {7: 10 * 1_000}
    kept = kept.finished(order, call, 1, (year_s + 1) * NS_PER_S)
    assert dict(kept.attained) == {7: (5 + 10) * 1_000}
    assert dict(kept.finished(order, call, 1, 0).attained) == {7: 25 * 1_000}
    other = Request(1, 8, 0, Prompt(1), 1)
    assert set(kept.finished(order, other, 1, (year_s + 15) * NS_PER_S).attained) == {8}
