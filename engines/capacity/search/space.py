"""Fleets that may be bought: pools of equal workers, what they cost, and a space of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

import attrs

from fairsched.engines.simulation import Cluster, RunSpec, latency_model
from fairsched.engines.workloads import KvLink, WorkerSpec
from fairsched.model.decision import Role
from fairsched.model.machine import LatencyModel, gpu_of, pipelined
from fairsched.model.request import Workload

Objective = Literal["gpu", "cost", "dollar", "joule"]
OBJECTIVES: tuple[Objective, ...] = ("gpu", "cost", "dollar", "joule")
"""What the rate is divided by: GPUs, their cost relative to an A100, dollars an hour, or kilojoules a second."""
Splitting = Literal["both", "only", "never"]
LINK_BYTES_PER_S = 25_000_000_000
"""KV between workers: a network adapter of 200 Gbit/s, as in Splitwise's machines."""
_POOL = re.compile(r"(?P<workers>\d+)x(?P<model>[^/:+]+)(/(?P<stages>\d+))?(:(?P<role>[a-z]+))?")
ROLES: tuple[Role, ...] = ("both", "prefill", "decode")


@attrs.frozen
class FleetPool:
    """So many equal workers for a phase, or for both."""

    workers: int
    latency: LatencyModel
    role: Role = "both"

    @property
    def gpus(self) -> int:
        """GPUs of all workers; a model that does not say how many a worker has counts as one."""
        return self.workers * (self.latency.gpus or 1)

    @property
    def text(self) -> str:
        stages = self.latency.stages
        name = f"{self.latency.name.removesuffix(f'-pp{stages}')}/{stages}" if stages > 1 else self.latency.name
        return f"{self.workers}x{name}" + ("" if self.role == "both" else f":{self.role}")


@attrs.frozen
class FleetPlan:
    """Pools of workers; raises `ValueError` for a fleet in which no worker computes prompts, or none outputs."""

    pools: tuple[FleetPool, ...]

    def __attrs_post_init__(self) -> None:
        if not self.pools or any(pool.workers < 1 for pool in self.pools):
            raise ValueError(f"a fleet has pools of 1 worker or more, not {self.text or 'none'}")
        roles = {pool.role for pool in self.pools}
        for phase in ("prefill", "decode"):
            if not roles & {"both", phase}:
                raise ValueError(f"fleet {self.text} has no {phase} worker: no request would ever finish there")
        first, *others = (pool.latency.deployment for pool in self.pools)
        for other in others:
            if (first is None) != (other is None) or (first and other and first.model_facts != other.model_facts):
                raise ValueError(f"fleet {self.text} has different models: KV of one is nothing to another")

    @property
    def text(self) -> str:
        return "+".join(pool.text for pool in self.pools)

    @property
    def is_split(self) -> bool:
        """Whether phases have workers of their own."""
        return any(pool.role != "both" for pool in self.pools)

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    @property
    def prefill_share(self) -> float:
        """The share of the GPUs that compute prompts only, of those that compute one phase only; 0 if none does."""
        prefill, decode = (sum(pool.gpus for pool in self.pools if pool.role == role) for role in ROLES[1:])
        return prefill / (prefill + decode) if prefill + decode else 0.0

    @property
    def kv_capacity_tokens(self) -> int:
        """The longest request that every pool has memory for."""
        return min(pool.latency.kv_capacity_tokens for pool in self.pools)

    def amount(self, objective: Objective) -> float:
        """Return what the fleet takes of GPUs, cost, dollars an hour or, at most, kilojoules a second: its rated power.

        Raises `ValueError` where that is not known.
        """
        if objective == "gpu":
            return float(self.gpus)
        total = 0.0
        for pool in self.pools:
            gpu = gpu_of(pool.latency)
            each = {"cost": gpu.cost, "dollar": gpu.dollars_per_hour, "joule": gpu.watts / 1_000}[objective]
            if each is None:
                raise ValueError(f"nothing says what a GPU of kind {gpu.name} takes, per {objective}: choose --per gpu")
            total += pool.gpus * each
        return total

    def cluster(self) -> Cluster:
        """Return the simulated cluster, in which KV goes over a link that one transfer of a worker uses at a time."""
        specs = tuple(WorkerSpec(pool.latency, role=pool.role) for pool in self.pools for _ in range(pool.workers))
        deployment = self.pools[0].latency.deployment
        kv_bytes = KvLink().bytes_per_token if deployment is None else deployment.kv_token_bytes
        link = KvLink(kv_bytes, LINK_BYTES_PER_S, contended=True)
        return Cluster(self.pools[0].latency, specs, link=link)


def fleet_of(text: str) -> FleetPlan:
    """Return a fleet given as pools `NxMODEL[/STAGES][:ROLE]` with `+` between them.  Raises `ValueError`.

    >>> fleet_of("3xopt-13b-a100:prefill+1xopt-13b-a100/2:decode").gpus
    5
    """
    pools = []
    for part in text.split("+"):
        found = _POOL.fullmatch(part.strip())
        if found is None or (found["role"] or "both") not in ROLES:
            raise ValueError(f"fleet {text!r}: expected NxMODEL[/STAGES][:ROLE], ROLE prefill or decode, not {part!r}")
        role: Role = found["role"] or "both"  # type: ignore[assignment]
        latency = pipelined(latency_model(found["model"]), int(found["stages"] or 1))
        pools.append(FleetPool(int(found["workers"]), latency, role))
    return FleetPlan(tuple(pools))


@attrs.frozen
class Candidate:
    """A fleet with what runs on it: a local policy with its parameters, and a router."""

    fleet: FleetPlan
    policy: str
    params: tuple[tuple[str, str], ...]
    router: str

    @property
    def text(self) -> str:
        """The candidate in a line; two differ in it if they differ at all."""
        params = ",".join(f"{name}={value}" for name, value in self.params)
        return f"{self.fleet.text} {self.policy}{f' ({params})' if params else ''} {self.router}"

    @property
    def spec(self) -> RunSpec:
        """The run; raises `ValueError` for names and values that are not there."""
        return RunSpec.of(self.policy, self.router, params=dict(self.params))


@attrs.frozen
class Space:
    """What is searched: every combination of these.

    `latencies` are kinds of workers (GPU kind and tensor parallelism), of which pipelines have `stages`.  For each
    number of `gpus` there is every fleet of equal workers, and with `splitting` every pair of pools that uses so many
    GPUs as far as they go.  `chunks` are budgets of tokens a step, `batches` limits of running requests (0: the
    policy's own).
    """

    latencies: tuple[LatencyModel, ...]
    gpus: tuple[int, ...] = (4,)
    stages: tuple[int, ...] = (1,)
    splitting: Splitting = "both"
    policies: tuple[str, ...] = ("fcfs-optimistic",)
    batchings: tuple[str, ...] = ("chunked",)
    chunks: tuple[int, ...] = (0,)
    batches: tuple[int, ...] = (0,)
    routers: tuple[str, ...] = ("join-shortest-queue",)
    split_routers: tuple[str, ...] = ("distserve",)

    def kinds(self) -> list[LatencyModel]:
        """Return every kind of worker, pipelines included."""
        return [pipelined(latency, stages) for latency, stages in product(self.latencies, self.stages)]

    def fleets(self) -> Iterator[FleetPlan]:
        """Yield every fleet, smaller ones first."""
        kinds = self.kinds()
        for gpus in sorted(set(self.gpus)):
            if self.splitting != "only":
                for latency in kinds:
                    if workers := gpus // (latency.gpus or 1):
                        yield FleetPlan((FleetPool(workers, latency),))
            if self.splitting != "never":
                for prefill, decode in product(kinds, repeat=2):
                    yield from _split(prefill, decode, gpus)

    def candidates(self, workload: Workload, fleets: Sequence[FleetPlan] = ()) -> list[Candidate]:
        """Return every candidate whose workers have memory for the longest request (the released search of DistServe
        weighs only the weights, D6).

        Fleets are those of the space, or `fleets`.  Raises `ValueError` where none has the memory, or none is left.
        """
        longest = max(job.request.prompt.tokens + job.output_tokens for job in workload.jobs)
        every = list(dict.fromkeys(fleets or self.fleets()))
        fitting = [fleet for fleet in every if fleet.kv_capacity_tokens >= longest]
        if not every:
            sizes = ", ".join(f"{latency.name} ({latency.gpus or 1})" for latency in self.kinds())
            raise ValueError(f"no fleet has at most {max(self.gpus, default=0)} GPUs; workers have: {sizes}")
        if not fitting:
            most = max(fleet.kv_capacity_tokens for fleet in every)
            raise ValueError(f"the longest request holds {longest:,} tokens of KV, and a worker at most {most:,}")
        found = []
        for fleet in fitting:
            routers = self.split_routers if fleet.is_split else self.routers
            axes = self.policies, self.batchings, self.chunks, self.batches, routers
            for policy, batching, chunk, batch, router in product(*axes):
                limits = ("max_batched_tokens", chunk), ("max_running", batch)
                given = ((name, str(limit)) for name, limit in limits if limit)
                found.append(Candidate(fleet, policy, (("batching", batching), *given), router))
        return found


def _split(prefill: LatencyModel, decode: LatencyModel, gpus: int) -> Iterator[FleetPlan]:
    """Yield every pair of pools of two kinds with the same model that leaves no room for another worker of the
    second."""
    if _model(prefill) != _model(decode):
        return
    most = (gpus - (decode.gpus or 1)) // (prefill.gpus or 1)
    for workers in range(1, most + 1):
        left = (gpus - workers * (prefill.gpus or 1)) // (decode.gpus or 1)
        yield FleetPlan((FleetPool(workers, prefill, "prefill"), FleetPool(left, decode, "decode")))


def _model(latency: LatencyModel) -> object:
    return None if latency.deployment is None else latency.deployment.model_facts


def mean_tokens(workload: Workload) -> Mapping[str, float]:
    """Return mean prompt and output tokens of a workload's requests."""
    count = max(len(workload.jobs), 1)
    return {
        "prompt": sum(job.request.prompt.tokens for job in workload.jobs) / count,
        "output": sum(job.output_tokens for job in workload.jobs) / count,
    }


def likely_rate(fleet: FleetPlan, workload: Workload) -> float:
    """Return a rate to begin with: half of what the slower phase does, with batches of 32."""
    means = mean_tokens(workload)
    prompt, output = round(means["prompt"]), round(means["output"])
    seconds = {"prefill": 0.0, "decode": 0.0}
    for phase in seconds:
        per_s = 0.0
        for pool in fleet.pools:
            if pool.role in ("both", phase):
                prefill_ns = pool.latency.stage_ns(((prompt, 0),))
                decode_ns = pool.latency.decode_ns(32, 32 * (prompt + output // 2)) * output / 32
                takes_ns = prefill_ns if phase == "prefill" else decode_ns
                per_s += pool.workers * 1e9 / (prefill_ns + decode_ns if pool.role == "both" else max(takes_ns, 1.0))
        seconds[phase] = 1 / per_s
    return 0.5 / max(seconds.values())
