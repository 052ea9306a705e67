"""Chats of four clients, two of which flood, one of them for a while only.

The arena trace is not embedded here, so chats are generated, with its mean lengths.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import generate
from fairsched.model.events import Arrived, Decoded, Event, Prefilled
from fairsched.model.latency import PRESETS
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client, Job, Workload
from fairsched.reproduce.dlpm.systems import DLPM, QUANTUM, SYSTEMS, System
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row, more
from fairsched.reproduce.runs import A10G

TWO = Platform(A10G, workers=2)
COMPARED: tuple[System, ...] = ("rr+lpm", "vtc", "d2lpm")
SECONDS = 200
"""How long chats begin to arrive."""
STEADY, FLOOD = 0.15, 4.0
"""Chats a second of each client, and beside them of one that floods."""
RECOVERS = SECONDS // 2
"""When client 2 stops flooding, in seconds; client 3 goes on."""
RECOVERED = RECOVERS + 40
"""From when on its requests count as those of a client that recovered."""
INNOCENT = ("0", "1")
FLOODING = ("2", "3")
BACK = "2, recovered"
WINDOW_S = 20
"""Curves have a point for each such piece of time."""


def _chats(seed: int, client: int, rate: float, seconds: int, place: int) -> Iterable[Job]:
    made = generate("multi-turn", seed=seed, clients=1, sessions=round(rate * seconds), rate=rate, turns=3, think_s=5.0)
    for job in made.jobs:
        # Ids and programs of several loads beside each other.
        shift = place * 1_000_000
        request = replace(job.request, id=job.request.id + shift, client=client)
        yield replace(
            job,
            request=request,
            after=tuple(parent + shift for parent in job.after),
            program=None if job.program is None else job.program + shift,
        )


def chats(seed: int, *, flood: bool) -> Workload:
    """Return the chats of clients 0 to 3; with a flood, 2 floods in the first half, and 3 all the time."""
    loads = [(client, STEADY, SECONDS) for client in range(4)]
    if flood:
        loads += [(2, FLOOD, RECOVERS), (3, FLOOD, SECONDS)]
    parts = [_chats(seed * 10 + place, *load, place) for place, load in enumerate(loads)]
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


@attrs.define
class Seen:
    """What a run shows by client: times to the first token with their arrivals, and service, in windows of time."""

    waits: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict)
    service: dict[str, dict[float, float]] = attrs.field(factory=dict)

    def p99_s(self, name: str) -> float:
        """Return a client's p99 of the time to the first token; of client 2 alone also once it has recovered."""
        waits = self.waits["2"] if name == BACK else self.waits[name]
        return float(np.percentile([wait for at, wait in waits if name != BACK or at >= RECOVERED], 99))

    def most_s(self, names: Iterable[str]) -> float:
        """Return the longest time to the first token of these clients."""
        return max(wait for name in names for _, wait in self.waits[name])

    def response(self, name: str) -> Mapping[float, float]:
        """Return a client's mean time to the first token by the window in which requests came."""
        windows: dict[float, list[float]] = {}
        for at, wait in self.waits[name]:
            if at < SECONDS:
                windows.setdefault(_window(at), []).append(wait)
        return {start: float(np.mean(windows[start])) for start in sorted(windows)}


def _window(at_s: float) -> float:
    return float(at_s // WINDOW_S * WINDOW_S)


def seen(system: System, on: Platform, seed: int, *, flood: bool = True) -> Seen:
    """Return what a run of the chats shows; the two rows share it where they run in one process."""
    return _seen(system, on, seed, flood)


@lru_cache(maxsize=64)
def _seen(system: System, on: Platform, seed: int, flood: bool) -> Seen:
    jobs = chats(seed, flood=flood)
    arrived: dict[int, tuple[str, float, int]] = {}
    found = Seen()

    def serve(client: str, at_s: float, cost: int) -> None:
        windows = found.service.setdefault(client, {})
        windows[_window(at_s)] = windows.get(_window(at_s), 0.0) + cost / WINDOW_S

    def note(events: list[Event]) -> None:
        for event in events:
            at_s = event.time_ns / 1e9
            if isinstance(event, Arrived):
                request = event.request
                arrived[request.id] = str(request.client), at_s, request.prompt.tokens
            elif isinstance(event, Prefilled) and not event.remaining_tokens:
                name, came_s, tokens = arrived[event.request_id]
                found.waits.setdefault(name, []).append((came_s, at_s - came_s))
                serve(name, at_s, tokens * COMMON.input)
            elif isinstance(event, Decoded):
                for client, count in zip(event.clients, event.tokens, strict=True):
                    serve(str(client), at_s, count * COMMON.output)

    policy, router = SYSTEMS[system]
    ours = DLPM if system == "d2lpm" else {}
    spec = RunSpec.of(policy, router, params=ours, router_params=ours)
    Simulator(jobs, spec.policy, spec.router, PRESETS[on.model], workers=on.workers, on_events=note).run()
    return found


SETTING = (
    f"chats of 4 clients for {SECONDS} s: each begins {STEADY} a second, client 3 {FLOOD:g} a second more all the "
    f"time, client 2 for the first {RECOVERS} s; LPM + round robin, VTC + round robin by client, D2LPM + DLPM with "
    f"Q = Q_w = {QUANTUM:,}"
)
NO_FLOOD = "clients 2 and 3 flood"


def _spared(name: str) -> Claim:
    control = Control(NO_FLOOD, f"{name}, no flood") if name in INNOCENT else None
    return more(name, f"client {name}: LPM's p99 of the time to the first token over D2LPM's", "low", control)


@partial(
    Row,
    id="39",
    about="two clients flood, one recovers: how long they wait",
    paper="dlpm",
    panel="figure 9, arena trace",
    platform=TWO,
    setting=f"{SETTING}; time to the first token, p99 by client, of client 2 also from {RECOVERED} s on",
    claims=(
        *(_spared(name) for name in (*INNOCENT, BACK)),
        *(more(f"vtc {name}", f"VTC: client {name}'s p99 over the innocent's worst", "delayed") for name in FLOODING),
        Claim("vtc longest", "VTC: the longest that 2 or 3 wait, in s", "up to 80 s", 80, 80, neutral=None),
    ),
    note="generated chats of three turns with the arena's mean lengths; how much clients flood is ours, and so is the "
    "length of the longest wait. Innocent clients send so little that a p99 is their longest wait, so ratios differ "
    "much between seeds; row 39b has sums",
    seconds=8,
    axes=("time of arrival in s", "mean time to the first token in s"),
)
def floods(on: Platform, seed: int) -> Figures:
    """How long clients wait, over time and at p99."""
    found = {system: seen(system, on, seed) for system in COMPARED}
    quiet = {system: seen(system, on, seed, flood=False) for system in ("rr+lpm", "d2lpm")}
    lpm, vtc, d2lpm = found.values()
    return {
        **{f"{system}, client {name}": each.response(name) for system, each in found.items() for name in "0123"},
        **{name: lpm.p99_s(name) / d2lpm.p99_s(name) for name in (*INNOCENT, BACK)},
        **{f"{name}, no flood": quiet["rr+lpm"].p99_s(name) / quiet["d2lpm"].p99_s(name) for name in INNOCENT},
        **{f"vtc {name}": vtc.p99_s(name) / max(map(vtc.p99_s, INNOCENT)) for name in FLOODING},
        "vtc longest": vtc.most_s(FLOODING),
    }


@partial(
    Row,
    id="39b",
    about="two clients flood, one recovers: what they are served",
    paper="dlpm",
    panel="figure 9, arena trace",
    platform=TWO,
    setting=f"{SETTING}; client service (prompt and twice the output tokens) a second, in windows of {WINDOW_S} s",
    claims=(
        more(
            "lpm",
            f"LPM: service of 2 and 3 over that of 0 and 1, the first {RECOVERS} s",
            "floods take the worker",
            Control(NO_FLOOD, "lpm, no flood"),
        ),
        more(
            "innocent",
            f"clients 0 and 1: service under D2LPM over LPM's, the first {RECOVERS} s",
            "D2LPM keeps theirs",
            Control(NO_FLOOD, "innocent, no flood"),
        ),
    ),
    note="the paper's curves are not known to us as numbers, so only signs are judged",
    seconds=8,
    axes=("time in s", "client service a second"),
)
def served(on: Platform, seed: int) -> Figures:
    """What clients are served, over time."""
    found = {system: seen(system, on, seed) for system in COMPARED}
    quiet = {system: seen(system, on, seed, flood=False) for system in ("rr+lpm", "d2lpm")}
    curves = {
        f"{system}, client {name}": {at: value for at, value in sorted(each.service[name].items()) if at < SECONDS}
        for system, each in found.items()
        for name in "0123"
    }
    return {
        **curves,
        "lpm": _early(found["rr+lpm"], FLOODING) / _early(found["rr+lpm"], INNOCENT),
        "lpm, no flood": _early(quiet["rr+lpm"], FLOODING) / _early(quiet["rr+lpm"], INNOCENT),
        "innocent": _early(found["d2lpm"], INNOCENT) / _early(found["rr+lpm"], INNOCENT),
        "innocent, no flood": _early(quiet["d2lpm"], INNOCENT) / _early(quiet["rr+lpm"], INNOCENT),
    }


def _early(each: Seen, names: Iterable[str]) -> float:
    """Return what these clients were served while both floods lasted."""
    return sum(value for name in names for at, value in each.service[name].items() if at < RECOVERS)
