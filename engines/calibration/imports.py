"""Profiles that others published as latency models, each read from the user's copy.

- `llmservingsim`: kernel tables (folder `profiler/perf/GPU/MODEL/VARIANT/tpN`, or files of one prefix).
- `vidur`: `data/profiling`: kernels of a layer in `compute`, all-reduces in `network`.
- `splitwise-sim`: `data/perf_model.csv`, whole steps by tokens of the batch.
- `distserve`: `simdistserve/estimators/profile_data/*.json`, lines of its engine or of vLLM.
- `aiconfigurator`: NVIDIA's installed package, whose tables it puts together itself; the path is its system's name.

All are under MIT or Apache-2.0.  What a profile leaves out is said in the model's source.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Literal

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.calibration.kernel_tables import grid, llmservingsim, risen, rising, rows, table_file
from fairsched.engines.calibration.performance_fit import Estimate, from_aiconfigurator
from fairsched.model.machine import (
    GPUS,
    GRAPH_SIZES,
    LINKS,
    MODELS,
    AllReduce,
    AttentionFormula,
    AttentionTable,
    DecodePiece,
    Gpu,
    Kernels,
    LatencyModel,
    ModelSizes,
    TimeTable,
    by_formula,
    check,
)
from fairsched.model.serialization import parse

Format = Literal["llmservingsim", "vidur", "splitwise-sim", "distserve", "aiconfigurator"]


@attrs.frozen
class Machine:
    """What a profile is of: a model by its name, GPUs of a kind, and KV tokens where neither says how many."""

    model: str
    gpu: str
    gpus: int = 1
    kv_capacity_tokens: int | None = None

    @property
    def kind(self) -> Gpu:
        """The kind of GPU; raises `ValueError` for one that is not known."""
        if self.gpu not in GPUS:
            raise ValueError(f"gpu {self.gpu} is not known: known are {', '.join(GPUS)}")
        return GPUS[self.gpu]

    @property
    def sizes(self) -> ModelSizes:
        """The model's sizes; raises `ValueError` for one that is not known, and where the GPUs do not divide it."""
        if self.model not in MODELS:
            raise ValueError(f"model {self.model} is not known: known are {', '.join(MODELS)}")
        MODELS[self.model].divided(self.gpus)
        return MODELS[self.model]

    @property
    def name(self) -> str:
        """The name of the latency model, before that of the format."""
        return f"{self.model}-{self.gpu}" + f"-tp{self.gpus}" * (self.gpus > 1)


def import_machine(format: Format, path: str, machine: Machine, estimate: Estimate | None = None) -> LatencyModel:
    """Return the latency model of a published profile; `estimate` is AIConfigurator's, where it is installed.

    Raises `ValueError` with file, row and field for what cannot be read, for a model or GPU that is not known, for one
    that the GPUs do not divide, and for a profile that is faster than the GPUs' data sheet; `OSError` for no file.
    """
    if format == "aiconfigurator":
        return _aiconfigurator(path, machine, estimate)
    latency = _READERS[format](path, machine)
    return latency if latency.deployment is None else check(latency)


def _of_kernels(machine: Machine, kernels: Kernels, format: str, said: str) -> LatencyModel:
    like = by_formula(machine.sizes, machine.kind, machine.gpus)
    capacity = machine.kv_capacity_tokens or like.kv_capacity_tokens
    return LatencyModel.of_kernels(
        f"{machine.name}-{format}", said, kernels, capacity, gpus=machine.gpus, deployment=like.deployment
    )


# --- LLMServingSim ----------------------------------------------------------------------------------------------------


def _llmservingsim(path: str, machine: Machine) -> LatencyModel:
    """Tables of eager kernels without all-reduces, which the GPU's link adds."""
    sizes, prefix, experts = machine.sizes, Path(path), None
    reduce = None
    if machine.gpus > 1:
        message = LINKS[machine.kind.link].message(machine.gpus)
        reduce = AllReduce(2 * sizes.layers, 2 * sizes.hidden, message)
    skew = table_file(prefix, "skew_fit").exists()
    kernels = llmservingsim(prefix, sizes.layers, skew=skew, reduce=reduce, graph_sizes=GRAPH_SIZES)
    if sizes.experts:
        if machine.gpus > 1:
            raise ValueError(f"{path}: moe.csv has times of experts on one GPU, not of {sizes.name} on {machine.gpus}")
        experts = _experts(table_file(prefix, "moe"), sizes)
    kernels = replace(kernels, experts=experts)
    said = f"LLMServingSim's kernel tables {prefix.name} of {sizes.name}; all-reduces over {machine.kind.link}"
    return _of_kernels(machine, kernels, "llmservingsim", said)


def _experts(path: Path, sizes: ModelSizes) -> TimeTable:
    """Return the time of the experts of all layers by tokens, of which each takes as likely any of them."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for row in rows(path, "tokens", "activated_experts", "time_us"):
        found[int(row["tokens"])][int(row["activated_experts"])] = sizes.layers * row["time_us"]
    times = {}
    for tokens, by_experts in found.items():
        touched = sizes.experts * (1 - (1 - sizes.experts_used / sizes.experts) ** tokens)
        points = sorted(by_experts)
        times[tokens] = float(np.interp(touched, points, [by_experts[point] for point in points]))
    return rising(times)


# --- Vidur ------------------------------------------------------------------------------------------------------------

_MLP = (
    *("attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)


def _timed(*kernels: str) -> list[str]:
    return [f"time_stats.{kernel}.median" for kernel in kernels]


def _vidur(path: str, machine: Machine) -> LatencyModel:
    """Medians of a layer's kernels; neither head nor sampler nor the CPU's time."""
    sizes, folder = machine.sizes, Path(path)
    gpu = machine.gpu.partition("-")[0]
    below = folder / "compute" / gpu / sizes.repository
    below = below if below.is_dir() else folder
    layers, dense, seen = sizes.layers, defaultdict[int, list[float]](list), set[int]()
    timed = _timed(*_MLP)
    for row in rows(below / "mlp.csv", "num_tokens", "num_tensor_parallel_workers", "n_head", *timed):
        seen.add(int(row["num_tensor_parallel_workers"]))
        if row["num_tensor_parallel_workers"] == machine.gpus and row["n_head"] == sizes.heads:
            dense[int(row["num_tokens"])].append(1_000 * layers * sum(row[name] for name in timed))
    if not dense:
        raise ValueError(
            f"{below / 'mlp.csv'}: no row of {sizes.heads} heads on {machine.gpus} GPUs, of {sorted(seen)}"
        )
    decodes: dict[int, Any] = {}
    prompts: dict[int, Any] = {}
    shape = "batch_size", "prefill_chunk_size", "kv_cache_size", "num_tensor_parallel_workers", "n_q_head"
    pair = ("attn_prefill", "attn_decode")
    for row in rows(below / "attention.csv", *shape, names=(*_timed(*pair), "is_prefill")):
        if (row["num_tensor_parallel_workers"], row["n_q_head"]) != (machine.gpus, sizes.heads):
            continue
        prefill = row["is_prefill"] == "True"
        tree, first = (prompts, "prefill_chunk_size") if prefill else (decodes, "batch_size")
        field = _timed(*pair)[not prefill]
        at = tree.setdefault(int(row[first]), {})
        at[int(row["kv_cache_size"])] = 1_000 * layers * _number(below / "attention.csv", row, field)
    if not (decodes and prompts):
        raise ValueError(f"{below / 'attention.csv'}: no row of {'prompts' if decodes else 'decodes'}")
    reduce = None
    if machine.gpus > 1:
        reduce = AllReduce(2 * layers, 2 * sizes.hidden, _all_reduce(folder, gpu, machine.gpus))
    attention = AttentionTable(grid(decodes), grid(prompts), apart=True)
    kernels = Kernels(
        rising({n: median(each) for n, each in dense.items()}), attention, TimeTable((0,), (0,)), None, reduce
    )
    said = f"Vidur's profile of {sizes.repository} on {gpu}: medians of kernels, without head, sampler and CPU"
    return _of_kernels(machine, kernels, "vidur", said)


def _all_reduce(folder: Path, gpu: str, gpus: int) -> TimeTable:
    path, found = folder / "network" / f"{gpu}_dgx" / "all_reduce.csv", defaultdict[int, list[float]](list)
    path = path if path.exists() else folder / "all_reduce.csv"
    (field,) = _timed("all_reduce")
    for row in rows(path, "num_workers", "size", field):
        if row["num_workers"] == gpus:
            found[int(row["size"])].append(1_000 * row[field])
    if not found:
        raise ValueError(f"{path}: no row of num_workers {gpus}")
    return rising({size: median(each) for size, each in found.items()})


def _number(path: Path, row: dict[str, Any], field: str) -> float:
    try:
        found = float(row[field])
    except ValueError:
        found = math.nan
    if not found >= 0:
        raise ValueError(f"{path}, row {row['row']}: {field} is {row[field]!r}, not a time")
    return found


# --- splitwise-sim ----------------------------------------------------------------------------------------------------

_SPLITWISE = {"llama-2-70b": "llama2-70b", "bloom-176b": "bloom-176b"}
_SPLITWISE_GPUS = {"a100": "a100-80gb", "h100": "h100-80gb", "h100-capped": "h100-80gb-pcap"}


def _splitwise(path: str, machine: Machine) -> LatencyModel:
    """Medians of steps by the tokens of a batch: prompts as a table, decodes as a line in their context."""
    file = Path(path) / "perf_model.csv" if Path(path).is_dir() else Path(path)
    named, kind = _SPLITWISE.get(machine.model, machine.model), _SPLITWISE_GPUS.get(machine.kind.name, machine.gpu)
    prompts, tokens = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    shape, there = ("prompt_size", "batch_size", "tensor_parallel", "prompt_time", "token_time"), set[str]()
    for row in rows(file, *shape, names=("model", "hardware")):
        there.add(f"{row['model']} on {row['tensor_parallel']:g} x {row['hardware']}")
        if (row["model"], row["hardware"], row["tensor_parallel"]) == (named, kind, machine.gpus):
            batch = int(row["batch_size"] * row["prompt_size"])
            prompts[batch].append(row["prompt_time"])
            tokens[batch].append(row["token_time"])
    if len(prompts) < 2:
        raise ValueError(f"{file}: no rows of {named} on {machine.gpus} x {kind}, but of {', '.join(sorted(there))}")
    times_us = {n: 1_000 * median(each) for n, each in prompts.items()}
    risen(file, f"prompts of {named} on {machine.gpus:g} x {kind} of prompt_size x batch_size", times_us)
    slope, base = np.polyfit(list(tokens), [median(each) for each in tokens.values()], 1)
    times = rising(times_us)
    base_ns, context_ps = min(round(1_000_000 * base), times.at(0)), max(round(1e9 * slope), 0)
    beyond = TimeTable(times.points, tuple(ns - base_ns for ns in times.values if isinstance(ns, int)))
    attention = AttentionFormula(0, context_ps, beyond)
    kernels = Kernels(TimeTable((0,), (base_ns,)), attention, TimeTable((0,), (0,)))
    said = f"splitwise-sim's {file.name}, medians of {named} on {machine.gpus} x {kind}: prompts as a table of tokens, "
    said += "decodes as a line in their context"
    if machine.model in MODELS:
        return _of_kernels(machine, kernels, "splitwise-sim", said)
    return LatencyModel.of_kernels(
        f"{machine.name}-splitwise-sim", said, kernels, _capacity(machine), gpus=machine.gpus
    )


def _capacity(machine: Machine) -> int:
    if machine.kv_capacity_tokens is None:
        raise ValueError(f"model {machine.model} is not known, so its KV is to be given in tokens")
    return machine.kv_capacity_tokens


# --- DistServe --------------------------------------------------------------------------------------------------------


def _distserve(path: str, machine: Machine) -> LatencyModel:
    """Milliseconds: a + b n + c n^2 for a prompt, a + b context + c requests for decodes of few and of many."""
    try:
        profiles = parse(Path(path).read_bytes(), "JSON")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    named = next((name for name in profiles if name.rpartition("/")[2] == machine.model), None)
    if named is None:
        raise ValueError(f"{path}: no profile of {machine.model}, but of {', '.join(profiles)}")
    found = profiles[named].get(str(machine.gpus))
    if found is None:
        raise ValueError(f"{path}, {named}: no tensor parallelism {machine.gpus}, but {', '.join(profiles[named])}")

    def lines(field: str, *units: int) -> list[int]:
        given = found.get(field)
        if not isinstance(given, list) or len(given) != 3:
            raise ValueError(f"{path}, {named}, {machine.gpus}: {field} is {given!r}, not three numbers")
        for each in given:
            if not isinstance(each, int | float) or not each >= 0:
                raise ValueError(f"{path}, {named}, {machine.gpus}: {field} has {each!r}, and no time is negative")
        return [round(each * unit) for each, unit in zip(given, units, strict=True)]

    prefill = lines("prefill", 10**6, 10**6, 10**9)
    few, many = (lines(f"decoding_{size}bs", 10**6, 10**6, 10**6) for size in ("small", "large"))
    threshold = found.get("decoding_large_small_bs_threshold")
    if not isinstance(threshold, int) or threshold < 2:
        raise ValueError(f"{path}, {named}: decoding_large_small_bs_threshold is {threshold!r}, not 2 or more requests")
    said = f"DistServe's {Path(path).name} of {named}, tensor parallel {machine.gpus}: lines of prompts and of decodes"
    pieces = DecodePiece(1, *few), DecodePiece(threshold, *many)
    name = f"{machine.name}-{Path(path).stem}"
    constant, token, attention = prefill
    return LatencyModel(name, said, constant, token, attention, pieces, _capacity(machine), machine.gpus)


# --- AIConfigurator ---------------------------------------------------------------------------------------------------


def _aiconfigurator(path: str, machine: Machine, estimate: Estimate | None) -> LatencyModel:
    """Lines through what the installed package says of prompts and batches on a system of its own name."""
    if estimate is None:
        raise ValueError("aiconfigurator is not installed: pip install aiconfigurator")
    capacity = machine.kv_capacity_tokens or by_formula(machine.sizes, machine.kind, machine.gpus).kv_capacity_tokens
    model, gpus = machine.sizes.repository, machine.gpus
    return from_aiconfigurator(estimate, model, path, kv_capacity_tokens=capacity, tensor_parallel=gpus)[0]


_READERS: dict[str, Callable[[str, Machine], LatencyModel]] = {
    "llmservingsim": _llmservingsim,
    "vidur": _vidur,
    "splitwise-sim": _splitwise,
    "distserve": _distserve,
}
