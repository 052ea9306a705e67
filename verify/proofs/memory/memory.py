"""The KV memory of a worker never overflows, for any number of requests; and the worker's text does what that needs.

KV-sum is about the worker's books, over a sort of *requests*: `kv` is what each running request is promised, `promised`
the running total that the worker keeps instead of a sum, `protected` the part of the prefix cache that may not be
evicted.  Each event is one equation of `fairsched.model.worker.transitions`.  The other KV theorems run the worker's
functions themselves on symbolic integers, for one request beside any others, and show that they satisfy the
equations. The prefix cache is replaced there by its contract: completing a prompt protects no more than the request
moves into it, and releasing protects nothing more.  That contract, and the loops around the functions, are tested
(`fairsched.verify.conformance.worker_invariants`).
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fairsched.model.plan import Admission, StepPlan
from fairsched.model.view import InFlight
from fairsched.model.worker import Running, Waiting, WorkerState
from fairsched.policies.batching import KV_ADMIT, KV_GROW, KV_PREFILL, KV_RELEASE, KV_SUM
from fairsched.verify.logic import (
    ArithmeticClaim,
    Claim,
    Clause,
    Condition,
    Event,
    Kind,
    Need,
    Shown,
    System,
    World,
    at_least,
    same,
    total,
)
from fairsched.verify.proofs.kernels import worker, worker_batch

# --- any number of requests -----------------------------------------------------------------------------------------


def _events() -> tuple[Event, ...]:
    one = {"r": Kind.POINT}
    protects = {"protects": Kind.SCALAR}
    exists = Need(lambda o, w: o.exists(w.r))

    def promised(o: Any, w: World, more: Any) -> Mapping[str, Any]:
        return {
            "kv": o.bump(w.kv, w.r, more),
            "promised": w.promised + more,
            "protected": w.protected + w.protects,
        }

    def release(o: Any, w: World) -> Mapping[str, Any]:
        return {
            "kv": o.put(w.kv, w.r, 0),
            "promised": w.promised - o.pick(w.kv, w.r, 0),
            "protected": w.protected - w.protects,
        }

    return (
        Event(
            "admit",
            lambda o, w: promised(o, w, w.x),
            {**one, **protects, "x": Kind.SCALAR},
            (
                exists,
                Need(lambda o, w: (w.x >= 1) & (w.protects >= 0) & (o.pick(w.kv, w.r, 0) <= 0)),
                Need(lambda o, w: w.x + w.protects <= w.C - w.protected - w.promised),
            ),
        ),
        Event(
            "the prompt is cached",
            lambda o, w: promised(o, w, -w.x),
            {**one, **protects, "x": Kind.SCALAR},
            (
                exists,
                Need(lambda o, w: (w.x >= 0) & (w.x <= o.pick(w.kv, w.r, 0))),
                Need(lambda o, w: (w.protects >= 0) & (w.protects <= w.x)),
            ),
        ),
        Event(
            "outputs grow",
            lambda o, w: {"kv": w.kv + w.grown, "promised": w.promised + w.growth},
            {"grown": Kind.VECTOR, "growth": Kind.SCALAR},
            (
                Need(lambda o, w: w.grown >= 0),
                Need(lambda o, w: same(w.growth, total(o, w.grown))),
                Need(lambda o, w: w.growth <= w.C - w.protected - w.promised),
            ),
        ),
        Event(
            "release",
            release,
            {**one, **protects},
            (exists, Need(lambda o, w: (w.protects >= 0) & (w.protects <= w.protected))),
        ),
    )


def _sum_claim() -> Claim:
    books = (
        Clause("kv >= 0", lambda o, w: w.kv >= 0),
        Clause("promised is the sum of kv", lambda o, w: same(w.promised, w.sum)),
        Clause("protected >= 0", lambda o, w: w.protected >= 0),
        Clause("protected + promised <= C", lambda o, w: w.protected + w.promised <= w.C),
    )
    return Claim(
        KV_SUM,
        System(
            "KV memory of a worker",
            parameters={"C": Kind.SCALAR},
            laws=(Need(lambda o, w: w.C >= 1),),
            fields={"kv": Kind.VECTOR, "promised": Kind.SCALAR, "protected": Kind.SCALAR},
            events=_events(),
            derived={"sum": lambda o, w: total(o, w.kv)},
        ),
        (
            Clause("nothing is promised", lambda o, w: same(w.kv, 0) & same(w.promised, 0)),
            Clause("nothing is protected", lambda o, w: same(w.protected, 0)),
        ),
        books,
        (
            Clause("protected + sum of kv <= C", lambda o, w: w.protected + w.sum <= w.C),
            Clause("no more is promised than there is", lambda o, w: w.kv <= w.C),
        ),
    )


# --- the worker's text, one request beside any others ---------------------------------------------------------------


class Cache:
    """A prefix cache of which only the contract is known: how much is protected before and after each operation."""

    def __init__(self, protected: Any, after: Any, cached_tokens: Any = 0) -> None:
        self.tree = SimpleNamespace(protected_tokens=protected)
        self._after = after
        self._cached_tokens = cached_tokens

    def admit(self, _request_id: int, _prompt: Any, _stamp: int) -> tuple["Cache", Any, None]:
        """Pins a cached prefix."""
        return Cache(self._after, self._after), self._cached_tokens, None

    def cacheable(self, _prompt: Any) -> bool:
        """Whether it can hold the prompt."""
        return True

    def complete(self, _request_id: int, _prompt: Any, _blocks: Any, _stamp: int) -> tuple["Cache", None]:
        """Caches and pins the prompt."""
        return Cache(self._after, self._after), None

    def release(self, _request_id: int) -> "Cache":
        """Drops the pin."""
        return Cache(self._after, self._after)


def request_of(w: SimpleNamespace) -> Any:
    """The request of a claim's world."""
    prompt = SimpleNamespace(tokens=w.prompt, blocks=w.blocks, block_tokens=w.block_tokens)
    return SimpleNamespace(id=0, client=0, prompt=prompt, max_output_tokens=w.most)


def state_of(w: SimpleNamespace, cache: Any, **fields: Any) -> WorkerState:
    """A worker with the world's sums and whatever else is given."""
    return replace(
        WorkerState(worker=0, capacity=w.capacity),
        cache=cache,
        promised=w.promised,
        used=w.used,
        clock=w.clock,
        **fields,
    )


MEMORY = (
    *at_least(0, "before", "promised"),
    Condition(lambda w: w.before + w.promised <= w.capacity),
)
LENGTHS = (
    *at_least(1, "prompt"),
    *at_least(0, "generated"),
    Condition(lambda w: w.most >= w.generated + 1),
    Condition(lambda w: w.output >= w.generated + 1),
    Condition(lambda w: w.most >= w.output),
)


def _admits(w: SimpleNamespace) -> Shown:
    """`_admit` refuses what does not fit, and otherwise promises what it says."""
    waiting = Waiting(request_of(w), w.output, w.generated)
    cache: Any = Cache(w.before, w.after, w.cached)
    state = state_of(w, cache, queue=Map({0: waiting}), queue_tokens=w.prompt + w.generated)
    extend = w.prompt + w.generated - w.cached
    try:
        done = worker._admit(state, Admission(0, 0, extend, w.cached, w.reserved), 0, [])
    except worker.InfeasiblePlanError:
        return {}
    promised = done.in_flight[0].kv_tokens
    return {
        "promised grows by kv": done.promised == w.promised + promised,
        "kv is extend and reserved tokens": promised == extend + w.reserved,
        "protected + promised <= C": done.cache.tree.protected_tokens + done.promised <= w.capacity,
        "nothing is negative": done.free >= 0,
    }


def _prefills(w: SimpleNamespace) -> Shown:
    """`_prefill` of the last chunk moves the prompt from the request's promise into the cache."""
    state = flying(w, None, remaining=w.chunk)
    done = worker._prefill(state, 0, w.chunk, 0, [], {}, [])
    grew = 0 if w.is_reserved else 1
    return {
        "promised changes with kv": done.promised - w.promised == done.in_flight[0].kv_tokens - w.kv + grew,
        "what moves is what was extended into the prompt": done.running[0].moved_tokens
        == w.blocks * w.block_tokens - (w.prompt + w.generated - w.extend),
    }


def _releases(w: SimpleNamespace) -> Shown:
    """`release` gives back the request's promise and what it grew beyond it."""
    done = worker_batch.release(flying(w, w.clock_start, remaining=0), 0)
    grew = 0 if w.is_reserved else 1 + w.clock - w.clock_start
    return {"promised falls by kv": done.promised == w.promised - w.kv - grew}


def _grows(w: SimpleNamespace) -> Shown:
    """`begin` refuses growth that does not fit, and `finish` promises exactly that."""
    state = replace(state_of(w, Cache(w.before, w.before)), decoding=w.growing, growing=w.growing)
    done, _ = worker.finish(state, StepPlan(), 1, 0)
    return {"promised grows by a token a request": done.promised == w.promised + w.growing}


def flying(w: SimpleNamespace, clock_start: Any, remaining: Any) -> WorkerState:
    """A worker on which the world's request runs, beside any others."""
    waiting = Waiting(request_of(w), w.output, w.generated)
    flight = InFlight(0, 0, 0, w.prompt + w.generated, remaining, w.kv, bool(w.is_reserved), clock_start)
    prefilling = () if clock_start is not None else ((0, remaining),)
    empty = state_of(w, Cache(w.before, w.after), prefilling=prefilling)
    return replace(
        empty,
        running=Map({0: Running(waiting, w.extend)}),
        in_flight=Map({0: flight}),
        ranks=empty.ranks.add((0, 0)),
    )


NAMES = (
    *("capacity", "before", "after", "promised", "used", "clock", "clock_start", "prompt", "blocks", "block_tokens"),
    *("generated", "output", "most", "cached", "reserved", "extend", "chunk", "kv", "is_reserved", "growing"),
)


def arithmetic_claims() -> tuple[ArithmeticClaim, ...]:
    """The worker's functions on symbolic integers."""
    conditions = (
        *MEMORY,
        *LENGTHS,
        *at_least(0, "after", "cached"),
        Condition(lambda w: w.cached < w.prompt + w.generated),
        *at_least(0, "reserved"),
        *at_least(1, "chunk", "growing"),
    )
    parts = {KV_ADMIT: _admits, KV_PREFILL: _prefills, KV_RELEASE: _releases, KV_GROW: _grows}
    return tuple(ArithmeticClaim(theorem, NAMES, conditions, shows) for theorem, shows in parts.items())


def claims() -> tuple[Claim | ArithmeticClaim, ...]:
    """The claim for any number of requests, and those about the worker's functions."""
    return (_sum_claim(), *arithmetic_claims())
