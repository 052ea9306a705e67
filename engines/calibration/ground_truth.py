"""The simulator held against GPUs that others measured, beside what other simulators predict of the same experiments.

A folder of the user's holds the published files (`read_experiments` names them); nothing of them is kept here but the
facts of the machines below.  Each experiment is simulated once, whole, by vLLM's scheduler in simulated time.

- *Runs request by request*: each request's tokens, arrival, first and last token.  Step times are the machine's kernel
  tables, and at most three constants of the machine, found from that run: `TABLED`.
- *Loads of stages*: percentiles of what requests at a constant rate met.  Step times are those of machines by formula
  (`fairsched.model.machine.by_formula`), whose shares were fitted to the loads named in `FITTED_LOADS`; all others are
  predicted.

TTFT, latency and throughput are as the clients of the experiments measured them, TPOT is (latency - TTFT) / (output
tokens - 1), and all percentiles are interpolated between samples.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import attrs
import msgspec
import numpy as np

from fairsched.engines.calibration.kernel_tables import llmservingsim
from fairsched.engines.calibration.kernel_tables import rows as csv_rows
from fairsched.engines.simulation import VllmOptions, simulate_vllm
from fairsched.model.machine import GPUS, GRAPH_SIZES, LINKS, MODELS, AllReduce, LatencyModel, by_formula
from fairsched.model.request import Client, Job, Prompt, Request, Workload

STATISTICS = ("mean", "p50", "p90", "p99")
FIGURES = ("ttft", "tpot", "latency")
BLOCK = 16

FITTED_LOADS = ("llama-2-7b-tp1-codegen", "llama-2-70b-hf-tp4-reasoning", "mixtral-8x7b-v0-1-tp2-reasoning")
"""The loads to which the shares of machines by formula were fitted: three of eleven."""

H100_BYTES = 81_559 << 20
"""Memory of an H100 SXM, by nvidia-smi; vLLM takes 90 % of it."""
WORKING_BYTES = 1_500_000_000
"""Memory of a GPU for activations in vLLM's profile run: an assumption; of consequence in overload only."""
CLIENT_NS = 6_200_000
"""What the client of the loads sees later than the engine's core: HTTP, tokenizing and detokenizing.  From the fitted
loads."""
TIMEOUT_NS = 300 * 10**9
"""When the client of the loads gives up."""

Measured = Mapping[str, float]
"""Figures by name: seconds of `ttft.p50` and so on, `throughput` in requests a second, and `lost`, the share of
requests that timed out."""


@attrs.frozen
class TabledMachine:
    """A machine of kernel tables, and its constants: what the first step's kernels take to load, and all-reduces."""

    model: str
    tables: str
    layers: int
    num_gpu_blocks: int | None
    skew: bool
    reduce: AllReduce | None
    first_step_ns: int
    constants: str


TABLED = {
    "rtx4090-llama-3.1-8b": TabledMachine(
        "Llama-3.1-8B", "rtx4090-llama-3.1-8b", 32, None, False, None, 370_000_000, "0.37 s to load kernels"
    ),
    "rtxpro6000-qwen3-32b": TabledMachine(
        "Qwen3-32B",
        "rtxpro6000-qwen3-32b-tp2",
        64,
        100_000,
        True,
        AllReduce(2 * 64, 2 * 5120, LINKS["pcie"].message(2)),
        60_000_000,
        "0.06 s to load kernels, 37 us an all-reduce, 16 GB/s",
    ),
}
"""Machines of the runs request by request.  The RTX 4090's tables switch their skew correction off; the RTX PRO 6000
have more memory than 128 requests of Qwen3-32B fill."""

_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
}


@attrs.frozen
class Stage:
    """A part of an experiment: its first request and the one after its last, and what was measured of them."""

    name: str
    start: int
    end: int
    measured: Measured


@attrs.frozen
class Experiment:
    """What ran on real GPUs, ready to be simulated; `fitted` says what of it was used to find constants, if anything.

    `published` is what other simulators predict of it: by simulator, its figures and what its authors say was measured.
    """

    name: str
    about: str
    fitted: str
    workload: Workload
    latency: LatencyModel
    options: VllmOptions
    stages: tuple[Stage, ...]
    first_step_ns: int = 0
    client_ns: int = 0
    published: Mapping[str, Mapping[str, tuple[float, float]]] = attrs.field(factory=dict)


@attrs.frozen
class ExperimentResult:
    """An experiment beside its simulation: by stage the figures, simulated seconds, and seconds of CPU."""

    experiment: Experiment
    simulated: tuple[Measured, ...]
    simulated_s: float
    cpu_s: float

    def errors(self, stage: int) -> dict[str, float]:
        """Return simulated over measured less 1 by figure, and of `lost` the difference."""
        measured, simulated = self.experiment.stages[stage].measured, self.simulated[stage]
        return {
            name: simulated[name] - real if name == "lost" else simulated[name] / real - 1
            for name, real in measured.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment's entry in the document of `fairsched validate --truth`."""
        of = self.experiment
        return {
            "name": of.name,
            "about": of.about,
            "machine": of.latency.name,
            "fitted": of.fitted,
            "simulated_s": self.simulated_s,
            "cpu_s": self.cpu_s,
            "stages": [
                {"name": stage.name, "figures": {key: [real, said[key]] for key, real in stage.measured.items()}}
                for stage, said in zip(of.stages, self.simulated, strict=True)
            ],
            "published": of.published,
        }


def hold(experiment: Experiment) -> ExperimentResult:
    """Simulate an experiment, and return it beside what was measured."""
    started = time.process_time()
    run = simulate_vllm(
        experiment.workload, experiment.latency, experiment.options, first_step_ns=experiment.first_step_ns
    )
    cpu_s, table = time.process_time() - started, run.requests
    arrival, first, end, output = (table[name] for name in ("arrival_ns", "first_token_ns", "end_ns", "output_tokens"))
    finished = table["outcome"] == 1
    first, end = first + experiment.client_ns, end + experiment.client_ns
    simulated = []
    for stage in experiment.stages:
        of = np.zeros(len(finished), dtype=bool)
        of[stage.start : stage.end] = True
        over = of & finished
        said = figures(arrival[over] / 1e9, first[over] / 1e9, end[over] / 1e9, output[over])
        seconds = (int(end[of].max()) - int(arrival[of].min())) / 1e9
        said |= {"throughput": int(over.sum()) / seconds, "lost": 1 - int(over.sum()) / int(of.sum())}
        simulated.append(said)
    return ExperimentResult(experiment, tuple(simulated), (int(end.max()) - int(arrival.min())) / 1e9, cpu_s)


def figures(arrival: Any, first: Any, end: Any, output: Any) -> dict[str, float]:
    """Return means and percentiles of TTFT, TPOT and latency, from columns of seconds and tokens of output."""
    several = output > 1
    samples = first - arrival, ((end - first)[several] / (output[several] - 1)), end - arrival
    return {
        f"{name}.{statistic}": float(of.mean() if statistic == "mean" else np.percentile(of, int(statistic[1:])))
        for name, of in zip(FIGURES, samples, strict=True)
        if len(of)
        for statistic in STATISTICS
    }


# --- files ----------------------------------------------------------------------------------------------------------


def read_experiments(folder: Path) -> list[Experiment]:
    """Return the experiments of a folder: for each machine of `TABLED` the files `NAME-requests.jsonl`,
    `NAME-blocks.jsonl`, `NAME-meta.json`, its tables in `kernels/`, and perhaps `NAME-llmservingsim.txt`; and the loads
    of `vllm-h100.json` with `simulators.csv`.  What is not there is left out.

    Raises `ValueError` for a folder without any, and for what cannot be read, with file, row and field.
    """
    found = [
        tabled_run(folder, name, machine) for name, machine in TABLED.items() if (folder / f"{name}-meta.json").exists()
    ]
    loads = folder / "vllm-h100.json"
    if loads.exists():
        simulators = folder / "simulators.csv"
        found += h100_loads(loads, list(published(simulators)) if simulators.exists() else [])
    if not found:
        raise ValueError(f"{folder} has no file of an experiment, as vllm-h100.json")
    return found


class _Load(msgspec.Struct):
    stages: list[dict[str, float]]
    shared_prefix: dict[str, Any]


class _H100(msgspec.Struct):
    id: str
    hardware: str
    engine: str
    model: str
    tensor_parallelism: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    load: _Load
    measured: dict[str, dict[str, Any]]


class _Settings(msgspec.Struct):
    vllm_version: str
    engine_kwargs: dict[str, Any]
    kv_cache: dict[str, Any] = {}
    hardware: dict[str, Any] = {}


class _Request(msgspec.Struct):
    request_id: str
    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float
    first_token_ts: float
    last_token_ts: float


class _Blocks(msgspec.Struct):
    request: str
    prompt_tokens: int
    blocks_of_16: list[int]


T = TypeVar("T")


def _decoded(content: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{where}: {error}") from None


def _lines(path: Path, kind: type[T]) -> list[T]:
    lines = path.read_bytes().splitlines()
    return [_decoded(line, kind, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line]


def tabled_run(folder: Path, name: str, machine: TabledMachine) -> Experiment:
    """Return a run request by request, as LLMServingSim's `bench` records it.

    A prompt's blocks are its 16s of tokens by number: equal numbers are equal content.  Arrivals are on the wall clock
    and all else on a monotonic one: they are aligned where a request is queued soonest after it came.  `queued_ts` is
    stamped between steps, so that a TTFT from it would be too small.
    """
    settings = _decoded((folder / f"{name}-meta.json").read_bytes(), _Settings, str(folder / f"{name}-meta.json"))
    path = folder / f"{name}-requests.jsonl"
    requests = sorted(_lines(path, _Request), key=lambda each: each.arrival_time)
    blocks = {each.request: each for each in _lines(folder / f"{name}-blocks.jsonl", _Blocks)}
    if not requests:
        raise ValueError(f"{path}: there are no requests")
    start = requests[0].arrival_time
    ahead = min(each.queued_ts - each.arrival_time for each in requests) + start
    jobs = []
    for i, each in enumerate(requests):
        of = blocks.get(each.request_id)
        if of is None or of.prompt_tokens != each.input_toks:
            raise ValueError(f"{path}: {each.request_id} has {each.input_toks} tokens, and no such blocks are known")
        prompt = Prompt.from_keys(of.blocks_of_16, block_tokens=BLOCK, tokens=each.input_toks)
        arrival_ns = round((each.arrival_time - start) * 1e9)
        jobs.append(Job(Request(i, 0, arrival_ns, prompt, each.output_toks), each.output_toks))
    arrival, first, end = (
        np.array(column)
        for column in zip(
            *(
                (each.arrival_time - start, each.first_token_ts - ahead, each.last_token_ts - ahead)
                for each in requests
            ),
            strict=True,
        )
    )
    measured = figures(arrival, first, end, np.array([each.output_toks for each in requests]))
    measured["throughput"] = len(requests) / float(end.max())
    kernels = llmservingsim(
        folder / "kernels" / machine.tables,
        machine.layers,
        skew=machine.skew,
        reduce=machine.reduce,
        graph_sizes=GRAPH_SIZES,
    )
    num_gpu_blocks = settings.kv_cache.get("num_gpu_blocks") or machine.num_gpu_blocks
    if num_gpu_blocks is None:
        raise ValueError(f"{folder / f'{name}-meta.json'}: kv_cache has no num_gpu_blocks")
    limits = {key: settings.engine_kwargs[key] for key in ("max_num_seqs", "max_num_batched_tokens")}
    device = settings.hardware.get("device_name") or name.partition("-")[0]
    summary = folder / f"{name}-llmservingsim.txt"
    return Experiment(
        name,
        f"{machine.model}, {settings.engine_kwargs.get('tensor_parallel_size', 1)} x {device}, "
        f"vLLM {settings.vllm_version}, {len(requests)} requests of ShareGPT at 10 a second",
        machine.constants,
        Workload(name, jobs, (Client(0, "all"),)),
        LatencyModel.of_kernels(name, "LLMServingSim's kernel tables", kernels, num_gpu_blocks * BLOCK),
        VllmOptions(num_gpu_blocks, release="0.19", **limits),
        (Stage("all", 0, len(jobs), measured),),
        machine.first_step_ns,
        published={"LLMServingSim": _summary(summary)} if summary.exists() else {},
    )


def _summary(path: Path) -> dict[str, tuple[float, float]]:
    """Return predicted and measured seconds by figure of LLMServingSim's comparison, a table in text."""
    names = {"Mean": "mean", "Median": "p50", "P90": "p90", "P99": "p99"}
    found = {}
    for words in map(str.split, path.read_text().splitlines()):
        if len(words) > 3 and words[0].lower() in FIGURES and words[1] in names:
            found[f"{words[0].lower()}.{names[words[1]]}"] = float(words[3]) / 1000, float(words[2]) / 1000
    return found


def h100_loads(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[Experiment]:
    """Return the loads of vLLM on H100: rates in stages, of users in groups that share a system prompt.

    What their tool calls a constant rate are exponential gaps, stretched so that they fill a stage (inference-perf,
    `loadgen/load_timer.py`); these are drawn here, since no file has them.
    All prompts come again and again, so that they are cached but for their last block; each output has as many tokens
    as the load asks for.  `tpot_s` and `output_tokens` of the file are of decoded text that was counted anew, and half
    of the truth: TPOT is (latency - TTFT) / (tokens - 1), of which only the mean is known.
    """
    loads = _decoded(path.read_bytes(), list[_H100], str(path))
    for each in loads:
        if each.model not in _MODELS:
            raise ValueError(f"{path}: {each.id}: model is {each.model}, of which no sizes are known")
    return [_h100(each, rows) for each in loads]


def _h100(of: _H100, rows: Sequence[Mapping[str, Any]]) -> Experiment:
    model, gpus, load = MODELS[_MODELS[of.model]], of.tensor_parallelism, of.load.shared_prefix
    output, groups = load["output_len"], load["num_unique_system_prompts"]
    users, shared = groups * load["num_users_per_system_prompt"], load["system_prompt_len"] // BLOCK
    starts = [0, *accumulate(round(stage["rate"] * stage["duration"]) for stage in of.load.stages)]
    stages, jobs = [], list[Job]()
    prompts = _prompts(next(iter(of.measured.values()))["prompt_tokens"], users, groups, shared)
    at_s, drawn = 0.0, np.random.default_rng(0)
    for i, (stage, (name, measured)) in enumerate(zip(of.load.stages, of.measured.items(), strict=True)):
        gaps = drawn.exponential(size=starts[i + 1] - starts[i])
        arrivals = at_s + stage["duration"] * gaps.cumsum() / gaps.sum()
        for k, arrival_ns in enumerate((1e9 * arrivals).round().astype(int).tolist(), starts[i]):
            request = Request(k, 0, arrival_ns, prompts[k % users], output)
            jobs.append(Job(request, output, cancel_after_ns=TIMEOUT_NS))
        at_s += stage["duration"]
        stages.append(
            Stage(f"{name}: {stage['rate']:g} a second", starts[i], starts[i + 1], _of_stage(measured, output))
        )
    others = _same(of, rows)
    if others:
        known = {key: real for key, (_, real) in next(iter(others.values())).items()}
        known["tpot.mean"] = (known["latency.mean"] - known["ttft.mean"]) / (output - 1)
        stages.append(Stage("all stages", 0, len(jobs), known))
    weights = 2 * (model.layer_parameters + 2 * model.head_parameters)
    room = gpus * (H100_BYTES * 9 // 10 - WORKING_BYTES) - weights
    return Experiment(
        of.id,
        f"{of.model}, {gpus} x {of.hardware}, {of.engine}",
        "shares of machines by formula" if of.id in FITTED_LOADS else "",
        Workload(of.id, jobs, (Client(0, "all"),)),
        by_formula(model, GPUS["h100"], gpus),
        # vLLM before 0.17 admits a request whose first chunk fits.
        VllmOptions(
            room // (BLOCK * model.kv_token_bytes),
            max_num_batched_tokens=of.max_num_batched_tokens,
            max_num_seqs=of.max_num_seqs,
            scheduler_reserve_full_isl=False,
            release="0.19",
        ),
        tuple(stages),
        client_ns=CLIENT_NS,
        published=others,
    )


def _prompts(tokens: Mapping[str, float], users: int, groups: int, shared: int) -> list[Prompt]:
    """Return a prompt for each user, of lengths with the measured percentiles; groups share their first blocks."""
    known = {f"p{percent}": percent for percent in (1, 5, 10, 25, 75, 90, 95, 99)} | {"median": 50, "max": 100}
    percents, measured = zip(*sorted((percent, tokens[name]) for name, percent in known.items()), strict=True)
    at = [100 * (i + 0.5) / users for i in range(users)]
    lengths = np.interp(at, percents, measured).round().astype(int).tolist()
    made = []
    for user in range(users):
        length, group, first = lengths[user], 1000 * (user % groups), 1000 * (groups + user)
        keys = [*range(group, group + shared), *range(first, first + length // BLOCK - shared)]
        made.append(Prompt.from_keys(keys, block_tokens=BLOCK, tokens=length))
    return made


def _of_stage(measured: Mapping[str, Any], output: int) -> Measured:
    ttft, latency = measured["ttft_s"], measured["latency_s"]
    found = {"tpot.mean": (latency["mean"] - ttft["mean"]) / (output - 1)}
    for name, of in (("ttft", ttft), ("latency", latency)):
        found |= {f"{name}.{statistic}": of["median" if statistic == "p50" else statistic] for statistic in STATISTICS}
    return found | {
        "throughput": measured["throughput"]["requests_per_sec"],
        "lost": measured["failed"] / measured["requests"],
    }


def published(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what simulators predict, from a table of `simulator,experiment,metric,predicted_ms,measured_ms`."""
    yield from csv_rows(path, "predicted_ms", "measured_ms", names=("simulator", "experiment", "model", "metric"))


def _same(of: _H100, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return, by simulator, what was predicted of this experiment: rows of the same model whose measured means of
    latency and TTFT, of all stages together, are this one's."""
    served = [stage for stage in of.measured.values() if stage["succeeded"]]
    weights = [stage["succeeded"] for stage in served]
    means_ms = {
        metric: 1000 * np.average([each[key]["mean"] for each in served], weights=weights)
        for metric, key in (("e2e_mean", "latency_s"), ("ttft_mean", "ttft_s"))
    }
    same = set.intersection(
        *(
            {
                (row["simulator"], row["experiment"])
                for row in rows
                if row["metric"] == metric and row["model"] == of.model and abs(row["measured_ms"] / mean_ms - 1) < 1e-3
            }
            for metric, mean_ms in means_ms.items()
        )
    )
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if (row["simulator"], row["experiment"]) in same:
            name = row["metric"].replace("e2e_", "latency.").replace("ttft_", "ttft.").replace("itl_", "tpot.")
            found.setdefault(row["simulator"], {})[name] = row["predicted_ms"] / 1000, row["measured_ms"] / 1000
    return found
