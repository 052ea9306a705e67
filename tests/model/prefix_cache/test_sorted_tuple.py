"""`SortedTuple` against a sorted list, step by step."""

from bisect import insort
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.prefix_cache.sorted_tuple import CHUNK_MIN

Item = tuple[float, float]


def items_of(random: Random, count: int) -> list[Item]:
    """`count` distinct pairs in random order."""
    return [(x // 7, x % 7) for x in random.sample(range(10 * count + 1), count)]


def assert_is(actual: SortedTuple[Item], expected: list[Item]) -> None:
    """Every way of reading `actual` gives `expected`."""
    actual.check()
    assert list(actual) == expected
    assert list(reversed(actual)) == expected[::-1]
    assert len(actual) == len(expected)
    if expected:
        assert (actual.first(), actual.last()) == (expected[0], expected[-1])


@given(st.randoms(use_true_random=False), st.integers(0, 400), st.integers(0, 400))
def test_agrees_with_a_list(random: Random, start: int, steps: int) -> None:
    """From any start, any run of additions, removals and exchanges leaves what a sorted list would hold."""
    pool = items_of(random, start + steps)
    expected = sorted(pool[:start])
    actual = SortedTuple.from_sorted(expected)
    growing = random.random()
    for item in pool[start:]:
        if not expected or random.random() < growing:
            actual = actual.add(item)
            insort(expected, item)
        else:
            at = random.choice((0, -1, random.randrange(len(expected))))
            if random.random() < 0.5:
                actual = actual.remove(expected.pop(at))
            else:
                old = expected.pop(at)
                new = random.choice((item, (old[0], old[1] + 0.01)))
                actual = actual.exchange(old, new)
                insort(expected, new)
    assert_is(actual, expected)
    for item in pool:
        assert (item in actual) == (item in expected)
        assert actual.below(item) == max((x for x in expected if x < item), default=None)


@given(st.randoms(use_true_random=False), st.integers(1, 300))
def test_old_values_stay(random: Random, count: int) -> None:
    """An addition or removal leaves the value it started from as it was."""
    held = sorted(items_of(random, count))
    before = SortedTuple.from_sorted(held)
    chunks = before.chunks
    before.add((10**6, 0))
    before.add((-1, 0))
    for item in held:
        before.remove(item)
    assert before.chunks == chunks
    assert_is(before, held)


@given(st.randoms(use_true_random=False), st.integers(0, 300))
def test_equality_is_of_the_items(random: Random, count: int) -> None:
    """However the items came together, the values are equal and hash alike; another item makes them unequal."""
    pool = items_of(random, count)
    grown: SortedTuple[Item] = SortedTuple()
    for item in pool:
        grown = grown.add(item)
    made = SortedTuple.from_sorted(sorted(pool))
    assert grown == made
    assert hash(grown) == hash(made)
    assert grown != made.add((10**6, 0))
    assert grown != tuple(made)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_chunks_stay_near_the_square_root(order: str) -> None:
    """20,000 additions in any order leave a few hundred chunks of at most a few hundred; most removals, few chunks."""
    items = list(range(20_000))
    if order == "random":
        Random(1).shuffle(items)
    grown: SortedTuple[int] = SortedTuple()
    for item in items if order != "descending" else reversed(items):
        grown = grown.add(item)
    assert len(grown.chunks) <= 400
    assert max(map(len, grown.chunks)) <= 400
    for item in items[:19_900]:
        grown = grown.remove(item)
    grown.check()
    assert list(grown) == sorted(items[19_900:])
    assert len(grown.chunks) <= 4 * 100 / CHUNK_MIN + 2


@pytest.mark.parametrize("held", [[], [2], list(range(0, 1000, 2))])
def test_says_what_is_wrong(held: list[int]) -> None:
    """A missing item is named by `KeyError`, a second copy by `ValueError`; the ends of nothing are `IndexError`."""
    some = SortedTuple.from_sorted(held)
    for absent in (-1, 1, 501, 2001):
        with pytest.raises(KeyError, match=str(absent)):
            some.remove(absent)
        assert some.discard(absent) is some
    for item in held:
        with pytest.raises(ValueError, match=f"{item} is in"):
            some.add(item)
        assert item not in some.discard(item)
    if not held:
        with pytest.raises(IndexError):
            some.first()
        with pytest.raises(IndexError):
            some.last()


@pytest.mark.parametrize("items", [[1, 1], [2, 1], [*range(100), 50]])
def test_from_sorted_wants_them_sorted(items: list[int]) -> None:
    """Items out of order or twice are refused."""
    with pytest.raises(ValueError, match="ascend"):
        SortedTuple.from_sorted(items)


def test_check_finds_a_broken_value() -> None:
    """`check` is not empty: it refuses an empty chunk, a wrong size and a wrong order."""
    for broken in (
        SortedTuple(((1,), ()), 1),
        SortedTuple(((1, 2),), 3),
        SortedTuple(((1, 2), (2, 3)), 4),
    ):
        with pytest.raises(AssertionError):
            broken.check()
