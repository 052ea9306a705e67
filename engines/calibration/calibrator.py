"""Calibration: time an engine over a grid of steps and fit the latency model that a simulator needs.

The engine is the one that serves, with its guard, its bookkeeping and a policy, so a step costs the same here.
Scripts are repeated in random order, so that the drift of a machine is spread over all of them, and a step's duration
is its median over the repeats.
"""

import gc
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import attrs

from fairsched.engines.calibration.drive import Clock
from fairsched.engines.calibration.fit import Point, fit
from fairsched.engines.calibration.grid import Action, Drop, Run, Scenario, Submit
from fairsched.engines.calibration.meter import KINDS, Meter, StepKind, StepSample, StepShape, mape
from fairsched.engines.serving import BlockKeys, Engine, Executor
from fairsched.model.latency import LatencyModel
from fairsched.policies.base import AnyLocalPolicy

OUTPUT_TOKENS = 512
"""What a calibrated request would produce if it were not dropped; room for it must not be reserved."""

PolicyOf = Callable[[int], AnyLocalPolicy]
"""The policy whose step has this token budget."""


class UnsteadyError(ValueError):
    """A script did not take the same steps each time it was run: its policy depends on more than its state."""


@attrs.frozen
class Measured:
    """A step of a script: what it was, and how long it took in each repeat."""

    scenario: int
    held_out: bool
    shape: StepShape
    samples: tuple[StepSample, ...]

    @property
    def ns(self) -> float:
        """Its typical duration."""
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
        """Return the residual as plain values."""
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
        self._meter = Meter(executor)
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
        self, scripts: Sequence[Scenario], repeats: int, progress: Callable[[int], None] = lambda done: None
    ) -> list[Measured]:
        """Every step of every script, timed in so many repeats; `progress` is told how many scripts are done."""
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

    def _run(self, script: Scenario) -> list[StepSample]:
        meter = self._meter
        meter.samples = []
        for action in script.actions:
            self._act(action)
        self._act(Drop(len(self._open)))
        return meter.samples

    def _act(self, action: Action) -> None:
        engine = self._engine
        match action:
            case Submit(prompts):
                for tokens in prompts:
                    ids = [self._draw.randrange(self._vocab_size) for _ in range(tokens)]
                    output = min(OUTPUT_TOKENS, self._capacity - tokens)
                    self._open.append(engine.ask("calibration", ids, output).request_id)
            case Drop(requests):
                for request_id in self._open[:requests]:
                    engine.cancel(request_id)
                del self._open[:requests]
            case Run(chunk, steps):
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


def _aligned(number: int, script: Scenario, runs: Sequence[Sequence[StepSample]]) -> list[Measured]:
    """Return the steps of a script's repeats side by side."""
    shapes = [[sample.shape for sample in run] for run in runs]
    if any(other != shapes[0] for other in shapes):
        raise UnsteadyError(f"script {script.title!r} did not take the same steps each time")
    return [
        Measured(number, script.held_out, shape, samples)
        for shape, samples in zip(shapes[0], zip(*runs, strict=True), strict=True)
    ]


def calibrated(steps: Sequence[Measured], *, name: str, source: str, kv_capacity_tokens: int) -> Calibration:
    """Return the model that fits what was measured, judged by what was held out.  Raises `FitError`."""
    points = [Point(step.shape, step.ns, step.scenario) for step in steps if not step.held_out]
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
