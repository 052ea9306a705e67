"""What a gate promises in one configuration, as the value to which the monitor holds a run."""

from itertools import product
from math import lcm
from typing import Any

import attrs

from fairsched.model.monitor_promise import Promise
from fairsched.model.pricing import multipliers
from fairsched.model.request import Client, Groups
from fairsched.model.service import Charging
from fairsched.model.theorem import CAPPED, EQUAL_QUANTA, MEM_RESERVE, OUTPUTS_BOUNDED, Theorem
from fairsched.policies.base import ChargingRule, Limits
from fairsched.policies.gate import Gate, Stake

ONE_SIDED = frozenset({"D-4.2", "V-4.9"})
"""Theorems about how far who waits falls behind anybody else."""


def promise_of(gate: Gate[Any], clients: tuple[Client, ...], limits: Limits) -> Promise:
    """The promise of a gate to these clients.

    The bound of a one-sided theorem is stated even where the configuration breaks one of its assumptions, which the
    promise names: a monitor then shows the theorem fail.
    """
    weights = tuple(client.weight for client in clients)
    stakes = gate.stakes(clients, limits)
    cap: int | None = getattr(gate, "in_flight_cap_tokens", None)

    def reweighted(now: tuple[int, ...], lowest: tuple[int, ...], groups: tuple[Groups, ...]) -> Promise:
        return _reweighted(gate, limits, now, lowest, groups)

    return Promise(
        charging=charging_to(gate.charging, weights),
        weights=weights,
        theorems=tuple(
            _stated(theorem, limits) for theorem in gate.theorems if cap or CAPPED not in theorem.assumptions
        ),
        charge_max=stakes[0].charge_max // stakes[0].scale if stakes else None,
        gap_bound=gate.service_gap_bound(clients, limits),
        lag_bound=_lag_bound(gate, stakes),
        quanta=tuple(stake.quantum for stake in stakes if stake.quantum),
        broken=gate.broken_assumptions,
        outputs_reserved=limits.outputs_reserved,
        running_max=limits.running_max,
        in_flight_cap_tokens=cap,
        groups=tuple(client.place for client in clients) if any(client.place for client in clients) else (),
        reweighted=reweighted,
    )


def charging_to(rule: ChargingRule, weights: tuple[int, ...]) -> Charging:
    """How clients of these weights are charged."""
    return Charging(rule.rates, rule.input, multipliers(weights), rule.cached_percent, rule.splits)


def _stated(theorem: Theorem, limits: Limits) -> Theorem:
    """The theorem with the assumption that stands for MemReserve where outputs are not reserved."""
    if limits.outputs_reserved or MEM_RESERVE not in theorem.assumptions:
        return theorem
    swapped = tuple(OUTPUTS_BOUNDED if each == MEM_RESERVE else each for each in theorem.assumptions)
    return attrs.evolve(theorem, assumptions=swapped)


def _lag_bound(gate: Gate[Any], stakes: tuple[Stake, ...]) -> int | None:
    """The largest bound of the gate's one-sided theorem for any two clients; None if it has none for them all."""
    theorem = next((each for each in gate.theorems if each.id in ONE_SIDED), None)
    if theorem is None or theorem.bound_cost is None or len(stakes) < 2:
        return None
    if EQUAL_QUANTA in theorem.assumptions and len({stake.quantum for stake in stakes}) > 1:
        return None
    kinds = set(stakes)
    return max(
        theorem.bound_cost(f.quantum, f.charge_max, g.quantum, g.charge_max) for f, g in product(kinds, repeat=2)
    )


def _reweighted(
    gate: Gate[Any], limits: Limits, now: tuple[int, ...], lowest: tuple[int, ...], groups: tuple[Groups, ...]
) -> Promise:
    """The promise from a change of weights or groups on.

    A deficit stays between what quanta and U say now (D-change), so its bounds are those of the weights now.  A counter
    remembers the dearest price that a client ever paid (V-change): its gap is bounded by that of the lowest weights, in
    the unit of those now, and its one-sided bound is not proved.
    """
    promise = promise_of(gate, _clients(now, groups), limits)
    if promise.quanta:
        return promise
    bound = gate.service_gap_bound(_clients(lowest, groups), limits)
    if bound is not None:
        bound = bound * lcm(*now) // lcm(*lowest)
    return attrs.evolve(promise, gap_bound=bound, lag_bound=None)


def _clients(weights: tuple[int, ...], groups: tuple[Groups, ...]) -> tuple[Client, ...]:
    return tuple(Client(i, str(i), *of) for i, of in enumerate(zip(weights, groups, strict=True)))
