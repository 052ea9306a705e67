"""What is proved, a gate or a rule a file, in the order of the report.  Read `gates.deficit` first: it proves D-4.1.

**To add proofs**, write a module in the folder that it belongs to and put it into `MODULES`.  It has:

- `claims()`: one claim a theorem, of any kind.  `Claim` is about kernels and any sequence of events (`logic.system`);
  `ArithmeticClaim` runs shipped functions on unknown integers, and `SampledClaim` tries worlds (`logic.claims`):
  `arithmetic` and `sampled` make them of a function from a world to the statements that must be true of it.
- `bugs()`, for the second and third kind: each `Bug` is the claim about code that is wrong, and has to be refuted.
- `refutations()`, if statements are false: each `RefutedClaim` has a world; `fairsched verify` looks for it again.
- `witnesses()`, if runs attain the bounds of its theorems.

The theorem itself stands beside what it is about, in the `theorems` of a gate, a batching rule or a router; a router's
theorem with a `bound` also needs `attained` in its claim.  What is missing is named by `registry.breaches`.
`routers.load_based` is an example of all of it.
"""

# written by hand

from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from fairsched.model.theorem import Theorem
from fairsched.verify.logic import (
    ArithmeticClaim,
    Bug,
    Claim,
    Condition,
    Functions,
    RefutedClaim,
    SampledClaim,
    Shown,
    Witness,
)

SUITE = ""
"""The source of the claims that ship; any other source is ``module`` or ``module:attribute``."""

AnyClaim = Claim | ArithmeticClaim | SampledClaim

MODULES = (
    "gates.deficit",
    "gates.deficit_steps",
    "gates.deficit_progress",
    "gates.deficit_witnesses",
    "gates.deficit_sharing",
    "gates.hierarchical",
    "gates.hierarchical_families",
    "gates.counter",
    "gates.counter_waits",
    "gates.changes",
    "gates.refinements.state_transfer",
    "memory.int64",
    "gates.refinements.in_batch",
    "gates.refinements.admission",
    "gates.refinements.bands",
    "orders.weighted_round_robin",
    "orders.weighted_round_robin_bound",
    "memory.books",
    "memory.memory",
    "memory.prefill_batches",
    "memory.pricing",
    "routers.load_based",
    "routers.sal",
    "routers.llumnix",
    "routers.d2lpm",
    "routers.splitwise",
    "orders.larry",
    "offline.prefix_groups",
    "offline.threshold",
    "orders.ageing",
    "orders.predicted_batches",
    "orders.batches",
    "orders.virtual_finish",
    "orders.preemption",
    "memory.swap",
    "memory.transit",
    "memory.moves",
    "memory.reservation",
    "memory.kept",
    "routers.phases",
    "routers.e2",
    "gates.shared_workers",
    "gates.shared",
    "gates.refinements.lease_holders",
    "gates.refinements.leases",
    "gates.refinements.lease_messages",
    "gates.refinements.lease_witnesses",
    "gates.refinements.lease_scenarios",
    "gates.phases.bounds",
    "gates.phases.scenarios",
    "placement.aladdin_fit",
    "placement.aladdin",
    "memory.window",
    "memory.quota",
    "memory.seconds",
    "memory.adapters",
)
"""The modules of proofs, in the order of the report; they are imported when a claim is asked for."""


@cache
def modules() -> tuple[ModuleType, ...]:
    """The modules of proofs."""
    return tuple(import_module(f"{__name__}.{name}") for name in MODULES)


def claims() -> tuple[AnyClaim, ...]:
    """Every claim about what ships."""
    return tuple(claim for module in modules() for claim in claims_in(module))


def claims_in(module: ModuleType) -> tuple[AnyClaim, ...]:
    """The claims of a module; none in one that only has witnesses."""
    return _listed(module, "claims")


@cache
def claims_of(source: str) -> dict[str, AnyClaim]:
    """The claims of a source by theorem; raises `ValueError` when two have one name, or there are none."""
    found: list[AnyClaim] = list(claims() if source == SUITE else holder_of(source).claims())
    named = {claim.theorem.id: claim for claim in found}
    if len(named) != len(found) or not found:
        raise ValueError(f"{source}: {'no claims' if not found else 'two claims have one name'}")
    return named


def gate_claims() -> tuple[Claim, ...]:
    """Every claim about kernels and any sequence of events."""
    return tuple(claim for claim in claims() if isinstance(claim, Claim))


def gate_claim(theorem: str) -> Claim:
    """The claim about kernels that shows this theorem."""
    claim = claims_of(SUITE)[theorem]
    assert isinstance(claim, Claim)
    return claim


def arithmetic_claims() -> tuple[ArithmeticClaim, ...]:
    """Every claim about unknown integers: prices, U, the accounting of memory, routers."""
    return tuple(claim for claim in claims() if isinstance(claim, ArithmeticClaim))


def price_claims(functions: Functions) -> tuple[ArithmeticClaim, ...]:
    """Every claim about the pricing functions of `functions`."""
    return tuple(claim for module in modules() for claim in getattr(module, "price_claims", lambda _: ())(functions))


def bugs(module: ModuleType) -> tuple[Bug, ...]:
    """The claims of a module that have to be refuted."""
    return _listed(module, "bugs")


def refuted_claims() -> Iterator[tuple[ModuleType, RefutedClaim]]:
    """Every statement that is false, with the module that says so."""
    for module in modules():
        for each in _listed(module, "refutations"):
            yield module, each


def witnesses() -> tuple[Witness, ...]:
    """Every run that attains a bound of a gate, of a swap of gates, or of D2LPM."""
    return tuple(witness for module in modules() for witness in _listed(module, "witnesses"))


def home_of(theorem: str) -> ModuleType | None:
    """The module that proves the theorem, or shows that it is false."""
    for module in (*modules(), import_module("fairsched.verify.report.refutations")):
        refuted = (each.claim for each in _listed(module, "refutations") if isinstance(each, RefutedClaim))
        if any(claim.theorem.id == theorem for claim in (*claims_in(module), *refuted)):
            return module
    return None


Shows = Callable[..., Shown]
"""What is shown in a world, of what ships unless other arguments say of which variant."""


def arithmetic(
    theorem: Theorem, names: tuple[str, ...], *conditions: Condition, **more: Any
) -> Callable[[Shows], Callable[..., ArithmeticClaim]]:
    """Make of what is shown the claim about all integers `names` under these conditions; `more` as the claim has it."""

    def claim(shows: Shows) -> Callable[..., ArithmeticClaim]:
        @wraps(shows)
        def about(*variant: Any, **variants: Any) -> ArithmeticClaim:
            return ArithmeticClaim(theorem, names, conditions, lambda w: shows(w, *variant, **variants), **more)

        return about

    return claim


def sampled(theorem: Theorem, worlds: Any, **more: Any) -> Callable[[Shows], Callable[..., SampledClaim]]:
    """Make of what is shown the claim that is tried in these worlds; `more` as the claim has it."""

    def claim(shows: Shows) -> Callable[..., SampledClaim]:
        @wraps(shows)
        def about(*variant: Any, **variants: Any) -> SampledClaim:
            return SampledClaim(theorem, worlds, lambda w: shows(w, *variant, **variants), **more)

        return about

    return claim


def _listed(module: ModuleType, name: str) -> tuple[Any, ...]:
    return tuple(getattr(module, name, tuple)())


def holder_of(source: str) -> Any:
    """The module or class of a source, which is ``module`` or ``module:attribute``."""
    module, _, attribute = source.partition(":")
    found: Any = import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found
