"""The machine that is looked for: step times, workers, memory and the scheduler's settings; and what it would do."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.observed import Observed
from fairsched.engines.logs.access import UNKNOWN
from fairsched.engines.simulation import Simulator
from fairsched.model.events import Event, Finished, Prefilled
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Workload
from fairsched.model.service import Ints
from fairsched.policies.batching import Batch, Chunked
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import local_policy, with_parameters
from fairsched.policies.routers import JoinShortestQueue

Rule = Literal["chunked", "eager-prefill", "whole-prompts"]
RULES: tuple[Rule, ...] = ("chunked", "eager-prefill", "whole-prompts")
"""Batching rules that are told apart: chunked prefill, prefill first, and whole prompts beside decodes."""

COEFFICIENTS = (
    "prefill_constant_ns",
    "prefill_token_ns",
    "prefill_attention_ps",
    "decode_constant_ns",
    "context_token_ns",
    "request_ns",
)
"""The parts of a step's time, in the order of a vector of them (`fairsched.model.machine`)."""
UNLIMITED = 1 << 24
"""KV, in tokens, that is never full."""
_NEVER = -1


@attrs.frozen
class _Ahead(Chunked):
    """Chunked prefill that lets a request in with a token of its prompt where no budget is left."""

    name: ClassVar[str] = "chunked-ahead"
    serves_all: ClassVar[bool] = False

    def first_chunk(self, batch: Batch, extend_tokens: int) -> int:
        return min(extend_tokens, max(batch.tokens, 1)) if batch.seats > 0 else 0


@attrs.frozen
class LogMachine:
    """A server: `workers` equal ones, each with these step times and settings.

    `times` are the `COEFFICIENTS` of a step.  `policy` is the order in which requests are taken, `rule` how prompts and
    decodes share a step.  `kv_tokens` is the memory of one worker.  With `ahead` requests enter while prompts before
    theirs are still to be computed, as far as seats go and memory with all of their outputs; a log of a server without
    a gate does not tell.  A gate of the policy gives `quantum` cost units at a refill (0: there is none).
    """

    times: tuple[float, ...]
    workers: int = 1
    policy: str = "fcfs"
    rule: Rule = "chunked"
    max_running: int = 256
    max_batched_tokens: int = 2048
    kv_tokens: int = UNLIMITED
    ahead: bool = False
    quantum: int = 0

    def latency(self, name: str = "log", source: str = "fitted to an access log") -> LatencyModel:
        """Return the latency model, in whole units."""
        constant, token, attention, decode, context, request = (max(round(value), 0) for value in self.times)
        piece = DecodePiece(1, max(decode, 1), context, request)
        return LatencyModel(name, source, max(constant, 1), token, attention, (piece,), self.kv_tokens)

    def slower(self, pace: float) -> "LogMachine":
        """Return the machine with steps that take so many times as long."""
        return attrs.evolve(self, times=tuple(pace * value for value in self.times))

    @property
    def params(self) -> dict[str, str]:
        """The settings of the policy, as on a command line."""
        return {
            "batching": self.rule,
            "reserve": "optimistic",
            "max_running": str(self.max_running),
            "max_batched_tokens": str(self.max_batched_tokens),
            **({"quantum": str(self.quantum)} if self.quantum else {}),
        }

    def composed(self) -> ComposedPolicy:
        """Return the policy of each worker."""
        policy = local_policy(self.policy)
        assert isinstance(policy, ComposedPolicy)
        policy = with_parameters(policy, self.params)
        return (
            attrs.evolve(policy, batching=_Ahead(self.max_batched_tokens, self.max_running)) if self.ahead else policy
        )


@attrs.frozen(eq=False)
class Simulated:
    """What the machine did with each request, in nanoseconds; -1 for one that did not get so far."""

    ttft: Ints
    latency: Ints


def as_seen(seen: Observed, said: Simulated) -> Observed:
    """Return the log that the simulated machine would have written, with first tokens where the true log has them.

    Requests that it never finished are not in it.
    """
    ended = said.latency > 0
    ttft = np.where(seen.streams, said.ttft, UNKNOWN)
    return attrs.evolve(seen, ttft=ttft, latency=said.latency).of(ended)


class Played:
    """Requests that are simulated again and again on one machine after another.  Equal machines are simulated once."""

    def __init__(self, seen: Observed, weights: Mapping[int, int] | None = None) -> None:
        self.seen = seen
        self.workload: Workload = seen.workload(weights or {})
        self.runs = 0
        self._known: dict[tuple[LatencyModel, LogMachine], Simulated] = {}

    def on(self, machine: LogMachine) -> Simulated:
        """Return what this machine would have done with the requests."""
        machine = attrs.evolve(machine, kv_tokens=max(machine.kv_tokens, self.least_kv))
        latency = machine.latency()
        key = (latency, attrs.evolve(machine, times=()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._run(machine, latency)
        return found

    @property
    def least_kv(self) -> int:
        """KV without which the largest request would not run."""
        return int((self.seen.prompt + self.seen.output).max()) + 1

    def _run(self, machine: LogMachine, latency: LatencyModel) -> Simulated:
        self.runs += 1
        first, end = [_NEVER] * len(self.seen), [_NEVER] * len(self.seen)

        def listen(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Prefilled):
                    if not event.remaining_tokens and first[event.request_id] == _NEVER:
                        first[event.request_id] = event.time_ns
                elif isinstance(event, Finished):
                    end[event.request_id] = event.time_ns

        Simulator(
            self.workload,
            machine.composed(),
            JoinShortestQueue(),
            latency,
            workers=machine.workers,
            on_events=listen,
        ).run()
        arrival = self.seen.arrival
        firsts, ends = np.array(first, dtype=np.int64), np.array(end, dtype=np.int64)
        return Simulated(
            np.where(firsts == _NEVER, _NEVER, firsts - arrival), np.where(ends == _NEVER, _NEVER, ends - arrival)
        )
