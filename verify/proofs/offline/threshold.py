"""P-BL-4: the memory-centric batching rule keeps KV below its threshold, tried in drawn worlds of worker and policy.

What enters is checked against the same view that the worker checks against its capacity (KV-sum); here is shown that
what is withheld of it stays free, also while outputs grow, which a decision takes into account or preempts for.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model import worker as transitions
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import P_BL_4, MemoryCentric
from fairsched.policies.catalog import BatchLLM
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import Bug, SampledClaim, Shown, changed, sampled

STEPS_MAX = 2_000


def _worlds() -> st.SearchStrategy[dict[str, Any]]:
    """Return prompts that begin alike, a capacity that holds a few of them, and outputs that are reserved or grow."""
    jobs = st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 8)).map(list)
    return st.fixed_dictionaries(
        {
            "jobs": st.lists(jobs, min_size=2, max_size=8),
            "capacity": st.integers(20, 60),
            "percent": st.integers(0, 100),
            "leap": st.booleans(),
            "reserve": st.sampled_from(["static", "optimistic"]),
        }
    )


def _peaks(rule: type[MemoryCentric], w: SimpleNamespace) -> tuple[int, int]:
    """Return the most KV in use in a step with more than one request in the batch, and the most requests there were."""
    play = WorkerPlay(
        BatchLLM(batching=rule(16, kv_threshold_percent=w.percent, reserve=w.reserve)), WorkerState(0, w.capacity)
    )
    for number, (shared, own, outputs) in enumerate(w.jobs):
        prompt = Prompt.from_keys([shared] * (2 * shared) + [10 + number] * own)
        play.arrive(Request(number, 0, 0, prompt, outputs), outputs, 0)
    most = requests = 0
    for step in range(STEPS_MAX):
        if not play.worker.queue and not play.worker.running:
            return most, requests
        plan = play.decide(step)
        begun = play.follow(transitions.begin(play.worker, plan, step), decided=True)
        steps = 1
        if w.leap and not (begun or plan.chunks) and play.worker.decoding:
            steps = min(play.worker.decode_steps_max(), plan.valid_steps or STEPS_MAX)
        together, promised = len(play.worker.running), _in_use(play.worker)
        play.follow(transitions.finish(play.worker, plan, steps, step))
        if together > 1:
            most, requests = max(most, promised, _in_use(play.worker)), max(requests, together)
    raise AssertionError(f"jobs are left after {STEPS_MAX} steps")


def _in_use(worker: WorkerState) -> int:
    view = worker.view(0)
    return view.kv_capacity_tokens - view.kv_free_tokens


def _full() -> tuple[int, int]:
    """Return three that need ten tokens each, of 40 of which three quarters may be in use."""
    jobs = [[0, 4, 6]] * 3
    world = SimpleNamespace(jobs=jobs, capacity=40, percent=75, leap=False, reserve="static")
    return _peaks(MemoryCentric, world)[0], 30


@sampled(P_BL_4, _worlds(), attained=_full)
def below_threshold(w: SimpleNamespace, rule: type[MemoryCentric] = MemoryCentric) -> Shown:
    """Of a world in which no request runs beside another nothing is shown."""
    most, requests = _peaks(rule, w)
    return {"KV in use": 100 * most < w.percent * w.capacity + 100} if requests else {}


def claims() -> tuple[SampledClaim, ...]:
    """About the rule that ships."""
    return (below_threshold(),)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    one_less = changed(MemoryCentric, "withheld", "// 100", "// 100 - 1")
    capacity = changed(MemoryCentric, "withheld", "kv_capacity_tokens * (100 - self.kv_threshold_percent) // 100", "0")
    return (
        Bug("a token too few is withheld", below_threshold(one_less)),
        Bug("the threshold is the capacity", below_threshold(capacity)),
    )
