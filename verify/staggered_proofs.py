"""What an admission check that counts staggered finishes lets a worker decode: at most H_k times its memory.

Such a check admits a request if, whenever one of those that run finishes, the rest still fit: sorted by what is left to
decode, r_1 <= ... <= r_k, the k - j + 1 requests that are left at the j-th finish hold an input token and r_j outputs
each, or more.  "Then at most M tokens are decoded" is false: freed memory is used again.  True is H_k M - k with
H_k = 1 + 1/2 + ... + 1/k, and it is attained.  No shipped batching rule admits so: "static" reserves every output, and
"optimistic" publishes the constant of U-optimistic.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import lcm
from types import SimpleNamespace
from typing import Any

from fairsched.model.theorem import Scope, Theorem
from fairsched.verify.arithmetic import ArithmeticClaim, Condition


def _fits(k: int) -> tuple[Condition, ...]:
    """The check, with one input token a request."""
    ordered = [Condition(lambda w: w.r1 >= 0)]
    ordered += [Condition(lambda w, j=j: left(w, j) <= left(w, j + 1)) for j in range(1, k)]  # type: ignore[misc]
    peaks = [
        Condition(lambda w, j=j: (k - j + 1) * (left(w, j) + 1) <= w.M)  # type: ignore[misc]
        for j in range(1, k + 1)
    ]
    return (*ordered, *peaks)


def left(w: SimpleNamespace, j: int) -> Any:
    """r_j."""
    return getattr(w, f"r{j}")


def _decoded(w: SimpleNamespace, k: int) -> Any:
    return sum(left(w, j) for j in range(1, k + 1))


def staggered(k: int) -> ArithmeticClaim:
    """The claim for k requests."""
    common = lcm(*range(1, k + 1))
    harmonic = int(sum(Fraction(common, j) for j in range(1, k + 1)))

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        most = [(common // (k - j + 1)) * w.m - 1 for j in range(1, k + 1)]
        fits = {
            f"attained: fits at finish {j}": (k - j + 1) * (most[j - 1] + 1) <= common * w.m for j in range(1, k + 1)
        }
        return {
            "decoded <= H_k M - k": common * (_decoded(w, k) + k) <= harmonic * w.M,
            "attained at every multiple of lcm(1..k)": sum(most) + k == harmonic * w.m,
            **fits,
        }

    return ArithmeticClaim(
        Theorem(
            f"mem-{k}",
            f"{k} requests admitted by a check that counts staggered finishes decode at most H_{k} M - {k} tokens",
            "this library; the printed 'at most M' is false",
            (),
            bound=f"H_{k} M - {k}",
            scope=Scope.BOUNDED,
        ),
        ("M", "m", *(f"r{j}" for j in range(1, k + 1))),
        (*_fits(k), Condition(lambda w: w.m >= 1)),
        shows,
    )


def printed(k: int = 3) -> ArithmeticClaim:
    """What was said instead: that they decode at most M tokens (CV1)."""
    return ArithmeticClaim(
        Theorem("CV1", f"{k} requests admitted so decode at most M tokens", "the constant w_q M", ()),
        ("M", *(f"r{j}" for j in range(1, k + 1))),
        _fits(k),
        lambda w: {"decoded <= M": _decoded(w, k) <= w.M},
    )


def claims() -> tuple[ArithmeticClaim, ...]:
    """For 2 to 5 requests."""
    return tuple(staggered(k) for k in range(2, 6))
