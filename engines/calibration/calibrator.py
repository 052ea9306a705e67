"""Calibration: time an engine over a grid of steps and fit the latency model that a simulator needs.

The engine is the one that serves, with its guard, its bookkeeping and a policy, so a step costs the same here.
Scripts are repeated in random order, so that the drift of a machine is spread over all of them, and a step's duration
is its median over the repeats.

The grid is short scripts of an engine's life that together cover the steps it may take.
A prompt that is computed alone in chunks of one size gives pure prefill behind several contexts.  A ramp lets a batch
grow request by request, so that every batch size is seen.  A walk goes up and down, several prompts at a time, as
serving does; some walks are held out to judge the fit.  Lengths are as unequal as those of conversations, since a
batch of unequal contexts costs more than one of equal ones.  Everything is drawn from a seed, so that a script is the
same steps each time it is run.

The fit is non-negative least squares on the relative error of each step.

The model is linear in its coefficients but for the larger constant of a mixed step, which is found by fitting again
until it stays the same.  A decode step costs a slope in the batch size, a slope in the context, and a constant that
may differ from size to size: matrix products go by blocks of rows, so that batches of 7 may cost more than batches of
8.  How many constants there are is chosen by cross-validation: more of them must predict scripts that they have not
seen better than fewer do.
"""

import gc
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.calibration.drive import Clock
from fairsched.engines.calibration.least_squares import Floats, non_negative
from fairsched.engines.calibration.meter import KINDS, StepKind, StepMeter, StepSample, StepShape, mape
from fairsched.engines.serving import BlockKeys, Engine, Executor
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.policies.base import AnyLocalPolicy

Mask = npt.NDArray[np.bool_]

FOLDS = 5
GAIN_MIN = 0.02
"""More constants must lower the error on unseen scripts by at least this share of it."""
_ROUNDING = 1e-6
_ROUNDS_MAX = 8
_PREFILL_CONSTANT, _TOKEN, _PRODUCT, _CONTEXT, _REQUEST, _CONSTANTS = range(6)
"""Columns: the coefficients of prefill, the slopes of decode, and from `_CONSTANTS` on a constant for each piece."""


class TimedStep(NamedTuple):
    """A step and its typical duration.  Points of one scenario are held out together."""

    shape: StepShape
    ns: float
    scenario: int


def fit(points: Sequence[TimedStep], *, name: str, source: str, kv_capacity_tokens: int) -> LatencyModel:
    """Return the latency model nearest to the points.  Raises `ValueError` without pure prefill and decode steps."""
    kinds = [point.shape.kind for point in points]
    if "prefill" not in kinds or "decode" not in kinds:
        raise ValueError(
            f"{kinds.count('prefill')} pure prefill and {kinds.count('decode')} pure decode steps were measured; "
            "both are needed"
        )
    steps = _Steps(points)
    starts = _starts(steps)
    whole = [round(value) for value in _solved(steps, starts, np.ones(len(points), dtype=np.bool_)).tolist()]
    return LatencyModel(
        name=name,
        source=source,
        prefill_constant_ns=max(whole[_PREFILL_CONSTANT], 1),
        prefill_token_ns=whole[_TOKEN],
        prefill_attention_ps=whole[_PRODUCT],
        decode=tuple(
            # No step takes no time: a leap divides by the duration of its first step.
            DecodePiece(start, max(constant, 1), whole[_CONTEXT], whole[_REQUEST])
            for start, constant in zip(starts, whole[_CONSTANTS:], strict=True)
        ),
        kv_capacity_tokens=kv_capacity_tokens,
        # What is measured here is an engine on one device.
        gpus=1,
    )


class _Steps:
    """The points as columns."""

    def __init__(self, points: Sequence[TimedStep]) -> None:
        shapes = [point.shape for point in points]
        products = [sum(n * (before + n) for n, before in shape.chunks) for shape in shapes]
        self.ns = np.array([point.ns for point in points])
        self.scenario = np.array([point.scenario for point in points])
        self.tokens = np.array([sum(n for n, _ in shape.chunks) for shape in shapes], dtype=np.float64)
        self.products = np.array(products, dtype=np.float64) / 1e3
        self.batch = np.array([shape.batch for shape in shapes])
        self.context = np.array([shape.context_tokens for shape in shapes], dtype=np.float64)
        self.prefills = self.tokens > 0
        self.mixed = self.prefills & (self.batch > 0)

    def piece(self, starts: Sequence[int]) -> npt.NDArray[np.int64]:
        pieces: npt.NDArray[np.int64] = np.searchsorted(starts, np.maximum(self.batch, 1), side="right") - 1
        return pieces


def _rows(steps: _Steps, starts: Sequence[int], from_prefill: Mask) -> Floats:
    """Return what each coefficient is multiplied with; `from_prefill`: whose constant is that of prefill."""
    rows = np.zeros((len(steps.ns), _CONSTANTS + len(starts)))
    rows[:, _PREFILL_CONSTANT] = from_prefill
    rows[:, _TOKEN] = steps.tokens
    rows[:, _PRODUCT] = steps.products
    rows[:, _CONTEXT] = steps.context
    rows[:, _REQUEST] = steps.batch
    rows[np.arange(len(rows)), _CONSTANTS + steps.piece(starts)] = ~from_prefill
    return rows


def _from_prefill(steps: _Steps, starts: Sequence[int], solution: Floats) -> Mask:
    """Return which steps have the constant of prefill: a mixed step has the larger one."""
    larger = solution[_PREFILL_CONSTANT] >= solution[_CONSTANTS + steps.piece(starts)]
    of_prefill: Mask = steps.prefills & (~steps.mixed | larger)
    return of_prefill


def _solved(steps: _Steps, starts: Sequence[int], kept: Mask) -> Floats:
    """Return coefficients of least relative error on the steps that are kept, none below zero."""
    from_prefill, solution = steps.prefills, np.zeros(0)
    for _ in range(_ROUNDS_MAX):
        rows = (_rows(steps, starts, from_prefill) / steps.ns[:, None])[kept]
        solution = non_negative(rows, np.ones(len(rows)))
        again = _from_prefill(steps, starts, solution)
        if (again == from_prefill).all():
            break
        from_prefill = again
    return solution


def _starts(steps: _Steps) -> list[int]:
    """Batch sizes at which pieces begin, the first 1: one piece, one for each doubling, or one for each size."""
    sizes = sorted({1, *steps.batch[steps.batch > 0].tolist()})
    doubling = [size for i, size in enumerate(sizes) if i == 0 or size.bit_length() > sizes[i - 1].bit_length()]
    # A size at which nothing only decodes has no constant of its own.
    seen = set(steps.batch[~steps.prefills].tolist())
    chosen = [1]
    error = _error(steps, chosen)
    for finer in (doubling, sizes):
        starts = [1, *(size for size in finer[1:] if size in seen)]
        lower = _error(steps, starts)
        if lower < error * (1 - GAIN_MIN) - _ROUNDING:
            chosen, error = starts, lower
    return chosen


def _error(steps: _Steps, starts: Sequence[int]) -> float:
    """Mean relative error of pure decode steps of scripts that were held out, each once."""
    scenarios = np.unique(steps.scenario)
    folds = min(FOLDS, len(scenarios))
    errors: list[float] = []
    for fold in range(folds):
        held_out = np.isin(steps.scenario, scenarios[fold::folds])
        kept = ~held_out if folds > 1 else held_out  # One script is all there is.
        solution = _solved(steps, starts, kept)
        said = _rows(steps, starts, _from_prefill(steps, starts, solution)) @ solution
        judged = held_out & ~steps.prefills
        errors.extend((np.abs(said - steps.ns)[judged] / steps.ns[judged]).tolist())
    return float(np.mean(errors))


CHUNKS = (16, 32, 64, 128, 256, 512)
DECODE_STEPS = 2
"""Pure decode steps at each batch size of a ramp."""
RAMPS = (0.04, 0.12, 0.4)
"""Prompts of a ramp's full batch, as shares of the KV capacity; what they decode meanwhile needs room too."""
WALKS = (0.07, 0.2, 0.4)
HELD_OUT = (0.1, 0.3)
SPREAD = 0.6
"""Standard deviation of the logarithm of a prompt's length."""
_LONGEST = 4
_CHUNKS_IN_A_ROW = 2
_STEPS_A_SUBMIT = 4
_WALK_LENGTH = 12
OUTPUT_TOKENS = 512
"""What a calibrated request would produce if it were not dropped; room for it must not be reserved."""

PolicyOf = Callable[[int], AnyLocalPolicy]
"""The policy whose step has this token budget."""


@attrs.frozen
class Admit:
    """New requests with prompts of these lengths; they decode until they are dropped."""

    prompts: tuple[int, ...]


@attrs.frozen
class Steps:
    """So many steps (None: until no prompt is left to compute) with `chunk` tokens of prompts in a step."""

    chunk: int
    steps: int | None = None


@attrs.frozen
class Drop:
    """So many of the requests leave, the oldest first."""

    requests: int


Action = Admit | Steps | Drop


@attrs.frozen
class TimingScript:
    """A script, from an empty batch to an empty batch.  What was `held_out` is not fitted."""

    title: str
    actions: tuple[Action, ...]
    held_out: bool = False


@attrs.frozen
class Measured:
    """A step of a script: what it was, and how long it took in each repeat."""

    scenario: int
    held_out: bool
    shape: StepShape
    samples: tuple[StepSample, ...]

    @property
    def ns(self) -> float:
        return median(sample.total_ns for sample in self.samples)


@attrs.frozen
class Residual:
    """Steps of one kind that were not fitted: how far the model is from their medians on average and at worst, and from
    the single steps, machine noise included."""

    kind: StepKind
    points: int
    mape: float | None
    worst: float | None
    worst_shape: StepShape | None
    steps: int
    steps_mape: float | None

    def to_dict(self) -> dict[str, Any]:
        shape = self.worst_shape
        return attrs.asdict(self) | {"worst_shape": None if shape is None else shape._asdict()}


@attrs.frozen
class Calibration:
    """A fitted model, how well it says what it has not seen, and where a step's time goes (shares of all steps)."""

    latency: LatencyModel
    residuals: tuple[Residual, ...]
    decide_share: float
    books_share: float

    @property
    def scheduler_share(self) -> float:
        """Of a step: deciding, guarding and accounting."""
        return self.decide_share + self.books_share


class Calibrator:
    """Runs scripts through an engine of its own and keeps the steps."""

    def __init__(
        self,
        executor: Executor,
        policy_of: PolicyOf,
        clock: Clock,
        *,
        kv_capacity_tokens: int,
        vocab_size: int,
        page_tokens: int,
        seed: int = 0,
    ) -> None:
        self._policy_of = policy_of
        self._draw = random.Random(seed)
        self._vocab_size = vocab_size
        self._meter = StepMeter(executor)
        self._engine = Engine(
            policy_of(kv_capacity_tokens),
            self._meter,
            kv_capacity_tokens=kv_capacity_tokens,
            block_keys=BlockKeys(page_tokens),
            now_ns=clock.now_ns,
        )
        self._meter.watch(self._engine)
        self._capacity = kv_capacity_tokens
        self._open: list[int] = []

    def close(self) -> None:
        """Give the executor back."""
        self._engine.close()

    def measure(
        self, scripts: Sequence[TimingScript], repeats: int, progress: Callable[[int], None] = lambda done: None
    ) -> list[Measured]:
        """Return every step of every script, timed in so many repeats; `progress` is told how many scripts are done."""
        taken: list[list[list[StepSample]]] = [[] for _ in scripts]
        order = list(range(len(scripts)))
        for script in scripts:  # The first of everything is slow, and is not counted.
            if script.held_out:
                self._run(script)
        done = 0
        for _ in range(repeats):
            self._draw.shuffle(order)
            for i in order:
                gc.collect()
                taken[i].append(self._run(scripts[i]))
                done += 1
                progress(done)
        return [
            step
            for i, (script, runs) in enumerate(zip(scripts, taken, strict=True))
            for step in _aligned(i, script, runs)
        ]

    def _run(self, script: TimingScript) -> list[StepSample]:
        meter = self._meter
        meter.samples = []
        for action in script.actions:
            self._act(action)
        self._act(Drop(len(self._open)))
        return meter.samples

    def _act(self, action: Action) -> None:
        engine = self._engine
        match action:
            case Admit(prompts):
                for tokens in prompts:
                    ids = [self._draw.randrange(self._vocab_size) for _ in range(tokens)]
                    output = min(OUTPUT_TOKENS, self._capacity - tokens)
                    self._open.append(engine.ask("calibration", ids, output).request_id)
            case Drop(requests):
                for request_id in self._open[:requests]:
                    engine.cancel(request_id)
                del self._open[:requests]
            case Steps(chunk, steps):
                engine.replace_policy(self._policy_of(chunk + engine.state.decoding))
                self._steps(steps)

    def _steps(self, steps: int | None) -> None:
        engine, meter = self._engine, self._meter
        while steps is None and (engine.state.queue or engine.state.prefilling):
            meter.step()
            if not meter.samples[-1].shape.chunks:
                return  # Requests that still wait have no room.
        for _ in range(steps or 0):
            meter.step()


def _aligned(number: int, script: TimingScript, runs: Sequence[Sequence[StepSample]]) -> list[Measured]:
    """Return the steps of a script's repeats side by side."""
    shapes = [[sample.shape for sample in run] for run in runs]
    if any(other != shapes[0] for other in shapes):
        raise ValueError(f"script {script.title!r} did not take the same steps each time")
    return [
        Measured(number, script.held_out, shape, samples)
        for shape, samples in zip(shapes[0], zip(*runs, strict=True), strict=True)
    ]


def calibrated(steps: Sequence[Measured], *, name: str, source: str, kv_capacity_tokens: int) -> Calibration:
    """Return the model that fits what was measured, judged by what was held out.  Raises `ValueError`."""
    points = [TimedStep(step.shape, step.ns, step.scenario) for step in steps if not step.held_out]
    latency = fit(points, name=name, source=source, kv_capacity_tokens=kv_capacity_tokens)
    samples = [sample for step in steps for sample in step.samples]
    total = sum(sample.total_ns for sample in samples)
    decide = sum(sample.decide_ns for sample in samples)
    execute = sum(sample.execute_ns for sample in samples)
    held_out = [step for step in steps if step.held_out]
    return Calibration(
        latency,
        tuple(_residual(latency, kind, [step for step in held_out if step.shape.kind == kind]) for kind in KINDS),
        decide / total,
        (total - decide - execute) / total,
    )


def _residual(latency: LatencyModel, kind: StepKind, steps: Sequence[Measured]) -> Residual:
    pairs = [(float(step.shape.ns(latency)), step.ns) for step in steps]
    worst = max(range(len(steps)), key=lambda i: abs(pairs[i][0] - pairs[i][1]) / pairs[i][1], default=None)
    single = [
        (said, float(sample.total_ns)) for (said, _), step in zip(pairs, steps, strict=True) for sample in step.samples
    ]
    return Residual(
        kind,
        len(steps),
        mape(pairs),
        None if worst is None else pairs[worst][0] / pairs[worst][1] - 1,
        None if worst is None else steps[worst].shape,
        len(single),
        mape(single),
    )


# --- the grid ---------------------------------------------------------------------------------------------------------


def scenarios(kv_capacity_tokens: int, batch_max: int, chunk_max: int, seed: int) -> list[TimingScript]:
    """Return the scripts for an engine that holds so much, runs so many requests and prefills so many tokens in a
    step."""
    draw = random.Random(seed)
    chunks = sorted({min(chunk, chunk_max) for chunk in (*CHUNKS, chunk_max)})
    longest = kv_capacity_tokens // 2
    made = [TimingScript(f"prefill {chunk}", _prefill(chunk, chunks, longest)) for chunk in chunks]
    for fill in RAMPS:
        mean = max(int(kv_capacity_tokens * fill) // batch_max, 1)
        made.append(TimingScript(f"ramp {batch_max} x {mean}", _ramp(draw, _batches(batch_max), mean, chunks)))
    few = max(batch_max // 8, 2)
    mean = int(kv_capacity_tokens * RAMPS[-1]) // few
    made.append(TimingScript(f"ramp {few} x {mean}", _ramp(draw, _batches(few), mean, chunks)))
    for fill in (*WALKS, *HELD_OUT):
        mean = max(int(kv_capacity_tokens * fill) // batch_max, 1)
        walk = _walk(draw, batch_max, mean, chunks)
        made.append(TimingScript(f"walk {batch_max} x {mean}", walk, held_out=fill in HELD_OUT))
    return made


def _prefill(chunk: int, chunks: Sequence[int], longest: int) -> tuple[Action, ...]:
    """Return chunks of one size behind growing contexts, between which the longest chunk goes ahead."""
    ahead = chunks[-1]
    rounds = max(min(4, longest // (ahead + _CHUNKS_IN_A_ROW * chunk)), 1)
    prompt = rounds * (ahead + _CHUNKS_IN_A_ROW * chunk)
    actions: list[Action] = [Admit((min(prompt, longest),))]
    for _ in range(rounds):
        actions += [Steps(chunk, _CHUNKS_IN_A_ROW), Steps(ahead, 1)]
    return tuple(actions)


def _batches(batch_max: int) -> list[int]:
    """Return every size up to 32, then steps of a sixteenth."""
    sizes = [1]
    while sizes[-1] < batch_max:
        sizes.append(min(sizes[-1] + max(sizes[-1] // 16, 1), batch_max))
    return sizes


def _chunk(draw: random.Random, chunks: Sequence[int], prompts: Sequence[int]) -> int:
    """Return a size for which the prompts are a few steps: requests that decode meanwhile grow by a token in each."""
    return draw.choice([chunk for chunk in chunks if chunk * _STEPS_A_SUBMIT >= sum(prompts)] or [chunks[-1]])


def _lengths(draw: random.Random, count: int, mean: int) -> tuple[int, ...]:
    """Log-normal, cut off where few would not fit."""
    drawn = [draw.lognormvariate(-SPREAD * SPREAD / 2, SPREAD) for _ in range(count)]
    return tuple(max(round(mean * min(length, _LONGEST)), 1) for length in drawn)


def _ramp(draw: random.Random, batches: Sequence[int], mean: int, chunks: Sequence[int]) -> tuple[Action, ...]:
    actions: list[Action] = []
    running = 0
    for batch in batches:
        prompts = _lengths(draw, batch - running, mean)
        actions += [Admit(prompts), Steps(_chunk(draw, chunks, prompts)), Steps(chunks[-1], DECODE_STEPS)]
        running = batch
    return tuple(actions)


def _walk(draw: random.Random, batch_max: int, mean: int, chunks: Sequence[int]) -> tuple[Action, ...]:
    """Up and down, with a batch of any size at any time."""
    actions: list[Action] = []
    running = 0
    for step in range(_WALK_LENGTH):
        target = draw.randint(1, batch_max) if step % 4 else 0
        if target > running:
            prompts = _lengths(draw, target - running, mean)
            actions += [Admit(prompts), Steps(_chunk(draw, chunks, prompts))]
        elif target < running:
            actions.append(Drop(running - target))
        if target:
            actions.append(Steps(chunks[-1], DECODE_STEPS))
        running = target
    return tuple(actions)
