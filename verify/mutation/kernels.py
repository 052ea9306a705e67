"""Mutation of what is proved about: every small change to a kernel breaks a theorem, or changes nothing.

Each mutant is the shipped function with one expression changed (`fairsched.verify.mutation.mutants`).  It is *killed*
when some claim about the gate has a countermodel that both running interpretations confirm, and *equivalent* when the
two texts are proved to mean the same for every number of clients: for all inputs, or wherever a claim's invariants
and an event's needs hold.  Anything else is *unknown*: a theorem is missing, or the solver's budget is too small.

A change that mixes up masks, vectors, scalars and points is no mutant; the interpretations refuse it before any proof.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from types import ModuleType
from typing import Any

import attrs
import msgspec
import z3

from fairsched.model import pricing
from fairsched.policies.gates import DeficitGate
from fairsched.verify import logic as v
from fairsched.verify.logic import steps
from fairsched.verify.mutation import claims as claim_mutation
from fairsched.verify.mutation import pricing as pricing_mutation
from fairsched.verify.mutation.equivalence import ILL_TYPED, equal, equal_within, signature
from fairsched.verify.mutation.mutants import Fate, Mutant, MutantOutcome, MutationEntry, kept_rows, mutants, row
from fairsched.verify.proofs import MODULES, bugs
from fairsched.verify.solvers import RLIMIT, Broken, Obligation, check, counterexample, obligation, prove

Claims = Callable[..., tuple[v.Claim, ...]]
SLOWEST = "refill_rounds"
"""The closed form whose mutants are a task of their own."""
RLIMIT_FIRST = 200_000
"""Budget of a first round of solver calls, in which easy claims are asked before hard ones get the full budget."""
RLIMIT_SEARCH = 1_000_000
"""Budget of each solver call in the search for a small world."""

_Key = tuple[str, str]
"""A claim's theorem and one of its steps, by name."""


@attrs.frozen
class MutationTarget:
    """The kernels of a module, and the modules of proofs about them, whose claims are functions of the kernels."""

    module: ModuleType
    proofs: tuple[ModuleType, ...]

    def kernels(self) -> list[Callable[..., Any]]:
        return v.kernels_of(self.module)

    def claims(self, kernel: Any) -> dict[str, v.Claim]:
        """Return every claim about `kernel` in place of the module, by theorem, but for those that only try worlds."""
        about = (each for proofs in self.proofs for each in _parameters(proofs))
        made = (claims(**{name: kernel}) for claims, name, kernels in about if kernels is self.module)
        return {claim.theorem.id: claim for each in made for claim in each if isinstance(claim, v.Claim)}

    def steps(self, kernel: Any) -> dict[_Key, v.Step]:
        return {(name, step.name): step for name, claim in self.claims(kernel).items() for step in steps(claim)}


@cache
def targets() -> tuple[MutationTarget, ...]:
    """Return every module of kernels that a module of proofs names as what its claims are about."""
    about = dict.fromkeys(kernels for module in MODULES for _, _, kernels in _parameters(module))
    found = (
        MutationTarget(
            kernels, tuple(each for each in MODULES if any(kernels is named for _, _, named in _parameters(each)))
        )
        for kernels in about
    )
    return tuple(target for target in found if target.kernels())


def _parameters(proofs: ModuleType) -> Iterator[tuple[Claims, str, ModuleType]]:
    """Yield the function that makes the claims about kernels, and its parameters whose default is what ships."""
    made: Claims = getattr(proofs, "kernel_claims", getattr(proofs, "claims", tuple))
    for name, parameter in inspect.signature(made).parameters.items():
        if isinstance(parameter.default, ModuleType):
            yield made, name, parameter.default


class _Recorder:
    """Stands for a module of kernels and notes which of them are called, and what those call."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._module, name)
        if kernel not in v.kernels_of(self._module):
            # A claim may give it other names, which a function around it would not have.
            return kernel  # type: ignore[no-any-return]

        @wraps(kernel)
        def recorded(*arguments: Any) -> Any:
            self.called |= {function.__name__ for function in v.closure([kernel])}
            return kernel(*arguments)

        return recorded


@cache
def _which_kernels_run(target: MutationTarget) -> Mapping[_Key, set[str]]:
    """Return the kernels that each step runs: a mutant of another cannot matter there."""
    recorder, runs = _Recorder(target.module), {}
    for key, step in target.steps(recorder).items():
        recorder.called = set()
        obligation(step)
        runs[key] = recorder.called
    return runs


def outcomes(target: MutationTarget, functions: Iterable[str] | None = None) -> Iterator[MutantOutcome]:
    """Yield the fate of every mutant of the target's kernels, or of those of the named `functions`."""
    hunt = _Hunt(target)
    wanted = None if functions is None else set(functions)
    for kernel in target.kernels():
        if wanted is None or kernel.__name__ in wanted:
            yield from filter(None, (hunt.outcome(kernel, mutant) for mutant in mutants(kernel)))


class _Hunt:
    """What earlier mutants taught: which steps kill, and the worlds that did it, which are tried before the solver."""

    def __init__(self, target: MutationTarget) -> None:
        self._target = target
        self._shipped = target.steps(target.module)
        self._runs = _which_kernels_run(target)
        self._kills: Counter[_Key] = Counter()
        self._worlds: dict[_Key, list[v.Counterexample]] = {}

    def outcome(self, kernel: Callable[..., Any], mutant: Mutant) -> MutantOutcome | None:
        """Return the mutant's fate; None for a change that is ill-typed."""
        changed = v.with_text(self._target.module.__name__, mutant.function, mutant.text)
        function = getattr(changed, mutant.function)
        try:
            if signature(function) != signature(kernel):
                return None
        except ILL_TYPED:
            return None
        return MutantOutcome(mutant, *self._fate(kernel, function, self._target.steps(changed)))

    def _fate(
        self, kernel: Callable[..., Any], function: Callable[..., Any], mutated: Mapping[_Key, v.Step]
    ) -> tuple[Fate, str, v.Counterexample | None]:
        keys = [key for key, called in self._runs.items() if kernel.__name__ in called]
        keys.sort(key=lambda key: -self._kills[key])
        killed = self._killed(keys, mutated)
        if killed is not None:
            return Fate.KILLED, killed.theorem, killed
        divides = "//" in inspect.getsource(function)
        if not divides and equal(kernel, function):
            return Fate.EQUIVALENT, "all inputs", None
        if keys and all(equal_within(self._shipped[key], mutated[key]) for key in keys):
            theorems = dict.fromkeys(theorem for theorem, _ in keys)
            return Fate.EQUIVALENT, f"the invariants of {', '.join(theorems)}", None
        return Fate.UNKNOWN, "no theorem fails, and the texts are not proved equal", None

    def _killed(self, keys: list[_Key], mutated: Mapping[_Key, v.Step]) -> v.Counterexample | None:
        """Return a world in which some claim fails: one that another mutant left, or what the solver finds."""
        known = ((key, world) for key in keys for world in self._worlds.get(key, ()))
        for key, world in known:
            broken = v.confirmed(mutated[key], world.clients, world.values)
            if broken:
                self._kills[key] += 1
                return attrs.evolve(world, broken=broken)
        hard = []
        for key in keys:
            shown = obligation(mutated[key])
            answer = check(shown, RLIMIT_FIRST, z3.Not(shown.goal))
            found = self._found(key, shown) if answer == z3.sat else None
            if found is not None:
                return found
            if answer != z3.unsat:
                hard.append(key)
        for key in hard:
            shown = obligation(mutated[key])
            found = self._found(key, shown, linear_only=True)
            if found is None and check(shown, RLIMIT, z3.Not(shown.goal)) != z3.unsat:
                found = self._found(key, shown)
            if found is not None:
                return found
        return None

    def _found(self, key: _Key, shown: Obligation, *, linear_only: bool = False) -> v.Counterexample | None:
        world = counterexample(shown, RLIMIT_SEARCH, linear_only=linear_only)
        if world is not None:
            self._kills[key] += 1
            self._worlds.setdefault(key, []).append(world)
        return world


Task = tuple[str, ...]
"""What one process does: "kernels" of a module by name, "pricing", or the "claims" or "bugs" of a module of proofs."""


def mutation_tasks() -> list[Task]:
    """Return the longest first; a closed form is a task of its own."""
    closed = [("kernels", v.module_of(DeficitGate).__name__, SLOWEST)]
    rest = [
        ("kernels", target.module.__name__, *names)
        for target in targets()
        if (names := [kernel.__name__ for kernel in target.kernels() if kernel.__name__ != SLOWEST])
    ]
    claims = [("claims", module.__name__) for module in claim_mutation.modules()]
    seeded = [("bugs", module.__name__) for module in MODULES if bugs(module)]
    return [*closed, *rest, ("pricing",), *reversed(claims), *seeded]


def mutation_rows(task: Task) -> list[MutationEntry]:
    """Return the rows of one task, those that were kept if all is as it was then."""
    found = kept_rows().get(" ".join(task))
    return fresh_rows(task) if found is None else [msgspec.structs.replace(each, kept=True) for each in found]


def fresh_rows(task: Task) -> list[MutationEntry]:
    """Return the rows of one task: a kernel, a pricing function, or a module of claims each."""
    match task:
        case ("kernels", kernels, *names):
            target = next(target for target in targets() if target.module.__name__ == kernels)
            return _by_function(kernels, outcomes(target, names), names)
        case ("bugs", name):
            return [row(f"{name}, seeded bugs", bug_outcomes(_module(name)))]
        case ("claims", name):
            return [row(name, claim_mutation.outcomes(_module(name)))]
    names = [function.__name__ for function in pricing_mutation.FUNCTIONS]
    return _by_function(pricing.__name__, pricing_mutation.outcomes(), names)


def _module(name: str) -> ModuleType:
    return next(module for module in MODULES if module.__name__ == name)


def bug_outcomes(module: ModuleType) -> Iterator[MutantOutcome]:
    """Yield what became of the bugs that a module seeds: one that is not refuted is unknown."""
    for bug in bugs(module):
        verdict = prove(bug.claim)
        world = verdict.world if isinstance(verdict, Broken) else None
        fate = Fate.UNKNOWN if world is None else Fate.KILLED
        yield MutantOutcome(Mutant(module.__name__, bug.what, ""), fate, bug.claim.theorem.id, world)


def _by_function(module: str, of: Iterable[MutantOutcome], names: Iterable[str]) -> list[MutationEntry]:
    found: dict[str, list[MutantOutcome]] = {name: [] for name in names}
    for outcome in of:
        found[outcome.mutant.function].append(outcome)
    return [row(f"{module}.{name}", outcomes) for name, outcomes in found.items()]
