"""Prefill and decode workers under one deficit: S-gap, what each kind of worker may charge, and S-prefill.

S-gap is about the events of `fairsched.verify.proofs.gates.shared`, each of which happens at a prefill worker or at a
decode worker: the first charge S, the others T, and what is bounded is their sum.  For every number of clients, and of
workers of either kind.  A request that leaves a prefill worker gives up what was reserved for it there; it waits again
when its KV has landed, and is admitted at the decode worker like any other.

S-prefill is about the deficit gate of prefill workers, behind which decode workers serve whom they like: all that is
known of them is how much a request may still decode.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import attrs
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.algebra import Algebra
from fairsched.model.events import Admitted, Decoded, Event, Settled
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, NOTHING_REFUNDED, PHASES_APART
from fairsched.model.worker import NoRoomError, WorkerState
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS, DLPMGlobal
from fairsched.policies.gates import (
    S_GAP,
    S_U_DECODE,
    S_U_PREFILL,
    DeficitGate,
    GlobalDeficitGate,
    decode_charge_max,
    prefill_charge_max,
)
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates.shared import cluster_system, range_of, starts
from fairsched.verify.proofs.kernels import deficit, global_deficit

# --- both phases under one deficit ------------------------------------------------------------------------------------

_PHASES = {"S": "at a prefill worker", "T": "at a decode worker"}


def _in_phase(event: v.Event, service: str) -> v.Event:
    """The event at a worker of one kind, whose charges are counted there."""

    def step(o: Algebra, w: v.World) -> v.Written:
        written = dict(event.step(o, v.World(**{**vars(w), "W": getattr(w, service)})))
        written[service] = written.pop("W")
        return written

    return attrs.evolve(event, name=f"{event.name} {_PHASES[service]}", step=step)


_UNCHARGED = frozenset(
    {
        *("arrive at a worker", "arrive as printed, at zero", "leave a worker's queue", "preempt"),
        *("finish", "refill", "refill of one worker"),
    }
)


def split_system(kernel: v.Functions = global_deficit, gate: v.Functions = deficit) -> v.System:
    """The shared gate over workers of two kinds, over an interval in which f and g are backlogged at any of them."""
    whole = cluster_system(kernel, gate, ("f", "g"))
    events = [
        split
        for event in whole.events
        for split in ((event,) if event.name in _UNCHARGED else (_in_phase(event, "S"), _in_phase(event, "T")))
    ]
    named = {event.name: event for event in events}
    arrives, leaves = named["arrive at a worker"], named["finish"]
    # What a hand-over does is what these do, in this order, some time apart: nothing of the request waits in between.
    events += [
        attrs.evolve(leaves, name="the first token is out, and the request leaves its prefill worker"),
        attrs.evolve(arrives, name="its KV has landed at a decode worker"),
    ]
    fields = {name: kind for name, kind in whole.fields.items() if name != "W"}
    return attrs.evolve(
        whole,
        name="deficit gate of prefill and decode workers",
        fields={**fields, "S": v.VECTOR, "T": v.VECTOR},
        events=tuple(events),
        derived={**whole.derived, "W": lambda o, w: w.S + w.T},
    )


def _gap_claim(kernel: v.Functions, gate: v.Functions) -> v.Claim:
    nothing = (
        v.Clause("S = 0, T = 0", lambda o, w: v.same(w.S, 0) & v.same(w.T, 0)),
        *(clause for clause in starts() if clause.name != "W = 0"),
    )
    balance = v.Clause("S + T + q = q0 + P", lambda o, w: v.same(w.S + w.T + w.q, w.q0 + w.P))
    return v.Claim(
        S_GAP,
        split_system(kernel, gate).with_laws(deficit_proofs.EQUAL),
        nothing,
        (*range_of(), balance, v.Clause("P_f = P_g", deficit_proofs.same_credit)),
        (v.Clause("|(S_f + T_f) - (S_g + T_g)| <= 2(Q + U - 1) + B_f + B_g", deficit_proofs.gap_within),),
    )


# --- a gate at the prefill workers alone ------------------------------------------------------------------------------


def _prefill_system(gate: v.Functions) -> v.System:
    """W is what prefill workers charge.  T is decode service, D what may still be decoded of requests that passed the
    gate, h what that was at t1, and N counts admissions."""
    alone = deficit_proofs.deficit_system(gate, backlogged=("f", "g"))

    def admits(event: v.Event) -> v.Event:
        step = event.step

        def hands_over(o: Algebra, w: v.World) -> v.Written:
            return {**step(o, w), "D": o.bump(w.D, w.p, w.y), "N": o.bump(w.N, w.p, 1)}

        costs = (v.Need(lambda o, w: (w.y >= 0) & (w.y <= w.b)), v.Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE))
        return attrs.evolve(event, step=hands_over, facts={**event.facts, "y": v.SCALAR}).with_needs(*costs)

    def refunds(event: v.Event) -> v.Event:
        return attrs.evolve(event, excluded_by=NOTHING_REFUNDED)

    changed = {"admit": admits, "admit past the gate": admits, "refund": refunds}
    decodes = v.Event(
        "decode at a decode worker",
        lambda o, w: {"T": w.T + w.d, "D": w.D - w.d},
        {"d": v.VECTOR},
        (lambda o, w: (w.d >= 0) & (w.d <= w.D),),
    )
    ends = v.Event(
        "ends before its last output",
        lambda o, w: {"D": w.D - w.d},
        {"d": v.VECTOR},
        (lambda o, w: (w.d >= 0) & (w.d <= w.D),),
    )
    return attrs.evolve(
        alone,
        name="deficit gate of prefill workers",
        parameters={**alone.parameters, "h": v.VECTOR, "b": v.SCALAR},
        laws=(*alone.laws, deficit_proofs.EQUAL, deficit_proofs.NONE_BACK, lambda o, w: w.b >= 0),
        fields={**alone.fields, **v.vectors(*"TDN")},
        events=(*(changed[e.name](e) if e.name in changed else e for e in alone.events), decodes, ends),
    )


def _decode_within(o: Algebra, w: v.World) -> v.Term:
    """T_g against what f got at the prefill workers."""
    (service_f, _), (quantum_f, quantum_g), (charge_f, charge_g) = (
        deficit_proofs.both(o, w, "W"),
        deficit_proofs.both(o, w, "Q"),
        deficit_proofs.both(o, w, "U"),
    )
    (_, decoded), (_, left) = deficit_proofs.both(o, w, "T"), deficit_proofs.both(o, w, "h")
    return decoded <= left + v.product(w.b, service_f + deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g))


def _prefill_claim(gate: v.Functions) -> v.Claim:
    counted = (
        v.Clause("T + D <= h + b N", lambda o, w: w.h + v.product(w.b, w.N) >= w.T + w.D),
        v.Clause("N <= S", lambda o, w: w.N <= w.W),
        v.Clause("D >= 0", lambda o, w: w.D >= 0),
        v.Clause("N >= 0", lambda o, w: w.N >= 0),
    )
    begins = (
        v.Clause("T = 0, N = 0", lambda o, w: v.same(w.T, 0) & v.same(w.N, 0)),
        v.Clause("D = h, not negative", lambda o, w: v.same(w.D, w.h) & (w.D >= 0)),
    )
    return v.Claim(
        deficit.S_PREFILL,
        _prefill_system(gate),
        (*deficit_proofs.INTERVAL_STARTS, *begins),
        (*deficit_proofs.BALANCE, v.Clause("P_f = P_g", deficit_proofs.same_credit), *counted),
        (
            v.Clause("|S_f - S_g| <= 2(Q + U - 1)", deficit_proofs.gap_within),
            v.Clause("T_g <= h_g + b (S_f + 2(Q + U - 1))", _decode_within),
        ),
    )


# --- what a worker of either kind may charge --------------------------------------------------------------------------


def _rates(w: SimpleNamespace) -> Any:
    return SimpleNamespace(input=w.w_e, output=w.w_q)


@v.arithmetic(
    S_U_PREFILL,
    ("M", "w_e", "w_q", "extend", "cached", "others", "outputs"),
    *v.at_least(1, "w_e", "w_q"),
    *v.at_least(0, "extend", "cached", "others"),
    *v.at_least(2, "M"),
    v.Condition(lambda w: w.w_q <= 2 * w.w_e),
    # Beside the one that was let in last `others` requests run, of a computed token and an output each, or more.
    v.Condition(lambda w: w.extend + w.cached + w.outputs + w.others <= w.M, MEM_RESERVE),
    v.Condition(lambda w: w.outputs >= 1 + w.others),
    v.Condition(lambda w: w.outputs <= 1 + w.others, PHASES_APART),
    relaxed=True,
    attained=lambda: (v.RATES.input * 2 + v.RATES.output, prefill_charge_max(v.RATES, 3)),
)
def prefill_charges(w: SimpleNamespace, charge_max: Any = prefill_charge_max) -> v.Shown:
    """Of the requests of one client at one worker each has one output."""
    most = charge_max(_rates(w), w.M)
    tokens = w.extend + 2 * w.others
    return {
        "an output costs two inputs at most": w.others * w.w_q <= w.others * (2 * w.w_e),
        "inputs and two for each other request": tokens <= w.M - 1,
        "at the price of inputs": w.w_e * tokens <= w.w_e * (w.M - 1),
        "charge + R <= U": w.w_e * w.extend + w.w_q * w.outputs <= most,
        "U is attained": w.w_e * (w.M - 1) + w.w_q == most,
    }


@v.arithmetic(
    S_U_DECODE,
    ("M", "w_e", "w_q", "extend", "context", "outputs"),
    *v.at_least(1, "w_e", "w_q", "extend"),
    *v.at_least(0, "outputs"),
    *v.at_least(3, "M"),
    # A prompt of at least one token and the first output.
    v.Condition(lambda w: w.context >= 2, PHASES_APART),
    v.Condition(lambda w: w.extend <= 1, PHASES_APART),
    v.Condition(lambda w: w.context + w.outputs <= w.M, MEM_RESERVE),
    attained=lambda: (v.RATES.input + v.RATES.output, decode_charge_max(v.RATES, 3)),
)
def decode_charges(w: SimpleNamespace, charge_max: Any = decode_charge_max) -> v.Shown:
    """The client's requests at one worker: `context` tokens of the one that was let in last, `outputs` of all."""
    most = charge_max(_rates(w), w.M)
    return {
        "charge + R <= U": w.w_e * w.extend + w.w_q * w.outputs <= most,
        "U is attained": w.w_e + w.w_q * (w.M - 2) == most,
    }


def kernel_claims(kernel: v.Functions = global_deficit, gate: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as the cluster runs them."""
    return (_gap_claim(kernel, gate), _prefill_claim(gate))


def claims() -> tuple[v.Claim | v.ArithmeticClaim, ...]:
    """About what ships."""
    return (*kernel_claims(), prefill_charges(), decode_charges())


# --- runs that attain the bounds --------------------------------------------------------------------------------------

MEMORY = 3
"""KV tokens of a prefill worker, and of a decode worker."""
CHARGE_MAX = (prefill_charge_max(v.RATES, MEMORY) - 1) + (decode_charge_max(v.RATES, MEMORY) - 1) + 1
QUANTUM = CHARGE_MAX - 1
F, G = 0, 1


def _admitted(client: int, prompt: int, outputs: int, where: str) -> v.RunStep:
    facts = {
        "x": v.RATES.input * prompt,
        "r": v.RATES.output * outputs,
        "k": 0,
        "ready": (1, 1),
        "score": v.one(2, client, 1),
    }
    return f"admit {_PHASES[where]}", facts


def _decoded(client: int, tokens: int, where: str) -> v.RunStep:
    return f"decode {_PHASES[where]}", {"d": v.one(2, client, v.RATES.output * tokens)}


def _spends_all(client: int) -> Iterator[v.RunStep]:
    """A request of one token and two outputs goes through both phases; while it decodes, one of two tokens prefills."""
    yield _admitted(client, 1, 1, "S")
    yield _decoded(client, 1, "S")
    yield "the first token is out, and the request leaves its prefill worker", {"p": client, "x": 0}
    yield "its KV has landed at a decode worker", {"p": client}
    yield _admitted(client, 1, 1, "T")
    yield "leave a worker's queue", {"p": client}
    yield _admitted(client, 2, 1, "S")
    yield _decoded(client, 1, "S")
    yield _decoded(client, 1, "T")


def witnesses() -> tuple[v.Witness, ...]:
    """The run of S-gap: 20, both phases together, on a prefill and a decode worker of three tokens each.

    From (1 - U, Q): f spends what it has twice, and g waits.
    """
    parameters: v.Values = {"Q": (QUANTUM,) * 2, "U": (CHARGE_MAX,) * 2, "f": F, "g": G}
    refill: v.RunStep = ("refill", {})
    arrivals: list[v.RunStep] = [("arrive at a worker", {"p": client}) for client in (F, G)]
    steps = (*arrivals, refill, *_spends_all(G), (v.BEGIN, {}), *_spends_all(F), refill, refill, *_spends_all(F))
    bound = deficit.gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return (v.Witness(v.claim_named("S-gap", claims()), 2, parameters, steps, bound, {"q0": "q"}),)


# --- seeded bugs ------------------------------------------------------------------------------------------------------


def _output_free(rates: Rates, kv_capacity_tokens: int) -> int:
    return prefill_charge_max(rates, kv_capacity_tokens) - rates.output


def _context_free(rates: Rates, kv_capacity_tokens: int) -> int:
    return decode_charge_max(rates, kv_capacity_tokens + 1)


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (
        v.Bug("a prefill worker's first token is left out", prefill_charges(_output_free)),
        v.Bug("a token too much is left for outputs", decode_charges(_context_free)),
    )


# --- gates of their own -----------------------------------------------------------------------------------------------
# A prefill and a decode worker of 16 tokens of KV each, a quantum of 4.  A client is ``[prompt, output]`` and keeps
# eight requests in the queue of the prefill worker, more than that one can let in, so that it waits throughout.  Each
# tick both workers take a step, and KV is there in the same tick, in the order in which it was staged.

CAPACITY, SMALL_QUANTUM, WAITING = 16, 4, 8
RATES = Rates()
_BATCHING = Chunked(max_batched_tokens=CAPACITY, max_running=8)
_GATED = DLPM(gate=DeficitGate(rates=RATES, quantum=SMALL_QUANTUM), batching=_BATCHING)
_SHARED = DLPMGlobal(gate=GlobalDeficitGate(rates=RATES, quantum=SMALL_QUANTUM), batching=_BATCHING)
_OPEN = FCFS(batching=_BATCHING)
PAIR = (Client(F, "f"), Client(G, "g"))

Gates = Literal["prefill", "each", "shared"]
POLICIES: Mapping[Gates, tuple[AnyLocalPolicy, AnyLocalPolicy]] = {
    "prefill": (_GATED, _OPEN),
    "each": (_GATED, _GATED),
    "shared": (_SHARED, _SHARED),
}
"""Where gates stand: at the prefill worker alone, one of its own at each worker, or one deficit for both."""


class _Sharing(WorkerPlay):
    """A worker whose policy checks out what both share, and puts it back."""

    def __init__(self, policy: AnyLocalPolicy, worker: WorkerState, credit: list[Any]) -> None:
        super().__init__(policy, worker)
        self._credit = credit

    def decide(self, now_ns: int) -> Any:
        return self._shared(super().decide, now_ns)

    def follow(self, done: transitions.Step, decided: bool = False) -> list[Event]:
        events: list[Event] = self._shared(super().follow, done, decided)
        return events

    def _shared(self, act: Callable[..., Any], *seen: Any) -> Any:
        sharing = self.policy.shared_credit
        if sharing is None:
            return act(*seen)
        self.state = sharing.checkout(self.state, self._credit[0], self.worker.worker)
        done = act(*seen)
        self._credit[0] = sharing.commit(self._credit[0], self.state, self.worker.worker)
        return done


class Split:
    """A prefill and a decode worker, and what each charged each client."""

    def __init__(self, gates: Gates) -> None:
        policies = POLICIES[gates]
        shared = policies[0].shared_credit
        credit = [None if shared is None else shared.credit()]
        self.workers = [_Sharing(policy, WorkerState(i, CAPACITY), credit) for i, policy in enumerate(policies)]
        self.service = [[0, 0], [0, 0]]
        """By client, then worker."""
        self._planned: dict[int, int] = {}

    def arrives(self, request: Request, output_tokens: int, now_ns: int) -> None:
        """A request comes for its prefill."""
        prefill = self.workers[0]
        prefill.follow(transitions.arrive(prefill.worker, request, output_tokens, now_ns, prefill_only=True))

    def step(self, now_ns: int) -> None:
        """Prefill, hand over what fits, and decode."""
        computed = self.workers[0].step(now_ns)
        self._charge(0, computed)
        moved = self._hand_over(now_ns)
        decoded = self.workers[1].step(now_ns)
        self._charge(1, decoded)
        decode = self.workers[1]
        if decode.worker.transit.landed and not (computed or moved or decoded):
            # KV that waits for credit keeps out requests that have some: the youngest is computed again.
            waiting = decode.worker.queue[transitions.youngest_landed(decode.worker)]
            decode.follow(transitions.again(decode.worker, waiting, now_ns))

    def _hand_over(self, now_ns: int) -> int:
        """Send what is staged, as long as it fits; return how many requests came."""
        moved = 0
        prefill, decode = self.workers
        for request_id, outgoing in sorted(prefill.worker.transit.outgoing.items()):
            waiting = outgoing.waiting
            left = waiting.request.max_output_tokens - waiting.generated_tokens
            try:
                decode.worker = transitions.reserve(decode.worker, request_id, outgoing.waiting.kv_tokens + left)
            except NoRoomError:
                break
            came = (waiting.generated_tokens, waiting.kv_tokens)
            request = replace(waiting.request, arrival_ns=now_ns)
            decode.follow(transitions.receive(decode.worker, request, waiting.output_tokens, now_ns, *came))
            prefill.worker = transitions.sent(prefill.worker, request_id)
            moved += 1
        return moved

    def _charge(self, worker: int, happened: list[Event]) -> None:
        for event in happened:
            if isinstance(event, Admitted):
                self._planned[event.request_id] = event.extend_tokens
                self.service[event.client][worker] += event.extend_tokens * RATES.input
            elif isinstance(event, Settled):
                more = event.extend_tokens - self._planned[event.request_id]
                self.service[event.client][worker] += more * RATES.input
            elif isinstance(event, Decoded):
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    self.service[client][worker] += tokens * RATES.output


def played(w: SimpleNamespace) -> Iterator[tuple[int, int, bool]]:
    """After each tick: what f and g have been charged by both workers, and whether both wait for their prefill."""
    split, sent = Split(w.gates), 0
    for now in range(w.ticks):
        queue = split.workers[0].worker.queue
        for client, (prompt, output) in enumerate(w.clients):
            for _ in range(WAITING - sum(waiting.request.client == client for waiting in queue.values())):
                keys = [-1 - sent * CAPACITY - i for i in range(prompt)]
                split.arrives(Request(sent, client, now, Prompt.from_keys(keys), output), output, now)
                sent += 1
        split.step(now)
        waits = {each.request.client for each in split.workers[0].worker.queue.values()}
        yield sum(split.service[F]), sum(split.service[G]), {F, G} <= waits


def bound_cost(gates: Gates) -> int:
    """What the gates' bounds come to: the sum of both workers' where each has its own, and S-gap's for a shared one."""
    prefill, decode = POLICIES[gates]
    limits = prefill.guarantee.limits(CAPACITY, CAPACITY)
    if gates == "shared":
        limits = attrs.evolve(limits, workers=2, prefill_workers=1)
        shared = prefill.guarantee.service_gap_bound(PAIR, limits)
        assert shared is not None
        return shared
    bounds = [policy.guarantee.service_gap_bound(PAIR, limits) for policy in (prefill, decode)]
    return sum(bound or 0 for bound in bounds)


def gap_max(w: SimpleNamespace) -> int | None:
    """The largest difference over any interval; None if a client ever waits for no prefill."""
    low = high = widest = 0
    for f, g, both_wait in played(w):
        if not both_wait:
            return None
        widest = max(widest, f - g - low, high - (f - g))
        low, high = min(low, f - g), max(high, f - g)
    return widest


def within(w: SimpleNamespace) -> v.Shown:
    """Whether the gap stays within what the gates' own bounds add up to."""
    gap = gap_max(w)
    return {} if gap is None else {"|(S_f + T_f) - (S_g + T_g)| <= bound": gap <= bound_cost(w.gates)}


def world(gates: Gates, ticks: int) -> Mapping[str, Any]:
    """f asks for two tokens at a time, g for eight, after prompts of the same length."""
    return {"gates": gates, "ticks": ticks, "clients": [[2, 2], [2, 8]]}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Where decode service is charged to no deficit of the prefill gate, nothing bounds it."""
    return (
        v.refuted(
            "F-S-1",
            "a fair gate at the prefill workers bounds what two clients receive in both phases, if both always wait "
            "there",
            "folklore of split phases",
            within,
            world("prefill", 200),
            variant="DLPM at the prefill worker, first come first served at the decode worker",
            instead="S-gap",
            text="prompts of 2 tokens each, outputs of 2 and of 8: prefill is shared evenly, and decoding one to seven",
        ),
        v.refuted(
            "F-S-2",
            "a fair gate at each worker of both phases bounds it, by the sum of the gates' bounds",
            "this library; the natural composition of DLPM with split phases",
            within,
            world("each", 400),
            variant="DLPM at each worker: a client that waits for prefills need not wait where outputs are decoded",
            instead="S-gap",
            text="the same prompts and outputs: the decode worker's gate never holds back g, since f does not wait "
            "there",
        ),
    )
