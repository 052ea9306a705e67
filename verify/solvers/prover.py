"""Decides claims: the start implies the invariants, every event keeps them, and they imply the conclusions.

A `Claim` becomes one obligation for its start, one an event, one for its conclusions; each is a quantifier-free
formula (see `fairsched.verify.logic.term_algebra`) that says "the hypotheses hold and the goal fails".  A claim is
`Proved` only if every obligation is unsatisfiable while its hypotheses alone are satisfiable; a model of an
obligation becomes a concrete world of few clients, is run through the exact and the numpy interpretation of the same
kernel text, and only if both confirm it the claim is `Broken`: `Refuted` if the world is a run of the claim, and
otherwise `NotInductive`, for a step from a state that the invariants allow may be one that no run ever takes (see
`bounded_model_checking.judged`).  Everything else is `Unknown`, which is never success.

An `ArithmeticClaim` is decided on every path through its functions, a `SampledClaim` in its worlds.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product as tuples
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import attrs
import z3

from fairsched.model.algebra import NO_GROUP
from fairsched.model.theorem import Assumption, Theorem
from fairsched.verify import logic as v
from fairsched.verify.logic import hypotheses

RLIMIT = 20_000_000
"""Budget of one solver call in Z3's deterministic resource units: the same on every machine, unlike seconds."""
CLIENTS_MAX = 4
"""Largest world that the search for a small counterexample tries before it takes the solver's own."""
_MAGNITUDES = (3, 8, 30)
"""Bounds on the integers of a counterexample, tried in turn."""
_VACUOUS = "vacuous: its hypotheses contradict each other"


@attrs.frozen
class Proved:
    """Every obligation holds and none is vacuous; those of a sampled claim are worlds with something to show."""

    theorem: Theorem
    obligations: int
    ms: float = 0.0


@attrs.frozen
class Broken:
    """There is a world in which an obligation of the claim fails."""

    theorem: Theorem
    world: v.Counterexample
    ms: float = 0.0


@attrs.frozen
class Refuted(Broken):
    """The claim is false: the world, or a `run` from the start, breaks it."""

    run: v.Document | None = None


@attrs.frozen
class NotInductive(Broken):
    """Invariants are too weak, or the claim is false: a step breaks them from a state that they allow.

    `searched` says which runs were tried and do not break the claim (empty: none was), `hint` what may help.
    """

    searched: str = ""
    hint: str = ""

    def __str__(self) -> str:
        said = (f"{self.world}", self.searched, f"hint: {self.hint}" if self.hint else "")
        return "; ".join(filter(None, said))


@attrs.frozen
class Unknown:
    """Not decided: the budget ran out, a hypothesis contradicts itself, or a countermodel did not replay."""

    theorem: Theorem
    obligation: str
    reason: str
    ms: float = 0.0


Verdict = Proved | Refuted | NotInductive | Unknown


@attrs.frozen(eq=False)
class Obligation:
    """Hypotheses, and a goal that they must imply, over the clients that `algebra` has named.

    `happens` is what makes it more than a formality: the hypotheses must be satisfiable together with it.
    """

    step: v.Step
    algebra: v.Z3Algebra
    hypotheses: tuple[Any, ...]
    goal: Any
    happens: Any
    before: Mapping[str, Any]

    @cached_property
    def tiny(self) -> tuple[Any, ...]:
        """That there are only one or two clients and small numbers, if the hypotheses can be true then; else nothing.

        Whether they can be true is found out at once there, and may take a solver long otherwise.
        """
        for clients in (1, 2):
            world = tuple(_small(self, clients, _MAGNITUDES[0]))
            if check(self, RLIMIT, self.happens, *world) == z3.sat:
                return world
        return ()


# --- obligations ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Path:
    """One way through the code of a claim: what is known on it, and what has to follow, by name and in this order."""

    known: tuple[Any, ...]
    shown: Mapping[str, Any]

    def goals(self) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """Yield each statement with all that is known when it is shown."""
        known = self.known
        for name, goal in self.shown.items():
            yield name, known, goal
            known = (*known, goal)


def to_show(claim: v.Claim | v.WorldClaim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Obligation | Path]:
    """Yield what has to be shown for a claim of any kind, each part built when it is asked for; nothing of a sampled
    one."""
    match claim:
        case v.Claim():
            return obligations(claim, dropped)
        case v.ArithmeticClaim():
            return paths(claim, dropped)
    return iter(())


def obligations(claim: v.Claim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Obligation]:
    """Yield what has to be shown for `claim` when the assumptions `dropped` are not made."""
    return map(obligation, (step for step in v.steps(claim, dropped) if step.goals))


def paths(claim: v.ArithmeticClaim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Path]:
    """Yield every path through the code that the claim runs."""
    kept = [condition for condition in claim.conditions if condition.assumption not in dropped]

    def run(paths: v.Paths) -> dict[str, Any]:
        w = SimpleNamespace(**{name: paths.integer(name) for name in claim.names})
        paths.assume(*(v.truth(condition.holds(w)) for condition in kept))
        return {name: v.truth(goal) for name, goal in claim.shows(w).items()}

    for known, shown in v.explore(run, claim.pruned):
        yield Path(tuple(known), shown)


def obligation(step: v.Step) -> Obligation:
    """Return one step as formulas for any number of clients."""
    o, system, event = v.Z3Algebra(), step.claim.system, step.event
    before = {name: o.symbol(name, kind, system.closed_forms) for name, kind in step.kinds.items()}
    world = v.with_derived(o, system, SimpleNamespace(**before))
    after, happens = world, z3.BoolVal(True)
    if event:
        world = v.decided(o, event, world)
        after = v.state_after(o, system, event, world)
        happens = event.happens(o, world).at(None) if event.happens else happens
    held = [need.holds(o, world) for need in hypotheses(system, event, step.dropped)]
    arity = 1 + max(goal.points for goal in step.goals)
    clients = [o.named(o.fresh_client("client")) for _ in range(arity)]
    o.sealed = True
    terms = [term for value in held for term in everywhere(o, value)]
    terms += [term for clause in step.assumed for term in instances(o, clause, world)]
    goal = z3.And([stated(o, clause, after, *clients[: clause.points]).at(clients[-1].who) for clause in step.goals])
    return Obligation(step, o, tuple(terms), goal, happens, before)


def everywhere(o: v.Z3Algebra, value: v.Value) -> list[Any]:
    """Return what it is to each client that has been named."""
    return [value.at(client) for client in o.clients] if value.vector else [value.at(None)]


def instances(o: v.Z3Algebra, clause: v.Clause, world: v.World) -> Iterator[Any]:
    """Yield what a clause says of each choice of clients that have been named."""
    for points in tuples(o.clients, repeat=clause.points):
        yield from everywhere(o, stated(o, clause, world, *map(o.named, points)))


def stated(o: v.Z3Algebra, clause: v.Clause, world: v.World, *points: Any) -> v.Value:
    """Return what a clause says of these clients; raises `ValueError` for a number."""
    said: v.Value = clause.holds(o, world, *points)
    if not said.boolean:
        place = f"{clause.holds.__code__.co_filename}:{clause.holds.__code__.co_firstlineno}"
        raise ValueError(f"{place}: clause {clause.name!r} is a number: compare it with another")
    return said


def within(o: v.Z3Algebra, values: Iterable[v.Value | v.Point], size: int | None) -> Iterator[Any]:
    """State that every number is from `-size` to `size`; nothing for None."""
    for value in values:
        if size is not None and isinstance(value, v.Value) and not value.boolean:
            yield from (z3.And(term <= size, term >= -size) for term in everywhere(o, value))


def integer(model: Any, term: Any) -> int:
    """Return the value of a term in a model; 1 for true."""
    found = model.eval(term, model_completion=True)
    return int(z3.is_true(found)) if z3.is_bool(found) else int(found.as_long())


# --- deciding -------------------------------------------------------------------------------------------------------


def prove(
    claim: v.Claim | v.WorldClaim,
    *,
    dropped: frozenset[Assumption] = frozenset(),
    rlimit: int = RLIMIT,
    built: Iterable[Obligation | Path] | None = None,
) -> Verdict:
    """Decide a claim of any kind, by Z3 or in its worlds.

    `dropped` assumptions are not made (for audits, and for variants that they exclude).  `built` are the claim's
    obligations if they are needed elsewhere as well.
    """
    begun = perf_counter()
    if isinstance(claim, v.SampledClaim):
        verdict = _tried(claim)
    else:
        made = to_show(claim, dropped) if built is None else built
        if isinstance(claim, v.Claim):
            verdict = _by_steps(claim, rlimit, cast("Iterable[Obligation]", made))
        else:
            verdict = _by_paths(claim, dropped, rlimit, cast("Iterable[Path]", made))
    return attrs.evolve(verdict, ms=(perf_counter() - begun) * 1e3)


def _by_steps(claim: v.Claim, rlimit: int, built: Iterable[Obligation]) -> Verdict:
    if breaches := v.violations(claim.system.kernels()):
        return Unknown(claim.theorem, "guard", "; ".join(breaches))
    count = 0
    for obligation in built:
        count += 1
        possible = z3.sat if obligation.tiny else check(obligation, rlimit, obligation.happens)
        if possible != z3.sat:
            reason = _VACUOUS if possible == z3.unsat else "budget exhausted"
            return Unknown(claim.theorem, obligation.step.name, reason)
        failing = check(obligation, rlimit, z3.Not(obligation.goal))
        parts = obligation.goal.children() if failing == z3.unknown else ()
        if failing == z3.unsat or (parts and all(check(obligation, rlimit, z3.Not(p)) == z3.unsat for p in parts)):
            continue
        # An undecided question may still have a small world: numbers for its parameters make it linear.
        world = counterexample(obligation, rlimit, linear_only=failing == z3.unknown)
        if world is not None:
            run = v.refuted_by(obligation.step, world.clients, world.values)
            return (Refuted if run else NotInductive)(claim.theorem, world)
        reason = "budget exhausted" if failing == z3.unknown else "a countermodel did not replay"
        return Unknown(claim.theorem, obligation.step.name, reason)
    return Proved(claim.theorem, count)


def _by_paths(claim: v.ArithmeticClaim, dropped: frozenset[Assumption], rlimit: int, built: Iterable[Path]) -> Verdict:
    """Decide the claim on every path through the code that it runs."""
    count, reached, named = 0, set[str](), set[str]()
    for path in built:
        if not reached.issuperset(path.shown) and solver_of(rlimit, *path.known).check() == z3.sat:
            reached |= set(path.shown)
        for name, known, goal in path.goals():
            named.add(name)
            count += 1
            if claim.relaxed and _holds_for_reals(rlimit, *known, z3.Not(goal)):
                continue
            solver = solver_of(rlimit, *known, z3.Not(goal))
            answer = solver.check()
            if answer == z3.unknown:
                return Unknown(claim.theorem, name, "budget exhausted")
            if answer == z3.sat:
                return _refuted(claim, dropped, name, solver.model())
    if not named or named - reached:
        return Unknown(claim.theorem, ", ".join(sorted(named - reached)) or "conditions", _VACUOUS)
    return Proved(claim.theorem, count)


def _refuted(claim: v.ArithmeticClaim, dropped: frozenset[Assumption], name: str, model: Any) -> Verdict:
    """Return the countermodel, once the functions confirm it on Python's own integers."""
    values = {n: model.eval(z3.Int(n), model_completion=True).as_long() for n in claim.names}
    try:
        failed = v.broken(claim, values, dropped)
    except (ValueError, ZeroDivisionError):
        failed = ()
    if name not in failed:
        return Unknown(claim.theorem, name, "a countermodel did not replay")
    without = tuple(sorted(assumption.name for assumption in dropped))
    return Refuted(
        claim.theorem, v.Counterexample("integers", "arithmetic", failed, 0, values, claim.theorem.id, without)
    )


def _tried(claim: v.SampledClaim) -> Verdict:
    """Try the claim in its worlds."""
    counted, found = _in_all(claim, claim.worlds()) if callable(claim.worlds) else _in_drawn(claim, claim.worlds)
    if found is not None:
        world = v.Counterexample("worlds", "tried", v.broken(claim, found), 0, dict(found), claim.theorem.id)
        return Refuted(claim.theorem, world)
    if not counted:
        return Unknown(claim.theorem, "worlds", "vacuous: there was nothing to show in any world")
    return Proved(claim.theorem, counted)


def _in_all(claim: v.SampledClaim, worlds: Iterable[v.PlainWorld]) -> tuple[int, v.PlainWorld | None]:
    counted = 0
    for world in worlds:
        shown = claim.shows(SimpleNamespace(**world))
        if not all(shown.values()):
            return counted, world
        counted += bool(shown)
    return counted, None


def _in_drawn(claim: v.SampledClaim, worlds: Any) -> tuple[int, v.PlainWorld | None]:
    """Try the claim, with the smallest world that Hypothesis finds, if it finds one.

    The text of `attempt` is the seed: other words draw other worlds.
    """
    from hypothesis import HealthCheck, Phase, given, settings

    counted, failed = 0, list[v.PlainWorld]()

    @settings(
        max_examples=claim.drawn,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(worlds)
    def attempt(world: v.PlainWorld) -> None:
        nonlocal counted
        shown = claim.shows(SimpleNamespace(**world))
        if not all(shown.values()):
            failed.append(world)
            raise _BrokenError
        counted += bool(shown)

    try:
        attempt()
    except _BrokenError:
        return counted, failed[-1]
    return counted, None


class _BrokenError(Exception):
    """A statement is false in a world."""


def audit(claim: v.Claim) -> dict[Assumption, Verdict]:
    """Return the verdict on what is left of a proof without each single assumption of its theorem: one that is needed
    leaves a counterexample.

    Steps that do not rest on an assumption are those of the proof itself, and are not asked again without it.
    """
    return {assumption: prove_changed(claim, frozenset({assumption})) for assumption in claim.theorem.assumptions}


def prove_changed(claim: v.Claim, dropped: frozenset[Assumption]) -> Verdict:
    """Decide what is to be shown otherwise once the assumptions `dropped` are not made, of a claim that is proved."""
    changed = (step for step in v.steps(claim, dropped) if step.goals and step.changed)
    return prove(claim, dropped=dropped, built=map(obligation, changed))


def solver_of(rlimit: int, *terms: Any) -> Any:
    """Return a solver with this budget that was told these terms."""
    solver = z3.Solver()
    solver.set("rlimit", rlimit)
    solver.add(*terms)
    return solver


def _holds_for_reals(rlimit: int, *terms: Any) -> bool:
    """Return whether the terms have no model even among the real numbers."""
    solver = solver_of(rlimit)
    solver.from_string(v.script(terms, "unsat", relaxed=True).text)
    return bool(solver.check() == z3.unsat)


def _solver(obligation: Obligation, rlimit: int, *terms: Any, parameter: int | None = None) -> Any:
    """Return a solver in which, with a `parameter`, every vector parameter has this value for every client: then
    nothing is left to multiply."""
    asserted = [*obligation.algebra.instances(), *obligation.hypotheses, *terms]
    if parameter is not None:
        kinds = obligation.step.claim.system.parameters
        vectors = [obligation.before[name] for name, kind in kinds.items() if kind is v.Kind.VECTOR]
        known = [(vector.at(c), z3.IntVal(parameter)) for vector in vectors for c in obligation.algebra.clients]
        # All at once: each call looks at every pair before it looks at its term.
        asserted = [z3.substitute(z3.And(asserted), *known), *(term == value for term, value in known)]
    return solver_of(rlimit, *asserted)


def check(obligation: Obligation, rlimit: int, *terms: Any) -> Any:
    """Return the solver's answer about the hypotheses together with `terms`."""
    return _solver(obligation, rlimit, *terms).check()


# --- counterexamples ------------------------------------------------------------------------------------------------


def counterexample(
    obligation: Obligation, rlimit: int = RLIMIT, *, linear_only: bool = False
) -> v.Counterexample | None:
    """Return a world, as small as can be had cheaply, in which the goal fails; None if none was confirmed by a replay.

    Where a closed form divides by a parameter, numbers are tried for it first, and with `linear_only` nothing else.
    """
    tries: list[tuple[int, int | None, int | None]] = []
    if obligation.step.claim.system.closed_forms:
        tries += [(n, _MAGNITUDES[-1], parameter) for n in (1, 2) for parameter in _MAGNITUDES]
    if not linear_only:
        tries += [(n, size, None) for n in range(1, CLIENTS_MAX + 1) for size in _MAGNITUDES]
        tries += [(n, None, None) for n in (CLIENTS_MAX, len(obligation.algebra.clients))]
    for n, size, parameter in tries:
        smaller = _small(obligation, n, size)
        solver = _solver(obligation, rlimit, z3.Not(obligation.goal), *smaller, parameter=parameter)
        if solver.check() == z3.sat:
            clients, values = _concrete(obligation, solver.model())
            if v.confirmed(obligation.step, clients, values):
                return v.minimised(obligation.step, clients, values)
    return None


def _small(obligation: Obligation, clients: int, size: int | None) -> Iterator[Any]:
    named = [z3.Const(f"small!{i}", v.CLIENT) for i in range(clients)]
    yield from (z3.Or([client == name for name in named]) for client in obligation.algebra.clients)
    yield from obligation.algebra.summed(named)
    yield from within(obligation.algebra, obligation.before.values(), size)


def _concrete(obligation: Obligation, model: Any) -> tuple[int, dict[str, Any]]:
    """Return the model's clients numbered from 0, whom a kernel chose first (it takes the first of equals), and its
    values."""
    order: dict[str, Any] = {}
    for client in [*obligation.algebra.chosen, *obligation.algebra.clients]:
        order.setdefault(str(model.eval(client, model_completion=True)), client)
    index = {name: i for i, name in enumerate(order)}
    values: dict[str, Any] = {}
    for name, symbol in obligation.before.items():
        if isinstance(symbol, v.Point):
            who = index[str(model.eval(symbol.who, model_completion=True))]
            values[name] = who if integer(model, symbol.found) else NO_GROUP
        elif symbol.vector:
            values[name] = tuple(integer(model, symbol.at(client)) for client in order.values())
        else:
            values[name] = integer(model, symbol.at(None))
    return len(order), values
