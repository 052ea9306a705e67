"""Access logs for tests: drawn requests, written in any order, and slow definitions of what an audit finds; and
simulated runs of clients that stream and clients that do not, whose logs lack first tokens that the truth has.
"""

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from fairsched.engines.analysis.outcomes import EventTables, Outcomes
from fairsched.engines.simulation import Simulator
from fairsched.model.events import Admitted
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.service import Ints
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

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
        return row | first | tokens | {"status": 503 if self.failed else 200}


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
        """Play the requests: in each millisecond first outputs, then arrivals, admissions, and refusals."""
        events: list[tuple[int, dict[str, int], frozenset[str]]] = []
        waiting: dict[str, int] = {line.client: 0 for line in lines}
        for now in range(max(line.end for line in lines) + 1):
            ready = frozenset(client for client, count in waiting.items() if count)
            outputs: dict[str, int] = {}
            for line in lines:
                fresh = 2 * (produced(line, now) - produced(line, now - 1))
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


# --- runs whose truth is known ---------------------------------------------------------------------------------------

EPOCH_NS = 1_800_000_000 * 10**9
"""When these logs begin."""


@attrs.frozen
class Sender:
    """A client: `rate` calls a second over a stretch of the run (shares of it), of these mean lengths."""

    name: str
    streams: bool
    rate: float
    prompt: int
    output: int
    begin: float = 0.0
    stop: float = 1.0


TEAM = (
    Sender("chat", True, 1.5, 400, 150),
    Sender("agent", True, 0.5, 2_000, 80),
    Sender("batch", False, 1.5, 600, 400),
    Sender("free", False, 1.0, 300, 200),
)
"""Two clients that stream and two that do not."""


@attrs.frozen(eq=False)
class Known:
    """Calls by arrival, with the truth: times in nanoseconds since the first possible arrival."""

    senders: tuple[Sender, ...]
    client: Ints
    worker: Ints
    arrival_ns: Ints
    first_ns: Ints
    end_ns: Ints
    prompt: Ints
    output: Ints

    @property
    def streams(self) -> Ints:
        """Whether each call streams."""
        return np.array([sender.streams for sender in self.senders], dtype=np.int64)[self.client]

    def rows(self, whole: bool = False) -> list[dict[str, Any]]:
        """The log's rows; `whole`: with the first token of every call."""
        rows = []
        columns = (self.client, self.worker, self.arrival_ns, self.first_ns, self.end_ns, self.prompt, self.output)
        for client, worker, arrival, first, end, prompt, output in zip(*(c.tolist() for c in columns), strict=True):
            sender = self.senders[client]
            row = {"client": sender.name, "worker": f"w{worker}", "start_ns": EPOCH_NS + arrival}
            row |= {"latency_ns": end - arrival, "prompt_tokens": prompt, "output_tokens": output}
            row["ttft_ns"] = first - arrival if sender.streams or whole else None
            rows.append(row)
        return rows

    def write(self, path: Path, whole: bool = False) -> Path:
        """Write the log in JSON lines."""
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows(whole)), encoding="utf-8")
        return path


def known_waits(
    seed: int,
    senders: Sequence[Sender] = TEAM,
    *,
    span_s: float = 300,
    preset: str = "llama-3.1-8b-a100",
    workers: int = 1,
    kv_capacity_tokens: int | None = None,
    policy: str = "fcfs",
) -> Known:
    """Simulate the senders' calls: Poisson arrivals, lengths drawn from gamma distributions."""
    rng = np.random.default_rng(seed)
    drawn = []
    for client, sender in enumerate(senders):
        begin, stop = sender.begin * span_s, sender.stop * span_s
        count = rng.poisson(sender.rate * (stop - begin))
        came = rng.uniform(begin, stop, count) * 1e9
        lengths = [np.maximum(rng.gamma(2.0, mean / 2, count), 1) for mean in (sender.prompt, sender.output)]
        drawn += [(int(a), client, int(p), int(o)) for a, p, o in zip(came, *lengths, strict=True)]
    drawn.sort()
    jobs = tuple(
        Job(Request(id=i, client=c, arrival_ns=a, prompt=Prompt(tokens=p), max_output_tokens=o), output_tokens=o)
        for i, (a, c, p, o) in enumerate(drawn)
    )
    clients = tuple(Client(i, sender.name) for i, sender in enumerate(senders))
    workload = Workload("known", jobs, clients, ())
    events = EventTables()
    Simulator(
        workload,
        LOCAL_POLICIES[policy],
        ROUTERS["round-robin"],
        PRESETS[preset],
        workers=workers,
        kv_capacity_tokens=kv_capacity_tokens,
        on_events=events.add,
    ).run()
    trace = events.whole()
    found = Outcomes(workload, trace)
    worker = np.zeros(len(jobs), dtype=np.int64)
    worker[trace[Admitted]["request_id"]] = trace[Admitted]["worker"]
    assert found.finished.all()
    arrival, first, end = (each + found.origin for each in (found.arrival, found.first, found.finish))
    return Known(tuple(senders), found.client, worker, arrival, first, end, found.prompt, found.output)
