"""What must be refuted: bugs that are seeded into what ships, and statements that are false of a variant."""

from collections.abc import Mapping
from typing import Any

import attrs

from fairsched.verify.arithmetic import ArithmeticClaim
from fairsched.verify.tested import TestedClaim

WorldClaim = ArithmeticClaim | TestedClaim
"""A claim about shipped code in worlds of plain values."""


@attrs.frozen
class Bug:
    """A theorem about code that is wrong in this way: the claim, with the theorem's id, that has to be refuted."""

    what: str
    claim: WorldClaim


@attrs.frozen
class FalseClaim:
    """A statement that is false of a variant, a world that shows it, and the id of the theorem that is true instead.

    `claim` holds the statement, about the variant; `text` says the world in words.
    """

    claim: WorldClaim
    variant: str
    shipped: str
    text: str
    world: Mapping[str, Any]
