"""Access logs whose waits are known: a simulated run of clients that stream and clients that do not.

The log has what a proxy would write: no time of a first token for calls that do not stream.  The truth has all of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fairsched.engines.analysis.outcomes import EventTables, Outcomes
from fairsched.engines.simulation import Simulator
from fairsched.model.events import Admitted
from fairsched.model.latency import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.service import Ints
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

EPOCH_NS = 1_800_000_000 * 10**9
"""When the logs begin."""


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
    columns = [each + found.origin for each in (found.arrival, found.first, found.finish)]
    return Known(tuple(senders), found.client, worker, *columns, found.prompt, found.output)
