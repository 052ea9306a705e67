"""When a fleet should change: a trace in windows, and a new search where its means have drifted.

DistServe replans on "a significant pattern shift" and leaves open what that is.  Here a window is compared with the one
that was planned for last: where the rate or a mean length differs by more than a share, the cheapest fleet is looked
for that keeps the targets on the window that has just ended.  The change begins then, and costs this:

loading     workers of a kind of which there were fewer load their weights, all at the same time; a worker that only
            changes its role, or is given up, costs nothing;
delayed     until then the old fleet serves: of the requests that arrive meanwhile, those that miss a target there.
"""

from collections import Counter
from collections.abc import Sequence

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.capacity.highest_rate import Target, outcomes_of
from fairsched.engines.capacity.search.placement import weights_load_s
from fairsched.engines.capacity.search.space import Candidate, Fleet, Objective, mean_tokens
from fairsched.engines.simulation import Progress
from fairsched.engines.tasks import run_tasks
from fairsched.model.request import Workload

LOAD_BYTES_PER_S = 5_000_000_000
"""Weights into a GPU: a local disk of 5 GB/s; chosen here, not measured."""
REQUESTS_MIN = 20
"""A window with fewer requests says too little about its means."""


@attrs.frozen
class Means:
    """Requests a second, and mean tokens of prompts and outputs."""

    rate: float
    prompt: float
    output: float

    @classmethod
    def of(cls, jobs: Workload, window_ns: int) -> "Means":
        """Return those of a window's requests."""
        means = mean_tokens(jobs)
        return cls(len(jobs.jobs) * 1e9 / window_ns, means["prompt"], means["output"])

    def drift(self, planned: "Means") -> tuple[str, float]:
        """Return the mean that differs most from what was planned for, and its relative change."""
        changes = {name: getattr(self, name) / getattr(planned, name) - 1 for name in ("rate", "prompt", "output")}
        return max(changes.items(), key=lambda item: abs(item[1]))


@attrs.frozen
class Step:
    """A window whose means have drifted: what they are, the fleet from its end on, and what the change costs.

    `candidate` is None where no fleet keeps the targets: then the fleet stays.  `attained` is the share of the window's
    requests that kept all targets under the old fleet (None for the first window, for which there was none).
    """

    window: int
    end_s: float
    means: Means
    drifted: str
    by: float
    candidate: Candidate | None
    changes: bool
    load_s: float
    attained: float | None
    delayed: int
    arrivals: int


@attrs.frozen
class Replan:
    """A trace in windows, and the steps at which the fleet was planned again, in order of time."""

    workload: str
    windows: int
    window_s: float
    threshold: float
    objective: Objective
    steps: tuple[Step, ...]

    @property
    def changes(self) -> tuple[Step, ...]:
        """The steps after the first at which the fleet changed."""
        return tuple(step for step in self.steps[1:] if step.changes)

    def to_dict(self) -> dict[str, object]:
        """Return the document of `fairsched search --replan --json`."""
        return {
            "workload": self.workload,
            "windows": self.windows,
            "window_s": self.window_s,
            "threshold": self.threshold,
            "objective": self.objective,
            "steps": [
                {
                    "window": step.window,
                    "end_s": step.end_s,
                    **attrs.asdict(step.means),
                    "drifted": step.drifted,
                    "by": step.by,
                    "fleet": None if step.candidate is None else step.candidate.text,
                    "changes": step.changes,
                    "load_s": step.load_s,
                    "attained_before": step.attained,
                    "delayed": step.delayed,
                    "arrivals_while_loading": step.arrivals,
                }
                for step in self.steps
            ],
        }


def windows_of(workload: Workload, window_ns: int) -> list[Workload]:
    """Return the requests of each window, with arrivals on the clock of the trace; the last may be shorter."""
    if window_ns < 1:
        raise ValueError(f"a window is longer than {window_ns} ns")
    start = workload.jobs[0].request.arrival_ns if workload.jobs else 0
    parts: dict[int, list] = {}  # type: ignore[type-arg]
    for job in workload.jobs:
        parts.setdefault((job.request.arrival_ns - start) // window_ns, []).append(job)
    return [replace(workload, jobs=tuple(parts.get(k, ()))) for k in range(max(parts, default=-1) + 1)]


def drifted(windows: Sequence[Workload], window_ns: int, threshold: float) -> list[tuple[int, Means, str, float]]:
    """Return the windows to plan for: the first, and each that differs by more than `threshold` from the last of them.

    Windows of fewer than `REQUESTS_MIN` requests are passed over.
    """
    found: list[tuple[int, Means, str, float]] = []
    for k, jobs in enumerate(windows):
        if len(jobs.jobs) < REQUESTS_MIN:
            continue
        means = Means.of(jobs, window_ns)
        name, by = means.drift(found[-1][1]) if found else ("", 0.0)
        if not found or abs(by) > threshold:
            found.append((k, means, name, by))
    return found


def loading_s(before: Fleet | None, after: Fleet, bytes_per_s: float) -> float:
    """Return the seconds until the workers that are new in a fleet have loaded their weights; 0 if none is new."""
    had, need = _kinds(before), _kinds(after)
    new = [latency for latency, count in need.items() if count > had[latency]]
    return max((weights_load_s(latency, bytes_per_s) for latency in new), default=0.0)


def _kinds(fleet: Fleet | None) -> Counter:  # type: ignore[type-arg]
    found: Counter = Counter()  # type: ignore[type-arg]
    for pool in fleet.pools if fleet else ():
        found[pool.latency] += pool.workers
    return found


def replan(
    workload: Workload,
    candidates: Sequence[Candidate],
    targets: Sequence[Target],
    *,
    window_ns: int,
    threshold: float = 0.2,
    objective: Objective = "gpu",
    load_bytes_per_s: float = LOAD_BYTES_PER_S,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Replan:
    """Follow a trace and say when the fleet should change, to which of the candidates, and what the change costs.

    Windows are searched on `jobs` processes or a `ray` cluster (`run_tasks` says what that raises).  Raises
    `ValueError` where no window has requests enough, or not even the first has a fleet that keeps the targets.
    """
    windows = windows_of(workload, window_ns)
    due = drifted(windows, window_ns, threshold)
    if not due:
        raise ValueError(f"no window of {window_ns / 1e9:g} s has {REQUESTS_MIN} requests: {len(workload.jobs)} in all")
    ordered = tuple(sorted(candidates, key=lambda one: (one.fleet.amount(objective), one.text)))
    tasks = [(windows[k], ordered, tuple(targets)) for k, *_ in due]
    chosen: dict[int, Candidate | None] = {}
    for place, candidate in run_tasks(_cheapest, tasks, jobs=jobs, ray=ray):
        chosen[place] = candidate
        if progress is not None:
            progress(f"window {due[place][0]}", len(chosen), len(tasks))
    if chosen[0] is None:
        raise ValueError(
            f"none of {len(ordered)} fleets keeps {'; '.join(target.text for target in targets)} on the first window: "
            f"{due[0][1].rate:.3g} requests a second"
        )
    steps: list[Step] = []
    running: Candidate | None = None
    for place, (k, means, name, by) in enumerate(due):
        candidate, old = chosen[place], running
        changes = candidate is not None and candidate != old
        load_s = loading_s(old.fleet if old else None, candidate.fleet, load_bytes_per_s) if candidate and changes else 0.0
        attained, delayed, arrivals = None, 0, 0
        if old is not None:
            missed = _missed(windows[k], old, targets)
            attained = 1 - float(missed.mean())
            if changes and load_s:
                delayed, arrivals = _delayed(windows, k, old, targets, window_ns, load_s)
        end_s = (k + 1) * window_ns / 1e9
        steps.append(Step(k, end_s, means, name, by, candidate, changes, load_s, attained, delayed, arrivals))
        running = candidate or running
    return Replan(workload.name, len(windows), window_ns / 1e9, threshold, objective, tuple(steps))


def _cheapest(task: tuple[Workload, tuple[Candidate, ...], tuple[Target, ...]]) -> Candidate | None:
    """The first candidate, cheapest first, that keeps the targets on a window's own arrivals."""
    jobs, candidates, targets = task
    for candidate in candidates:
        outcomes = outcomes_of(jobs, candidate.spec, candidate.fleet.cluster())
        if all(target.excess(outcomes) <= 1 for target in targets):
            return candidate
    return None


def _missed(jobs: Workload, candidate: Candidate, targets: Sequence[Target]) -> np.ndarray:
    """Which requests miss a limit of any target."""
    outcomes = outcomes_of(jobs, candidate.spec, candidate.fleet.cluster())
    missed = np.zeros(len(jobs.jobs), dtype=np.bool_)
    for target in targets:
        missed |= target.worst(outcomes) > 1
    return missed


def _delayed(
    windows: Sequence[Workload], k: int, old: Candidate, targets: Sequence[Target], window_ns: int, load_s: float
) -> tuple[int, int]:
    """Requests that miss a limit under the old fleet among those that arrive while weights are loaded, and all those.

    The old fleet is simulated from the beginning of the window before, so that it has its queue.
    """
    start = windows[0].jobs[0].request.arrival_ns + (k + 1) * window_ns
    stop = start + load_s * 1e9
    last = k + 1 + int(load_s * 1e9 // window_ns)
    both = replace(windows[k], jobs=tuple(job for part in windows[k : last + 1] for job in part.jobs))
    arrival = np.fromiter((job.request.arrival_ns for job in both.jobs), np.int64, len(both.jobs))
    meanwhile = (arrival >= start) & (arrival < stop)
    if not meanwhile.any():
        return 0, 0
    return int((_missed(both, old, targets) & meanwhile).sum()), int(meanwhile.sum())
