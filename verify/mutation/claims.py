"""Mutation of the claims themselves: every constant is as small as it can be proved, or the report says so.

In each clause of each claim one comparison at a time is made strict, which over integers asks for a bound smaller by
exactly one.  The stricter claim must fail: killed, by a countermodel that replays.  A claim that could be proved with
the smaller bound is *unknown*: its constant is not the best that the invariants give.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import attrs
import z3

from fairsched.verify import proofs
from fairsched.verify.logic import CONCLUSION, Claim, Counterexample, steps
from fairsched.verify.mutation.mutants import Fate, Mutant, MutantOutcome
from fairsched.verify.solvers import RLIMIT, check, counterexample, obligation


def modules() -> list[ModuleType]:
    """Return the modules of proofs all of whose claims are about kernels and any sequence of events."""
    listed = ((module, proofs.claims_in(module)) for module in proofs.MODULES)
    return [module for module, claims in listed if claims and all(isinstance(each, Claim) for each in claims)]


_STRICT: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.LtE: ast.Lt, ast.GtE: ast.Gt}


def outcomes(module: ModuleType) -> Iterator[MutantOutcome]:
    """Yield the fate of every stricter clause of a module of claims; what is only assumed, of a start, is none."""
    tree = ast.parse(inspect.getsource(module))
    claims = {claim.theorem.id: claim for claim in module.claims()}
    goals = {(id, step.name): obligation(step).goal for id, claim in claims.items() for step in steps(claim)}
    for compared in _comparisons(tree):
        loose, words = compared.ops[0], ast.unparse(compared)
        compared.ops = [_STRICT[type(loose)]()]
        stricter = [attrs.evolve(claim, start=claims[claim.theorem.id].start) for claim in _made(module, tree).claims()]
        mutant = Mutant(module.__name__, f"line {compared.lineno}: {words} -> {ast.unparse(compared)}", "")
        compared.ops = [loose]
        changed, world = _refuted(stricter, goals)
        if changed:
            fate, by = (Fate.UNKNOWN, "proved as well") if world is None else (Fate.KILLED, world.theorem)
            yield MutantOutcome(mutant, fate, by, world)


def _refuted(claims: list[Claim], goals: Mapping[tuple[str, str], Any]) -> tuple[bool, Counterexample | None]:
    """Return whether any goal is another than in `goals`, and a counterexample to one that is, conclusions first."""
    changed = False
    for step in sorted((step for claim in claims for step in steps(claim)), key=lambda step: step.name != CONCLUSION):
        shown = obligation(step)
        if shown.goal.eq(goals[step.claim.theorem.id, step.name]):
            continue
        changed = True
        if check(shown, RLIMIT, z3.Not(shown.goal)) != z3.unsat:
            world = counterexample(shown)
            if world is not None:
                return True, world
    return changed, None


def _comparisons(tree: ast.Module) -> Iterator[ast.Compare]:
    """Yield every comparison that is not strict in what the text of a clause claims, premises left out."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    clauses = [call for call in calls if _called(call) == "Clause"]
    named = {argument.id for clause in clauses for argument in clause.args if isinstance(argument, ast.Name)}
    texts: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in named]
    texts += [argument for clause in clauses for argument in clause.args if isinstance(argument, ast.Lambda)]
    for text in texts:
        premises = {id(inner) for node in ast.walk(text) for inner in ast.walk(_premise(node))}
        for node in ast.walk(text):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _STRICT and id(node) not in premises:
                yield node


def _called(call: ast.Call) -> str:
    """What is called, by its own name: `v.implies` is `implies`."""
    return ast.unparse(call.func).rpartition(".")[2]


def _premise(node: ast.AST) -> ast.AST:
    """Return what an implication or a choice depends on."""
    match node:
        case ast.Call(args=[_, premise, _]) if _called(node) == "implies":
            return premise
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, _, _]):
            return condition
    return ast.Pass()


def _made(module: ModuleType, tree: ast.Module) -> ModuleType:
    made = ModuleType(module.__name__)
    exec(compile(tree, str(module.__file__), "exec"), vars(made))
    return made
