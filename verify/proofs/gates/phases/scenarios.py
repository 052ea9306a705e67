"""What is false of split phases without one deficit for both: worlds in which shipped workers and gates show it.

A prefill and a decode worker of 16 tokens of KV each, a quantum of 4.  A client is ``[prompt, output]`` and keeps eight
requests in the queue of the prefill worker, more than that one can let in, so that it waits throughout.  Each tick both
workers take a step, and KV is there in the same tick, in the order in which it was staged.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Decoded, Event, Settled
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.worker import NoRoomError, WorkerState
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS, DLPMGlobal
from fairsched.policies.gates import DeficitGate, GlobalDeficitGate
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import RefutedClaim, Shown, refuted

CAPACITY, QUANTUM, WAITING = 16, 4, 8
RATES = Rates()
F, G = 0, 1
_BATCHING = Chunked(max_batched_tokens=CAPACITY, max_running=8)
_GATED = DLPM(gate=DeficitGate(rates=RATES, quantum=QUANTUM), batching=_BATCHING)
_SHARED = DLPMGlobal(gate=GlobalDeficitGate(rates=RATES, quantum=QUANTUM), batching=_BATCHING)
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
        self._check_out()
        plan = super().decide(now_ns)
        self._commit()
        return plan

    def follow(self, done: transitions.Step, decided: bool = False) -> list[Event]:
        self._check_out()
        events = super().follow(done, decided)
        self._commit()
        return events

    def _check_out(self) -> None:
        sharing = self.policy.shared_credit
        if sharing is not None:
            self.state = sharing.checkout(self.state, self._credit[0], self.worker.worker)

    def _commit(self) -> None:
        sharing = self.policy.shared_credit
        if sharing is not None:
            self._credit[0] = sharing.commit(self._credit[0], self.state, self.worker.worker)


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
        limits = type(limits)(**{**_fields(limits), "workers": 2, "prefill_workers": 1})
        shared = prefill.guarantee.service_gap_bound(PAIR, limits)
        assert shared is not None
        return shared
    bounds = [policy.guarantee.service_gap_bound(PAIR, limits) for policy in (prefill, decode)]
    return sum(bound or 0 for bound in bounds)


def _fields(limits: Any) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in type(limits).__annotations__}


def gap_max(w: SimpleNamespace) -> int | None:
    """The largest difference over any interval; None if a client ever waits for no prefill."""
    low = high = widest = 0
    for f, g, both_wait in played(w):
        if not both_wait:
            return None
        widest = max(widest, f - g - low, high - (f - g))
        low, high = min(low, f - g), max(high, f - g)
    return widest


def within(w: SimpleNamespace) -> Shown:
    """Whether the gap stays within what the gates' own bounds add up to."""
    gap = gap_max(w)
    return {} if gap is None else {"|(S_f + T_f) - (S_g + T_g)| <= bound": gap <= bound_cost(w.gates)}


def world(gates: Gates, ticks: int) -> Mapping[str, Any]:
    """f asks for two tokens at a time, g for eight, after prompts of the same length."""
    return {"gates": gates, "ticks": ticks, "clients": [[2, 2], [2, 8]]}


def claims() -> tuple[()]:
    """What is true stands in `phases`."""
    return ()


def refutations() -> tuple[RefutedClaim, ...]:
    """Where decode service is charged to no deficit of the prefill gate, nothing bounds it."""
    return (
        refuted(
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
        refuted(
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
