"""The worker's text keeps its books: KV-admit to KV-release show what KV-sum takes for granted.

The worker's functions are run on symbolic integers, for one request beside any others, and each shows the contract of
its event (`fairsched.verify.proofs.memory.books`).  The prefix cache is replaced there by its contract: a cached prefix
is protected once it is pinned, completing a prompt protects no more than the request moves into it, and neither an
eviction nor a release protects anything more.  That contract, and the loops around the functions, are tested
(`fairsched.verify.conformance.worker_invariants`).
"""

from types import SimpleNamespace
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fairsched.model import worker as workers
from fairsched.model.decision import Admission, InFlight, StepPlan
from fairsched.model.worker import Running, Waiting, WorkerState
from fairsched.verify.logic import ArithmeticClaim, Condition, Shown, at_least, if_then
from fairsched.verify.proofs.kernels import worker, worker_batch
from fairsched.verify.proofs.memory.books import ADMITTED, BEGUN, CACHED, GREW, PAUSED, RELEASED, RESUMED

# --- the worker's text, one request beside any others ---------------------------------------------------------------


class Cache:
    """A prefix cache of which only the contract is known: how much is protected before and after each operation."""

    def __init__(self, protected: Any, after: Any, cached_tokens: Any = 0) -> None:
        self.tree = SimpleNamespace(protected_tokens=protected)
        self._after = after
        self._cached_tokens = cached_tokens

    def admit(self, _request_id: int, _prompt: Any, _stamp: int, _client: int) -> tuple["Cache", Any, None]:
        """Pin a cached prefix."""
        return Cache(self._after, self._after), self._cached_tokens, None

    def cacheable(self, _prompt: Any) -> bool:
        """Return whether it can hold the prompt."""
        return True

    def complete(self, _request_id: int, _prompt: Any, _blocks: Any, _stamp: int, _client: int) -> tuple["Cache", None]:
        """Cache and pin the prompt."""
        return Cache(self._after, self._after), None

    def release(self, _request_id: int) -> "Cache":
        """Drop the pin."""
        return Cache(self._after, self._after)

    def evict(self, _tokens: Any, _evictor: None) -> tuple["Cache", tuple[Any, ...]]:
        """Evict what is not protected."""
        return self, ()


def request_of(w: SimpleNamespace) -> Any:
    """Return the request of a claim's world."""
    prompt = SimpleNamespace(tokens=w.prompt, blocks=w.blocks, block_tokens=w.block_tokens)
    return SimpleNamespace(id=0, client=0, prompt=prompt, max_output_tokens=w.most, adapter="")


def state_of(w: SimpleNamespace, cache: Any, **fields: Any) -> WorkerState:
    """Return a worker with the world's sums and whatever else is given."""
    return replace(
        WorkerState(worker=0, capacity=w.capacity),
        cache=cache,
        promised=w.promised,
        used=w.used,
        clock=w.clock,
        **fields,
    )


MEMORY = (*at_least(0, "before", "promised"), Condition(lambda w: w.before + w.promised <= w.capacity))
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
    own = w.prompt + w.generated - w.cached
    try:
        done = worker._admit(state, Admission(0, 0, own, w.cached, w.reserved), 0, [])
    except worker.InfeasiblePlanError:
        return {}
    shown = ADMITTED.shown(
        **_after(w, done),
        C=w.capacity,
        kv_after=done.in_flight[0].kv_tokens,
        own=own,
        cached=w.cached,
        reserved=w.reserved,
        left=w.most - w.generated,
    )
    return {**shown, "nothing is left that is not free": done.free >= 0}


def _known(w: SimpleNamespace) -> SimpleNamespace:
    """Return the world in which it was asked, once, whether the request has a reservation."""
    return SimpleNamespace(**{**vars(w), "is_reserved": bool(w.is_reserved)})


def _after(w: SimpleNamespace, done: WorkerState) -> dict[str, Any]:
    protected = done.cache.tree.protected_tokens
    return {"protected_after": protected, "promised": w.promised, "promised_after": done.promised}


def _prefills(w: SimpleNamespace) -> Shown:
    """`_prefill` of the last chunk moves the prompt from the request's promise into the cache."""
    w = _known(w)
    done = worker._prefill(flying(w, None, remaining=w.chunk), 0, w.chunk, 0, [], {}, [])
    flight = done.in_flight[0]
    grew = 0 if w.is_reserved else 1
    moved = w.blocks * w.block_tokens - (w.prompt + w.generated - w.extend)
    shown = CACHED.shown(
        **_after(w, done),
        protected=w.before,
        kv=w.kv,
        kv_after=flight.kv_tokens + grew,
        own=w.extend,
        grew=grew,
        # One that takes a token a step is counted, unless its first is its last.
        joins=grew * done.decoding,
        growing=w.growing,
        growing_after=done.growing,
    )
    return {"what moves is what was extended into the prompt": done.running[0].moved_tokens == moved, **shown}


def _releases(w: SimpleNamespace) -> Shown:
    """`release` gives back the request's promise and what it grew beyond it, while it decodes or before."""
    w = _known(w)
    shown: dict[str, Any] = {}
    for name, clock_start in (("it decodes", w.clock_start), ("it prefills", None)):
        state = flying(w, clock_start, remaining=0 if clock_start is not None else w.chunk, decodes=True)
        done = worker_batch.release(state, 0)
        grew = 0 if w.is_reserved or clock_start is None else 1 + w.clock - w.clock_start
        takes = 0 if w.is_reserved or clock_start is None else 1
        sums = {"promised": w.promised, "promised_after": done.promised, "growing": w.growing}
        contract = RELEASED.shown(**sums, growing_after=done.growing, kv=w.kv + grew, g=takes)
        shown |= {f"{said}, as {name}": holds for said, holds in contract.items()}
    return shown


def _pauses(w: SimpleNamespace) -> Shown:
    """`pause` of a request that decodes, and `unpause` when the clock has gone on by `chunk` steps."""
    w = _known(w)
    state = flying(w, w.clock_start, remaining=0, decodes=True)
    paused = worker_batch.pause(state, 0, 0)
    if isinstance(paused, str):
        return {"it is paused": False}
    later = replace(paused[0], clock=w.clock + w.chunk)
    resumed = worker_batch.unpause(later, 0, 0)
    if isinstance(resumed, str):
        return {"it is resumed": False}
    takes = 0 if w.is_reserved else 1

    def kv(at: WorkerState) -> Any:
        flight = at.in_flight[0]
        return flight.kv_tokens + takes * worker_batch.produced(at, flight)

    def numbers(before: WorkerState, after: WorkerState) -> dict[str, Any]:
        sums = {"promised": before.promised, "promised_after": after.promised, "kv": kv(before), "kv_after": kv(after)}
        return {**sums, "growing": before.growing, "growing_after": after.growing}

    return {
        **{f"paused, {said}": holds for said, holds in PAUSED.shown(**numbers(state, paused[0]), g=takes).items()},
        **{
            f"resumed, {said}": holds
            for said, holds in RESUMED.shown(**numbers(later, resumed[0]), joins=takes).items()
        },
    }


def _grows(w: SimpleNamespace) -> Shown:
    """`begin` refuses growth that does not fit, and `finish` promises exactly that."""
    state = replace(state_of(w, Cache(w.before, w.before)), decoding=w.growing, growing=w.growing)
    done, _ = worker.finish(state, StepPlan(), 1, 0)
    return {**GREW.shown(promised=w.promised, promised_after=done.promised, growing=w.growing), **_begins(w)}


def _leaps(w: SimpleNamespace) -> Shown:
    """Return the longest leap of `decode_steps_max`: each of its steps grows as one does, and its last had room."""
    cache: Any = Cache(w.before, w.before)
    cache.tree.cached_tokens = w.after
    end: Any = SimpleNamespace(chunks=(((w.clock + w.chunk, 0),),))
    state = replace(state_of(w, cache), decoding=1, growing=w.growing)
    steps = replace(state, ends=end).decode_steps_max()
    done, _ = worker.finish(state, StepPlan(), steps, 0)
    before = w.promised + w.growing * (steps - 1)
    shown = GREW.shown(promised=before, promised_after=done.promised, growing=w.growing) | BEGUN.shown(
        C=w.capacity, protected=w.before, promised=before, growing=w.growing, entering=0, due_after=w.growing
    )
    return {name: if_then(steps >= 1, holds) for name, holds in shown.items()}


def _begins(w: SimpleNamespace) -> Shown:
    """`begin` of a step in which a request computes a chunk beside those that decode."""
    w = _known(w)
    cache: Any = Cache(w.before, w.before)
    cache.tree.cached_tokens = w.after
    state = replace(flying(w, None, remaining=w.chunk), cache=cache, decoding=w.growing)
    try:
        begun, _ = worker.begin(state, StepPlan(chunks=((0, w.chunk),)), 0)
    except worker.InfeasiblePlanError:
        return {}
    entering = 0 if w.is_reserved else 1
    shown = BEGUN.shown(
        C=w.capacity,
        protected=begun.cache.tree.protected_tokens,
        promised=begun.promised,
        growing=w.growing,
        entering=entering,
        due_after=w.growing + entering,
    )
    return {f"{name}, with a chunk": holds for name, holds in shown.items()}


class _Ends:
    """When requests end, of which only this one's end is known."""

    def remove(self, _end: Any) -> "_Ends":
        """Return a copy without it."""
        return self

    def add(self, _end: Any) -> "_Ends":
        """Return a copy with it."""
        return self


def flying(w: SimpleNamespace, clock_start: Any, remaining: Any, *, decodes: bool = False) -> WorkerState:
    """Return a worker on which the world's request runs, beside any others; if it `decodes`, it is counted there."""
    waiting = Waiting(request_of(w), w.output, w.generated)
    flight = InFlight(0, 0, 0, w.prompt + w.generated, remaining, w.kv, bool(w.is_reserved), clock_start)
    prefilling = () if clock_start is not None else ((0, remaining),)
    empty = state_of(w, Cache(w.before, w.after), prefilling=prefilling, growing=w.growing)
    end: Any = w.clock + 1 if decodes and clock_start is not None else None
    if end is not None:
        empty = replace(empty, ends=_Ends(), clients=(0,), counts=(1,), decoding=1)
    return replace(
        empty,
        running=Map({0: Running(waiting, w.extend, clock_end=end)}),
        in_flight=Map({0: flight}),
        ranks=empty.ranks.add((0, 0)),
    )


NAMES = (
    *("capacity", "before", "after", "promised", "used", "clock", "clock_start", "prompt", "blocks", "block_tokens"),
    *("generated", "output", "most", "cached", "reserved", "extend", "chunk", "kv", "is_reserved", "growing"),
)


def claims() -> tuple[ArithmeticClaim, ...]:
    """Return the worker's functions on symbolic integers."""
    conditions = (
        *MEMORY,
        *LENGTHS,
        *at_least(0, "after", "cached"),
        Condition(lambda w: w.cached < w.prompt + w.generated),
        *at_least(0, "reserved"),
        *at_least(1, "chunk", "growing"),
    )
    # A cached prefix is protected once it is pinned.
    pinned = Condition(lambda w: w.cached <= w.after)
    # The blocks of a prompt are part of it; of those that are cached the request keeps nothing of its own.
    moved = (
        *at_least(1, "extend"),
        Condition(lambda w: w.extend <= w.prompt + w.generated),
        Condition(lambda w: w.blocks * w.block_tokens <= w.prompt),
        Condition(lambda w: w.kv >= w.extend),
        # Completing a prompt protects no more than the request moves.
        Condition(lambda w: w.before <= w.after),
        Condition(lambda w: w.after - w.before <= w.blocks * w.block_tokens - (w.prompt + w.generated - w.extend)),
    )
    running = Condition(lambda w: w.clock >= w.clock_start)
    return (
        ArithmeticClaim(workers.theorems.KV_ADMIT, NAMES, (*conditions, pinned), _admits),
        ArithmeticClaim(workers.theorems.KV_PREFILL, NAMES, (*conditions, *moved), _prefills),
        ArithmeticClaim(workers.theorems.KV_RELEASE, NAMES, (*conditions, running), _releases),
        ArithmeticClaim(workers.theorems.KV_PAUSE, NAMES, (*conditions, running), _pauses),
        ArithmeticClaim(workers.theorems.KV_GROW, NAMES, conditions, _grows),
        ArithmeticClaim(workers.theorems.KV_LEAP, NAMES, conditions, _leaps, relaxed=True),
    )
