"""A machine fitted to an access log, and how far it may be believed: fitted on the first half, judged on the second.

The machine is searched for whose simulation is nearest to what was seen.

The same requests come at the same times on every machine that is tried, so that machines differ by their own times and
not by chance.  Step times are found by indirect inference: first guesses are made of the true log and of the log that a
machine would have written, and the machine moves by their difference until there is none.  Settings that are whole
numbers or names are tried one after the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.guesses import Guesses, guess, workers_hint
from fairsched.engines.calibration.from_log.machine import (
    COEFFICIENTS,
    RULES,
    UNLIMITED,
    LogMachine,
    Played,
    Simulated,
    as_seen,
)
from fairsched.engines.calibration.from_log.observed import (
    Floats,
    Mask,
    Observed,
    halves,
    joined,
    lanes,
    observed,
    peaks,
    thinned,
)
from fairsched.engines.logs.access import AccessLog
from fairsched.model.machine import LatencyModel, PresetDocument, ServerFacts, preset_document

Progress = Callable[[str], None]
"""Is told what is tried."""

COMPARED = (10, 25, 50, 75, 90, 95)
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


def distance(seen: Observed, said: Simulated) -> float:
    """Return how far a simulation is from what was seen, as logarithms of simulated over observed.

    It is the mean of two errors: that of judged requests (the time to the first token and the rest, or the whole time),
    and that of percentiles of first tokens, latencies and times between tokens.
    """
    streams = seen.streams
    first, whole = seen.judged & streams, seen.judged & ~streams
    decodes = first & (seen.output > 1) & (seen.latency > seen.ttft)
    grain = max(0.02 * float(np.median(seen.latency[seen.judged])), 1.0) if bool(seen.judged.any()) else 1.0
    of_requests = [
        _ratio(said.ttft[first], seen.ttft[first], grain),
        _ratio((said.latency - said.ttft)[decodes], (seen.latency - seen.ttft)[decodes], grain / 4),
        _ratio(said.latency[whole], seen.latency[whole], grain),
    ]
    overall = [np.log(np.divide(*np.maximum(each.both(COMPARED), 1))) for each in figures(seen, said).values()]
    parts = (np.concatenate(rows or [np.empty(0)]) for rows in (of_requests, overall))
    return sum(float(np.minimum(np.abs(part), _LIMIT).mean()) if len(part) else 0.0 for part in parts) / 2


def _ratio(said: Floats | np.ndarray, seen: Floats | np.ndarray, grain: float) -> Floats:
    found: Floats = np.log((np.maximum(said, 0) + grain) / (np.maximum(seen, 0) + grain))
    return np.where(said < 0, -_MISSED, found)


def _next_pace(tried: Sequence[tuple[float, float]]) -> float:
    """Return where the error would be 0 on a line through the two least errors of both signs, if there are both."""
    above = min((each for each in tried if each[1] > 0), key=lambda each: each[1], default=None)
    below = max((each for each in tried if each[1] <= 0), key=lambda each: each[1], default=None)
    (a, at_a), (b, at_b) = (above, below) if above and below else tried[-2:]
    slope = (at_a - at_b) / (a - b) if a != b and at_a != at_b else 1.0
    moved = (a if abs(at_a) < abs(at_b) else b) - (at_a if abs(at_a) < abs(at_b) else at_b) / max(slope, 0.3)
    return float(np.clip(moved, 0.5 * min(a, b), 2 * max(a, b)))


@attrs.frozen(eq=False)
class Figure:
    """Samples of one figure, simulated and observed, in nanoseconds."""

    simulated: Floats
    observed: Floats

    def both(self, percents: Sequence[int]) -> Floats:
        """Return percentiles of both in a row each, simulated first."""
        return np.stack([np.percentile(each, percents) for each in (self.simulated, self.observed)])


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
    """The search: a stretch of the log, and machines on it, whose limits are at least what all of the log `shown`
    has."""

    def __init__(
        self,
        seen: Observed,
        progress: Progress,
        weights: Mapping[int, int] | None = None,
        shown: Observed | None = None,
    ) -> None:
        self.seen = seen
        self.played = Played(seen, weights)
        self.peaks = peaks(seen if shown is None else shown)
        self.progress = progress
        self.tried: dict[str, list[tuple[float | int | str, float]]] = {}
        self._aims: dict[int, tuple[float, ...]] = {}
        self._distances: dict[LogMachine, float] = {}

    def distance(self, machine: LogMachine) -> float:
        if machine not in self._distances:
            self._distances[machine] = distance(self.seen, self.played.on(machine))
        return self._distances[machine]

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
            machine = min([machine, machine.slower(1 - width), machine.slower(1 + width)], key=self.distance)
        return machine

    def paced(self, machine: LogMachine, rows: Mask | None = None) -> LogMachine:
        """Return the machine, all its steps slower or faster alike, so that latencies are as long in all as was seen.

        `rows` are the requests whose latencies count (None: those that are judged).
        """
        rows = self.seen.judged if rows is None else rows
        wanted = float(self.seen.latency[rows].sum())

        def off(pace: float) -> float:
            said = self.played.on(machine.slower(pace)).latency[rows]
            return float(np.log(max(float(said[said > 0].sum()), 1.0) / wanted))

        tried = [(1.0, off(1.0))]
        pace = float(np.exp(-np.clip(tried[0][1], -0.1, 0.1)))
        for _ in range(PACES):
            if abs(tried[-1][1]) < PACED:
                break
            tried.append((pace, off(pace)))
            pace = _next_pace(tried)
        return machine.slower(min(tried, key=lambda each: abs(each[1]))[0])

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

    def rivals(self, machine: LogMachine) -> list[LogMachine]:
        """Return the nearest machines with other numbers of workers that were tried, since these are easily mistaken,
        and those with other rules that explain the log about as well as this one."""
        kinds: dict[int | str, LogMachine] = {machine.workers: machine, machine.rule: machine}
        for each in sorted(self._distances, key=lambda each: self._distances[each]):
            kinds.setdefault(each.workers, each)
            if each.workers == machine.workers and self._distances[each] <= RIVAL * self.distance(machine):
                kinds.setdefault(each.rule, each)
        found = sorted(kinds.items(), key=lambda kind: isinstance(kind[0], str))
        return [each for _, each in found if each is not machine][:RIVALS]

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
    """Return the numbers of workers that are tried where the log does not name them: one, two, and those near the
    hint."""
    hint = workers_hint(seen)
    if hint is None:
        return [1, 2]
    return [count for count in (1, 2, 3, 4, 6, 8) if count <= 2 or 0.4 * hint <= count <= 1.8 * hint]


REQUESTS_MAX = 800
"""So many requests of each half are simulated at most."""
REQUESTS_MIN = 60
"""A half with fewer requests judges nothing."""
LIMIT = 0.25
"""A machine is believed that misses no p50 and p95 of the held-out half by more."""
TYPICAL_LIMIT = 0.5
"""Nor half of the single requests by more."""
DRIFTED = 0.03
"""A server that was so much faster or slower in one half is said to be."""
PACES = 5
"""So many paces are tried at most, until latencies are as long as was seen within `PACED`."""
PACED = 0.02
RIVALS = 2
"""So many other machines are kept that explain the log about as well."""
RIVAL = 1.15
"""They do if their distance is at most so many times the least."""
PROMPTS_SAID = (1_000, 10_000)
"""Prompts of which is said what they take by the fit."""
KNOWN_WITHIN = 0.1
"""A step time is known that the log tells within this share."""
WORDS = {
    "prefill_constant_ns": "what a prompt costs beside its tokens",
    "prefill_token_ns": "what a token of a prompt costs",
    "prefill_attention_ps": "what attention within a prompt costs",
    "decode_constant_ns": "what a step costs beside its requests",
    "context_token_ns": "what a token of context costs",
    "request_ns": "what a request in a step costs",
}
RULE_WORDS = {
    "chunked": "with prompts cut into chunks beside decodes",
    "eager-prefill": "with prompts first, and no decodes beside them",
    "whole-prompts": "with whole prompts beside decodes",
}
PERCENTS = (10, 25, 50, 75, 90, 95, 99)
HIGH = (90, 95, 99)
HELD_TO = (50, 95)
HELD_FIGURES = ("TTFT", "latency")


@attrs.frozen
class FigureError:
    """One percentile of one figure in the held-out half, in milliseconds, and the relative error."""

    figure: str
    percent: int
    observed_ms: float
    simulated_ms: float

    @property
    def error(self) -> float:
        """Simulated over observed, less 1."""
        return self.simulated_ms / max(self.observed_ms, 1e-6) - 1


@attrs.frozen
class Fitted:
    """One number or name of the machine, and what else would do as well.

    `within` is by how much a step time may be off by chance, as a share of itself (two standard deviations over
    stretches of the log); None for a setting, of which `others` are values that are as near.
    """

    name: str
    value: float | int | str
    within: float | None = None
    others: tuple[float | int | str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the log tells it: a step time within `KNOWN_WITHIN`, a setting from all others that were tried."""
        return not self.others if self.within is None else self.within <= KNOWN_WITHIN


@attrs.frozen
class LogFit:
    """A machine, and how far it is from the half of the log that it has not seen.

    `rivals` are machines of other kinds that explain the log about as well.
    `typical` is the median relative error of single requests, by figure.  `refusal` says why nothing should be
    concluded from simulations of this machine, and is empty where it is `credible`.  `parameters` says how well each of
    its numbers is known.  `drift` is how much slower than the machine the server was in the held-out half (0.1: every
    step took 10 % longer), and `worst_at_speed` the largest error with that taken out.  `runs` is how many simulations
    it took.
    """

    name: str
    machine: LogMachine
    rivals: tuple[LogMachine, ...]
    requests: int
    longest_prompt: int
    errors: tuple[FigureError, ...]
    typical: dict[str, float]
    parameters: tuple[Fitted, ...]
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]
    drift: float
    worst_at_speed: float
    runs: int

    @property
    def credible(self) -> bool:
        """Whether what another policy would do on this machine is worth simulating."""
        return not self.reasons

    @property
    def refusal(self) -> str:
        """Why not, in one sentence; empty where it is."""
        return "; ".join(self.reasons)

    @property
    def worst(self) -> float:
        """The largest error at p50 and p95 of the times to first tokens and of latencies."""
        return _worst(self.errors)

    @property
    def off(self) -> float:
        """The largest factor by which a high percentile of first tokens (else of latencies) is missed.

        Where some requests wait and others do not, a lower one may lie at the edge between them and tells nothing.
        """
        high = [error for error in self.errors if error.percent in HIGH]
        of_first = [error for error in high if error.figure == "TTFT"] or high
        return float(np.exp(max((abs(np.log(max(1 + error.error, 1e-3))) for error in of_first), default=_LIMIT)))

    @property
    def summary(self) -> str:
        """How good it is, after "a machine that was fitted to the log"."""
        return (
            f"misses p50 and p95 of first tokens and latencies in the half of the log that it was not fitted to by at "
            f"most {self.worst:.0%}"
        )

    @property
    def latency(self) -> LatencyModel:
        """The latency model, named after the log."""
        return self.machine.latency(self.name, f"fitted to {self.requests:,} requests of {self.name}")

    @property
    def document(self) -> PresetDocument:
        """The document that `--latency-model` takes."""
        machine = self.machine
        facts = ServerFacts(machine.workers, machine.policy, machine.params, self.requests, self.credible, self.reasons)
        return preset_document(self.latency, server=facts)

    def sentences(self) -> tuple[str, ...]:
        """Return what was found, in plain sentences."""
        machine = self.machine
        *_, decode, context, request = machine.times
        many = f"{machine.workers} workers" if machine.workers > 1 else "One worker"
        return (
            f"{many}; each step computes at most {machine.max_batched_tokens:,} tokens for at most "
            f"{machine.max_running:,} requests, in the order of {machine.policy}, {RULE_WORDS[machine.rule]}.",
            f"A step that decodes takes {decode / 1e6:.2f} ms, {request / 1e3:.0f} us a request and {context:.0f} ns a "
            "token of context.",
            *self._prompts(),
            f"The machine {self.summary}.",
            *self._drifted(),
            *self.unknown,
            *(f"Not to be believed: {reason}." for reason in self.reasons),
        )

    def _prompts(self) -> Iterator[str]:
        """Yield what prompts take by the fit, and what it does not know of them."""
        takes = [f"{n:,} tokens takes {self.latency.step_ns(((n, 0),), 0, 0) / 1e6:,.1f} ms" for n in PROMPTS_SAID]
        yield f"By the fit a prompt of {' and one of '.join(takes)}, alone."
        if self.longest_prompt < PROMPTS_SAID[-1]:
            yield (
                f"The longest prompt of the log has {self.longest_prompt:,} tokens: what longer ones take is "
                "extrapolated, and may be far off."
            )

    def _drifted(self) -> tuple[str, ...]:
        if abs(self.drift) < DRIFTED:
            return ()
        way = "slower" if self.drift > 0 else "faster"
        return (
            f"In that half the server itself was {abs(self.drift):.0%} {way} than in the other; with that taken out, "
            f"the errors are at most {self.worst_at_speed:.0%}.",
        )

    def to_json(self) -> dict[str, object]:
        machine = attrs.asdict(self.machine) | {"times": dict(zip(COEFFICIENTS, self.machine.times, strict=True))}
        return {
            "machine": machine,
            "requests": self.requests,
            "credible": self.credible,
            "reasons": list(self.reasons),
            "drift": self.drift,
            "worst": self.worst,
            "worst_at_speed": self.worst_at_speed,
            "parameters": [attrs.asdict(each) | {"known": each.known} for each in self.parameters],
            "unknown": list(self.unknown),
            "typical_errors": self.typical,
            "errors": [attrs.asdict(error) | {"error": error.error} for error in self.errors],
        }


def fit_log(
    log: AccessLog,
    *,
    workers: int | None = None,
    requests_max: int = REQUESTS_MAX,
    progress: Callable[[str], None] | None = None,
) -> LogFit:
    """Return the machine that a log is most like, and how far it is from the log.

    The first half of the requests fits, the second judges.  `workers` is their number where it is known (the log's own
    number of upstreams, if it names several).  At most `requests_max` requests of each half are simulated.  The same
    log gives the same machine.  Raises `ValueError` for a log in which no two requests had an output.
    """
    told = progress or (lambda text: None)
    whole = observed(log)
    if len(whole) < 4 or not bool(whole.judged.any()):
        raise ValueError(f"{log.path}: {len(whole)} requests with a prompt and an output; a machine takes more")
    parts = lanes(whole)
    lane_count = len(parts)
    first, second = (thinned(each, requests_max) for each in zip(*map(halves, parts), strict=True))
    search = MachineSearch(first, told, shown=joined(parts))
    # Where the log says which worker had a request, one worker has them all, one lane after the other.
    counts = [1] if lane_count > 1 else candidates(first) if workers is None else [workers]
    machine = search.run(counts)
    judge = MachineSearch(second, told)
    machine = attrs.evolve(machine, kv_tokens=max(machine.kv_tokens, judge.played.least_kv))
    told("the half that was held out")
    found, typical = held_out(second, judge.played.on(machine))
    moved = judge.paced(machine)
    parameters = _parameters(search, machine, workers is None and lane_count < 2)
    return LogFit(
        name=log.path.name,
        machine=attrs.evolve(machine, workers=machine.workers * lane_count),
        rivals=tuple(attrs.evolve(each, workers=each.workers * lane_count) for each in search.rivals(machine)),
        requests=len(whole),
        longest_prompt=int(whole.prompt.max()),
        errors=found,
        typical=typical,
        parameters=parameters,
        unknown=_unknown(search, machine, parameters),
        reasons=_reasons(second, found, typical),
        drift=sum(moved.times) / sum(machine.times) - 1,
        worst_at_speed=_worst(held_out(second, judge.played.on(moved))[0]),
        runs=search.played.runs + judge.played.runs,
    )


def held_out(seen: Observed, said: Simulated) -> tuple[tuple[FigureError, ...], dict[str, float]]:
    """Return the errors of percentiles, and the median error of single requests, by figure."""
    found, typical = [], {}
    for name, figure in figures(seen, said).items():
        rows = (figure.both(PERCENTS) / 1e6).T.tolist()
        found += [FigureError(name, percent, row[1], row[0]) for percent, row in zip(PERCENTS, rows, strict=True)]
        typical[name] = float(np.median(np.abs(figure.simulated / np.maximum(figure.observed, 1) - 1)))
    return tuple(found), typical


def _worst(found: tuple[FigureError, ...]) -> float:
    return max((abs(error.error) for error in found if _held(error)), default=float("inf"))


def _held(error: FigureError) -> bool:
    return error.figure in HELD_FIGURES and error.percent in HELD_TO


def _reasons(seen: Observed, found: tuple[FigureError, ...], typical: dict[str, float]) -> tuple[str, ...]:
    reasons = []
    judged = int(seen.judged.sum())
    if judged < REQUESTS_MIN:
        reasons.append(f"the half that judges has {judged} requests that finished, and fewer than {REQUESTS_MIN}")
    off = [error for error in found if _held(error) and abs(error.error) > LIMIT]
    if off:
        listed = ", ".join(f"{error.figure} p{error.percent} by {error.error:+.0%}" for error in off)
        reasons.append(f"the machine misses the half that was held out by more than {LIMIT:.0%}: {listed}")
    off_singly = [name for name, error in typical.items() if error > TYPICAL_LIMIT]
    if off_singly:
        reasons.append(
            f"half of the requests are simulated with a {' and a '.join(off_singly)} that is more than "
            f"{TYPICAL_LIMIT:.0%} off: something else than the server's load decides how long they take"
        )
    return tuple(reasons)


# --- what the log cannot tell ---------------------------------------------------------------------------------------


def _parameters(search: MachineSearch, machine: LogMachine, workers_fitted: bool) -> tuple[Fitted, ...]:
    """Return how well each number is known: step times by drawing the log again, settings by what else was tried."""
    spread = Guesses.of(search.seen, machine.workers).spread()
    found = []
    for name, value, deviation in zip(COEFFICIENTS, machine.times, spread.tolist(), strict=True):
        within = 2 * deviation / value if value > 0 else float("inf")
        found.append(Fitted(name, value, within))
    if workers_fitted:
        found.append(Fitted("workers", machine.workers, None, search.alike("workers", machine)))
    for name in ("max_running", "max_batched_tokens", "rule", "kv_tokens"):
        found.append(Fitted(name, getattr(machine, name), None, search.alike(name, machine)))
    return tuple(found)


def _unknown(search: MachineSearch, machine: LogMachine, parameters: tuple[Fitted, ...]) -> tuple[str, ...]:
    """Say what the log cannot tell."""
    said = []
    by_name = {parameter.name: parameter for parameter in parameters}
    vague = [p for p in parameters if p.within is not None and not p.known]
    if vague:
        listed = ", ".join(
            f"{WORDS[p.name]} ({'no trace of it' if p.within is None or p.within > 5 else f'within {p.within:.0%}'})"
            for p in vague
        )
        said.append(f"The log does not tell these well: {listed}.")
    most, seats = search.peaks.kv_tokens, -(-search.peaks.running // machine.workers)
    if UNLIMITED in (machine.kv_tokens, *by_name["kv_tokens"].others):
        said.append(f"The KV memory was never seen full: it has at least {most:,} tokens; how many more is not known.")
    if SEATS in (machine.max_running, *by_name["max_running"].others):
        said.append(f"The limit of requests at once was never felt: {seats:,} ran, and more may.")
    for name, what in (("max_batched_tokens", "tokens of a step"), ("rule", "rule"), ("workers", "number of workers")):
        parameter = by_name.get(name)
        if parameter is not None and parameter.others:
            others = ", ".join(f"{other:,}" if isinstance(other, int) else str(other) for other in parameter.others)
            said.append(f"The {what} could be {parameter.value} or {others}: the log does not tell them apart.")
    return tuple(said)
