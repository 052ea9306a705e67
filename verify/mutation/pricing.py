"""Mutation of the pricing functions: every small change prices something wrongly, or changes no price.

The same as `fairsched.verify.mutation.kernels` for plain functions on integers: a mutant is killed by integers that
fulfil a claim's conditions and break it on the functions themselves, and equivalent when both texts give the same on
every path, for all arguments of at least 0 (weights and rates: 1).
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product as tuples
from math import gcd
from types import ModuleType, SimpleNamespace
from typing import Any

import z3

from fairsched.model import pricing
from fairsched.verify.logic import ArithmeticClaim, Counterexample, Paths, broken, explore
from fairsched.verify.mutation.equivalence import ILL_TYPED
from fairsched.verify.mutation.mutants import Fate, Mutant, MutantOutcome, mutants
from fairsched.verify.proofs import price_claims
from fairsched.verify.proofs.memory import with_contracts
from fairsched.verify.solvers import RLIMIT, Proved, Refuted, prove, solver_of

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    pricing.multipliers,
    pricing.price,
    pricing.charged_tokens,
    pricing.charge_max_reserved,
    pricing.charge_max_optimistic,
    pricing.charge_max_paused,
)
_SMALL = (1, 2, 3)
"""The integers of which a counterexample is made before a solver is asked."""


def outcomes() -> Iterator[MutantOutcome]:
    """Yield the fate of every mutant of every pricing function; a change that is no function of integers is none."""
    for function in FUNCTIONS:
        for mutant in mutants(function):
            with suppress(*ILL_TYPED):
                yield MutantOutcome(mutant, *_fate(function, mutant))


def changed(mutant: Mutant) -> ModuleType:
    """Return the pricing functions with the mutant among them."""
    made = ModuleType(pricing.__name__)
    vars(made).update({**vars(pricing), "gcd": gcd})
    exec(compile(mutant.text, f"<{mutant.change}>", "exec"), vars(made))
    return made


def _fate(function: Callable[..., Any], mutant: Mutant) -> tuple[Fate, str, Counterexample | None]:
    functions = changed(mutant)
    claims = price_claims(functions)
    for claim in claims:
        world = _small_world(claim)
        if world is not None:
            return Fate.KILLED, claim.theorem.id, world
    if _equal(function, getattr(functions, mutant.function)):
        return Fate.EQUIVALENT, "all arguments", None
    verdicts = [prove(claim) for claim in claims]
    for verdict in verdicts:
        if isinstance(verdict, Refuted):
            return Fate.KILLED, verdict.theorem.id, verdict.world
    undecided = [verdict.theorem.id for verdict in verdicts if not isinstance(verdict, Proved)]
    return Fate.UNKNOWN, ", ".join(undecided) or "no theorem fails, and the texts are not proved equal", None


def _small_world(claim: ArithmeticClaim) -> Counterexample | None:
    """Small integers that fulfil the claim's conditions and break it (or make it divide by zero)."""
    for values in tuples(_SMALL, repeat=len(claim.names)):
        world = dict(zip(claim.names, values, strict=True))
        try:
            failed = broken(claim, world)
        except ZeroDivisionError:
            failed = ("no division by zero",)
        except ValueError:
            # The world does not fulfil the conditions.
            continue
        if failed:
            return Counterexample("pricing", "arithmetic", failed, 0, world, claim.theorem.id)
    return None


def _equal(function: Callable[..., Any], mutated: Callable[..., Any]) -> bool:
    """Return whether both functions return the same for all arguments."""

    def both(paths: Paths) -> tuple[list[Any], list[Any]]:
        arguments, known = _arguments(paths, function)
        results = [_terms(with_contracts(each)(*arguments)) for each in (function, mutated)]
        return known, [a == b for a, b in zip(*results, strict=True)]

    for path, (known, same) in explore(both):
        if solver_of(RLIMIT, *path, *known, z3.Not(z3.And(same))).check() != z3.unsat:
            return False
    return True


def _arguments(paths: Paths, function: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    """Return an unknown for every parameter, and what is known of it."""
    arguments: list[Any] = []
    known: list[Any] = []
    for name in inspect.signature(function).parameters:
        if name == "rates":
            rates = SimpleNamespace(input=paths.integer("input"), output=paths.integer("output"))
            arguments.append(rates)
            known += [rates.input.term >= 1, rates.output.term >= 1]
        elif name == "weights":
            weights = (paths.integer("weight_f"), paths.integer("weight_g"))
            arguments.append(weights)
            known += [weight.term >= 1 for weight in weights]
        else:
            arguments.append(paths.integer(name))
            known.append(arguments[-1].term >= 0)
    return arguments, known


def _terms(result: Any) -> list[Any]:
    found = list(result) if isinstance(result, tuple) else [result]
    return [z3.IntVal(part) if isinstance(part, int) else part.term for part in found]
