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
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import attrs
from msgspec.structs import replace

from fairsched.model.events import Event
from fairsched.model.plan import ClusterPlan, Dispatch, Migration, Overlap
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.model.view import ClusterView, Role, WorkerLoad
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.orders import predicted
from fairsched.policies.routers.splitwise.pools import P_SW_1, Machine, Pair, Pools
from fairsched.policies.validators import not_negative, one_of, positive

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
