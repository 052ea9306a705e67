"""Worlds of plain values that break a claim, as files: the claim is looked up, and tried again in the world.

For claims in worlds (`fairsched.verify.logic.claims`); those about kernels have files of their own
(`counterexample`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.verify.logic.claims import PlainWorld, WorldClaim, broken
from fairsched.verify.logic.counterexample import (
    SCHEMA,
    Replay,
    Saved,
    Tried,
    decoded,
    holder_of,
    read_counterexample,
    replay_counterexample,
)


class WorldFile(Saved, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A world as it is saved.

    `broken` are the statements that fail there; `without` names the assumptions that were not made.
    """

    fairsched_world: int = SCHEMA
    theorem: str
    claims: str
    broken: tuple[str, ...]
    values: dict[str, Any]
    without: tuple[str, ...] = ()


@attrs.frozen
class WorldReplay(Tried):
    """What trying a saved world again gave: the statements that fail there now."""

    document: WorldFile
    claim: WorldClaim
    broken: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the statement, the world, and what breaks in it."""
        saved = self.document
        yield f"{saved.theorem}: {self.claim.theorem.statement}"
        if saved.without:
            yield f"without {', '.join(saved.without)}"
        yield from (f"   {name} = {msgspec.json.encode(value).decode()}" for name, value in saved.values.items())
        yield f"broken there: {'; '.join(self.broken)}" if self.broken else "nothing is broken"
        if not self.confirmed:
            yield f"saved as breaking: {'; '.join(saved.broken)}"


def replay_saved(path: Path) -> Replay | WorldReplay | None:
    """A saved counterexample or world, tried again; None for any other file, such as a log.

    Raises `ValueError` when it is none that this version reads, does not fit the claim, or the claim is not found.
    """
    with path.open("rb") as file:
        begins = file.read(256)
    if b'"fairsched_counterexample"' in begins:
        return replay_counterexample(read_counterexample(path))
    if b'"fairsched_world"' not in begins:
        return None
    saved = decoded(path, WorldFile, "world")
    claim = _claim(saved)
    return WorldReplay(saved, claim, _broken(claim, saved.values, saved.without))


def world_document(claim: WorldClaim, claims: str, values: PlainWorld, without: tuple[str, ...] = ()) -> WorldFile:
    """What is to be saved of a world; `claims` names where the claim is found."""
    return WorldFile(
        theorem=claim.theorem.id,
        claims=claims,
        broken=_broken(claim, values, without),
        values=dict(values),
        without=without,
    )


def _broken(claim: WorldClaim, values: PlainWorld, without: tuple[str, ...]) -> tuple[str, ...]:
    return broken(claim, values, frozenset(each for each in claim.droppable if each.name in without))


def _claim(saved: WorldFile) -> WorldClaim:
    holder = holder_of(saved.claims, saved.theorem)
    for claim in (*holder.claims(), *(each.claim for each in getattr(holder, "refutations", tuple)())):
        if claim.theorem.id == saved.theorem and isinstance(claim, WorldClaim):
            return claim
    raise ValueError(f"{saved.claims!r} has no theorem {saved.theorem!r} about worlds")
