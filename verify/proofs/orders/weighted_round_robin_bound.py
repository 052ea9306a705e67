"""PG-1: after how many picks a request of a priority group is let in.

PG-turns, proved of the kernel for any number of groups (`fairsched.verify.proofs.orders.weighted_round_robin`),
counts in turns of its group; here turns become the number that ships.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec

from fairsched.model.events import Arrived, Cached, Evicted, Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import PriorityGroups
from fairsched.policies.orders.abilities import PG_1, PG_GROUPS, picks_max, round_picks, turns_max
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import weighted_round_robin


def attained() -> tuple[int, int]:
    """Return the longest wait of the fourth of group 2 of 3, whenever in a round it comes, and its bound."""
    longest = max(picks(3, 2, 4, offset) for offset in range(round_picks(3)))
    return longest, picks_max(4, turns_max(4, 2), 2, round_picks(3))


@v.arithmetic(
    PG_1,
    ("k", "g", "N", "R", "others", "own"),
    *v.at_least(1, "g"),
    v.Condition(lambda w: w.g <= w.N),
    *v.at_least(1, "k"),
    *v.at_least(0, "R"),
    v.Condition(lambda w: w.others <= w.R * (w.N - w.g)),
    v.Condition(lambda w: w.own >= (w.R - 1) * w.g),
    v.Condition(lambda w: w.own <= w.k - 1),
    attained=attained,
)
def _bound(w: SimpleNamespace, functions: v.Functions = weighted_round_robin) -> v.Shown:
    """PG-turns, with R a number, gives the bound that ships."""
    turns_max = functions.turns_max(w.k, w.g)
    bound = functions.picks_max(w.k, turns_max, w.g, w.N)
    return {
        "k <= ceil(k/g) g": w.k <= turns_max * w.g,
        "(R - 1 - ceil(k/g)) g < 0": (w.R - 1 - turns_max) * w.g <= -1,
        "R <= ceil(k/g)": turns_max >= w.R,
        "(ceil(k/g) - R) (N - g) >= 0": (turns_max - w.R) * (w.N - w.g) >= 0,
        "others + k <= bound": w.others + w.k <= bound,
        "bound <= ceil(k/g) N": bound <= turns_max * w.N,
    }


@v.arithmetic(PG_GROUPS, ("g",), *v.at_least(1, "g"))
def _groups(w: SimpleNamespace, functions: v.Functions = weighted_round_robin) -> v.Shown:
    """By induction: what is below group g is a round of g - 1 groups."""
    return {
        "no groups, no picks": functions.round_picks(w.g - w.g) == 0,
        "with group g there are g more": functions.round_picks(w.g) == functions.round_picks(w.g - 1) + w.g,
    }


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """About the functions that ship."""
    return (_groups(), _bound())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (
        v.Bug("a turn too few is waited", _bound(turns_max=lambda position, quota: position // quota)),
        v.Bug("its own group's turns are not counted", _bound(picks_max=lambda k, m, g, n: m * (n - g))),
        v.Bug("the highest group is left out of a round", _groups(round_picks=lambda p: p * (p - 1) // 2)),
    )


# --- where the bound is reached ---------------------------------------------------------------------------------------

Script = Sequence[Sequence[Any]]

_EMPTY = WorkerState(0, 1 << 20).view(0)
_SOURCE = "Preble (ICLR'25), the local scheduler"


def _policy(order: PriorityGroups) -> ComposedPolicy:
    return ComposedPolicy("played", order, OpenGate(), Chunked(max_running=1))


def _lets_in(policy: ComposedPolicy, state: Any) -> tuple[int, Any]:
    """Return the one request that is let in, and the state once it has finished."""
    plan, state = policy.decide(state, _EMPTY)
    (admission,) = plan.admit
    return admission.request_id, policy.observe(state, Finished(0, 0, admission.request_id, 0, 1))


def played(order: PriorityGroups, script: Script) -> list[int]:
    """Return who is let in by the shipped policy with this order, one by one."""
    policy = _policy(order)
    state, let_in = policy.init(), list[int]()
    for word, *values in script:
        match word:
            case "come":
                request_id, keys = values
                state = policy.observe(state, Arrived(0, 0, Request(request_id, 0, 0, Prompt.from_keys(keys), 1)))
            case "cache":
                prompt = Prompt.from_keys(values[0])
                state = policy.observe(state, Cached(0, 0, -1, prompt, prompt.blocks))
                state = msgspec.structs.replace(state, cache=state.cache.release(-1))
            case "evict":
                prompt = Prompt.from_keys(values[0])
                state = policy.observe(state, Evicted(0, 0, -1, prompt, 0, prompt.blocks))
            case "let in":
                request_id, state = _lets_in(policy, state)
                let_in.append(request_id)
            case _:
                raise ValueError(f"a script has no word {word!r}")
    return let_in


@attrs.frozen
class _Told(PriorityGroups):
    """Groups as the requests say themselves, so that group P has some."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        return request.priority


def picks(groups: int, quota: int, position: int, offset: int) -> int:
    """Return after how many picks a request is in, if all groups are full, so many picks of a round are over, and it is
    the `position`-th of its group then."""
    policy = _policy(_Told(groups))
    state, many = policy.init(), position + 2 * round_picks(groups)
    for request_id in range(groups * many * position):
        group = 1 + request_id % groups
        state = policy.observe(state, Arrived(0, 0, Request(request_id, 0, 0, Prompt(1), 1, priority=group)))
    waiting = [i for i in range(groups * many * position) if 1 + i % groups == quota]
    target, count = -1, 0
    while True:
        if count == offset:
            target = waiting[position - 1]
        let_in, state = _lets_in(policy, state)
        count += 1
        if let_in in waiting[: position + 1]:
            waiting.remove(let_in)
        if let_in == target:
            return count - offset


# --- what is false ----------------------------------------------------------------------------------------------------

_COLD, _WARM, _OWN = [90, 91, 92, 93], [1, 2], 100
_COLD_ID = 0


def _regrouped() -> Mapping[str, Any]:
    """Cache a request's prefix whenever the turn of its low group comes, and evict it before that of its high one.

    Two others wait in each group all the time.
    """
    script: list[list[Any]] = [["cache", _WARM], ["come", _COLD_ID, _COLD]]
    number = 1

    def others(keys: list[int]) -> list[list[Any]]:
        nonlocal number
        number += 1
        return [["come", number, [*keys, _OWN + number]]]

    for _ in range(2):
        script += others(_WARM) + others([80, 81, 82])
    for _ in range(4):
        script += [["let in"], *others(_WARM), ["let in"], *others(_WARM)]
        script += [["cache", _COLD], ["let in"], *others([80, 81, 82]), ["evict", _COLD]]
    return {"groups": 3, "position": 1, "script": script}


def _waits_at_most(theorem: Theorem, fields: Mapping[str, Any], world: Mapping[str, Any]) -> v.SampledClaim:
    """State that the request is in after at most as many picks as PG-1 allows in the lowest group."""

    def shows(w: SimpleNamespace) -> v.Shown:
        script = tuple(w.script)
        begin = next(i for i, (word, *values) in enumerate(script) if word == "come" and values[0] == _COLD_ID)
        before = sum(word == "let in" for word, *_ in script[:begin])
        let_in = played(PriorityGroups(groups=w.groups, **fields), script)[before:]
        bound = picks_max(w.position, turns_max(w.position, 1), 1, round_picks(w.groups))
        return {"it is let in within the bound": _COLD_ID in let_in[:bound]} if len(let_in) >= bound else {}

    return v.SampledClaim(theorem, lambda: (world,), shows)


def regrouped_request(**fields: Any) -> v.SampledClaim:
    """F-PG-2 about priority groups with these fields."""
    statement = "the bound on a wait holds if a waiting request's group follows the cache, down as well as up"
    theorem = Theorem("F-PG-2", statement, _SOURCE, (), scope=Scope.BOUNDED)
    return _waits_at_most(theorem, fields, _regrouped())


def share_of_a_batch() -> v.ArithmeticClaim:
    """Of a batch of `b`, group g of those of sum N gets the whole part of b g / N, as a batch by itself would give."""

    statement = "every group gets its share of every batch, rounded down, and so does not starve"
    return v.ArithmeticClaim(
        Theorem("F-PG-1-batch", statement, _SOURCE, ()),
        ("b", "g", "N"),
        (v.Condition(lambda w: (w.b >= 1) & (w.g >= 1)), v.Condition(lambda w: w.g <= w.N)),
        lambda w: {"each group gets something": w.b * w.g // w.N >= 1},
    )


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return the false statements, in this order."""
    return (
        v.RefutedClaim(
            share_of_a_batch(),
            "quotas are parts of each batch, rounded down",
            PG_1.id,
            "ten groups, N = 55, batches of 8: group 6 gets 8 x 6 // 55 = 0 of each",
            {"b": 8, "g": 6, "N": 55},
        ),
        v.RefutedClaim(
            regrouped_request(variant="released"),
            "a waiting request is grouped anew whenever the cache changes (released code)",
            PG_1.id,
            "three groups: a prefix cached for each turn of the low group and evicted for the high one's: 12 of 12",
            _regrouped(),
        ),
    )
