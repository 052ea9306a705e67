"""One decision of the shipped admission pass is steps of its gate's kernels: the simulation relation, proved small.

The pass, the queue and the gate's transaction run as they ship, on unknown integers: what each client owes or has been
charged, what is in flight, the cap, the prompts, the outputs and the memory that is free.  Beside them the kernels are
run from the same state, once for each request that was let in.  Two clients' requests wait, in every order of arrival,
which stands for any order: a pass knows scores only.  Weights and prices are numbers, so that solvers have
nothing to multiply; that a refill is as many rounds as it takes is D-refill's.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

from msgspec.structs import force_setattr, replace

from fairsched.model.algebra import NO_GROUP, NO_SCORE
from fairsched.model.events import Arrived
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import IterationLevel
from fairsched.policies.gates import Calls, CounterGate, DeficitGate, KernelAdmissions
from fairsched.policies.local import AdmissionPass, ComposedPolicy
from fairsched.policies.orders import Arrival
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import counter, deficit

CLIENTS = range(2)
RATES = Rates(2, 3)
QUANTA, SHARES = (5, 7), (3, 2)
"""What a refill gives each client, and how many of the counter's units its cost unit is."""

_SOURCE = "this library; the shipped pass on unknown integers, beside its gate's kernels"


def _theorem(name: str, requests: int, gate: str) -> Theorem:
    return Theorem(
        name,
        f"of two clients with {requests} requests, in any order, of any sizes, for any free memory: each that a "
        "decision lets in is the oldest of the client that the kernel chooses and is charged what the kernel says, all "
        f"fit, and one more that the kernel lets in would not; {gate}",
        _SOURCE,
        scope=Scope.BOUNDED,
    )


def _sizes(requests: int) -> tuple[str, ...]:
    return tuple(f"{part}{number}" for number in range(requests) for part in ("prompt", "output"))


def _sent(w: SimpleNamespace) -> tuple[int, ...]:
    """The clients of the requests, in order of arrival: one of all orders, by its number."""
    requests = sum(name.startswith("prompt") for name in vars(w))
    orders = tuple(product(CLIENTS, repeat=requests))
    return next((each for number, each in enumerate(orders[:-1]) if w.order == number), orders[-1])


def _vector(w: SimpleNamespace, name: str) -> v.PathVector:
    return v.PathVector([getattr(w, f"{name}{client}") for client in CLIENTS])


def _size(w: SimpleNamespace, request: int) -> Any:
    """KV tokens of a request, its whole output included."""
    return getattr(w, f"prompt{request}") + getattr(w, f"output{request}")


def _request(w: SimpleNamespace, number: int, client: int) -> Request:
    """A request of unknown size, which no validator has seen."""
    prompt = Prompt(1)
    force_setattr(prompt, "tokens", getattr(w, f"prompt{number}"))
    request = Request(number, client, 0, prompt, 1)
    force_setattr(request, "max_output_tokens", getattr(w, f"output{number}"))
    return request


def _on_paths(kind: type[Any]) -> type[Any]:
    """A gate's transaction whose kernels run on vectors of unknown integers, none of which is too large for 64 bits."""
    words = {
        "NUMPY": v.PATH_WORDS,
        "NUMPY_OWNED": v.PATH_WORDS,
        "int": lambda number: number,
        "_within": lambda number: None,
    }
    own = {n: v.with_names(getattr(kind, n), **words) for n in ("choose", "give", "admit", "entered", "capped")}

    def begun(self: Any, gate: Any, state: Any, heads: Any) -> None:
        kind.__init__(self, gate, state, heads)
        self.calls = Calls(gate, v.PATH_WORDS, v.PATH_WORDS)

    return type(kind.__name__, (kind,), {**own, "__init__": begun})


def _decision(w: SimpleNamespace, gate: Any, state: Any, kind: type[Any], passes: type[AdmissionPass]) -> Any:
    """The requests that one decision lets in, as (request, client), and the gate's state after it."""
    policy = ComposedPolicy("proved", Arrival(), gate, IterationLevel())
    local = policy.init()
    for number, client in enumerate(_sent(w)):
        local = policy.observe(local, Arrived(0, 0, _request(w, number, client)))
    local = replace(local, gate=state)
    view = WorkerState(0, 1).view(0)
    made = passes(policy, local, view, policy.batching.open(view, local.flights), w.free)
    made.turn = _on_paths(kind)(gate, state, made.heads)
    plan, after = made.run()
    return [(each.request_id, each.client) for each in plan.admit], after.gate


def _heads(left: Sequence[tuple[int, int]]) -> tuple[v.PathVector, v.PathVector]:
    """Each client's oldest request that waits, and how it is scored, beside who waits."""
    oldest = {client: number for number, client in reversed(left)}
    scores = v.PathVector([-oldest[client] if client in oldest else NO_SCORE for client in CLIENTS])
    return scores, v.PathVector([client in oldest for client in CLIENTS])


def _shown(w: SimpleNamespace, admitted: list[tuple[int, int]], kernel: "_Deficits | _Counters") -> v.Shown:
    """What each admission of a decision is beside the kernel's."""
    left, free, chosen = list(enumerate(_sent(w))), w.free, True
    for number, client in admitted:
        goes = kernel.choose(left)
        chosen = chosen and goes == client and number == next(each for each, of in left if of == client)
        kernel.admit(client, getattr(w, f"prompt{number}"), _size(w, number))
        left.remove((number, client))
        free = free - _size(w, number)
    goes = kernel.choose(left)
    more = next((_size(w, number) for number, client in left if client == goes), None)
    return {
        "each is the kernel's choice, and its client's oldest": chosen,
        "all fit into what is free": free >= 0,
        "one more that the kernel lets in would not": True if more is None else more > free,
    }


def _same(one: Sequence[Any], other: Sequence[Any]) -> Any:
    """Whether two vectors are the same; no path is split."""
    same: Any = True
    for own, theirs in zip(one, other, strict=True):
        same = same & (own == theirs)
    return same


class _Deficits:
    """The deficit gate's kernels, from the state that a decision begins with."""

    def __init__(self, w: SimpleNamespace) -> None:
        self.w = w
        self.q = self.refilled = _vector(w, "q")
        self.in_flight = _vector(w, "f")

    def choose(self, left: list[tuple[int, int]]) -> int:
        """The client that goes next: in credit, not over the cap with its oldest request, and scored best."""
        heads, queued = _heads(left)
        sizes = {client: _size(self.w, number) for number, client in reversed(left)}
        under = [
            client in sizes and deficit.under_cap(v.PATH_WORDS, self.in_flight, client, sizes[client], self.w.cap)
            for client in CLIENTS
        ]
        self.refilled = self.q
        if deficit.refill_due(v.PATH_WORDS, self.q, queued):
            self.refilled = deficit.refill_rounds(v.PATH_WORDS, self.q, queued, _KNOWN, v.PathVector(QUANTA))
        return int(deficit.choose(v.PATH_WORDS, self.refilled, queued, v.PathVector(under), heads))

    def admit(self, client: int, prompt: Any, size: Any) -> None:
        """It pays, and its memory is promised."""
        self.q = deficit.admit(v.PATH_WORDS, self.refilled, client, prompt * RATES.input)
        self.in_flight = deficit.reserve(v.PATH_WORDS, self.in_flight, client, size)


class _Counters:
    """The counter gate's kernels, from the state that a decision begins with."""

    def __init__(self, w: SimpleNamespace) -> None:
        self.c = _vector(w, "c")

    def choose(self, left: list[tuple[int, int]]) -> int:
        """The client that goes next: with the smallest counter."""
        return int(counter.choose(v.PATH_WORDS, self.c, _heads(left)[1]))

    def admit(self, client: int, prompt: Any, size: Any) -> None:
        """It pays, in units of its weight."""
        self.c = counter.admit(v.PATH_WORDS, self.c, client, prompt * RATES.input * SHARES[client])


_KNOWN = v.PathVector([True for _ in CLIENTS])


def _claim(
    theorem: Theorem, requests: int, names: Sequence[str], shows: v.Shows, *more: v.Condition
) -> v.ArithmeticClaim:
    sizes = _sizes(requests)
    world = (*v.at_least(1, *sizes), *v.at_least(0, "free", "order"), v.Condition(lambda w: w.order < 2**requests))
    return v.ArithmeticClaim(theorem, (*sizes, "free", "order", *names), (*world, *more), shows, pruned=True)


def deficits(
    requests: int = 2, passes: type[AdmissionPass] = AdmissionPass, kind: type[Any] = deficit.DeficitAdmissions
) -> v.ArithmeticClaim:
    """Whatever clients owe, under a cap of whatever size."""

    def shows(w: SimpleNamespace) -> v.Shown:
        gate = DeficitGate(RATES, in_flight_cap_tokens=1)
        object.__setattr__(gate, "in_flight_cap_tokens", w.cap)
        before = deficit.DeficitState(_vector(w, "q"), _KNOWN, v.PathVector(QUANTA), _vector(w, "f"))
        admitted, after = _decision(w, gate, before, kind, passes)
        kernel = _Deficits(w)
        shown = _shown(w, admitted, kernel)
        owed, held = _same(after.q, kernel.q), _same(after.in_flight, kernel.in_flight)
        return {**shown, "what is owed and in flight is the kernel's": owed & held}

    theorem = _theorem("pass-D", requests, "deficit gate with a cap, whatever clients owe and have in flight")
    names = ("cap", *(f"{name}{client}" for client in CLIENTS for name in "qf"))
    return _claim(theorem, requests, names, shows, *v.at_least(1, "cap"), *v.at_least(0, *names[2::2]))


def counters(
    requests: int = 3, passes: type[AdmissionPass] = AdmissionPass, kind: type[Any] = KernelAdmissions
) -> v.ArithmeticClaim:
    """Whatever clients were charged, with weights of two and three."""

    def shows(w: SimpleNamespace) -> v.Shown:
        gate, none = CounterGate(RATES), v.PathVector([0 for _ in CLIENTS])
        before = counter.CounterState(_vector(w, "c"), v.PathVector(SHARES), 6, NO_GROUP, none)
        admitted, after = _decision(w, gate, before, kind, passes)
        kernel = _Counters(w)
        return {**_shown(w, admitted, kernel), "counters are the kernel's": _same(after.c, kernel.c)}

    theorem = _theorem("pass-V", requests, "counter gate with weights, whatever clients were charged")
    return _claim(theorem, requests, [f"c{client}" for client in CLIENTS], shows)


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """About what ships."""
    return (deficits(), counters())


def bugs() -> Iterator[v.Bug]:
    """In the pass, in the gates' transactions, and in what both keep."""

    def of_pass(what: str, method: str, old: str, new: str) -> Iterator[v.Bug]:
        for claim in (deficits, counters):
            yield v.Bug(what, claim(passes=v.changed(AdmissionPass, method, old, new)))

    def of_gate(what: str, method: str, old: str, new: str) -> v.Bug:
        return v.Bug(what, deficits(kind=v.changed(deficit.DeficitAdmissions, method, old, new)))

    yield from of_pass(
        "memory is given twice", "admit", "self.free -= need - held - self._drawn(request.client, need - held)", "pass"
    )
    yield from of_pass("one token short", "admit", "own = context_tokens -", "own = context_tokens - 1 -")
    yield from of_pass("one token idle", "admit", "need > room", "need >= room")
    yield v.Bug(
        "no cap", deficits(passes=v.changed(AdmissionPass, "run", "held_back and self._held_back(entry)", "False"))
    )
    yield of_gate("an admission is free of its rate", "admit", "self.gate.rates.input", "1")
    yield of_gate("a refill is lost", "admit", "self.before = None", "self.restore()")
    yield of_gate("what is promised is forgotten", "entered", "group, kv_tokens)", "group, 0)")
    other = v.changed(KernelAdmissions, "admit", "int(self.state.share[group])", "1")
    yield v.Bug("a charge without its weight", counters(kind=other))
