"""Vectors over clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import NUMPY
from fairsched.policies import vectors
from fairsched.policies.gates.deficit import decode
from fairsched.policies.vectors import column, dense, each

AMOUNTS = st.dictionaries(st.integers(0, 39), st.integers(0, 2**40), max_size=40)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=40, max_size=40), AMOUNTS, st.integers(1, 8))
def test_a_long_vector_is_charged_as_a_short_one(before: list[int], amounts: dict[int, int], factor: int) -> None:
    """On the clients that are named alone, the kernel comes to what it comes to on all, and leaves the old vector."""
    vector, clients, tokens = np.array(before), tuple(amounts), tuple(amounts.values())
    expected = decode(NUMPY, vector, dense(40, clients, tokens, factor))
    with pytest.MonkeyPatch.context() as patch:
        for many in (0, 4096):
            patch.setattr(vectors, "_MANY", many)
            assert each(decode, vector, clients, tokens, factor).tolist() == expected.tolist()
            assert vector.tolist() == before


@pytest.mark.parametrize("numbers", [(), (3, 1), [3, 1]], ids=str)
def test_a_column_has_each_number_times_the_factor(numbers: list[int] | tuple[int, ...]) -> None:
    """One that is kept for the next decision cannot be written to."""
    for factor in (1, 4):
        found = column(numbers, factor)
        assert found.tolist() == [number * factor for number in numbers]
        assert found.flags.writeable is not isinstance(numbers, tuple)
        assert column(numbers, factor) is found or not isinstance(numbers, tuple)
