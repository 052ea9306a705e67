"""Prompts and the budget of a step: P-full, for how many steps one prompt takes all of it; P-DS-4, of whole prompts the
first in a step may have any length; F-DS-4, the rule of DistServe's released code, which computes no prompt above its
budget; and FairBatching's time for prompts, P-FB-1 and P-FB-2, which does not bound how many decode (F-FB-1).
"""

from types import SimpleNamespace
from typing import Any

from fairsched.model.events import Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import (
    DECODES_FIT,
    P_DS_4,
    P_FB_1,
    P_FB_2,
    P_FULL,
    STEPS_AS_ESTIMATED,
    Batch,
    EagerPrefill,
    FairBatching,
    chunks_of,
    due_ns,
    full_steps,
    tokens_within,
)
from fairsched.policies.catalog import FCFS, DistServeLocal
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


_STEP = ("slack", "tpot", "decode", "token_ns")
"""The least slack and the least time a token of requests that decode, what they are estimated to take, and a token."""
_FITS = (
    *v.at_least(1, "token_ns"),
    *v.at_least(0, "decode"),
    v.Condition(lambda w: w.decode + w.token_ns <= w.tpot, DECODES_FIT),
)


@v.arithmetic(P_FB_1, _STEP, *_FITS, attained=lambda: (3 + 2 * tokens_within(9, 5, 3, 2), 9))
def within(w: SimpleNamespace, tokens: Any = tokens_within) -> v.Shown:
    """As many tokens of prompts as there may be."""
    lasts = w.decode + w.token_ns * tokens(w.slack, w.tpot, w.decode, w.token_ns)
    return {"the least slack or time a token": (lasts <= w.slack) | (lasts <= w.tpot)}


def _stays_late() -> tuple[int, int]:
    """Return how late the last of three tokens is whose first came 8 ns late, and 8: prompts fill the time between."""
    rule = FairBatching(ttft_ns=2, tpot_ns=10, step_ns=0, token_ns=1, request_ns=1, context_token_ns=0)
    return lateness(rule, [(0, 10, 3), (1, 30, 1)], 100)[0][-1], 8


@v.arithmetic(
    P_FB_2,
    (*_STEP, "arrival", "ttft", "own_tpot", "token", "now", "lasts", "late"),
    *_FITS,
    *v.at_least(0, "token", "late"),
    v.Condition(lambda w: w.tpot <= w.own_tpot),
    v.Condition(lambda w: w.now - due_ns(w.arrival, w.ttft, w.own_tpot, w.token) <= w.late),
    v.Condition(lambda w: w.slack <= due_ns(w.arrival, w.ttft, w.own_tpot, w.token + 1) - w.now),
    v.Condition(
        lambda w: w.lasts <= w.decode + w.token_ns * tokens_within(w.slack, w.tpot, w.decode, w.token_ns),
        STEPS_AS_ESTIMATED,
    ),
    attained=_stays_late,
)
def no_later(w: SimpleNamespace, due: Any = due_ns) -> v.Shown:
    """The step begins when the request's token came, at most so late, and ends when its next one comes."""
    return {"as late at most": w.now + w.lasts - due(w.arrival, w.ttft, w.own_tpot, w.token + 1) <= w.late}


def lateness(rule: FairBatching, rows: list[tuple[int, int, int]], capacity: int) -> dict[int, list[int]]:
    """Return how much later than due the tokens of each request came, first come first served, where steps last as long
    as estimated.  Requests are (arrival in ns, prompt, output) in order of arrival."""
    play, now, coming = WorkerPlay(FCFS(batching=rule), WorkerState(0, capacity)), 0, list(enumerate(rows))
    late: dict[int, list[int]] = {}
    while coming or play.worker.queue or play.worker.running:
        while coming and coming[0][1][0] <= now:
            number, (arrival, prompt, output) = coming.pop(0)
            play.arrive(Request(number, 0, arrival, Prompt(prompt), output), output, arrival)
        plan, view = play.decide(now), play.worker.view(now)
        decoding = {i: flight.decoded_tokens(view.clock) for i, flight in view.in_flight.items() if flight.decodes}
        context = sum(view.in_flight[i].context_tokens + decoded for i, decoded in decoding.items())
        prompts = sum(tokens for _, tokens in plan.chunks)
        lasts = rule.decode_ns(len(decoding), context) + rule.token_ns * prompts
        ended = {e.request_id for e in play.execute(plan, now, took_ns=lasts) if isinstance(e, Finished)}
        now += lasts if decoding or prompts else 1
        after = play.worker.view(now).in_flight
        first = {i for i, _ in plan.chunks if i in ended or after[i].decodes}
        for i in first | decoding.keys():
            arrival, tokens = rows[i][0], late.setdefault(i, [])
            tokens.append(now - due_ns(arrival, rule.ttft_ns, rule.tpot_ns, len(tokens)))
    return late


def _keeps_targets(w: SimpleNamespace) -> v.Shown:
    """Let so many requests of one token come at once, with outputs of two."""
    rule = FairBatching(ttft_ns=w.ttft, tpot_ns=w.tpot, step_ns=0, token_ns=1, request_ns=1, context_token_ns=0)
    late = lateness(rule, [(0, 1, 2)] * w.requests, 3 * w.requests)
    return {"in time after a first token in time": all(tokens[0] > 0 or max(tokens) <= 0 for tokens in late.values())}


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
    return (full(), alone(), within(), no_later())


def bugs() -> tuple[v.Bug, ...]:
    """Return rules that do not let the first prompt go alone."""
    return (
        v.Bug("the budget holds for a prompt alone", alone(_released())),
        v.Bug("a step too many", full(lambda left, budget: full_steps(left, budget) + 1)),
        v.Bug(
            "the first prompt is cut", alone(v.changed(EagerPrefill, "first_chunk", "return extend_tokens", "return 1"))
        ),
        v.Bug("decodes take no time", within(lambda slack, tpot, _, token: tokens_within(slack, tpot, 0, token))),
        v.Bug(
            "a token is due when the one before was",
            no_later(lambda came, ttft, tpot, token: due_ns(came, ttft, tpot, token - 1)),
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
        v.refuted(
            "F-FB-1",
            "a budget by slack violates no target for the time a token",
            "FairBatching (arXiv 2510.14392), abstract",
            _keeps_targets,
            {"requests": 12, "ttft": 12, "tpot": 10},
            variant="the rule that ships, which bounds prompts and not how many decode",
            instead=P_FB_2.id,
            text="twelve prompts of one token fit into a step; their decodes take 12 ns where 10 are due",
        ),
    )
