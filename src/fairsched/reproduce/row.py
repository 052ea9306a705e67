"""A row: one result of a paper, how it is run again, and the verdict; and the runs that rows are made of."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal

import attrs

from fairsched.engines.analysis import Run
from fairsched.engines.fleet import WorkerSpec
from fairsched.engines.simulation import NOTHING, Cluster, Predictor, simulate
from fairsched.engines.workloads import generate
from fairsched.model.latency import PRESETS
from fairsched.model.request import Workload

A10G, A100 = "llama-3.2-3b-a10g", "llama-3.1-8b-a100"
"""The two workers of the DLPM paper's evaluation, as latency presets."""

Tier = Literal["A", "B", "C"]
"""A: exact arithmetic or queueing, comes out as printed.  B: a ratio or a sign with a calibrated cost model.  C: it
depends on GPUs and kernels, and only its direction is looked at."""

Say = Callable[[str], None]
"""Called with what is being run now."""


@attrs.frozen
class Ours:
    """What came out: in words with figures, whether it lies in the band, and every figure by name."""

    text: str
    held: bool
    figures: Mapping[str, object] = attrs.field(factory=dict)


@attrs.frozen
class Row:
    """One result of a paper; `@partial(Row, ...)` before a function makes a row that is measured by it.

    `source` is the paper with its figure or section, `paper` what it says, `band` what is looked for here.  `why` says
    what differs from the paper's setting, and, where the band is known to be missed, for which reason.  `seconds` is
    about how long it takes on one core.
    """

    measure: Callable[[Say], Ours]
    id: str
    about: str
    source: str
    paper: str
    band: str
    why: str
    seconds: int
    tier: Tier = "B"

    def to_json(self, ours: Ours) -> dict[str, object]:
        """The row's entry of `fairsched reproduce --json`."""
        return {
            "id": self.id,
            "about": self.about,
            "source": self.source,
            "paper": self.paper,
            "ours": ours.text,
            "band": self.band,
            "tier": self.tier,
            "held": ours.held,
            "why": self.why,
            "figures": dict(ours.figures),
        }


# --- runs -------------------------------------------------------------------------------------------------------------


@cache
def workload(
    name: str, misbehave: str | None = None, *, workers: int = 1, latency: str = A10G, seed: int = 0, **params: Any
) -> Workload:
    """A generated workload, made once; a rate of `auto` is near what so many workers can do."""
    specs = (WorkerSpec(PRESETS[latency]),) * workers
    return generate(name, misbehave=misbehave, seed=seed, workers=specs, **params)


def run(
    jobs: Workload,
    policy: str,
    router: str = "round-robin",
    *,
    workers: int = 1,
    latency: str = A10G,
    kv_capacity_tokens: int | None = None,
    params: Mapping[str, object] = NOTHING,
    routing: Mapping[str, object] = NOTHING,
    predictor: Predictor | None = None,
) -> Run:
    """Return the figures of a simulated run, with parameters of the policy and of the router as on the command line."""
    cluster = Cluster(latency, workers, kv_capacity_tokens)
    return simulate(jobs, policy, router, cluster=cluster, params=params, router_params=routing, predictor=predictor)


def rate(result: Run) -> float:
    """Requests finished a second."""
    return measured(result.measures.throughput_rps, "a throughput")


def p99_s(result: Run, clients: Iterable[str]) -> float:
    """The worst of the clients' p99 program latency, in seconds."""
    return max(measured(result.clients[name].program_latency_us.p99, "a p99") for name in clients) / 1e6


def well_behaved(jobs: Workload) -> list[str]:
    """The clients that do nothing wrong."""
    return [client.name for client in jobs.clients if client.name != "misbehaving"]


def measured(value: float | None, what: str) -> float:
    """The figure; raises `ValueError` if a run has none, since a row cannot be judged without it."""
    if value is None:
        raise ValueError(f"a run gave no {what}")
    return value


def falls(values: Iterable[float], noise: float = 0.0) -> bool:
    """Whether no value is above one before it by more than the share `noise`.

    >>> falls([3.0, 2.0, 2.01], noise=0.01), falls([3.0, 2.0, 2.5])
    (True, False)
    """
    least = float("inf")
    for value in values:
        if value > least * (1 + noise):
            return False
        least = min(least, value)
    return True
