"""A policy's parameters change in the middle of a load, or its state is made anew, and what clients owe is kept.

`migrate` makes the new policy's state from the old one's: requests wait and run on, at their ages, the copy of the
prefix cache stays, and the gate's state is carried over.  Both policies have the same order and the same kind of gate;
the batching rule and the gate's parameters may be others.  A weight needs no migration, it is an event
(`ClientConfigured`).

Of a smaller quantum credit above it is cut, and debts stay (D-change): the gate's invariant holds at once, with the
larger of both U, since the requests in flight stay charged and reserved as they were.

`keep_debts` is what a guard asks for whose policy lost track of its worker: the worker's present, and the debts of the
last state.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec.structs import replace

from fairsched.model.algebra import NUMPY, Ints
from fairsched.model.events import Event
from fairsched.model.request import Request
from fairsched.policies import gates
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.local.policy import ComposedPolicy
from fairsched.policies.local.state import AnyLocalState, LocalState
from fairsched.policies.orders import with_groups
from fairsched.policies.vectors import grown


class MigrationError(ValueError):
    """A change that would lose something; the message says what, and what to do instead."""


def migrate(old: AnyLocalPolicy, state: Any, new: AnyLocalPolicy) -> Any:
    """Return the state in which `new` goes on where `old` is.  O(requests + clients).

    Between two decisions the policy may be replaced at any time.  Raises `MigrationError` where something would be
    lost: the order is another, the gate is of another kind or has other rates (debts are in their units), the new
    policy would never admit a request that is there, or it reserves outputs and what runs has none reserved.
    """
    if not (isinstance(old, ComposedPolicy) and isinstance(new, ComposedPolicy)):
        other = new if isinstance(old, ComposedPolicy) else old
        raise MigrationError(f"{type(other).__name__} is no composed policy, and its state cannot be carried over")
    _check(old, state, new)
    gate = _gate_state(old.gate, state, new.gate)
    return LocalState(gate, state.queue, state.cache, state.flights, state.computing)


def _gate_state(old: gates.AnyGate, state: AnyLocalState, new: gates.AnyGate) -> Any:
    """Return the gate's state with the parameters of the new one."""
    if isinstance(new, gates.BandGate) and isinstance(old, gates.BandGate):
        return _same_bands(state.gate, old, new)
    if not isinstance(new, gates.DeficitGate | gates.HierarchicalGate):
        return state.gate  # Nothing of these gates' configuration is in their state.
    in_flight = np.zeros(len(state.queue.heads), np.int64)
    for flight in state.flights.values():
        in_flight[flight.entry.request.client] += flight.counted
    if isinstance(new, gates.HierarchicalGate) and isinstance(old, gates.HierarchicalGate):
        return _other_quanta(old, state.gate, new, in_flight)
    assert isinstance(new, gates.DeficitGate)
    assert isinstance(old, gates.DeficitGate)
    if isinstance(new, gates.GlobalDeficitGate):
        # A change is about one worker, so a waiting client waits there.
        entries, kept = state.queue.entries.values(), state.gate
        deficit = _same_deficits(old, kept, new, in_flight)
        size = len(deficit.q)
        places = np.zeros(size, np.int64)
        places[[entry.request.client for entry in entries]] = 1
        came = [entry.request.client for entry in entries if entry.kv_tokens]
        landed = np.bincount(came, minlength=len(kept.landed)).astype(np.int64)
        return replace(deficit, places=places, granted=grown(kept.granted, size, 0), landed=landed)
    deficit = _same_deficits(old, state.gate, new, in_flight)
    if isinstance(new, gates.InBatchGate):
        longest = max([state.gate.longest, *(flight.kv_tokens for flight in state.flights.values())])
        return replace(deficit, longest=longest)
    return deficit


def _same_deficits(
    old: gates.DeficitGate, state: gates.DeficitState, new: gates.DeficitGate, in_flight: Ints
) -> gates.DeficitState:
    """Return the state with the new gate's quanta, and what runs counted where the new gate counts it."""
    quanta = state.quantum // old.quantum * new.quantum
    promised = in_flight if new.counts_in_flight else np.zeros_like(in_flight)
    q, usual = gates.deficit.reconfigure(NUMPY, state.q, quanta), np.zeros(0, np.int64)
    return replace(state, q=q, quantum=quanta, in_flight=promised, usual=usual)


def _same_bands(state: gates.bands.BandState, old: gates.BandGate, new: gates.BandGate) -> gates.bands.BandState:
    """Return the state with the new gate's quanta; what bands are behind is kept."""
    if new.names != old.names:
        raise MigrationError(f"bands {old.bands} have other names than {new.bands}: start with the new ones")
    quanta = [own.quantum // old.quantum * new.quantum for own in state.inside]
    inside = tuple(
        replace(own, quantum=its, q=gates.deficit.reconfigure(NUMPY, own.q, its))
        for own, its in zip(state.inside, quanta, strict=True)
    )
    return replace(state, lag=NUMPY.maximum(state.lag, -new.floor), inside=inside)


def _other_quanta(
    old: gates.HierarchicalGate, state: gates.HierarchicalState, new: gates.HierarchicalGate, in_flight: Ints
) -> gates.HierarchicalState:
    """Return the same tree with the new gate's quanta, and what runs counted where the new gate counts it."""
    quanta = state.quantum // old.quantum * new.quantum
    quanta[gates.hierarchical.ROOT] = 1
    promised = np.zeros_like(state.in_flight)
    if new.in_flight_cap_tokens is not None:
        for nodes in (state.node, state.inner, state.outer):
            np.add.at(promised, nodes[: len(in_flight)], in_flight[: len(nodes)])
        promised[gates.hierarchical.ROOT] = 0
    q = gates.deficit.reconfigure(NUMPY, state.q, quanta)
    return replace(state, q=q, quantum=quanta, in_flight=promised)


def _requests(state: AnyLocalState) -> list[Request]:
    """Return waiting and running requests."""
    entries = [*state.queue.entries.values(), *(flight.entry for flight in state.flights.values())]
    return [entry.request for entry in entries]


def _check(old: ComposedPolicy, state: AnyLocalState, new: ComposedPolicy) -> None:
    """Raise `MigrationError` if something would be lost."""
    if type(old.gate) is not type(new.gate):
        raise MigrationError(f"what clients owe under gate {old.gate.name} means nothing to gate {new.gate.name}")
    if old.order != new.order:
        raise MigrationError(
            f"requests were ranked by order {old.order.name}, and {new.name} has another: start with it"
        )
    if old.gate.grouped and old.gate.rates != new.gate.rates:
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
    """Return the state of a policy that is told the worker's present (`engines.serving.guard.history`), with the debts
    of `last`.

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
