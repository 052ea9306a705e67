"""How far a request falls behind in an order that takes requests in batches, in drawn worlds; and what is false."""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Order, ShortestPrompt, SortedBatches
from fairsched.policies.orders.abilities import P_TI_2, TakenBatches
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, refuted, sampled

_CAPACITY = 100
_WORLDS = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "sort": st.sampled_from(["arrival", "shortest", "longest"]),
        "coming": st.lists(st.lists(st.integers(1, 20), max_size=4), min_size=1, max_size=20),
    }
)
"""Prompts of the requests that come before each step."""


def _served(order: Order, w: SimpleNamespace) -> list[int]:
    """Return requests, numbered as they come, in the order in which they are let in: one a step, of one token of
    output."""
    policy = ComposedPolicy("batches", order, OpenGate(), RequestLevel(max_running=1))
    play = WorkerPlay(policy, WorkerState(0, _CAPACITY))
    came, served, step = 0, list[int](), 0
    while step < len(w.coming) or play.worker.queue:
        for tokens in w.coming[step] if step < len(w.coming) else ():
            play.arrive(Request(came, 0, step, Prompt(tokens), 1), 1, step)
            came += 1
        served += admitted(play.step(step))
        step += 1
    return served


def _behind(served: list[int]) -> tuple[int, int]:
    """Return how many later requests were let in before one, at most, and by how many places one moved back, at
    most."""
    overtakers = [sum(later > request for later in served[:place]) for place, request in enumerate(served)]
    return max(overtakers, default=0), max((place - request for place, request in enumerate(served)), default=0)


def _attained() -> tuple[int, int]:
    """Send the longest prompt of a batch of four first."""
    world = SimpleNamespace(batch=4, sort="shortest", coming=[[9, 1, 1, 1, 1]])
    return _behind(_served(SortedBatches(batch_requests=4), world))[0], 3


@sampled(P_TI_2, _WORLDS, attained=_attained)
def falls_behind(w: SimpleNamespace, order: Any = SortedBatches) -> Shown:
    """As the order ships, or a variant of it."""
    overtaken, moved = _behind(_served(order(sort=w.sort, batch_requests=w.batch), w))
    return {"overtaken": overtaken <= w.batch - 1, "moved back": moved <= w.batch - 1}


def claims() -> tuple[SampledClaim, ...]:
    """About what ships."""
    return (falls_behind(),)


class _Refilled(TakenBatches, frozen=True, gc=False):
    """Batches that take one more request for each that goes."""

    def left(self, *gone: Any) -> "_Refilled":
        order, queued, score, group, _ = gone
        after = super().left(order, queued, score, group, False)
        return _Refilled(after.taken)

    def joined(self, *came: Any) -> Any:
        after, queued = super().joined(*came)
        return _Refilled(after.taken), queued


class _RefilledBatches(SortedBatches):
    def extensions(self) -> tuple[Any, ...]:
        return (_Refilled(),)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (Bug("a batch takes one more request for each that goes", falls_behind(_RefilledBatches)),)


def _shortest_stays_near(w: SimpleNamespace) -> Shown:
    """Return one long prompt first, and a short one in each step."""
    world = SimpleNamespace(coming=[[9, 1], *[[1]] * w.steps])
    return {"overtaken by few": _behind(_served(ShortestPrompt(), world))[0] <= w.batch - 1}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return what shortest prompt first does without batches."""
    return (
        refuted(
            "F-TI-4",
            "shortest prompt first lets a bounded number of later requests in before any",
            "TetriInfer's SJF, if batches are forgotten",
            _shortest_stays_near,
            {"steps": 30, "batch": 16},
            variant="`shortest-prompt`, which sorts all that wait",
            instead=P_TI_2.id,
            text="a short prompt comes in every step: the long one waits as long as that goes on",
        ),
    )
