"""Another policy takes over in the middle of a load, and what clients owe is taken along.

`migrate` makes the new policy's state from the old one's: requests wait and run on, at their ages, the copy of the
prefix cache stays, and the gate's state is carried over as an `Account`, what each client owes in cost units.  So a
quantum is changed while it runs by migrating to the same policy with another quantum; a weight needs no migration, it
is an event (`ClientConfigured`).

What is carried is debt, and of credit what the new gate has a word for:

- deficit to deficit: debts stay, credit above the new quantum is cut (D-change).
- deficit to counter: a counter is the debt; credit is not carried, so no client starts below one that owes nothing.
- counter to deficit: a client at the level of the lowest that waits (where a lift would put it) gets one unit of
  credit, and each other owes what it is ahead of that level.
- a hierarchical gate keeps its tree, or gives what clients owe to another gate; none takes over from another, which
  does not know the groups.
- a gate of bands keeps its bands and what they are behind, and is otherwise as a hierarchical one.
- from an open gate: no client owes anything, weights are 1 until they are told.  To an open gate: nothing is kept.

The theorems are about these kernels: the new gate's invariant holds at once, with the larger of both gates' U, since
the requests in flight stay charged and reserved as they were.  So the new gate's theorems hold from the swap on, and
the gap of an interval with one swap in it is bounded by little more than one gate's.
"""

from collections.abc import Iterable
from functools import singledispatch
from math import lcm
from typing import Any

import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from fairsched.model.algebra import NUMPY, Algebra, Bools, Ints, Mask, Point, Vector
from fairsched.model.events import Event
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    LIFT_ON_JOIN,
    MEM_RESERVE,
    NOTHING_REFUNDED,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.gates import (
    COMMON_MAX,
    ROOT,
    AnyGate,
    BandGate,
    BandState,
    CounterGate,
    CounterState,
    DeficitGate,
    DeficitState,
    GlobalDeficitGate,
    GlobalState,
    HierarchicalGate,
    HierarchicalState,
    InBatchGate,
    InBatchState,
    NoState,
    OpenGate,
    reconfigure,
)
from fairsched.policies.local.policy import ComposedPolicy
from fairsched.policies.local.queue import Queue, join, with_groups
from fairsched.policies.local.state import AnyLocalState, Flight, LocalState, group_of, steps_of
from fairsched.policies.orders import NO_PLACE
from fairsched.policies.orders.abilities import Promotions, waits_for_prefix
from fairsched.policies.vectors import grown

# --- theorems, proved in fairsched.verify.proofs.gates.refinements.state_transfer -------------------------------------

_INTERVAL = (
    MEM_RESERVE,
    NOTHING_REFUNDED,
    GATE_RESPECTED,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    LIFT_ON_JOIN,
    EQUAL_QUANTA,
    BACKLOGGED_DURING,
)


def gap_to_counter_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of swap-gap-V in cost units."""
    return quantum_f + charge_max_f + quantum_g + charge_max_g - 1


def gap_to_deficit_cost(quantum_f: int, charge_max_f: int, _quantum_g: int, charge_max_g: int) -> int:
    """The bound of swap-gap-D in cost units."""
    return quantum_f + charge_max_f + charge_max_g - 1


SWAP_V = Theorem(
    "swap-V",
    "where D-range holds, V-4.3 holds after deficits became counters, with the same U; each debt stays the same",
    "this library; for any weights",
    bound="U_i",
)
SWAP_D = Theorem(
    "swap-D",
    "where V-4.3 holds, D-range holds after counters became deficits, with the same U; a client ahead of the lowest "
    "owes at least that",
    "this library; for any weights",
    bound="[1 - U_i, 1]",
)
SWAP_GAP_V = Theorem(
    "swap-gap-V",
    "f and g backlogged over [t1, t2), in which a counter gate took over from a deficit gate: "
    "|W_f - W_g| <= 2(Q + U) - 1",
    "this library; one more than D-4.1 alone has",
    _INTERVAL,
    bound="Q + U_f + Q + U_g - 1",
    bound_cost=gap_to_counter_cost,
)
SWAP_GAP_D = Theorem(
    "swap-gap-D",
    "f and g backlogged over [t1, t2), in which a deficit gate took over from a counter gate: "
    "|W_f - W_g| <= 2U + Q - 1",
    "this library; less than D-4.1 alone has, if Q is more than one unit",
    _INTERVAL,
    bound="Q + U_f + U_g - 1",
    bound_cost=gap_to_deficit_cost,
)

# --- kernel ---------------------------------------------------------------------------------------------------------
# Closed forms, which may multiply and divide.
# Vectors over clients: q deficits, c counters, share how many of the counter's units a cost unit of the client is.


def counters(o: Algebra, q: Vector, share: Vector) -> Vector:
    """Debt as a counter, in the counter gate's unit.  Credit counts as no debt."""
    return o.maximum(-q, 0) * share


def deficits(o: Algebra, c: Vector, share: Vector, queued: Mask, last: Point) -> Vector:
    """What each client is ahead of the level of a lift, as debt in cost units, rounded up, and a unit for each."""
    level = o.where(o.any(queued), o.pick(c, o.argmin(c, queued), 0), o.pick(c, last, 0))
    return o.minimum(level - c, 0) // share + 1


# --- gate -----------------------------------------------------------------------------------------------------------


class MigrationError(ValueError):
    """A swap that would lose something; the message says what, and what to do instead."""


class Account(msgspec.Struct, frozen=True):
    """What a gate's state says of its clients, in words that other gates know.

    `balance` in cost units: a client below zero owes, one above zero has credit.  `known` are those ever seen.
    """

    balance: Ints
    weight: Ints
    known: Bools


@singledispatch
def account(gate: AnyGate, state: Any, queued: Bools) -> Account:
    """The account of a gate's state while the clients `queued` wait.  Authors register their gate's.  O(clients)."""
    raise MigrationError(f"gate {gate.name} does not say what its clients owe; register its `account`")


@account.register(DeficitGate)
def _account_deficit(gate: DeficitGate, state: DeficitState, queued: Bools) -> Account:
    return Account(state.q, state.quantum // gate.quantum, state.known)


@account.register(GlobalDeficitGate)
def _account_shared(gate: GlobalDeficitGate, state: GlobalState, queued: Bools) -> Account:
    return Account(state.deficit.q, state.deficit.quantum // gate.quantum, state.deficit.known)


@account.register(CounterGate)
def _account_counter(gate: CounterGate, state: CounterState, queued: Bools) -> Account:
    size = len(state.c)
    balance = deficits(NUMPY, state.c, state.share, grown(queued, size, False), state.last)
    return Account(balance, state.common // state.share, np.ones(size, np.bool_))


@account.register(HierarchicalGate)
def _account_tree(gate: HierarchicalGate, state: HierarchicalState, queued: Bools) -> Account:
    """What clients owe; what their groups do has no place in another gate."""
    return Account(state.q[state.node], state.quantum[state.node] // gate.quantum, state.known[state.node])


@account.register(BandGate)
def _account_bands(gate: BandGate, state: BandState, queued: Bools) -> Account:
    """What clients owe in their bands; what bands are behind has no place in another gate."""
    own = state.band, np.arange(len(state.band))
    q, quanta, known = (np.array([getattr(kept, name) for kept in state.inside]) for name in ("q", "quantum", "known"))
    return Account(q[own], quanta[own] // gate.quantum, known[own])


@account.register(OpenGate)
def _account_none(gate: OpenGate, state: NoState, queued: Bools) -> Account:
    size = len(queued)
    return Account(np.ones(size, np.int64), np.ones(size, np.int64), np.ones(size, np.bool_))


@singledispatch
def opened(gate: AnyGate, held: Account, in_flight: Ints) -> Any:
    """The state in which `gate` takes over an account.  Authors register their gate's.  O(clients).

    `in_flight` are the KV tokens promised to each client's running requests.
    """
    raise MigrationError(f"gate {gate.name} does not say how it takes over what clients owe; register its `opened`")


@opened.register(DeficitGate)
def _opened_deficit(gate: DeficitGate, held: Account, in_flight: Ints) -> DeficitState:
    quanta = held.weight * gate.quantum
    promised = np.zeros_like(in_flight) if gate.in_flight_cap_tokens is None else in_flight
    return DeficitState(reconfigure(NUMPY, held.balance, quanta), held.known, quanta, promised)


@opened.register(CounterGate)
def _opened_counter(gate: CounterGate, held: Account, in_flight: Ints) -> CounterState:
    common = lcm(*held.weight.tolist())
    if common > COMMON_MAX:
        raise MigrationError(f"the weights' least common multiple is {common}, over {COMMON_MAX}: use rounder weights")
    share = common // held.weight
    return CounterState(counters(NUMPY, held.balance, share), share, common, -1, np.zeros_like(share))


@opened.register(HierarchicalGate)
def _opened_tree(gate: HierarchicalGate, held: Account, in_flight: Ints) -> HierarchicalState:
    raise MigrationError("a hierarchical gate is told who is in which group before the first request: start with it")


@opened.register(BandGate)
def _opened_bands(gate: BandGate, held: Account, in_flight: Ints) -> BandState:
    raise MigrationError("a gate of bands is told who is in which band before the first request: start with it")


@opened.register(OpenGate)
def _opened_none(gate: OpenGate, held: Account, in_flight: Ints) -> NoState:
    return gate.init()


# --- policies -------------------------------------------------------------------------------------------------------


def migrate(old: AnyLocalPolicy, state: Any, new: AnyLocalPolicy) -> Any:
    """The state in which `new` goes on where `old` is.  O(n log n + bytes of prompts) for n waiting requests.

    Between two decisions the policy may be replaced at any time.  Raises `MigrationError` where something would be
    lost: the rates differ (debts are in their units), the new policy would never admit a request that is there, it
    reserves outputs and what runs has none reserved, or a gate has no rule for accounts.
    """
    if not (isinstance(old, ComposedPolicy) and isinstance(new, ComposedPolicy)):
        other = new if isinstance(old, ComposedPolicy) else old
        raise MigrationError(f"{type(other).__name__} is no composed policy, and its state cannot be carried over")
    _check(old, state, new)
    there = max((request.client for request in _requests(state)), default=-1) + 1
    size = len(state.queue.heads) if old.gate.grouped else there
    queue, flights = _queue(old, state, new)
    queue = with_groups(queue, size) if new.gate.grouped else queue
    computing = state.computing if waits_for_prefix(new.order) else Map[int, Prompt]()
    return LocalState(_gate_state(old, state, new, size), queue, state.cache, flights, computing)


def _queue(old: ComposedPolicy, state: AnyLocalState, new: ComposedPolicy) -> tuple[Queue, Map[int, Flight]]:
    """Return the queue as the new order ranks it, and running requests."""
    before, flights = state.queue, state.flights
    if old.order == new.order and old.gate.grouped is new.gate.grouped:
        return before, flights
    queue = Queue(arrivals=before.arrivals, extensions=new.order.extensions())
    queue = replace(queue, extensions=queue.extended(Promotions(steps_of(before))))
    # Where steps are not counted any more, requests that run were admitted so many steps before the first.
    forgotten = steps_of(before) - steps_of(queue)
    for entry in sorted(before.entries.values(), key=lambda entry: entry.age):
        # The new order makes groups of its own, if any.
        alone = replace(entry, place=NO_PLACE, prefix_tokens=0)
        queue = join(queue, new.order, state.cache, alone, group_of(new.gate, entry.request.client))
    for request_id, flight in flights.items():
        entry = replace(flight.entry, place=NO_PLACE, prefix_tokens=0)
        flights = flights.set(request_id, replace(flight, entry=entry, since=flight.since - forgotten))
    return queue, flights


def _same_bands(state: BandState, old: BandGate, new: BandGate) -> BandState:
    """The state with the new gate's quanta; what bands are behind is kept."""
    if new.names != old.names:
        raise MigrationError(f"bands {old.bands} have other names than {new.bands}: start with the new ones")
    quanta = [own.quantum // old.quantum * new.quantum for own in state.inside]
    inside = tuple(
        replace(own, quantum=its, q=reconfigure(NUMPY, own.q, its))
        for own, its in zip(state.inside, quanta, strict=True)
    )
    return replace(state, lag=NUMPY.maximum(state.lag, -new.floor), inside=inside)


def _gate_state(old: ComposedPolicy, state: AnyLocalState, new: ComposedPolicy, size: int) -> Any:
    if isinstance(new.gate, BandGate) and isinstance(old.gate, BandGate):
        return _same_bands(state.gate, old.gate, new.gate)
    if type(old.gate) is type(new.gate) and not isinstance(new.gate, DeficitGate | HierarchicalGate):
        return state.gate  # Nothing of these gates' configuration is in their state.
    queued = np.zeros(size, np.bool_)
    queued[[entry.request.client for entry in state.queue.entries.values()]] = True
    in_flight = np.zeros(size, np.int64)
    for flight in state.flights.values():
        in_flight[flight.entry.request.client] += flight.counted
    if isinstance(new.gate, HierarchicalGate) and isinstance(old.gate, HierarchicalGate):
        return _other_quanta(old.gate, state.gate, new.gate, in_flight)
    gate_state = opened(new.gate, account(old.gate, state.gate, queued), in_flight)
    if isinstance(new.gate, GlobalDeficitGate):
        # A swap is about one worker, so a waiting client waits there.
        size = len(gate_state.q)
        places = grown(queued, size, False).astype(np.int64)
        granted = state.gate.granted if isinstance(old.gate, GlobalDeficitGate) else np.zeros(0, np.int64)
        came = [entry.request.client for entry in state.queue.entries.values() if entry.kv_tokens]
        counted = len(state.gate.landed) if isinstance(old.gate, GlobalDeficitGate) else 0
        landed = np.bincount(came, minlength=counted).astype(np.int64)
        return GlobalState(gate_state, places, grown(granted, size, 0), landed)
    if isinstance(new.gate, InBatchGate):
        before = state.gate.longest if isinstance(old.gate, InBatchGate) else 0
        longest = max([before, *(flight.kv_tokens for flight in state.flights.values())])
        return replace(InBatchState(*msgspec.structs.astuple(gate_state)), longest=longest)
    return gate_state


def _other_quanta(
    old: HierarchicalGate, state: HierarchicalState, new: HierarchicalGate, in_flight: Ints
) -> HierarchicalState:
    """The same tree with the new gate's quanta, and what runs counted where the new gate has a cap."""
    quanta = state.quantum // old.quantum * new.quantum
    quanta[ROOT] = 1
    promised = np.zeros_like(state.in_flight)
    if new.in_flight_cap_tokens is not None:
        for nodes in (state.node, state.inner, state.outer):
            np.add.at(promised, nodes[: len(in_flight)], in_flight[: len(nodes)])
        promised[ROOT] = 0
    q = reconfigure(NUMPY, state.q, quanta)
    return replace(state, q=q, quantum=quanta, in_flight=promised)


def _requests(state: AnyLocalState) -> list[Request]:
    """What waits and what runs."""
    entries = [*state.queue.entries.values(), *(flight.entry for flight in state.flights.values())]
    return [entry.request for entry in entries]


def _check(old: ComposedPolicy, state: AnyLocalState, new: ComposedPolicy) -> None:
    """Raise `MigrationError` if something would be lost."""
    if old.gate.grouped and new.gate.grouped and old.gate.rates != new.gate.rates:
        mine, theirs = old.gate.rates, new.gate.rates
        raise MigrationError(
            f"debts are in cost units of {mine.input} an input and {mine.output} an output token, and {new.name} "
            f"charges {theirs.input} and {theirs.output}: keep the rates"
        )
    if state.flights and old.batching.grows and not new.batching.grows:
        raise MigrationError(
            f"{new.name} reserves outputs, and {len(state.flights)} requests run without: preempt them first"
        )
    for request in _requests(state):
        refusal = new.refuses(request)
        if refusal is not None:
            raise MigrationError(f"{new.name} would never admit request {request.id}: {refusal}; end it first")


def keep_debts(policy: AnyLocalPolicy, last: Any, history: Iterable[Event]) -> Any:
    """The state of a policy that is told the worker's present (`engines.serving.guard.history`), with the debts of
    `last`.

    A client that waits now and did not as `last` knew it starts to wait, as the gate has it.  A policy that is no
    composition keeps no debts: only its author knows what they are.  O(history + clients).
    """
    told = policy.init()
    for event in history:
        told = policy.observe(told, event)
    if not isinstance(policy, ComposedPolicy) or not isinstance(last, LocalState):
        return told
    # Clients that have nothing here any more still owe.
    queue = with_groups(told.queue, len(last.queue.heads)) if policy.gate.grouped else told.queue
    gate, heads = last.gate, queue.heads
    waited = {entry.request.client for entry in last.queue.entries.values()}
    for client in sorted({entry.request.client for entry in told.queue.entries.values()} - waited):
        gate = policy.gate.joined(gate, client, heads, False)
    return migrate(policy, replace(told, gate=gate, queue=queue), policy)
