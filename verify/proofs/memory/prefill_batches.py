"""Whole prompts in batches: P-DS-4, the first prompt of a step may have any length, and F-DS-4, the rule of DistServe's
released code, which computes no prompt above its budget.
"""

from types import SimpleNamespace
from typing import Any

from fairsched.model.events import Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import P_DS_4, Batch, EagerPrefill
from fairsched.policies.catalog import DistServeLocal
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import ArithmeticClaim, Bug, RefutedClaim, Shown, at_least, changed, refuted, unchecked
from fairsched.verify.proofs import arithmetic

STEPS = 50
"""A prompt that is not computed in so many steps of an idle worker is never computed: nothing changes between them."""


@arithmetic(P_DS_4, ("budget", "seats", "prompt"), *at_least(1, "budget", "seats", "prompt"))
def alone(w: SimpleNamespace, rule: Any = EagerPrefill) -> Shown:
    """A step without prompts so far, with a seat for a request, and any budget."""
    computed = rule.first_chunk(unchecked(rule), Batch([], w.budget, w.seats), w.prompt)
    return {"it is computed whole": computed == w.prompt}


def _released() -> Any:
    """The rule whose budget holds for a prompt alone, too."""
    return changed(EagerPrefill, "first_chunk", "batch.chunks and ", "")


def _ends(w: SimpleNamespace) -> Shown:
    """Two requests come to an idle worker, the first with the longer prompt."""
    policy = DistServeLocal(batching=_released()(max_batched_tokens=w.budget))
    play = WorkerPlay(policy, WorkerState(0, w.memory))
    for i, prompt in enumerate(w.prompts):
        play.arrive(Request(i, 0, 0, Prompt(prompt), 1), 1, 0)
    events = [event for now_ns in range(STEPS) for event in play.step(now_ns)]
    ended = {event.request_id for event in events if isinstance(event, Finished)}
    return {f"request {i} is computed": i in ended for i in range(len(w.prompts))}


def claims() -> tuple[ArithmeticClaim, ...]:
    """About the rule that ships."""
    return (alone(),)


def bugs() -> tuple[Bug, ...]:
    """Rules that do not let the first prompt go alone."""
    return (
        Bug("the budget holds for a prompt alone", alone(_released())),
        Bug("the first prompt is cut", alone(changed(EagerPrefill, "first_chunk", "return extend_tokens", "return 1"))),
    )


def refutations() -> tuple[RefutedClaim, ...]:
    """What the released code does with a prompt above its budget."""
    return (
        refuted(
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
