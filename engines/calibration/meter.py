"""What a step of a live engine was and how long it took: the shape that a latency model prices, beside the time.

A step is all that the engine does for it: deciding, computing, keeping the books and telling listeners.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fairsched.engines.serving import Engine, Executor, Sampling
from fairsched.model.decision import StepPlan
from fairsched.model.events import Event
from fairsched.model.machine import LatencyModel

StepKind = Literal["prefill", "decode", "mixed"]

KINDS: tuple[StepKind, ...] = ("prefill", "decode", "mixed")
"""A step that only prefills, one that only decodes, and one that does both."""


class StepShape(NamedTuple):
    """What a step computes: (tokens, context before them) of each chunk, and how many requests decode over how many
    tokens of context in all."""

    chunks: tuple[tuple[int, int], ...]
    batch: int
    context_tokens: int

    @property
    def kind(self) -> StepKind:
        if not self.chunks:
            return "decode"
        return "mixed" if self.batch else "prefill"

    def ns(self, latency: LatencyModel) -> int:
        return latency.step_ns(self.chunks, self.batch, self.context_tokens)


class StepSample(NamedTuple):
    """A step that was taken: `execute_ns` of its `total_ns` in the executor, `decide_ns` in policy and guard; the rest
    is bookkeeping."""

    shape: StepShape
    total_ns: int
    execute_ns: int
    decide_ns: int


class StepMeter:
    """An executor that notes each step's shape on its way to the real one; `samples` are the steps that `step` took."""

    def __init__(self, executor: Executor) -> None:
        self.samples: list[StepSample] = []
        self._executor = executor
        self._engine: Engine | None = None
        self._shape: StepShape | None = None

    def watch(self, engine: Engine) -> None:
        """Watch the engine that this is the executor of."""
        self._engine = engine

    def step(self) -> bool:
        """Take one step of the engine, with its sample if anything was computed; False when the engine is idle."""
        engine = self._engine
        assert engine is not None
        times = engine.times
        decided, executed, kept = times.decide_ns, times.execute_ns, times.books_ns
        self._shape = None
        if not engine.step():
            return False
        if self._shape is not None:
            decide, execute = times.decide_ns - decided, times.execute_ns - executed
            total = decide + execute + times.books_ns - kept
            self.samples.append(StepSample(self._shape, total, execute, decide))
        return True

    # --- the executor -----------------------------------------------------------------------------------------------

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        self._executor.submit(request_id, prompt_ids, sampling, generated)

    def follow(self, events: Sequence[Event]) -> None:
        self._executor.follow(events)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert self._engine is not None
        state = self._engine.state
        batch, context = (state.decoding, state.context) if plan.decode else (0, 0)
        chunks, rows, contexts = state.step_shape(plan)
        self._shape = StepShape(tuple(chunks), batch + rows, (context if batch else 0) + contexts)
        return self._executor.execute(plan)

    def close(self) -> None:
        self._executor.close()


def mape(samples: Sequence[tuple[float, float]]) -> float | None:
    """Mean absolute error of (said, measured) pairs, as a share of what was measured; None without any."""
    if not samples:
        return None
    return math.fsum(abs(said - measured) / measured for said, measured in samples) / len(samples)
