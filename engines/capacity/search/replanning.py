"""When a fleet should change: a trace in windows, and a new search where its means have drifted.

`DriftDetector` says when: at the end of a window whose rate or mean length differs from what was planned for.  Then the
cheapest fleet is looked for that keeps the targets on the window that has just ended.

Source: Zhong et al., "DistServe" (OSDI'24), section 4.3: a profiler follows mean input and output lengths and the
arrival rate, and a significant shift starts the search again.  The paper gives no window and no threshold; here both
are parameters.  To change the fleet costs this:

loading     workers of a kind of which there were fewer load their weights, all at the same time; a worker that only
            changes its role, or is given up, costs nothing;
delayed     until then the old fleet serves: of the requests that arrive meanwhile, those that miss a target there.
"""

from collections import Counter
from collections.abc import Sequence

import attrs
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from fairsched.engines.capacity.highest_rate import SloTarget, outcomes_of
from fairsched.engines.capacity.search.placement import weights_load_s
from fairsched.engines.capacity.search.space import Candidate, FleetPlan, Objective
from fairsched.engines.simulation import Progress, run_tasks
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Job, Workload
from fairsched.policies.validators import positive

LOAD_BYTES_PER_S = 5_000_000_000
"""Weights into a GPU: a local disk of 5 GB/s; chosen here, not measured."""


class WindowCounts(msgspec.Struct, frozen=True, gc=False):
    """What came in a window: requests, and the tokens of their prompts and outputs."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def plus(self, job: Job) -> "WindowCounts":
        """Return the window with one more request."""
        prompt, output = self.prompt_tokens + job.request.prompt.tokens, self.output_tokens + job.output_tokens
        return WindowCounts(self.requests + 1, prompt, output)


@attrs.frozen
class DriftDetector:
    """Finds windows whose rate or mean length differs by more than `change_percent`; exact, on integers.

    A window of few requests has no mean to speak of: with fewer than `requests_min` lengths are not compared, and the
    rate only if the other window has that many.  Windows without any request are passed over.
    """

    window_us: int = attrs.field(default=300_000_000, validator=positive)
    """Length of a window."""
    change_percent: int = attrs.field(default=30, validator=positive)
    """A mean length or rate that differs by more than this share of the planned one is a shift."""
    requests_min: int = attrs.field(default=100, validator=positive)
    """Requests from which on a window has a mean."""

    def plans(self, jobs: Sequence[Job]) -> list[tuple[int, tuple[str, ...], WindowCounts]]:
        """Return when the fleet is planned, with what has changed, and the window that it is planned for.

        Windows begin with the first request, and the last one, which is not over, is not judged.  The first plan is for
        the first window.
        """
        windows: dict[int, WindowCounts] = {}
        origin, window_ns = min((job.request.arrival_ns for job in jobs), default=0), self.window_us * 1_000
        for job in jobs:
            number = (job.request.arrival_ns - origin) // window_ns
            windows[number] = windows.get(number, WindowCounts()).plus(job)
        found: list[tuple[int, tuple[str, ...], WindowCounts]] = []
        for number, window in sorted(windows.items())[:-1]:
            changed = self.changed(found[-1][2], window) if found else ()
            if changed or not found:
                found.append((origin + (number + 1) * window_ns, changed, window))
        return found

    def changed(self, before: WindowCounts, after: WindowCounts) -> tuple[str, ...]:
        """Return what differs between the window of the last plan and another one: rate, prompt, output."""
        counts = sorted((before.requests, after.requests))
        rows = (
            ("rate", counts[1], (before.requests, 1), (after.requests, 1)),
            ("prompt", counts[0], (before.prompt_tokens, before.requests), (after.prompt_tokens, after.requests)),
            ("output", counts[0], (before.output_tokens, before.requests), (after.output_tokens, after.requests)),
        )
        # new / news differs from old / olds by more than the share, multiplied across.
        return tuple(
            name
            for name, known, (old, olds), (new, news) in rows
            if known >= self.requests_min and 100 * abs(new * olds - old * news) > self.change_percent * old * news
        )


@attrs.frozen
class Means:
    """Requests a second, and mean tokens of prompts and outputs."""

    rate: float
    prompt: float
    output: float

    @classmethod
    def of(cls, window: WindowCounts, window_ns: int) -> "Means":
        """Return those of a window with a request or more."""
        count = window.requests
        return cls(count * 1e9 / window_ns, window.prompt_tokens / count, window.output_tokens / count)


@attrs.frozen
class ReplanStep:
    """A time at which the fleet is planned again, and the fleet from then on.

    `changed` are the means that have drifted, and `means` those of the window that has ended.  `candidate` is None
    where no fleet keeps the targets: then the fleet stays.  `attained` is the share of that window's requests that kept
    all targets under the fleet of before (None at first, when there was none).  While new workers load their weights
    for `load_s`, `arrivals` requests come, and `delayed` of them miss a target under the fleet of before.
    """

    at_s: float
    changed: tuple[str, ...]
    means: Means
    candidate: Candidate | None
    changes: bool
    load_s: float
    attained: float | None = None
    delayed: int = 0
    arrivals: int = 0


@attrs.frozen
class Replan:
    """A trace in windows, and the steps at which the fleet was planned again, in order of time."""

    workload: str
    window_s: float
    change_percent: int
    objective: Objective
    steps: tuple[ReplanStep, ...]

    @property
    def changes(self) -> tuple[ReplanStep, ...]:
        """The steps after the first at which the fleet changed."""
        return tuple(step for step in self.steps[1:] if step.changes)

    def to_dict(self) -> dict[str, object]:
        """Return the document of `fairsched search --replan --json`."""
        return {
            "workload": self.workload,
            "window_s": self.window_s,
            "change_percent": self.change_percent,
            "objective": self.objective,
            "steps": [
                {
                    "at_s": step.at_s,
                    "changed": list(step.changed),
                    **attrs.asdict(step.means),
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


def between(workload: Workload, start_ns: int, stop_ns: int) -> Workload:
    """Return the requests that arrive in an interval, on the clock of the trace."""
    return replace(workload, jobs=tuple(job for job in workload.jobs if start_ns <= job.request.arrival_ns < stop_ns))


def loading_s(before: FleetPlan | None, after: FleetPlan, bytes_per_s: float) -> float:
    """Return the seconds until the workers that are new in a fleet have loaded their weights; 0 if none is new."""
    had, need = _kinds(before), _kinds(after)
    new = [latency for latency, count in need.items() if count > had[latency]]
    return max((weights_load_s(latency, bytes_per_s) for latency in new), default=0.0)


def _kinds(fleet: FleetPlan | None) -> Counter[LatencyModel]:
    found = Counter[LatencyModel]()
    for pool in fleet.pools if fleet else ():
        found[pool.latency] += pool.workers
    return found


def replan(
    workload: Workload,
    candidates: Sequence[Candidate],
    targets: Sequence[SloTarget],
    detector: DriftDetector,
    *,
    objective: Objective = "gpu",
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Replan:
    """Follow a trace and say when the fleet should change, to which of the candidates, and what the change costs.

    Windows are searched on `jobs` processes or a `ray` cluster (`run_tasks` says what that raises).  Raises
    `ValueError` where the trace ends in its first window, or not even that has a fleet that keeps the targets.
    """
    for target in targets:
        if target.of_tokens:
            raise ValueError(f"a trace is followed by targets that a request keeps or misses, not by {target.text}")
    due, window_ns = detector.plans(workload.jobs), detector.window_us * 1_000
    if not due:
        raise ValueError(f"{workload.name} ends in its first window of {window_ns / 1e9:g} s: a shorter one may do")
    ordered = tuple(sorted(candidates, key=lambda one: (one.fleet.amount(objective), one.text)))
    parts = [between(workload, at_ns - window_ns, at_ns) for at_ns, *_ in due]
    tasks = [(part, ordered, tuple(targets)) for part in parts]
    chosen: dict[int, Candidate | None] = {}
    for place, candidate in run_tasks(_cheapest, tasks, jobs=jobs, ray=ray):
        chosen[place] = candidate
        if progress is not None:
            progress(f"window until {due[place][0] / 1e9:g} s", len(chosen), len(tasks))
    if chosen[0] is None:
        raise ValueError(
            f"none of {len(ordered)} fleets keeps {'; '.join(target.text for target in targets)} on the first window, "
            f"{len(parts[0].jobs) * 1e9 / window_ns:.3g} requests a second"
        )
    steps: list[ReplanStep] = []
    running: Candidate | None = None
    for place, (at_ns, changed, window) in enumerate(due):
        step = _step(workload, parts[place], running, chosen[place], targets, at_ns)
        steps.append(attrs.evolve(step, changed=changed, means=Means.of(window, window_ns)))
        running = step.candidate or running
    return Replan(workload.name, window_ns / 1e9, detector.change_percent, objective, tuple(steps))


def _step(
    workload: Workload,
    ended: Workload,
    old: Candidate | None,
    new: Candidate | None,
    targets: Sequence[SloTarget],
    at_ns: int,
) -> ReplanStep:
    """Return what changes at a time, after a window that has ended, and what that costs."""
    changes = new is not None and new != old
    load_s = 0.0
    if new is not None and changes:
        load_s = loading_s(None if old is None else old.fleet, new.fleet, LOAD_BYTES_PER_S)
    step = ReplanStep(at_ns / 1e9, (), Means(0, 0, 0), new, changes, load_s)
    if old is None:
        return step
    step = attrs.evolve(step, attained=1 - float(_missed(ended, old, targets).mean()))
    meanwhile = between(workload, at_ns, at_ns + round(load_s * 1e9)).jobs
    if not meanwhile:
        return step
    # The old fleet is simulated from the beginning of the window, so that it has its queue.
    missed = _missed(replace(workload, jobs=(*ended.jobs, *meanwhile)), old, targets)
    return attrs.evolve(step, delayed=int(missed[len(ended.jobs) :].sum()), arrivals=len(meanwhile))


def _cheapest(task: tuple[Workload, tuple[Candidate, ...], tuple[SloTarget, ...]]) -> Candidate | None:
    """Return the first candidate, cheapest first, that keeps the targets on a window's own arrivals."""
    jobs, candidates, targets = task
    for candidate in candidates:
        outcomes = outcomes_of(jobs, candidate.spec, candidate.fleet.cluster())
        if all(target.excess(outcomes) <= 1 for target in targets):
            return candidate
    return None


def _missed(jobs: Workload, candidate: Candidate, targets: Sequence[SloTarget]) -> npt.NDArray[np.bool_]:
    """Return which requests miss a limit of any target."""
    outcomes = outcomes_of(jobs, candidate.spec, candidate.fleet.cluster())
    missed = np.zeros(len(jobs.jobs), dtype=np.bool_)
    for target in targets:
        missed |= target.worst(outcomes) > 1
    return missed
