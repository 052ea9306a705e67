"""What there is to prove about a policy: the claims that its parts bring along, or its author's own.

A composition has the theorems of its gate and of its batching rule, whatever its order, and those of the pricing that
its constants rest on.  That holds only for the parts that were proved about: a class that overrides a method of a
shipped gate or of the composition brings claims of its own (a `claims` function) or has none.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any, cast

import attrs

from fairsched.model.theorem import CAPPED, MEM_RESERVE, OUTPUTS_BOUNDED, RESERVES, Assumption, Theorem
from fairsched.policies.base import AnyClusterPolicy, ClusterPolicy
from fairsched.policies.batching import BATCHINGS, Batching
from fairsched.policies.gates import (
    LEASE_THEOREMS,
    AnyGate,
    BandGate,
    BoundedGate,
    CounterGate,
    DeficitGate,
    Gate,
    GlobalDeficitGate,
    HierarchicalGate,
    InBatchGate,
    KernelGate,
    LeasedGate,
    OpenGate,
)
from fairsched.policies.guarantees import SECONDS_THEOREMS
from fairsched.policies.local import ComposedPolicy, PredictedBatches
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES
from fairsched.verify.authoring import RETURNS, FairGate, ships, undeclared
from fairsched.verify.conformance import differing_plans
from fairsched.verify.logic import impurities
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.proofs.memory import PRICING_THEOREMS, QUOTA_THEOREMS, SLOT_THEOREMS, WINDOW_THEOREMS

PROVED = "proved"
HELD = (PROVED, "tested")
"""Verdicts that are no failure."""
UNDECIDED = ("unknown", "not inductive")
"""Verdicts that leave it open whether the statement is true."""


def below(theorem: Theorem, theorems: Iterable[Theorem]) -> tuple[str, ...]:
    """Return the ids of all that the theorem rests on, and of what that rests on, each once."""
    rests_on = {each.id: each.rests_on for each in theorems}
    found = list(theorem.rests_on)
    for each in found:
        found += [other for other in rests_on.get(each, ()) if other not in found]
    return tuple(dict.fromkeys(found))


def founded(source: str, theorems: Iterable[Theorem]) -> tuple[Theorem, ...]:
    """Return the theorems, and after them what they rest on of others of the source: each subject shows all that it
    needs."""
    listed = tuple(theorems)
    known = {claim.theorem.id: claim.theorem for claim in claims_of(source).values()}
    needed = dict.fromkeys(name for each in listed for name in below(each, known.values()))
    there = {each.id for each in listed}
    return (*listed, *(known[name] for name in needed if name in known and name not in there))


def fallen(theorem: Theorem, theorems: Iterable[Theorem], verdicts: Mapping[str, str]) -> str:
    """Return why the theorem does not stand, given the verdicts on what it rests on, by id; empty if it does.

    What was not decided at all is not proved either.
    """
    missing = [each for each in below(theorem, theorems) if verdicts.get(each) != PROVED]
    return f"rests on {', '.join(missing)}, which is not proved" if missing else ""


PARTS: dict[str, tuple[str, tuple[Theorem, ...]]] = {
    "pricing": ("pricing (every gate)", PRICING_THEOREMS),
    "window": ("window (the gateway's)", (*WINDOW_THEOREMS, *QUOTA_THEOREMS)),
    "slots": ("slots (of adapters)", SLOT_THEOREMS),
    "seconds": ("waits in seconds", SECONDS_THEOREMS),
    "shared-account": ("shared account (of several gateways)", LEASE_THEOREMS),
    "variants": ("variants (rules of no policy above)", ()),
}
"""What is reported beside policies, by name: a heading, and theorems.  Those of `variants` are about rules that no
policy has: what is true of them instead of what is false of policies."""

_PROVED = (
    *(PredictedBatches, ComposedPolicy),
    *(InBatchGate, LeasedGate, DeficitGate, GlobalDeficitGate, HierarchicalGate, BandGate, CounterGate, OpenGate),
)
"""Whose methods the theorems are about.  Batches by prediction decide for themselves who must leave and how much memory
an entry needs, which both are memory's say; who may go is the gate's as ever."""


LIMITS = ("limits", "grows", "foresees", "theorems", "serves_all")
"""What bounds read of a batching rule, and an author's may not say anew."""


@attrs.frozen
class Subject:
    """A policy with its theorems; their claims are found in `source`.

    A router has no `policy` but is the `router`, and a class of gates has only its `gate`.  `broken` are the
    assumptions that the configuration does not fulfil, and `instead` replaces others by what it does.
    """

    name: str
    source: str
    theorems: tuple[Theorem, ...]
    policy: ComposedPolicy | None = None
    router: AnyClusterPolicy | None = None
    gate: AnyGate | None = None
    broken: frozenset[Assumption] = frozenset()
    instead: tuple[tuple[Assumption, Assumption], ...] = ()

    def assumptions(self, theorem: Theorem) -> tuple[Assumption, ...]:
        """Return what the theorem, with those that it rests on, assumes in this configuration."""
        instead = dict(self.instead)
        resting = below(theorem, self.theorems)
        used = (theorem, *(other for other in self.theorems if other.id in resting))
        assumed = dict.fromkeys(assumption for each in used for assumption in each.assumptions)
        return tuple(instead.get(assumption, assumption) for assumption in assumed)

    def returns(self) -> Iterator[str]:
        """Yield what the policy promises of a client that leaves and returns, a line an obligation; nothing of one that
        bounds no gap."""
        gate = self.policy.gate if self.policy else self.gate
        if not isinstance(gate, BoundedGate) or not (gate.gap_theorems or isinstance(gate, FairGate)):
            return
        for name, by in gate.returns.items():
            if not isinstance(by, str):
                used = {each for theorem in self.theorems if theorem.id in by for each in self.assumptions(theorem)}
                lacking = sorted(each.name for each in self.broken & used)
                by = f"no {', '.join(lacking)}" if lacking else by
            yield f"{name}, {RETURNS[name]}: {f'not promised, {by}' if isinstance(by, str) else ', '.join(by)}"


def subject(name: str, policy: object, source: str = "") -> Subject:
    """Return what there is to prove about a policy, or about anything that has `claims`.

    `name` is a shipped policy's, or the ``module:attribute`` where the author's is found unless `source` is that.
    """
    composed = policy if isinstance(policy, ComposedPolicy) else None
    router = policy if isinstance(policy, ClusterPolicy) else None
    if hasattr(policy, "claims"):
        source = source or name
        alone: AnyGate | None = None
        if isinstance(policy, type) and issubclass(policy, Gate):
            _require_declaration(name, policy)
            alone = policy()
        claimed = tuple(claim.theorem for claim in claims_of(source).values())
        return Subject(name, source, claimed, composed, router, alone)
    if router is not None:
        return _routing(name, router)
    if composed is None:
        raise ValueError(f"{name} is neither a composed policy nor has it `claims`")
    _refuse_impure(name, composed)
    static = composed.batching.reserve == "static"
    instead = () if static else ((MEM_RESERVE, OUTPUTS_BOUNDED),)
    own_claims = getattr(composed.gate, "claims", None)
    if own_claims is not None:
        _refuse_overridden(name, overridden(type(composed)))
        _require_declaration(name, type(composed.gate))
        _refuse_patched(name, composed)
        stated = [claim.theorem for claim in own_claims()]
        # The gate says what their bounds are in its configuration.
        theorems = tuple(next((own for own in composed.gate.theorems if own == each), each) for each in stated)
        source = f"{type(composed.gate).__module__}:{type(composed.gate).__qualname__}"
        return Subject(name, source, theorems, composed, instead=instead)
    gate = overridden(type(composed.gate)) if composed.gate.theorems else []
    _refuse_overridden(name, overridden(type(composed)) + gate)
    _refuse_patched(name, composed)
    if composed.gate.grouped:
        _require_obligations(name, composed.gate, {theorem.id for theorem in composed.gate.theorems})
    order, batching = composed.order, type(composed.batching)
    theorems = (*composed.gate.theorems, *(batching if ships(batching) else Batching).theorems)
    theorems += order.theorems if ships(type(order)) else ()
    # Outputs that are not reserved are not counted by a cap either.
    broken = composed.gate.broken_assumptions.union(() if static else (CAPPED, RESERVES))
    return Subject(name, SUITE, founded(SUITE, theorems), composed, broken=broken, instead=instead)


def _require_declaration(name: str, gate: type[AnyGate]) -> None:
    """Refuse a gate that says more, or claims otherwise, than follows from its declaration."""
    if not issubclass(gate, FairGate):
        raise ValueError(
            f"{name}: claims about a gate follow from its declaration: derive {gate.__name__} from FairGate"
        )
    if beside := undeclared(gate):
        raise ValueError(
            f"{name}: {', '.join(beside)} would run beside what is proved, and is no part of a declaration"
        )


def _require_obligations(name: str, gate: AnyGate, theorems: Set[str]) -> None:
    """Refuse a gate that states no progress: all that is fair would be proved of one that admits no client; and one
    that promises a gap and does not say what a client gains that leaves and returns."""
    kind = type(gate).__name__
    if missing := [each for each in gate.progress if each not in theorems]:
        raise ValueError(f"{name}: no theorem {', '.join(missing)} says that {kind} serves clients (`Gate.progress`)")
    if isinstance(gate, BoundedGate) and gate.gap_theorems:
        owed = {each: gate.returns.get(each, (each,)) for each in RETURNS}
        if missing := [each for each, by in owed.items() if not isinstance(by, str) and not {*by} <= theorems]:
            raise ValueError(f"{name}: {kind} owes {', '.join(missing)}, or says why not (`BoundedGate.returns`)")


def _refuse_patched(name: str, policy: ComposedPolicy) -> None:
    """Refuse a part with attributes beside those of its class: what runs is found there first."""
    gate, parts = policy.gate, (policy, policy.gate, policy.order, policy.batching)
    found: list[str] = []
    for part in cast("tuple[Any, ...]", parts):
        known = {field.name for field in attrs.fields(type(part))}
        known |= {each for each in dir(part) if isinstance(getattr(type(part), each, None), cached_property)}
        found += [f"{type(part).__name__}.{each}" for each in getattr(part, "__dict__", {}) if each not in known]
    if isinstance(gate, KernelGate) and gate.calls is not attrs.evolve(gate).calls:
        found.append(f"{type(gate).__name__}.calls")
    _refuse_overridden(name, found)


def _refuse_impure(name: str, policy: ComposedPolicy) -> None:
    """Refuse a composition with an author's parts that decide by anything but state and view: what a proof says of a
    state would not be what runs."""
    kinds = (type(policy.order), type(policy.batching))
    own = [base for base in kinds[1].__mro__ if not ships(base)]
    _refuse_overridden(name, [f"{base.__name__}.{said}" for base in own for said in LIMITS if said in vars(base)])
    if found := next((problem for kind in kinds for problem in impurities(kind)), ""):
        raise ValueError(f"{name}: {found}")
    if not all(map(ships, kinds)) and (found := differing_plans(policy)):
        raise ValueError(f"{name} decides by something outside its state: {found}")


def _routing(name: str, router: AnyClusterPolicy) -> Subject:
    """Return the theorems of a router, which are those that its own class lists; one that changes another's methods
    does not have those.

    A class that does not ship has claims of its own for theorems of its own.
    """
    mro = type(router).__mro__
    listing = next(i for i, base in enumerate(mro) if "theorems" in vars(base))
    shipped = next(
        i for i, base in enumerate(mro) if base.__module__.partition(".")[0] == __package__.partition(".")[0]
    )
    proved = mro[max(listing, shipped)]
    if router.theorems:
        _refuse_overridden(name, undeclared(type(router), proved))
    return Subject(name, SUITE, founded(SUITE, router.theorems), router=router, broken=router.broken_assumptions)


def part(name: str) -> Subject:
    """Return the theorems of one of `PARTS`; of `variants` those that nothing else lists."""
    _, theorems = PARTS[name]
    return Subject(name, SUITE, founded(SUITE, theorems or _unlisted()))


def _unlisted() -> Iterator[Theorem]:
    """Yield the theorems that ship and that no gate, order, batching rule, router or other part lists."""
    orders = (policy.order for policy in LOCAL_POLICIES.values())
    gates = (DeficitGate, GlobalDeficitGate, HierarchicalGate, BandGate, CounterGate)
    parts = (part(name) for name, (_, theorems) in PARTS.items() if theorems)
    listing = (*gates, *orders, *BATCHINGS.values(), *CLUSTER_POLICIES.values(), *parts)
    listed = {theorem.id for each in listing for theorem in getattr(each, "theorems", ())}
    return (claim.theorem for name, claim in claims_of(SUITE).items() if name not in listed)


def overridden(kind: type) -> list[str]:
    """Return the methods of a class that was proved about which this class of policies or gates defines anew."""
    proved = next((base for base in kind.__mro__ if base in _PROVED), None)
    return [f"every method of {kind.__name__}"] if proved is None else undeclared(kind, proved)


def _refuse_overridden(name: str, methods: list[str]) -> None:
    if methods:
        listed = ", ".join(sorted(methods))
        raise ValueError(f"{name} overrides {listed}: it inherits no theorem, and has no `claims` of its own")
