"""Mutation of what is proved about: every small change to a kernel breaks a theorem, or changes nothing.

Each mutant is the shipped function with one expression changed (`fairsched.verify.mutants`).  It is *killed* when some
claim about the gate has a countermodel that both running interpretations confirm, and *equivalent* when the two texts
are proved to mean the same for every number of clients: for all inputs, or wherever a claim's invariants and an
event's needs hold.  Anything else is *unknown*: a theorem is missing, or the solver's budget is too small.

A change that mixes up masks, vectors, scalars and points is no mutant; the interpretations refuse it before any proof.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from time import perf_counter
from types import ModuleType
from typing import Any

import attrs
import z3

from fairsched.policies import counter, deficit
from fairsched.verify import counter_proofs, deficit_kernel_proofs, deficit_proofs, prover
from fairsched.verify.counterexample import Counterexample
from fairsched.verify.equivalence import ILL_TYPED, equal, equal_within, signature
from fairsched.verify.guard import closure
from fairsched.verify.mutants import Mutant, mutants
from fairsched.verify.steps import Step, steps
from fairsched.verify.system import Claim
from fairsched.verify.variants import with_text

Claims = Callable[[Any], tuple[Claim, ...]]
_Key = tuple[str, str]
"""A claim's theorem and one of its steps, by name."""


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    UNKNOWN = "unknown"


@attrs.frozen
class Outcome:
    """A mutant's fate; `by` is the theorem that kills it, or under which hypotheses it is equivalent."""

    mutant: Mutant
    fate: Fate
    by: str
    world: Counterexample | None
    ms: float


@attrs.frozen
class Target:
    """The kernels of a module, and the claims about them as functions of whoever holds the kernels."""

    module: ModuleType
    claims: tuple[Claims, ...]

    def kernels(self) -> list[Callable[..., Any]]:
        """The functions over the algebra, in the order of the file."""
        return [
            function
            for function in vars(self.module).values()
            if inspect.isfunction(function)
            and function.__module__ == self.module.__name__
            and next(iter(inspect.signature(function).parameters), None) == "o"
        ]

    def steps(self, kernel: Any) -> dict[_Key, Step]:
        """Every step of every claim about `kernel`."""
        made = (claim for claims in self.claims for claim in claims(kernel))
        return {(claim.theorem.id, step.name): step for claim in made for step in steps(claim)}


TARGETS = (
    Target(deficit, (deficit_kernel_proofs.claims, deficit_proofs.claims)),
    Target(counter, (counter_proofs.claims,)),
)


class _Recorder:
    """Stands for a module of kernels and notes which of them are called, and what those call."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._module, name)

        def recorded(*arguments: Any) -> Any:
            self.called |= {function.__name__ for function in closure([kernel])}
            return kernel(*arguments)

        return recorded


def outcomes(target: Target, functions: Iterable[str] | None = None) -> Iterator[Outcome]:
    """The fate of every mutant of the target's kernels, or of those of the named `functions`."""
    shipped = target.steps(target.module)
    runs = _runs(target)
    wanted = None if functions is None else set(functions)
    for kernel in target.kernels():
        name = kernel.__name__
        if wanted is None or name in wanted:
            keys = [key for key, called in runs.items() if name in called]
            kills: Counter[_Key] = Counter()
            for mutant in mutants(kernel):
                outcome = _outcome(target, kernel, mutant, shipped, sorted(keys, key=lambda key: -kills[key]))
                if outcome is not None:
                    if outcome.world is not None:
                        kills[outcome.by, outcome.world.obligation] += 1
                    yield outcome


def _runs(target: Target) -> Mapping[_Key, set[str]]:
    """Which kernels each step runs: a mutant can only matter there."""
    recorder = _Recorder(target.module)
    runs = {}
    for key, step in target.steps(recorder).items():
        recorder.called = set()
        prover.obligation(step)
        runs[key] = recorder.called
    return runs


def _outcome(
    target: Target, kernel: Callable[..., Any], mutant: Mutant, shipped: Mapping[_Key, Step], keys: list[_Key]
) -> Outcome | None:
    """None for a change that is ill-typed."""
    begun = perf_counter()

    def ends(fate: Fate, by: str, world: Counterexample | None = None) -> Outcome:
        return Outcome(mutant, fate, by, world, (perf_counter() - begun) * 1e3)

    changed = with_text(target.module.__name__, mutant.function, mutant.text)
    function = getattr(changed, mutant.function)
    try:
        if signature(function) != signature(kernel):
            return None
    except ILL_TYPED:
        return None
    mutated = target.steps(changed)
    undecided = []
    for key in keys:
        obligation = prover.obligation(mutated[key])
        answer = prover.check(obligation, prover.RLIMIT, z3.Not(obligation.goal))
        world = prover.counterexample(obligation) if answer == z3.sat else None
        if world is not None:
            return ends(Fate.KILLED, key[0], world)
        if answer != z3.unsat:
            undecided.append(": ".join(key))
    if "//" not in mutant.text and equal(kernel, function):
        return ends(Fate.EQUIVALENT, "all inputs")
    if keys and all(equal_within(shipped[key], mutated[key]) for key in keys):
        return ends(Fate.EQUIVALENT, "the invariants of " + ", ".join(dict.fromkeys(theorem for theorem, _ in keys)))
    return ends(Fate.UNKNOWN, ", ".join(undecided) or "no theorem fails")


def row(kernel: str, of: Iterable[Outcome]) -> dict[str, Any]:
    """The figures of some mutants, as they stand in the report."""
    fates = Counter(outcome.fate for outcome in of)
    return {"kernel": kernel, "mutants": fates.total(), **{fate.value: fates[fate] for fate in Fate}}


def report() -> list[dict[str, Any]]:
    """One row a kernel: how many mutants it has, and how many were killed, equivalent and unknown."""
    rows = []
    for target in TARGETS:
        found: dict[str, list[Outcome]] = {kernel.__name__: [] for kernel in target.kernels()}
        for outcome in outcomes(target):
            found[outcome.mutant.function].append(outcome)
        rows += [row(f"{target.module.__name__}.{name}", of) for name, of in found.items()]
    return rows
