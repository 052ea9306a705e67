"""Small worlds about prefixes of several clients, played by the shipped policy, worker and gate.

Requests are sent one after the other, each when the one before has finished, so that nothing but the cache and the
gate's charge rule decides what each is charged.  Rates are 1 for an input token, so tokens are cost units.
"""

from collections.abc import Iterator, Sequence

import attrs

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Event
from fairsched.model.request import Prompt, Request
from fairsched.model.worker_state import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.dlpm import DLPM
from fairsched.policies.gate_watch import GateWatch

VICTIM, ADVERSARY = 0, 1
Sends = Sequence[tuple[int, Sequence[int]]]
"""Requests in order: the client, and a key for each token of its prompt."""


@attrs.frozen
class Charge:
    """What one admission did: `computed` tokens by the worker, `charged` in all to its client, of which `moves` (from
    whom, how much) were given back to others."""

    client: int
    computed: int
    charged: int
    moves: tuple[tuple[int, int], ...] = ()


def played(gate: DeficitGate, sends: Sends, capacity: int) -> list[Charge]:
    """The charge of each request, sent to one worker that holds `capacity` tokens; each produces one token."""
    policy = DLPM(gate=gate, batching=Chunked(max_batched_tokens=capacity))
    watch, state, worker = GateWatch(gate, skips=True), policy.init(), WorkerState(0, capacity)
    found: list[Charge] = []

    def unfolded(events: Sequence[Event]) -> Iterator[Event]:
        """What the policy has not folded into its decision; the watch follows all of it."""
        for event in events:
            watch.observe(event)
            if not isinstance(event, Admitted):
                yield event
                continue
            own = gate.charged(event.extend_tokens, event.cached_prefix_tokens)
            moves = tuple((giver, units) for _, giver, units in watch.moves)
            charged = own + sum(units for _, units in moves)
            found.append(Charge(event.client, event.extend_tokens, charged, moves))

    for number, (client, keys) in enumerate(sends):
        request = Request(number, client, number, Prompt.from_keys(keys, block_tokens=1), 1)
        worker, arrived = transitions.arrive(worker, request, 1, number)
        for event in arrived:
            watch.observe(event)
            state = policy.observe(state, event)
        plan, state = policy.decide(state, worker.view(number))
        worker, done = transitions.step(worker, plan, number)
        for event in unfolded(done):
            state = policy.observe(state, event)
    return found


def paid(charges: Sequence[Charge]) -> dict[int, int]:
    """What each client has paid in the end: its charges, less what others took over."""
    totals: dict[int, int] = {}
    for charge in charges:
        totals[charge.client] = totals.get(charge.client, 0) + charge.charged
        for giver, units in charge.moves:
            totals[giver] -= units
    return totals


def victims_charges(gate: DeficitGate, tokens: int, attacked: bool) -> list[int]:
    """What the victim is charged for each of three requests for one prompt of so many tokens.

    Memory holds one prompt, and an adversary who is there asks for others in between.
    """
    prompt = range(tokens)
    sends: list[tuple[int, Sequence[int]]] = []
    for turn in range(1, 4):
        sends.append((VICTIM, prompt))
        if attacked:
            sends.append((ADVERSARY, range(turn * tokens, (turn + 1) * tokens)))
    return [charge.charged for charge in played(gate, sends, tokens + 1) if charge.client == VICTIM]


def riders_shares(gate: DeficitGate, tokens: int, clients: int) -> dict[int, int]:
    """What each client has paid in the end for one prompt that all ask for, one after the other; 0 comes first."""
    return paid(played(gate, [(client, range(tokens)) for client in range(clients)], 2 * tokens + 1))
