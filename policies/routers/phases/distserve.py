"""DistServe: prompts and outputs on workers of their own, first come, first served, with KV that is pulled.

Paper: "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving" (OSDI'24),
section 4.3, its online scheduling; its placement is a search (`fairsched search`), its queueing formulas are
`reproduce.distserve`.  A request goes to the prefill worker with the shortest queue, and at its first token to
the decode worker that is least loaded.  The paper leaves open what is counted: here tokens that wait, and KV in use.

Prefill workers fill a batch up to `saturating_prompt` tokens; a longer prompt goes alone.  That is the batching rule
`EagerPrefill` with this budget, and the local policy `distserve` has it.
"""

from math import isqrt
from typing import ClassVar

import attrs

from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers.d2lpm import D2LPM
from fairsched.policies.routers.load_based import JoinShortestQueue, NoRouterState, PowerOfTwo
from fairsched.policies.routers.phases.split import Handover, SplitPhases
from fairsched.policies.validators import percent

ONE_SERVER = Assumption(
    "OneServer", "One worker serves one request after the other in order of arrival, each for a time of its own."
)
P_DS_2 = Theorem(
    "P-DS-2",
    "the share of requests whose first token keeps its target does not rise with the rate: no request waits less when "
    "all arrivals are squeezed together",
    "DistServe (OSDI'24), which takes it for granted in its search; here for one worker that serves one request after "
    "the other in order of arrival",
    (ONE_SERVER,),
)
P_DS_3 = Theorem(
    "P-DS-3",
    "the KV that a worker holds, with what is reserved for KV on its way there and what has not left yet, never "
    "exceeds its capacity; KV leaves its source only after it has arrived",
    "DistServe (OSDI'24), pulled KV; this library, for any number of workers and transfers",
    bound="kv_capacity_tokens",
    rests_on=("KV-move",),
)
SATURATED_PERCENT = 88
"""A prompt saturates a worker that computes it at this share of the highest rate of tokens a second.

The paper names 512 tokens for OPT-13B on an A100, and no rule; with its published coefficients they get 88 %.
"""


_GRID, _GRID_MOST = 64, 32_768


def saturating_prompt(latency: LatencyModel) -> int:
    """Return L_m, the tokens of the shortest prompt that saturates a worker.

    A prompt of n tokens takes a + b n + c n^2, so tokens a second grow up to n = sqrt(a / c); without attention (c = 0)
    they grow for ever, towards 1 / b.  Exact on the model's integers, by bisection.  Of a machine of kernels the steps
    themselves are asked: the best of multiples of 64 tokens, and the first prompt that is as good as its share.
    """
    if latency.kernels is not None:
        return _saturating_step(latency)
    constant, token = latency.prefill_constant_ns * 1_000, latency.prefill_token_ns * 1_000
    attention = latency.prefill_attention_ps
    most = max(isqrt(constant // attention), 1) if attention else 1 << 30
    best_ps = constant + token * most + attention * most * most
    low, high = 1, most
    while low < high:
        tokens = (low + high) // 2
        takes_ps = constant + token * tokens + attention * tokens * tokens
        # tokens / takes >= 88 % of most / best, multiplied across.
        if 100 * tokens * best_ps >= SATURATED_PERCENT * most * takes_ps:
            high = tokens
        else:
            low = tokens + 1
    return low


def _saturating_step(latency: LatencyModel) -> int:
    takes_ns: dict[int, int] = {n: latency.step_ns(((n, 0),), 0, 0) for n in (1, *range(_GRID, _GRID_MOST + 1, _GRID))}
    most = max(takes_ns, key=lambda n: n / takes_ns[n])

    def enough(tokens: int, ns: int) -> bool:
        return 100 * tokens * takes_ns[most] >= SATURATED_PERCENT * most * ns

    first = next(n for n, ns in takes_ns.items() if enough(n, ns))
    below = range(max(first - _GRID, 1), first)
    return next((n for n in below if enough(n, latency.step_ns(((n, 0),), 0, 0))), first)


@attrs.frozen
class ShortestPromptQueue(Router[NoRouterState]):
    """The worker with the fewest tokens that wait to be computed; the fewest requests and the lowest id of equals.

    O(workers).
    """

    name: ClassVar[str] = "shortest-prompt-queue"
    state_type: ClassVar[type[NoRouterState]] = NoRouterState

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        return Dispatch(request.id, min(view.workers, key=_pending).worker), state


@attrs.frozen
class LeastMemory(Router[NoRouterState]):
    """The worker with the least KV in use or promised; the fewest requests and the lowest id of equals.  O(workers)."""

    name: ClassVar[str] = "least-memory"
    state_type: ClassVar[type[NoRouterState]] = NoRouterState

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        return Dispatch(request.id, min(view.workers, key=_taken).worker), state


def _pending(load: WorkerLoad) -> tuple[int, int]:
    return load.waiting_tokens, load.waiting_requests + load.running_requests


def _taken(load: WorkerLoad) -> tuple[int, int]:
    return load.kv_capacity_tokens - load.kv_free_tokens, load.waiting_requests + load.running_requests


@attrs.frozen
class DistServe(SplitPhases):
    """DistServe's controller: the shortest queue of prompts, then the worker with the least KV."""

    name: ClassVar[str] = "distserve"

    prefill: AnyRouter = attrs.field(factory=ShortestPromptQueue, metadata={"text": False})
    decode: AnyRouter = attrs.field(factory=LeastMemory, metadata={"text": False})


@attrs.frozen
class DistServeReleased(DistServe):
    """DistServe as in its released code: a decode worker is sent KV only while little waits there and it fits now.

    Source: LLMServe/DistServe, read in a snapshot of April 2025.  A decode worker accepts the first staged request if
    what waits there to join the batch takes less than 5 % of its memory, and as much is free as its KV takes.  That
    code has one worker for each phase; with several, the one with the least KV is asked, and the requests behind wait.
    """

    name: ClassVar[str] = "distserve-released"

    waiting_percent: int = attrs.field(default=5, validator=percent)
    """What waits at a decode worker that accepts takes less than this share of its memory."""

    def accepts(self, load: WorkerLoad, handover: Handover) -> bool:
        few = 100 * load.waiting_tokens < self.waiting_percent * load.kv_capacity_tokens
        return few and handover.kv_tokens <= load.kv_free_tokens


# --- other pairs, to compare with -------------------------------------------------------------------------------------


@attrs.frozen
class SplitJSQ(SplitPhases):
    """The worker with the fewest requests, for prompts and again for outputs."""

    name: ClassVar[str] = "jsq-split"


@attrs.frozen
class SplitP2C(SplitPhases):
    """The better of two workers drawn at random, for prompts and again for outputs."""

    name: ClassVar[str] = "p2c-split"

    prefill: AnyRouter = attrs.field(factory=PowerOfTwo, metadata={"text": False})
    decode: AnyRouter = attrs.field(default=PowerOfTwo(seed=1), metadata={"text": False})


@attrs.frozen
class SplitD2LPM(SplitPhases):
    """D2LPM before the workers that compute prompts, which run DLPM; the fewest requests for outputs.

    A client is charged for its outputs where its prompts were computed, so credit there is for both phases.
    """

    name: ClassVar[str] = "d2lpm-split"

    prefill: AnyRouter = attrs.field(factory=D2LPM, metadata={"text": False})
    decode: AnyRouter = attrs.field(factory=JoinShortestQueue, metadata={"text": False})
