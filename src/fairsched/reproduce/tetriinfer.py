"""TetriInfer: orders and pieces of prompts, admission by predicted outputs, and where requests decode.

Source: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer, 2024),
sections 2, 3 and 5.  Its testbed is OPT-13B on V100 of 32 GB, of which no profile is published: steps take here what
DistServe's profile says of OPT-13B on A100, with one GPU or two.  KV memory is that of V100, which decides how many
requests decode together: 90 % of 32 GB a GPU less 26 GB of weights, in tokens of 819,200 bytes.

Lengths are as of ShareGPT (`engines.workloads.generators.sharegpt` says what is theirs and what is ours).  All requests
of a panel come at once: the paper prints no arrivals, and its 46.5 % from batches of 16 to 128 is what sorting 128
requests that wait from the beginning comes to.
"""

from functools import partial
from itertools import pairwise
from math import inf
from typing import ClassVar

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import Bucketed, Cluster, Simulator, simulate
from fairsched.engines.workloads import generate
from fairsched.model.events import Admitted, Decoded, Event
from fairsched.model.latency import PRESETS
from fairsched.model.plan import Dispatch
from fairsched.model.request import Prompt, Request, Workload
from fairsched.model.view import ClusterView
from fairsched.policies.base import Router
from fairsched.policies.batching import Chunked, EagerPrefill, Reserve
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.routers import DrawState, Random, RoundRobin
from fairsched.policies.routers.phases import HeavyLight
from fairsched.reproduce import runs
from fairsched.reproduce.row import Claim, Control, Figures, Panel, Platform, Row, fewer

ON_V100 = Platform("opt-13b-a100-tp2", kv_capacity_tokens=38_500)
"""Two GPUs with the KV tokens that two V100 hold beside the weights: (2 x 0.9 x 32 GB - 26 GB) / 819,200 bytes."""
BATCHES = (16, 32, 64, 128)
REQUESTS = 128
HEAVY_OUTPUT, HEAVY_IN_MOTIVATION = 128, 512
"""An output of more tokens is heavy in section 5, and in section 2 (T4)."""
_HARDWARE = "OPT-13B's A100 coefficients, since no profile of the paper's V100 is published"


def _at_once(seed: int, requests: int = REQUESTS, phases: str = "all", heavy_output: int = HEAVY_OUTPUT) -> Workload:
    """Requests with lengths as of ShareGPT that all come at the beginning."""
    drawn = generate("sharegpt", seed=seed, requests=requests, phases=phases, heavy_output=heavy_output)
    jobs = tuple(replace(job, request=replace(job.request, arrival_ns=0)) for job in drawn.jobs)
    return replace(drawn, jobs=jobs)


def _prompts_only(work: Workload) -> Workload:
    """The same requests at a worker that only computes prompts: their first token is all."""
    jobs = (replace(j, request=replace(j.request, max_output_tokens=1), output_tokens=1) for j in work.jobs)
    return replace(work, jobs=tuple(jobs))


def _decode_only(on: Platform, workers: int) -> Cluster:
    """Workers at which prompts are there with their KV: their prefill takes 1 ns."""
    there = attrs.evolve(PRESETS[on.model], prefill_constant_ns=1, prefill_token_ns=0, prefill_attention_ps=0)
    return Cluster(there, workers, on.kv_capacity_tokens)


def _buckets(seed: int, end: str = "upper") -> Bucketed:
    """The paper's classifier with buckets of 200 tokens, up to the longest output."""
    return Bucketed(accuracy=0.749, buckets=6, width_tokens=200, seed=seed, end=end)


def _ttft(result: Run) -> float:
    return runs.measured(result.measures.ttft_us.mean, "a time to the first token")


def _latency(result: Run) -> float:
    return runs.measured(result.measures.latency_us.mean, "a latency")


# --- prefill ----------------------------------------------------------------------------------------------------------


def _sorted(on: Platform, work: Workload, sort: str, batch: int) -> float:
    """Mean time to the first token with batches so large that are sorted so, in padded chunks of 512."""
    params = {"sort": sort, "batch_requests": batch}
    return _ttft(simulate(work, "tetriinfer", cluster=on.cluster, params=params))


@partial(
    Row,
    id="24",
    about="prompts sorted in batches",
    paper="tetriinfer",
    panel="figure 16, prefill scheduler",
    platform=ON_V100,
    setting=f"a prefill worker, {REQUESTS} requests that come at once with lengths as of ShareGPT, padded chunks of "
    "512 tokens; mean wait until the first token, shortest first in batches of 16 against arrival order, and "
    f"batches of 32, 64 and 128 against the next smaller; the control has all prompts at the mean length; {_HARDWARE}",
    claims=(
        Claim(
            "wait at 16",
            "wait less by shortest first, batches of 16",
            "7.8 %; we ask for 3 to 15 %",
            0.03,
            0.15,
            0.0,
            Control("prompts differ in length", "alike"),
        ),
        *(
            fewer(f"{batch} over {less}", f"batches of {batch} over {less}", "less")
            for less, batch in pairwise(BATCHES)
        ),
        Claim("128 over 16", "time to first token less, batches of 128 over 16", "46.5 %", 0.465, 0.465, neutral=0.0),
    ),
    axes=("requests in a batch", "mean s to the first token"),
    seconds=1,
    quick=True,
)
def sorted_prompts(on: Platform, seed: int) -> Figures:
    """Waits by order and size of batch."""
    work = _prompts_only(_at_once(seed))
    mean = Prompt(round(np.mean([job.request.prompt.tokens for job in work.jobs])))
    alike = replace(work, jobs=tuple(replace(j, request=replace(j.request, prompt=mean)) for j in work.jobs))
    fcfs = _sorted(on, work, "arrival", 16)
    shortest = {batch: _sorted(on, work, "shortest", batch) for batch in BATCHES}
    found = {
        "wait at 16": 1 - shortest[16] / fcfs,
        "alike": 1 - _sorted(on, alike, "shortest", 16) / _sorted(on, alike, "arrival", 16),
        "128 over 16": 1 - shortest[128] / shortest[16],
    }
    found |= {f"{m} over {n}": shortest[m] / shortest[n] for n, m in pairwise(BATCHES)}
    longest = {float(batch): _sorted(on, work, "longest", batch) / 1e6 for batch in BATCHES}
    return {
        **found,
        "shortest first": {float(batch): us / 1e6 for batch, us in shortest.items()},
        "longest first": longest,
        "arrival": {float(batch): fcfs / 1e6 for batch in BATCHES},
    }


FIXED = FCFS(batching=EagerPrefill(max_batched_tokens=1_000_000, max_running=16))
"""Batches of 16 whole prompts, and no request enters before the batch is over."""


@partial(
    Row,
    id="25",
    about="chunks against batches of a fixed size",
    paper="tetriinfer",
    panel="figure 16, chunked prefill",
    platform=ON_V100,
    setting=f"a prefill worker, {REQUESTS} requests that come at once with lengths as of ShareGPT, first come first "
    "served; padded chunks of 512 tokens against batches of 16 prompts, each padded to the longest of its batch, of "
    f"which no request is over before all are; mean time to the first token; the control pads no batch; {_HARDWARE}",
    claims=(
        fewer(
            "ratio",
            "time to first token, chunks over fixed batches",
            "86.4 % less; direction only",
            Control("short prompts are padded to the longest of their batch", "unpadded"),
        ),
    ),
    note="how much is padded decides it, and the paper does not say how its baseline pads",
    seconds=1,
    quick=True,
)
def chunked_prompts(on: Platform, seed: int) -> Figures:
    """Time to the first token in chunks, and in whole batches with and without padding."""
    work = _prompts_only(_at_once(seed))
    chunked = _sorted(on, work, "arrival", 16)
    fixed = {name: _ttft(simulate(each, FIXED, cluster=on.cluster)) for name, each in _batches(work).items()}
    return {"ratio": chunked / fixed["padded"], "unpadded": chunked / fixed["as they are"]}


def _batches(work: Workload) -> dict[str, Workload]:
    """The workload as it is, and with each 16 prompts as long as the longest of them."""
    jobs = []
    for first in range(0, len(work.jobs), 16):
        batch = work.jobs[first : first + 16]
        longest = Prompt(max(job.request.prompt.tokens for job in batch))
        jobs += [replace(job, request=replace(job.request, prompt=longest)) for job in batch]
    return {"as they are": work, "padded": replace(work, jobs=tuple(jobs))}


# --- decode -----------------------------------------------------------------------------------------------------------


def _decodes(reserve: Reserve = "static", max_running: int = 256) -> ComposedPolicy:
    """First come first served at workers that decode, with that rule of admission."""
    return FCFS(batching=Chunked(max_batched_tokens=1_000_000, max_running=max_running, reserve=reserve))


@attrs.frozen
class Imbalanced(Router[DrawState]):
    """The paper's worst case: heavy outputs to the first worker, and the others to any."""

    name: ClassVar[str] = "imbalanced"
    state_type: ClassVar[type[DrawState]] = DrawState

    seed: int = 0

    def route(self, state: DrawState, request: Request, view: ClusterView) -> tuple[Dispatch, DrawState]:
        if (request.predicted_output_tokens or 0) > HEAVY_OUTPUT:
            return Dispatch(request.id, view.workers[0].worker), state
        return Random(self.seed).route(state, request, view)


COUNTS = (2, 4, 8)
PER_WORKER = 32


@partial(
    Row,
    id="27",
    about="which instance decodes",
    paper="tetriinfer",
    panel="figure 18, inter-decode scheduling",
    platform=ON_V100,
    setting="2, 4 and 8 decode workers and 32 requests for each that come at once, as of ShareGPT, prompts there with "
    "their KV, outputs foreseen in buckets of 200 tokens with 74.9 % right, first come first served with outputs "
    "reserved; time until the last request has ended, by power of two with the mix of heavy (more than 128) and light "
    f"outputs, at random, and with all heavy ones at one worker; {_HARDWARE}",
    claims=tuple(
        Claim(f"{worse} over {better}, {count}", f"{worse} over {better}, {count} workers", "no less", 1.0, inf)
        for count in COUNTS
        for worse, better in (("random", "power of two"), ("imbalance", "random"))
    ),
    axes=("decode workers", "s until all have ended"),
    seconds=3,
    quick=True,
)
def decode_choice(on: Platform, seed: int) -> Figures:
    """Total time to decode by router and workers."""
    routers = {"power of two": HeavyLight(seed=seed), "random": Random(seed=seed), "imbalance": Imbalanced(seed)}
    times: dict[str, dict[float, float]] = {name: {} for name in routers}
    for count in COUNTS:
        work = _at_once(seed, PER_WORKER * count)
        for name, router in routers.items():
            result = simulate(work, _decodes(), router, cluster=_decode_only(on, count), predictor=_buckets(seed))
            times[name][count] = result.measures.makespan_us / 1e6
    found = {
        f"{worse} over {better}, {count}": times[worse][count] / times[better][count]
        for count in COUNTS
        for worse, better in (("random", "power of two"), ("imbalance", "random"))
    }
    return {**found, **times}


BATCH = 128
STEADY = 2_048


@partial(
    Row,
    id="28",
    about="heavy and light outputs in one batch",
    paper="tetriinfer",
    panel="figure 5, interference of decodes",
    platform=attrs.evolve(ON_V100, kv_capacity_tokens=144_000),
    setting="a decode worker that is full with a batch of 128, light prompts as of ShareGPT that are there with their "
    f"KV, {STEADY:,} requests; half of the outputs heavy (more than 512 tokens, as in the paper's motivation) against "
    "all light (at most 128); tokens a second and time per token while the batch is full; memory of two A100, so that "
    f"128 fit; the control's steps take the same whatever the context; {_HARDWARE}",
    claims=(
        Claim(
            "throughput",
            "tokens a second less with half heavy",
            "16 %; we ask for 5 to 25 %",
            0.05,
            0.25,
            0.0,
            Control("attention reads the context of each request", "flat throughput"),
        ),
        Claim(
            "latency",
            "time per token more with half heavy",
            "23 %; we ask for 5 to 25 %",
            0.05,
            0.25,
            0.0,
            Control("attention reads the context of each request", "flat latency"),
        ),
    ),
    seconds=3,
    quick=True,
)
def mixed_batch(on: Platform, seed: int) -> Figures:
    """Throughput and time per token of a full batch."""
    found = {}
    for name, read in (("", True), ("flat ", False)):
        light, half = (_full_batch(on, seed, heavy, read) for heavy in (0, 2))
        found |= {f"{name}throughput": 1 - half / light, f"{name}latency": light / half - 1}
    return found


def _full_batch(on: Platform, seed: int, heavy_of_four: int, context_is_read: bool) -> float:
    """Tokens a second until the last request enters, so many of each four with heavy outputs."""
    light, heavy = _at_once(seed, STEADY, "LPLD"), _at_once(seed, STEADY, "LPHD", HEAVY_IN_MOTIVATION)
    jobs = tuple(heavy.jobs[i] if i % 4 < heavy_of_four else light.jobs[i] for i in range(STEADY))
    spec = _decode_only(on, 1).specs[0]
    if not context_is_read:
        pieces = tuple(attrs.evolve(piece, context_token_ns=0) for piece in spec.latency.decode)
        spec = attrs.evolve(spec, latency=attrs.evolve(spec.latency, decode=pieces))
    tokens, last = [0], [0, 0]

    def on_events(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Decoded):
                tokens[0] += sum(event.tokens)
            elif isinstance(event, Admitted):
                last[:] = event.time_ns, tokens[0]

    policy = _decodes(max_running=BATCH)
    Simulator(replace(light, jobs=jobs), policy, RoundRobin(), spec.latency, workers=[spec], on_events=on_events).run()
    return last[1] / last[0] * 1e9


PANELS: tuple[Panel, ...] = ()
