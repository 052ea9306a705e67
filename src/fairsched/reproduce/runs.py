"""The runs that rows are made of: a workload, a run on a platform, and the figures that papers print."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import NOTHING, Predictor, RunSpec, Simulator, simulate
from fairsched.engines.workloads import generate
from fairsched.model.events import Arrived, Decoded, Event, Prefilled
from fairsched.model.pricing import COMMON
from fairsched.model.request import Prompt, Workload
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.reproduce.row import Platform

A10G, A100 = "llama-3.2-3b-a10g", "llama-3.1-8b-a100"
"""The two workers of the DLPM paper's evaluation, as latency presets."""


@lru_cache(maxsize=4)
def workload(name: str, misbehave: str | None = None, *, on: Platform, seed: int, **params: Any) -> Workload:
    """Return a generated workload; a rate of `auto` is near what the platform's workers can do.

    The last few are kept, since a row runs one under several systems.
    """
    return generate(name, misbehave=misbehave, seed=seed, workers=on.cluster.specs, **params)


def run(
    jobs: Workload,
    policy: str | AnyLocalPolicy,
    router: str | AnyClusterPolicy = "round-robin",
    *,
    on: Platform,
    params: Mapping[str, object] = NOTHING,
    routing: Mapping[str, object] = NOTHING,
    predictor: Predictor | None = None,
) -> Run:
    """Return the figures of a simulated run, with parameters of policy and router as on the command line."""
    steps = {"max_batched_tokens": on.step_tokens} if on.step_tokens and _batches(policy) else {}
    return simulate(
        jobs, policy, router, cluster=on.cluster, params={**steps, **params}, router_params=routing, predictor=predictor
    )


def _batches(policy: str | AnyLocalPolicy) -> bool:
    """Return whether the policy is a composed one, whose steps have a budget of tokens."""
    return isinstance(LOCAL_POLICIES[policy] if isinstance(policy, str) else policy, ComposedPolicy)


def alike(jobs: Workload, *, outputs: bool = True) -> Workload:
    """Return the workload with every prompt, and every output if wanted, as long as the mean one."""
    prompt = Prompt(round(sum(job.request.prompt.tokens for job in jobs.jobs) / len(jobs.jobs)))
    output = round(sum(job.output_tokens for job in jobs.jobs) / len(jobs.jobs))
    made = (
        replace(
            job, request=replace(job.request, prompt=prompt), output_tokens=output if outputs else job.output_tokens
        )
        for job in jobs.jobs
    )
    return replace(jobs, jobs=tuple(made))


NO_SHARING = "prompts share prefixes"
"""The cause that papers name for what prefix caches gain; `unshared` takes it away."""


def unshared(jobs: Workload) -> Workload:
    """Return the same requests with prompts of the same lengths that share nothing."""
    alone = (replace(job, request=replace(job.request, prompt=Prompt(job.request.prompt.tokens))) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(alone))


WINDOW_S = 20
"""Curves over time have a point for each such piece of it."""


def _window(at_s: float) -> float:
    return float(at_s // WINDOW_S * WINDOW_S)


@attrs.define
class Timelines:
    """What a run shows over time: by client waits for the first token with their arrivals, and service in windows; and
    in which windows each worker computes."""

    waits: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict)
    service: dict[str, dict[float, float]] = attrs.field(factory=dict)
    busy: set[tuple[int, float]] = attrs.field(factory=set)
    end_s: float = 0.0
    _arrived: dict[int, tuple[str, float, int]] = attrs.field(factory=dict)

    def note(self, events: list[Event]) -> None:
        """Take down what a step computed."""
        for event in events:
            at_s = event.time_ns / 1e9
            if isinstance(event, Arrived):
                request = event.request
                self._arrived[request.id] = str(request.client), at_s, request.prompt.tokens
            elif isinstance(event, Prefilled) and not event.remaining_tokens:
                name, came_s, tokens = self._arrived[event.request_id]
                self.waits.setdefault(name, []).append((came_s, at_s - came_s))
                self._serve(name, at_s, tokens * COMMON.input)
            elif isinstance(event, Decoded):
                self.end_s = at_s
                self.busy.add((event.worker, _window(at_s)))
                for client, count in zip(event.clients, event.tokens, strict=True):
                    self._serve(str(client), at_s, count * COMMON.output)

    def _serve(self, client: str, at_s: float, cost: int) -> None:
        windows = self.service.setdefault(client, {})
        windows[_window(at_s)] = windows.get(_window(at_s), 0.0) + cost / WINDOW_S

    def p99_s(self, name: str, from_s: float = 0.0) -> float:
        """Return a client's p99 of the time to the first token, of requests that come from a time on."""
        return float(np.percentile([wait for at, wait in self.waits[name] if at >= from_s], 99))

    def most_s(self, names: Iterable[str]) -> float:
        """Return the longest time to the first token of these clients."""
        return max(wait for name in names for _, wait in self.waits[name])

    def response(self, name: str, until_s: float) -> Mapping[float, float]:
        """Return a client's mean time to the first token by the window in which requests came, before a time."""
        windows: dict[float, list[float]] = {}
        for at, wait in self.waits[name]:
            if at < until_s:
                windows.setdefault(_window(at), []).append(wait)
        return {start: float(np.mean(windows[start])) for start in sorted(windows)}

    def served(self, names: Iterable[str], from_s: float, to_s: float) -> float:
        """Return what clients were served in the windows that begin in these seconds."""
        return sum(value for name in names for at, value in self.service[name].items() if from_s <= at < to_s)

    def capacity(self, workers: int) -> float:
        """Return the share of workers that compute, in the middle third of the run."""
        middle = [at for at in np.arange(0, self.end_s, WINDOW_S) if self.end_s / 3 <= at < self.end_s * 2 / 3]
        return sum(at in middle for _, at in self.busy) / (workers * len(middle))

    def share(self, names: Sequence[str]) -> float:
        """Return these clients' share of the service, in the middle third of the run."""
        third = self.end_s / 3, self.end_s * 2 / 3
        return self.served(names, *third) / self.served(self.service, *third)


def timelines(
    jobs: Workload,
    policy: str,
    router: str,
    *,
    on: Platform,
    params: Mapping[str, object],
    routing: Mapping[str, object],
) -> Timelines:
    """Return what a run of a workload shows over time."""
    found, spec = Timelines(), RunSpec.of(policy, router, params=params, router_params=routing)
    Simulator(jobs, spec.policy, spec.router, on.latency, workers=on.workers, on_events=found.note).run()
    return found


def rate(result: Run) -> float:
    """Return the requests finished a second."""
    return measured(result.measures.throughput_rps, "a throughput")


def well_behaved(jobs: Workload) -> list[str]:
    """Return the clients that do nothing wrong."""
    return [client.name for client in jobs.clients if client.name != "misbehaving"]


def measured(value: float | None, what: str) -> float:
    """Return the figure; raises `ValueError` if a run has none, since a row cannot be judged without it."""
    if value is None or not np.isfinite(value):
        raise ValueError(f"a run gave no {what}")
    return float(value)
