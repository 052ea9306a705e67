"""How large a worker should be, and how many workers a rate needs: Aladdin's equations 5, 6 and 7, exactly.

Source: Aladdin, sections 4.2 and 4.4.  A worker of N accelerators computes an iteration in k4 / N + c4 and exchanges in
proportion to (N - 1) / N, which together is a / N + b: the two cannot be told apart by timing, so of timed sizes they
are one line here, and a machine by formula has the all-reduces of its link.  Of N m memory the weights take some, and
the rest holds as many requests as it has room for.  Tokens a second and accelerator are bounded by memory, through the
iteration, and by the target per token, through the batch that it allows.
Workers for a rate are a line too, rounded up.
"""

from fractions import Fraction

import attrs

from fairsched.model.machine import Performance
from fairsched.policies.placement.aladdin import Amount

UNIT = 1_000_000
"""Slope and constant of `workers_for` are in millionths of a worker."""


@attrs.frozen
class Size:
    """A worker of `accelerators`: its lines, and the KV that it has room for, in the unit of `Performance.kv`."""

    accelerators: int
    performance: Performance
    kv_capacity: int


@attrs.frozen
class Demand:
    """What a request needs: KV (`kv`, the mean over its life or its peak), and the mean context while it decodes."""

    kv: int
    context_tokens: int


@attrs.frozen
class SizeFigures:
    """Tokens a second and accelerator that memory and the target per token allow (equation 6)."""

    accelerators: int
    by_memory: Fraction
    by_target: Fraction

    @property
    def tokens_per_s(self) -> Fraction:
        """The smaller of the two."""
        return min(self.by_memory, self.by_target)


def size_figures(size: Size, demand: Demand, tpot_ns: int) -> SizeFigures | None:
    """Return equations 5 and 6 for one size; None if it has no room for a request, or its iteration is too long for
    one."""
    p, n = size.performance, size.accelerators
    if size.kv_capacity < demand.kv or p.decode_ns(1, demand.context_tokens) > tpot_ns:
        return None
    batch = Fraction(size.kv_capacity, demand.kv)
    per_request = p.context_token_ns * demand.context_tokens + p.request_ns
    iteration_ns = batch * per_request + p.decode_constant_ns
    within = Fraction(tpot_ns - p.decode_constant_ns, max(per_request, 1))
    second = 1_000_000_000
    return SizeFigures(n, batch * second / (n * iteration_ns), within * second / (n * tpot_ns))


def workers_for(rate: Amount, slope: Amount, constant: Amount) -> Amount:
    """Equation 7: workers that a rate needs, `slope` and `constant` in millionths of a worker.

    >>> workers_for(12, 400_000, 300_000)
    6
    """
    return -(-(slope * rate + constant) // UNIT)
