"""KV that is kept for a program between its calls takes no memory from others, and for how long it outlives theirs.

Keeping is a stamp of the prefix cache, which evicts the least stamp first: the prompt of a call that others follow
counts as used T after its end.  So nothing that decides about memory sees what is kept (KV-keep), all of it can be
evicted (KV-kept), and another prefix is evicted before it only if its last use was at most T later (KV-kept,
KV-outlives).

KV below a client's floor is kept from other clients' requests by two rules of `model.prefix_cache.shares`.  Which
blocks go is decided by what their holders hold (KV-floor), and what is free for a request by what floors have left
(KV-floor-room), so that what may go is always enough.  KV-floors plays both on the shipped worker.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import CachedBlock, Evictor, PrefixCache
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.catalog import FCFS
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import (
    ArithmeticClaim,
    Bug,
    Condition,
    Functions,
    SampledClaim,
    Shown,
    arithmetic,
    at_least,
    if_then,
    sampled,
)
from fairsched.verify.proofs.kernels import shares, worker_batch
from fairsched.verify.proofs.memory.memory import Cache, state_of

LEAST_STAMP_FIRST = Assumption("LeastStampFirst", "Of the prefixes that may go, the one with the least stamp does.")

KV_KEEP = Theorem(
    "KV-keep",
    "keeping the KV of a call that others follow changes no count of memory: an admission is refused, and a step makes "
    "room, as if nothing were kept",
    "this library; the shipped text of model/worker/batch.py on symbolic integers",
)
KV_OUTLIVES = Theorem(
    "KV-outlives",
    "a prefix that is evicted before one that is kept was last used at most T after it",
    "this library; T is the worker's keep_ns",
    (LEAST_STAMP_FIRST,),
    bound="T",
)
KV_KEPT = Theorem(
    "KV-kept",
    "whatever is kept can be evicted at once, and what is evicted is as KV-outlives says",
    "this library; in drawn worlds of the shipped cache",
    scope=Scope.TESTED,
    bound="T",
    rests_on=("KV-keep", "KV-outlives"),
)


class _Stamped(Cache):
    """A cache of which is noted what is kept until when."""

    until: Any = None

    def keep(self, _request_id: int, until: Any) -> "_Stamped":
        """Return the contract of the cache's method: no sum changes."""
        kept = _Stamped(self.tree.protected_tokens, self._after)
        kept.until = until
        return kept


def _ending(w: SimpleNamespace, levels: int, cache: Any, keep_ns: Any) -> Any:
    """Return a worker with one call that others follow, or none, and that ends now."""
    run = SimpleNamespace(waiting=SimpleNamespace(request=SimpleNamespace(downstream_levels=levels)))
    running: Any = Map({0: run})
    return state_of(w, cache, running=running, keep_ns=keep_ns)


_SUMS = ("capacity", "before", "after", "promised", "used", "clock", "keep", "now")


@arithmetic(KV_KEEP, _SUMS, *at_least(0, "before", "promised", "used", "now", "keep"))
def _keeps(w: SimpleNamespace, run: Any = worker_batch.keep) -> Shown:
    """`keep` before `release`, for a call that others follow; one that none follows changes nothing at all."""
    state = _ending(w, 1, _Stamped(w.before, w.after), w.keep)
    kept, alone = run(state, 0, w.now), _ending(w, 0, _Stamped(w.before, w.after), w.keep)
    if kept is state:
        return {"it is not kept only if T is 0": w.keep == 0}
    return {
        "free is what it was": kept.free == state.free,
        "promised and used are": (kept.promised == w.promised) & (kept.used == w.used),
        "it counts as used T later": kept.cache.until == w.now + w.keep,
        "a last call is not kept": run(alone, 0, w.now).cache.until is None,
    }


def _exactly_then() -> tuple[int, int]:
    """State that a prefix that is used T after the end of a kept call goes first, and one that is used later does
    not."""
    ends = [use for use in range(20) if _victim(use, 5) == 0]
    return max(ends), 5


def _victim(use: int, keep: int) -> int:
    """Return which goes first of a prefix that was used then, 0, and one that was kept at 0, 1."""
    cache = _used(_used(PrefixCache(), 0, use, 0), 1, 0, keep)
    return cache.evict(1)[1][0].owner


@arithmetic(
    KV_OUTLIVES,
    ("kept_use", "other_use", "keep", "victim", "stays"),
    Condition(lambda w: w.keep >= 0),
    # The kept prefix was used when its call ended, or later; the other is not kept, so its stamp is its last use.
    Condition(lambda w: (w.stays <= w.kept_use + w.keep) & (w.victim >= w.other_use)),
    Condition(lambda w: w.victim <= w.stays, LEAST_STAMP_FIRST),
    attained=_exactly_then,
)
def _outlives(w: SimpleNamespace) -> Shown:
    """By the stamps of both when one is evicted."""
    return {"at most T": w.other_use - w.kept_use <= w.keep}


_WORLDS = st.fixed_dictionaries(
    {
        "keep": st.integers(0, 9),
        "calls": st.lists(
            st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 4), st.integers(0, 3)).map(list), max_size=25
        ),
    }
)
"""Calls as (prefix, whether others follow, time since the call before, tokens that are evicted then)."""
_TOKENS = 3


def _prompt(prefix: int) -> Prompt:
    return Prompt(_TOKENS + 1, 1, (prefix + 1).to_bytes(KEY_BYTES, "little") * (_TOKENS + 1))


def _used(cache: PrefixCache, prefix: int, now: int, keep: int) -> PrefixCache:
    """Run and end a call with this prefix, and keep it so long."""
    cache, _, _ = cache.admit(prefix, _prompt(prefix), now)
    cache, _ = cache.complete(prefix, _prompt(prefix), _TOKENS, now)
    return (cache.keep(prefix, now + keep) if keep else cache).release(prefix)


@sampled(KV_KEPT, _WORLDS, drawn=100)
def _evicted(w: SimpleNamespace, until: Any = lambda keep: keep) -> Shown:
    """Prefixes that share nothing; one is used by one call at a time."""
    cache, now = PrefixCache(), 0
    used: dict[int, int] = {}
    kept: dict[int, int] = {}
    late = False
    for prefix, follows, gap, tokens in w.calls:
        now += gap
        cache = _used(cache, prefix, now, until(w.keep) if follows else 0)
        used[prefix] = now
        kept[prefix] = max(kept.get(prefix, 0), now + w.keep * follows)
        cache, gone = cache.evict(tokens)
        for victim in {each.owner for each in gone}:
            here = [other for other in used if cache.cached_tokens(_prompt(other)) == _TOKENS]
            late |= any(used[victim] > max(kept[other], used[other]) for other in here)
            if not cache.cached_tokens(_prompt(victim)):
                del used[victim], kept[victim]
    empty, _ = cache.evict(1 << 20)
    return {"at most T after": not late, "all of it can go": empty.tree.cached_tokens == 0}


# --- floors -----------------------------------------------------------------------------------------------------------

KV_FLOOR = Theorem(
    "KV-floor",
    "no block is evicted of a client that holds at most its floor, whatever request needs room; where a client holds "
    "more, it does until the last block that goes",
    "this library; the shipped text of model/prefix_cache/shares.py on unknown integers, one block of one or two "
    "holders beside any others",
    bound="cache_floor_tokens",
)
KV_FLOOR_ROOM = Theorem(
    "KV-floor-room",
    "what is promised, what is protected and what floors have left come to at most the capacity, through admissions, "
    "output, completions and releases; so room for all that is promised is made without a block that a floor keeps",
    "this library; the shipped text of model/prefix_cache/shares.py on unknown integers, one client beside any others",
    bound="kv_capacity_tokens",
    rests_on=("KV-floor",),
)
KV_FLOORS = Theorem(
    "KV-floors",
    "memory holds what is promised, no request of other clients takes a block below a floor, and every request is "
    "served",
    "this library; in drawn worlds of the shipped worker under FCFS, with prefixes that clients share",
    scope=Scope.TESTED,
    bound="cache_floor_tokens",
    rests_on=("KV-floor", "KV-floor-room"),
)


def _least_kept() -> tuple[int, int]:
    """Return what is left of ten cached blocks of a client whose floor is six, when another one needs all that may
    go."""
    worker = WorkerState(0, 10).with_floors({0: 6})
    cache, _ = worker.cache.complete(0, Prompt(10, 1, bytes(range(10 * KEY_BYTES))), 10, 0, 0)
    worker = replace(worker, cache=cache.release(0))
    after, _ = worker.cache.evict(10, worker.evictor())
    return after.tree.cached_tokens, 6


@arithmetic(
    KV_FLOOR,
    ("held", "other", "floor", "other_floor", "block_tokens", "last_use"),
    *at_least(1, "block_tokens"),
    *at_least(0, "held", "other", "floor", "other_floor"),
    attained=_least_kept,
    pruned=True,
)
def floor_kept(w: SimpleNamespace, functions: Functions = shares) -> Shown:
    """A block of client 0 alone, and one that client 1 holds as well."""
    shown: dict[str, Any] = {}
    for name, clients in (("one holder", (0,)), ("two holders", (0, 1))):
        evictor = functions.Evictor({0: w.held, 1: w.other}, {0: w.floor, 1: w.other_floor})
        evictor.offer([CachedBlock(0, clients, w.last_use, w.block_tokens)])
        found = evictor.next()
        if found is None:
            alone = len(clients) == 1
            shown[f"it stays if one is not over, {name}"] = if_then(
                w.held > w.floor, False if alone else w.other <= w.other_floor
            )
            continue
        before_last = (functions.blocks_over(found[1], w.block_tokens) - 1) * w.block_tokens
        shown[f"it is over its floor before the last goes, {name}"] = w.held - before_last > w.floor
        if len(clients) > 1:
            shown["so is the other holder"] = w.other - before_last > w.other_floor
    return shown


@arithmetic(
    KV_FLOOR_ROOM,
    (
        *("capacity", "floor", "promised", "pinned", "idle", "others_promised", "others_protected", "others_left"),
        *("own", "pins", "grown", "moved", "cached", "freed", "unpinned"),
    ),
    *at_least(0, "floor", "promised", "pinned", "idle", "others_promised", "others_protected", "others_left"),
    *at_least(0, "own", "pins", "grown", "cached", "freed", "unpinned"),
    Condition(lambda w: (w.cached <= w.moved) & (w.moved <= w.promised)),
    Condition(lambda w: (w.freed <= w.promised) & (w.unpinned <= w.pinned)),
)
def floors_room(w: SimpleNamespace, functions: Functions = shares) -> Shown:
    """Client 0 and any others, of whom sums are known."""

    def free(promised: Any, pinned: Any) -> Any:
        taken = w.others_promised + w.others_protected + w.others_left + promised + pinned
        return w.capacity - taken - functions.reserve(w.floor, promised, pinned)

    left, before = functions.reserve(w.floor, w.promised, w.pinned), free(w.promised, w.pinned)
    admitted, grown = free(w.promised + w.own, w.pinned + w.pins), free(w.promised + w.grown, w.pinned)
    completed = free(w.promised - w.moved, w.pinned + w.cached)
    released = free(w.promised - w.freed, w.pinned - w.unpinned)
    holds = w.promised + w.pinned + w.idle
    return {
        "after an admission that fits": if_then((before >= 0) & (w.own + w.pins <= before + left), admitted >= 0),
        "after output that fits": if_then(before - functions.beyond({0: left}, {0: w.grown}) >= 0, grown >= 0),
        "after a completion": completed >= before,
        "after a release": released >= before,
        "what floors keep is what they have left": if_then(holds <= w.floor, w.idle <= left),
    }


_ASKED = st.fixed_dictionaries(
    {
        "floors": st.tuples(st.integers(1, 12), st.integers(0, 12)).map(list),
        "asked": st.lists(
            st.tuples(*(st.integers(0, most) for most in (2, 3, 8, 4, 2))).map(list),
            max_size=20,
        ),
    }
)
"""Floors of two of three clients, and requests as (client, prefix, tokens of the prompt behind it, output
but one, steps until the next)."""
_SHARED = 4
"""Tokens of a prefix; there are three, and prompts without one."""


@sampled(KV_FLOORS, _ASKED, drawn=100)
def _floors(w: SimpleNamespace, worker: Any = WorkerState) -> Shown:
    """A worker of 28 tokens."""
    play = WorkerPlay(FCFS(), worker(0, 28).with_floors(dict(enumerate(w.floors))))
    fits = kept = True
    for number, (client, prefix, tokens, more, steps) in enumerate(w.asked):
        keys = [prefix * 10 + i for i in range(_SHARED)] if prefix else []
        keys += [1_000 * (number + 1) + i for i in range(tokens)]
        prompt = Prompt.from_keys(keys, tokens=len(keys) + 1)
        play.arrive(Request(number, client, number, prompt, 1 + more), 1 + more, number)
        for now in range(steps):
            before = play.worker
            play.step(100 * number + now)
            after = play.worker
            fits &= after.cache.tree.cached_tokens + after.used <= after.capacity
            runs = {flight.client for at in (before, after) for flight in at.in_flight.values()}
            idle = [i for i in range(2) if i not in runs]
            kept &= all(_holds(after, i) >= min(_holds(before, i), w.floors[i]) for i in idle)
    for now in range(200):
        play.step(10_000 + now)
    served = not play.worker.queue and not play.worker.in_flight
    return {"memory holds it": fits, "nothing below a floor goes": kept, "every request is served": served}


def _holds(worker: WorkerState, client: int) -> int:
    """Return the tokens of blocks that a client holds, idle or pinned."""
    return sum(node.end - node.start for node in worker.cache.tree.nodes.values() if client in node.holders)


def claims() -> tuple[ArithmeticClaim | SampledClaim, ...]:
    """About the worker's text, and about the cache that ships."""
    return (_keeps(), _outlives(), _evicted(), floor_kept(), floors_room(), _floors())


def bugs() -> tuple[Bug, ...]:
    """Return ways to keep that have to be found."""

    def promised(state: Any, request_id: int, now_ns: Any) -> Any:
        kept = worker_batch.keep(state, request_id, now_ns)
        return kept if kept.cache is state.cache else kept.__class__(**{**_fields(kept), "promised": kept.promised + 1})

    return (
        Bug("what is kept is promised", _keeps(promised)),
        Bug("it is kept for twice as long", _evicted(lambda keep: 2 * keep)),
        Bug("a client at its floor loses a block", floor_kept(Evictor=_Generous)),
        Bug("one holder over its floor is enough", floor_kept(Evictor=_OfAny)),
        Bug("no block goes of a client that is over by one", floor_kept(Evictor=_Stingy)),
        Bug("a block too many goes", floor_kept(blocks_over=lambda excess, tokens: excess // tokens + 1)),
        Bug("what is pinned is not of the floor", floors_room(reserve=lambda f, promised, _: max(f - promised, 0))),
        Bug("what is promised is not of the floor", floors_room(reserve=lambda f, _, pinned: max(f - pinned, 0))),
        Bug("a floor keeps nothing", floors_room(reserve=lambda f, promised, pinned: 0)),
        Bug("output is all of the floor", floors_room(beyond=lambda reserves, taken: 0)),
        Bug("requests of others may have what a floor keeps", _floors(_Unreserved)),
    )


class _Generous(Evictor):
    """Lets blocks go of a client that holds just its floor."""

    def excess(self, clients: Any) -> Any:
        return super().excess(clients) + 1


class _Stingy(Evictor):
    """Keeps a token more than the floor."""

    def excess(self, clients: Any) -> Any:
        return super().excess(clients) - 1


class _OfAny(Evictor):
    """Lets a block go that one of its holders may lose."""

    def excess(self, clients: Any) -> Any:
        return max(super(_OfAny, self).excess((client,)) for client in clients)


class _Unreserved(WorkerState, frozen=True):
    """Promises to all what floors have left."""

    def reserves(self) -> Map[int, int]:
        return Map()


def _fields(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}
