"""Access logs for tests: drawn requests, written in any order, and slow definitions of what an audit finds."""

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st

MS = 10**6
GOOD: dict[str, Any] = {
    "start_ms": 1_000, "ttft_ms": 1, "latency_ms": 5, "client": "a", "prompt_tokens": 1, "output_tokens": 1
}  # fmt: skip
"""A row as it should be."""


@attrs.frozen
class Line:
    """One request; times in milliseconds from the first possible arrival."""

    client: str
    arrival: int
    wait: int
    decode: int
    prompt: int
    output: int
    failed: bool = False

    @property
    def served(self) -> int:
        """When its wait was over."""
        return self.arrival + self.wait

    @property
    def end(self) -> int:
        """When it was over."""
        return self.served + self.decode

    @property
    def over(self) -> int:
        """When it waited no more."""
        return self.end if self.failed else self.served

    def row(self) -> dict[str, Any]:
        """As an access log has it."""
        latency = self.end - self.arrival
        row = {"client": self.client, "start_ms": 1_700_000_000_000 + self.arrival, "latency_ms": latency}
        tokens = {"prompt_tokens": self.prompt, "output_tokens": 0 if self.failed else self.output}
        first = {} if self.failed else {"ttft_ms": self.wait}
        return row | first | tokens | {"status": 500 if self.failed else 200}


LINES = st.lists(
    st.builds(
        Line,
        client=st.sampled_from(["a", "b", "c"]),
        arrival=st.integers(0, 40),
        wait=st.integers(0, 15),
        decode=st.integers(0, 15),
        prompt=st.integers(0, 9),
        output=st.integers(1, 6),
        failed=st.booleans(),
    ),
    min_size=1,
    max_size=10,
)
"""Requests close enough together to wait for each other, some of which fail."""


def write(path: Path, lines: Sequence[Line], seed: int | None = None) -> Path:
    """The lines as an access log in JSON lines, shuffled with a seed."""
    rows = [json.dumps(line.row()) for line in lines]
    if seed is not None:
        random.Random(seed).shuffle(rows)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def logged(folder: Path, *rows: object) -> Path:
    """An access log of these rows, in JSON lines."""
    path = folder / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def produced(line: Line, now: int) -> int:
    """Output tokens up to a time: one just after the first, the last at the end, evenly."""
    if line.failed or (now <= line.served and now < line.end):
        return 0
    if now >= line.end:
        return line.output
    return 1 + int(Fraction((line.output - 1) * (now - line.served), line.end - line.served))


@attrs.frozen
class Slow:
    """A run played event by event: every definition as it is written, with no thought for speed.

    `events` are (time, charges by client, who waited just before).
    """

    events: list[tuple[int, dict[str, int], frozenset[str]]]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> "Slow":
        """Play the requests: at each time first outputs, then arrivals, admissions, and failures."""
        events: list[tuple[int, dict[str, int], frozenset[str]]] = []
        waiting: dict[str, int] = {line.client: 0 for line in lines}
        instants = {line.arrival for line in lines}
        instants |= {time for line in lines if not line.failed for time in (line.served, line.end)}
        before = -1
        for now in sorted(instants | {line.end for line in lines}):
            ready = frozenset(client for client, count in waiting.items() if count)
            outputs: dict[str, int] = {}
            for line in lines:
                fresh = 2 * (produced(line, now) - produced(line, before)) if now in instants else 0
                if fresh:
                    outputs[line.client] = outputs.get(line.client, 0) + fresh
            events.append((now, outputs, ready))
            for line in lines:
                waiting[line.client] += line.arrival == now
            ready = frozenset(client for client, count in waiting.items() if count)
            admitted: dict[str, int] = {}
            for line in lines:
                if not line.failed and line.served == now:
                    waiting[line.client] -= 1
                    admitted[line.client] = admitted.get(line.client, 0) + line.prompt
            events.append((now, admitted, ready))
            for line in lines:
                waiting[line.client] -= line.failed and line.end == now
            before = now if now in instants else before
        return cls(events)

    def service(self) -> dict[str, int]:
        """What each client was charged."""
        total: dict[str, int] = {}
        for _, charges, _ in self.events:
            for client, amount in charges.items():
                total[client] = total.get(client, 0) + amount
        return total

    def gap(self, clients: Sequence[str]) -> int:
        """The largest range of a difference of service over events before which both wait without a break."""
        largest = 0
        for f, g in combinations(clients, 2):
            lead, seen = 0, [0]
            for _, charges, ready in self.events:
                if {f, g} <= ready:
                    lead += charges.get(f, 0) - charges.get(g, 0)
                    seen.append(lead)
                else:
                    lead, seen = 0, [0]
                largest = max(largest, max(seen) - min(seen))
        return largest
