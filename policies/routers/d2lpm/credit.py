"""One client's credit at each of the workers: which of them may take its next request (D2LPM's gate before workers).

Paper: "Locality-aware Fair Scheduling in LLM Serving" (DLPM and D2LPM), reconstructed as far as its listings were not
available to us.  Its rule: a request goes to a worker that holds its longest match and where its client has credit; to
any worker with credit otherwise; and when its client has credit nowhere, it gets a quantum at every worker.

Vectors are over the *workers*, for one client.  No client's row reads another's, so what is proved here for any number
of workers is true for any number of clients.  This gate shares nothing out between clients: the workers' own gates do.
What it bounds is how unevenly one client may use the workers, which is the price of locality.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from immutables import Map

from fairsched.model.algebra import NO_GROUP, Algebra, Mask, NumpyAlgebra, Point, Scalar, Vector
from fairsched.model.prefix_cache import bits
from fairsched.model.theorem import (
    BACKLOGGED_EVERYWHERE,
    BOTH_SERVE,
    EQUAL_WORKERS,
    QUANTUM_POSITIVE,
    Theorem,
)
from fairsched.model.view import WorkerLoad
from fairsched.policies.gates import deficit

D2_GATE = Theorem(
    "D2-gate",
    "a request goes to a worker that takes requests and where its client has d > 0: to one that holds the most of its "
    "prompt if its client has credit at one of those, to one with the shortest queue of these, and to one if there is "
    "one",
    "D2LPM's rule (reconstructed)",
)
D2_ROUND = Theorem(
    "D2-round",
    "a round is due if and only if workers take requests and the client has d > 0 at none of them; it gives a quantum "
    "at each of these and nothing at any other",
    "D2LPM's refill (reconstructed); found missing by mutants",
)
D2_REFILL = Theorem(
    "D2-refill",
    "refill_rounds(d) = refill repeated until its client has credit at a worker that takes requests, for any quanta of "
    "1 or more",
    "this library: the paper adds one quantum, which leaves a client without a worker that owes more",
    (QUANTUM_POSITIVE,),
)
D2_RANGE = Theorem(
    "D2-range",
    "d_w <= Q_w at every worker, whatever comes and goes",
    "D2LPM, as the lemma on the deficit's range (reconstructed)",
    bound="Q_w",
)
D2_SPREAD = Theorem(
    "D2-spread",
    "a client's charges at two workers that take requests at every refill: |W_v - W_w| <= 2Q + D, where D is what it "
    "owes at the one at the end of the interval and at the other at its beginning",
    "new: how unevenly one client may use the workers, which grows with Q_w and has no bound without one (D2-A.5)",
    (EQUAL_WORKERS, BOTH_SERVE),
    bound="2Q + D",
)

D2_51 = Theorem(
    "D2-5.1",
    "f and g backlogged at every worker over [t1, t2): |W_f - W_g| <= the sum over workers of 2(Q_w + U_w - 1), where "
    "W_f is what the deficit gates of all workers charged to f",
    "D2LPM, theorem 5.1 (reconstructed): 2m(U + Q); its lemma that a backlogged client is so at every worker is false",
    (BACKLOGGED_EVERYWHERE,),
    bound="sum over w of 2(Q_w + U_w - 1)",
    rests_on=("D-4.1",),
)
D2_52 = Theorem(
    "D2-5.2",
    "f backlogged at every worker over [t1, t2), g any client: W_f >= W_g - the sum over workers of 2(Q_w + U_w - 1)",
    "D2LPM, theorem 5.2 (reconstructed)",
    (BACKLOGGED_EVERYWHERE,),
    bound="sum over w of 2(Q_w + U_w - 1)",
    rests_on=("D-4.2",),
)
D2_A4 = Theorem(
    "D2-A.4",
    "while f waits at a worker w and is not let in there: a_w (t2 - t1) <= R_f(t1) + the sum over g other than f of "
    "2Q_w + U_gw - 1 + D, with no factor for the number of workers",
    "D2LPM, theorem A.4 (reconstructed); D-A.2 at that worker, with its own capacity a_w",
    deficit.D_A2_TIME.assumptions,
    bound="R_f(t1) + sum over g of 2Q_w + U_gw - 1 + D",
)

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over workers: d the client's deficits, here the workers that take requests, quantum credit a round, holds the
# workers that have the most of the prompt, queue how long it is.


def in_credit(o: Algebra, d: Vector, here: Mask) -> Mask:
    """Return the workers that may be chosen."""
    return here & (d > 0)


def refill_due(o: Algebra, d: Vector, here: Mask) -> Scalar:
    """Return whether workers take requests and the client has credit at none of them."""
    return o.any(here) & o.none(in_credit(o, d, here))


def refill(o: Algebra, d: Vector, here: Mask, quantum: Vector) -> Vector:
    """Refill one round, when it is due: a quantum at every worker that takes requests."""
    due = refill_due(o, d, here)
    return o.where(here & due, d + quantum, d)


def choose(o: Algebra, d: Vector, here: Mask, holds: Mask, queue: Vector) -> Point:
    """Return the shortest queue where the client has credit, among the workers that hold the prompt if it has credit
    there."""
    credit = in_credit(o, d, here)
    near = credit & holds
    far = credit & o.none(near)
    return o.argmin(queue, near | far)


def charge(o: Algebra, d: Vector, p: Point, x: Scalar) -> Vector:
    """Charge the client at the worker, for an input that it is sent or an output that it finished."""
    return o.bump(d, p, -x)


def refund(o: Algebra, d: Vector, p: Point, x: Scalar, quantum: Vector) -> Vector:
    """Give back what was charged and never computed, up to one quantum of credit."""
    return o.put(d, p, o.minimum(o.pick(d, p, 0) + x, o.pick(quantum, p, 0)))


# --- closed form beside the kernel ----------------------------------------------------------------------------------


def refill_rounds(o: Algebra, d: Vector, here: Mask, quantum: Vector) -> Vector:
    """Apply as many rounds of `refill` as it takes until there is a worker to choose, at once; one is due.

    At a worker where the client has d <= 0 it takes -d // Q + 1 rounds; the fewest that any needs are given to all.
    Equal to iterating the kernel, which `verify` proves.
    """
    needed = -d // quantum + 1
    rounds = o.pick(needed, o.argmin(needed, here), 0)
    return o.where(here, d + o.minimum(needed, rounds) * quantum, d)


# --- gate before the workers ----------------------------------------------------------------------------------------

ROUTER_THEOREMS = (D2_GATE, D2_ROUND, D2_REFILL, D2_RANGE, D2_SPREAD)
"""About the text above, for any number of workers."""
CLUSTER_THEOREMS = (D2_51, D2_52, D2_A4)
"""About workers with a deficit gate each, whatever sends them requests."""


# --- sparse vectors ---------------------------------------------------------------------------------------------------


class Sparse(msgspec.Struct, frozen=True, gc=False):
    """A vector whose entry is `entries[p]`, or `default` where there is none; no entry equals the default.

    With 10,000 clients and 1,000 workers a table of all pairs would have ten million entries; few are ever used.
    """

    entries: Map[int, int]
    default: int

    def __getitem__(self, p: int) -> int:
        return self.entries.get(p, self.default)

    def with_entries(self, values: Iterable[tuple[int, int]]) -> "Sparse":
        """Return the vector with these entries.  O(entries)."""
        draft = self.entries.mutate()
        for p, value in values:
            if value != self.default:
                draft[p] = value
            elif p in draft:
                del draft[p]
        return Sparse(draft.finish(), self.default)


class SparseCredit(msgspec.Struct, frozen=True, gc=False):
    """The entries of a sparse vector at the workers `among`, which are bits by id: what a choice compares."""

    vector: Sparse
    among: int

    def __gt__(self, least: int) -> int:
        """Return the workers with more, as bits.  O(workers among, or entries: the fewer)."""
        entries, default, among = self.vector.entries, self.vector.default, self.among
        if len(entries) < 2 * among.bit_count():
            usual = default > least
            above = among if usual else 0
            for worker, value in entries.items():
                if (value > least) is not usual:
                    above ^= 1 << worker
            return above & among
        return sum([1 << worker for worker in bits(among) if entries.get(worker, default) > least])


class QueueLengths(msgspec.Struct, frozen=True, gc=False):
    """How long the queue of each worker is, by its id."""

    loads: Sequence[WorkerLoad] | Mapping[int, WorkerLoad]
    length: Callable[[WorkerLoad], int]


class SparseAlgebra(NumpyAlgebra):
    """The words for points, each O(log entries), on sparse vectors; points are ints, and those for scalars as ever.

    The words of a choice are said of `SparseCredit` and `QueueLengths`: a mask is an int with a bit for each worker, by
    its id, and an answer for all workers is a mask of all or of none.
    """

    def __init__(self) -> None:
        super().__init__(owned=False)

    def any(self, m: int) -> int:  # type: ignore[override]
        return -1 if m else 0

    def none(self, m: int) -> int:  # type: ignore[override]
        return 0 if m else -1

    def argmin(self, v: QueueLengths, m: int) -> int:  # type: ignore[override]
        if m & (m - 1):
            loads = v.loads
            return min([loads[worker] for worker in bits(m)], key=v.length).worker
        return m.bit_length() - 1 if m else NO_GROUP

    def pick(self, v: Sparse, p: int, default: int) -> int:  # type: ignore[override]
        return v[p] if p >= 0 else default

    def bump(self, v: Sparse, p: int, x: int) -> Sparse:  # type: ignore[override]
        return self.put(v, p, v[p] + x)

    def put(self, v: Sparse, p: int, x: int) -> Sparse:  # type: ignore[override]
        if p < 0:
            return v
        if x != v.default:
            return Sparse(v.entries.set(p, x), v.default)
        return Sparse(v.entries.delete(p), v.default) if p in v.entries else v


SPARSE = SparseAlgebra()
