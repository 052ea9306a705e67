"""D2LPM: requests go where their prompt is cached, as long as their client has credit there.

Paper: "Locality-aware Fair Scheduling in LLM Serving", read from its prose (4.2) and proofs.
The workers run DLPM (`fairsched.policies.catalog.DLPM`), or VTC.

State: `d[i][w]`, a deficit for each client and worker.  A client is charged at the worker that its request is sent to:
the tokens that are not cached there when it is sent, the output when it finishes.  Without credit anywhere it gets a
quantum at every worker, as often as it takes to have some (the paper: once).

Unused credit is not stored: an unknown client, and a client at a worker that it was never sent to,
has the whole quantum, as the first refill gives it.  So a state holds what was used, for any number of workers.

What a worker caches is known from what it was sent and from its `Cached` and `Evicted` reports.

**Credit** of one client at each of the workers says which of them may take its next request: a request goes to a worker
that holds its longest match and where its client has credit; to any worker with credit otherwise; and when its client
has credit nowhere, it gets a quantum at every worker.

Vectors are over the *workers*, for one client.  No client's row reads another's, so what is proved here for any number
of workers is true for any number of clients.  This gate shares nothing out between clients: the workers' own gates do.
What it bounds is how unevenly one client may use the workers, which is the price of locality.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.algebra import (
    EXACT,
    NO_GROUP,
    NUMPY,
    Algebra,
    ExactVector,
    Mask,
    NumpyAlgebra,
    Point,
    Scalar,
    Vector,
)
from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.prefix_cache import ROOT, IndexMatch, PrefixIndex, bits
from fairsched.model.pricing import Rates, price
from fairsched.model.request import TOKENS_MAX, Prompt, Request
from fairsched.model.theorem import BACKLOGGED_EVERYWHERE, BOTH_SERVE, EQUAL_WORKERS, QUANTUM_POSITIVE, Theorem
from fairsched.policies import validators
from fairsched.policies.base import Router
from fairsched.policies.gates import DeficitGate, deficit
from fairsched.policies.routers import prefix_based as pre
from fairsched.policies.routers.load_based import MEASURES, Measure
from fairsched.policies.validators import not_negative, one_of, positive

# --- credit -----------------------------------------------------------------------------------------------------------


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


ACTIVE = -1
"""The stamp of a client with requests under way."""


_WORKERS = tuple(theorem for theorem in DeficitGate.theorems if theorem.id in ("D-4.1", "D-4.2", "D-A.2"))
"""Of the workers' gate: what the theorems about all workers rest on."""


class ClientDeficits(msgspec.Struct, frozen=True, gc=False):
    """A client: its deficit at each worker where it is not the whole quantum, how many of its requests are under way,
    and since which stamp it has none."""

    deficits: Map[int, int] = Map()
    under_way: int = 0
    idle_since: int = ACTIVE


class ChargedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A request under way: its client and worker, the input that was charged, how many blocks counted as cached there,
    and where the prompt ends in the index."""

    client: int
    worker: int
    extend_tokens: int
    prompt: Prompt
    cached_blocks: int
    node: int


class D2LPMState(msgspec.Struct, frozen=True, gc=False):
    """The prefix index of all workers, accounts of clients, requests under way, weights that are not 1, and the idle
    clients by the stamp since when they are; `oldest` is at most the first of these."""

    index: PrefixIndex
    accounts: Map[int, ClientDeficits] = Map()
    sent: Map[int, ChargedPrompt] = Map()
    weights: Map[int, int] = Map()
    idle: Map[int, int] = Map()
    next_stamp: int = 0
    oldest: int = 0


NEW: ClientDeficits = ClientDeficits()
FEW = 12
"""For so many workers, Python's own integers are faster than numpy's vectors."""
EMPTY: Map[int, int] = Map()


@attrs.frozen
class D2LPM(Router[D2LPMState]):
    """The shortest queue where the request's client has credit, of those with most of its prompt if it has it there.

    O(blocks) by memcmp for the match, O(workers that hold most of it) for the choice, or O(workers) where there is no
    credit at these, O(log) for the accounts; `WorkerLeft` costs O(clients
    and requests).
    """

    name: ClassVar[str] = "d2lpm"
    state_type: ClassVar[type[D2LPMState]] = D2LPMState
    follows_decoding: ClassVar[bool] = False
    theorems: ClassVar[tuple[Theorem, ...]] = (*ROUTER_THEOREMS, *_WORKERS, *CLUSTER_THEOREMS)

    quantum: int = attrs.field(default=20_000, validator=validators.quantum)
    """Q_w, credit of a round at each worker for weight 1, in cost units (weights multiply it)."""
    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))
    """How long a queue is."""
    input_rate: int = attrs.field(default=Rates().input, validator=validators.rate)
    """Cost units of a computed token; the workers' gates have rates of their own."""
    output_rate: int = attrs.field(default=Rates().output, validator=validators.rate)
    """Cost units for a token; the workers' own gates have rates of their own."""
    match_percent_min: int = attrs.field(default=50, validator=not_negative)
    """A cached part of less than this share of the prompt counts as none (the paper: any match counts)."""
    idle_clients_max: int = attrs.field(default=100_000, validator=positive)
    """How many clients without requests under way are remembered; the longest idle is forgotten, with its debts."""

    def init(self) -> D2LPMState:
        # Nothing is counted in a window, so any will do.
        return D2LPMState(PrefixIndex.empty(window_ns=1))

    # --- decisions --------------------------------------------------------------------------------------------------

    def route(self, state: D2LPMState, request: Request, view: ClusterView) -> tuple[Dispatch, D2LPMState]:
        # One that is under way already was refused where it was sent.
        state = self._ended(state, request.id, TOKENS_MAX, 0, cached=False)
        prompt, client, index = request.prompt, request.client, state.index
        match = index.match(prompt)
        account = state.accounts.get(client) or NEW
        d = Sparse(account.deficits, self._quantum(state, client))
        load, d = self._chosen(d, match, self._blocks_min(prompt), view)
        worker = load.worker
        held = next((level.blocks for level in match.levels if level.workers >> worker & 1), 0)
        extend = prompt.tokens - pre.cached_tokens(prompt, held)
        d = charge(SPARSE, d, worker, price(extend, self.input_rate))
        node = ROOT
        if blocks := pre.shareable_blocks(index, prompt):
            index, node = index.insert(prompt, blocks, worker, index.now_ns, hit=False, match=match)
            index = pre.trimmed(index, worker, load.kv_capacity_tokens + load.waiting_tokens + prompt.tokens)
        return Dispatch(request.id, worker), D2LPMState(
            index,
            state.accounts.set(client, ClientDeficits(d.entries, account.under_way + 1)),
            state.sent.set(request.id, ChargedPrompt(client, worker, extend, prompt, held, node)),
            state.weights,
            state.idle if account.idle_since == ACTIVE else state.idle.delete(account.idle_since),
            state.next_stamp,
            state.oldest,
        )

    def _blocks_min(self, prompt: Prompt) -> int:
        """Return the fewest cached blocks that are a reason to go where they are."""
        return -(-self.match_percent_min * prompt.tokens // (100 * prompt.block_tokens))

    def _chosen(self, d: Sparse, match: IndexMatch, blocks_min: int, view: ClusterView) -> tuple[WorkerLoad, Sparse]:
        """Return the worker's report, and the deficits after the refill that it may have taken.

        Credit at a worker that holds the prompt decides alone: no refill is due then, and no other worker goes before.
        O(such workers); O(workers) where there is no such credit.
        """
        workers, length = view.workers, MEASURES[self.measure]
        here = pre.mask_of(workers)
        load_of = workers if pre.numbered(workers) else {load.worker: load for load in workers}
        queue = QueueLengths(load_of, length)
        holds = _holders(match, blocks_min, here)
        if holds:
            chosen = choose(SPARSE, SparseCredit(d, holds), holds, holds, queue)
            if chosen != NO_GROUP:
                return load_of[chosen], d
        if refill_due(SPARSE, SparseCredit(d, here), here):
            d = self._refilled(d, workers)
        chosen = choose(SPARSE, SparseCredit(d, here), here, holds, queue)
        return load_of[chosen] if chosen != NO_GROUP else min(workers, key=length), d

    def _refilled(self, d: Sparse, workers: Sequence[WorkerLoad]) -> Sparse:
        """Return the deficits after the refill that is due at these workers.  O(workers)."""
        count = len(workers)
        o, vector, mask = _words(count)
        dense = self._topped_up(
            o, vector([d[load.worker] for load in workers]), mask([True] * count), vector([d.default] * count)
        )
        return d.with_entries((load.worker, int(value)) for load, value in zip(workers, dense, strict=True))

    def _topped_up(self, o: Algebra, d: Vector, here: Mask, quantum: Vector) -> Vector:
        """Return the deficits after the refill that is due."""
        return refill_rounds(o, d, here, quantum)

    # --- events ---------------------------------------------------------------------------------------------

    def observe(self, state: D2LPMState, event: ev.Event) -> D2LPMState:
        follow = _FOLLOWING.get(type(event))
        return state if follow is None else follow(self, state, event)

    def _followed(self, state: D2LPMState, event: ev.Evicted | ev.Cached) -> D2LPMState:
        """Follow a worker that holds less, or more."""
        sent = state.sent.get(event.owner)
        index = pre.followed(state.index, event, ROOT if sent is None else sent.node)
        return state if index is state.index else replace(state, index=index)

    def _finished(self, state: D2LPMState, event: ev.Finished) -> D2LPMState:
        return self._ended(state, event.request_id, 0, event.output_tokens, cached=True)

    def _rejected(self, state: D2LPMState, event: ev.Rejected) -> D2LPMState:
        return self._ended(state, event.request_id, TOKENS_MAX, 0, cached=False)

    def _cancelled(self, state: D2LPMState, event: ev.Cancelled) -> D2LPMState:
        """Give all back to what waits unserved; what ran, or was preempted, what it had not computed."""
        served = event.was_running or event.generated_tokens > 0
        back = event.uncomputed_tokens if served else TOKENS_MAX
        return self._ended(state, event.request_id, back, event.generated_tokens, cached=served and not back)

    def _ended(
        self, state: D2LPMState, request_id: int, uncomputed_tokens: int, output_tokens: int, cached: bool
    ) -> D2LPMState:
        """End a request that is no longer under way: refund what it did not compute, charge what it produced.

        Unless its prompt was `cached`, the worker is not thought to hold more of it than when it was sent.
        """
        sent = state.sent.get(request_id)
        if sent is None:
            return state
        index, idle, accounts = state.index, state.idle, state.accounts
        if not cached:
            index = index.evicted(sent.prompt, sent.cached_blocks, sent.worker, sent.node)
        account = accounts[sent.client]
        d = Sparse(account.deficits, self._quantum(state, sent.client))
        if uncomputed_tokens:
            back = price(min(uncomputed_tokens, sent.extend_tokens), self.input_rate)
            d = refund(SPARSE, d, sent.worker, back, Sparse(EMPTY, d.default))
        if output_tokens:
            d = charge(SPARSE, d, sent.worker, price(output_tokens, self.output_rate))
        stamp, oldest = state.next_stamp, state.oldest
        if account.under_way > 1:
            account = ClientDeficits(d.entries, account.under_way - 1)
        else:
            account = ClientDeficits(d.entries, 0, stamp)
            idle, stamp = idle.set(stamp, sent.client), stamp + 1
        accounts = accounts.set(sent.client, account)
        while len(idle) > self.idle_clients_max:
            if (gone := idle.get(oldest)) is not None:
                idle, accounts = idle.delete(oldest), accounts.delete(gone)
            oldest += 1
        return D2LPMState(index, accounts, state.sent.delete(request_id), state.weights, idle, stamp, oldest)

    def _without(self, state: D2LPMState, event: ev.WorkerLeft | ev.WorkerJoined) -> D2LPMState:
        """Forget the worker and all charges there; its requests arrive again.  O(clients, requests)."""
        worker = event.worker
        for request_id in sorted(i for i, sent in state.sent.items() if sent.worker == worker):
            state = self._ended(state, request_id, TOKENS_MAX, 0, cached=False)
        accounts = state.accounts.mutate()
        for client, account in state.accounts.items():
            if worker in account.deficits:
                accounts[client] = replace(account, deficits=account.deficits.delete(worker))
        return replace(state, index=state.index.without(worker), accounts=accounts.finish())

    def _configured(self, state: D2LPMState, event: ev.ClientConfigured) -> D2LPMState:
        """Credit above the new quantum is cut to it, debt stays."""
        client, weight = event.client, event.weight
        weights = state.weights.set(client, weight)
        account = state.accounts.get(client)
        if account is None:
            return replace(state, weights=weights)
        d = Sparse(account.deficits, self.quantum * weight)
        deficits = d.with_entries((w, min(value, d.default)) for w, value in account.deficits.items()).entries
        kept = ClientDeficits(deficits, account.under_way, account.idle_since)
        return replace(state, weights=weights, accounts=state.accounts.set(client, kept))

    def _quantum(self, state: D2LPMState, client: int) -> int:
        return self.quantum * state.weights.get(client, 1)

    def check(self, state: D2LPMState) -> None:
        # The index is sound, and nothing is counted in its window.
        state.index.check()
        assert not state.index.window
        for client, account in state.accounts.items():
            # No deficit is above the quantum (D2-range), and none that equals it is written down.
            assert all(value < self._quantum(state, client) for value in account.deficits.values())
            # A client is idle exactly if nothing of it is under way.
            assert (account.under_way == 0) == (account.idle_since != ACTIVE)
            assert account.idle_since == ACTIVE or state.idle[account.idle_since] == client
        # Accounts count what is under way; clients without any are in the queue of the idle, which is bounded.
        under_way = Counter(sent.client for sent in state.sent.values())
        assert all(state.accounts[client].under_way == count for client, count in under_way.items())
        assert sum(account.under_way for account in state.accounts.values()) == len(state.sent)
        assert len(state.idle) == sum(not account.under_way for account in state.accounts.values())
        assert len(state.idle) <= self.idle_clients_max
        assert all(state.oldest <= stamp < state.next_stamp for stamp in state.idle)


_FOLLOWING: dict[type[ev.Event], Callable[[D2LPM, D2LPMState, Any], D2LPMState]] = {
    ev.Evicted: D2LPM._followed,
    ev.Cached: D2LPM._followed,
    ev.Finished: D2LPM._finished,
    ev.Cancelled: D2LPM._cancelled,
    ev.Rejected: D2LPM._rejected,
    ev.WorkerLeft: D2LPM._without,
    ev.WorkerJoined: D2LPM._without,
    ev.ClientConfigured: D2LPM._configured,
}
"""What D2LPM learns from."""


def _words(workers: int) -> tuple[Algebra, Callable[[list[int]], Vector], Callable[[list[bool]], Mask]]:
    """Return the interpretation of the kernel for so many workers, and how it writes vectors and masks."""
    if workers <= FEW:
        return EXACT, ExactVector, ExactVector
    return NUMPY, partial(np.array, dtype=np.int64), np.array


def _holders(match: IndexMatch, blocks_min: int, here: int) -> int:
    """Return the workers of `here` that hold most of the prompt, if that is at least so much of it, as bits.
    O(levels)."""
    for level in match.levels:
        if level.blocks < blocks_min:
            return 0
        if holds := level.workers & here:
            return holds
    return 0


@attrs.frozen
class D2LPMPrinted(D2LPM):
    """D2LPM as the paper has it (reconstructed), for comparison: any match counts, and a refill adds one quantum.

    One quantum may leave a client without credit at any worker.  The paper does not say where its request goes then;
    here it goes to the shortest queue of all.
    """

    name: ClassVar[str] = "d2lpm-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    match_percent_min: int = attrs.field(default=0, validator=not_negative)
    """A cached part of less than this share of the prompt counts as none."""

    def _topped_up(self, o: Algebra, d: Vector, here: Mask, quantum: Vector) -> Vector:
        return refill(o, d, here, quantum)
