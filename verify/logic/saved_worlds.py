"""Worlds of plain values that break a claim, as files: the claim is looked up, and tried again in the world.

For claims about plain Python (`arithmetic`, `tested`); those about kernels have files of their own (`counterexample`).
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.verify import arithmetic, tested
from fairsched.verify.arithmetic import ArithmeticClaim
from fairsched.verify.false_claim import WorldClaim

SCHEMA = 1


class WorldFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A world as it is saved.

    `claims` is the module, or the ``module:Class``, whose ``claims`` (or false ones, its ``refutations``) hold the
    theorem.  `broken` are the statements that fail there; `without` names the assumptions that were not made.
    """

    fairsched_world: int = SCHEMA
    theorem: str
    claims: str
    broken: tuple[str, ...]
    values: dict[str, Any]
    without: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """The document as indented JSON, the same bytes for the same document."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


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


def read(path: Path) -> WorldFile:
    """A saved world; raises `ValueError`, with the file's name, when it is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=WorldFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: not a world: {error}") from error
    if found.fairsched_world != SCHEMA:
        raise ValueError(f"{path}: schema {found.fairsched_world}; this library reads {SCHEMA}")
    return found


def document(claim: WorldClaim, claims: str, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> WorldFile:
    """What is to be saved of a world; `claims` names where the claim is found."""
    return WorldFile(
        theorem=claim.theorem.id,
        claims=claims,
        broken=broken(claim, values, without),
        values=dict(values),
        without=without,
    )


def broken(claim: WorldClaim, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The statements of the claim that fail in a world; raises `ValueError` for a world that it does not speak of."""
    if not isinstance(claim, ArithmeticClaim):
        return tested.confirmed(claim, values)
    assumptions = (condition.assumption for condition in claim.conditions)
    dropped = frozenset(each for each in assumptions if each and each.name in without)
    return arithmetic.confirmed(claim, values, dropped)


def replay(saved: WorldFile) -> WorldReplay:
    """Tries a saved world again.  Raises `ValueError` when it does not fit the claim, or the claim is not found."""
    claim = _claim(saved)
    return WorldReplay(saved, claim, broken(claim, saved.values, saved.without))


def _claim(saved: WorldFile) -> WorldClaim:
    module, _, attribute = saved.claims.partition(":")
    try:
        found: Any = importlib.import_module(module)
        holder = getattr(found, attribute) if attribute else found
        claims = [*holder.claims(), *(each.claim for each in getattr(holder, "refutations", tuple)())]
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"no claims in {saved.claims!r}: {error}") from error
    for claim in claims:
        if claim.theorem.id == saved.theorem and isinstance(claim, WorldClaim):
            return claim
    raise ValueError(f"{saved.claims!r} has no theorem {saved.theorem!r} about worlds")
