"""Search for the machine whose simulation is nearest to what was seen.

The same requests come at the same times on every machine that is tried, so that machines differ by their own times and
not by chance.  Step times move together, by steps of Gauss and Newton on the relative error of each request; settings
that are whole numbers or names are tried one after the other.
"""

from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.guesses import guess, workers_hint
from fairsched.engines.calibration.from_log.machine import COEFFICIENTS, RULES, UNLIMITED, Machine, Played, Simulated
from fairsched.engines.calibration.from_log.observed import Floats, Mask, Observed, peaks

Progress = Callable[[str], None]
"""Is told what is tried."""

PERCENTS = (10, 25, 50, 75, 90, 95)
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Token budgets of a step that are told apart."""
BETTER = 0.03
"""A setting must lower the distance by this share of it to be taken for another one."""
_TAIL = 0.3
_NUDGE = 0.04
"""Step times are nudged by this share of a typical step to see what follows."""
_LIMIT = np.log(4.0)
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


@attrs.frozen
class Fitted:
    """The machine that was found, how near it is, and what each setting that was tried gave: (value, distance)."""

    machine: Machine
    errors: Errors
    tried: dict[str, list[tuple[object, float]]]
    jacobian: Floats
    """How errors of requests change with each step time that was free, in units of `scales`."""
    scales: Floats


class Search:
    """The search: a stretch of the log, and machines on it."""

    def __init__(self, seen: Observed, progress: Progress) -> None:
        self.seen = seen
        self.played = Played(seen)
        self.peaks = peaks(seen)
        self.progress = progress
        self.tried: dict[str, list[tuple[object, float]]] = {}

    def errors(self, machine: Machine) -> Errors:
        """Return the errors of a machine."""
        return errors(self.seen, self.played.on(machine))

    def distance(self, machine: Machine) -> float:
        """Return the distance of a machine."""
        return self.errors(machine).distance

    # --- step times ---------------------------------------------------------------------------------------------------

    def scales(self, machine: Machine) -> Floats:
        """Return by how much each step time is nudged: a share of a typical step's time."""
        constant, token, attention, decode, context, request = machine.times
        prompt = float(np.median(self.seen.prompt))
        square = float(np.mean(self.seen.prompt.astype(np.float64) ** 2)) / 1e3
        batch = max(min(self.peaks.running / machine.workers, machine.max_running) / 2, 1.0)
        held = batch * float(np.mean(self.seen.prompt + self.seen.output / 2))
        prefill = constant + token * prompt + attention * square
        step = decode + context * held + request * batch
        return np.array(
            [
                _NUDGE * prefill,
                _NUDGE * prefill / prompt,
                _NUDGE * prefill / max(square, 1e-9),
                _NUDGE * step,
                _NUDGE * step / held,
                _NUDGE * step / batch,
            ]
        )

    def jacobian(self, machine: Machine, scales: Floats) -> Floats:
        """Return how errors of requests change with each step time, by one simulation each."""
        base = self.errors(machine).of_requests
        columns = []
        for k in range(len(COEFFICIENTS)):
            moved = list(machine.times)
            moved[k] += float(scales[k])
            columns.append(self.errors(attrs.evolve(machine, times=tuple(moved))).of_requests - base)
        found: Floats = np.column_stack(columns)
        return found

    def descend(self, machine: Machine, rounds: int) -> Machine:
        """Move all step times towards what was seen, so many times at most."""
        best = self.distance(machine)
        for number in range(rounds):
            self.progress(f"step times, round {number + 1}: error {100 * best:.1f} %")
            scales = self.scales(machine)
            slopes = self.jacobian(machine, scales)
            rest = self.errors(machine).of_requests
            weights = np.sqrt(np.minimum(1.0, _TAIL / np.maximum(np.abs(rest), 1e-9)))
            weights[np.abs(rest) >= _MISSED] = 0
            times = np.array(machine.times)
            step = bounded(slopes * weights[:, None], -rest * weights, -times / scales)
            improved = False
            for share in (1.0, 0.4, 0.15):
                moved = np.maximum(times + share * step * scales, 0)
                trial = attrs.evolve(machine, times=tuple(moved.tolist()))
                distance = self.distance(trial)
                if distance < best:
                    gain = best - distance
                    machine, best, improved = trial, distance, True
                    break
            if not improved or gain < 0.01 * best + 1e-4:
                break
        return machine

    # --- settings ---------------------------------------------------------------------------------------------------

    def best_of(self, what: str, machine: Machine, values: Iterable[object]) -> Machine:
        """Return the machine with the value of a setting that is nearest; its own unless another is clearly nearer."""
        own = self.distance(machine)
        tried: list[tuple[object, float]] = [(getattr(machine, what), own)]
        chosen, least = machine, own * (1 - BETTER)
        for value in values:
            if value == tried[0][0]:
                continue
            self.progress(f"{what.replace('_', ' ')} {value}")
            other = attrs.evolve(machine, **{what: value})
            distance = self.distance(other)
            tried.append((value, distance))
            if distance < least:
                chosen, least = other, distance
        self.tried[what] = tried
        return chosen

    def settings(self, machine: Machine) -> Machine:
        """Try the settings of a worker one after the other."""
        machine = self.best_of("max_running", machine, self.seats(machine))
        machine = self.best_of("max_batched_tokens", machine, BUDGETS)
        machine = self.best_of("rule", machine, RULES)
        return self.best_of("kv_tokens", machine, self.memories(machine))

    def seats(self, machine: Machine) -> list[int]:
        """Return the batch sizes that are tried: about as many as ran at once, and no limit."""
        least = -(-self.peaks.running // machine.workers)
        return sorted({max(least - 1, 1), least, least + 1, least + 2, 2 * least, 256})

    def memories(self, machine: Machine) -> list[int]:
        """Return the sizes of memory that are tried: about as much as was in use at once, and no limit."""
        least = -(-self.peaks.kv_tokens // machine.workers)
        return [*(max(round(least * share), self.played.least_kv) for share in (0.85, 0.95, 1.0, 1.1, 1.25)), UNLIMITED]

    def run(self, workers: Sequence[int]) -> Machine:
        """Return the nearest machine, with one of these numbers of workers."""
        found: list[tuple[float, Machine]] = []
        for count in workers:
            self.progress(f"{count} worker{'s' * (count > 1)}")
            seats = -(-self.peaks.running // count)
            machine = Machine(guess(self.seen, count), count, max_running=seats)
            machine = min(
                (attrs.evolve(machine, rule=rule, max_running=most) for rule in RULES[:2] for most in (seats, 256)),
                key=self.distance,
            )
            found.append((self.distance(machine), machine))
        found.sort(key=lambda pair: pair[0])
        ended = []
        for _, machine in found[:2]:
            machine = self.descend(machine, 2)
            machine = self.settings(machine)
            machine = self.descend(machine, 3)
            ended.append((self.distance(machine), machine))
        ended.sort(key=lambda pair: pair[0])
        least, machine = ended[0]
        fewer = [each for distance, each in ended if each.workers < machine.workers and distance * (1 - BETTER) < least]
        machine = fewer[0] if fewer else machine
        machine = self.settings(machine)
        return self.descend(machine, 2)


def bounded(rows: Floats, values: Floats, lower: Floats) -> Floats:
    """Return the least-squares solution, a little damped, of which no part is below its bound."""
    width = rows.shape[1]
    damping = 0.02 * max(float(np.linalg.norm(rows, axis=0).max()), 1e-9)
    rows = np.vstack([rows, damping * np.eye(width)])
    values = np.concatenate([values, np.zeros(width)])
    fixed: Mask = np.zeros(width, dtype=np.bool_)
    solution = np.zeros(width)
    for _ in range(width + 1):
        solution = np.where(fixed, lower, 0.0)
        free = ~fixed
        if not bool(free.any()):
            break
        solution[free] = np.linalg.lstsq(rows[:, free], values - rows[:, fixed] @ lower[fixed], rcond=None)[0]
        below = free & (solution < lower - 1e-12)
        if not bool(below.any()):
            break
        fixed |= below
    return np.maximum(solution, lower)


def candidates(seen: Observed) -> list[int]:
    """Return the numbers of workers that are tried where the log does not name them: those near the hint."""
    hint = workers_hint(seen)
    if hint is None:
        return [1]
    return [count for count in (1, 2, 3, 4, 6, 8) if count <= 1 or 0.4 * hint <= count <= 1.8 * hint]
