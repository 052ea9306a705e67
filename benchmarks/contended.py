"""What D-elastic promises of a run, and whether it holds: the gaps of clients that wait together, beside their bounds.

While two clients both wait, decisions are bounded by the cap, (Q + U(C) - 1) on either side, and what comes on top is
what was in flight or owed before: U of the KV tokens that were counted for a client when it was last let in.  Both are
known only from the run, so the bound is each pair's own.
"""

import attrs
import numpy as np

from fairsched.model import events
from fairsched.policies.base import Limits
from fairsched.policies.gates.deficit import DeficitGate, gap_cost
from fairsched.policies.guarantees.relation import PromisedTokens


@attrs.frozen
class ContendedReport:
    """The largest gap of two clients that waited together, in cost units; `bound` is D-elastic's without what was in
    flight before (of the largest request that was let in beside others), `bound_max` the largest that any pair had.

    `over` counts intervals whose gap passed the pair's bound, and `unlikely` how often a client was charged more than U
    of what was counted for it, which breaks OutputsLikely.  `past_cap` are admissions over the cap while another client
    waited and something of their own was in flight.
    """

    gap: int
    bound: int
    bound_max: int
    over: int
    unlikely: int
    past_cap: int


class ContendedGaps:
    """Follows one worker's events, without the gate; clients of one weight.  O(clients^2) a charge."""

    def __init__(self, gate: DeficitGate, limits: Limits) -> None:
        if gate.in_flight_cap_tokens is None:
            raise ValueError("D-elastic is about a gate with an in-flight cap")
        self._gate, self._limits, self._cap = gate, limits, gate.in_flight_cap_tokens
        self._promised = PromisedTokens(gate)
        self._largest = 1
        self._size = 0
        self._waiting = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.int64)
        """U of what was counted in flight when each client was last let in."""
        self._since = np.zeros(0, np.int64)
        """What it was charged from then on."""
        self._served = np.zeros(0, np.int64)
        self._ahead = np.zeros((0, 0), np.int64)
        self._before = np.zeros((0, 0), np.int64)
        """Of each pair that waits: the most that one was ahead since both wait, and the larger `held` at that time."""
        self._report = ContendedReport(0, 0, 0, 0, 0, 0)

    def observe(self, event: events.Event) -> None:
        """The worker's next event."""
        match event:
            case events.Arrived():
                self._joins(event.request.client)
            case events.Preempted():
                self._joins(event.client)
            case events.Admitted():
                self._let_in(event)
                return
            case events.Settled() | events.Held():
                raise ValueError("D-elastic's watch is for engines that compute what they plan and hold no memory")
            case events.Decoded():
                self._charge(list(event.clients), [self._gate.rates.output * tokens for tokens in event.tokens])
            case events.Cancelled() | events.Migrated() | events.Rejected() if self._promised.waits(event.request_id):
                self._leaves(event.client)
            case events.WorkerLeft():
                self._judge_open()
                self._waiting[:] = 0
        self._promised.observe(event)

    def report(self) -> ContendedReport:
        """What was seen so far; intervals that are open count."""
        closed = self._report
        self._judge_open()
        found, self._report = self._report, closed
        return attrs.evolve(found, bound=self._bound(0))

    def _judge_open(self) -> None:
        waits = np.flatnonzero(self._waiting).tolist()
        for client in waits:
            self._judge(client, [other for other in waits if other > client])

    def _count(self, **more: int) -> None:
        found = attrs.asdict(self._report)
        self._report = attrs.evolve(self._report, **{name: found[name] + count for name, count in more.items()})

    def _charge_max(self, tokens: int) -> int:
        """U of so many tokens in flight."""
        return self._limits.charge_max(self._gate.rates, max(min(tokens, self._limits.kv_capacity_tokens), 2))

    def _bound(self, held: int) -> int:
        since = self._charge_max(max(self._cap, self._largest))
        quantum = self._gate.quantum
        return gap_cost(quantum, since, quantum, max(since, held))

    # --- clients ----------------------------------------------------------------------------------------------------

    def _room(self, size: int) -> None:
        if size <= self._size:
            return
        more = size - self._size
        for name in ("_waiting", "_held", "_since", "_served"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._ahead, self._before = (np.pad(each, (0, more)) for each in (self._ahead, self._before))
        self._size = size

    def _joins(self, client: int) -> None:
        self._room(client + 1)
        self._waiting[client] += 1
        if self._waiting[client] > 1:
            return
        lead = self._served[client] - self._served
        self._ahead[client], self._ahead[:, client] = lead, -lead
        self._before[client] = self._before[:, client] = np.maximum(self._held, self._held[client])

    def _leaves(self, client: int) -> None:
        if self._waiting[client] == 1:
            self._judge(client, [other for other in np.flatnonzero(self._waiting).tolist() if other != client])
        self._waiting[client] = max(self._waiting[client] - 1, 0)

    def _judge(self, client: int, others: list[int]) -> None:
        """Intervals in which the client waited beside these are over."""
        for other in others:
            gap = int(self._ahead[client, other] + self._ahead[other, client])
            bound = self._bound(int(self._before[client, other]))
            largest, most = max(self._report.gap, gap), max(self._report.bound_max, bound)
            self._report = attrs.evolve(self._report, gap=largest, bound_max=most)
            self._count(over=int(gap > bound))

    def _let_in(self, event: events.Admitted) -> None:
        client, in_flight = event.client, self._promised.in_flight
        before = in_flight[client]
        self._promised.observe(event)
        counted = in_flight[client] - before
        if int((self._waiting > 0).sum()) > 1:
            self._largest = max(self._largest, counted)
            asked = before + counted + event.cached_prefix_tokens
            self._count(past_cap=int(before > 0 and asked > self._cap))
        self._held[client], self._since[client] = self._charge_max(in_flight[client]), 0
        charged = self._gate.charged(event.extend_tokens, event.cached_prefix_tokens) * self._gate.rates.input
        self._charge([client], [charged])
        self._leaves(client)

    def _charge(self, clients: list[int], costs: list[int]) -> None:
        self._served[clients] += costs
        before = self._since[clients] > self._held[clients]
        self._since[clients] += costs
        self._count(unlikely=int(((self._since[clients] > self._held[clients]) & ~before).sum()))
        lead = self._served[:, None] - self._served[None, :]
        np.maximum(self._ahead, lead, out=self._ahead)
