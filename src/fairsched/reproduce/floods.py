"""Chats of four clients, two of whom flood, one of them for a while only.

Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (DLPM), evaluation on the arena trace, whose clients
2 and 3 flood.  The trace is not embedded here, so chats are generated, with its mean lengths.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
from msgspec.structs import replace

from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import generate
from fairsched.model.events import Arrived, Event, Prefilled
from fairsched.model.latency import PRESETS
from fairsched.model.request import Client, Job, Workload
from fairsched.reproduce.row import A10G, Ours, Row, Say

WORKERS = 2
SYSTEMS = {"lpm": "round-robin", "vtc": "per-client-round-robin", "dlpm": "d2lpm"}
"""The paper's local policies, each with its router."""
SECONDS = 200
"""How long chats begin to arrive."""
STEADY, FLOOD = 0.15, 4.0
"""Chats a second of each client, and beside them of one that floods."""
RECOVERS = SECONDS // 2
"""When client 2 stops flooding, in seconds; client 3 goes on."""
RECOVERED = RECOVERS + 40
"""From when on its requests count as those of a client that recovered."""


def _chats(seed: int, client: int, rate: float, seconds: int) -> Iterable[Job]:
    made = generate("multi-turn", seed=seed, clients=1, sessions=round(rate * seconds), rate=rate, turns=3, think_s=5.0)
    for job in made.jobs:
        # Ids and programs of several loads beside each other.
        shift = seed * 1_000_000
        request = replace(job.request, id=job.request.id + shift, client=client)
        yield replace(
            job,
            request=request,
            after=tuple(parent + shift for parent in job.after),
            program=None if job.program is None else job.program + shift,
        )


def flooded() -> Workload:
    """Clients 0 to 3; 2 floods in the first half, 3 all the time."""
    parts = [_chats(seed, seed, STEADY, SECONDS) for seed in range(4)]
    parts += [_chats(4, 2, FLOOD, RECOVERS), _chats(5, 3, FLOOD, SECONDS)]
    jobs = sorted((job for part in parts for job in part), key=lambda job: (job.request.arrival_ns, job.request.id))
    places = {job.request.id: place for place, job in enumerate(jobs)}
    numbered = [
        replace(
            job,
            request=replace(job.request, id=places[job.request.id]),
            after=tuple(places[parent] for parent in job.after),
        )
        for job in jobs
    ]
    return Workload("chats with floods", numbered, tuple(Client(i, f"client-{i}") for i in range(4)))


def waits(policy: str, router: str) -> dict[str, float]:
    """p99 of the time to the first token in seconds, by client, and of client 2 once it has recovered."""
    jobs = flooded()
    arrived: dict[int, tuple[str, int]] = {}
    waited: dict[str, list[float]] = {}

    def note(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                recovered = event.request.client == 2 and event.time_ns >= RECOVERED * 10**9
                arrived[event.request.id] = ("2, recovered" if recovered else str(event.request.client), event.time_ns)
            elif isinstance(event, Prefilled) and not event.remaining_tokens:
                name, time_ns = arrived[event.request_id]
                waited.setdefault(name, []).append((event.time_ns - time_ns) / 1e9)

    run = RunSpec.of(policy, router)
    Simulator(jobs, run.policy, run.router, PRESETS[A10G], workers=WORKERS, on_events=note).run()
    return {name: float(np.percentile(found, 99)) for name, found in sorted(waited.items())}


@partial(
    Row,
    id="39",
    about="two clients flood, one recovers",
    source="DLPM, evaluation: arena trace",
    paper="LPM hurts clients 0 and 1, VTC delays 2 and 3 by up to 80 s, D2LPM keeps 0, 1 and the recovered 2 low",
    band="p99 TTFT of clients 0, 1 and the recovered 2 at least twice as good as under LPM; under VTC 2 and 3 wait "
    "at least five times as long as 0 and 1",
    why="generated chats with the arena's mean lengths, two A10G; a chat is three turns on average",
    seconds=15,
)
def floods(say: Say) -> Ours:
    """How long clients wait."""
    found: dict[str, dict[str, float]] = {}
    for policy, router in SYSTEMS.items():
        say(f"{policy}, {router}")
        found[policy] = waits(policy, router)
    lpm, vtc, dlpm = found.values()
    held = all(lpm[name] >= 2 * dlpm[name] for name in ("0", "1", "2, recovered"))
    held = held and all(vtc[name] >= 5 * max(vtc["0"], vtc["1"]) for name in ("2", "3"))
    return Ours(
        "p99 TTFT in s: "
        + "; ".join(
            f"{policy} " + ", ".join(f"{name}: {one:.1f}" for name, one in by_client.items())
            for policy, by_client in found.items()
        ),
        held,
        {"ttft_p99_s": found},
    )
