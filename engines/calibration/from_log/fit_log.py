"""A machine fitted to an access log, and how far it may be believed: fitted on the first half, judged on the second."""

from collections.abc import Callable

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.machine import COEFFICIENTS, UNLIMITED, Machine, Played, Simulated
from fairsched.engines.calibration.from_log.observed import Observed, halves, observed, thinned
from fairsched.engines.calibration.from_log.refine import Search, candidates, figures
from fairsched.engines.logs.access import AccessLog

REQUESTS_MAX = 800
"""So many requests of each half are simulated at most."""
REQUESTS_MIN = 60
"""A half with fewer requests judges nothing."""
LIMIT = 0.25
"""A machine is believed that misses no p50 and p95 of the held-out half by more."""
TYPICAL_LIMIT = 0.5
"""Nor half of the single requests by more."""
PERCENTS = (10, 25, 50, 75, 90, 95, 99)
HELD_TO = (50, 95)
HELD_FIGURES = ("TTFT", "latency")


@attrs.frozen
class FigureError:
    """One percentile of one figure in the held-out half, in milliseconds, and the relative error."""

    figure: str
    percent: int
    observed_ms: float
    simulated_ms: float

    @property
    def error(self) -> float:
        """Simulated over observed, less 1."""
        return self.simulated_ms / max(self.observed_ms, 1e-6) - 1


@attrs.frozen
class LogFit:
    """A machine, and how far it is from the half of the log that it has not seen.

    `typical` is the median relative error of single requests, by figure.  `refusal` says why nothing should be
    concluded from simulations of this machine, and is empty where it is `credible`.  `unknown` says in sentences what
    the log cannot tell.
    """

    machine: Machine
    requests: int
    errors: tuple[FigureError, ...]
    typical: dict[str, float]
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def credible(self) -> bool:
        """Whether what another policy would do on this machine is worth simulating."""
        return not self.reasons

    @property
    def refusal(self) -> str:
        """Why not, in one sentence; empty where it is."""
        return "; ".join(self.reasons)

    @property
    def worst(self) -> float:
        """The largest error at p50 and p95 of the times to first tokens and of latencies."""
        return max((abs(error.error) for error in self.errors if _held(error)), default=float("inf"))

    @property
    def summary(self) -> str:
        """How good it is, after "a machine that was fitted to the log"."""
        return (
            f"misses p50 and p95 of first tokens and latencies in the half of the log that it was not fitted to by at "
            f"most {self.worst:.0%}"
        )

    def sentences(self) -> tuple[str, ...]:
        """Return what was found, in plain sentences."""
        machine = self.machine
        constant, token, _, decode, context, request = machine.times
        many = f"{machine.workers} workers" if machine.workers > 1 else "One worker"
        return (
            f"{many}; each step computes at most {machine.max_batched_tokens:,} tokens for at most "
            f"{machine.max_running:,} requests, in the order of {machine.policy}, by the rule {machine.rule}.",
            f"A prompt takes {constant / 1e6:.2f} ms and {token / 1e3:.1f} us a token; a step that decodes takes "
            f"{decode / 1e6:.2f} ms, {request / 1e3:.0f} us a request and {context:.0f} ns a token of context.",
            f"The machine {self.summary}.",
            *self.unknown,
            *(f"Not to be believed: {reason}." for reason in self.reasons),
        )

    def to_json(self) -> dict[str, object]:
        """Return every figure, for JSON."""
        machine = attrs.asdict(self.machine) | {"times": dict(zip(COEFFICIENTS, self.machine.times, strict=True))}
        return {
            "machine": machine,
            "requests": self.requests,
            "credible": self.credible,
            "reasons": list(self.reasons),
            "unknown": list(self.unknown),
            "typical_errors": self.typical,
            "errors": [attrs.asdict(error) | {"error": error.error} for error in self.errors],
        }


def fit_log(
    log: AccessLog,
    *,
    workers: int | None = None,
    requests_max: int = REQUESTS_MAX,
    limit: float = LIMIT,
    progress: Callable[[str], None] | None = None,
) -> LogFit:
    """Return the machine that a log is most like, and how far it is from the log.

    The first half of the requests fits, the second judges.  `workers` is their number where it is known (the log's own
    number of upstreams, if it names several).  At most `requests_max` requests of each half are simulated.  The same
    log gives the same machine.  Raises `ValueError` for a log in which no two requests had an output.
    """
    told = progress or (lambda text: None)
    whole = observed(log)
    if len(whole) < 2 or not bool(whole.judged.any()):
        raise ValueError(f"{log.path}: {len(whole)} requests with an output; a machine takes more")
    first, second = (thinned(half, requests_max) for half in halves(whole))
    named = len(log.workers) if len(log.workers) > 1 else None
    count = workers if workers is not None else named
    search = Search(first, told)
    machine = search.run(candidates(first) if count is None else [count])
    machine = attrs.evolve(machine, kv_tokens=max(machine.kv_tokens, Played(second).least_kv))
    told("the half that was held out")
    said = Played(second).on(machine)
    found, typical = held_out(second, said)
    return LogFit(
        machine, len(whole), found, typical, _unknown(search, machine), _reasons(second, found, typical, limit)
    )


def held_out(seen: Observed, said: Simulated) -> tuple[tuple[FigureError, ...], dict[str, float]]:
    """Return the errors of percentiles, and the median error of single requests, by figure."""
    found, typical = [], {}
    for name, figure in figures(seen, said).items():
        for percent in PERCENTS:
            simulated, logged = figure.both(percent)
            found.append(FigureError(name, percent, logged / 1e6, simulated / 1e6))
        typical[name] = float(np.median(np.abs(figure.simulated / np.maximum(figure.observed, 1) - 1)))
    return tuple(found), typical


def _held(error: FigureError) -> bool:
    return error.figure in HELD_FIGURES and error.percent in HELD_TO


def _reasons(
    seen: Observed, found: tuple[FigureError, ...], typical: dict[str, float], limit: float
) -> tuple[str, ...]:
    reasons = []
    judged = int(seen.judged.sum())
    if judged < REQUESTS_MIN:
        reasons.append(f"the half that judges has {judged} requests that finished, and fewer than {REQUESTS_MIN}")
    off = [error for error in found if _held(error) and abs(error.error) > limit]
    if off:
        listed = ", ".join(f"{error.figure} p{error.percent} by {error.error:+.0%}" for error in off)
        reasons.append(f"the machine misses the half that was held out by more than {limit:.0%}: {listed}")
    for name in HELD_FIGURES:
        if typical.get(name, 0.0) > TYPICAL_LIMIT:
            reasons.append(
                f"half of the requests have a simulated {name} that is more than {TYPICAL_LIMIT:.0%} off: something "
                "else than the server's load decides how long requests take"
            )
    return tuple(reasons)


def _unknown(search: Search, machine: Machine) -> tuple[str, ...]:
    """What the log cannot tell."""
    said = []
    if machine.kv_tokens >= UNLIMITED:
        most = search.peaks.kv_tokens
        said.append(f"The KV memory was never full: it has at least {most:,} tokens, and how many more is not known.")
    return tuple(said)
