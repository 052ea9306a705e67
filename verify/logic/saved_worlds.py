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
from fairsched.verify.logic.counterexample import SCHEMA, Saved, decoded, holder_of


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
class WorldReplay:
    """What trying a saved world again gave: the statements that fail there now."""

    document: WorldFile
    claim: WorldClaim
    broken: tuple[str, ...]

    @property
    def confirmed(self) -> bool:
        """Whether it breaks now exactly what it broke when it was saved."""
        return self.broken == self.document.broken

    def to_json(self) -> dict[str, Any]:
        """The replay as plain values."""
        return {
            "counterexample": msgspec.to_builtins(self.document),
            "broken": list(self.broken),
            "confirmed": self.confirmed,
        }

    def text(self) -> str:
        """The replay as lines: the statement, the world, and what breaks in it."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        saved = self.document
        yield f"{saved.theorem}: {self.claim.theorem.statement}"
        if saved.without:
            yield f"without {', '.join(saved.without)}"
        yield from (f"   {name} = {msgspec.json.encode(value).decode()}" for name, value in saved.values.items())
        yield f"broken there: {'; '.join(self.broken)}" if self.broken else "nothing is broken"
        if not self.confirmed:
            yield f"saved as breaking: {'; '.join(saved.broken)}"


def read_world(path: Path) -> WorldFile:
    """A saved world; raises `ValueError`, with the file's name, when it is none."""
    return decoded(path, WorldFile, "world")


def world_document(claim: WorldClaim, claims: str, values: PlainWorld, without: tuple[str, ...] = ()) -> WorldFile:
    """What is to be saved of a world; `claims` names where the claim is found."""
    return WorldFile(
        theorem=claim.theorem.id,
        claims=claims,
        broken=_broken(claim, values, without),
        values=dict(values),
        without=without,
    )


def replay_world(saved: WorldFile) -> WorldReplay:
    """Tries a saved world again.  Raises `ValueError` when it does not fit the claim, or the claim is not found."""
    claim = _claim(saved)
    return WorldReplay(saved, claim, _broken(claim, saved.values, saved.without))


def _broken(claim: WorldClaim, values: PlainWorld, without: tuple[str, ...]) -> tuple[str, ...]:
    return broken(claim, values, frozenset(each for each in claim.droppable if each.name in without))


def _claim(saved: WorldFile) -> WorldClaim:
    holder = holder_of(saved.claims, saved.theorem)
    for claim in (*holder.claims(), *(each.claim for each in getattr(holder, "refutations", tuple)())):
        if claim.theorem.id == saved.theorem and isinstance(claim, WorldClaim):
            return claim
    raise ValueError(f"{saved.claims!r} has no theorem {saved.theorem!r} about worlds")
