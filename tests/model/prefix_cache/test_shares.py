"""The order of eviction for stores: floors are kept, the client most over its share goes first."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import CachedBlock, EvictionOrder, by_cost, by_last_use, by_share, eviction_order

BLOCKS = st.lists(
    st.builds(
        lambda clients, last_use, tokens, cost: (tuple(sorted(clients)), last_use, tokens, cost),
        st.sets(st.integers(0, 3), max_size=3),
        st.integers(0, 9),
        st.integers(1, 5),
        st.integers(0, 5),
    ),
    max_size=30,
).map(lambda rows: [CachedBlock(i, *row) for i, row in enumerate(rows)])
FLOORS = st.dictionaries(st.integers(0, 3), st.integers(0, 20))
RUNNING = st.dictionaries(st.integers(0, 3), st.integers(0, 9))
ORDERS = st.sampled_from((by_last_use, by_share, by_cost))


def held(blocks: list[CachedBlock], running: dict[int, int]) -> Counter[int]:
    """What each client holds."""
    of = Counter(running)
    for block in blocks:
        of.update(dict.fromkeys(block.clients, block.tokens))
    return of


@given(BLOCKS, FLOORS, RUNNING, st.integers(0, 80), ORDERS)
def test_no_block_goes_of_a_client_that_holds_at_most_its_floor(
    blocks: list[CachedBlock], floors: dict[int, int], running: dict[int, int], tokens: int, order: EvictionOrder
) -> None:
    """By whatever order; and where fewer tokens than asked for are freed, no block is left that may go."""
    left, has = {block.item: block for block in blocks}, held(blocks, running)
    gone = eviction_order(blocks, floors, tokens, running, order)
    freed = 0
    for item in gone:
        assert freed < tokens
        block = left.pop(item)
        assert all(has[client] > floors.get(client, 0) for client in block.clients)
        has.subtract(dict.fromkeys(block.clients, block.tokens))
        freed += block.tokens
    if freed < tokens:
        for block in left.values():
            assert any(has[client] <= floors.get(client, 0) for client in block.clients)


@given(BLOCKS, FLOORS, RUNNING)
def test_the_next_block_is_of_the_client_most_over_its_share(
    blocks: list[CachedBlock], floors: dict[int, int], running: dict[int, int]
) -> None:
    """Each block that goes has the greatest excess of all that may, and of these the earliest use."""
    left, has = {block.item: block for block in blocks}, held(blocks, running)

    def rank(block: CachedBlock) -> tuple[int, int]:
        over = [has[client] - floors.get(client, 0) for client in block.clients]
        return -min(over, default=1 << 62), block.last_use

    for item in eviction_order(blocks, floors, 1 << 20, running):
        best = min(rank(block) for block in left.values() if rank(block)[0] < 0)
        block = left.pop(item)
        assert rank(block) == best
        has.subtract(dict.fromkeys(block.clients, block.tokens))


@pytest.mark.parametrize(("order", "gone"), [(by_last_use, [0, 1]), (by_share, [2, 0]), (by_cost, [1, 2])])
def test_orders_differ_in_whose_block_is_worth_least(order: EvictionOrder, gone: list[int]) -> None:
    """Used first, of the client that holds most, and used first with what it would cost to compute it again."""
    blocks = [
        CachedBlock(0, (0,), 1, 1, 9),
        CachedBlock(1, (0,), 2, 1),
        *(CachedBlock(i, (1,), i + 1, 1) for i in (2, 3, 4)),
    ]
    assert eviction_order(blocks, {}, 2, order=order) == gone
