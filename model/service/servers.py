"""Servers as queueing theory has them: what a worker is held to, and what programs are compared with.

A *rate-latency service curve* says what a server does at least, in any time in which there is work for it.  The *ideal
machine* serves all programs at once, in equal parts.

A program has a cost when it arrives (of its calls together, memory x time), and the machine works off `rate` units of
cost in a unit of time, divided equally among the programs under way, whatever calls they are made of.  *Virtual time*
is how much each program has been served that was there all along.  A program that arrives at virtual time V with cost C
is finished when virtual time is V + C, its *virtual finish time*, which is known when it arrives and does not depend on
what comes later.

Sources: network calculus (Le Boudec and Thiran, "Network Calculus", 2001, sections 1.3 and 1.4); GPS (Parekh and
Gallager, 1993), whose virtual time is WFQ's.  Justitia orders the calls of agents so.
"""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import NamedTuple

import attrs


@attrs.frozen
class ServiceCurve:
    """At least `cost` units are served in every `ns` nanoseconds beyond the first `delay_ns`, in any time with work.

    The rate is a fraction of two integers, so that nothing is rounded until a time is asked for.
    """

    delay_ns: int
    ns: int
    cost: int

    def __attrs_post_init__(self) -> None:
        if self.delay_ns < 0 or self.ns < 0 or self.cost < 1:
            raise ValueError(
                f"a service curve has a delay and a time of 0 ns or more and serves 1 unit or more, "
                f"not {self.delay_ns} ns, {self.ns} ns and {self.cost} units"
            )

    def time_ns(self, cost: int) -> int:
        """Return the longest time until so much is served.

        >>> ServiceCurve(100, 3, 2).time_ns(5)
        107
        """
        return self.delay_ns + cost * self.ns // self.cost


class IdealFinish(NamedTuple):
    """When the ideal machine finishes a program: `virtual` on its virtual clock, `time` on the clock of arrivals."""

    virtual: Fraction
    time: Fraction


def ideal_finishes(programs: Sequence[tuple[int, int]], rate: int) -> list[IdealFinish]:
    """Return when each program, given as arrival and cost, is finished.  O(n log n), exact.

    Raises `ValueError` for a rate or a cost below 1.

    >>> [str(each.time) for each in ideal_finishes([(0, 4), (0, 2), (5, 3)], 2)]
    ['3', '2', '13/2']
    """
    if rate < 1 or any(cost < 1 for _, cost in programs):
        raise ValueError(f"an ideal machine of rate {rate}, and costs {[cost for _, cost in programs]}: all at least 1")
    now = virtual = Fraction(0)
    virtually: dict[int, Fraction] = {}
    finished: dict[int, Fraction] = {}
    active: list[tuple[Fraction, int]] = []

    def serve(until: int | None) -> None:
        nonlocal now, virtual
        while active:
            end = now + (active[0][0] - virtual) * len(active) / rate
            if until is not None and end > until:
                virtual += (until - now) * rate / len(active)
                break
            virtual, now = active[0][0], end
            finished[heappop(active)[1]] = end
        now = now if until is None else Fraction(until)

    for number in sorted(range(len(programs)), key=lambda number: programs[number][0]):
        arrival, cost = programs[number]
        serve(arrival)
        virtually[number] = virtual + cost
        heappush(active, (virtually[number], number))
    serve(None)
    return [IdealFinish(virtually[number], finished[number]) for number in range(len(programs))]
