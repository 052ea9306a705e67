"""The torch engine on a workbench: its latency model is calibrated, and the simulator is validated against it.

A `Workbench` holds a loaded model and says how an engine of it is made and timed.  `calibrate` times it over a grid of
steps and fits a latency model; `validate` runs a workload through it in real time and through the simulator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import attrs
import msgspec

from fairsched.engines.calibration import validation
from fairsched.engines.calibration.calibrator import Calibration, Calibrator, Measured, calibrated, scenarios
from fairsched.engines.calibration.drive import Clock, ThreadClock, WallClock, tokens_of
from fairsched.engines.serving import ServingLog
from fairsched.engines.simulation import Progress, simulate_events
from fairsched.engines.torch import Llama, TorchSpec
from fairsched.engines.workloads import at_rate
from fairsched.model.machine import EngineFacts, LatencyModel, decoded
from fairsched.model.request import Slo, Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, local_policy, parameters, with_parameters

ClockName = Literal["wall", "thread"]
CLOCKS: dict[ClockName, Callable[[], Clock]] = {"wall": WallClock, "thread": ThreadClock}
WARM_UP_REQUESTS = 16
"""So many requests are served once before: what is made when it is first used is there then."""


@attrs.frozen
class Workbench:
    """A model in memory, and how an engine of it is made and timed."""

    spec: TorchSpec
    model: Llama
    kv_capacity_tokens: int
    chunk_max: int
    clock: ClockName = "wall"

    @classmethod
    def load(
        cls,
        spec: TorchSpec,
        *,
        kv_capacity_tokens: int | None = None,
        chunk_max: int = 256,
        clock: ClockName = "wall",
    ) -> "Workbench":
        """Load the model of a worker; raises `ValueError` where there is none, or it cannot be timed like this."""
        if clock == "thread" and (spec.device != "cpu" or spec.threads > 1):
            raise ValueError("--clock thread counts one thread of the processor: use --device cpu")
        model = spec.load()
        capacity = kv_capacity_tokens or spec.kv_capacity_tokens(model)
        if capacity < 8 * spec.batch_max:
            raise ValueError(f"--kv-capacity-tokens {capacity} is less than 8 for each of {spec.batch_max} requests")
        return cls(spec, model, capacity, chunk_max, clock)

    def policy(self, name: str, params: Mapping[str, str] | None = None) -> ComposedPolicy:
        """Return a policy within the engine's limits, unless `params` say otherwise."""
        limits = {"max_batched_tokens": str(self.chunk_max), "max_running": str(self.spec.batch_max)}
        return with_parameters(local_policy(name), limits | dict(params or {}))

    def facts(self, policy: str) -> EngineFacts:
        """Return what a preset says of the engine."""
        facts = self.spec.facts | {"chunk_max": self.chunk_max, "policy": policy, "clock": self.clock}
        return msgspec.convert(facts, EngineFacts)

    def measured(self, policy: str, repeats: int, seed: int = 0, progress: Progress | None = None) -> list[Measured]:
        """Time the engine over a grid of steps, each step `repeats` times."""
        scripts = scenarios(self.kv_capacity_tokens, self.spec.batch_max, self.chunk_max, seed)
        calibrator = Calibrator(
            self.spec.executor(self.model, self.kv_capacity_tokens),
            lambda tokens: self.policy(policy, {"max_batched_tokens": str(tokens), "reserve": "optimistic"}),
            CLOCKS[self.clock](),
            kv_capacity_tokens=self.kv_capacity_tokens,
            vocab_size=self.model.config.vocab_size,
            page_tokens=self.spec.page_tokens,
            seed=seed,
        )
        total = len(scripts) * repeats
        steps = calibrator.measure(
            scripts, repeats, lambda done: None if progress is None else progress("calibrating", done, total)
        )
        calibrator.close()
        return steps

    def latency_of(self, preset: Path, policy: str) -> LatencyModel:
        """Return the latency model of a preset that was measured on this engine; raises `ValueError` for another's."""
        try:
            document = decoded(preset.read_bytes())
        except ValueError as error:
            raise ValueError(f"{preset}: {error}") from None
        if document.engine is None:
            raise ValueError(f"{preset} does not say which engine was measured")
        measured, here = msgspec.structs.asdict(document.engine), msgspec.structs.asdict(self.facts(policy))
        measured["kv_capacity_tokens"] = document.kv_capacity_tokens
        here["kv_capacity_tokens"] = self.kv_capacity_tokens
        for key, value in here.items():
            if key not in ("policy", "dated") and measured[key] != value:
                raise ValueError(f"{preset} was measured with {key} {measured[key]}, and this engine has {value}")
        return document.latency


def source_of(facts: EngineFacts) -> str:
    """Return where the coefficients come from, in a sentence."""
    threads = f"{facts.threads} thread{'s' * (facts.threads != 1)}"
    when = f", {facts.dated}" if facts.dated else ""
    return (
        f"measured by `fairsched calibrate`: model {facts.model}, {facts.dtype}, torch {facts.torch} on "
        f"{facts.device} with {threads}, policy {facts.policy}, {facts.clock} clock{when}"
    )


def calibrate(
    bench: Workbench,
    policy: str = "fcfs",
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Time the engine over a grid of steps, fit its latency model, and judge that by steps that were not fitted.

    The preset is called after the model and the device.  Raises `ValueError`.
    """
    facts = bench.facts(policy)
    steps = bench.measured(policy, repeats, seed, progress)
    return calibrated(
        steps,
        name=f"{facts.model}-{facts.device}",
        source=source_of(facts),
        kv_capacity_tokens=bench.kv_capacity_tokens,
    )


def page_tokens_of(workload: Workload, default: int = 16) -> int:
    """Return the size of a page: that of the prompts' blocks, of which there is one.  Raises `ValueError`."""
    sizes = {job.request.prompt.block_tokens for job in workload.jobs if job.request.prompt.keys}
    if len(sizes) > 1:
        raise ValueError(f"prompts have blocks of {', '.join(map(str, sorted(sizes)))} tokens, and a page has one size")
    return sizes.pop() if sizes else default


def validate(
    bench: Workbench,
    latency: LatencyModel,
    workload: Workload,
    policies: Sequence[str] = ("fcfs",),
    *,
    params: Mapping[str, str] | None = None,
    load: float = 0.85,
    runs: int = 3,
    ttft_ns: int | None = None,
    tpot_ns: int | None = None,
    logs: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[validation.Fidelity]:
    """Run a workload through the engine in real time and through the simulator, and yield the comparison by policy.

    Requests come at the share `load` of the engine's capacity.  Targets that are not given are percentiles of the
    simulation.  Each policy is run `runs` times; event logs of the real runs go into the folder `logs`.  Raises
    `ValueError`, and its kind `TooFewRequestsError`.
    """
    for name in policies:
        policy = bench.policy(name, params)
        router, capacity = ROUTERS["round-robin"], bench.kv_capacity_tokens
        offered = load * validation.capacity_rps(workload, policy, router, latency, capacity)
        timed = at_rate(workload, offered, validation.START_NS)
        events = simulate_events(timed, policy, router, latency, kv_capacity_tokens=capacity)
        typical = validation.typical_slo(timed, events)
        slo = Slo(ttft_ns=ttft_ns or typical.ttft_ns, tpot_ns=tpot_ns or typical.tpot_ns)
        timed = validation.with_slo(timed, slo)
        tokens = tokens_of(timed, bench.model.config.vocab_size)
        real = partial(_run, bench, latency, name, policy, tokens, progress)
        first = tuple(job for job in timed.jobs if not job.after)[:WARM_UP_REQUESTS]
        real(msgspec.structs.replace(timed, jobs=first), "warming up", None)
        found, at_speed = [], []
        for number in range(runs):
            path = None if logs is None else logs / f"{name.replace(':', '_')}-{number + 1}.jsonl"
            found.append(real(timed, f"{name}, run {number + 1} of {runs}", path))
            as_fast = validation.slowed(latency, 1 / (1 + found[-1].step_bias))
            at_speed.append(
                validation.figures(timed, simulate_events(timed, policy, router, as_fast, kv_capacity_tokens=capacity))
            )
        simulated = validation.figures(timed, events)
        yield validation.Fidelity(name, slo.ttft_ns, slo.tpot_ns, offered, simulated, tuple(at_speed), tuple(found))


def _run(
    bench: Workbench,
    latency: LatencyModel,
    name: str,
    policy: ComposedPolicy,
    tokens: dict[int, list[int]],
    told: Progress | None,
    workload: Workload,
    title: str,
    path: Path | None,
) -> validation.RealRun:
    """Run the workload once on the real engine, with its log if it is to be written."""
    total, capacity = len(workload.jobs), bench.kv_capacity_tokens
    with ExitStack() as stack:
        log = None
        if path is not None:
            log = ServingLog(path, name, parameters(policy), kv_capacity_tokens=capacity, latency=latency)
            stack.enter_context(log)
        run, engine = validation.real_run(
            workload,
            policy,
            latency,
            bench.spec.executor(bench.model, capacity),
            CLOCKS[bench.clock],
            tokens,
            kv_capacity_tokens=capacity,
            log=log,
            progress=None if told is None else lambda done: told(title, done, total),
        )
        if log is not None:
            log.complete(engine.policy_state)
    engine.close()
    return run
