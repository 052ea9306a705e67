"""What the bands gate promises, and what its kernels do: statements; the proofs are in `verify`.

All amounts between band k and those below it are scaled by the shares of their time: charges to band k by A_k, charges
below it by g_k.  U is the most that may be charged to a band, or to all those below one, after a request was admitted:
all of them share one memory.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    FLOOR_COVERS,
    GATE_RESPECTED,
    MEM_RESERVE,
    NOTHING_REFUNDED,
    QUANTUM_POSITIVE,
    Scope,
    Theorem,
)

_SOURCE = "this library"

BAND_RANGE = Theorem(
    "BAND-range",
    "-F <= lag_k <= A_k U + B for every band k",
    _SOURCE,
    (MEM_RESERVE, GATE_RESPECTED),
    bound="[-F, A_k U + B]",
)
BAND_SHARE = Theorem(
    "BAND-share",
    "one of those below band k waits all over [t1, t2): A_k W_k - g_k W_below <= A_k U + B + F",
    _SOURCE,
    (MEM_RESERVE, GATE_RESPECTED, BACKLOGGED_DURING),
    bound="A_k U + B + F",
)
BAND_FIRST = Theorem(
    "BAND-first",
    "band k waits all over [t1, t2), and a request of it may go: g_k W_below - A_k W_k <= (A_k + g_k) U - 1",
    _SOURCE,
    (MEM_RESERVE, GATE_RESPECTED, BACKLOGGED_DURING, NOTHING_REFUNDED, FLOOR_COVERS),
    bound="(A_k + g_k) U - 1",
)
BAND_GATE = Theorem(
    "BAND-gate",
    "the band that goes waits and need not yield, none above it is such a band, and one goes if one waits below which "
    "none waits",
    "theorems of the kernel itself: what GateRespected means",
)
BAND_COUNT = Theorem(
    "BAND-count",
    "a charge changes a lag by its gain less its cost, down to the floor; where none below waits, what those below "
    "were behind is forgotten, and no more than that",
    "theorems of the kernel itself: found necessary by a mutant",
)
BAND_REFUND = Theorem(
    "BAND-refund",
    "what is given back changes a lag by the cost less the gain, down to the floor",
    "theorems of the kernel itself: found necessary by a mutant",
)
BAND_WITHIN = Theorem(
    "BAND-within",
    "each band's deficits are those of a deficit gate that sees nothing but the events of the band's clients: between "
    "clients of one band D-weighted holds, with D-wc one of them is served when the band goes",
    "this library; in drawn worlds",
    (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, BACKLOGGED_DURING),
    scope=Scope.TESTED,
    rests_on=("D-range", "D-weighted", "D-wc", "D-gate"),
)
BAND_INT64 = Theorem(
    "BAND-int64",
    "with gains, costs and the floor within 2^60, and lags within twice that: every intermediate is within 2^62",
    "this library",
    bound="2^62",
)
THEOREMS = (BAND_RANGE, BAND_SHARE, BAND_FIRST, BAND_GATE, BAND_COUNT, BAND_REFUND, BAND_WITHIN, BAND_INT64)
