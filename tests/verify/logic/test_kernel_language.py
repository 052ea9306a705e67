"""The guard lets shipped kernels pass and names what is wrong with others."""

from collections.abc import Callable
from typing import Any

import pytest

from fairsched.policies.gates.deficit import gate as deficit
from fairsched.verify.logic import closure, violations
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs


def _float(o: Any, q: Any) -> Any:
    return q + 0.1


def _division(o: Any, q: Any) -> Any:
    return q // 2


def _branch(o: Any, q: Any, x: Any) -> Any:
    if x:
        return q
    return -q


def _equality(o: Any, q: Any) -> Any:
    return q == 0


def _membership(o: Any, q: Any, x: Any) -> Any:
    return x in q


def _not(o: Any, m: Any) -> Any:
    return ~m


def _foreign_call(o: Any, q: Any) -> Any:
    return abs(q)


def _no_word(o: Any, q: Any) -> Any:
    return o.sort(q)


def _index(o: Any, q: Any) -> Any:
    return q[0]


def _read_after_bump(o: Any, q: Any, p: Any) -> Any:
    r = o.bump(q, p, 1)
    return r + q


def _read_beside_bump(o: Any, q: Any, p: Any) -> Any:
    return o.bump(q, p, 1) - q


def _alias(o: Any, q: Any, p: Any) -> Any:
    old = q
    q = o.bump(q, p, 1)
    return q - old


def _global(o: Any, q: Any) -> Any:
    return q + CONSTANT


def _through_another(o: Any, q: Any) -> Any:
    return _float(o, q)


CONSTANT = 1


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (_float, "0.1"),
        (_division, "q // 2"),
        (_branch, "If is control flow"),
        (_equality, "q == 0"),
        (_membership, "x in q"),
        (_not, "~m"),
        (_foreign_call, "'abs' is neither"),
        (_no_word, "o.sort is no word"),
        (_index, r"q\[0\]"),
        (_read_after_bump, "q was consumed"),
        (_read_beside_bump, "q is read beside"),
        (_alias, "second name"),
        (_global, "CONSTANT is neither"),
        (_through_another, "_float, line"),
    ],
)
def test_a_kernel_that_leaves_the_words_is_refused(kernel: Callable[..., Any], problem: str) -> None:
    """Each slip is named with its function and line."""
    with pytest.raises(AssertionError, match=problem):
        assert not violations([kernel]), "; ".join(violations([kernel]))


def test_shipped_kernels_keep_to_the_words() -> None:
    """Every kernel that an event runs, and all that it calls."""
    for system in (deficit_proofs.deficit_system(), counter_proofs.counter_system()):
        assert violations(system.kernels()) == []


def test_the_closure_holds_what_a_kernel_calls() -> None:
    """`choose` rests on `in_credit`."""
    assert closure([deficit.choose]) == (deficit.choose, deficit.in_credit)
