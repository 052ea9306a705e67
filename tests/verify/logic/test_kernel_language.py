"""The guard lets shipped kernels pass and names what is wrong with others."""

import linecache
import re
from collections.abc import Callable
from typing import Any

import pytest

from fairsched.policies.gates import deficit
from fairsched.verify.logic import closure, violations
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs

pytestmark = pytest.mark.kept

CONSTANT = 1


def _float(o: Any, q: Any) -> Any:
    return q + 0.1


def _kernel(*statements: str) -> Callable[..., Any]:
    """A kernel of these statements over a vector `q`, a mask `m`, a point `p` and a scalar `x`."""
    text = "\n    ".join(["def kernel(o, q, m, p, x):", *statements])
    name = f"<{text}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = dict(globals())
    exec(compile(text, name, "exec"), names)
    made: Callable[..., Any] = names["kernel"]
    return made


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["return q + 0.1"], "0.1"),
        (["return q // 2"], "q // 2"),
        (["if x: return q", "return -q"], "If is control flow"),
        (["return q == 0"], "q == 0"),
        (["return x in q"], "x in q"),
        (["return ~m"], "~m"),
        (["return abs(q)"], "'abs' is neither"),
        (["return o.sort(q)"], "o.sort is no word"),
        (["return q[0]"], r"q\[0\]"),
        (["r = o.bump(q, p, 1)", "return r + q"], "q was consumed"),
        (["return o.bump(q, p, 1) - q"], "q is read beside"),
        (["old = q", "q = o.bump(q, p, 1)", "return q - old"], "second name"),
        (["return q + CONSTANT"], "CONSTANT is neither"),
        (["return _float(o, q)"], r"_float \(.*test_kernel_language"),
    ],
)
def test_a_kernel_that_leaves_the_words_is_refused(statements: list[str], problem: str) -> None:
    """Each slip is named with its function and line."""
    found = violations([_kernel(*statements)])
    assert len(found) == 1
    assert re.search(problem, found[0]), found


def test_shipped_kernels_keep_to_the_words() -> None:
    """Every kernel that an event runs, and all that it calls."""
    for system in (deficit_proofs.deficit_system(), counter_proofs.counter_system()):
        assert violations(system.kernels()) == []


def test_the_closure_holds_what_a_kernel_calls() -> None:
    """`choose` rests on `in_credit`."""
    assert closure([deficit.choose]) == (deficit.choose, deficit.in_credit)
