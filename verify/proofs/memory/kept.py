"""KV that is kept for a program between its calls takes no memory from others, and for how long it outlives theirs.

Keeping is a stamp of the prefix cache, which evicts the least stamp first: the prompt of a call that others follow
counts as used T after its end.  So nothing that decides about memory sees what is kept (KV-keep), all of it can be
evicted (KV-kept), and another prefix is evicted before it only if its last use was at most T later (KV-kept,
KV-outlives).
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import KEY_BYTES, Prompt
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.verify.logic import ArithmeticClaim, Bug, Condition, SampledClaim, Shown, arithmetic, at_least, sampled
from fairsched.verify.proofs.kernels import worker_batch
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


def claims() -> tuple[ArithmeticClaim | SampledClaim, ...]:
    """About the worker's text, and about the cache that ships."""
    return (_keeps(), _outlives(), _evicted())


def bugs() -> tuple[Bug, ...]:
    """Return ways to keep that have to be found."""

    def promised(state: Any, request_id: int, now_ns: Any) -> Any:
        kept = worker_batch.keep(state, request_id, now_ns)
        return kept if kept.cache is state.cache else kept.__class__(**{**_fields(kept), "promised": kept.promised + 1})

    return (
        Bug("what is kept is promised", _keeps(promised)),
        Bug("it is kept for twice as long", _evicted(lambda keep: 2 * keep)),
    )


def _fields(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}
