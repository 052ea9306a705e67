"""A rate-latency service curve: what a server does at least in any time in which there is work for it.

Source: network calculus (Le Boudec and Thiran, "Network Calculus", 2001, sections 1.3 and 1.4).
"""

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

    def then(self, other: "ServiceCurve") -> "ServiceCurve":
        """Return the curve of two servers one after the other (min-plus convolution): both delays, the lower rate.

        >>> ServiceCurve(100, 3, 2).then(ServiceCurve(10, 1, 1))
        ServiceCurve(delay_ns=110, ns=3, cost=2)
        """
        slower = self if self.ns * other.cost >= other.ns * self.cost else other
        return ServiceCurve(self.delay_ns + other.delay_ns, slower.ns, slower.cost)
