"""E2: exploit a prefix that a worker holds, or explore for the worker where the request costs least.

Source: Preble (Srivatsa et al., ICLR'25), sections 3.2 and 3.3, algorithms 1 and 2; `E2Printed` keeps what we changed.

A request of n tokens of which worker i holds the first c_i exploits if less is missed than is cached at the best worker
(n - c < c, strictly), and goes to the cheapest of those that hold c; otherwise it goes to the cheapest of all.  Costs
are nanoseconds of work, L + M + P:

    L   of all requests sent to the worker in the last H, what was missed of their prompts and an output as long as the
        mean there (`load_mode` outstanding: of those that have not ended);
    M   of what it would evict to make room, each part's prefill times the share of its requests in H that hit the part;
    P   what is missed of the request itself.

Then three corrections.  **Rebalancing**: a worker with more than the threshold times the lightest load gets no request
for its prefixes that costs less at the lightest, which gets it.  **Autoscaling**: when the mean wait of a prefix
doubles from one half of H to the next, and is longer than computing the prefix takes, the lightest worker gets its next
request, and holds it too from then on; the subtrees of the prefix are split between the two by load.  **Prefill-decode
balancing**: what explores goes to the worker with the largest share of decoding in its work, if that is more than a
threshold.

A worker that could not hold the request in all its memory is none of those mentioned.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.machine import PRESETS, LatencyModel
from fairsched.model.prefix_cache import ROOT, IndexMatch, PrefixIndex, bits
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.base import Router
from fairsched.policies.routers import prefix_based as pre
from fairsched.policies.routers.e2 import choice as picks
from fairsched.policies.routers.e2 import history as past
from fairsched.policies.routers.e2.choice import split
from fairsched.policies.routers.e2.cost import Case, Prices, PrintedCase
from fairsched.policies.routers.e2.history import NO_WORK, Work, WorkTerms, worked
from fairsched.policies.routers.prefix_based import cached, cached_tokens
from fairsched.policies.validators import not_negative, one_of, positive

LoadMode = Literal["window", "outstanding"]
Switch = Literal["on", "off"]
_CAPACITY = attrgetter("kv_capacity_tokens")
Why = Literal["exploit", "explore", "rebalance", "replicate", "split", "decode-heavy"]


class E2State(msgspec.Struct, frozen=True, gc=False):
    """What the workers hold, what they were sent, and how long requests of each prefix waited.

    `ends` has the node with which the prompt of each request of the window ended when it was sent.  `moves` has the
    worker to which the next request through a node goes, since the subtree of that node was split off.
    """

    index: PrefixIndex
    history: past.History = past.History()
    waits: past.WaitsByPrefix = Map()
    ends: Map[int, int] = Map()
    moves: Map[int, int] = Map()
    work: Work = NO_WORK


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The worker for a request, and why; it holds `cached_tokens` of the prompt.

    The best worker holds `blocks` blocks, and `prefix` is the node where these end (the root: no worker holds any).  A
    copy of it `relieves` a worker; a subtree that moves is that of the node `moves`.
    """

    worker: int
    why: Why
    cached_tokens: int
    blocks: int
    prefix: int
    relieves: int | None = None
    moves: int = ROOT


@attrs.frozen
class E2(Router[E2State]):
    """Exploit or explore by cost, with rebalancing, autoscaling of prefixes and prefill-decode balancing.

    O(blocks) by memcmp, the evictions that matter, and O(log prefixes) to write it down; of each worker it reads the
    capacity and the load.
    """

    name: ClassVar[str] = "e2"
    state_type: ClassVar[type[E2State]] = E2State
    theorems: ClassVar[tuple[Theorem, ...]] = picks.THEOREMS
    follows_decoding: ClassVar[bool] = False
    decode_batch: ClassVar[int] = 32
    """How many requests share a decode step."""
    case_type: ClassVar[type[Case]] = Case

    window_us: int = attrs.field(default=180_000_000, validator=positive)
    """H."""
    load_mode: LoadMode = attrs.field(default="window", validator=one_of("window", "outstanding"))
    """Whose work L counts: that of all requests of H, or of those not yet ended."""
    exploit_percent: int = attrs.field(default=50, validator=not_negative)
    """A request exploits if more than this share of it is cached; 50: if less is missed than is cached."""
    rebalancing: picks.Rebalancing = attrs.field(
        default="per-source", validator=one_of("per-source", "heaviest", "off")
    )
    """Which workers give prefixes away: each heavy one, the heaviest alone as printed, or none."""
    threshold_percent: int = attrs.field(default=150, validator=positive)
    """Th_bal: a load of more than this share of the lightest is heavy."""
    scaling: Switch = attrs.field(default="on", validator=one_of("on", "off"))
    """Whether the lightest worker gets a copy of a prefix for which requests wait twice as long as before."""
    decode_share_percent: int = attrs.field(default=70, validator=not_negative)
    """IMBALR: what explores goes to a worker with more than this share of decoding; from 100 on there is none."""
    prior_output_tokens: int = attrs.field(default=211, validator=positive)
    """Mean output of a worker of which no request of H has ended."""
    latency: LatencyModel | None = attrs.field(default=None, metadata={"text": False})
    """What prefill and decode cost; None: as `llama-3.1-8b-a100`."""
    prices: Prices = attrs.field(init=False, eq=False, repr=False)
    terms: WorkTerms = attrs.field(init=False, eq=False, repr=False)

    @prices.default
    def _price(self) -> Prices:
        latency = PRESETS["llama-3.1-8b-a100"] if self.latency is None else self.latency
        return Prices.of(latency, self.decode_batch)

    @terms.default
    def _terms(self) -> WorkTerms:
        by_window = self.load_mode == "window"
        return WorkTerms(self.prices, self.prior_output_tokens, self.decode_share_percent, by_window)

    def fitted(self, latency: LatencyModel) -> "E2":
        """Return a copy with the workers' latency model, unless it has one."""
        return self if self.latency is not None else attrs.evolve(self, latency=latency)

    def init(self) -> E2State:
        return E2State(PrefixIndex.empty(self.window_us * 1_000))

    def check(self, state: E2State) -> None:
        """Check its parts, and that a prefix is known as long as it brought a request of the window to a worker."""
        state.index.check()
        state.history.check()
        # Work that was kept is what it is made anew; of a worker without requests it is nothing.
        kept, anew = (worked(work, state.history, self.terms) for work in (state.work, NO_WORK))
        assert kept.loads == anew.of(range(len(kept.loads)))
        assert kept.much == anew.much
        assert not kept.loads or kept.light == picks.lightest(kept.loads)
        brought = [sent.prefix for sent in state.history.window.values() if sent.prefix != ROOT]
        assert {prefix: w.requests for prefix, w in state.waits.items()} == {p: brought.count(p) for p in brought}
        # Subtrees that move are not the whole tree; ids of nodes that are gone do not come back.
        assert all(ROOT < node < state.index.next_id and worker >= 0 for node, worker in state.moves.items())

    # --- events ---------------------------------------------------------------------------------------------

    def observe(self, state: E2State, event: ev.Event) -> E2State:
        follow = _FOLLOWING.get(type(event))
        return state if follow is None else follow(self, state, event)

    def _evicted(self, state: E2State, event: ev.Evicted) -> E2State:
        """Follow a worker that holds less."""
        node = state.ends.get(event.owner, ROOT)
        index = state.index.evicted(event.prompt, event.keep_blocks, event.worker, node)
        return state if index is state.index else replace(state, index=index)

    def _cached(self, state: E2State, event: ev.Cached) -> E2State:
        """Follow a worker that holds a prompt, most often one that was sent there."""
        index = cached(state.index, event, state.ends.get(event.owner, ROOT))
        return state if index is state.index else replace(state, index=index)

    def _admitted(self, state: E2State, event: ev.Admitted) -> E2State:
        """End the wait of a request at its first admission."""
        sent = state.history.open.get(event.request_id)
        if sent is None or not sent.waits:
            return state
        waits = state.waits
        if sent.prefix != ROOT:
            waits = past.waited(waits, sent.prefix, self._half(event.time_ns), max(event.time_ns - sent.sent_ns, 0))
        return replace(state, history=state.history.admitted(sent), waits=waits)

    def _finished(self, state: E2State, event: ev.Finished) -> E2State:
        """End a request under way that has an output."""
        return self._ended(state, event.request_id, event.output_tokens)

    def _stopped(self, state: E2State, event: ev.Cancelled | ev.Rejected) -> E2State:
        return self._ended(state, event.request_id, past.UNKNOWN)

    def _ended(self, state: E2State, request_id: int, output_tokens: int) -> E2State:
        sent = state.history.open.get(request_id)
        if sent is None:
            return state
        return replace(state, history=state.history.ended(sent, output_tokens), work=state.work.after(sent.worker))

    def _without(self, state: E2State, event: ev.WorkerLeft | ev.WorkerJoined) -> E2State:
        """Forget a worker that holds nothing, and where nothing waits."""
        history, gone = state.history.without(event.worker)
        moves = Map({node: worker for node, worker in state.moves.items() if worker != event.worker})
        index, work = state.index.without(event.worker), state.work.after(event.worker)
        return E2State(index, history, *_forgotten(state.waits, state.ends, gone), moves, work)

    def _half(self, now_ns: int) -> int:
        return now_ns // (self.window_us * 500)

    # --- decisions -----------------------------------------------------------------------------------------------

    def route(self, state: E2State, request: Request, view: ClusterView) -> tuple[Dispatch, E2State]:
        state = self._at(state, max(view.now_ns, state.index.now_ns))
        prompt = request.prompt
        workers: Sequence[WorkerLoad] = view.workers
        need = prompt.tokens + request.max_output_tokens
        if min(map(_CAPACITY, workers)) < need:
            workers = [load for load in workers if load.kv_capacity_tokens >= need]
        if not workers:
            # Wherever it goes it is rejected, and nothing comes of it.
            return Dispatch(request.id, view.workers[0].worker), state
        match = state.index.match(prompt)
        choice = self.choose(state, prompt, match, workers)
        capacity = workers[pre.place(workers, choice.worker)].kv_capacity_tokens
        return Dispatch(request.id, choice.worker), self._sent(state, request, match, choice, capacity)

    def _at(self, state: E2State, now_ns: int) -> E2State:
        """Advance to `now_ns`: what is older than H is gone, and the work of each worker is at hand."""
        index, history, waits, ends, work = state.index, state.history, state.waits, state.ends, state.work
        history, gone = history.expired(now_ns - index.window_ns)
        if gone:
            waits, ends = _forgotten(waits, ends, gone)
            work = work.after(*[sent.worker for sent in gone])
        index, work = index.advance(now_ns, pre.EXPIRE_AT_MOST), worked(work, history, self.terms)
        return E2State(index, history, waits, ends, state.moves, work)

    def choose(self, state: E2State, prompt: Prompt, match: IndexMatch, workers: Sequence[WorkerLoad]) -> Choice:
        """Return where the request goes and why, among workers that can hold it (ascending ids, at least one).

        `match` is the index's of its prompt.
        """
        case = self.case(state, prompt, match, workers)
        target, why = self._target(state, case)
        cached, _ = case.held(target)
        relieves, moves = None, ROOT
        if why == "exploit":
            home, node = _home(state, case) if state.moves else (0, ROOT)
            moved = self._rebalanced(case, target)
            if moved != target:
                target, why = moved, "rebalance"
            elif node != ROOT and case.held(home)[0] < cached and self._rebalanced(case, home) == home:
                target, why, moves = home, "split", node
            elif self._replicates(state, case.node, case.blocks * prompt.block_tokens):
                light = case.light
                if case.held(light)[0] < cached:
                    relieves, target, why = workers[target].worker, light, "replicate"
            if why != "exploit":
                cached, _ = case.held(target)
        return Choice(workers[target].worker, why, cached, case.blocks, case.node, relieves, moves)

    def case(self, state: E2State, prompt: Prompt, match: IndexMatch, workers: Sequence[WorkerLoad]) -> Case:
        """Return the request before these workers, with their loads.  O(workers) by C, where they are all that there
        are."""
        work = state.work
        if work.changed or work.terms is not self.terms:
            work = worked(work, state.history, self.terms)
        loads, light = work.loads, work.light
        if len(loads) != len(workers) or not pre.numbered(workers):
            loads = work.of([load.worker for load in workers])
            light = picks.lightest(loads)
        return self.case_type.of(state.index, prompt, match, workers, self.prices, loads, light, work.much)

    def _target(self, state: E2State, case: Case) -> tuple[int, Why]:
        """Return the cheapest holder of the prefix; or else the worker that decodes most, or the cheapest of all."""
        holders = self._holders(case)
        if holders:
            return case.cheapest(holders), "exploit"
        if case.much:
            ids = [load.worker for load in case.workers]
            decoding = picks.decode_heaviest(*self.terms.by_kind(state.history, ids), self.decode_share_percent)
            if decoding is not None and self._takes_prefill(case, decoding):
                return decoding, "decode-heavy"
        return case.cheapest(range(len(case.workers))), "explore"

    def _takes_prefill(self, case: Case, decoding: int) -> bool:
        """Return whether what explores may go to this decode-heavy worker: not if it is too heavy for its own
        prefixes."""
        return self._rebalanced(case, decoding) == decoding

    def _rebalanced(self, case: Case, target: int) -> int:
        return picks.rebalanced(target, case.light, case.loads, self.threshold_percent, self.rebalancing, case.cost)

    def _holders(self, case: Case) -> list[int]:
        """Return the workers to exploit; none if the request explores."""
        if not picks.exploits(case.most, case.prompt.tokens, self.exploit_percent):
            return []
        if pre.numbered(case.workers):
            return bits(case.holders)
        return [i for i, load in enumerate(case.workers) if case.holders >> load.worker & 1]

    def _replicates(self, state: E2State, prefix: int, tokens: int) -> bool:
        """Return whether the prefix needs one worker more: its waits doubled, and are longer than computing it
        takes."""
        if self.scaling == "off" or prefix == ROOT:
            return False
        waits = state.waits.get(prefix, past.NO_WAITS)
        return waits.doubled(self._half(state.index.now_ns)) and waits.at_least(self.prices.prefill_ns(tokens, 0))

    # --- what it records ------------------------------------------------------------------------------------------

    def _sent(self, state: E2State, request: Request, match: IndexMatch, choice: Choice, capacity: int) -> E2State:
        index, history, waits, prompt = state.index, state.history, state.waits, request.prompt
        worker, blocks, prefix = choice.worker, choice.blocks, ROOT
        index, node = index.insert(prompt, pre.shareable_blocks(index, prompt), worker, index.now_ns, match=match)
        if blocks:
            # The prefix may have ended inside a node, which was cut there only now.
            nodes, prefix = index.nodes, node
            while prefix != ROOT and (known := nodes[prefix]).start >= blocks:
                prefix = known.parent
        missed = prompt.tokens - choice.cached_tokens
        prefill_ns, number = self.prices.prefill_ns(missed, choice.cached_tokens), history.next_number
        sent = past.PlacedPrompt(number, request.id, worker, index.now_ns, prefix, prefill_ns, prompt.tokens, missed)
        before, moves = history.open.get(request.id), state.moves
        if choice.relieves is not None:
            waits, moves = past.wait_restarted(waits, choice.prefix), self._split(state, choice, choice.relieves)
        elif choice.moves != ROOT:
            moves = moves.delete(choice.moves)
        history = history.sent(sent)
        if prefix != ROOT:
            waits = past.wait_sent(waits, prefix)
        index = pre.trimmed(index, worker, capacity + history.sums[worker].open_missed_tokens)
        work = state.work.after(worker) if before is None else state.work.after(worker, before.worker)
        return E2State(index, history, waits, state.ends.set(request.id, node), moves, work)

    def _split(self, state: E2State, choice: Choice, old: int) -> Map[int, int]:
        """Return which nodes move to which worker, now that the prefix of `old` gets a worker more.

        The subtrees below what the new worker held nothing of are split by load, the largest first.  A subtree is what
        at least two requests of H used at `old`, and its load is L of these.  O(requests of H, and the nodes above
        them), only when a prefix gets a worker.
        """
        index, history, new = state.index, state.history, choice.worker
        copied = ROOT
        for node in index.path(choice.prefix):
            if not index.nodes[node].held >> new & 1:
                copied = node
        subtrees: dict[int, list[past.PlacedPrompt]] = {}
        for _, sent in sorted(history.window.items()):
            path = index.path(state.ends.get(sent.request_id, ROOT)) if sent.worker == old else ()
            for node in path:
                if index.nodes[node].parent == copied:
                    subtrees.setdefault(node, []).append(sent)
        sums = history.sums.get(old, past.NO_SUMS)
        mean = self.terms.mean_output(sums)
        loads = {
            node: sum(sent.prefill_ns for sent in sents)
            + self.prices.decode_ns(len(sents), sum(sent.prompt_tokens for sent in sents), *mean)
            for node, sents in subtrees.items()
            if len(sents) > 1
        }
        order = sorted(loads, key=lambda node: (-loads[node], node))
        keeps = self.terms.load(sums) - sum(loads.values())
        given = split([loads[node] for node in order], keeps, self.terms.load(history.sums.get(new, past.NO_SUMS)))
        known = {node: worker for node, worker in state.moves.items() if node in index.nodes}
        return Map({**known, **{order[i]: new for i in given}})


_FOLLOWING: dict[type[ev.Event], Callable[[E2, E2State, Any], E2State]] = {
    ev.Evicted: E2._evicted,
    ev.Cached: E2._cached,
    ev.Admitted: E2._admitted,
    ev.Finished: E2._finished,
    ev.Cancelled: E2._stopped,
    ev.Rejected: E2._stopped,
    ev.WorkerLeft: E2._without,
    ev.WorkerJoined: E2._without,
}
"""What E2 learns from."""


def _forgotten(
    waits: past.WaitsByPrefix, ends: Map[int, int], gone: tuple[past.PlacedPrompt, ...]
) -> tuple[past.WaitsByPrefix, Map[int, int]]:
    """Return a copy without what was kept for requests that left the window.  A request sent twice may have left it
    before."""
    for sent in gone:
        if sent.prefix != ROOT:
            waits = past.wait_gone(waits, sent.prefix)
        if sent.request_id in ends:
            ends = ends.delete(sent.request_id)
    return waits, ends


def _home(state: E2State, case: Case) -> tuple[int, int]:
    """Return the position of the worker to which a subtree of the prompt was split off, and its node; the root if none
    was.  O(nodes on the path)."""
    positions = {load.worker: i for i, load in enumerate(case.workers)}
    for node in case.index.path(case.match.node):
        home = positions.get(state.moves.get(node, -1))
        if home is not None:
            return home, node
    return 0, ROOT


def _longest_node(index: PrefixIndex, match: IndexMatch) -> int:
    """Return the holders of the longest node of the path, the deepest of equals, as a bit mask."""
    at, end = match.node, match.blocks
    longest, mask = 0, 0
    while at != ROOT:
        node = index.nodes[at]
        if end - node.start > longest:
            longest, mask = end - node.start, node.held
        at, end = node.parent, node.start
    return mask


@attrs.frozen
class E2Printed(E2):
    """Algorithms 1 and 2 to the letter, for comparison.

    What the tree knows counts as cached, whether or not a worker still holds it; the holders of the longest *node* of
    the path are exploited; what explores goes to the worker that decodes most, however heavy it is; only the heaviest
    worker loses requests, whatever they cost elsewhere; a request decodes alone; and what an eviction loses is shared
    by the requests of all workers.
    """

    name: ClassVar[str] = "e2-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = ()
    decode_batch: ClassVar[int] = 1
    case_type: ClassVar[type[Case]] = PrintedCase

    rebalancing: picks.Rebalancing = attrs.field(default="heaviest", validator=one_of("per-source", "heaviest", "off"))

    def _holders(self, case: Case) -> list[int]:
        cached = cached_tokens(case.prompt, case.match.blocks)
        if not picks.exploits(cached, case.prompt.tokens, self.exploit_percent):
            return []
        mask = _longest_node(case.index, case.match)
        return [i for i, load in enumerate(case.workers) if mask >> load.worker & 1]

    def _takes_prefill(self, case: Case, decoding: int) -> bool:
        return True
