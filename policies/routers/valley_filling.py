"""Valley filling: requests that may wait are held while a price is high, and sent when it is lowest.

A request of negative priority may wait for up to `defer_s` (OpenAI's batches: a day).  When it comes, its start is the
cheapest moment from then until that limit, of equals the earliest; it is held until then, and goes to the worker with
the fewest requests.  Every other request goes there at once.  The price is any function of time that is given as
breakpoints: a tariff, or the carbon intensity of the grid.

Theorem: no request is held beyond `defer_s`, and none at a moment than which an earlier one of its window is as cheap
(P-VF-1, P-VF-2).  What is held is at no worker, so the bound of the workers' gate, which holds whatever comes when, is
that of the others as it is, and a deferred request waits `defer_s` and what the gate adds.

The price while a request *runs* does not count: where a valley is shorter than the work that is sent into it, waiting
costs more than not (F-VF-1).

Source: Wiesner et al., "Let's Wait Awhile" (Middleware'21), of jobs whose length is known; the bound is ours.
"""

from bisect import bisect_right
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any, ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.validators import found, not_negative

NS_PER_S = 1_000_000_000

P_VF_1 = Theorem(
    "P-VF-1",
    "a start that takes the next breakpoint only for a lower price stays between the arrival and D later, no earlier "
    "piece of the window is cheaper, nor is the next, and of equals it is the earliest",
    "Wiesner et al., 2021; this library",
    bound="D",
)
P_VF_2 = Theorem(
    "P-VF-2",
    "while a worker takes requests, one of negative priority is sent at its cheapest start, no later than D after it "
    "came, and any other when it comes",
    "this library; in drawn worlds",
    bound="D",
    scope=Scope.TESTED,
    rests_on=("P-VF-1",),
)

Curve = tuple[tuple[int, int], ...]
"""Nanoseconds from which a price holds, ascending from 0, and the price."""


@lru_cache(maxsize=64)
def price_curve(text: str) -> Curve:
    """Return the curve of `SECONDS:PRICE+...`; raises `ValueError` unless seconds ascend from 0.

    >>> price_curve("0:300+3600:120")
    ((0, 300), (3600000000000, 120))
    """
    pairs = [part.split(":") for part in text.split("+")]
    if not all(len(pair) == 2 and all(each.strip().isdecimal() for each in pair) for pair in pairs):
        raise ValueError(f"prices are SECONDS:PRICE+... in whole numbers, not {found(text)}")
    curve = tuple((int(seconds) * NS_PER_S, int(price)) for seconds, price in pairs)
    times = [at_ns for at_ns, _ in curve]
    if times[0] or any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"the seconds of prices ascend from 0, not as in {found(text)}")
    return curve


def cheaper(start_ns: Any, price: Any, next_ns: Any, next_price: Any) -> tuple[Any, Any]:
    """Return the better of a start with its price and a later one."""
    return (next_ns, next_price) if next_price < price else (start_ns, price)


def cheapest_start(curve: Curve, now_ns: int, latest_ns: int) -> int:
    """Return the earliest moment of the lowest price from now to the latest.  O(breakpoints between)."""
    place = bisect_right(curve, now_ns, key=lambda piece: piece[0])
    best = now_ns, curve[place - 1][1]
    for next_ns, price in curve[place:]:
        if next_ns > latest_ns:
            break
        best = cheaper(*best, next_ns, price)
    return best[0]


def _is_curve(_policy: object, _attribute: object, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"prices are SECONDS:PRICE+... as text, not {type(value).__name__}")
    price_curve(value)


class ValleyState(msgspec.Struct, frozen=True):
    """The starts of all requests that are not over, and those that are held as (start, id), in that order.

    A request that comes again, since its worker died, has its start already.
    """

    starts: Map[int, int] = Map()
    held: SortedTuple[tuple[int, int]] = SortedTuple()


@attrs.frozen
class ValleyFilling(ClusterPolicy[ValleyState]):
    """Requests of negative priority when the price is lowest within the time that they may wait, others at once.

    An arrival O(breakpoints within that time + log held), a decision O(sent log workers).
    """

    name: ClassVar[str] = "valley-filling"
    state_type: ClassVar[type[ValleyState]] = ValleyState
    follows_decoding: ClassVar[bool] = False
    theorems: ClassVar[tuple[Theorem, ...]] = (P_VF_1, P_VF_2)

    prices: str = attrs.field(default="0:1", validator=_is_curve)
    """The price from each second on, as 0:300+3600:120 in whole numbers; the last one stays."""
    defer_s: int = attrs.field(default=86_400, validator=not_negative)
    """For how many seconds a request of negative priority may be held."""

    def wakes_ns(self, state: ValleyState) -> int | None:
        return state.held.first()[0] if state.held else None

    def observe(self, state: ValleyState, event: ev.Event) -> ValleyState:
        starts, held = state.starts, state.held
        match event:
            case ev.Arrived(worker=ev.NOWHERE, request=request):
                start_ns = starts.get(request.id)
                if start_ns is None:
                    start_ns = self.start_ns(request, event.time_ns)
                held = held.discard((start_ns, request.id)).add((start_ns, request.id))
                return ValleyState(starts.set(request.id, start_ns), held)
            case ev.Finished() | ev.Rejected() | ev.Cancelled() if event.request_id in starts:
                gone = starts[event.request_id], event.request_id
                return ValleyState(starts.delete(event.request_id), held.discard(gone))
            case _:
                return state

    def start_ns(self, request: Request, now_ns: int) -> int:
        """Return when a request that comes now is sent."""
        if request.priority >= 0:
            return now_ns
        return cheapest_start(price_curve(self.prices), now_ns, now_ns + self.defer_s * NS_PER_S)

    def decide(self, state: ValleyState, view: ClusterView) -> tuple[ClusterPlan, ValleyState]:
        """Send what is due, each to the worker with the fewest requests, those sent now included."""
        if not state.held or state.held.first()[0] > view.now_ns:
            return ClusterPlan(), state
        queues = [(load.waiting_requests + load.running_requests, load.worker) for load in view.workers]
        heapify(queues)
        dispatches, held = [], state.held
        while queues and held and held.first()[0] <= view.now_ns:
            due, (length, worker) = held.first(), queues[0]
            heapreplace(queues, (length + 1, worker))
            dispatches.append(Dispatch(due[1], worker))
            held = held.remove(due)
        return ClusterPlan(tuple(dispatches)), ValleyState(state.starts, held)

    def check(self, state: ValleyState) -> None:
        assert all(state.starts[request_id] == start_ns for start_ns, request_id in state.held)
