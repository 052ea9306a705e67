"""Search for the machine whose simulation is nearest to what was seen.

The same requests come at the same times on every machine that is tried, so that machines differ by their own times and
not by chance.  Step times are found by indirect inference: first guesses are made of the true log and of the log that a
machine would have written, and the machine moves by their difference until there is none.  Settings that are whole
numbers or names are tried one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.guesses import guess, workers_hint
from fairsched.engines.calibration.from_log.machine import RULES, UNLIMITED, LogMachine, Played, Simulated, as_seen
from fairsched.engines.calibration.from_log.observed import Floats, Observed, peaks

Progress = Callable[[str], None]
"""Is told what is tried."""

PERCENTS = (10, 25, 50, 75, 90, 95)
BUDGETS = (8192, 4096, 2048, 1024, 512, 256, 128)
"""Token budgets of a step that are told apart."""
SEATS = 256
"""A limit of requests at once that is not felt."""
BETTER = 0.03
"""A setting must lower the distance by this share of it to be taken for another one."""
ALIKE = 0.002
"""Settings whose distances differ by no more are not told apart."""
TRIED = 3
"""So many kinds of machine are looked at beyond a first guess."""
FAR = 2.0
"""A second kind of machine is looked at further unless its distance is so many times the first one's."""
ROUNDS = 6
"""How often step times move at the end."""
_LIMIT = float(np.log(4.0))
"""An error of a request counts at most as a factor of four."""
_MISSED = 3 * _LIMIT


@attrs.frozen
class Errors:
    """The relative errors (logarithms of simulated over observed) of one machine."""

    of_requests: Floats
    """Of each judged request: the time to its first token and the rest of its time, or its whole time."""
    of_percentiles: Floats
    """Of percentiles of first tokens, latencies and times between tokens."""

    @property
    def distance(self) -> float:
        """One number: the mean error of requests and of percentiles."""
        single = float(np.minimum(np.abs(self.of_requests), _LIMIT).mean()) if len(self.of_requests) else 0.0
        overall = float(np.minimum(np.abs(self.of_percentiles), _LIMIT).mean()) if len(self.of_percentiles) else 0.0
        return (single + overall) / 2


def errors(seen: Observed, said: Simulated) -> Errors:
    """Return how far a simulation is from what was seen."""
    streams = seen.streams
    first, whole = seen.judged & streams, seen.judged & ~streams
    decodes = first & (seen.output > 1) & (seen.latency > seen.ttft)
    grain = max(0.02 * float(np.median(seen.latency[seen.judged])), 1.0) if bool(seen.judged.any()) else 1.0
    parts = [
        _ratio(said.ttft[first], seen.ttft[first], grain),
        _ratio((said.latency - said.ttft)[decodes], (seen.latency - seen.ttft)[decodes], grain / 4),
        _ratio(said.latency[whole], seen.latency[whole], grain),
    ]
    overall: list[float] = []
    for figure in figures(seen, said).values():
        overall += [float(np.log(max(a, 1) / max(b, 1))) for a, b in (figure.both(percent) for percent in PERCENTS)]
    return Errors(np.concatenate(parts), np.array(overall))


def _ratio(said: Floats | np.ndarray, seen: Floats | np.ndarray, grain: float) -> Floats:
    found: Floats = np.log((np.maximum(said, 0) + grain) / (np.maximum(seen, 0) + grain))
    return np.where(said < 0, -_MISSED, found)


@attrs.frozen(eq=False)
class Figure:
    """Samples of one figure, simulated and observed, in nanoseconds."""

    simulated: Floats
    observed: Floats

    def both(self, percent: int) -> tuple[float, float]:
        """Return a percentile of both, simulated first."""
        return float(np.percentile(self.simulated, percent)), float(np.percentile(self.observed, percent))


def figures(seen: Observed, said: Simulated) -> dict[str, Figure]:
    """Return TTFT, latency and TPOT of judged requests; a request that the simulation does not finish never ends."""
    lasting = int(seen.latency.max(initial=1)) * 10
    ends = np.where(said.latency < 0, lasting, said.latency).astype(np.float64)
    starts = np.where(said.ttft < 0, lasting, said.ttft).astype(np.float64)
    streams = seen.judged & seen.streams
    longer = streams & (seen.output > 1)
    gaps = np.maximum(seen.output - 1, 1)
    found = {
        "TTFT": (starts, seen.ttft.astype(np.float64), streams),
        "latency": (ends, seen.latency.astype(np.float64), seen.judged),
        "TPOT": ((ends - starts) / gaps, (seen.latency - seen.ttft) / gaps, longer),
    }
    return {name: Figure(a[kept], b[kept]) for name, (a, b, kept) in found.items() if bool(kept.any())}


class MachineSearch:
    """The search: a stretch of the log, and machines on it."""

    def __init__(self, seen: Observed, progress: Progress) -> None:
        self.seen = seen
        self.played = Played(seen)
        self.peaks = peaks(seen)
        self.progress = progress
        self.tried: dict[str, list[tuple[float | int | str, float]]] = {}
        self._aims: dict[int, tuple[float, ...]] = {}

    def errors(self, machine: LogMachine) -> Errors:
        """Return the errors of a machine."""
        return errors(self.seen, self.played.on(machine))

    def distance(self, machine: LogMachine) -> float:
        """Return the distance of a machine."""
        return self.errors(machine).distance

    # --- step times ---------------------------------------------------------------------------------------------------

    def match(self, machine: LogMachine, rounds: int) -> LogMachine:
        """Move step times until the log that the machine would have written gives the same first guesses.

        What the guesses get wrong they get wrong of both logs alike, so that it is not in the difference.
        """
        best, times = machine, np.array(machine.times)
        path: list[Floats] = []
        for number in range(rounds):
            self.progress(f"step times, round {number + 1}")
            trial = attrs.evolve(machine, times=tuple(times.tolist()))
            written = as_seen(self.seen, self.played.on(trial))
            if len(written) < len(self.seen) / 2:
                break
            times = np.maximum(
                times + np.array(self.aim(machine.workers)) - np.array(guess(written, machine.workers)), 0
            )
            path.append(times)
            ends = [times, np.mean(path[len(path) // 2 :], axis=0)] if number == rounds - 1 else [times]
            for each in ends:
                best = min(best, attrs.evolve(machine, times=tuple(each.tolist())), key=self.distance)
        return best

    def speed(self, machine: LogMachine, steps: Sequence[float] = (0.08, 0.04, 0.02)) -> LogMachine:
        """Make all steps faster or slower together, if that is nearer: a few long steps are no error of the typical."""
        for width in steps:
            self.progress("speed")
            trials = [
                attrs.evolve(machine, times=tuple(share * value for value in machine.times))
                for share in (1 - width, 1 + width)
            ]
            machine = min([machine, *trials], key=self.distance)
        return machine

    def aim(self, workers: int) -> tuple[float, ...]:
        """Return the first guesses from the log, which are to be met."""
        if workers not in self._aims:
            self._aims[workers] = guess(self.seen, workers)
        return self._aims[workers]

    # --- settings ---------------------------------------------------------------------------------------------------

    def best_of(self, what: str, machine: LogMachine, values: Sequence[int | str]) -> LogMachine:
        """Return the machine with the value of a setting that is nearest.

        `values` are in order of preference: a later one must be clearly nearer.  Limits go from high to low, since one
        that was not felt is none; they end when it gets worse and worse.
        """
        tried: list[tuple[float | int | str, float]] = []
        chosen, least, worse = machine, float("inf"), 0
        for value in values:
            self.progress(f"{what.replace('_', ' ')} {value}")
            changed: dict[str, Any] = {what: value}
            other = attrs.evolve(machine, **changed)
            distance = self.distance(other)
            worse = worse + 1 if tried and distance > tried[-1][1] else 0
            tried.append((value, distance))
            if distance < least * (1 - BETTER):
                chosen, least = other, distance
            if isinstance(value, int) and worse > 1:
                break
        self.tried[what] = tried
        return chosen

    def settings(self, machine: LogMachine) -> LogMachine:
        """Try the settings of a worker one after the other."""
        machine = self.best_of("max_running", machine, self.seats(machine))
        machine = self.best_of("max_batched_tokens", machine, BUDGETS)
        machine = self.best_of("rule", machine, RULES)
        return self.best_of("kv_tokens", machine, self.memories(machine))

    def alike(self, what: str, machine: LogMachine) -> tuple[float | int | str, ...]:
        """Return the other values of a setting that were tried and are about as near."""
        tried = self.tried.get(what, [])
        own = getattr(machine, what)
        least = min((distance for value, distance in tried if value == own), default=self.distance(machine))
        return tuple(value for value, far in tried if value != own and far <= least * (1 + BETTER) + ALIKE)

    def seats(self, machine: LogMachine) -> list[int]:
        """Return the batch sizes that are tried: about as many as ran at once, and no limit."""
        least = -(-self.peaks.running // machine.workers)
        if not bool(self.seen.streams.any()):
            return [SEATS, *(most for most in (128, 64, 32, 16, 8, 4, 2) if most < 2 * least)]
        if machine.workers == 1:
            return [SEATS, least]  # A limit that was felt was reached.
        near = {least, least + 1, least + 2}
        return [SEATS, *sorted((most for most in near if most < SEATS), reverse=True)]

    def memories(self, machine: LogMachine) -> list[int]:
        """Return the sizes of memory that are tried: about as much as was in use at once, and no limit."""
        least = -(-self.peaks.kv_tokens // machine.workers)
        return [UNLIMITED, *(max(round(least * share), self.played.least_kv) for share in (1.25, 1.1, 1.0, 0.95, 0.85))]

    def run(self, workers: Sequence[int]) -> LogMachine:
        """Return the nearest machine, with one of these numbers of workers."""
        starts = []
        for count in workers:
            self.progress(f"{count} worker{'s' * (count > 1)}")
            times, seats = self.aim(count), -(-self.peaks.running // count)
            memory = max(-(-self.peaks.kv_tokens // count), self.played.least_kv)
            for rule in RULES[:2]:
                machines = [
                    LogMachine(times, count, "fcfs", rule, most, budget, kv_tokens)
                    for most, kv_tokens in ((seats, UNLIMITED), (2 * seats, UNLIMITED), (2 * seats, memory))
                    for budget in (256, 2048)
                ]
                starts.append(min(machines, key=self.distance))
        starts.sort(key=self.distance)
        # The nearest kinds, and the nearest of each number of workers.
        chosen = [
            each for i, each in enumerate(starts) if i < TRIED or each.workers not in {m.workers for m in starts[:i]}
        ]
        machines = sorted((self.match(each, 3) for each in chosen), key=self.distance)
        near = [each for each in machines[:TRIED] if self.distance(each) <= FAR * self.distance(machines[0])]
        machines = [self.match(self.settings(each), 3) for each in near]
        machine = min(machines, key=self.distance)
        nearest = {each.workers: self.distance(each) for each in sorted(machines, key=self.distance, reverse=True)}
        self.tried["workers"] = list(nearest.items())
        fewer = [each for each in machines if each.workers < machine.workers]
        machine = next((each for each in fewer if self.distance(each) * (1 - BETTER) < self.distance(machine)), machine)
        return self.speed(self.match(self.settings(machine), ROUNDS))


def candidates(seen: Observed) -> list[int]:
    """Return the numbers of workers that are tried where the log does not name them: those near the hint."""
    hint = workers_hint(seen)
    if hint is None:
        return [1]
    return [count for count in (1, 2, 3, 4, 6, 8) if count <= 1 or 0.4 * hint <= count <= 1.8 * hint]
