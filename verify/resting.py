"""A theorem stands only as long as all that it rests on: what is not proved below makes unknown what is above."""

from collections.abc import Iterable, Mapping

from fairsched.model.theorem import Theorem

PROVED = "proved"
HELD = (PROVED, "tested")
"""Verdicts that are no failure."""


def below(theorem: Theorem, theorems: Iterable[Theorem]) -> tuple[str, ...]:
    """The ids of all that the theorem rests on, and of what that rests on, each once."""
    rests_on = {each.id: each.rests_on for each in theorems}
    found = list(theorem.rests_on)
    for each in found:
        found += [other for other in rests_on.get(each, ()) if other not in found]
    return tuple(dict.fromkeys(found))


def fallen(theorem: Theorem, theorems: Iterable[Theorem], verdicts: Mapping[str, str]) -> str:
    """Why the theorem does not stand, given the verdicts on what it rests on, by id; empty if it does.

    What was not decided at all is not proved either.
    """
    missing = [each for each in below(theorem, theorems) if verdicts.get(each) != PROVED]
    return f"rests on {', '.join(missing)}, which is not proved" if missing else ""
