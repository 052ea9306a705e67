"""What computes a worker's steps: the boundary between bookkeeping, which is `model.worker.transitions`'s, and tensors.

A serving loop owns the worker's state and the policy's; an executor owns tokens and KV memory.  The loop tells it what
arrived, every event of every transition in order, and each step's plan; it answers with the tokens that the step
produced.  It decides nothing: what is admitted, cut into chunks, preempted or evicted was decided before.

The order of calls is fixed: `submit` before a request's first event; for each step `follow` with the events of
`worker.begin`, `execute` with the same plan, `follow` with the events of `worker.finish`.  Memory that an event frees
may be used by the next call.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs

from fairsched.model.decision import StepPlan
from fairsched.model.events import Event
from fairsched.model.worker import WorkerState


@attrs.frozen
class Sampling:
    """How output tokens are chosen.

    At `temperature` 0 the most likely token; above it one drawn from the `top_k` most likely (0: from all), with
    randomness that depends on `seed`, the request and the position alone, so that neither batching nor preemption
    changes an answer.  With a `variant` that number stands for the request: equal prompts get equal answers.
    Generation stops after one of `stop_tokens`.
    """

    temperature: float = attrs.field(default=0.0, validator=attrs.validators.ge(0.0))
    top_k: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    seed: int = 0
    stop_tokens: frozenset[int] = frozenset()
    variant: int | None = None


class ExecutorError(RuntimeError):
    """An executor that did not answer with the tokens that a plan asks for, or is not there any more."""


class Executor(Protocol):
    """Tokens and KV memory of one worker's requests."""

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        """Submit a request's tokens, before its first event.  Raises `ValueError` for a token outside the vocabulary.

        `generated` are the output tokens that it has already, from an executor before this one.
        """

    def follow(self, events: Sequence[Event]) -> None:
        """Follow what happened to the worker: admissions take memory, ends, preemptions and evictions free it, and a
        request that is paused keeps it."""

    def execute(self, plan: StepPlan) -> dict[int, int]:
        """Compute one step: each chunk of the plan and, with `decode`, one token for every request that decodes and is
        not paused.

        Returns the token of each request that produced one: those that decoded, and those whose last chunk this was.
        """

    def close(self) -> None:
        """Give back what the executor holds; it is not used afterwards."""


@runtime_checkable
class MovesKV(Protocol):
    """An executor whose requests can go on in another one of the same model, with what was computed of them.

    What `export_kv` returns is opaque to all others.  It is a copy, so that memory that is freed afterwards may be used
    at once.
    """

    def export_kv(self, request_id: int) -> bytes:
        """Return the KV of a running request, of all tokens that are computed, or what came with a waiting one.

        Raises `ValueError` for a request that has none.
        """

    def import_kv(self, request_id: int, kv: bytes) -> None:
        """Take over KV from an `export_kv`, after the request's `submit` and before its `Arrived`.

        It is used when the request is admitted, as far as the admission does not plan to compute it.  Raises
        `ValueError` for what cannot be this request's KV.
        """


def execute(executor: Executor, plan: StepPlan, state: WorkerState) -> dict[int, int]:
    """Compute one step of a worker that has begun the plan; the tokens by request.

    Raises `ExecutorError` for another number of tokens than the plan makes, or whatever the executor raises.  O(plan).
    """
    tokens = executor.execute(plan)
    expected = state.decoding if plan.decode else 0
    for request_id, chunk in plan.chunks:
        expected += state.in_flight[request_id].remaining_tokens == chunk
    if len(tokens) != expected or not all(map(state.in_flight.__contains__, tokens)):
        raise ExecutorError(f"worker {state.worker}: {len(tokens)} tokens where the plan makes {expected}")
    return tokens
