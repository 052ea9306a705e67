"""What a gate changes, as intervals: a stretch of a log as it was logged, and as machines that explain it would serve
it, today and under a gate.

No machine is the server.  So each that explains the log about as well is set to the pace of the stretch, and of each
half of it, and simulated.  An interval reaches from the shortest to the longest time that any of them finds, over
requests drawn again, and beyond by the factor by which their simulations of today miss what was logged; at its upper
end, which is what is promised, also by that of the half of the log that the machine was not fitted to.
"""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import numpy as np

from fairsched.engines.analysis import Summary, summary
from fairsched.engines.calibration.from_log import LogFit, LogMachine, MachineSearch, Observed, Simulated
from fairsched.engines.capacity.advice.window import LogWindow
from fairsched.engines.simulation import Progress
from fairsched.model.service import Ints

GATE = "deficit"
QUANTUM = 4_096
"""Its credit of a refill.  A log does not tell which prompts share a prefix, so the default is as good as a larger
one."""
HELPS = 2
"""A client is helped if its p99 time to a first token is so many times shorter even by the interval's end, and waits
if it is not by its beginning."""
MOST = 2, 0.25
"""Clients that wait nevertheless send too much if there are so many, or so large a share of those that wait: if more
do, the server is too small."""
ALIKE = 2
"""A machine that misses what was logged by a factor so many times that of another one does not explain it."""
_DRAWS = 40
Interval = tuple[float, float]
"""The least and the most, in microseconds; the most may be infinite."""


@attrs.frozen(eq=False)
class Member:
    """A machine at the pace of the stretch, and what it does with the requests: today, and under the gate."""

    machine: LogMachine
    today: Simulated
    gated: Simulated


@attrs.frozen(eq=False)
class Effects:
    """What a gate does for the clients that waited: `helped` surely are, `waiting` surely are not, and of `unsure` ones
    the interval has both.  `others` are further clients with requests in the stretch.  The first of the `members` is
    the machine that was fitted, and `off` is by which factor it misses first tokens in the half of the log that it was
    not fitted to."""

    window: LogWindow
    members: tuple[Member, ...]
    off: float
    helped: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    others: tuple[int, ...] = ()

    def rows(self, clients: Sequence[int]) -> Ints:
        """Return the requests of these clients that say when their first token came."""
        seen = self.window.seen
        return np.flatnonzero(seen.judged & seen.streams & np.isin(seen.client, np.array(clients, dtype=np.int64)))

    def logged(self, clients: Sequence[int]) -> Summary:
        """Return times to a first token as they were logged."""
        return summary(self.window.seen.ttft[self.rows(clients)])

    def gated(self, clients: Sequence[int]) -> Interval:
        """Return between which times their p99 time to a first token lies with the gate.

        The end is infinite where it comes after the last request of the stretch: those that follow would add to it.
        """
        rows, arrival = self.rows(clients), self.window.seen.arrival
        seen_until = np.inf if self.window.whole else arrival.max()
        draws = np.random.default_rng(0).choice(rows, (_DRAWS, len(rows)))
        found = []
        groups = rows, self.rows(self.clients)
        offs = [max(_miss(each.today, self.window.seen, group) for group in groups) for each in self.members]
        for member, off in zip(self.members, offs, strict=True):
            if off <= ALIKE * min(offs):
                times = _finished(member.gated)
                at_most = np.where(arrival + times > seen_until, np.inf, times)
                drawn = (np.percentile(each[draws], 99, axis=1, method="inverted_cdf") for each in (times, at_most))
                least, most = float(next(drawn).min()), float(next(drawn).max())
                found.append((least / off, most * max(off, self.off)))
        return min(low for low, _ in found) / 1e3, max(high for _, high in found) / 1e3

    @property
    def clients(self) -> tuple[int, ...]:
        """All clients with requests in the stretch."""
        return (*self.helped, *self.unsure, *self.waiting, *self.others)

    @property
    def throughput(self) -> Interval:
        """The gate's output tokens a second over today's: the least and the most."""
        arrival = self.window.seen.arrival
        ends = [[int((arrival + run.latency).max()) for run in (each.today, each.gated)] for each in self.members]
        found = [today / gated for today, gated in ends]
        return min(found), max(found)

    @property
    def verdict(self) -> Literal["gate", "capacity", "unknown"]:
        """What is to be done."""
        count = len(self.helped) + len(self.unsure) + len(self.waiting)
        most = max(MOST[0], int(MOST[1] * count))
        if self.helped and len(self.waiting) + len(self.unsure) <= most:
            return "gate"
        return "capacity" if len(self.waiting) > most or (self.waiting and not self.unsure) else "unknown"

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the stretch, the machines, and each group of clients, logged and with the gate."""
        groups = {name: getattr(self, name) for name in ("helped", "waiting", "unsure", "others")}
        return {
            "requests": self.window.requests,
            "of": self.window.of,
            "throughput": self.throughput,
            "machines": [attrs.asdict(member.machine) for member in self.members],
            **{
                name: {
                    "logged_ttft_us": attrs.asdict(self.logged(each)),
                    "gated_ttft_p99_us": [end if np.isfinite(end) else None for end in self.gated(each)],
                }
                for name, each in groups.items()
                if len(self.rows(each))
            },
        }


def effects(
    window: LogWindow,
    fit: LogFit,
    at_once: tuple[int, int],
    waited: Sequence[int],
    weights: dict[int, int],
    told: Progress,
) -> Effects:
    """Return what a gate changes in the stretch for the clients that waited, if a server has at most so many tokens and
    requests `at_once` behind it."""
    seen = window.seen
    search = MachineSearch(seen, lambda _: None, weights)
    judged = np.flatnonzero(seen.judged)
    halves = [np.isin(np.arange(len(seen)), part) for part in np.array_split(judged, 2)]
    tried = [(fit.machine, seen.judged), *((fit.machine, half) for half in halves)]
    tried += [(rival, seen.judged) for rival in fit.rivals]
    members = []
    for done, (machine, rows) in enumerate(tried):
        told("simulating the server, as it is and with a gate", done, len(tried))
        machine = search.paced(machine, rows)
        gated = attrs.evolve(machine, policy=f"{machine.policy}+{GATE}", quantum=QUANTUM)
        today = search.played.on(machine)
        members.append(Member(machine, today, search.played.on(gated)))
        if not done:
            kv_tokens, seats = at_once
            ahead = attrs.evolve(gated, rule="chunked", kv_tokens=kv_tokens, max_running=seats, ahead=True)
            members.append(Member(ahead, today, search.played.on(ahead)))
    found = Effects(window, tuple(members), fit.off, others=tuple(np.unique(seen.client[judged]).tolist()))
    groups: dict[str, list[int]] = {"helped": [], "waiting": [], "unsure": [], "others": []}
    for client in found.others:
        name = "others"
        if client in waited and len(found.rows([client])):
            low, high = found.gated([client])
            logged = found.logged([client]).p99 or 0.0
            name = "helped" if high * HELPS <= logged else "unsure" if low * HELPS <= logged else "waiting"
        groups[name].append(client)
    helped, waiting, unsure, others = map(tuple, groups.values())
    return Effects(window, found.members, fit.off, helped, waiting, unsure, others)


def _finished(run: Simulated) -> Ints:
    """Return times to a first token; that of a request that was never served is as long as any."""
    return np.where(run.ttft < 0, run.ttft.max(initial=1), run.ttft)


def _miss(run: Simulated, seen: Observed, rows: Ints) -> float:
    """Return by which factor the simulation misses the logged mean or p99 of these requests, at most.

    Where some requests wait and others do not, a median lies at the edge between them and tells nothing.
    """
    if not len(rows):
        return 1.0
    said, logged = (
        np.array([each.mean(), np.percentile(each, 99)]) for each in (_finished(run)[rows], seen.ttft[rows])
    )
    return float(np.exp(np.abs(np.log(np.maximum(said, 1) / np.maximum(logged, 1))).max()))
