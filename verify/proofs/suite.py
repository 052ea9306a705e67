"""All that is proved, in the order of the report: the modules of proofs, and what they list."""

import importlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from fairsched.verify.logic import ArithmeticClaim, Bug, Claim, Functions, RefutedClaim, SampledClaim, Witness
from fairsched.verify.proofs import gates, memory, offline, orders, placement, routers

SUITE = ""
"""The source of the claims that ship; any other source is ``module`` or ``module:attribute``."""

AnyClaim = Claim | ArithmeticClaim | SampledClaim

MODULES: tuple[ModuleType, ...] = tuple(
    module for room in (gates, memory, routers, orders, offline, placement) for module in room.modules()
)
"""The modules of proofs, in the order of the report."""


def claims() -> tuple[AnyClaim, ...]:
    """Return every claim about what ships."""
    return tuple(claim for module in MODULES for claim in claims_in(module))


def claims_in(module: ModuleType) -> tuple[AnyClaim, ...]:
    """Return the claims of a module; none in one that only has witnesses."""
    return _listed(module, "claims")


@cache
def claims_of(source: str) -> dict[str, AnyClaim]:
    """Return the claims of a source by theorem; raises `ValueError` when two have one name, or there are none."""
    found: list[AnyClaim] = list(claims() if source == SUITE else holder_of(source).claims())
    named = {claim.theorem.id: claim for claim in found}
    if len(named) != len(found) or not found:
        raise ValueError(f"{source}: {'no claims' if not found else 'two claims have one name'}")
    return named


def gate_claims() -> tuple[Claim, ...]:
    """Return every claim about kernels and any sequence of events."""
    return tuple(claim for claim in claims() if isinstance(claim, Claim))


def price_claims(functions: Functions) -> tuple[ArithmeticClaim, ...]:
    """Return every claim about the pricing functions of `functions`."""
    return tuple(claim for module in MODULES for claim in getattr(module, "price_claims", lambda _: ())(functions))


def bugs(module: ModuleType) -> tuple[Bug, ...]:
    """Return the claims of a module that have to be refuted."""
    return _listed(module, "bugs")


def refuted_claims() -> Iterator[tuple[ModuleType, RefutedClaim]]:
    """Yield every statement that is false, with the module that says so."""
    for module in MODULES:
        for each in _listed(module, "refutations"):
            yield module, each


def witnesses() -> tuple[Witness, ...]:
    """Return every run that attains a bound of a gate, of a swap of gates, or of D2LPM."""
    return tuple(witness for module in MODULES for witness in _listed(module, "witnesses"))


def _listed(module: ModuleType, name: str) -> tuple[Any, ...]:
    return tuple(getattr(module, name, tuple)())


def holder_of(source: str) -> Any:
    """Return the module or class of a source, which is ``module`` or ``module:attribute``."""
    module, _, attribute = source.partition(":")
    found: Any = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found
