"""What is true of priority with ageing: two requests of it, on any integers; and what is said of it and false.

`policies.orders.ageing.key` is plain arithmetic, run here on unknown integers; what holds for any two requests holds
for a queue.  P-AGE-3 adds who is let in before whom, and is tried in drawn worlds of the shipped policy.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import Ageing
from fairsched.policies.orders import P_AGE_1, P_AGE_2, P_AGE_3, AgeingOrder, key, key_factors
from fairsched.verify import logic as v
from fairsched.verify.proofs.orders.scenarios import arrivals, overtakers

_TWO = ("boost", "level", "wait", "other_wait", "priority", "other_priority")
"""Two requests: what a microsecond and what a level count, when each came, and how high it is."""
_POSITIVE = v.Condition(lambda w: (w.boost >= 1) & (w.level >= 1))


def _keys(w: SimpleNamespace, run: Any) -> tuple[Any, Any]:
    return run(w.boost, w.level, w.wait, w.priority), run(w.boost, w.level, w.other_wait, w.other_priority)


@v.arithmetic(P_AGE_1, (*_TWO, "now"), _POSITIVE)
def as_priority_and_wait(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """At `now`, with the same factors; the larger goes first."""
    one, other = _keys(w, run)
    raised = w.level * w.priority + w.boost * (w.now - w.wait)
    other_raised = w.level * w.other_priority + w.boost * (w.now - w.other_wait)
    before, higher = one < other, raised > other_raised
    return {"the same order": v.if_then(before, higher) & v.if_then(higher, before)}


def _at_the_horizon() -> tuple[int, int]:
    """Return how much later the last one came that is not behind another 8 levels below it, in microseconds."""
    boost, level, above = 2, 3, 8
    before = [later for later in range(50) if key(boost, level, later, above) <= key(boost, level, 0, 0)]
    return max(before), level * above // boost


@v.arithmetic(
    P_AGE_2,
    (*_TWO, "above"),
    _POSITIVE,
    v.Condition(lambda w: (w.other_priority - w.priority <= w.above) & (w.above >= 0)),
    v.Condition(lambda w: w.boost * (w.other_wait - w.wait) > w.level * w.above),
    attained=_at_the_horizon,
)
def horizon(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """`other` came so much later; `above` is D."""
    one, other = _keys(w, run)
    return {
        "of priority": w.level * (w.other_priority - w.priority) <= w.level * w.above,
        "the later one is behind": one < other,
    }


# --- let in before --------------------------------------------------------------------------------------------------

_BOOST = 4
"""Levels a second."""


def _overtakers(order: AgeingOrder, w: SimpleNamespace) -> int:
    """Who is let in before the one of the lowest priority that comes first of all."""
    policy = Ageing(order=order, batching=RequestLevel(max_running=1))

    def request(number: int, now_ns: int) -> Request:
        return Request(number, 0, now_ns, Prompt(1), 1, priority=w.above * (number > 0))

    return overtakers(policy, 10, w.coming, request)[0]


@v.sampled(P_AGE_3, st.fixed_dictionaries({"coming": arrivals(3), "above": st.integers(0, 60)}))
def let_in_before(w: SimpleNamespace, order: type[AgeingOrder] = AgeingOrder) -> v.Shown:
    """Up to `rho` a step come, and `sigma` more at once; all are `above` levels above the first."""
    before, rho, sigma = _overtakers(order(1_000 * _BOOST), w), max(w.coming[1:], default=0), w.coming[0]
    return {"within the bound": before * _BOOST <= (sigma + rho) * _BOOST + rho * w.above}


# --- what is false --------------------------------------------------------------------------------------------------


def _highest_next(w: SimpleNamespace) -> v.Shown:
    """Return a copy with a boost of one level a second."""
    low, high = (key(*key_factors(1_000), wait_us, high) for wait_us, high in ((0, 0), (w.later_us, w.above)))
    return {"the higher first": high < low}


def _never_starves(w: SimpleNamespace) -> v.Shown:
    return {"not every request goes first": _overtakers(AgeingOrder(0), w) < len(w.coming)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of priorities."""
    return (
        v.refuted(
            "F-AGE-1",
            "the request of the highest priority goes next",
            "priority with ageing, as it is told",
            _highest_next,
            {"above": 1, "later_us": 1_000_001},
            variant="the order that ships: its waits count too",
            instead=P_AGE_1.id,
            text="one level above, and came a second and a microsecond later: the older goes first",
            worlds=lambda: ({"above": 1, "later_us": later_us} for later_us in (0, 1_000_001)),
        ),
        v.refuted(
            "F-AGE-2",
            "no request waits for ever",
            "strict priority, as it is hoped",
            _never_starves,
            {"coming": [1] * 30, "above": 1},
            variant="the order that ships, with a boost of 0",
            instead=P_AGE_3.id,
            text="one request of a higher priority comes in every step, and one is served",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the order that ships."""
    return (as_priority_and_wait(), horizon(), let_in_before())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""

    def added(boost: Any, level: Any, wait: Any, priority: Any) -> Any:
        return key(boost, -level, wait, priority)

    def doubled(boost: Any, level: Any, wait: Any, priority: Any) -> Any:
        return key(boost, level, wait, priority + priority)

    timeless = v.changed(AgeingOrder, "keys", "*key_factors(self.boost_milli)", "0, 1")
    return (
        v.Bug("low priorities first", as_priority_and_wait(added)),
        v.Bug("a priority counts twice", horizon(doubled)),
        v.Bug("waits count for nothing", let_in_before(timeless)),
    )
