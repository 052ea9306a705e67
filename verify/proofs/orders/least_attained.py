"""Least attained service with a half-life: when an order of programs may change, and how long a program may wait.

The order's own `merit` is run on unknown integers.  The bounds add who is let in when, and are tried in drawn worlds of
the shipped policy, whose calls have one output token and take a step of a second.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import LAS
from fairsched.policies.orders import P_LAS_1, P_LAS_2, P_LAS_3, P_LAS_4, LeastAttained
from fairsched.verify import logic as v
from fairsched.verify.proofs.orders.scenarios import arrivals, overtakers

_SCORES = ("share", "less", "spread", "earlier", "span")
_RANGES = (*v.at_least(1, "spread", "span"), *v.at_least(0, "share"), v.Condition(lambda w: w.share <= 100))


def _order(kind: Any, w: SimpleNamespace) -> Any:
    return v.unchecked(kind, wait_percent=w.share)


@v.arithmetic(P_LAS_1, (*_SCORES, "factor"), *_RANGES, *v.at_least(1, "factor"), relaxed=True)
def scaled(w: SimpleNamespace, kind: Any = LeastAttained) -> v.Shown:
    """What is attained is any number of times larger; where the youngest waits longer, all do."""
    merit = _order(kind, w).merit
    later = merit(w.factor * w.less, w.factor * w.spread, w.earlier, w.span)
    return {"all scores are so many times larger": later == w.factor * merit(w.less, w.spread, w.earlier, w.span)}


@v.arithmetic(
    P_LAS_2,
    (*_SCORES, "other_less", "other_earlier"),
    *_RANGES,
    v.Condition(lambda w: w.earlier <= w.other_earlier),
    relaxed=True,
)
def attained_less(w: SimpleNamespace, kind: Any = LeastAttained) -> v.Shown:
    """Its oldest call came no earlier than the other's; of equal scores the older goes first."""
    order = _order(kind, w)
    ahead = order.merit(w.less, w.spread, w.earlier, w.span) - order.merit(
        w.other_less, w.spread, w.other_earlier, w.span
    )
    waits = w.share * w.spread * (w.other_earlier - w.earlier)
    service = (100 - w.share) * w.span * (w.less - w.other_less)
    return {
        "its wait gains it nothing": waits >= 0,
        "the rest is of service, and of no more if it attained less": v.same(ahead, service - waits),
        "it attained less": v.if_then(w.less <= w.other_less, service <= 0),
    }


_COSTS = {"prompt": st.integers(1, 20), "half_life_ms": st.sampled_from([0, 700, 1_000, 3_500])}
_COMING = arrivals(3).map(lambda coming: [coming[0] % 3, max(coming[-1], 1), *coming[1:]])
"""How many come in each step: those of the first beside the program's first call, which is served there, and its next
call as the first of the second."""


def _before(kind: Any, w: SimpleNamespace, programs: int | None, running: int = 1) -> int:
    """Return how many calls of a prompt token are let in before the program's second call; they come from so many other
    programs in turn, or each from its own (None)."""
    second = w.coming[0] + 1
    order = kind(half_life_ms=w.half_life_ms, wait_percent=getattr(w, "wait_percent", 20))
    policy = LAS(order=order, batching=RequestLevel(max_running=running))

    def request(number: int, now_ns: int) -> Request:
        own = number in (0, second)
        client = 0 if own else 1 + (number if programs is None else number % programs)
        return Request(number, client, now_ns, Prompt(w.prompt if number == 0 else 1), 1)

    return overtakers(policy, 1_000, w.coming, request, second)[0] - 1


_FULL: dict[str, Any] = {"prompt": 10, "coming": [0, 3, *[2] * 12], "programs": 2, "running": 1}


@v.sampled(
    P_LAS_3,
    st.fixed_dictionaries(
        {
            **_COSTS,
            "coming": _COMING,
            "programs": st.integers(1, 4),
            "running": st.integers(1, 3),
            "wait_percent": st.integers(0, 100),
        }
    ),
    attained=lambda: _turns(SimpleNamespace(**_FULL, half_life_ms=0)),
)
def let_in_before(w: SimpleNamespace, kind: Any = LeastAttained) -> v.Shown:
    """The program attained its first call; those of the others cost 3."""
    found, bound = _turns(w, kind)
    return {"within the bound": found <= bound}


def _turns(w: SimpleNamespace, kind: Any = LeastAttained) -> tuple[int, int]:
    """Return how many calls are let in before the program's second one, and the bound."""
    attained, least = w.prompt + 2, 1 + 2
    bound = w.coming[0] + w.programs * (-(-attained // least) + w.running - 1)
    return _before(kind, w, w.programs, w.running), bound


@v.sampled(P_LAS_4, st.fixed_dictionaries({**_COSTS, "half_life_ms": st.integers(100, 3_000)}))
def forgotten(w: SimpleNamespace, kind: Any = LeastAttained) -> v.Shown:
    """A new program comes in each step, and one more at first; steps take a second."""
    half_lives = (2 * (w.prompt + 2) * w.half_life_ms).bit_length()
    steps = half_lives * w.half_life_ms // 1_000 + 2
    world = SimpleNamespace(**vars(w), coming=[0, 2, *[1] * (2 * steps)])
    return {"within so many half-lives": _before(kind, world, None) <= steps}


def _like_new(w: SimpleNamespace) -> v.Shown:
    """A new program in its place would be served at once."""
    return {"no program that comes later goes before it": not _before(LeastAttained, w, None)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of the decay."""
    return (
        v.refuted(
            "F-LAS-1",
            "a program that was idle for ten half-lives is served as if it were new",
            "llm-d-router's `program-aware` policy: it decays 'so a long-idle program is not penalized indefinitely'",
            _like_new,
            {"prompt": 200, "half_life_ms": 1_000, "coming": [0, *[0] * 10, 2, *[1] * 5]},
            variant="the order that ships",
            instead=P_LAS_4.id,
            text="scores compare what is left, however little: a call of 200 tokens ten half-lives ago puts a program "
            "behind each new one, as long as one waits",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the order that ships."""
    return (scaled(), attained_less(), let_in_before(), forgotten())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    plain = v.changed(LeastAttained, "merit", "* earlier * spread", "* earlier")
    most = v.changed(LeastAttained, "merit", "* less *", "* -less *")
    fading = v.changed(LeastAttained, "weight", "self.half_life_ms + part_ms", "self.half_life_ms // (1 + part_ms)")
    return (
        v.Bug("waits count beside service and not beside its range", scaled(plain)),
        v.Bug("the most attained service goes first", attained_less(most)),
        v.Bug("new service weighs less than old", let_in_before(fading)),
    )
