"""What calls in flight are charged between two ticks: outputs that came, and memory that was held for so long.

What a client holds is summed exactly, in tokens times nanoseconds, and whole units are charged; each call counts for
its first `call_ns` only.  The time at which a client's next unit is full is known when what it holds changes, so that a
tick costs O(clients that are charged), whatever is in flight, and a call that begins, grows or ends O(log clients).
"""

from collections import Counter, deque
from heapq import heappop, heappush

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


@attrs.define(eq=False)
class _Client:
    """What a client's calls hold since `since_ns`, what they held before that, how many units of it are charged, and
    when the next one is full (None: nothing is held)."""

    tokens: int = 0
    since_ns: int = 0
    token_ns: int = 0
    units: int = 0
    due_ns: int | None = None

    def held(self, now_ns: int) -> int:
        """Return tokens times nanoseconds until now."""
        return self.token_ns + self.tokens * (now_ns - self.since_ns)

    def pass_to(self, now_ns: int) -> None:
        """Let time pass."""
        self.token_ns, self.since_ns = self.held(now_ns), now_ns


class HoldMeter:
    """Tokens times nanoseconds that the calls of each client held, and how many units of them are charged."""

    def __init__(self, hold_ns: int, call_ns: int) -> None:
        self._hold_ns, self._call_ns = hold_ns, call_ns
        self._now_ns = 0
        self._of: dict[int, _Holding] = {}
        self._by_end: deque[_Holding] = deque()
        self._clients: dict[int, _Client] = {}
        self._due: list[tuple[int, int]] = []
        self._due_max = _SPARE

    def begin(self, request_id: int, client: int, tokens: int, now_ns: int) -> None:
        """Let a call hold so many tokens from now on."""
        self._until(now_ns)
        if len(self._by_end) > 2 * len(self._of) + _SPARE:
            self._by_end = deque(each for each in self._by_end if each.counts)
        holding = self._of[request_id] = _Holding(client, tokens, self._now_ns + self._call_ns)
        self._by_end.append(holding)
        self._change(client, tokens, self._now_ns)

    def grow(self, request_id: int, tokens: int, now_ns: int) -> None:
        """Let a call hold so many tokens more."""
        self._until(now_ns)
        holding = self._of[request_id]
        if holding.counts:
            holding.tokens += tokens
            self._change(holding.client, tokens, self._now_ns)

    def add(self, client: int, token_ns: int, now_ns: int) -> None:
        self._until(now_ns)
        self._change(client, 0, self._now_ns, token_ns)

    def end(self, request_id: int, now_ns: int) -> None:
        self._until(now_ns)
        self._close(self._of.pop(request_id), self._now_ns)

    def held_token_ns(self, client: int) -> int:
        """Return tokens times nanoseconds that the client's calls held until the last change or tick of any client."""
        found = self._clients.get(client)
        return 0 if found is None else found.held(self._now_ns)

    def take(self, now_ns: int) -> dict[int, int]:
        """Return the units that clients are to be charged now, by ascending client."""
        self._until(now_ns)
        due: dict[int, int] = {}
        while self._due and self._due[0][0] <= self._now_ns:
            due_ns, number = heappop(self._due)
            client = self._clients[number]
            if due_ns == client.due_ns:
                client.pass_to(self._now_ns)
                units = hold_units(client.token_ns, self._hold_ns) - client.units
                client.units += units
                due[number] = units
                self._foresee(number, client)
        return dict(sorted(due.items()))

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

    def _change(self, number: int, tokens: int, now_ns: int, token_ns: int = 0) -> None:
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = _Client()
        client.pass_to(now_ns)
        client.tokens += tokens
        client.token_ns += token_ns
        self._foresee(number, client)

    def _foresee(self, number: int, client: _Client) -> None:
        """Note when the client's next unit is full, if nothing that it holds changes before."""
        missing, due_ns = (client.units + 1) * self._hold_ns - client.token_ns, None
        if missing <= 0:
            due_ns = client.since_ns
        elif client.tokens:
            due_ns = client.since_ns - (-missing // client.tokens)
        if due_ns != client.due_ns:
            client.due_ns = due_ns
            if due_ns is not None:
                heappush(self._due, (due_ns, number))
                self._forget()

    def _forget(self) -> None:
        """Drop times that hold no more, once they are half of all."""
        if len(self._due) > self._due_max:
            self._due = sorted({entry for entry in self._due if entry[0] == self._clients[entry[1]].due_ns})
            self._due_max = 2 * len(self._due) + _SPARE


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
