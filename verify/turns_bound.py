"""PG-1: after how many picks a request of a priority group is let in.

PG-turns, proved of the kernel for any number of groups (`fairsched.verify.turns_proofs`), counts in turns of its group;
here turns become the number that ships.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.policies import turns
from fairsched.policies.turns import PG_1, PG_GROUPS
from fairsched.verify.arithmetic import ArithmeticClaim, Condition
from fairsched.verify.false_claim import Bug
from fairsched.verify.turns_play import attained, refutations

__all__ = ["bugs", "claims", "refutations"]


def _bound(functions: Any) -> ArithmeticClaim:
    """PG-turns, with R a number, gives the bound that ships."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        turns_max = functions.turns_max(w.k, w.g)
        bound = functions.picks_max(w.k, turns_max, w.g, w.N)
        return {
            "k <= ceil(k/g) g": w.k <= turns_max * w.g,
            "(R - 1 - ceil(k/g)) g < 0": (w.R - 1 - turns_max) * w.g <= -1,
            "R <= ceil(k/g)": turns_max >= w.R,
            "(ceil(k/g) - R) (N - g) >= 0": (turns_max - w.R) * (w.N - w.g) >= 0,
            "others + k <= bound": w.others + w.k <= bound,
            "bound <= ceil(k/g) N": bound <= turns_max * w.N,
        }

    return ArithmeticClaim(
        PG_1,
        ("k", "g", "N", "R", "others", "own"),
        (
            Condition(lambda w: w.g >= 1),
            Condition(lambda w: w.g <= w.N),
            Condition(lambda w: w.k >= 1),
            Condition(lambda w: w.R >= 0),
            Condition(lambda w: w.others <= w.R * (w.N - w.g)),
            Condition(lambda w: w.own >= (w.R - 1) * w.g),
            Condition(lambda w: w.own <= w.k - 1),
        ),
        shows,
        attained=attained,
    )


def _groups(functions: Any) -> ArithmeticClaim:
    """By induction: what is below group g is a round of g - 1 groups."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        return {
            "no groups, no picks": functions.round_picks(w.g - w.g) == 0,
            "with group g there are g more": functions.round_picks(w.g) == functions.round_picks(w.g - 1) + w.g,
        }

    return ArithmeticClaim(PG_GROUPS, ("g",), (Condition(lambda w: w.g >= 1),), shows)


def claims() -> tuple[ArithmeticClaim, ...]:
    """About the functions that ship."""
    return (_groups(turns), _bound(turns))


def _bug(**changed: Any) -> Any:
    """The functions, some of them changed."""
    return SimpleNamespace(**{**vars(turns), **changed})


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("a turn too few is waited", _bound(_bug(turns_max=lambda position, quota: position // quota))),
        Bug("its own group's turns are not counted", _bound(_bug(picks_max=lambda k, m, g, n: m * (n - g)))),
        Bug("the highest group is left out of a round", _groups(_bug(round_picks=lambda p: p * (p - 1) // 2))),
    )
