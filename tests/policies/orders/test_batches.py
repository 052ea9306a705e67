"""Orders that take requests in batches, and the padded pieces in which their prompts are computed."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairsched.policies.batching import Padded
from fairsched.policies.catalog import TetriInferLocal
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import SortedBatches
from fairsched.policies.orders.plain import Sort
from tests.support.policy_play import Play

PROMPTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def pieces(prompts: list[int], batch: int, sort: Sort, tokens: int = 8) -> list[tuple[list[tuple[int, int]], int]]:
    """Chunks and padding of each step until all prompts are computed; outputs are of one token."""
    order, batching = SortedBatches(sort=sort, batch_requests=batch), Padded(max_batched_tokens=tokens)
    play = Play(ComposedPolicy("batches", order, OpenGate(), batching), 1_000)
    for prompt in prompts:
        play.arrive(prompt=prompt, output=1)
    found = []
    while play.worker.queue or play.worker.running:
        plan = play.step()
        found.append((list(plan.chunks), plan.padding_tokens))
    return found


@given(PROMPTS, st.integers(1, 5), st.sampled_from(["arrival", "shortest", "longest"]))
def test_prompts_are_cut_into_pieces_of_one_size(prompts: list[int], batch: int, sort: Sort) -> None:
    """Every step computes as many tokens as a piece has, a batch ends its last piece, and no other piece is padded."""
    steps = pieces(prompts, batch, sort)
    assert all(sum(tokens for _, tokens in chunks) + padding == 8 for chunks, padding in steps)
    batches = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
    assert len(steps) == sum(-(-sum(each) // 8) for each in batches)
    assert sum(padding > 0 for _, padding in steps) == sum(sum(each) % 8 > 0 for each in batches)


@given(PROMPTS, st.integers(1, 5), st.sampled_from(["arrival", "shortest", "longest"]))
def test_a_batch_is_sorted_and_drained(prompts: list[int], batch: int, sort: Sort) -> None:
    """Of requests that wait together each batch is in the order's order, and in the order of arrival among batches."""
    began: list[int] = []
    for chunks, _ in pieces(prompts, batch, sort):
        began += [request for request, _ in chunks if request not in began]
    sign = {"arrival": 0, "shortest": 1, "longest": -1}[sort]
    expected = []
    for first in range(0, len(prompts), batch):
        expected += sorted(range(first, min(first + batch, len(prompts))), key=lambda i: (sign * prompts[i], i))
    assert began == expected


def test_a_later_request_joins_until_its_batch_begins() -> None:
    """Requests that come before the first of a batch is let in are sorted with it; those that come later are not."""
    order = SortedBatches(batch_requests=3)
    play = Play(ComposedPolicy("batches", order, OpenGate(), Padded(max_batched_tokens=4)), 1_000)
    for prompt in (9, 8):
        play.arrive(prompt=prompt, output=1)
    assert play.step().chunks == ((1, 4),)
    play.arrive(prompt=1, output=1)
    play.step()
    began = [play.step().chunks[0][0] for _ in range(4)]
    assert began == [0, 0, 0, 2]


def test_decodes_are_not_padded() -> None:
    """A step that computes no piece of a prompt has no padding."""
    play = Play(TetriInferLocal(), 2_000)
    play.arrive(prompt=10, output=3)
    assert play.step().padding_tokens == 512 - 10
    assert play.step().padding_tokens == 0


@pytest.mark.parametrize("count", [0, -1])
def test_a_batch_has_a_request(count: int) -> None:
    """A batch of none would be empty for ever."""
    with pytest.raises(ValueError, match="batch_requests"):
        SortedBatches(batch_requests=count)
