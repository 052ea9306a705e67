"""Planning a cluster: a worker size by Aladdin's equations, then the fewest workers of it that keep the targets.

Every size is judged by equations 5 and 6 (`policies.placement.sizing`) on lines fitted to its latency model.
Of the size with the most tokens a second and GPU, or a joule, ever more workers are simulated, with Aladdin's placement
and with other routers, until enough requests keep their targets.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, Literal

import attrs
import numpy as np

from fairsched.engines import simulation
from fairsched.engines.analysis import Measures, time
from fairsched.engines.calibration import PerformanceFit, asked, fit_performance, scaled_latency, with_slo
from fairsched.engines.capacity.sizing import Sizing, fewest, largest_need, measured
from fairsched.engines.workloads import WorkerSpec
from fairsched.model.machine import DEFAULT_PRESET, LatencyModel, step_nj
from fairsched.model.request import Slo, Workload
from fairsched.model.shown import short_repr
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.placement import Aladdin, Demand, Size, SizeFigures, size_figures
from fairsched.policies.registry import router_with

Per = Literal["gpu", "joule"]
"""What the tokens of a size are divided by: GPU seconds, or joules."""
BESIDE = ("join-shortest-queue", "power-of-two")
"""Routers that are compared with Aladdin unless others are named."""


@attrs.frozen
class WorkerSize:
    """A worker that may be bought: its name, what it is, and how many GPUs it has; `assumed` where nothing says that
    and it is counted as one."""

    name: str
    spec: WorkerSpec
    gpus: int
    assumed: bool = False


@attrs.frozen
class SizeOption:
    """A size with Aladdin's lines, and what equation 6 says of it (None: it keeps the targets of no request)."""

    size: WorkerSize
    fit: PerformanceFit
    figures: SizeFigures | None

    def tokens(self, per: Per) -> float:
        """Return the output tokens a second and GPU, or a joule that a worker draws at that rate; 0 if the size keeps
        no target.  Raises `ValueError` for a joule where the GPUs are not known."""
        if self.figures is None or per == "gpu":
            return 0.0 if self.figures is None else float(self.figures.tokens_per_s)
        tokens = float(self.figures.tokens_per_s) * self.size.gpus
        drawn_nj = step_nj(self.size.spec.latency, np.array([round(tokens)]), np.array([10**9]))
        return tokens * 1e9 / int(drawn_nj[0])


@attrs.frozen
class CapacityPlan:
    """The chosen size, and for Aladdin and every other router the fewest workers of it that keep the targets."""

    __repr__ = short_repr

    workload: Workload
    slo: Slo
    attainment: float
    predictor: simulation.Predictor
    policy: str
    batching: str
    workers_max: int
    per: Per
    options: tuple[SizeOption, ...]
    chosen: SizeOption
    placements: Mapping[str, Sizing]

    @property
    def workers(self) -> int | None:
        """The fewest workers under Aladdin's placement; None: not with as many as were allowed."""
        return self.placements["aladdin"].workers

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        assumed = [option.size.name for option in self.options if option.size.assumed]
        return tuple(
            f"{name} does not say how many GPUs a worker has, so it counts as one; {name}:GPUS says it."
            for name in assumed
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fairsched plan --json`."""
        return {
            "workload": self.workload.name,
            "requests": len(self.workload.jobs),
            "slo": {"ttft_us": (self.slo.ttft_ns or 0) / 1e3, "tpot_us": (self.slo.tpot_ns or 0) / 1e3},
            "attainment": self.attainment,
            "predictor": self.predictor.title,
            "per": self.per,
            "size": self.chosen.size.name,
            "gpus_per_worker": self.chosen.size.gpus,
            "workers": self.workers,
            "gpus": None if self.workers is None else self.workers * self.chosen.size.gpus,
            "notes": list(self.notes),
            "sizes": [
                {
                    "name": option.size.name,
                    "gpus": option.size.gpus,
                    "tokens_per_s_per_gpu": None if option.figures is None else float(option.figures.tokens_per_s),
                    **({"tokens_per_joule": option.tokens("joule")} if self.per == "joule" else {}),
                    "lines": attrs.asdict(option.fit.performance),
                    "errors": {"prefill": attrs.asdict(option.fit.prefill), "decode": attrs.asdict(option.fit.decode)},
                }
                for option in self.options
            ],
            "placements": {
                name: {
                    "workers": sizing.workers,
                    "tried": {str(n): attrs.asdict(measures) for n, measures in sizing.tried.items()},
                }
                for name, sizing in self.placements.items()
            },
        }


def slo_text(slo: Slo) -> str:
    """Return both targets in a few words."""
    return f"ttft={time((slo.ttft_ns or 0) / 1e3)}, tpot={time((slo.tpot_ns or 0) / 1e3)}"


def worker_sizes(
    names: Sequence[str], *, scaled_to: Sequence[int] = (), kv_capacity_tokens: int | None = None
) -> list[WorkerSize]:
    """Return the sizes of latency models by name, `NAME` or `NAME:GPUS`, and of as many GPUs as `scaled_to` says.

    A worker has as many GPUs as its latency model says, unless `:GPUS` says so; a model that says nothing counts as one
    GPU (`WorkerSize.assumed`).  A scaled size was never timed: equation 5 gives its latency model from the sizes named.
    Raises `ValueError`.

    >>> [(size.name, size.gpus) for size in worker_sizes(["opt-13b-a100", "llama-2-70b-h100"], scaled_to=[2])]
    [('opt-13b-a100', 1), ('llama-2-70b-h100', 8), ('2 GPUs by equation 5', 2)]
    """
    sizes = [_size(text, kv_capacity_tokens) for text in names]
    if not scaled_to:
        return sizes
    timed = {size.gpus: size.spec.latency for size in sizes}
    if len(timed) < len(sizes) or len(timed) < 2:
        raise ValueError(
            "--scaled-to goes by two or more sizes in --latency-model, each with another number of GPUs, not by "
            + ", ".join(f"{size.name} ({size.gpus})" for size in sizes)
        )
    for gpus in scaled_to:
        if gpus in timed:
            raise ValueError(f"--scaled-to {gpus}: {timed[gpus].name} has {gpus} GPUs, and was timed")
        latency = scaled_latency(timed, gpus)
        sizes.append(WorkerSize(latency.name, WorkerSpec(latency, kv_capacity_tokens), gpus))
    return sizes


def _size(text: str, kv_capacity_tokens: int | None) -> WorkerSize:
    name, colon, gpus = text.rpartition(":")
    if not colon or not gpus.isdecimal():
        name, gpus = text, ""
    latency = simulation.latency_model(name)
    count = int(gpus) if gpus else latency.gpus or 1
    if count < 1:
        raise ValueError(f"--latency-model {text!r}: a worker has at least one GPU")
    return WorkerSize(name, WorkerSpec(latency, kv_capacity_tokens), count, not gpus and latency.gpus is None)


def plan(
    workload: Workload,
    slo: Slo,
    *,
    sizes: Sequence[WorkerSize] | None = None,
    attainment: float = 0.99,
    routers: Sequence[str] = BESIDE,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    predictor: simulation.Predictor | None = None,
    policy: str = "fcfs",
    batching: str = "eager-prefill",
    workers_max: int = 64,
    per: Per = "gpu",
    jobs: int = 1,
    ray: str | None = None,
    progress: simulation.Progress | None = None,
) -> CapacityPlan:
    """Return the worker size, and how many workers of it keep the targets for the share `attainment` of the requests.

    `slo` is the target of every request that names none.  `sizes` (default: the default preset) are judged, and the
    best, with the most tokens `per` GPU second or joule, is simulated under Aladdin and under each of `routers`, whose
    parameters `settings` sets by name.  Workers run `policy` with the batching rule `batching`; `predictor` (default:
    bucketed) predicts outputs.  `jobs` processes or the cores of a `ray` cluster try placements at the same time
    (`run_tasks` says what it raises).  Raises `ValueError` where no number of workers can keep the targets, or a name
    or a parameter is not there.

    >>> from fairsched.engines.workloads import generate
    >>> found = plan(generate("azure-chat", requests=20), Slo(ttft_ns=5 * 10**9, tpot_ns=10**9), routers=[])
    >>> found.workers
    1
    """
    named = {name: simulation.router_of(name) for name in dict.fromkeys(("aladdin", *routers))}
    given = settings or {}
    workload = with_slo(workload, slo)
    if not workload.jobs:
        raise ValueError("the workload has no requests")
    options = tuple(_option(size, workload, slo) for size in sizes or worker_sizes([DEFAULT_PRESET]))
    largest_need(workload, max(option.size.spec.capacity for option in options))
    serving = [(option.tokens(per), option) for option in options if option.figures is not None]
    if not serving:
        raise ValueError(
            f"no size keeps {slo_text(slo)} even for one request; a step that decodes one takes "
            + ", ".join(f"{time(o.size.spec.latency.decode_ns(1, 1) / 1e3)} on {o.size.name}" for o in options)
        )
    _, chosen = max(serving, key=lambda row: (row[0], -row[1].size.gpus))
    latency = chosen.size.spec.latency
    _check_prompts(workload, chosen.size, attainment)
    predictor = predictor or simulation.Bucketed()
    local = {"batching": batching, "reserve": "optimistic"}
    cluster = simulation.Cluster(latency, kv_capacity_tokens=chosen.size.spec.kv_capacity_tokens)
    runs = {
        name: attrs.evolve(
            simulation.RunSpec.of(policy, _fitted(router, workload, latency, slo, given.get(name, {})), params=local),
            predictor=predictor,
        )
        for name, router in named.items()
    }

    searches = [_Search(workload, run, cluster, attainment, workers_max) for run in runs.values()]
    names = list(runs)

    def heard(place: int, ended: int) -> None:
        if progress is not None:
            progress(names[place], ended, len(workload.jobs))

    found = dict(simulation.run_tasks(_Search.fewest, searches, jobs=jobs, ray=ray, title=_Search.title, heard=heard))
    # Each placement is shown with aladdin's number of workers, too.
    if (common := found[0].workers) is not None:
        lacking = [place for place, sizing in found.items() if common not in sizing.tried]
        asked = [attrs.evolve(searches[place], workers=common) for place in lacking]
        for nth, measures in simulation.run_tasks(_Search.with_workers, asked, jobs=jobs, ray=ray, title=_Search.title):
            sizing = found[lacking[nth]]
            tried = dict(sorted({**sizing.tried, common: measures}.items()))
            found[lacking[nth]] = attrs.evolve(sizing, tried=tried)
    placements = {name: found[place] for place, name in enumerate(names)}
    return CapacityPlan(
        workload, slo, attainment, predictor, policy, batching, workers_max, per, options, chosen, placements
    )


def _check_prompts(workload: Workload, size: WorkerSize, attainment: float) -> None:
    """Raise `ValueError` where too many prompts are late on a worker of their own, their shareable blocks cached."""
    late = []
    for request in (job.request for job in workload.jobs):
        prompt, target = request.prompt, None if request.slo is None else request.slo.ttft_ns
        cached = min(prompt.blocks * prompt.block_tokens, prompt.tokens - 1)
        least = size.spec.latency.step_ns([(prompt.tokens - cached, cached)], 0, 0)
        if target is not None and least > target:
            late.append(least)
    if len(workload.jobs) - len(late) < attainment * len(workload.jobs):
        raise ValueError(
            f"no number of workers is enough: alone on a worker of {size.name}, {len(late):,} of "
            f"{len(workload.jobs):,} requests have their first token later than their target, since a step that "
            f"computes one of these prompts takes {time(min(late) / 1e3)} or more"
        )


@attrs.frozen
class _Search:
    """A placement whose workers are counted; `workers` is one number of them that is asked for beside."""

    workload: Workload
    run: simulation.RunSpec
    cluster: simulation.Cluster
    attainment: float
    workers_max: int
    workers: int = 0

    @property
    def _measure(self) -> Callable[[int], Measures]:
        return measured(self.workload, self.run, self.cluster, lambda _, ended: simulation.tell(ended))

    def title(self) -> str:
        return self.run.router_title

    def fewest(self) -> Sizing:
        return fewest(self._measure, self.attainment, at_most=self.workers_max)

    def with_workers(self) -> Measures:
        return self._measure(self.workers)


def _option(size: WorkerSize, workload: Workload, slo: Slo) -> SizeOption:
    fit = fit_performance(asked(size.spec.latency))
    kv = max(round(mean(job.request.prompt.tokens + job.output_tokens / 2 for job in workload.jobs)), 1)
    if slo.tpot_ns is None:
        raise ValueError("a plan needs a target per output token (tpot)")
    figures = size_figures(Size(size.gpus, fit.performance, size.spec.capacity), Demand(kv, kv), slo.tpot_ns)
    return SizeOption(size, fit, figures)


def _fitted(
    router: AnyClusterPolicy, workload: Workload, latency: LatencyModel, slo: Slo, settings: Mapping[str, object]
) -> AnyClusterPolicy:
    """Return the router with its parameters; Aladdin and its variants with these targets, and lines that cover the
    longest prompt."""
    given = {name: str(value) for name, value in settings.items()}
    if not isinstance(router, Aladdin):
        return router_with(router, given)
    if slo.ttft_ns is None or slo.tpot_ns is None:
        raise ValueError("a plan needs a target to the first token (ttft) and one per output token (tpot)")
    longest = max(job.request.prompt.tokens for job in workload.jobs)
    router = attrs.evolve(router, ttft_us=slo.ttft_ns // 1_000, tpot_us=slo.tpot_ns // 1_000, prompt_tokens_max=longest)
    return router_with(router, given).fitted(latency)
