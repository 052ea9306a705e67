"""P-LL-1 proved about the shipped check of a migration, run on unknown integers.

A worker's freeness is a ratio of two integers, and ratios are compared by multiplying across, so the claim is about
products of up to five unknowns: what each step rests on is shown before it.
"""

from types import SimpleNamespace
from typing import Any

from fairsched.policies.routers import P_LL_1, P_LL_2, SIZE_WITHIN, Llumnix
from fairsched.verify.logic import ArithmeticClaim, Bug, Condition, Shown, arithmetic, changed


@arithmetic(
    P_LL_1,
    ("free", "n", "room", "m", "least", "most", "out", "into"),
    Condition(lambda w: (w.n >= 1) & (w.m >= 0)),
    Condition(lambda w: (w.least >= 1) & (w.least <= w.most)),
    Condition(lambda w: (w.least <= w.out) & (w.out <= w.most), SIZE_WITHIN),
    Condition(lambda w: (w.least <= w.into) & (w.into <= w.most), SIZE_WITHIN),
    relaxed=True,
)
def migration(w: SimpleNamespace, kind: Any = Llumnix) -> Shown:
    """Let the source have `n` requests and `free` tokens, the target `m` and `room`.

    The request frees `out` at the source and takes `into` at the target.
    """
    if not kind.narrows((w.free, w.n), (w.room, w.m), w.least, w.most):
        return {}
    stay, come = w.n - 1, w.m + 1
    left, taken = w.free + w.out, w.room - w.into
    after = taken * stay - left * come
    shown = {
        "the source keeps a request": stay >= 1,
        "at the source": (w.most - w.out) * come >= 0,
        "at the target": (w.most - w.into) * stay >= 0,
        "the target stays the freer one": after > 0,
    }
    if w.m:
        least = (w.room - w.least) * stay - (w.free + w.least) * come
        before = w.room * w.n - w.free * w.m
        shown |= {
            "what leaves is not less than foreseen": (w.out - w.least) * come >= 0,
            "what comes is not less than foreseen": (w.into - w.least) * stay >= 0,
            "the gap is not more than foreseen": (least - after) * (w.n * w.m) >= 0,
            "the gap shrinks": after * (w.n * w.m) < before * (stay * come),
        }
    return shown


@arithmetic(
    P_LL_2,
    ("free", "n", "room", "m", "least", "most"),
    Condition(lambda w: (w.n >= 1) & (w.m >= 1)),
    Condition(lambda w: (w.least >= 1) & (w.least <= w.most)),
    Condition(lambda w: w.free * w.m >= w.room * w.n),
    relaxed=True,
)
def way_back(w: SimpleNamespace, kind: Any = Llumnix) -> Shown:
    """Let the source, with `n` requests and `free` tokens, be the freer one, and the target have `m` and `room`."""
    return {"it is not accepted": not kind.narrows((w.free, w.n), (w.room, w.m), w.least, w.most)}


def claims() -> tuple[ArithmeticClaim, ...]:
    """About the check that ships."""
    return (migration(), way_back())


def _wrong(old: str, new: str) -> Any:
    """Return the policy with one place of its check changed."""
    return changed(Llumnix, "narrows", old, new)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("the target may end up as the less free", migration(_wrong("(more_free - most)", "(more_free - least)"))),
        Bug("the gap may stay as it is", migration(_wrong("< before", "<= before"))),
        Bug("the gap is foreseen for the most", migration(_wrong("(more_free - least)", "(more_free - most)"))),
        Bug("the request is not taken from the source", migration(_wrong("requests - 1", "requests"))),
        Bug("the gap may grow", way_back(_wrong("others < before", "others > before"))),
        Bug("the last request may leave", migration(_wrong("stay < 1", "stay < 0"))),
    )
