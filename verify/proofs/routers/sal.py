"""SAL: P-SAL-1 to 3, about `terms` and `route` as they ship, for any number of workers.

`route` keeps of all workers that it has looked at only the one chosen so far, so what it does with one more is what it
does with two.  P-SAL-least shows that it keeps the better of two, and that "better" is transitive; so of any number it
chooses one that none is better than.  P-SAL-1 then is about two workers.

Outputs are thought not to grow since the poll (`decode_step_us` is None).
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
from immutables import Map

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.theorem import Theorem
from fairsched.policies import routers
from fairsched.verify import logic as v

_LENGTHS = ("tokens", "step_tokens", "mean_in", "mean_out")


def _terms(kind: Any, w: SimpleNamespace, free: Any, queued: Any, running: Any) -> Any:
    """Return the load of a worker of which this is thought."""
    router = v.unchecked(kind, max_batched_tokens=w.step_tokens)
    return router.terms(w.tokens, routers.sal.Estimate(free, queued, running), 0, (w.mean_in, w.mean_out))


def _running(*names: str) -> tuple[v.Condition, ...]:
    """Suppose that running requests are none, or at least one: said so that it holds for real numbers too."""
    return tuple(v.Condition(lambda w, n=n: (getattr(w, n) == 0) | (getattr(w, n) >= 1)) for n in names)  # type: ignore[misc]


# --- which of two loads is less ---------------------------------------------------------------------------------------


def _pair(
    theorem: Theorem, kind: Any, conditions: tuple[v.Condition, ...], shows: Callable[[Any, Any], Mapping[str, Any]]
) -> v.ArithmeticClaim:
    """About the loads of two workers; what the `conditions` say of the other one."""
    names = ("free", "queued", "running", "other_free", "other_queued", "other_running")
    return v.ArithmeticClaim(
        theorem,
        (*_LENGTHS, *names),
        (
            *v.at_least(1, *_LENGTHS),
            *v.at_least(0, "queued", "other_queued"),
            *_running("running", "other_running"),
            *conditions,
        ),
        lambda w: shows(
            _terms(kind, w, w.free, w.queued, w.running), _terms(kind, w, w.other_free, w.other_queued, w.other_running)
        ),
        relaxed=True,
    )


_WORSE = v.Condition(lambda w: (w.other_free < w.free) & (w.other_queued > w.queued))


def _the_load_is_less(one: Any, other: Any) -> Mapping[str, Any]:
    return {"the load is less": one[0] * other[2] < other[0] * one[2]}


def worse_in_both(kind: Any = routers.SAL) -> v.ArithmeticClaim:
    """Let the other be worse in both, and no busier."""
    no_busier = v.Condition(lambda w: w.other_running <= w.running, routers.sal.NO_BUSIER)
    return _pair(routers.sal.P_SAL_1, kind, (_WORSE, no_busier), _the_load_is_less)


def worse_in_both_printed(kind: Any = routers.SALPrinted) -> v.ArithmeticClaim:
    """Let the other be worse in both, however many run."""
    return _pair(routers.sal.P_SAL_1_PRINTED, kind, (_WORSE,), _the_load_is_less)


def worse_in_one(kind: Any = routers.SAL, theorem: Theorem = routers.sal.P_SAL_TIES) -> v.ArithmeticClaim:
    """Let the other be worse in one and no better in the other."""
    conditions = (
        v.Condition(lambda w: (w.other_free <= w.free) & (w.other_queued >= w.queued)),
        v.Condition(lambda w: (w.other_free < w.free) | (w.other_queued > w.queued)),
        v.Condition(lambda w: w.other_running == w.running),
    )
    return _pair(theorem, kind, conditions, lambda one, other: {"it is the better one": _is_less(one, other)})


def monotone(theorem: Theorem = routers.sal.P_SAL_2, kind: Any = routers.SAL) -> v.ArithmeticClaim:
    """`freed` tokens more are free and `served` fewer are queued."""

    def shows(w: SimpleNamespace) -> v.Shown:
        after = _terms(kind, w, w.free + w.freed, w.queued, w.running)
        before = _terms(kind, w, w.free, w.queued + w.served, w.running)
        return {"the load is no more": after[0] * before[2] <= before[0] * after[2]}

    conditions = (*v.at_least(1, *_LENGTHS), *v.at_least(0, "queued", "freed", "served"), *_running("running"))
    names = (*_LENGTHS, "free", "queued", "running", "freed", "served")
    return v.ArithmeticClaim(theorem, names, conditions, shows, relaxed=True)


# --- who is chosen ----------------------------------------------------------------------------------------------------

_LOADS = tuple((f"high_{x}", f"low_{x}", f"of_{x}", f"queued_{x}", f"owed_{x}") for x in "abc")
"""What `terms` returns for three workers; the free memory is -owed."""


def _is_less(x: Any, y: Any) -> Any:
    """Return the order of loads: by the larger term, the smaller one, the queue, the free memory; ratios by
    products."""
    high, other_high = x[0] * y[2], y[0] * x[2]
    low, other_low = x[1] * y[2], y[1] * x[2]
    last = (x[3] < y[3]) | ((x[3] == y[3]) & (x[4] < y[4]))
    return (high < other_high) | ((high == other_high) & ((low < other_low) | ((low == other_low) & last)))


def _chosen(kind: Any, first: Any, second: Any) -> int:
    """Return which of two workers whose loads are these `route` sends a request to."""

    class Given(kind):  # type: ignore[misc]
        """A router that takes loads as they are given."""

        def terms(self, tokens: Any, estimate: Any, steps: Any, ratio: Any) -> Any:
            """Return the load itself."""
            return first if estimate.running_requests == 0 else second

    view = ClusterView(0, (WorkerLoad(0, 0, 0, 0, 0, 0), WorkerLoad(1, 0, 1, 0, 0, 0)))
    router = v.unchecked(Given)
    request: Any = SimpleNamespace(id=0, prompt=SimpleNamespace(tokens=1))
    dispatch, _ = router.route(router.init(), request, view)
    return int(dispatch.worker)


@v.arithmetic(
    routers.sal.P_SAL_LEAST,
    tuple(name for load in _LOADS for name in load),
    *v.at_least(1, "of_a", "of_b", "of_c"),
    *v.at_least(0, "high_a", "high_b", "high_c"),
    relaxed=True,
)
def least(w: SimpleNamespace, kind: Any = routers.SAL) -> v.Shown:
    """About any three loads: `route` between a and b, and the order among all."""
    a, b, c = (tuple(getattr(w, name) for name in names) for names in _LOADS)
    changes = _chosen(kind, a, b) == 1
    return {
        "the second is chosen if it is better": v.if_then(_is_less(b, a), changes),
        "and otherwise not": v.if_then(changes, _is_less(b, a)),
        "who is not better than b, nor b than c, is not better than c": _is_less(b, a)
        | _is_less(c, b)
        | v.if_then(_is_less(c, a), False),
    }


# --- between polls ----------------------------------------------------------------------------------------------------


def between_polls(kind: Any = routers.SAL) -> v.ArithmeticClaim:
    """Return what is thought of a worker, and how it is: `free` and `waiting` tokens.

    At a poll, at every request that is sent, and between two of them, what is thought free and what waits is together
    no more than what is free, and what is thought queued no less than what waits.
    """

    def sent(polled_ns: int, thought: Any, w: SimpleNamespace) -> Any:
        request: Any = SimpleNamespace(id=0, prompt=SimpleNamespace(tokens=w.tokens))
        router, load = kind(poll_us=1), WorkerLoad(0, 0, 1, w.waited, w.free, 0)
        _, state = router.route(routers.sal.SALState(polled_ns, Map({0: thought})), request, ClusterView(0, (load,)))
        return state.estimates[0]

    def shows(w: SimpleNamespace) -> v.Shown:
        thought = routers.sal.Estimate(w.thought_free, w.thought_queued, 1)
        polled, later = sent(-1, thought, w), sent(0, thought, w)
        free = w.free - w.admitted + w.ended - w.grown + w.preempted
        waiting = w.waiting - w.admitted + w.preempted + w.others
        return {
            "polled, and a request sent": (polled.kv_free_tokens + w.waited + w.tokens <= w.free)
            & (polled.queued_tokens >= w.waited + w.tokens),
            "a request sent": (later.kv_free_tokens + w.waiting + w.tokens <= w.free)
            & (later.queued_tokens >= w.waiting + w.tokens),
            "meanwhile, free": w.thought_free + waiting <= free,
            "meanwhile, queued": w.thought_queued >= waiting,
            "free is not overestimated": v.if_then(waiting >= 0, w.thought_free <= free),
        }

    zero = {
        "others": routers.sal.ONE_ROUTER,
        "grown": routers.sal.OUTPUTS_RESERVED,
        "preempted": routers.sal.NOBODY_PREEMPTED,
        "waited": routers.sal.NOBODY_WAITED,
    }
    conditions = (
        *v.at_least(1, "tokens"),
        *v.at_least(0, "waiting", "admitted", "ended", *zero),
        v.Condition(lambda w: w.admitted <= w.waiting),
        v.Condition(lambda w: w.thought_free + w.waiting <= w.free),
        v.Condition(lambda w: w.thought_queued >= w.waiting),
        *(v.Condition(lambda w, n=n: getattr(w, n) == 0, assumption) for n, assumption in zero.items()),  # type: ignore[misc]
    )
    names = ("tokens", "free", "waiting", "thought_free", "thought_queued", "admitted", "ended", *zero)
    return v.ArithmeticClaim(routers.sal.P_SAL_3, names, conditions, shows)


# --- what is false ----------------------------------------------------------------------------------------------------


def _room_first(name: str, kind: Any) -> v.ArithmeticClaim:
    theorem = Theorem(name, "SAL sends no request to a worker without room while another has room", "folklore", ())
    room = v.Condition(lambda w: (w.free >= w.tokens) & (w.other_free < w.tokens))
    return _pair(
        theorem, kind, (room,), lambda one, other: {"the load is no more": one[0] * other[2] <= other[0] * one[2]}
    )


def _never_underestimated() -> v.ArithmeticClaim:
    theorem = Theorem(
        "F-SAL-2", "between polls SAL never thinks a worker better than it is", "the paper, on its polls", ()
    )
    claim = between_polls()
    unsaid = (routers.sal.OUTPUTS_RESERVED, routers.sal.NOBODY_PREEMPTED)
    kept = tuple(condition for condition in claim.conditions if condition.assumption not in unsaid)
    return attrs.evolve(claim, theorem=theorem, conditions=kept)


def _no_tie_hides() -> v.ArithmeticClaim:
    statement = "of workers that run as many requests none is chosen that is worse in one and no better in the other"
    return worse_in_one(routers.SALPrinted, Theorem("F-SAL-3", statement, "folklore", ()))


_CHAT = {"tokens": 100, "step_tokens": 1024, "mean_in": 1154, "mean_out": 211}
_CODE = {"tokens": 100, "step_tokens": 1024, "mean_in": 2047, "mean_out": 27}
"""The paper's mean lengths, and tokens a step."""


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of SAL."""
    one = {"running": 1, "other_running": 1}
    return (
        v.RefutedClaim(
            _room_first("F-SAL-1", routers.SAL),
            "what ships: a deficit of one token is a short wait, and a queue of 8,000 a long one",
            routers.sal.P_SAL_1.id,
            "100 tokens free and 8,000 queued, or 99 free and none queued, for a prompt of 100",
            {**_CHAT, **one, "free": 100, "queued": 8_000, "other_free": 99, "other_queued": 0},
        ),
        v.RefutedClaim(
            _room_first("F-SAL-1-printed", routers.SALPrinted),
            "as printed, from 78,559 queued tokens on",
            routers.sal.P_SAL_1_PRINTED.id,
            "100 tokens free and 78,559 queued, or 99 free and none queued, for a prompt of 100",
            {**_CODE, **one, "free": 100, "queued": 78_559, "other_free": 99, "other_queued": 0},
        ),
        v.RefutedClaim(
            _never_underestimated(),
            "workers whose outputs grow, or that preempt",
            routers.sal.P_SAL_3.id,
            "one token decoded since the poll",
            {
                **dict.fromkeys(("waiting", "admitted", "ended", "others", "preempted", "waited"), 0),
                **{"tokens": 1, "free": 10, "thought_free": 10, "thought_queued": 0, "grown": 1},
            },
        ),
        v.RefutedClaim(
            _no_tie_hides(),
            "as printed: `max` hides the smaller term, and equal loads go to the lowest id",
            routers.sal.P_SAL_TIES.id,
            "queues of 9,000 at both, 101 or 200 tokens free, for a prompt of 100",
            {**_CHAT, **one, "free": 200, "queued": 9_000, "other_free": 101, "other_queued": 9_000},
        ),
    )


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """About the routers that ship."""
    printed = monotone(routers.sal.P_SAL_2_PRINTED, routers.SALPrinted)
    return (worse_in_both(), worse_in_both_printed(), monotone(), printed, worse_in_one(), between_polls(), least())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    more, more_printed = (
        v.changed(kind, "terms", "- estimate.kv_free", "+ estimate.kv_free")
        for kind in (routers.SAL, routers.SALPrinted)
    )
    forgets_memory = v.changed(routers.SAL, "route", "kv_free_tokens - tokens", "kv_free_tokens")
    forgets_queue = v.changed(routers.SAL, "route", "queued_tokens + tokens", "queued_tokens")
    return (
        v.Bug("free memory is a deficit", worse_in_both(more)),
        v.Bug("equal loads are equal", worse_in_one(v.changed(routers.SAL, "terms", "-estimate.kv_free_tokens", "0"))),
        v.Bug("as printed, free memory is a deficit", worse_in_both_printed(more_printed)),
        v.Bug("free memory raises the load", monotone(kind=more)),
        v.Bug("as printed, it raises the load", monotone(routers.sal.P_SAL_2_PRINTED, more_printed)),
        v.Bug("what was sent takes no memory", between_polls(forgets_memory)),
        v.Bug("what was sent is not queued", between_polls(forgets_queue)),
        v.Bug("the last of equals", least(v.changed(routers.SAL, "route", "mine < others", "mine <= others"))),
        v.Bug("no word on equals", least(v.changed(routers.SAL, "route", "_wins_tie(terms, least)", "False"))),
    )
