"""Prompts and the budget of a step: P-full, for how many steps one prompt takes all of it; P-DS-4, of whole prompts the
first in a step may have any length; and F-DS-4, the rule of DistServe's released code, which computes no prompt above
its budget.
"""

from types import SimpleNamespace
from typing import Any

from fairsched.model.events import Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import P_DS_4, P_FULL, Batch, EagerPrefill, chunks_of, full_steps
from fairsched.policies.catalog import DistServeLocal
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay

STEPS = 50
"""A prompt that is not computed in so many steps of an idle worker is never computed: nothing changes between them."""


@v.arithmetic(
    P_FULL,
    ("budget", "steps", "over", "before"),
    *v.at_least(1, "budget", "steps"),
    *v.at_least(0, "over", "before"),
    v.Condition(lambda w: (w.over < w.budget) & (w.before < w.steps)),
    attained=lambda: (3, full_steps(11, 3)),
)
def full(w: SimpleNamespace, steps: Any = full_steps) -> v.Shown:
    """`steps` budgets and `over` tokens of a prompt were left, and so many steps `before` this one computed some."""
    left = w.steps * w.budget + w.over
    chunks, free = chunks_of(((0, left - w.before * w.budget),), w.budget)
    return {
        "it holds for those steps": steps(left, w.budget) == w.steps,
        "each computes the same": (chunks[0][1] if chunks else 0) == w.budget,
        "nothing is left to others": free == 0,
    }


@v.arithmetic(P_DS_4, ("budget", "seats", "prompt"), *v.at_least(1, "budget", "seats", "prompt"))
def alone(w: SimpleNamespace, rule: Any = EagerPrefill) -> v.Shown:
    """Return a step without prompts so far, with a seat for a request, and any budget."""
    computed = rule.first_chunk(v.unchecked(rule), Batch([], w.budget, w.seats), w.prompt)
    return {"it is computed whole": computed == w.prompt}


def _released() -> Any:
    """Return the rule whose budget holds for a prompt alone, too."""
    return v.changed(EagerPrefill, "first_chunk", "batch.chunks and ", "")


def _ends(w: SimpleNamespace) -> v.Shown:
    """Send two requests to an idle worker, the first with the longer prompt."""
    policy = DistServeLocal(batching=_released()(max_batched_tokens=w.budget))
    play = WorkerPlay(policy, WorkerState(0, w.memory))
    for i, prompt in enumerate(w.prompts):
        play.arrive(Request(i, 0, 0, Prompt(prompt), 1), 1, 0)
    events = [event for now_ns in range(STEPS) for event in play.step(now_ns)]
    ended = {event.request_id for event in events if isinstance(event, Finished)}
    return {f"request {i} is computed": i in ended for i in range(len(w.prompts))}


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """About the rules that ship."""
    return (full(), alone())


def bugs() -> tuple[v.Bug, ...]:
    """Return rules that do not let the first prompt go alone."""
    return (
        v.Bug("the budget holds for a prompt alone", alone(_released())),
        v.Bug("a step too many", full(lambda left, budget: full_steps(left, budget) + 1)),
        v.Bug(
            "the first prompt is cut", alone(v.changed(EagerPrefill, "first_chunk", "return extend_tokens", "return 1"))
        ),
    )


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what the released code does with a prompt above its budget."""
    return (
        v.refuted(
            "F-DS-4",
            "every prompt that memory holds is computed, and those behind it",
            "DistServe (OSDI'24), released code",
            _ends,
            {"budget": 4, "memory": 100, "prompts": [5, 1]},
            variant="a batch takes a prompt only if the budget holds it; `distserve-released` refuses it when it comes",
            instead=P_DS_4.id,
            text="a budget of 4 tokens, a prompt of 5 and one of 1 behind it",
        ),
    )
