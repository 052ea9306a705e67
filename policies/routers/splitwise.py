"""Splitwise: a prompt machine and a token machine for each request, chosen together when it comes.

Source: Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (ISCA'24), sections on the
cluster-level scheduler and on the transfer of KV; where the paper is silent, its released simulator.

Rule.  The prompt goes to the prompt machine with the fewest pending tokens.  Where its queue would be long, the mixed
pool is asked, and where that is no better a token machine gets it and is in the mixed pool until the prompt is done.
The output goes to the token machine with the most free memory; where the request does not fit, the mixed pool is asked,
then a prompt machine.  If all are full, the best machine of its own pool gets it.  Prompt and output may be given to
one machine, and then nothing is sent.

The target is named with the dispatch, so that KV is sent layer by layer while it is computed; prompts below
`layers_from_tokens` are sent when they are computed, since for them the synchronisation costs more than it hides.
A machine that was in the mixed pool for `repurpose_s` belongs to the other pool from then on; the last of a kind stays.

Silent in the paper and decided here: the queue is long if it is not empty and would exceed 8,192 tokens (the code's
rule); a token machine is full if what its requests may come to hold exceeds its memory; 10 minutes are a long time; a
transfer that failed is tried once more, with another machine, and then the request stays where its prompt was computed.

**Pools** of machines, and the pairs of machines that requests were given, are what Splitwise's cluster scheduler knows.

A machine has an origin, prompt or token work, and gets work of the opposite kind only when its own pool's machines and
the mixed pool have no room.  It is in the mixed pool exactly as long as it has such work (P-SW-1): the pool is no label
that is moved, but a function of the origin and of what was assigned and is not done.

A request is with its *pair*: the machine of its prompt, and the machine of its output, both chosen when it comes.
Prompt work ends with the prompt's last chunk, token work with the request.  Counts follow the events, so they are those
of now, or of the last report; each is known from the decision on and not only when a machine reports it.

An event costs O(1), but `WorkerLeft` O(requests).
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, Overlap, Role, WorkerLoad
from fairsched.model.events import Event
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.orders import predicted
from fairsched.policies.validators import not_negative, one_of, positive

# --- pools ------------------------------------------------------------------------------------------------------------


P_SW_1 = Theorem(
    "P-SW-1",
    "each machine is in one pool, in the mixed pool exactly while it has work of the kind opposite to its origin, and "
    "so in its own again when that is done",
    "Splitwise (ISCA'24), section on the cluster-level scheduler",
)


def pool_of(origin: Role, prompts: int, outputs: int) -> Role:
    """Return the pool of a machine: its origin's ("prefill" or "decode") without work of the other kind, else "both".

    >>> pool_of("prefill", 3, 0), pool_of("prefill", 3, 1), pool_of("decode", 0, 9), pool_of("both", 0, 0)
    ('prefill', 'both', 'decode', 'both')
    """
    opposite = prompts if origin == "decode" else outputs
    return "both" if opposite > 0 else origin


class Machine(msgspec.Struct, frozen=True, gc=False):
    """A machine: its origin (None until it was seen), and the work that it was given and that is not done.

    `prompts` are to be computed, `prompt_tokens` in all; `outputs` are to be decoded, and come to hold `memory_tokens`.
    It is in the mixed pool since `mixed_ns`, for a machine of one kind.
    """

    origin: Role | None = None
    prompts: int = 0
    prompt_tokens: int = 0
    outputs: int = 0
    memory_tokens: int = 0
    mixed_ns: int | None = None

    @property
    def pool(self) -> Role:
        return pool_of(self.origin or "both", self.prompts, self.outputs)

    @property
    def pending_tokens(self) -> int:
        """Tokens that it has to compute next: of its prompts, and one for each request that decodes."""
        return self.prompt_tokens + self.outputs

    def at(self, now_ns: int) -> "Machine":
        """Return the machine with the time at which it became mixed, now if it was not."""
        mixed = self.origin in ("prefill", "decode") and self.pool == "both"
        if mixed == (self.mixed_ns is not None):
            return self
        return replace(self, mixed_ns=now_ns if mixed else None)


class Pair(msgspec.Struct, frozen=True, gc=False):
    """The machines of a request's prompt and of its output; `NOWHERE` for one that is gone.

    Of its prompt `prompt_tokens` are to be computed, and its output counts with `memory_tokens`.  It is at the machine
    of its `prompt`, `staged` there with its first token, or where its `output` is decoded.  Its transfer `is_sent` if
    an engine was told the target; `failures` transfers failed, the last one to `failed`.
    """

    request: Request
    prompt: int
    output: int
    prompt_tokens: int
    memory_tokens: int
    stage: Literal["prompt", "staged", "output"] = "prompt"
    is_sent: bool = True
    failures: int = 0
    failed: int = ev.NOWHERE


class Pools(msgspec.Struct, frozen=True):
    """Machines by number, pairs by request, requests that wait to be placed (with the tokens that they have) in their
    order, and requests that are staged and not sent, in theirs."""

    machines: Map[int, Machine] = Map()
    pairs: Map[int, Pair] = Map()
    waiting: tuple[tuple[Request, int], ...] = ()
    unsent: tuple[int, ...] = ()

    # --- what a policy decides --------------------------------------------------------------------------------------

    def seen(self, worker: int, role: Role, now_ns: int) -> "Pools":
        """Return a copy with a machine of that role, unless its origin is known."""
        machine = self.machines.get(worker, Machine())
        if machine.origin is not None:
            return self
        return replace(self, machines=self.machines.set(worker, replace(machine, origin=role).at(now_ns)))

    def paired(self, pair: Pair, now_ns: int) -> "Pools":
        """Return a copy with a request that is placed."""
        pools = _work(self, pair.prompt, now_ns, prompts=1, prompt_tokens=pair.prompt_tokens)
        pools = _work(pools, pair.output, now_ns, outputs=1, memory_tokens=pair.memory_tokens)
        return replace(pools, pairs=pools.pairs.set(pair.request.id, pair))

    def sent(self, request_id: int, output: int, now_ns: int) -> "Pools":
        """Return a copy with a staged request on its way to the machine that decodes it."""
        pair = self.pairs[request_id]
        pools = _decoding_at(self, pair, output, now_ns)
        pools = _known(pools, replace(pools.pairs[request_id], is_sent=True))
        return replace(pools, unsent=tuple(each for each in pools.unsent if each != request_id))

    def repurposed(self, worker: int, now_ns: int) -> "Pools":
        """Return a copy with a machine whose origin is the other kind from now on."""
        machine = self.machines[worker]
        origin: Role = "decode" if machine.origin == "prefill" else "prefill"
        machine = replace(machine, origin=origin, mixed_ns=None).at(now_ns)
        return replace(self, machines=self.machines.set(worker, machine))

    # --- what happens -----------------------------------------------------------------------------------------------

    def observed(self, event: ev.Event) -> "Pools":
        """Observe an event; itself if that is about nothing that it knows."""
        match event:
            case ev.Arrived(worker=worker, request=request) if worker == ev.NOWHERE:
                pools = _without(self, request.id, event.time_ns)
                return replace(pools, waiting=(*pools.waiting, (request, event.generated_tokens)))
            case ev.Arrived():
                return _arrived(self, event)
            case ev.Admitted(request_id=request_id):
                return _computes(self, request_id, event.worker, event.extend_tokens, event.time_ns)
            case ev.Prefilled(request_id=request_id):
                return _computes(self, request_id, event.worker, event.remaining_tokens, event.time_ns)
            case ev.Migrated(request_id=request_id) if request_id in self.pairs:
                return _left(self, self.pairs[request_id], event)
            case ev.TransferFailed(request_id=request_id) if request_id in self.pairs:
                return _failed(self, self.pairs[request_id], event.target)
            case ev.Finished() | ev.Cancelled() | ev.Rejected():
                return _without(self, event.request_id, event.time_ns)
            case ev.WorkerJoined(worker=worker):
                return replace(self, machines=self.machines.set(worker, self.machines.get(worker, Machine())))
            case ev.WorkerLeft(worker=worker):
                return _bereft(self, worker)
        return self

    def check(self) -> None:
        """Raise `AssertionError` unless counts are those of the pairs, and pools those of the counts."""
        work: dict[int, list[int]] = {worker: [0, 0, 0, 0] for worker in self.machines}
        for request_id, pair in self.pairs.items():
            assert pair.request.id == request_id
            if pair.prompt_tokens and pair.prompt != ev.NOWHERE:
                work[pair.prompt][0] += 1
                work[pair.prompt][1] += pair.prompt_tokens
            if pair.output != ev.NOWHERE:
                work[pair.output][2] += 1
                work[pair.output][3] += pair.memory_tokens
        for worker, machine in self.machines.items():
            counted = [machine.prompts, machine.prompt_tokens, machine.outputs, machine.memory_tokens]
            assert counted == work[worker], (worker, counted, work[worker])
            # P-SW-1: the pool is the origin's exactly if there is no work of the other kind.
            opposite = {"prefill": machine.outputs, "decode": machine.prompts}.get(machine.origin or "both")
            if opposite is not None:
                assert machine.pool == ("both" if opposite else machine.origin)
                assert (machine.mixed_ns is not None) == (opposite > 0)
        assert len(set(self.unsent)) == len(self.unsent)
        for request_id in self.unsent:
            pair = self.pairs[request_id]
            assert pair.stage == "staged"
            assert not pair.is_sent
        held = {request.id for request, _ in self.waiting}
        assert len(held) == len(self.waiting)
        assert not held & set(self.pairs)


def _known(pools: Pools, pair: Pair) -> Pools:
    return replace(pools, pairs=pools.pairs.set(pair.request.id, pair))


def _work(
    pools: Pools,
    worker: int,
    now_ns: int,
    *,
    prompts: int = 0,
    prompt_tokens: int = 0,
    outputs: int = 0,
    memory_tokens: int = 0,
) -> Pools:
    """Count so much more work (or less) at a machine."""
    machine = pools.machines.get(worker)
    if machine is None:
        return pools
    machine = replace(
        machine,
        prompts=machine.prompts + prompts,
        prompt_tokens=machine.prompt_tokens + prompt_tokens,
        outputs=machine.outputs + outputs,
        memory_tokens=machine.memory_tokens + memory_tokens,
    ).at(now_ns)
    return replace(pools, machines=pools.machines.set(worker, machine))


def _computing_at(pools: Pools, pair: Pair, worker: int, tokens: int, now_ns: int) -> Pools:
    """Note that the request has so many tokens of its prompt to compute, at that machine."""
    if pair.prompt_tokens:
        pools = _work(pools, pair.prompt, now_ns, prompts=-1, prompt_tokens=-pair.prompt_tokens)
    if tokens:
        pools = _work(pools, worker, now_ns, prompts=1, prompt_tokens=tokens)
    return _known(pools, replace(pair, prompt=worker, prompt_tokens=tokens))


def _decoding_at(pools: Pools, pair: Pair, worker: int, now_ns: int) -> Pools:
    """Note that the request is decoded at that machine."""
    if worker == pair.output:
        return pools
    pools = _work(pools, pair.output, now_ns, outputs=-1, memory_tokens=-pair.memory_tokens)
    pools = _work(pools, worker, now_ns, outputs=1, memory_tokens=pair.memory_tokens)
    return _known(pools, replace(pair, output=worker))


def _arrived(pools: Pools, event: ev.Arrived) -> Pools:
    """Note a request that came to a machine: for its prompt, perhaps not where it was sent, or to be decoded."""
    pair = pools.pairs.get(event.request.id)
    if pair is None or event.worker not in pools.machines:
        return pools
    if pair.stage == "prompt":
        # An engine sends it elsewhere if a machine takes no requests; then it does not know the target either.
        if event.worker == pair.prompt:
            return pools
        splits = pair.prompt != pair.output
        pools = _computing_at(pools, pair, event.worker, pair.prompt_tokens, event.time_ns)
        pair = pools.pairs[event.request.id]
        if splits:
            return _known(pools, replace(pair, is_sent=False))
        return _decoding_at(pools, pair, event.worker, event.time_ns)
    pools = _decoding_at(pools, pair, event.worker, event.time_ns)
    pair = pools.pairs[event.request.id]
    left = event.request.prompt.tokens + event.generated_tokens - event.kv_tokens
    # All but the last token came with its KV, or the prompt is computed again.
    pools = _computing_at(pools, pair, event.worker, left if left > 1 else 0, event.time_ns)
    pools = _known(pools, replace(pools.pairs[event.request.id], stage="output"))
    return replace(pools, unsent=tuple(each for each in pools.unsent if each != event.request.id))


def _computes(pools: Pools, request_id: int, worker: int, tokens: int, now_ns: int) -> Pools:
    """Note how many tokens a request with a prompt to compute has left of it."""
    pair = pools.pairs.get(request_id)
    if pair is None or not pair.prompt_tokens or worker != pair.prompt or tokens == pair.prompt_tokens:
        return pools
    return _computing_at(pools, pair, worker, tokens, now_ns)


def _left(pools: Pools, pair: Pair, event: ev.Migrated) -> Pools:
    """Note a request that left a batch or queue: it is staged if its KV stays, and begins anew elsewhere if not."""
    if not event.kv_tokens:
        return _known(pools, replace(pair, stage="output"))
    pools = _computing_at(pools, pair, event.worker, 0, event.time_ns)
    pools = _known(pools, replace(pools.pairs[event.request_id], stage="staged"))
    return pools if pair.is_sent else replace(pools, unsent=(*pools.unsent, event.request_id))


def _failed(pools: Pools, pair: Pair, target: int) -> Pools:
    """Note a transfer that failed: it is sent again when it is staged."""
    request_id = pair.request.id
    pools = _known(pools, replace(pair, is_sent=False, failures=pair.failures + 1, failed=target))
    if pair.stage != "staged" or request_id in pools.unsent:
        return pools
    return replace(pools, unsent=(*pools.unsent, request_id))


def _without(pools: Pools, request_id: int, now_ns: int) -> Pools:
    """Forget the request, which is over or begins anew."""
    pair = pools.pairs.get(request_id)
    if pair is None:
        waiting = tuple(held for held in pools.waiting if held[0].id != request_id)
        return pools if len(waiting) == len(pools.waiting) else replace(pools, waiting=waiting)
    pools = _computing_at(pools, pair, pair.prompt, 0, now_ns)
    pools = _decoding_at(pools, pools.pairs[request_id], ev.NOWHERE, now_ns)
    unsent = tuple(each for each in pools.unsent if each != request_id)
    return replace(pools, pairs=pools.pairs.delete(request_id), unsent=unsent)


def _bereft(pools: Pools, worker: int) -> Pools:
    """Forget a machine that is gone; requests that had it for one phase have none for it."""
    if worker not in pools.machines:
        return pools
    pairs = pools.pairs
    for request_id, pair in pools.pairs.items():
        if worker in (pair.prompt, pair.output):
            prompt = ev.NOWHERE if pair.prompt == worker else pair.prompt
            output = ev.NOWHERE if pair.output == worker else pair.output
            pairs = pairs.set(request_id, replace(pair, prompt=prompt, output=output))
    return replace(pools, pairs=pairs, machines=pools.machines.delete(worker))


EQUAL_LAYERS = Assumption(
    "EqualLayers", "All layers take as long to compute and to send, and synchronisation takes no time."
)
P_SW_3 = Theorem(
    "P-SW-3",
    "of a transfer of t beside a prefill of p in L layers max(t/L, t - p(L - 1)/L) is left when the prefill is over; "
    "that is at most t, and t for one layer",
    "Splitwise (ISCA'24), layer-wise transfer; the formula is this library's",
    (EQUAL_LAYERS,),
    bound="t",
    scope=Scope.BOUNDED,
)


def visible_ns(transfer_ns: int, prefill_ns: int, layers: int) -> int:
    """Return what is left of a transfer after the prefill beside which it went layer by layer, rounded up.

    >>> visible_ns(20_500_000, 253_000_000, 70), visible_ns(20_500_000, 253_000_000, 1)
    (292858, 20500000)
    """
    hidden_ns = prefill_ns * (layers - 1) // layers
    return max(-(-transfer_ns // layers), transfer_ns - hidden_ns)


Candidate = tuple[WorkerLoad, Machine]
FAILURES_MAX = 2
"""After so many failed transfers a request goes on where its prompt was computed."""
REPURPOSE_S: int | None = 600
NS_PER_S = 1_000_000_000


@attrs.frozen
class Splitwise(ClusterPolicy[Pools]):
    """Pairs of machines by pending tokens and memory.  A decision costs O(workers) for each request, an event O(1)."""

    name: ClassVar[str] = "splitwise"
    splits_phases: ClassVar[bool] = True
    state_type: ClassVar[type[Pools]] = Pools
    follows_decoding: ClassVar[bool] = False
    theorems: ClassVar[tuple[Theorem, ...]] = (P_SW_1, P_SW_3)

    threshold_tokens: int = attrs.field(default=8_192, validator=positive)
    """A queue of prompts with more tokens is long."""
    layers_from_tokens: int = attrs.field(default=512, validator=not_negative)
    """Prompts of at least so many tokens are sent layer by layer."""
    repurpose_s: int | None = attrs.field(default=REPURPOSE_S, validator=attrs.validators.optional(not_negative))
    """After so long in the mixed pool a machine belongs to the other pool; none: never."""
    reserve: Literal["static", "optimistic"] = attrs.field(default="static", validator=one_of("static", "optimistic"))
    """What a transfer reserves beside its KV, room for the longest output or none; without, a request counts with its
    predicted output."""

    # --- rules that papers and code have otherwise --------------------------------------------------------------------

    def is_long(self, machine: Machine, tokens: int) -> bool:
        """Return whether a machine's queue is too long for a prompt of so many tokens."""
        return machine.prompts > 0 and machine.pending_tokens + tokens > self.threshold_tokens

    def is_full(self, candidate: Candidate, tokens: int) -> bool:
        """Return whether a machine has no room for a request that may come to hold so many tokens."""
        load, machine = candidate
        return machine.memory_tokens + tokens > load.kv_capacity_tokens

    def output_key(self, candidate: Candidate) -> tuple[int, int]:
        """Order machines for outputs: the smallest first, of equals the one with the lowest number."""
        load, machine = candidate
        return machine.memory_tokens - load.kv_capacity_tokens, load.worker

    # --- decisions --------------------------------------------------------------------------------------------------

    def observe(self, state: Pools, event: Event) -> Pools:
        return state.observed(event)

    def check(self, state: Pools) -> None:
        state.check()

    def decide(self, state: Pools, view: ClusterView) -> tuple[ClusterPlan, Pools]:
        """Place what waits, in order, and send again what failed."""
        if not view.workers or not (state.waiting or state.unsent):
            return ClusterPlan(), state
        for load in view.workers:
            machine = state.machines.get(load.worker)
            if machine is None or machine.origin is None:
                state = state.seen(load.worker, load.role, view.now_ns)
        state = self._repurposed(state, view.now_ns)
        dispatches: list[Dispatch] = []
        migrations: list[Migration] = []
        for request_id in state.unsent:
            migration, state = self._sent_again(state, request_id, view)
            migrations.append(migration)
        for request, generated in state.waiting:
            pair, state = self._paired(state, request, generated, view)
            splits = pair.prompt != pair.output
            dispatches.append(Dispatch(request.id, pair.prompt, prefill_only=splits))
            if splits:
                layers = pair.prompt_tokens >= self.layers_from_tokens
                migrations.append(self._migration(pair, generated, pair.output, "layers" if layers else "none"))
        return ClusterPlan(tuple(dispatches), tuple(migrations)), replace(state, waiting=())

    def _paired(self, state: Pools, request: Request, generated: int, view: ClusterView) -> tuple[Pair, Pools]:
        """Choose the machines of a request that has so many tokens already; all of it is computed anew."""
        tokens, memory = request.prompt.tokens + generated, self._memory(request)
        able = self._able(state, request, view)

        def is_long(candidate: Candidate) -> bool:
            return self.is_long(candidate[1], tokens)

        def is_full(candidate: Candidate) -> bool:
            return self.is_full(candidate, memory)

        prompt = _first(able, "prefill", (_prompt_key, is_long), self.output_key)
        output = _first(able, "decode", (self.output_key, is_full), _prompt_key)
        pair = Pair(request, prompt, output, tokens, memory)
        return pair, state.paired(pair, view.now_ns)

    def _sent_again(self, state: Pools, request_id: int, view: ClusterView) -> tuple[Migration, Pools]:
        """Send a staged request to another machine; after the second failure it goes on where it is."""
        pair = state.pairs[request_id]
        output = pair.prompt
        if pair.failures < FAILURES_MAX:
            memory, able = pair.memory_tokens, self._able(state, pair.request, view)
            others = [each for each in able if each[0].worker != pair.failed]
            if others:
                output = _first(
                    others, "decode", (self.output_key, lambda each: self.is_full(each, memory)), _prompt_key
                )
        state = state.sent(request_id, output, view.now_ns)
        return self._migration(state.pairs[request_id], 1, output, "none"), state

    def _migration(self, pair: Pair, generated: int, target: int, overlap: Overlap) -> Migration:
        left = max(pair.request.max_output_tokens - max(generated, 1), 0) if self.reserve == "static" else 0
        return Migration(
            pair.request.id, pair.prompt, target, with_kv=True, reserved_output_tokens=left, overlap=overlap
        )

    def _memory(self, request: Request) -> int:
        """KV that a request may come to hold where it decodes."""
        output = request.max_output_tokens if self.reserve == "static" else predicted(request)
        return request.prompt.tokens + output

    def _able(self, state: Pools, request: Request, view: ClusterView) -> list[Candidate]:
        """Return the machines that could hold the request alone, all of them if none could: then one rejects it."""
        whole = request.prompt.tokens + request.max_output_tokens
        able = [load for load in view.workers if load.kv_capacity_tokens >= whole]
        return [(load, state.machines[load.worker]) for load in able or view.workers]

    def _repurposed(self, state: Pools, now_ns: int) -> Pools:
        """Move machines to the other pool that were mixed for long, and are not the last of their kind."""
        if self.repurpose_s is None:
            return state
        since_ns = now_ns - self.repurpose_s * NS_PER_S
        long = [i for i, each in state.machines.items() if each.mixed_ns is not None and each.mixed_ns <= since_ns]
        for worker in sorted(long):
            origin = state.machines[worker].origin
            if sum(other.origin == origin for other in state.machines.values()) > 1:
                state = state.repurposed(worker, now_ns)
        return state


def _prompt_key(candidate: Candidate) -> tuple[int, int]:
    load, machine = candidate
    return machine.pending_tokens, load.worker


def _first(
    able: Sequence[Candidate],
    own: Role,
    rule: tuple[Callable[[Candidate], tuple[int, int]], Callable[[Candidate], bool]],
    opposite_key: Callable[[Candidate], tuple[int, int]],
) -> int:
    """Return the best machine of the first pool that has room: its own, the mixed one, the opposite one.

    `rule` orders machines for this kind of work, and says of the best of a pool whether that has no room.  A machine of
    the opposite pool is the best one for its own kind of work, so that it has the least of it.  Without one, all share.
    """
    key, lacks_room = rule
    pools: dict[Role, list[Candidate]] = {"prefill": [], "decode": [], "both": []}
    for candidate in able:
        pools[candidate[1].pool].append(candidate)
    for pool in (own, "both"):
        if pools[pool] and not lacks_room(best := min(pools[pool], key=key)):
            return best[0].worker
    opposite = pools["decode" if own == "prefill" else "prefill"]
    best = min(opposite, key=opposite_key) if opposite else min(able, key=key)
    return best[0].worker


@attrs.frozen
class SplitwisePrinted(Splitwise):
    """Both machines by pending tokens and one threshold, as the paper's text has it.  For comparison.

    A request that decodes counts as one token.  So no token machine is ever full in this sense, memory is not looked
    at, and a prompt of any length is added to a queue that is at the threshold.
    """

    name: ClassVar[str] = "splitwise-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    def is_long(self, machine: Machine, tokens: int) -> bool:
        return machine.pending_tokens > self.threshold_tokens

    def is_full(self, candidate: Candidate, tokens: int) -> bool:
        return candidate[1].pending_tokens > self.threshold_tokens

    def output_key(self, candidate: Candidate) -> tuple[int, int]:
        return _prompt_key(candidate)


@attrs.frozen
class SplitwiseReleased(Splitwise):
    """The rules of the released simulator: a token machine is full when its memory is, and none is repurposed.

    Source: Mutinifni/splitwise-sim, read in a snapshot of April 2024.  A machine takes requests up to and beyond its
    memory, whatever the next one needs; machines are compared by what is scheduled there, not by what is free.
    """

    name: ClassVar[str] = "splitwise-released"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    repurpose_s: int | None = attrs.field(default=None, validator=attrs.validators.optional(not_negative))

    def is_full(self, candidate: Candidate, tokens: int) -> bool:
        load, machine = candidate
        return machine.memory_tokens >= load.kv_capacity_tokens

    def output_key(self, candidate: Candidate) -> tuple[int, int]:
        load, machine = candidate
        return machine.memory_tokens, load.worker
