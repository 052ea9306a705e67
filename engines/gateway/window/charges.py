"""What calls in flight are charged between two ticks: outputs that came, and memory that was held for so long.

What a client holds is summed exactly, in tokens times nanoseconds, and whole units are charged; each call counts for
its first `call_ns` only.  A tick costs O(clients with calls in flight), a call that begins, grows or ends O(1).
"""

from collections import Counter, deque

import attrs

from fairsched.model.events import Decoded, Event, Held
from fairsched.policies.guarantees import hold_units

_SPARE = 64


@attrs.define(eq=False)
class _Holding:
    """What a call holds until it ends, or is too long."""

    client: int
    tokens: int
    until_ns: int
    counts: bool = True


class HoldMeter:
    """Tokens times nanoseconds that the calls of each client held, and how many units of them are charged."""

    def __init__(self, hold_ns: int, call_ns: int) -> None:
        self.token_ns: Counter[int] = Counter()
        self._hold_ns, self._call_ns = hold_ns, call_ns
        self._now_ns = 0
        self._of: dict[int, _Holding] = {}
        self._by_end: deque[_Holding] = deque()
        self._held: dict[int, int] = {}
        self._since_ns: dict[int, int] = {}
        self._units: Counter[int] = Counter()

    def begin(self, request_id: int, client: int, tokens: int, now_ns: int) -> None:
        """A call holds so many tokens from now on."""
        self._until(now_ns)
        if len(self._by_end) > 2 * len(self._of) + _SPARE:
            self._by_end = deque(each for each in self._by_end if each.counts)
        holding = self._of[request_id] = _Holding(client, tokens, self._now_ns + self._call_ns)
        self._by_end.append(holding)
        self._change(client, tokens, self._now_ns)

    def grow(self, request_id: int, tokens: int, now_ns: int) -> None:
        """A call holds so many tokens more."""
        self._until(now_ns)
        holding = self._of[request_id]
        if holding.counts:
            holding.tokens += tokens
            self._change(holding.client, tokens, self._now_ns)

    def end(self, request_id: int, now_ns: int) -> None:
        """A call holds nothing any more."""
        self._until(now_ns)
        self._close(self._of.pop(request_id), self._now_ns)

    def take(self, now_ns: int) -> dict[int, int]:
        """Return the units that clients are to be charged now, by ascending client."""
        self._until(now_ns)
        due: dict[int, int] = {}
        for client in sorted(self._since_ns):
            self._change(client, 0, self._now_ns)
            units = hold_units(self.token_ns[client], self._hold_ns) - self._units[client]
            if units:
                due[client] = units
                self._units[client] += units
            if not self._held[client]:
                del self._held[client], self._since_ns[client]
        return due

    def _until(self, now_ns: int) -> None:
        """Let time pass: calls that are too long count no more."""
        self._now_ns = now = max(now_ns, self._now_ns)
        while self._by_end and self._by_end[0].until_ns <= now:
            holding = self._by_end.popleft()
            self._close(holding, holding.until_ns)

    def _close(self, holding: _Holding, now_ns: int) -> None:
        if holding.counts:
            holding.counts = False
            self._change(holding.client, -holding.tokens, now_ns)

    def _change(self, client: int, tokens: int, now_ns: int) -> None:
        held = self._held.get(client, 0)
        if held:
            self.token_ns[client] += held * (now_ns - self._since_ns[client])
        self._held[client] = held + tokens
        self._since_ns[client] = now_ns


class Charges:
    """Outputs that came and memory that was held since the last tick."""

    def __init__(self, worker: int, hold_ns: int, call_ns: int) -> None:
        self.holds = HoldMeter(hold_ns, call_ns)
        self._worker = worker
        self._outputs: Counter[int] = Counter()

    def produced(self, client: int, tokens: int) -> None:
        """Count outputs that came; a negative number is set against those that come next."""
        self._outputs[client] += tokens

    def take(self, now_ns: int) -> list[Event]:
        """Return the events that charge them."""
        events: list[Event] = []
        due = sorted((client, tokens) for client, tokens in self._outputs.items() if tokens > 0)
        if due:
            events.append(Decoded(now_ns, self._worker, 1, *zip(*due, strict=True)))
            for client, _ in due:
                del self._outputs[client]
        units = self.holds.take(now_ns)
        if units:
            events.append(Held(now_ns, self._worker, tuple(units), tuple(units.values())))
        return events
