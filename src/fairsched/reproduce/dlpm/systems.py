"""What the rows of the DLPM paper have in common: its systems, its quanta, cells, and prompts that share nothing.

Quanta are the same in all rows that do not sweep them, Q = Q_w = 20,000: where the paper's sweep of Q_w, 2,000 to
40,000, has flattened.
"""

from functools import lru_cache
from typing import Any, Literal

import attrs
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.model.request import Prompt, Workload
from fairsched.reproduce.row import Platform
from fairsched.reproduce.runs import measured, rate, run, well_behaved, workload

QUANTUM = 20_000
DLPM = {"quantum": QUANTUM}
"""Parameters of DLPM at a worker, and of D2LPM's router."""
System = Literal["d2lpm", "vtc", "rr+lpm", "preble"]
SYSTEMS: dict[System, tuple[str, str]] = {
    "d2lpm": ("dlpm", "d2lpm"),
    "vtc": ("vtc", "per-client-round-robin"),
    "rr+lpm": ("lpm", "round-robin"),
    "preble": ("preble", "e2"),
}
"""The paper's compositions: a local policy and a router each."""
NO_SHARING = "prompts share prefixes"


def under(system: System, jobs: Workload, on: Platform) -> Run:
    """Return the run of a workload under one of the paper's compositions."""
    policy, router = SYSTEMS[system]
    ours = system == "d2lpm"
    return run(jobs, policy, router, on=on, params=DLPM if ours else {}, routing=DLPM if ours else {})


def unshared(jobs: Workload) -> Workload:
    """Return the same requests with prompts of the same lengths that share nothing."""
    alone = (replace(job, request=replace(job.request, prompt=Prompt(job.request.prompt.tokens))) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(alone))


# --- cells of the evaluation ------------------------------------------------------------------------------------------


@attrs.frozen
class Cell:
    """A workload of the evaluation with a misbehaving client: its name, parameters, and how many programs of each
    client a worker gets, by the name of the parameter that says so."""

    name: str
    misbehave: str
    programs: str
    count: int
    params: tuple[tuple[str, int], ...] = ()

    def made(self, on: Platform, seed: int, rate: float) -> Workload:
        """Return the cell's workload at that rate; the number of its programs grows with the number of workers."""
        count = {self.programs: self.count * on.workers}
        return workload(self.name, self.misbehave, on=on, seed=seed, rate=rate, **count, **dict(self.params))


CELLS = {
    "trees S1": Cell("tree-of-thoughts", "more-requests", "trees", 2, (("question_tokens", 20_480),)),
    "trees S2": Cell(
        "tree-of-thoughts",
        "longer-prefix",
        "trees",
        4,
        (("question_tokens", 8_192), ("longer_question_tokens", 32_768)),
    ),
    "judge S1": Cell("llm-judge", "more-requests", "articles", 20),
    "judge S2": Cell("llm-judge", "longer-prefix", "articles", 20),
    "QA S1": Cell("long-context-qa", "more-requests", "documents", 3, (("questions", 9),)),
    "QA S2": Cell("long-context-qa", "longer-prefix", "documents", 3, (("questions", 9),)),
}
"""S1: client 0 sends more; S2: it has longer prompts."""
LOAD = 1.5
"""Requests come at so many times the rate that a worker with LPM serves, measured for each cell and seed."""
AT_ONCE = 1_000.0


def loaded(cell: Cell, on: Platform, seed: int) -> Workload:
    """Return the cell's workload at `LOAD` times the rate that its workers could serve, each by itself with LPM."""
    return cell.made(on, seed, LOAD * on.workers * _saturation(cell, attrs.evolve(on, workers=1), seed))


@lru_cache(maxsize=64)
def _saturation(cell: Cell, one: Platform, seed: int) -> float:
    """Return the programs a second, in units of the workload's rate, that one worker serves if all come at once."""
    jobs = cell.made(one, seed, AT_ONCE)
    arrivals = [job.request.arrival_ns for job in jobs.jobs if not job.after]
    span_s = (max(arrivals) - min(arrivals)) / 1e9
    served_s = len(jobs.jobs) / rate(run(jobs, "lpm", on=one))
    return AT_ONCE * span_s / served_s


@attrs.frozen
class Outcome:
    """What the paper reports of a run: requests finished a second, Jain's index (None if the clients are never all
    active), and the well-behaved clients' worst P50 and P99 in seconds, of programs (of questions: of the time to the
    first token)."""

    throughput_rps: float
    jain: float | None
    p50_s: float
    p99_s: float


def outcome(name: str, system: System, on: Platform, seed: int, *, sharing: bool = True) -> Outcome:
    """Return what came of a cell; rows that look at the same cell share the run where they run in one process."""
    return _outcome(name, system, on, seed, sharing)


@lru_cache(maxsize=1_024)
def _outcome(name: str, system: System, on: Platform, seed: int, sharing: bool) -> Outcome:
    jobs = loaded(CELLS[name], on, seed)
    found = under(system, jobs if sharing else unshared(jobs), on)
    measures = [found.clients[client] for client in well_behaved(jobs)]
    waits = [each.ttft_us if name.startswith("QA") else each.program_latency_us for each in measures]
    return Outcome(
        rate(found),
        found.jain_client,
        max(measured(each.p50, "a p50") for each in waits) / 1e6,
        max(measured(each.p99, "a p99") for each in waits) / 1e6,
    )


def cells_of(figure: Any) -> dict[str, float]:
    """Return a figure of every cell, and the greatest of them as "most"."""
    found = {name: float(figure(name)) for name in CELLS}
    return {**found, "most": max(found.values())}
