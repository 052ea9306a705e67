"""LARRY: P-LAR-1 to 5 about the shipped key, for any two requests, and what is false of it.

The key is one line of integers, which numpy computes for all requests at once; here it is run on unknown integers.  An
order by keys is one of pairs, so what holds for any two requests holds for a queue.  P-LAR-4 adds to P-LAR-3 who is let
in before whom, and is tried in drawn worlds of the shipped policy.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.policies import orders
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import LARRY
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import larry
from fairsched.verify.proofs.orders.scenarios import arrivals, overtakers

key = larry.key

_TWO = ("age", "size", "queue", "wait", "other_wait", "memory", "other_memory")
"""Two requests: what a microsecond and what a token count, how many wait, when each came, and what each needs."""
_POSITIVE = v.Condition(lambda w: (w.age >= 1) & (w.size >= 1) & (w.queue >= 1))
_MEMORY = v.Condition(lambda w: (w.memory >= 1) & (w.other_memory >= 1))


def _keys(w: SimpleNamespace, run: Any) -> tuple[Any, Any]:
    return (run(w.age, w.size, w.queue, w.wait, w.memory), run(w.age, w.size, w.queue, w.other_wait, w.other_memory))


def _same(one: Any, other: Any) -> Any:
    return v.if_then(one, other) & v.if_then(other, one)


@v.arithmetic(orders.P_LAR_1, (*_TWO, "now"), _POSITIVE, _MEMORY)
def as_the_score(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """At `now` the score is -q m + alpha (now - arrival), with the same factors; the larger goes first."""
    one, other = _keys(w, run)
    score = w.age * (w.now - w.wait) - w.size * w.queue * w.memory
    other_score = w.age * (w.now - w.other_wait) - w.size * w.queue * w.other_memory
    return {"the same order": _same(one < other, score > other_score)}


@v.arithmetic(orders.P_LAR_2, _TWO, _POSITIVE, _MEMORY, v.Condition(lambda w: w.other_wait >= w.wait))
def older_first(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """`other` came later; equal keys go by age."""
    one, other = _keys(w, run)
    enough = w.age * (w.other_wait - w.wait) >= w.size * w.queue * (w.memory - w.other_memory)
    return {"the older is first exactly then": _same(one <= other, enough)}


def _at_the_horizon() -> tuple[int, int]:
    """Return how much later the last one came that is before another of 8 more tokens, in microseconds, with a queue of
    5."""
    age, size, queue, spread = 2, 3, 5, 8
    before = [later for later in range(200) if key(age, size, queue, later, 1) <= key(age, size, queue, 0, 1 + spread)]
    return max(before), size * queue * spread // age


@v.arithmetic(
    orders.P_LAR_3,
    (*_TWO, "spread", "most"),
    _POSITIVE,
    _MEMORY,
    v.Condition(lambda w: (w.memory - w.other_memory <= w.spread) & (w.spread >= 0) & (w.most >= 1)),
    v.Condition(lambda w: w.age * (w.other_wait - w.wait) > w.size * (w.most * w.spread)),
    v.Condition(lambda w: w.queue <= w.most, orders.QUEUE_BOUNDED),
    attained=_at_the_horizon,
)
def horizon(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """`other` came so much later; `spread` is d and `most` is Q."""
    one, other = _keys(w, run)
    more = w.memory - w.other_memory
    return {
        "of memory": w.queue * more <= w.queue * w.spread,
        "of the queue": w.queue * w.spread <= w.most * w.spread,
        "of both, in key units": w.size * (w.queue * more) <= w.size * (w.most * w.spread),
        "the later one is behind": one < other,
    }


@v.arithmetic(orders.P_LAR_5, (*_TWO, "later"), _POSITIVE, _MEMORY)
def unchanged(w: SimpleNamespace, run: Any = key) -> v.Shown:
    """Return keys are computed again after the oldest left, `later` than the one that was."""
    one, other = _keys(w, run)
    after = SimpleNamespace(**{**vars(w), "wait": w.wait - w.later, "other_wait": w.other_wait - w.later})
    one_after, other_after = _keys(after, run)
    return {"the same order": _same(one < other, one_after < other_after)}


# --- let in before --------------------------------------------------------------------------------------------------

_ALPHA = 4
"""Tokens a step; a step takes a second."""


def _overtakers(order: orders.LarryOrder, w: SimpleNamespace) -> tuple[int, int, int]:
    """Send the large request first of all."""
    policy = LARRY(order=order, batching=RequestLevel(max_running=1, reserve="optimistic"))

    def request(number: int, now_ns: int) -> Request:
        return Request(number, 0, now_ns, Prompt(1 + w.spread * (number == 0)), 1)

    return overtakers(policy, 200, w.coming, request)


@v.sampled(orders.P_LAR_4, st.fixed_dictionaries({"coming": arrivals(2), "spread": st.integers(0, 60)}))
def let_in_before(w: SimpleNamespace, order: type[orders.LarryOrder] = orders.LarryOrder) -> v.Shown:
    """Up to `rho` a step come, and `sigma` more at once; the first request needs `spread` more than the others."""
    before, longest, _ = _overtakers(order(1_000 * _ALPHA, memory_unit="tokens"), w)
    rho, sigma = max(w.coming[1:], default=0), w.coming[0]
    return {"within the bound": before * _ALPHA <= (longest + sigma + rho) * _ALPHA + rho * longest * w.spread}


# --- what is false --------------------------------------------------------------------------------------------------


def _smaller_first(w: SimpleNamespace) -> v.Shown:
    small, large = (key(1, orders.LarryPrintedOrder.sign, 2, 0, memory) for memory in (w.small, w.large))
    return {"the smaller first": small < large}


def _arrival_order(w: SimpleNamespace) -> v.Shown:
    """In tokens, with a tenth of a second between two arrivals."""
    older, later = (
        key(1_000 * w.alpha, 10**9, w.queue, wait_us, memory) for wait_us, memory in ((0, w.memory), (100_000, 1))
    )
    return {"the older first": older <= later}


def _never_starves(w: SimpleNamespace) -> v.Shown:
    before, _, came = _overtakers(orders.LarryOrder(0, memory_unit="tokens"), w)
    return {"not every request goes first": before < len(w.coming) or came < len(w.coming)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of LARRY."""
    return (
        v.refuted(
            "F-LAR-3",
            "of two that came together the smaller goes first",
            "LARRY, equation 1 as printed",
            _smaller_first,
            {"small": 1, "large": 2},
            variant="equation 1 as printed, which adds what should be subtracted",
            instead=orders.P_LAR_1.id,
            text="two that came together, of 1 and 2 tokens: the larger goes first",
            worlds=lambda: ({"small": small, "large": large} for large in range(2, 4) for small in range(1, large)),
        ),
        v.refuted(
            "F-LAR-2",
            "with alpha of 1,000 or more the order is that of arrival",
            "LARRY, as it is told",
            _arrival_order,
            {"alpha": 1_000, "queue": 100, "memory": 4_001},
            variant="the order that ships, in tokens: it takes an alpha of 4,000,000",
            instead=orders.P_LAR_2.id,
            text="a hundred wait, and 4,001 tokens came a tenth of a second before 1 token, which goes first",
        ),
        v.refuted(
            "F-LAR-1",
            "no request waits for ever",
            "LARRY, as it is told",
            _never_starves,
            {"coming": [1] * 30, "spread": 1},
            variant="the order that ships, with alpha = 0",
            instead=orders.P_LAR_3.id,
            text="one small request comes in every step, and one is served",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the order that ships."""
    return (as_the_score(), older_first(), horizon(), let_in_before(), unchanged())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""

    def printed(age: Any, size: Any, queue: Any, wait: Any, memory: Any) -> Any:
        return key(age, -size, queue, wait, memory)

    def longer_queue(age: Any, size: Any, queue: Any, wait: Any, memory: Any) -> Any:
        return key(age, size, queue + 1, wait, memory)

    def squared(age: Any, size: Any, queue: Any, wait: Any, memory: Any) -> Any:
        return key(age, size, queue, wait * wait, memory)

    late = v.changed(orders.LarryOrder, "keys", "partial(key, age,", "partial(key, 0,")
    return (
        v.Bug("the sign as printed", as_the_score(printed)),
        v.Bug("one too many in the queue", older_first(longer_queue)),
        v.Bug("one too many in the queue", horizon(longer_queue)),
        v.Bug("waits are squared", unchanged(squared)),
        v.Bug("waits count for nothing", let_in_before(late)),
    )
