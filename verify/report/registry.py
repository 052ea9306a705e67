"""Which events stand for what a gate does: a field that is written and that no obligation speaks of is an error.

Ways that lead around a proof without breaking it are found here by reading, not by trust:

- A method of a shipped gate writes a field of its state, and no event of a proved system stands for that.
- An event writes a field that no clause of any claim reads, so nothing has to be shown about what it writes.
- A router's theorem says less than it seems to: no wrong router breaks it, or no run attains its bound.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import msgspec

from fairsched.model.algebra import EXACT
from fairsched.policies import gates
from fairsched.policies.registry import CLUSTER_POLICIES
from fairsched.verify import proofs
from fairsched.verify.logic import Claim, Event, decided, module_of, ones
from fairsched.verify.proofs import SUITE, claims_of

START = "start"
"""What stands for a state's first values, also those of a client that was never seen."""


@attrs.frozen
class Registration:
    """A gate's functions that make a state, each with the events that stand for it.

    `fields` names what the proofs call a field of the state, where they call it otherwise; a field `outside` is in no
    proof, for the reason given.
    """

    gate: type[gates.AnyGate]
    events: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, str] = attrs.field(factory=dict)
    outside: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def module(self) -> ModuleType:
        """The gate's file."""
        return module_of(self.gate)


REGISTRATIONS = (
    Registration(
        gates.DeficitGate,
        {
            "join": ("arrive", "preempt", "arrive as printed, at zero", "preempt as printed, at zero"),
            "refill": ("refill",),
            "admit": ("admit", "correct"),
            "decode": ("decode",),
            "refund": ("refund",),
            "reweigh": ("configured",),
            "released": ("finish",),
        },
        fields={"quantum": "Q", "in_flight": "F"},
        outside={"usual": "a guess of what an elastic cap counts; whatever is counted is a fact of an admission"},
    ),
    Registration(
        gates.InBatchGate,
        {"admit": ("admit",), "settled_up": ("refill", "forgive")},
        outside={"longest": "what gives the depth, which in proofs is anything up to a longest request, at any time"},
    ),
    Registration(
        gates.CounterGate,
        {
            "join": ("arrive", "preempt"),
            "left": ("leave the queue",),
            "admit": ("admit", "admit the last that waits", "correct"),
            "decode": ("decode",),
            "refund": ("refund",),
            "rescale": ("the unit becomes finer",),
        },
        outside={
            "share": "a price: charges are facts of the events, and V-change says what a change of prices does",
            "common": "the unit of account: the event in which it becomes finer has the factor as a fact",
        },
    ),
    Registration(
        gates.GlobalDeficitGate,
        {
            "joined": ("arrive at a worker", "preempt"),
            "left": ("leave a worker's queue",),
            "admit": ("refill", "refill of one worker", "admit", "leave a worker's queue"),
            "held": ("arrive at a worker", "leave a worker's queue"),
        },
        fields={"granted": "P"},
        outside={
            "landed": "clients whose landed requests go first are not ready elsewhere; theorems hold for any ready",
        },
    ),
    Registration(
        gates.HierarchicalGate,
        {
            "init": (START,),
            "_grown": (START,),
            "_with_nodes": (START,),
            "_placed": (START,),
            "joined": ("arrive",),
            "left": ("leave the queue",),
            "after": ("refill a family", "admit", "leave the queue"),
            "decoded": ("decode",),
            "settled": ("correct", "refund"),
            "released": ("finish",),
            "_weighed": ("configured",),
        },
        fields={"quantum": "Q", "below": "queued"},
        outside={
            "in_flight": "a client that a cap keeps out is one that is not ready; the cap promises nothing itself",
            "credit": "derived: which members have credit, computed anew unless it is of the same vectors",
        },
    ),
    Registration(
        gates.BandGate,
        {
            "init": (START,),
            "after": ("admit",),
            "decoded": ("charge what was reserved",),
            "settled": ("charge what was reserved", "refund"),
            **dict.fromkeys(("joined", "left", "configured", "_grown", "_within", "_waiting"), ()),
        },
        outside={
            "waits": "which bands wait is the environment's in each event",
            "band": "a band's clients are the environment's",
            "inside": "the deficit gate in each band, about whose clients its theorems are",
            "members": "derived: which clients are in each band, computed anew unless it is of the same vector",
        },
    ),
)


def breaches(sources: Iterable[str]) -> Iterator[str]:
    """Everything that is written without an obligation, a line each, in the claims of these sources."""
    for source in sources:
        claims = [claim for claim in claims_of(source).values() if isinstance(claim, Claim)]
        yield from unread_fields(claims)
        if source == SUITE:
            for registration in REGISTRATIONS:
                yield from unregistered_writes(registration, claims)
            yield from unseeded(proofs.MODULES)


# --- routers ----------------------------------------------------------------------------------------------------------


def unseeded(modules: Iterable[ModuleType]) -> Iterator[str]:
    """Yield theorems of routers that no seeded bug breaks, or whose bound no run attains."""
    of_routers = {theorem.id for router in CLUSTER_POLICIES.values() for theorem in router.theorems}
    for module in modules:
        broken = {bug.claim.theorem.id for bug in proofs.bugs(module)}
        for claim in proofs.claims_in(module):
            name = claim.theorem.id
            if name in of_routers and not isinstance(claim, Claim):
                if name not in broken:
                    yield f"{module.__name__}: no bug is seeded against {name}"
                if claim.theorem.bound and claim.attained is None:
                    yield f"{module.__name__}: nothing attains the bound of {name}"


# --- fields that a gate writes --------------------------------------------------------------------------------------


def unregistered_writes(registration: Registration, claims: Iterable[Claim]) -> Iterator[str]:
    """Yield fields that a function of the gate's file writes, and no event that stands for it does."""
    written_by = _written_by_events(claims)
    name = registration.gate.__name__
    for function, fields in state_writes(registration).items():
        events = registration.events.get(function)
        if events is None:
            yield f"{name}: {function} writes {', '.join(sorted(fields))}, and no event stands for it"
            continue
        for event in events:
            if event != START and event not in written_by:
                yield f"{name}: {function} stands for {event!r}, which is no event"
        for field in sorted(fields - set(registration.outside)):
            known = registration.fields.get(field, field)
            if START not in events and not any(known in written_by.get(event, ()) for event in events):
                yield f"{name}: {function} writes {field}, and none of {', '.join(events)} writes {known}"


def state_writes(registration: Registration) -> dict[str, set[str]]:
    """The events that the gate declares and the functions of its file that make a state, each with the fields that it
    does not just take over."""
    state = registration.gate.state_type
    found = _declared(registration.gate) if issubclass(registration.gate, gates.KernelGate) else {}
    for function in ast.walk(ast.parse(inspect.getsource(registration.module))):
        if isinstance(function, ast.FunctionDef):
            fields = {field for call in ast.walk(function) for field in _written(call, state)}
            if fields:
                found.setdefault(function.name, set()).update(fields)
    return found


def _declared(gate: type[gates.KernelGate]) -> dict[str, set[str]]:
    """What each event writes by the gate's own declaration; the rest is its parent's."""
    own = vars(gate)
    names = {*own, *(name for kernels in own.get("variants", {}).values() for name in kernels)}
    found = {event: {name for name in gate.state if f"{event}_{name}" in names} for event in gates.EVENTS}
    last = {"last"} & {*gate.state_type.__struct_fields__} if "state" in own else set()
    found["admit"] |= {*own.get("kept", ())} - {*getattr(gate.__base__, "kept", ())} | last
    found |= {"left": last, "rescale": {*own.get("units", ()), *(("share", "common") if "units" in own else ())}}
    found["reweigh"] |= {*own.get("per_weight", ()), *own.get("over_weight", ())}
    return {event: fields for event, fields in found.items() if fields}


def _written(call: ast.AST, state: type[msgspec.Struct]) -> Iterator[str]:
    match call:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name == state.__name__:
            values: dict[str, ast.expr] = dict(zip(state.__struct_fields__, args, strict=False))
            values.update((str(keyword.arg), keyword.value) for keyword in keywords)
            yield from (field for field, value in values.items() if not _taken_over(value, field))
        case ast.Call(func=ast.Attribute(attr="replace") | ast.Name(id="replace" | "with_room"), keywords=keywords):
            yield from (str(keyword.arg) for keyword in keywords)


def _taken_over(value: ast.expr, field: str) -> bool:
    return isinstance(value, ast.Attribute) and value.attr == field and ast.unparse(value.value) == "state"


def _written_by_events(claims: Iterable[Claim]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for claim in claims:
        for event in claim.system.events:
            found.setdefault(event.name, set()).update(_writes(claim, event))
    return found


# --- fields that no clause reads ------------------------------------------------------------------------------------


def unread_fields(claims: Iterable[Claim]) -> Iterator[str]:
    """Yield fields that an event writes and no invariant of a claim about an event of that name reads."""
    written: dict[tuple[str, str], str] = {}
    read: set[tuple[str, str]] = set()
    for claim in claims:
        seen = _read_by_invariants(claim)
        for event in claim.system.events:
            for field in sorted(_writes(claim, event)):
                written.setdefault((event.name, field), claim.system.name)
                if field in seen:
                    read.add((event.name, field))
    unread: dict[tuple[str, str], list[str]] = {}
    for (name, field), system in written.items():
        if (name, field) not in read:
            unread.setdefault((system, field), []).append(name)
    for (system, field), names in unread.items():
        yield f"{system}: {field} is written by {', '.join(names)}, and no invariant of any claim reads it"


class _Watched(SimpleNamespace):
    """A world that notes which of its names are read."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            super().__getattribute__("_read").add(name)
        return super().__getattribute__(name)


def _read_by_invariants(claim: Claim) -> set[str]:
    """Return the fields that the claim's invariants and conclusions read, themselves or through what is derived."""
    watched = ones(claim.system, {}, lambda **values: _Watched(_read=set(), **values))
    for clause in (*claim.invariants, *claim.conclusions):
        clause.holds(EXACT, watched, *(0 for _ in range(clause.points)))
    return set(watched._read)


def _writes(claim: Claim, event: Event) -> set[str]:
    return set(event.step(EXACT, decided(EXACT, event, ones(claim.system, event.facts))))
