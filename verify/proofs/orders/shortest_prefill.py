"""Highest response ratio next and shortest prefill with ageing: who may go before an older request, and for how long.

The orders' own `goes_before` is run on unknown integers; what holds for any two requests holds for a queue.  P-HRRN-2
adds who is let in before whom, and is tried in drawn worlds of the shipped policy.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import HRRN
from fairsched.policies.orders import P_HRRN_1, P_HRRN_2, P_SPF_1, HighestResponseRatio, ShortestPrefill
from fairsched.verify import logic as v
from fairsched.verify.proofs.orders.scenarios import arrivals, overtakers

_YOUNGER = ("waited", "tokens", "since", "older_tokens")
"""Two requests: how long the younger waited, how much later it came, and the tokens of both."""
_SIZES = (*v.at_least(1, "tokens", "older_tokens"), *v.at_least(0, "waited", "since"))


def _before(order: Any, w: SimpleNamespace) -> Any:
    return order.goes_before(w.waited, w.tokens, w.waited + w.since, w.older_tokens)


@v.arithmetic(P_HRRN_1, _YOUNGER, *_SIZES)
def only_shorter(w: SimpleNamespace, kind: Any = HighestResponseRatio) -> v.Shown:
    """Any two requests of a queue."""
    return {"it has fewer": v.if_then(_before(kind(), w), w.tokens < w.older_tokens)}


def _first_behind() -> tuple[int, int]:
    """Return the first distance at which a request of one token is behind an older one of 7, with ageing by 20 %."""
    order = ShortestPrefill(20)
    return next(since for since in range(100) if not order.goes_before(0, 1, since, 7)), 30


@v.arithmetic(
    P_SPF_1,
    (*_YOUNGER, "percent"),
    *_SIZES,
    *v.at_least(1, "percent"),
    v.Condition(lambda w: w.percent * w.since >= 100 * (w.older_tokens - 1)),
    attained=_first_behind,
)
def too_late(w: SimpleNamespace, kind: Any = ShortestPrefill) -> v.Shown:
    """The younger one came so much later."""
    order = v.unchecked(kind, ageing_percent=w.percent)
    return {"it is behind": v.if_then(_before(order, w), w.tokens < 1)}


_COMING = arrivals(2).map(lambda coming: [max(coming[0], 1), *coming[1:]])
"""How many come in each step, two at least in the first, one of which is that of many tokens."""


def _overtakers(kind: Any, w: SimpleNamespace) -> int:
    """Return how many requests of one token are let in before the one of `tokens`, which comes as the second of all."""
    policy = HRRN(order=kind(), batching=RequestLevel(max_running=1))

    def request(number: int, now_ns: int) -> Request:
        return Request(number, 0, now_ns, Prompt(w.tokens if number == 1 else 1), 1)

    return overtakers(policy, w.tokens + 1, w.coming, request, 1)[0]


@v.sampled(P_HRRN_2, st.fixed_dictionaries({"coming": _COMING, "tokens": st.integers(1, 12)}))
def let_in_before(w: SimpleNamespace, kind: Any = HighestResponseRatio) -> v.Shown:
    """One is let in a step; `beyond` is the most that came beyond that, what waited when it came among it."""
    beyond = max(sum(w.coming[: t + 1]) - t for t in range(len(w.coming)))
    return {"within the bound": _overtakers(kind, w) <= w.tokens * beyond}


def _is_served(w: SimpleNamespace) -> v.Shown:
    return {"not every request goes first": _overtakers(HighestResponseRatio, w) < len(w.coming)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of the ratio."""
    return (
        v.refuted(
            "F-HRRN-1",
            "no request is starved by a stream of shorter ones",
            "SGLang's pull request 32911",
            _is_served,
            {"coming": [2] * 40, "tokens": 3},
            variant="the order that ships",
            instead=P_HRRN_2.id,
            text="two requests of a token come for each that is served: one of three tokens is never next",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the orders that ship."""
    return (only_shorter(), too_late(), let_in_before())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""

    class LongestRatio(HighestResponseRatio):
        def goes_before(self, waited: Any, tokens: Any, other_waited: Any, other_tokens: Any) -> Any:
            return waited * tokens > other_waited * other_tokens

    class Timeless(HighestResponseRatio):
        def goes_before(self, waited: Any, tokens: Any, other_waited: Any, other_tokens: Any) -> Any:
            return tokens < other_tokens

    slower = v.changed(ShortestPrefill, "goes_before", "share * other_waited", "other_waited")
    return (
        v.Bug("the longer goes first", only_shorter(LongestRatio)),
        v.Bug("waits count for nothing", let_in_before(Timeless)),
        v.Bug("the older one ages by one per cent", too_late(slower)),
    )
