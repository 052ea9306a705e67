"""The gaps of clients that wait together under an elastic cap, beside D-elastic's bounds, which are each pair's own."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from fairsched.model import events as ev
from fairsched.model.request import Request
from fairsched.policies.base import Limits
from fairsched.policies.gates import DeficitGate
from fairsched.policies.gates import deficit as kernel


class Gaps:
    """What D-elastic is about, by its definition: what waits and runs, and the leads of each pair while both wait.

    `unlikely` counts charges beyond what was counted, which OutputsLikely excludes, and `past_cap` admissions over the
    cap beside others; of each pair `seen` has the gap, and its bound."""

    def __init__(self, gate: DeficitGate, limits: Limits) -> None:
        self.gate, self.limits = gate, limits
        self.requests: dict[int, Request] = {}
        self.left: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.running: dict[int, tuple[int, int]] = {}
        self.usual, self.served, self.held, self.since = (Counter[int]() for _ in range(4))
        self.together: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.largest, self.unlikely, self.past_cap = 1, 0, 0
        self.seen: list[tuple[int, int]] = []

    def charge_max(self, tokens: int) -> int:
        """U of so many tokens."""
        return self.limits.charge_max(self.gate.rates, max(min(tokens, self.limits.kv_capacity_tokens), 2))

    def bound(self, before: int) -> int:
        """D-elastic's."""
        most = self.charge_max(max(self.gate.in_flight_cap_tokens or 0, self.largest))
        return 2 * (self.gate.quantum - 1) + most + max(most, before)

    @property
    def over(self) -> int:
        """How many pairs passed their bounds."""
        return sum(gap > bound for gap, bound in self.seen)

    def judge(self, pairs: Iterable[tuple[int, int]]) -> None:
        """The time in which these waited together is over."""
        for pair in list(pairs):
            before, low, high = self.together.pop(pair)
            self.seen.append((high - low, self.bound(before)))

    def enters(self, event: ev.Admitted) -> int:
        """What an admission charges."""
        client, left = event.client, self.left[event.request_id]
        before = sum(tokens for own, tokens in self.running.values() if own == client)
        likely = self.usual[client]
        counted = event.extend_tokens + (min(left, likely) if likely else left)
        if len(set(self.waiting.values())) > 1:
            self.largest = max(self.largest, counted)
            asked = before + counted + event.cached_prefix_tokens
            self.past_cap += before > 0 and asked > (self.gate.in_flight_cap_tokens or 0)
        del self.waiting[event.request_id]
        self.running[event.request_id] = client, counted
        self.held[client], self.since[client] = self.charge_max(before + counted), 0
        return self.gate.rates.input * self.gate.charged(event.extend_tokens, event.cached_prefix_tokens)

    def follow(self, event: ev.Event) -> None:
        """The next event."""
        charges: dict[int, int] = {}
        match event:
            case ev.Arrived(request=request):
                self.requests[request.id] = request
                self.left[request.id] = request.max_output_tokens - event.generated_tokens
                self.waiting[request.id] = request.client
            case ev.Preempted():
                del self.running[event.request_id]
                self.waiting[event.request_id] = event.client
                self.left[event.request_id] = self.requests[event.request_id].max_output_tokens - event.generated_tokens
            case ev.Admitted():
                charges = {event.client: self.enters(event)}
            case ev.Decoded():
                rate = self.gate.rates.output
                charges = {client: rate * count for client, count in zip(event.clients, event.tokens, strict=True)}
            case ev.Finished() | ev.Cancelled() | ev.Migrated() | ev.Rejected():
                self.waiting.pop(event.request_id, None)
                self.running.pop(event.request_id, None)
                if isinstance(event, ev.Finished):
                    self.usual[event.client] = kernel.learned(self.usual[event.client], event.output_tokens)
        for client, cost in charges.items():
            self.unlikely += self.since[client] <= self.held[client] < self.since[client] + cost
            self.since[client] += cost
            self.served[client] += cost
        self.pairs()

    def pairs(self) -> None:
        """Take down the lead of each pair, and which pairs wait now."""
        for (f, g), (before, low, high) in self.together.items():
            lead = self.served[f] - self.served[g]
            self.together[f, g] = before, min(low, lead), max(high, lead)
        now = set(combinations(sorted(set(self.waiting.values())), 2))
        self.judge(set(self.together) - now)
        for f, g in now - set(self.together):
            lead = self.served[f] - self.served[g]
            self.together[f, g] = max(self.held[f], self.held[g]), lead, lead
