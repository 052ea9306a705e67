"""What LARRY's and SAL's rows run: platforms, baselines, lengths and arrivals, and the load, which is matched by seed.

*Saturation* is the rate at which a worker serves a seed's requests (of more than 2,000 the first), first come, first
served, when all have come at once.  Arrivals are Functions-like, stretched so that requests over the span of arrivals
are a share of it: "at saturation" is 1.0, and 0.9 is what the library calls near saturation (`rate=auto`).
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from fairsched.engines.analysis import Measures
from fairsched.engines.simulation import NOTHING, Bucketed, Oracle, Predictor
from fairsched.engines.workloads import at_rate
from fairsched.model.request import Prompt, Workload
from fairsched.reproduce.row import Platform
from fairsched.reproduce.runs import measured, run, workload

CHAT, CODE = "azure-chat", "azure-code"
STEP_TOKENS = 1_024
A100 = Platform("llama-3.1-8b-a100-40gb", step_tokens=STEP_TOKENS, host_capacity_tokens=1_000_000)
"""The paper's smaller machine; the host memory is for FastServe, which swaps, and no other policy uses it."""
H100 = Platform("llama-3-70b-fp8-h100-tp2", step_tokens=STEP_TOKENS, host_capacity_tokens=1_000_000)
LARRY: Mapping[str, object] = {"alpha_milli": 1_000, "memory_unit": "blocks"}
"""The paper's alpha, 1, in blocks of 16 tokens a second: the unit is not stated."""
AT_ONCE_RPS, AT_ONCE = 100_000, 2_000
"""Requests that come within 20 ms, which are served in minutes."""

Baseline = tuple[str, Predictor | None, Mapping[str, object]]
_LTR = {"starve_steps": 1_000, "period_steps": 1_000}
BASELINES: dict[str, Baseline] = {
    "FCFS": ("fcfs-optimistic", None, NOTHING),
    "No-Preempt": ("no-preempt", None, NOTHING),
    "S3": ("s3", Bucketed(), NOTHING),
    "PiA": ("pia", Bucketed(), {"bin_tokens": 100}),
    "TRAIL": ("trail", Bucketed(), {"preempt_percent": 0}),
    "TRAIL+": ("trail", Oracle(), {"preempt_percent": 0}),
    "LTR": ("learning-to-rank", Bucketed(), _LTR),
    "FastServe": ("fastserve", None, {"quantum_us": 10_000, "promote_ms": 3_000}),
}
"""The paper's.  Predictions are a classifier's that is right three times in four; those of TRAIL+ are the truth."""
DISPLACING = ("LTR", "FastServe")
"""Those that preempt running requests for waiting ones; figures without them are given beside the claims."""
CLOSE = ("FCFS", "TRAIL", "TRAIL+")
"""What controls and the sweep run: the next best of these is at most as good as that of all."""
STAND_IN = (
    "Arrivals are a stand-in of ours for Azure's Functions trace, fitted to nothing.  Saturation is ours too: what a "
    "worker serves of the seed's first 2,000 requests, which come at once, in order of arrival."
)


def same(jobs: Workload) -> Workload:
    """Return the workload as it is."""
    return jobs


def saturation(jobs: Workload, on: Platform) -> float:
    """Return what one worker of the platform serves of these requests in a second when all have come at once.

    Between the half of the first tokens and 95 % of them: memory is full by then, and the batch is not yet empty.
    """
    one = Platform(on.model, 1, on.kv_capacity_tokens, on.step_tokens)
    first = at_rate(replace(jobs, jobs=jobs.jobs[:AT_ONCE]), AT_ONCE_RPS)
    found = run(first, "fcfs-optimistic", on=one).measures.ttft_us
    return 0.45 * len(first.jobs) / ((measured(found.p95, "a p95") - measured(found.p50, "a p50")) / 1e6)


def loaded(
    name: str,
    on: Platform,
    seed: int,
    requests: int,
    loads: Sequence[float],
    change: Callable[[Workload], Workload] = same,
) -> list[Workload]:
    """Return a seed's requests, changed as a control wants them, at each of these shares of their saturation."""

    def made(rate: float) -> Workload:
        return change(workload(name, on=on, seed=seed, rate=rate, requests=requests, arrivals="functions"))

    each_rps = saturation(made(AT_ONCE_RPS), on)
    rates = [load * each_rps * on.workers for load in loads]
    return [at_rate(made(rate), rate) for rate in rates]


def equal_prompts(jobs: Workload) -> Workload:
    """Return the workload with every prompt as long as the mean one: no prompt is short."""
    mean = round(sum(job.request.prompt.tokens for job in jobs.jobs) / len(jobs.jobs))
    return replace(
        jobs, jobs=tuple(replace(job, request=replace(job.request, prompt=Prompt(mean))) for job in jobs.jobs)
    )


def equal_requests(jobs: Workload) -> Workload:
    """Return the workload with every prompt and every output as long as the mean one."""
    mean = round(sum(job.output_tokens for job in jobs.jobs) / len(jobs.jobs))
    alike = equal_prompts(jobs)
    return replace(alike, jobs=tuple(replace(job, output_tokens=mean) for job in alike.jobs))


def larry(jobs: Workload, on: Platform, params: Mapping[str, object] = LARRY, policy: str = "larry") -> Measures:
    """Return the figures of LARRY, with its own parameters unless others are given."""
    return run(jobs, policy, on=on, params=params).measures


def baseline(jobs: Workload, on: Platform, name: str) -> Measures:
    """Return the figures of a baseline by its name."""
    policy, predictor, params = BASELINES[name]
    return run(jobs, policy, on=on, params=params, predictor=predictor).measures


Figure = Callable[[Measures], float | None]
FIGURES: dict[str, Figure] = {
    "p50": lambda found: found.ttft_us.p50,
    "p95": lambda found: found.ttft_us.p95,
    "normalised p95": lambda found: found.normalized_ttft_us.p95,
    "generation time": lambda found: found.latency_us.mean,
}
"""What is compared.  Generation time is the mean from arrival to the last token: our reading of the paper's TGT."""


def gains(larry: Measures, others: Sequence[Measures], suffix: str = "") -> dict[str, float]:
    """Return, for each figure, how many times the least of the others is LARRY's."""
    return {
        name + suffix: min(measured(of(other), name) for other in others) / measured(of(larry), name)
        for name, of in FIGURES.items()
    }
