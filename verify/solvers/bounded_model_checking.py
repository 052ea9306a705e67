"""Whether a small world gets from a claim's start to a state that breaks it: the difference between bug and weak proof.

A countermodel of an inductive step begins in a state that the invariants allow, which no run may ever reach.  Here the
events themselves are unrolled, for 1, 2, ... clients and 0, 1, 2, ... events, with integers of any size; what is found
is a shortest run, confirmed by a replay.  What is not found is not found within that scope, and the answer says so.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec
import z3

from fairsched.model.algebra import NO_GROUP
from fairsched.model.theorem import Theorem
from fairsched.verify import logic as v
from fairsched.verify.solvers import prover

CLIENTS, EVENTS, PREFIX = 3, 4, 6
"""How far runs are looked for: clients and events, and events before an interval begins."""
COUNTED = frozenset({"W"})
"""Fields that count from where an interval begins."""
_MAGNITUDES = (3, 9, None)
"""Bounds on the integers of a run that is shown, tried in turn once there is one."""


@attrs.frozen
class NotReached:
    """No run breaks it within the scope: `events[k]` events at most with k + 1 clients.

    A number is smaller than what was asked for (-1: nothing at all) where the solver's budget ran out.
    """

    theorem: Theorem
    events: tuple[int, ...]
    asked: int

    @property
    def undecided(self) -> bool:
        """Whether the scope is smaller than what was asked for."""
        return min(self.events) < self.asked

    def __str__(self) -> str:
        if not self.undecided:
            return f"not reachable in at most {self.asked} events with at most {len(self.events)} clients"
        scopes = ", ".join(f"{length} with {size}" for size, length in enumerate(self.events, 1) if length >= 0)
        return f"not reachable in so many events with so many clients: {scopes or 'none'}; not decided beyond"


def reach(
    claim: v.Claim, claims: str, broken: tuple[str, ...] = (), *, clients: int = CLIENTS, events: int = EVENTS
) -> v.Document | NotReached:
    """Search a run that breaks one of the clauses named `broken` (of the conclusions, if none is named); it replays.

    `claims` says where the claim is found, for the saved run.
    """
    searches = {size: _Search(claim, size, broken) for size in range(1, clients + 1)}
    decided = dict.fromkeys(searches, -1)
    for length in range(events + 1):
        for size, search in list(searches.items()):
            answer = search.after(length)
            found = search.run(length, claims) if answer == z3.sat else None
            if found is not None:
                return found
            if answer == z3.unsat:
                decided[size] = length
            else:
                # What is longer is harder.
                del searches[size]
    return NotReached(claim.theorem, tuple(decided.values()), events)


def judged(
    claim: v.Claim,
    verdict: prover.Verdict,
    claims: str,
    always: Any = None,
    *,
    clients: int = CLIENTS,
    events: int = EVENTS,
    prefix: int = PREFIX,
) -> prover.Verdict:
    """Return the verdict, where a step that breaks invariants is `Refuted` if a run breaks the claim itself.

    A run of a claim about an interval begins in a state that the theorem `always` allows, if it rests on that; it
    counts once a run from the start of `always` is found that leads there.
    """
    if not isinstance(verdict, prover.NotInductive):
        return verdict
    document = reach(claim, claims, clients=clients, events=events)
    if isinstance(document, NotReached):
        return attrs.evolve(verdict, searched=f"what is claimed is {document}", hint=_hint(claim, verdict))
    begins = always if isinstance(always, v.Claim) and always.theorem.id in claim.theorem.rests_on else None
    if begins is None or _named(claim.start) == _named(begins.start):
        return prover.Refuted(claim.theorem, verdict.world, verdict.ms, document)
    for before in range(prefix + 1):
        if _Search(begins, document.clients, ()).leads_to(before, claim, document):
            return prover.Refuted(claim.theorem, verdict.world, verdict.ms, document)
    return attrs.evolve(
        verdict,
        searched=f"a run breaks what is claimed, from a state that `{begins.theorem.id}` allows and that is not "
        f"reached in at most {prefix} events with {document.clients} clients",
        hint=f"say more in `{begins.theorem.id}`, so that it is false of {_plainly(document.initial)}",
    )


def _named(clauses: tuple[v.Clause, ...]) -> list[str]:
    return [clause.name for clause in clauses]


def _hint(claim: v.Claim, verdict: prover.NotInductive) -> str:
    """Return which values, were they 0, would keep the step: of them the clauses say too little."""
    shown = prover.obligation(v.step_named(claim, verdict.world.obligation))
    names = [*claim.system.parameters, *claim.system.fields]
    free = [name for name in names if _matters(shown, shown.before[name])]
    said = f" about {', '.join(free)}" if free else ""
    state = {name: value for name, value in verdict.world.values.items() if name in names}
    return f"add a clause{said} that is false of {_plainly(state)}"


def _matters(shown: prover.Obligation, value: v.Value | v.Point) -> bool:
    if not isinstance(value, v.Value) or value.boolean:
        return False
    zero = [term == 0 for term in prover.everywhere(shown.algebra, value)]
    possible: bool = prover.check(shown, prover.RLIMIT, shown.happens, *zero) == z3.sat
    return possible and bool(prover.check(shown, prover.RLIMIT, z3.Not(shown.goal), *zero) == z3.unsat)


def _plainly(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


class _Search:
    """One number of clients, unrolled event by event."""

    def __init__(self, claim: v.Claim, size: int, broken: tuple[str, ...]) -> None:
        self._claim, self._size = claim, size
        self._o = v.FixedAlgebra(size)
        system = claim.system
        named = tuple(clause for clause in claim.invariants if clause.name in broken)
        self._obligation = None if named else v.CONCLUSION
        self._goals = named or claim.conclusions
        self._events = [event for event in system.events if event.excluded_by is None]
        self._parameters = self._symbols("", system.parameters)
        self._states = [self._symbols("0 ", system.fields)]
        self._facts: list[list[Mapping[str, Any]]] = []
        self._solver = prover.solver_of(prover.RLIMIT)
        world = self._world(0)
        for value in (need.holds(self._o, world) for need in v.hypotheses(system, None, frozenset())):
            self._solver.add(*prover.everywhere(self._o, value))
        for clause in claim.start:
            self._solver.add(*prover.instances(self._o, clause, world))

    def after(self, length: int) -> Any:
        """Return whether a clause can be broken after so many events."""
        while len(self._states) <= length:
            self._unroll()
        self._solver.push()
        self._solver.add(self._bad(length))
        answer = self._solver.check()
        self._solver.pop()
        return answer

    def run(self, length: int, claims: str) -> v.Document | None:
        """Return the run as a document, of integers as small as can be; None if it does not replay."""
        for size in _MAGNITUDES:
            self._solver.push()
            self._solver.add(self._bad(length), *self._small(length, size))
            model = self._solver.model() if self._solver.check() == z3.sat else None
            self._solver.pop()
            if model is not None:
                found = self._document(model, length, claims)
                if found is not None:
                    return found
        return None

    def leads_to(self, before: int, claim: v.Claim, document: v.Document) -> bool:
        """Return whether so many events lead to where events like the document's break a claim about what follows."""
        while len(self._states) <= before:
            self._unroll()
        system, o = claim.system, self._o
        # The interval begins: the state is what it was, and its ghosts are what the claim's start says.
        begins = {name: self._states[before][name] for name in system.fields if name in self._states[before]}
        begins |= self._symbols("begins ", {name: system.fields[name] for name in system.fields if name in COUNTED})
        self._solver.push()
        world = self._as_world(system, begins)
        for need in v.hypotheses(system, None, frozenset()):
            self._solver.add(*prover.everywhere(o, need.holds(o, world)))
        for clause in claim.start:
            self._solver.add(*prover.instances(o, clause, world))
        named = {event.name: event for event in system.events}
        for step, happening in enumerate(document.events):
            event = named[happening.event]
            facts = self._symbols(f"then {step} ", event.facts)
            after = self._symbols(f"after {step} ", system.fields)
            self._solver.add(*self._happens(event, self._as_world(system, begins, facts), after, system))
            begins = after
        good = [
            term for clause in claim.conclusions for term in prover.instances(o, clause, self._as_world(system, begins))
        ]
        self._solver.add(*o.facts, z3.Not(z3.And(good)))
        answer = self._solver.check()
        self._solver.pop()
        return bool(answer == z3.sat)

    def _as_world(self, system: v.System, state: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> v.World:
        return v.with_derived(self._o, system, SimpleNamespace(**{**self._parameters, **state, **(facts or {})}))

    # --- formulas -----------------------------------------------------------------------------------------------

    def _symbols(self, prefix: str, kinds: Mapping[str, v.Kind]) -> dict[str, v.Value | v.Point]:
        """Return unknowns of these kinds."""
        closed_forms = self._claim.system.closed_forms
        return {name: self._o.symbol(prefix + name, kind, closed_forms) for name, kind in kinds.items()}

    def _world(self, step: int, facts: Mapping[str, Any] | None = None) -> v.World:
        values = {**self._parameters, **self._states[step], **(facts or {})}
        return v.with_derived(self._o, self._claim.system, SimpleNamespace(**values))

    def _bad(self, step: int) -> Any:
        world = self._world(step)
        good = [term for clause in self._goals for term in prover.instances(self._o, clause, world)]
        return z3.And(*self._o.facts, z3.Not(z3.And(good)))

    def _unroll(self) -> None:
        """Add one event more, whichever it is."""
        step, system = len(self._states) - 1, self._claim.system
        self._facts.append([self._symbols(f"{step} {event.name} ", event.facts) for event in self._events])
        self._states.append(self._symbols(f"{step + 1} ", system.fields))
        choice = z3.Int(f"event {step}")
        happens = []
        for i, (event, facts) in enumerate(zip(self._events, self._facts[step], strict=True)):
            happens.append(z3.And(choice == i, *self._happens(event, self._world(step, facts), self._states[step + 1])))
        self._solver.add(z3.Or(happens))

    def _happens(
        self, event: v.Event, world: v.World, after: Mapping[str, v.Value | v.Point], system: v.System | None = None
    ) -> Iterator[Any]:
        system = system or self._claim.system
        before = v.decided(self._o, event, world)
        for need in v.hypotheses(system, event, frozenset()):
            yield from prover.everywhere(self._o, need.holds(self._o, before))
        changed = v.state_after(self._o, system, event, before)
        for name, symbol in after.items():
            value = getattr(changed, name)
            if isinstance(symbol, v.Point):
                yield symbol.who == z3.If(value.found, value.who, NO_GROUP)
            else:
                # A scalar for a vector's field is every client's.
                yield from (symbol.at(c) == value.at(c) for c in (self._o.clients if symbol.vector else [None]))

    def _small(self, length: int, size: int | None) -> Iterator[Any]:
        groups = [self._parameters, *self._states[: length + 1]]
        groups += [dict(facts) for step in self._facts[:length] for facts in step]
        yield from prover.within(self._o, (value for group in groups for value in group.values()), size)

    # --- models -------------------------------------------------------------------------------------------------

    def _document(self, model: Any, length: int, claims: str) -> v.Document | None:
        happened = []
        for step in range(length):
            number = model.eval(z3.Int(f"event {step}"), model_completion=True).as_long()
            facts = {name: self._value(model, value) for name, value in self._facts[step][number].items()}
            happened.append(v.Happening(self._events[number].name, facts))
        first = {**self._parameters, **self._states[0]}
        found = v.Document(
            theorem=self._claim.theorem.id,
            claims=claims,
            obligation=self._obligation or (happened[-1].event if happened else "start"),
            broken=(),
            clients=self._size,
            initial={name: self._value(model, value) for name, value in first.items()},
            events=tuple(happened),
            from_start=True,
        )
        try:
            replayed = v.replay_counterexample(found, self._claim)
        except v.NotPermittedError:
            return None
        return msgspec.structs.replace(found, broken=replayed.broken) if replayed.broken else None

    def _value(self, model: Any, value: v.Value | v.Point) -> Any:
        if isinstance(value, v.Point):
            return prover.integer(model, value.who)
        terms = [prover.integer(model, term) for term in prover.everywhere(self._o, value)]
        return tuple(terms) if value.vector else terms[0]
