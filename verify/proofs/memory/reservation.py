"""Admission by what is foreseen of outputs: P-TI-1 and P-TI-3 of the safe rules, and the printed ones refuted.

The shipped functions of slack are run on unknown integers.  Two requests run and a third one comes; each holds what it
holds now and a token more each step, until it ends, which may be earlier than foreseen.  Two stand for any number: what
others hold enters every function as a sum, and the profile as its highest end, which `most_held` and Aladdin's profile
take over all of them (P-ALD-2 is about the same text).
"""

from collections.abc import Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from fairsched.policies.placement.aladdin import PREDICTIONS_BOUND, profile_of, profile_slack
from fairsched.verify.logic import ArithmeticClaim, Bug, Condition, RefutedClaim, Shown, arithmetic, at_least, refuted
from fairsched.verify.proofs.kernels import reservation

_THREE = ("a", "b", "c")


def _each(name: str) -> tuple[Condition, ...]:
    """Let the request hold `now` tokens, have `left` steps foreseen, and end after `end` of them.

    At step k it holds `held`, and at a time of its own at most what it comes to.
    """

    def holds(w: SimpleNamespace) -> Any:
        held, there = getattr(w, f"{name}_held"), w.k <= getattr(w, f"{name}_end")
        return (held == 0) | (there & (held == getattr(w, f"{name}_now") + w.k))

    return (
        *at_least(0, f"{name}_now", f"{name}_own"),
        *at_least(1, f"{name}_left", f"{name}_end"),
        Condition(lambda w: getattr(w, f"{name}_end") <= getattr(w, f"{name}_left"), PREDICTIONS_BOUND),
        Condition(holds),
        Condition(lambda w: getattr(w, f"{name}_own") <= getattr(w, f"{name}_now") + getattr(w, f"{name}_end")),
    )


def _tight() -> tuple[int, int]:
    """Return one request of two tokens that decodes for three steps, beside one that ends when it has seven: twelve in
    all."""
    capacity = 12
    assert reservation.peak_slack(capacity - 4, 3, 2, 3) == 0
    return (4 + 3) + (2 + 3), capacity


def _profile(w: SimpleNamespace) -> list[tuple[Any, Any]]:
    return [(w.a_left, w.a_now), (w.b_left, w.b_now)]


@arithmetic(
    reservation.P_TI_1,
    (
        "rule",
        "capacity",
        "other",
        "k",
        *(f"{name}_{part}" for name in _THREE for part in ("now", "left", "end", "held", "own")),
    ),
    *at_least(0, "capacity", "k", "other"),
    *(condition for name in _THREE for condition in _each(name)),
    Condition(lambda w: w.a_left <= w.b_left),
    # What runs was let in by the same rule, so that it fits at both ends.
    Condition(lambda w: w.a_now + w.a_left + w.b_now + w.a_left <= w.capacity),
    Condition(lambda w: w.b_now + w.b_left <= w.capacity),
    Condition(lambda w: w.other <= 0, reservation.NO_OTHER),
    attained=_tight,
)
def never_short(
    w: SimpleNamespace,
    peaks: Any = reservation.peak_slack,
    profile: Any = profile_slack,
    held: Any = reservation.most_held,
) -> Shown:
    """By the rule of peaks each is at a time of its own, by the profile all are at step k; the third rule is what the
    profile's becomes for a request of which it is not known when it begins to decode."""
    entries = _profile(w)
    if w.rule == 0:
        fits = peaks(w.capacity - w.a_now - w.b_now, w.a_left + w.b_left, w.c_now, w.c_left) >= 0
        holds = w.a_own + w.b_own + w.c_own
    elif w.rule == 1:
        fits = profile(reservation.TOKENS, w.capacity, profile_of(reservation.TOKENS, entries), w.c_left, w.c_now) >= 0
        holds = w.a_held + w.b_held + w.c_held
    else:
        fits = held(entries) + w.c_now + w.c_left <= w.capacity
        holds = w.a_held + w.b_held + w.c_own
    return {"never more than there is": holds + w.other <= w.capacity} if fits else {}


@arithmetic(
    reservation.P_TI_3,
    ("capacity", *(f"{name}_{part}" for name in _THREE for part in ("now", "left"))),
    *at_least(0, "capacity", "a_now", "b_now", "c_now"),
    *at_least(1, "a_left", "b_left", "c_left"),
    Condition(lambda w: w.a_left <= w.b_left),
)
def profile_admits_more(w: SimpleNamespace, profile: Any = profile_slack, held: Any = reservation.most_held) -> Shown:
    """State that what fits with all peaks together fits in every step."""
    if reservation.peak_slack(w.capacity - w.a_now - w.b_now, w.a_left + w.b_left, w.c_now, w.c_left) < 0:
        return {}
    slack = profile(reservation.TOKENS, w.capacity, profile_of(reservation.TOKENS, _profile(w)), w.c_left, w.c_now)
    return {
        "the profile has room": slack >= 0,
        "also where it is not known when it begins": held(_profile(w)) + w.c_now + w.c_left <= w.capacity,
    }


def claims() -> tuple[ArithmeticClaim, ...]:
    """About what ships."""
    return (never_short(), profile_admits_more())


# --- what is false ----------------------------------------------------------------------------------------------------


def _peak_of(requests: list[list[int]]) -> int:
    """Return the most that requests of [tokens now, steps left] hold together, in lock-step."""
    last = max(left for _, left in requests)
    return max(sum(now + k for now, left in requests if k <= left) for k in range(last + 1))


def _slack_printed(w: SimpleNamespace) -> Any:
    size, output = w.new
    return reservation.peak_slack_printed(
        w.capacity - sum(now for now, _ in w.running), sum(left for _, left in w.running), size, output
    )


def _slack_first(w: SimpleNamespace) -> Any:
    size, output = w.new
    first, freed = min((left, now) for now, left in w.running)
    free = w.capacity - sum(now for now, _ in w.running)
    return reservation.first_finish_slack(free, len(w.running), first, freed, size + min(first, output))


def _within_capacity(slack: Any) -> Any:
    def shows(w: SimpleNamespace) -> Shown:
        if _peak_of(w.running) > w.capacity or slack(w) < 0:
            return {}
        return {"never more than there is": _peak_of([*w.running, w.new]) <= w.capacity}

    return shows


def _lower_end(w: SimpleNamespace) -> Shown:
    """Predict a request of `size` in a bucket from `lower` on, `bucket` long, which produces `output`."""
    if reservation.peak_slack(w.capacity, 0, w.size, w.lower) < 0 or not w.lower <= w.output < w.lower + w.bucket:
        return {}
    return {"never more than there is": w.size + w.output <= w.capacity}


def _small() -> Iterator[Mapping[str, Any]]:
    for capacity, new, left in product(range(4, 13), range(1, 8), range(1, 11)):
        for a, b in product(range(1, 3), range(1, 11)):
            yield {"capacity": capacity, "running": [[1, a], [1, b]], "new": [new, left]}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return the two printed rules with perfect predictions, and the safe one with a bucket's lower end."""
    return (
        refuted(
            "F-TI-1",
            "reserve-dynamic never runs out of memory, if outputs are known",
            "TetriInfer, section 3.4: it prevents thrashing",
            _within_capacity(_slack_first),
            {"capacity": 11, "running": [[1, 1], [1, 10]], "new": [7, 10]},
            variant="it fits when the first of the running requests has left, as printed (`first-finish`)",
            instead=reservation.P_TI_1.id,
            text="11 tokens; two requests of a token each with 1 and 10 steps left; one of 7 with 10 is let in, and "
            "after ten steps two hold 28",
            worlds=_small,
        ),
        refuted(
            "F-TI-2",
            "reserve-static never runs out of memory, if outputs are known",
            "TetriInfer, section 3.4, as worded: the peak fits beside what is in use",
            _within_capacity(_slack_printed),
            {"capacity": 20, "running": [[1, 1], [1, 8]], "new": [10, 8]},
            variant="running requests count as they are now, as printed (`predicted-printed`)",
            instead=reservation.P_TI_1.id,
            text="20 tokens; two requests of a token each with 1 and 8 steps left; one of 10 with 8 is let in, and "
            "after eight steps two hold 27",
        ),
        refuted(
            "F-TI-3",
            "a bucket that is always right is enough",
            "TetriInfer, section 3.3: admission counts the lower end of a predicted range",
            _lower_end,
            {"capacity": 400, "size": 200, "lower": 200, "bucket": 200, "output": 399},
            variant="reserve-static as meant, with the lower end of a bucket of 200 tokens",
            instead=reservation.P_TI_1.id,
            text="400 tokens; a request of 200, foreseen between 200 and 399, is let in for 400 and comes to hold 599",
        ),
    )


# --- seeded bugs ------------------------------------------------------------------------------------------------------


def _last_end_only(entries: Any) -> Any:
    return entries[-1][0] + entries[-1][1]


def _at_its_own_end(p: Any, capacity: Any, profile: Any, end: Any, level: Any) -> Any:
    return profile_slack(p, capacity, profile._replace(highs=[0] * len(profile.ends)), end, level)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("what runs does not grow, as printed", never_short(peaks=reservation.peak_slack_printed)),
        Bug("only its own end is looked at", never_short(profile=_at_its_own_end)),
        Bug("only the last end is looked at", never_short(held=_last_end_only)),
        Bug("the new request is counted twice", profile_admits_more(lambda *given: profile_slack(*given) - given[-1])),
    )
