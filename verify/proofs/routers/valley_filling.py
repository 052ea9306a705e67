"""Valley filling: a start that goes from breakpoint to breakpoint for a lower price is the earliest of the lowest
(P-VF-1, on unknown integers, for curves of any length), and the shipped policy sends each request then (P-VF-2).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model import events as ev
from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import P_VF_1, P_VF_2, ValleyFilling, cheaper
from fairsched.verify import logic as v

S = 10**9


@v.arithmetic(
    P_VF_1,
    ("arrival", "latest", "start", "price", "seen", "next", "next_price"),
    v.Condition(lambda w: (w.arrival <= w.start) & (w.start < w.next) & (w.next <= w.latest)),
    v.Condition(lambda w: w.price <= w.seen),
    attained=lambda: (sent_s([[0, 7, -1]], [[0, 2], [7, 1], [9, 0]])[0] or 0, 7),
)
def one_breakpoint(w: SimpleNamespace, better: Callable[..., Any] = cheaper) -> v.Shown:
    """Let `start` at `price` be the best of the pieces so far, one of which costs `seen`; the next begins at `next`."""
    start, price = better(w.start, w.price, w.next, w.next_price)
    return {
        "not before the arrival": start >= w.arrival,
        "not after the latest": start <= w.latest,
        "no earlier piece is cheaper": price <= w.seen,
        "nor is the next": price <= w.next_price,
        "it stays where it is as cheap": v.if_then(price == w.price, start == w.start),
    }


def sent_s(rows: list[list[int]], curve: list[list[int]], kind: Any = ValleyFilling) -> list[int | None]:
    """Return when each request of (second, seconds that it may wait, priority) is sent, by an engine that asks when
    something happens and when the policy wakes; the curve is of (seconds after the piece before, price)."""
    at, pieces = 0, []
    for gap, price in curve:
        at += gap
        pieces.append(f"{at}:{price}")
    found: list[int | None] = []
    for second, defer_s, priority in rows:
        policy = kind(prices="+".join(pieces), defer_s=defer_s)
        request = Request(0, 0, second * S, Prompt(1), 1, priority=priority)
        state, now_ns = policy.observe(policy.init(), ev.Arrived(second * S, ev.NOWHERE, request)), second * S
        while True:
            plan, state = policy.decide(state, ClusterView(now_ns, (WorkerLoad(0, 0, 0, 0, 9, 9),)))
            wakes_ns = policy.wakes_ns(state)
            if plan.dispatches or wakes_ns is None or wakes_ns <= now_ns:
                break
            now_ns = wakes_ns
        found.append(now_ns // S if plan.dispatches else None)
    return found


_WORLDS = st.fixed_dictionaries(
    {
        "curve": st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)).map(list), min_size=1, max_size=5).map(
            lambda pieces: [[0, pieces[0][1]], *pieces[1:]]
        ),
        "rows": st.lists(
            st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(-2, 1)).map(list), min_size=1, max_size=4
        ),
    }
)


@v.sampled(P_VF_2, _WORLDS, attained=lambda: (sent_s([[0, 7, -1]], [[0, 2], [7, 1], [9, 0]])[0] or 0, 7))
def at_its_start(w: SimpleNamespace, kind: Any = ValleyFilling) -> v.Shown:
    """Beside a search over every second of the window."""
    times, total = list[tuple[int, int]](), 0
    for gap, price in w.curve:
        total += gap
        times.append((total, price))

    def price_at(second: int) -> int:
        return max((begins, price) for begins, price in times if begins <= second)[1]

    expected = [
        second if priority >= 0 else min(range(second, second + defer_s + 1), key=lambda s: (price_at(s), s))
        for second, defer_s, priority in w.rows
    ]
    sent = sent_s(w.rows, w.curve, kind)
    return {
        "sent then": sent == expected,
        "no later than it may wait": all(
            second is not None and second <= row[0] + row[1] for second, row in zip(sent, w.rows, strict=True)
        ),
    }


def _costs_no_more(w: SimpleNamespace) -> v.Shown:
    """What runs for `work` seconds from when it is sent is charged the price of each of them."""
    (start,) = sent_s([[0, w.wait, -1]], w.curve)
    prices: list[int] = []
    for (_, price), (gap, _) in zip(w.curve, [*w.curve[1:], [w.wait + w.work, 0]], strict=True):
        prices += [price] * gap
    assert start is not None
    return {"no dearer than at once": sum(prices[start : start + w.work]) <= sum(prices[: w.work])}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of waiting for a low price."""
    return (
        v.refuted(
            "F-VF-1",
            "work that is sent at the lowest price of its window costs no more than if it were sent at once",
            "what carbon-aware scheduling of jobs of unknown length is meant to do",
            _costs_no_more,
            {"curve": [[0, 2], [5, 1], [1, 9]], "wait": 5, "work": 3},
            variant="the policy that ships",
            instead=P_VF_2.id,
            text="a price of 1 holds for a second, and the work takes three, two of them at 9; at once all cost 2",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the policy that ships."""
    return (one_breakpoint(), at_its_start())


def _the_later(start: Any, price: Any, then: Any, next_price: Any) -> tuple[Any, Any]:
    return (then, next_price) if next_price <= price else (start, price)


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    late = v.changed(ValleyFilling, "start_ns", "now_ns + self.defer_s * NS_PER_S", "now_ns + 9 * NS_PER_S")
    all_wait = v.changed(ValleyFilling, "start_ns", "request.priority >= 0", "request.priority > 0")
    asleep = v.changed(ValleyFilling, "wakes_ns", "state.held.first()[0] if state.held else None", "None")
    return (
        v.Bug("the next of equals is taken", one_breakpoint(_the_later)),
        v.Bug("the dearer is taken", one_breakpoint(lambda *both: both[2:] if both[3] > both[1] else both[:2])),
        v.Bug("every request may wait for as long", at_its_start(late)),
        v.Bug("requests of no priority wait", at_its_start(all_wait)),
        v.Bug("the policy never wakes", at_its_start(asleep)),
    )
