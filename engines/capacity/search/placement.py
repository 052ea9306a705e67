"""DistServe's placement: which workers compute prompts and which outputs, and how many of each for a rate.

Paper: "DistServe" (OSDI'24), section 4, Algorithms 1 and 2; the errors of print that are mended here have the numbers
of the policy cards.  Both choose the configuration with the most goodput a GPU and buy as many of it as the rate needs.
That does not buy the fewest GPUs, since the last one of a large configuration is hardly used.
"""

from collections.abc import Callable, Sequence
from math import ceil, inf

import attrs
from msgspec.structs import replace

from fairsched.engines.capacity.highest_rate import Goodput, SloTarget, goodput
from fairsched.engines.capacity.search.space import FleetPlan, FleetPool, likely_rate
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads import KvLink, WorkerSpec
from fairsched.model.machine import LatencyModel, pipelined
from fairsched.model.request import Job, Workload

Joint = Callable[[FleetPlan], Goodput]
"""Simulates a split fleet."""


@attrs.frozen
class Option:
    """A worker of a kind, or a pair of both phases, with the rate at which it keeps its targets."""

    name: str
    gpus: int
    rate: float

    @property
    def per_gpu(self) -> float:
        return self.rate / self.gpus


@attrs.frozen
class Bought:
    """An option, and how many of it."""

    option: Option
    count: int

    @property
    def gpus(self) -> int:
        return self.option.gpus * self.count


def best_per_gpu(options: Sequence[Option]) -> Option:
    """Return the option with the most goodput a GPU, the smaller one of equals.

    The printed algorithm compares the first option with an empty one, of 0 goodput on 0 GPUs (D7); here there is none.
    Raises `ValueError` where no option keeps its targets at any rate.
    """
    serving = [option for option in options if option.rate > 0]
    if not serving:
        names = ", ".join(option.name for option in options) or "none fits into memory"
        raise ValueError(f"no configuration keeps the targets at any rate: {names}")
    return max(serving, key=lambda option: (option.per_gpu, -option.gpus))


def replicated(options: Sequence[Option], rate: float) -> Bought:
    """Buy as Algorithms 1 and 2 do: as many of the best option a GPU as the rate needs."""
    best = best_per_gpu(options)
    return Bought(best, max(ceil(rate / best.rate), 1))


@attrs.frozen
class PhasePlan:
    """What a rate needs: workers for prompts and for outputs (of Algorithm 2: pairs of both), and what was weighed."""

    prefill: Bought
    decode: Bought
    weighed: tuple[tuple[Option, ...], tuple[Option, ...]]

    @property
    def gpus(self) -> int:
        """GPUs in all; of pairs once."""
        return self.prefill.gpus + (self.decode.gpus if self.decode is not self.prefill else 0)


def prefill_only(workload: Workload) -> Workload:
    """Return the requests as a prefill worker sees them: they are over with their first token."""

    def first(job: Job) -> Job:
        return replace(job, request=replace(job.request, max_output_tokens=1), output_tokens=1)

    return replace(workload, jobs=tuple(first(job) for job in workload.jobs))


def decode_only(latency: LatencyModel) -> LatencyModel:
    """Return a worker as its decode phase is alone: prompts come with their KV, and their step takes 1 ns."""
    return attrs.evolve(latency, prefill_constant_ns=1, prefill_token_ns=0, prefill_attention_ps=0)


def high_affinity(
    workload: Workload,
    rate: float,
    latencies: Sequence[LatencyModel],
    *,
    prefill_targets: Sequence[SloTarget],
    decode_targets: Sequence[SloTarget],
    gpus_max: int,
    stages_max: int = 1,
    resolution: float = 0.025,
) -> PhasePlan:
    """Return the placement of Algorithm 1, for clusters whose links are fast enough between any two workers.

    `latencies` are workers of every degree of tensor parallelism, of which pipelines of up to `stages_max` stages are
    weighed with at most `gpus_max` GPUs.  Each phase is simulated alone on one worker.  A kind without memory for the
    KV of the longest request is left out, where the printed algorithm weighs the weights alone (D6).  Raises
    `ValueError` where no kind keeps the targets.
    """
    longest = max(job.request.prompt.tokens + job.output_tokens for job in workload.jobs)
    kinds = [
        pipelined(latency, stages)
        for latency in latencies
        for stages in range(1, stages_max + 1)
        if (latency.gpus or 1) * stages <= gpus_max
    ]
    fitting = [kind for kind in kinds if kind.kv_capacity_tokens >= longest]
    if not fitting:
        most = max((kind.kv_capacity_tokens for kind in kinds), default=0)
        raise ValueError(f"the longest request holds {longest:,} tokens of KV, and a worker at most {most:,}")

    def weighed(
        jobs: Workload, targets: Sequence[SloTarget], source: Callable[[LatencyModel], WorkerSpec]
    ) -> tuple[Option, ...]:
        found, run = [], RunSpec.of("distserve", "distserve")
        for kind in fitting:
            start = likely_rate(FleetPlan((FleetPool(1, kind),)), jobs)
            pair = Cluster(workers=(source(kind), WorkerSpec(kind, role="decode")), link=KvLink(0))
            reached = goodput(jobs, run, pair, targets, start=start, resolution=resolution)
            found.append(Option(kind.name, kind.gpus or 1, reached.rate or 0.0))
        return tuple(found)

    # Where outputs are one token, the decode worker has nothing to do; behind prompts of 1 ns it is all there is.
    prefills = weighed(prefill_only(workload), prefill_targets, lambda kind: WorkerSpec(kind, role="prefill"))
    decodes = weighed(workload, decode_targets, lambda kind: WorkerSpec(decode_only(kind), 1 << 30, role="prefill"))
    return PhasePlan(replicated(prefills, rate), replicated(decodes, rate), (prefills, decodes))


def low_affinity(
    rate: float,
    latencies: Sequence[LatencyModel],
    joint: Joint,
    *,
    longest: int,
    node_gpus: int,
    stages_max: int = 1,
) -> PhasePlan:
    """Return the placement of Algorithm 2, for clusters whose links are fast within a node only.

    Prefill and decode segments of the same stage share a node of `node_gpus` GPUs, so that both phases have the same
    number of stages, and the tensor parallelism of both together fits into a node.  `joint` simulates one pair.  A kind
    without memory for a request of `longest` tokens is left out (D6).  Raises `ValueError` where no pair is left.
    """
    options = []
    for stages in range(1, stages_max + 1):
        kinds = [pipelined(latency, stages) for latency in latencies]
        fitting = [kind for kind in kinds if kind.kv_capacity_tokens >= longest]
        for prefill in fitting:
            for decode in fitting:
                if (prefill.gpus or 1) + (decode.gpus or 1) > node_gpus * stages:
                    continue
                fleet = FleetPlan((FleetPool(1, prefill, "prefill"), FleetPool(1, decode, "decode")))
                options.append(Option(fleet.text, fleet.gpus, joint(fleet).rate or 0.0))
    if not options:
        raise ValueError(f"no pair of workers fits into nodes of {node_gpus} GPUs with {longest:,} tokens of KV each")
    bought = replicated(options, rate)
    return PhasePlan(bought, bought, (tuple(options), tuple(options)))


def weights_load_s(latency: LatencyModel, bytes_per_s: float) -> float:
    """Return the seconds in which each GPU of a worker loads its share of the weights; raises `ValueError` for a model
    whose weights are not known, or a rate of nothing."""
    if not 0 < bytes_per_s < inf:
        raise ValueError(f"weights are loaded at a rate above 0 bytes a second, not {bytes_per_s}")
    if latency.deployment is None:
        raise ValueError(f"latency model {latency.name} does not say how many bytes its weights are")
    return latency.deployment.weight_bytes / (latency.gpus or 1) / bytes_per_s
