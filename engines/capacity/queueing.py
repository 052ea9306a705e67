"""How long requests wait before one prefill instance: DistServe's equations 1 to 3, and where they cross.

A request takes `service` time on one accelerator, the same for all; requests come as a Poisson process with `rate`, so
`rate` times `service` is the load u of one accelerator.  Each function returns the mean time from a request's arrival
to its first token, in the unit of `service`.

Source: Zhong et al., "DistServe" (OSDI'24), section 3.1.  Equation 2 is derived again, as a queue before a stage of
half the service time and a second stage that never makes requests wait.
"""


def one_instance(service: float, rate: float) -> float:
    """Return the mean on one accelerator (equation 1, M/D/1); raises `ValueError` from a load of 1 on.

    >>> one_instance(1.0, 0.5)
    1.5
    """
    return service + _waits(service, rate)


def two_stages(service: float, rate: float) -> float:
    """Return the mean on a pipeline of two (equation 2, inter-operator); raises `ValueError` from a load of 2 on.

    >>> two_stages(1.0, 1.0)
    1.25
    """
    return service + _waits(service / 2, rate)


def two_shards(service: float, rate: float, speedup: float) -> float:
    """Return the mean on two that share each operator (equation 3, intra-operator), together `speedup` times as fast.

    Raises `ValueError` from a load of `speedup` on, and for a speed-up below 1.

    >>> two_shards(1.0, 1.0, 2.0)
    0.75
    """
    if speedup < 1:
        raise ValueError(f"a speed-up of {speedup:g} is below 1")
    return service / speedup + _waits(service / speedup, rate)


def crossover(speedup: float) -> float:
    """Return the load up to which sharing operators is better than a pipeline; 2 if it always is.

    >>> [round(crossover(speedup), 3) for speedup in (1.1, 1.5, 1.9)]
    [0.236, 0.936, 1.626]
    """
    if not 1 < speedup <= 2:
        raise ValueError(f"a speed-up of two accelerators is above 1 and at most 2, not {speedup:g}")
    low, high = 0.0, speedup
    while high - low > 1e-9:
        load = (low + high) / 2
        better = two_shards(1.0, load, speedup) < two_stages(1.0, load)
        low, high = (load, high) if better else (low, load)
    return high


def _waits(service: float, rate: float) -> float:
    """Return the mean wait before a server with this service time (Pollaczek and Khinchin)."""
    load = rate * service
    if not 0 <= load < 1:
        raise ValueError(f"a queue with a load of {load:g} has no mean wait")
    return load * service / (2 * (1 - load))
