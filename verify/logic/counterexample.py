"""Worlds that break a claim, as values that can be read, saved and run again without a solver.

A counterexample is a world of few clients and the events that break a clause in it: one event from a state that the
invariants allow (a step that is not inductive), or a whole run from the claim's start (see
`fairsched.verify.solvers.bounded_model_checking`). Saved as JSON it names the claim by module and theorem, and holds
the text of a kernel function that differs from the shipped one; replaying runs all of it again on numpy arrays and on
exact integers and says what is broken now.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import attrs
import msgspec

from fairsched.model.algebra import NO_GROUP
from fairsched.verify.logic import system as logic_system
from fairsched.verify.logic.patching import with_text
from fairsched.verify.logic.system import confirmed

SCHEMA = 1


@attrs.frozen
class Counterexample:
    """A concrete world in which an event breaks a clause, confirmed by two interpretations of the kernel.

    `values` are the parameters, the state before the event and the event's facts: a tuple a vector or mask, an int a
    scalar or point (a client's index, -1 for none).  `without` names the assumptions that were not made.
    """

    system: str
    obligation: str
    broken: tuple[str, ...]
    clients: int
    values: logic_system.Values
    theorem: str = ""
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.obligation} breaks {'; '.join(self.broken)} with {self.clients} clients: {values}"


class SavedDocument(msgspec.Struct, frozen=True):
    """A document that is written; its first field is its schema, if it is also read."""

    order: ClassVar[Literal["sorted"] | None] = None
    """How keys are ordered: as they are declared, or sorted."""
    schema: ClassVar[int] = SCHEMA
    """The schema that this version writes and reads."""

    def to_json(self) -> bytes:
        """Return the document as indented JSON, the same bytes for the same document."""
        return msgspec.json.format(msgspec.json.encode(self, order=self.order), indent=2) + b"\n"


AnySaved = TypeVar("AnySaved", bound=SavedDocument)


def decoded(path: Path, kind: type[AnySaved], what: str) -> AnySaved:
    """Return a saved document; raises `ValueError`, with the file's name, when it is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: not a {what}: {error}") from error
    schema = getattr(found, kind.__struct_fields__[0])
    if schema != kind.schema:
        raise ValueError(f"{path}: schema {schema}; this library reads {kind.schema}")
    return found


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event by name, with its facts."""

    event: str
    facts: dict[str, int | tuple[int, ...]] = {}


class ChangedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel function that reads differently from the one in `module`."""

    module: str
    function: str
    text: str


class Document(SavedDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A counterexample as it is saved.

    The events begin in a first state of the claim if `from_start`, or else in a state that its invariants allow.
    `obligation` is what breaks: an event, "start" or "conclusion".  `claims` is the module, or the ``module:Class``,
    that lists the theorem.
    """

    fairsched_counterexample: int = SCHEMA
    theorem: str
    claims: str
    obligation: str
    broken: tuple[str, ...]
    clients: int
    initial: dict[str, int | tuple[int, ...]]
    events: tuple[Happening, ...] = ()
    from_start: bool = False
    without: tuple[str, ...] = ()
    kernel: ChangedKernel | None = None


def counterexample_document(
    found: Counterexample, claims: str, kernel: ChangedKernel | None = None, claim: logic_system.Claim | None = None
) -> Document:
    """Return what is to be saved of a counterexample; `claims` names where its claim is found, if it is not given."""
    if claim is None:
        claim = _claim(claims, found.theorem, None)
        claims = _home(claim, claims)
    facts = _step(claim, found.obligation, found.without).event
    names = frozenset(facts.facts) if facts else frozenset()
    happened = {name: value for name, value in found.values.items() if name in names}
    return Document(
        theorem=found.theorem,
        claims=claims,
        obligation=found.obligation,
        broken=found.broken,
        clients=found.clients,
        initial={name: value for name, value in found.values.items() if name not in names},
        events=(Happening(found.obligation, happened),) if facts else (),
        from_start=found.obligation == logic_system.START,
        without=found.without,
        kernel=kernel,
    )


def _home(claim: logic_system.Claim, claims: str) -> str:
    """Return the module that defines the claim, if that one lists it: a replay then imports nothing else."""
    module = claim.conclusions[0].holds.__module__
    listed = getattr(sys.modules.get(module), "claims", None)
    return module if listed and any(other.theorem == claim.theorem for other in listed()) else claims


def read_counterexample(path: Path) -> Document:
    """Return a saved counterexample; raises `ValueError`, with the file's name, when it is none."""
    return decoded(path, Document, "counterexample")


# --- replaying ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Tried:
    """What trying a saved document again gave: `broken` are the statements that fail now."""

    document: Any
    claim: Any
    broken: tuple[str, ...]

    @property
    def confirmed(self) -> bool:
        """Whether it breaks now exactly what it broke when it was saved."""
        return bool(self.broken == self.document.broken)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        own = {field.name: list(getattr(self, field.name)) for field in attrs.fields(type(self))[3:]}
        document = msgspec.to_builtins(self.document)
        return {"counterexample": document, **own, "broken": list(self.broken), "confirmed": self.confirmed}

    def text(self) -> str:
        """Return it as lines: the statement, the world with what happens in it, and what breaks."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield these lines."""
        raise NotImplementedError


@attrs.frozen
class CounterexampleReplay(Tried):
    """What running a saved counterexample gave: the states passed through, and what is broken at the end.

    `states` are plain values by name, the first before any event; `chosen` is what each event's kernel decided.
    """

    document: Document
    claim: logic_system.Claim
    broken: tuple[str, ...]
    states: tuple[logic_system.Values, ...]
    chosen: tuple[logic_system.Values, ...]

    def lines(self) -> Iterator[str]:
        """Yield state, event, state, ..., and which clause broke."""
        saved, claim = self.document, self.claim
        yield f"{saved.theorem}: {claim.theorem.statement}"
        begins = "the claim's start" if saved.from_start else "a state that the invariants allow"
        yield f"{claim.system.name}, {saved.clients} client(s), from {begins}"
        if saved.without:
            yield f"without {', '.join(saved.without)}"
        if saved.kernel:
            yield f"with {saved.kernel.module}.{saved.kernel.function} changed to"
            yield from (f"    {line}" for line in saved.kernel.text.strip().splitlines())
        yield ""
        yield from _state(claim, self.states[0], saved.clients, {**claim.system.parameters, **claim.system.fields})
        for happening, chosen, state in zip(saved.events, self.chosen, self.states[1:], strict=True):
            facts = [f"{name} = {_said(value)}" for name, value in happening.facts.items()]
            facts += [f"{name} = {_said(value)} (the gate's choice)" for name, value in chosen.items()]
            yield ""
            yield f"-> {happening.event}" + (f": {', '.join(facts)}" if facts else "")
            yield ""
            yield from _state(claim, state, saved.clients, claim.system.fields)
        yield ""
        where = (
            "there"
            if saved.obligation in (logic_system.START, logic_system.CONCLUSION) or not saved.events
            else "afterwards"
        )
        yield f"broken {where}: {'; '.join(self.broken)}" if self.broken else "nothing is broken"
        if not self.confirmed:
            yield f"saved as breaking: {'; '.join(saved.broken)}"


class NotPermittedError(ValueError):
    """A world does not fulfil the hypotheses under which the claim is made, so it says nothing about it."""


def replay_counterexample(saved: Document, claim: logic_system.Claim | None = None) -> CounterexampleReplay:
    """Run a saved counterexample on numpy arrays and on exact integers.

    `claim` is looked up unless given.  Raises `NotPermittedError` when a hypothesis does not hold in its world, and
    `ValueError` when it does not fit the claim or the two interpretations disagree.
    """
    claim = claim or _claim(saved.claims, saved.theorem, saved.kernel)
    runs = [_run(saved, claim, run) for run in logic_system.INTERPRETATIONS]
    if runs[0] != runs[1]:
        raise ValueError(f"{saved.theorem}: numpy and exact integers disagree about this world")
    return runs[0]


def _run(saved: Document, claim: logic_system.Claim, run: logic_system.Interpretation) -> CounterexampleReplay:
    o, system = run.o, claim.system
    last = _step(claim, saved.obligation, saved.without)
    kinds = {**system.parameters, **system.fields}
    _check_fits("the world", kinds, saved.initial, saved.clients)
    world = logic_system.with_derived(o, system, run.world(kinds, saved.initial))
    assumed = claim.start if saved.from_start else last.assumed
    if missing := logic_system.failing(o, assumed, world, saved.clients):
        raise NotPermittedError(f"{saved.theorem}: the first state does not fulfil {'; '.join(missing)}")
    states, chosen = [logic_system.plain(kinds, world)], []
    for happening in saved.events:
        step = _step(claim, happening.event, saved.without)
        if step.event is None:
            raise ValueError(f"{system.name} has no event {happening.event!r}")
        _check_fits(happening.event, step.event.facts, happening.facts, saved.clients)
        worlds = logic_system.happened(run, system, step.event, world, happening.facts, step.dropped)
        if worlds is None:
            raise NotPermittedError(f"{saved.theorem}: {happening.event} {happening.facts} is not permitted there")
        before, world = worlds
        states.append(logic_system.plain(kinds, world))
        decisions = set(vars(before)) - {*kinds, *system.derived, *step.event.facts}
        chosen.append({name: int(getattr(before, name)) for name in sorted(decisions)})
        world = logic_system.World(**{name: getattr(world, name) for name in (*kinds, *system.derived)})
    if not saved.events and not logic_system.permitted(o, logic_system.hypotheses(system, None, last.dropped), world):
        raise NotPermittedError(f"{saved.theorem}: the parameters are not permitted")
    return CounterexampleReplay(
        saved, claim, logic_system.failing(o, last.goals, world, saved.clients), tuple(states), tuple(chosen)
    )


def _check_fits(what: str, kinds: Mapping[str, logic_system.Kind], values: logic_system.Values, clients: int) -> None:
    if set(kinds) != set(values):
        odd = ", ".join(sorted(set(kinds) ^ set(values)))
        raise ValueError(f"{what}: the counterexample and the claim differ in {odd}")
    for name, value in values.items():
        vector = kinds[name] in (logic_system.Kind.VECTOR, logic_system.Kind.MASK)
        if isinstance(value, tuple) is not vector or (isinstance(value, tuple) and len(value) != clients):
            raise ValueError(f"{what}: {name} is a {kinds[name].value} over {clients} clients, not {value!r}")
        if kinds[name] is logic_system.Kind.POINT and isinstance(value, int) and not NO_GROUP <= value < clients:
            raise ValueError(f"{what}: {name} is one of {clients} clients or none (-1), not {value}")


def _step(claim: logic_system.Claim, name: str, without: tuple[str, ...]) -> logic_system.Step:
    dropped = frozenset(assumption for assumption in claim.droppable if assumption.name in without)
    return logic_system.step_named(claim, name, dropped)


def holder_of(claims: str) -> Any:
    """Return the module or class of that name; raises `ValueError` when it has no claims."""
    module, _, attribute = claims.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"no claims in {claims!r}: {error}") from error
    holder = getattr(found, attribute, None) if attribute else found
    if not callable(getattr(holder, "claims", None)):
        raise ValueError(f"no claims in {claims!r}")
    return holder


def _claim(claims: str, theorem: str, kernel: ChangedKernel | None) -> logic_system.Claim:
    holder = holder_of(claims)
    made = getattr(holder, "kernel_claims", holder.claims) if kernel else holder.claims
    try:
        listed = made(**_with_kernel(made, kernel)) if kernel else made()
    except TypeError as error:
        raise ValueError(f"no claims in {claims!r}: {error}") from error
    named: list[logic_system.Claim] = [claim for claim in listed if claim.theorem.id == theorem]
    if named:
        return named[0]
    raise ValueError(f"{claims!r} has no theorem {theorem!r}")


def _with_kernel(claims: Callable[..., Any], kernel: ChangedKernel) -> dict[str, Any]:
    """Return the variant in place of the kernels that it is one of."""
    shipped = inspect.signature(claims).parameters.items()
    of_module = [name for name, each in shipped if getattr(each.default, "__name__", "") == kernel.module]
    return dict.fromkeys(of_module or ["kernel"], with_text(kernel.module, kernel.function, kernel.text))


def _said(value: int | tuple[int, ...]) -> str:
    return str(value) if isinstance(value, int) else f"({', '.join(map(str, value))})"


def _state(
    claim: logic_system.Claim, state: logic_system.Values, clients: int, shown: Mapping[str, logic_system.Kind]
) -> Iterator[str]:
    """Yield one row a client; scalars and points in a line below."""
    columns = {
        name: state[name] for name, kind in shown.items() if kind in (logic_system.Kind.VECTOR, logic_system.Kind.MASK)
    }
    rows = [["client", *columns]]
    for client in range(clients):
        entries = [(shown[name], value[client]) for name, value in columns.items() if isinstance(value, tuple)]
        cells = [("yes" if entry else "-") if kind is logic_system.Kind.MASK else str(entry) for kind, entry in entries]
        rows.append([_client(claim, state, client), *cells])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "   " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
    rest = [f"{name} = {_said(state[name])}" for name, kind in shown.items() if name not in columns]
    if rest:
        yield "   " + ", ".join(rest)


def _client(claim: logic_system.Claim, state: logic_system.Values, client: int) -> str:
    named = [
        name
        for name, kind in claim.system.parameters.items()
        if kind is logic_system.Kind.POINT and state[name] == client
    ]
    return f"{client} ({', '.join(named)})" if named else str(client)


# --- shrinking --------------------------------------------------------------------------------------------------------


def minimised(step: logic_system.Step, clients: int, values: logic_system.Values) -> Counterexample:
    """Return the smallest world that was found by changing one value, or two, at a time; the given one must break the
    step."""
    found, n = dict(values), clients
    for client in reversed(range(clients)):
        fewer = _without(step, found, client)
        if n > 1 and fewer is not None and confirmed(step, n - 1, fewer):
            found, n = fewer, n - 1
    while smaller := next((world for world in _smaller(step, found) if confirmed(step, n, world)), None):
        found = smaller
    return Counterexample(
        step.claim.system.name,
        step.name,
        confirmed(step, n, found),
        n,
        found,
        step.claim.theorem.id,
        tuple(sorted(assumption.name for assumption in step.dropped)),
    )


def _without(step: logic_system.Step, values: logic_system.Values, client: int) -> dict[str, Any] | None:
    """Return the world without a client; None if a field is that client."""
    fewer: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, tuple):
            fewer[name] = value[:client] + value[client + 1 :]
        elif step.kinds[name] is logic_system.Kind.POINT:
            if value == client:
                return None
            fewer[name] = value - (value > client)
        else:
            fewer[name] = value
    return fewer


_Place = tuple[str, int | None]
"""An entry of a vector, or a scalar."""


def _smaller(step: logic_system.Step, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield worlds with one entry closer to zero, then with two that move by as much (a balance ties them), boldest
    first."""
    places = [(place, entry) for place, entry in _entries(step, values) if entry]
    for place, entry in places:
        yield from (_moved(values, {place: less}) for less in _closer(entry))
    for (one, left), (two, right) in combinations(places, 2):
        for by in sorted({min(abs(left), abs(right)), 1}, reverse=True):
            yield _moved(values, {one: _toward(left, by), two: _toward(right, by)})


def _entries(step: logic_system.Step, values: dict[str, Any]) -> Iterator[tuple[_Place, int]]:
    for name, value in values.items():
        if isinstance(value, tuple):
            yield from (((name, i), entry) for i, entry in enumerate(value))
        elif step.kinds[name] is not logic_system.Kind.POINT:
            yield (name, None), value


def _moved(values: dict[str, Any], to: Mapping[_Place, int]) -> dict[str, Any]:
    moved = dict(values)
    for (name, i), entry in to.items():
        value = moved[name]
        moved[name] = entry if i is None else (*value[:i], entry, *value[i + 1 :])
    return moved


def _closer(entry: int) -> list[int]:
    size = abs(entry)
    nearer = {size, size - size // 2, *(1 << bit for bit in range(size.bit_length()))}
    return [_toward(entry, by) for by in sorted(nearer, reverse=True) if 0 < by <= size]


def _toward(entry: int, by: int) -> int:
    """Return the entry, closer to zero."""
    return entry - by if entry > 0 else entry + by
