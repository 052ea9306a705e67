"""TetriInfer: orders and pieces of prompts, admission by predicted outputs, and where requests decode.

Source: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer, 2024),
sections 2, 3 and 5.  Its testbed is OPT-13B on V100 of 32 GB, of which no profile is published: steps take here what
DistServe's profile says of OPT-13B on A100, with one GPU or two.  KV memory is that of V100, which decides how many
requests decode together: 90 % of 32 GB a GPU less 26 GB of weights, in tokens of 819,200 bytes.

Lengths are as of ShareGPT (`engines.workloads.generators.lengths` says what is theirs and what is ours).  All requests
of a panel come at once: the paper prints no arrivals, and its 46.5 % from batches of 16 to 128 is what sorting 128
requests that wait from the beginning comes to.
"""

from functools import partial
from itertools import pairwise
from math import inf
from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.capacity.search import decode_only
from fairsched.engines.simulation import Bucketed, Cluster, Oracle, Predictor, Simulator, simulate
from fairsched.engines.workloads import KvLink, WorkerSpec, generate
from fairsched.model.decision import ClusterView, Dispatch, Role
from fairsched.model.events import Admitted, Decoded, Event
from fairsched.model.machine import PRESETS
from fairsched.model.request import Prompt, Request, Workload
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.batching import Chunked, EagerPrefill, Reserve
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.routers import Random, RoundRobin
from fairsched.policies.routers.load_based import DrawState
from fairsched.policies.routers.phases import HeavyLight, TetriInfer
from fairsched.reproduce import runs
from fairsched.reproduce.row import Control, Figures, Panel, PanelRow, Platform, Printed, fewer, number, rows_of

ON_V100 = Platform("opt-13b-a100-tp2", kv_capacity_tokens=38_500)
"""Two GPUs with the KV tokens that two V100 hold beside the weights: (2 x 0.9 x 32 GB - 26 GB) / 819,200 bytes."""
row = rows_of("tetriinfer", ON_V100)
BATCHES = (16, 32, 64, 128)
REQUESTS = 128
HEAVY_OUTPUT, HEAVY_IN_MOTIVATION = 128, 512
"""An output of more tokens is heavy in section 5, and in section 2 (T4)."""
_HARDWARE = "OPT-13B's A100 coefficients, since no profile of the paper's V100 is published"


def _at_once(seed: int, requests: int = REQUESTS, phases: str = "all", heavy_output: int = HEAVY_OUTPUT) -> Workload:
    """Return requests with lengths as of ShareGPT that all come at the beginning."""
    drawn = generate("sharegpt", seed=seed, requests=requests, phases=phases, heavy_output=heavy_output)
    jobs = tuple(replace(job, request=replace(job.request, arrival_ns=0)) for job in drawn.jobs)
    return replace(drawn, jobs=jobs)


def _prompts_only(work: Workload) -> Workload:
    """Return the same requests at a worker that only computes prompts: their first token is all."""
    jobs = (replace(j, request=replace(j.request, max_output_tokens=1), output_tokens=1) for j in work.jobs)
    return replace(work, jobs=tuple(jobs))


def _decode_only(on: Platform, workers: int) -> Cluster:
    """Return workers at which prompts are there with their KV: their prefill takes 1 ns."""
    return Cluster(decode_only(PRESETS[on.model]), workers, on.kv_capacity_tokens)


def _buckets(seed: int, end: str = "upper") -> Bucketed:
    """Return the paper's classifier with buckets of 200 tokens, up to the longest output."""
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


@row(
    id="24",
    about="prompts sorted in batches",
    panel="figure 16, prefill scheduler",
    setting=f"a prefill worker, {REQUESTS} requests at once with lengths as of ShareGPT, padded chunks of 512 tokens; "
    "wait until the first token, shortest first in batches of 16 against arrival order, and larger batches against "
    f"the next smaller; the control has all prompts at the mean length; {_HARDWARE}",
    claims=(
        number(
            "wait at 16",
            "wait less by shortest first, batches of 16",
            "7.8 %",
            0.078,
            neutral=0.0,
            control=Control("prompts differ in length", "alike"),
        ),
        *(
            fewer(f"{batch} over {less}", f"batches of {batch} over {less}", "less")
            for less, batch in pairwise(BATCHES)
        ),
        number("128 over 16", "time to first token less, batches of 128 over 16", "46.5 %", 0.465, neutral=0.0),
    ),
    axes=("requests in a batch", "mean s to the first token"),
    seconds=1,
    quick=True,
)
def sorted_prompts(on: Platform, seed: int) -> Figures:
    """Return waits by order and size of batch."""
    work = _prompts_only(_at_once(seed))
    even = runs.alike(work, outputs=False)
    fcfs = _sorted(on, work, "arrival", 16)
    shortest = {batch: _sorted(on, work, "shortest", batch) for batch in BATCHES}
    found = {
        "wait at 16": 1 - shortest[16] / fcfs,
        "alike": 1 - _sorted(on, even, "shortest", 16) / _sorted(on, even, "arrival", 16),
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


@row(
    id="25",
    about="chunks against batches of a fixed size",
    panel="figure 16, chunked prefill",
    setting=f"a prefill worker, {REQUESTS} requests at once with lengths as of ShareGPT, in order of arrival; padded "
    "chunks of 512 tokens against batches of 16 prompts, each padded to the longest, of which no request is over "
    "before all are; mean time to the first token; the control pads no batch",
    claims=(
        number(
            "less",
            "time to first token less by chunks than by fixed batches",
            "86.4 %",
            0.864,
            neutral=0.0,
            control=Control("short prompts are padded to the longest of their batch", "unpadded"),
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
    return {"less": 1 - chunked / fixed["padded"], "unpadded": 1 - chunked / fixed["as they are"]}


def _batches(work: Workload) -> dict[str, Workload]:
    """Return the workload as it is, and with each 16 prompts as long as the longest of them."""
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


@row(
    id="27",
    about="which instance decodes",
    panel="figure 19, inter-decode scheduling",
    setting="2, 4 and 8 decode workers and 32 requests for each at once, as of ShareGPT, prompts there with their "
    "KV, outputs in buckets of 200 tokens with 74.9 % right and reserved, in order of arrival; time until the last "
    "has ended: power of two by the mix of heavy (more than 128) and light outputs, random, and all heavy ones at "
    "one worker",
    claims=tuple(
        Printed(f"{worse} over {better}, {count}", f"{worse} over {better}, {count} workers", "no less", 1.0, inf)
        for count in COUNTS
        for worse, better in (("random", "power of two"), ("imbalance", "random"))
    ),
    note="not explained",
    axes=("decode workers", "s until all have ended"),
    seconds=3,
)
def decode_choice(on: Platform, seed: int) -> Figures:
    """Total time to decode by router and workers."""
    routers: dict[str, AnyRouter] = {
        "power of two": HeavyLight(seed=seed),
        "random": Random(seed=seed),
        "imbalance": Imbalanced(seed),
    }
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


@row(
    id="28",
    about="heavy and light outputs in one batch",
    panel="figure 5, interference of decodes",
    platform=attrs.evolve(ON_V100, kv_capacity_tokens=144_000),
    setting="a decode worker that is full with a batch of 128, light prompts as of ShareGPT there with their KV, "
    f"{STEADY:,} requests; half of the batch heavy (outputs of more than 512 tokens) against all light (at most 128), "
    "while it is full; memory of two A100; the control's steps take the same whatever the context",
    claims=(
        number(
            "throughput",
            "tokens a second less with half heavy",
            "16 %",
            0.16,
            neutral=0.0,
            control=Control("attention reads the context of each request", "flat throughput"),
        ),
        number(
            "latency",
            "time per token more with half heavy",
            "23 %",
            0.23,
            neutral=0.0,
            control=Control("attention reads the context of each request", "flat latency"),
        ),
    ),
    seconds=3,
)
def mixed_batch(on: Platform, seed: int) -> Figures:
    """Throughput and time per token of a full batch."""
    found: Figures = {}
    for name, read in (("", True), ("flat ", False)):
        light, half = (_full_batch(on, seed, mixed, read) for mixed in (False, True))
        found = {**found, f"{name}throughput": 1 - half / light, f"{name}latency": light / half - 1}
    return found


def _full_batch(on: Platform, seed: int, mixed: bool, context_is_read: bool) -> float:
    """Return tokens a second until the last request enters, of light outputs or as many tokens of heavy ones among
    them."""
    light, heavy = _at_once(seed, STEADY, "LPLD"), _at_once(seed, STEADY, "LPHD", HEAVY_IN_MOTIVATION)
    jobs, ahead = [], 0
    for one, other in zip(light.jobs, heavy.jobs, strict=True):
        chosen = other if mixed and ahead > 0 else one
        ahead += one.output_tokens if chosen is one else -other.output_tokens
        jobs.append(chosen)
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

    work, policy = replace(light, jobs=tuple(jobs)), _decodes(max_running=BATCH)
    Simulator(work, policy, RoundRobin(), spec.latency, workers=[spec], on_events=on_events).run()
    return last[1] / last[0] * 1e9


LIGHT_PROMPT, HEAVY_PROMPT, LIGHT_CONTEXT = 18, 512, 100
"""Tokens of section 2.2's prompts, and of a light decode's context."""


@row(
    id="28a",
    about="prompts beside prompts, and beside decodes",
    panel="figures 3 and 4",
    setting=f"a step's time with light prompts of {LIGHT_PROMPT} tokens, heavy ones of {HEAVY_PROMPT} and light "
    f"decodes at a context of {LIGHT_CONTEXT}, over that of the first alone",
    claims=(
        number("7 light", "a light prompt beside 7 light ones", "2 times", 2),
        number("63 light", "a light prompt beside 63 light ones", "8 times", 8),
        Printed("7 heavy", "a light prompt beside 7 heavy ones", "more than 10 times", 10, inf),
        number("heavy, 63 light", "a heavy prompt beside 63 light ones", "3 times", 3),
        number("decode", "a light decode beside a heavy prompt", "5 times", 5),
    ),
    note="the text counts no heavy prompts of figure 3b and no light ones of 3c: 7 and 63 are 3a's. Figures 4c and "
    "4d name no number of decodes",
    seeds=1,
    seconds=0.1,
    quick=True,
)
def interference(on: Platform, seed: int) -> Figures:
    """Return how many times as long steps take that others share."""
    light, heavy, step_ns = (LIGHT_PROMPT, 0), (HEAVY_PROMPT, 0), on.latency.step_ns
    alone, heavy_alone = step_ns([light], 0, 0), step_ns([heavy], 0, 0)
    return {
        "7 light": step_ns(8 * [light], 0, 0) / alone,
        "63 light": step_ns(64 * [light], 0, 0) / alone,
        "7 heavy": step_ns([light, *7 * [heavy]], 0, 0) / alone,
        "heavy, 63 light": step_ns([heavy, *63 * [light]], 0, 0) / heavy_alone,
        "decode": step_ns([heavy], 1, LIGHT_CONTEXT) / on.latency.decode_ns(1, LIGHT_CONTEXT),
    }


# --- decode admission -------------------------------------------------------------------------------------------------


MANY = 256
_RULES: dict[str, Reserve] = {"static": "predicted-printed", "dynamic": "first-finish"}
_OURS: dict[str, Reserve] = {"static, peaks": "predicted", "profile": "profile"}
_THRASH = "outputs grow beyond memory, and what was computed is computed again"


def _decode_latency(on: Platform, work: Workload, reserve: Reserve, predictor: Predictor, tokens: int | None) -> float:
    """Mean latency at one worker that decodes what another one prefilled in no time.

    A request that loses its memory is computed again at the worker's own speed.
    """
    decodes = WorkerSpec(PRESETS[on.model], tokens, role="decode")
    capacity = sum(job.request.prompt.tokens + job.request.max_output_tokens for job in work.jobs)
    there = WorkerSpec(_decode_only(on, 1).specs[0].latency, capacity, role="prefill")
    cluster = Cluster(workers=(there, decodes), link=KvLink(bytes_per_token=0))
    router = TetriInfer(pull="one")
    return _latency(simulate(work, _decodes(reserve), router, cluster=cluster, predictor=predictor))


@row(
    id="26",
    about="admission by predicted outputs",
    panel="figure 18, intra-decode scheduling",
    setting=f"a decode worker, {MANY} requests at once as of ShareGPT, prompts there with their KV; mean latency "
    "against greedy admission, with true lengths and with buckets of 200 tokens of which 74.9 % are right and the "
    "lower end counts; a request that loses its memory is computed again; the control has memory for all",
    claims=(
        *(
            number(
                f"{rule}, true lengths",
                f"latency less by reserve-{rule}, true lengths",
                f"{printed} %",
                printed / 100,
                neutral=0.0,
                control=Control(_THRASH, f"{rule}, memory for all"),
            )
            for rule, printed in (("dynamic", 12), ("static", 10))
        ),
        *(
            Printed(
                f"{rule}, 74.9 %",
                f"latency less by reserve-{rule}, 74.9 % of buckets right",
                "the same; within 3 %",
                -0.03,
                0.03,
                neutral=None,
            )
            for rule in ("dynamic", "static")
        ),
    ),
    note="the printed rules still let many requests run short: reserve-dynamic looks at the first end only, "
    "reserve-static at what others hold now. A rule that counts what comes (figure `profile, true lengths`) saves "
    "more; one that reserves all peaks (`static, peaks`) keeps so much memory idle that it loses",
    seconds=18,
)
def reserved_decodes(on: Platform, seed: int) -> Figures:
    """Return what each rule saves of the latency of greedy admission; of ours too, which are not judged."""
    work, found = _at_once(seed, MANY), dict[str, float]()
    rules, kv = _RULES | _OURS, on.kv_capacity_tokens
    for name, predictor, tokens in (
        ("true lengths", Oracle(), kv),
        ("74.9 %", _buckets(seed, "lower"), kv),
        ("memory for all", Oracle(), 2 * MANY * 1_024),
    ):
        greedy = _decode_latency(on, work, "optimistic", predictor, tokens)
        for rule, reserve in rules.items():
            found[f"{rule}, {name}"] = 1 - _decode_latency(on, work, reserve, predictor, tokens) / greedy
    upper = _buckets(seed)
    greedy = _decode_latency(on, work, "optimistic", upper, kv)
    for rule, reserve in _OURS.items():
        found[f"{rule}, 74.9 %, upper end"] = 1 - _decode_latency(on, work, reserve, upper, kv) / greedy
    return found


# --- the five classes -------------------------------------------------------------------------------------------------


BASELINE = FCFS(batching=EagerPrefill(max_batched_tokens=2_048, max_running=16, reserve="optimistic"))
"""vLLM as the paper has it, with batches of a fixed size."""
LINK, NVLINK = (KvLink(bytes_per_token=819_200, bytes_per_s=gb * 10**9) for gb in (25, 300))
"""OPT-13B's KV over 200 Gbit/s (TS-RoCE) and over 300 GB/s (TS-NVLink)."""
_CLASSES: tuple[tuple[str, str, str, int | None, int, int | None], ...] = (
    ("25a", "LPLD", "figure 11", 44, 40, None),
    ("25b", "LPHD", "figure 12", 97, 47, -38),
    ("25c", "HPLD", "figure 13", 9, 23, 43),
    ("25d", "HPHD", "figure 14", None, 19, 7),
    ("25e", "mixed", "figure 15", 85, 50, -21),
)
"""What is printed: time to the first token and latency in per cent less, resources in per cent more; None: a sign."""


def _class_claims(ttft: int | None, jct: int, resources: int | None) -> tuple[Printed, ...]:
    control = Control(_INTERFERES, "prompts alone")
    about = "time to first token over vLLM's"
    claims = [
        fewer("TTFT", about, "less", control)
        if ttft is None
        else number("TTFT", about, f"{ttft} % less", 1 - ttft / 100, control=control),
        number("JCT", "latency over vLLM's", f"{jct} % less", 1 - jct / 100),
    ]
    if resources is not None:
        printed = f"{abs(resources)} % {'less' if resources < 0 else 'more'}"
        claims.append(number("resources", "busy time of all workers over vLLM's", printed, 1 + resources / 100))
    return tuple(claims)


_LIGHT_OVER_NVLINK = (
    number("NVLink: TTFT", "time to first token over vLLM's, over NVLink", "44 % less", 0.56),
    number("NVLink: JCT", "latency over vLLM's, over NVLink", "40 % less", 0.6),
)
"""Of light prompts and outputs the text gives figures of both links."""
_INTERFERES = "outputs interfere with prompts"


_BUSY = (
    "a worker is busy here while it has requests, and vLLM's until its last batch of 16 ends, so the paper's extra use "
    "of heavy prompts does not show"
)
_SETTING = (
    f"{REQUESTS} requests of the class at once; TetriInfer with a prefill and a decode worker, buckets of 200 tokens "
    "with 74.9 % right, a link of 200 Gbit/s; vLLM with one worker and a batch of at most 16 (section 5.2.1), whole "
    "prompts first; time in which workers have requests; in the control no output is longer than a token"
)
_ARRIVALS = (
    "no arrivals are printed; with a limit of 256 instead of 16 vLLM's prompts hardly wait for places (figures "
    "`256: ...`). perf/$ is no claim: it does not follow from the printed latencies and resource use"
)


def _class_row(name: str, phases: str, figure: str, ttft: int | None, jct: int, resources: int | None) -> PanelRow:
    first, note = phases == "LPLD", _BUSY if resources is not None and resources > 0 else ""
    return row(
        id=name,
        about=f"{phases}: TetriInfer over vLLM",
        panel=f"{figure}, {phases}",
        setting=_SETTING if first else "as row 25a",
        claims=_class_claims(ttft, jct, resources) + (_LIGHT_OVER_NVLINK if first else ()),
        note=_ARRIVALS if first else note,
        seconds=2,
    )(partial(_class, phases))


def _class(phases: str, on: Platform, seed: int) -> Figures:
    """Return ratios of TetriInfer to vLLM with batches of 16, and with its usual limit."""
    work, kv = _at_once(seed, phases=phases), on.kv_capacity_tokens
    roles: tuple[Role, ...] = ("prefill", "decode")
    split = Cluster(workers=tuple(WorkerSpec(PRESETS[on.model], kv, role=role) for role in roles), link=LINK)
    found: dict[str, float] = {}
    tetri = _figures(simulate(work, "tetriinfer", "tetriinfer", cluster=split, predictor=_buckets(seed)))
    printed = simulate(
        work, "tetriinfer-printed", "tetriinfer-printed", cluster=split, predictor=_buckets(seed, "lower")
    )
    faster = attrs.evolve(split, link=NVLINK)
    nvlink = _figures(simulate(work, "tetriinfer", "tetriinfer", cluster=faster, predictor=_buckets(seed)))
    few = _figures(simulate(work, BASELINE, cluster=on.cluster))
    many = FCFS(batching=attrs.evolve(BASELINE.batching, max_running=256))
    usual = _figures(simulate(work, many, cluster=on.cluster))
    for name, value in tetri.items():
        found |= {name: value / few[name], f"256: {name}": value / usual[name]}
        found[f"NVLink: {name}"] = nvlink[name] / few[name]
        found[f"printed: {name}"] = _figures(printed)[name] / few[name]
    alone = _prompts_only(work)
    ours = _ttft(simulate(alone, "tetriinfer", "tetriinfer", cluster=split))
    found["prompts alone"] = ours / _ttft(simulate(alone, BASELINE, cluster=on.cluster))
    found["1 / (JCT x resources)"] = 1 / (found["JCT"] * found["resources"])
    return found


def _figures(result: Run) -> dict[str, float]:
    busy = sum(runs.measured(worker.busy_share, "a busy share") for worker in result.workers)
    return {"TTFT": _ttft(result), "JCT": _latency(result), "resources": busy * result.measures.makespan_us}


LPLD, LPHD, HPLD, HPHD, MIXED = (_class_row(*each) for each in _CLASSES)

_GPU = "it is a time of their code on their machines"
PANELS = (
    Panel("figure 2", "prompts by length: throughput of prefill and when it saturates", impossible=_GPU),
    Panel("figures 3 and 4", "prefill beside prefill, and beside decodes, by light and heavy mix", rows=("28a",)),
    Panel("figure 5", "heavy and light outputs in one batch", rows=("28",)),
    *(
        Panel(figure, f"time to first token, latency, resources and perf/$ of class {phases}", rows=(name,))
        for name, phases, figure, *_ in _CLASSES
    ),
    Panel("figure 16", "orders of prompts by batch size, and chunks against fixed batches", rows=("24", "25")),
    Panel("figure 17", "prefill beside the length predictor", impossible=_GPU),
    Panel("figure 18", "admission at decode by predicted outputs", rows=("26",)),
    Panel("figure 19", "which instance decodes", rows=("27",)),
    Panel("section 5.2.2, predictor", "accuracy by granularity, an input of rows 26, 27", impossible="trains a model"),
)
