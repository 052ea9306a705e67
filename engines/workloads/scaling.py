"""Arrival rates multiplied exactly, and limits on the number of requests: the same for traces and generators."""

from fractions import Fraction
from math import isfinite

from fairsched.engines.workloads.errors import WorkloadError


def check_limit(limit: int | None) -> None:
    """Raise `WorkloadError` unless `limit` is None or a positive number of requests."""
    if limit is not None and limit < 1:
        raise WorkloadError(f"limit: expected a number of requests of at least 1, found {limit}")


def rate_ratio(rate_scale: float) -> Fraction:
    """The factor exactly as its decimal is written.  Raises `WorkloadError` unless it is positive and finite."""
    if not (isfinite(rate_scale) and rate_scale > 0):
        raise WorkloadError(f"rate scale: expected a positive finite number, found {rate_scale}")
    return Fraction(repr(float(rate_scale)))


def scaled_ns(time_ns: int, ratio: Fraction) -> int:
    """A time at `ratio` times the rate, rounded down to a nanosecond."""
    return time_ns * ratio.denominator // ratio.numerator


def rate_notes(ratio: Fraction) -> tuple[str, ...]:
    """What a report must say about a scaled rate: nothing when it is 1."""
    if ratio == 1:
        return ()
    return (f"Arrival rates are multiplied by {float(ratio):g}; think times and cancellations are as they were.",)
