"""KV between two workers is never lost, duplicated or over-committed, whatever fails and whenever.

KV-transit is about one worker's books, for any number of requests, of which each runs, is staged, has memory kept for
KV to come, or waits with KV that came.  KV-stage to KV-landed run the shipped functions of
`fairsched.model.worker.transit` on symbolic integers, one request beside any others, and show that they do what its
equations say.  Where requests and KV are among any number of workers is KV-move (`moves`).
"""

from types import SimpleNamespace
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fairsched.model import worker as workers
from fairsched.model.algebra import Algebra
from fairsched.model.decision import Admission, Landed
from fairsched.model.worker import InfeasiblePlanError, NoRoomError, Outgoing, Transit, Waiting, WorkerState
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import transit, worker
from fairsched.verify.proofs.memory.memory import LENGTHS, MEMORY, NAMES, Cache, flying, request_of, state_of

# --- one worker, any number of requests -------------------------------------------------------------------------------

_MAPS = ("run", "out", "inc", "land")
"""What requests are promised that run, are staged, are to come, and came."""


def _of(o: Algebra, w: v.World, name: str) -> v.Term:
    return o.pick(getattr(w, name), w.r, 0)


def _moves(o: Algebra, w: v.World, source: str, target: str, tokens: v.Term, protects: v.Term = 0) -> v.Written:
    """Give up all that a request is promised in one of the maps for so much in the other."""
    return {
        source: o.put(getattr(w, source), w.r, 0),
        target: o.put(getattr(w, target), w.r, tokens),
        "promised": w.promised - _of(o, w, source) + tokens,
        "protected": w.protected + protects,
    }


def _gives_up(o: Algebra, w: v.World, name: str) -> v.Written:
    return {
        name: o.put(getattr(w, name), w.r, 0),
        "promised": w.promised - _of(o, w, name),
        "protected": w.protected - w.protects,
    }


def _fits(o: Algebra, w: v.World, freed: v.Term) -> v.Term:
    return w.x + w.protects <= w.C - w.protected - w.promised + freed


def _book_events() -> tuple[v.Event, ...]:
    unpins = v.Need(lambda o, w: (w.protects >= 0) & (w.protects <= w.protected))
    nowhere = v.Need(lambda o, w: (_of(o, w, "run") <= 0) & (_of(o, w, "out") <= 0) & (_of(o, w, "inc") <= 0))
    not_landed = v.Need(lambda o, w: _of(o, w, "land") <= 0)

    def grows(o: Algebra, w: v.World) -> v.Written:
        return {"run": w.run + w.grown, "promised": w.promised + w.growth}

    def cached(o: Algebra, w: v.World) -> v.Written:
        more = {"run": o.bump(w.run, w.r, -w.x), "promised": w.promised - w.x}
        return {**more, "protected": w.protected + w.protects}

    return (
        # An admission gives up what the request came with, and takes what it needs.
        v.of_one(
            "admitted",
            lambda o, w: _moves(o, w, "land", "run", w.x, w.protects),
            nowhere,
            lambda o, w: (w.x >= 1) & (w.protects >= 0) & _fits(o, w, _of(o, w, "land")),
            facts="x protects",
        ),
        v.of_one(
            "the prompt is cached",
            cached,
            lambda o, w: (w.x >= 0) & (w.x <= _of(o, w, "run")) & (w.protects >= 0) & (w.protects <= w.x),
            facts="x protects",
        ),
        v.Event(
            "outputs grow",
            grows,
            {"grown": v.VECTOR, "growth": v.SCALAR},
            (
                lambda o, w: (w.grown >= 0) & v.implies(o, w.grown >= 1, w.run >= 1),
                lambda o, w: v.same(w.growth, v.total(o, w.grown)),
                lambda o, w: w.growth <= w.C - w.protected - w.promised,
            ),
        ),
        v.of_one("released", lambda o, w: _gives_up(o, w, "run"), unpins, facts="protects"),
        v.of_one(
            "staged from the batch",
            lambda o, w: _moves(o, w, "run", "out", w.x),
            *(nowhere_but("run"), not_landed, lambda o, w: (w.x >= 0) & (w.x <= _of(o, w, "run"))),
            facts="x",
        ),
        v.of_one(
            "staged from the queue",
            lambda o, w: _moves(o, w, "land", "out", w.x),
            *(nowhere_but("land"), lambda o, w: (w.x >= 0) & (w.x <= _of(o, w, "land"))),
            facts="x",
        ),
        v.of_one("sent", lambda o, w: _gives_up(o, w, "out"), unpins, facts="protects"),
        v.of_one(
            "reserved",
            lambda o, w: {"inc": o.put(w.inc, w.r, w.x), "promised": w.promised + w.x},
            *(nowhere, not_landed, lambda o, w: (w.x >= 1) & (w.x <= w.C - w.protected - w.promised)),
            facts="x",
        ),
        v.of_one("given back", lambda o, w: {"inc": o.put(w.inc, w.r, 0), "promised": w.promised - _of(o, w, "inc")}),
        v.of_one(
            "received", lambda o, w: _moves(o, w, "inc", "land", _of(o, w, "inc")), nowhere_but("inc"), not_landed
        ),
        v.of_one(
            "goes on where it is",
            lambda o, w: _moves(o, w, "out", "land", _of(o, w, "out")),
            *(nowhere_but("out"), not_landed),
        ),
        v.of_one("dropped", lambda o, w: _gives_up(o, w, "land"), unpins, facts="protects"),
    )


def nowhere_but(name: str) -> v.Need:
    """State that the request of the event is promised nothing but, maybe, in that map."""
    others = [each for each in _MAPS if each != name]
    return v.Need(lambda o, w: o.where(sum(_of(o, w, each) for each in others) <= 0, True, False))


def books_claim() -> v.Claim:
    """KV-transit."""
    books = (
        *(v.Clause(f"{name} >= 0", lambda o, w, name=name: getattr(w, name) >= 0) for name in _MAPS),
        v.Clause("promised is the sum of all four", lambda o, w: v.same(w.promised, w.sum)),
        v.Clause("protected >= 0", lambda o, w: w.protected >= 0),
        v.Clause("protected + promised <= C", lambda o, w: w.protected + w.promised <= w.C),
    )
    nothing = tuple(
        v.Clause(f"{name} = 0", lambda o, w, name=name: v.same(getattr(w, name), 0))
        for name in (*_MAPS, "promised", "protected")
    )
    return v.Claim(
        workers.theorems.KV_TRANSIT,
        v.System(
            "KV memory of a worker with transfers",
            parameters={"C": v.SCALAR},
            laws=(lambda o, w: w.C >= 1,),
            fields={**v.vectors(*_MAPS), "promised": v.SCALAR, "protected": v.SCALAR},
            events=_book_events(),
            derived={"sum": lambda o, w: v.total(o, w.run + w.out + w.inc + w.land)},
        ),
        nothing,
        books,
        (v.Clause("protected + all that is promised <= C", lambda o, w: w.protected + w.sum <= w.C),),
    )


# --- the shipped text -------------------------------------------------------------------------------------------------

_MORE = (*NAMES, "tokens", "own", "came", "cached_before", "cached_after", "under_way")
_BOOKS = (
    *MEMORY,
    *LENGTHS,
    *v.at_least(0, "used", "own", "came", "under_way"),
    *v.at_least(1, "tokens"),
    v.Condition(lambda w: w.used <= w.promised),
)


class Evictable(Cache):
    """A prefix cache of which the contract of evictions is known, too: how much is cached before and after."""

    def __init__(self, protected: Any, cached: Any, after: Any) -> None:
        super().__init__(protected, protected)
        self.tree.cached_tokens = cached
        self._cached_after = after

    def evict(self, _tokens: Any, _evictor: None) -> tuple["Evictable", tuple[Any, ...]]:
        """Evict."""
        return Evictable(self.tree.protected_tokens, self._cached_after, self._cached_after), ()


def _waiting(w: SimpleNamespace, kv_tokens: Any) -> Waiting:
    return Waiting(request_of(w), w.output, w.generated, kv_tokens)


def _holding(w: SimpleNamespace, cache: Any = None, **maps: Any) -> WorkerState:
    """Return a worker with the world's sums, whose maps of transfers hold these."""
    books = Transit(**{name: Map({0: value}) for name, value in maps.items()})
    return state_of(w, cache or Cache(w.before, w.after), transit=books)


def _queueing(w: SimpleNamespace, landed: Landed, kv_tokens: Any, cache: Any = None) -> WorkerState:
    """Return a worker in whose queue the world's request waits with its KV."""
    state = _holding(w, cache, landed=landed)
    return replace(state, queue=Map({0: _waiting(w, kv_tokens)}), queue_tokens=w.prompt + w.generated)


def _places(state: WorkerState) -> tuple[int, ...]:
    """Return how often the request is in batch, queue, and the three maps."""
    books = state.transit
    maps: tuple[Any, ...] = (state.in_flight, state.queue, books.outgoing, books.incoming, books.landed)
    return tuple(int(0 in each) for each in maps)


@v.arithmetic(
    workers.theorems.KV_STAGE,
    _MORE,
    *_BOOKS,
    *v.at_least(0, "after"),
    *v.at_least(1, "extend"),
    v.Condition(lambda w: w.clock >= w.clock_start),
    v.Condition(lambda w: w.extend <= w.prompt + w.generated),
    v.Condition(lambda w: w.kv >= w.extend + 1 + w.clock - w.clock_start),
    v.Condition(lambda w: (w.came <= w.own) & (w.own <= w.promised)),
)
def stages(w: SimpleNamespace, stage: Any = None) -> v.Shown:
    """From the batch, where the request decodes; and from the queue, where `came` of its `own` tokens are full."""
    stage = stage or transit.stage
    done, _ = stage(flying(w, w.clock_start, remaining=0), 0, 0)
    grew = 0 if w.is_reserved else 1 + w.clock - w.clock_start
    queued, _ = stage(_queueing(w, Landed(w.own, w.came), w.came), 0, 0)
    if 0 not in done.transit.outgoing or 0 not in queued.transit.outgoing:
        return {"it is staged": False}
    kept = done.transit.outgoing[0]
    return {
        "it is at one place": _places(done) == _places(queued) == (0, 0, 1, 0, 0),
        "it holds what it computed, but the last token": kept.own_tokens == w.extend + w.clock - w.clock_start,
        "promised falls by the rest of its promise": done.promised == w.promised - w.kv - grew + kept.own_tokens,
        "never more than before": done.promised <= w.promised,
        "used is what is left": done.used == w.used - 1,
        "all of its KV is there": kept.waiting.kv_tokens == w.prompt + w.generated + w.clock - w.clock_start,
        "no more than its KV": kept.own_tokens <= kept.waiting.kv_tokens,
        "from the queue, what is not full is free": queued.promised == w.promised - w.own + w.came,
        "from the queue, what is full stays": (queued.used == w.used)
        & (queued.transit.outgoing[0].own_tokens == w.came),
    }


@v.arithmetic(workers.theorems.KV_SENT, _MORE, *_BOOKS, *v.at_least(0, "after"), v.Condition(lambda w: w.own <= w.used))
def frees(w: SimpleNamespace, sent: Any = None) -> v.Shown:
    """Return what the source does when all has arrived."""
    done = (sent or transit.sent)(_holding(w, outgoing=Outgoing(_waiting(w, w.came), w.own)), 0)
    return {
        "it is nowhere": _places(done) == (0, 0, 0, 0, 0),
        "its promise is given back": done.promised == w.promised - w.own,
        "and its memory is free": done.used == w.used - w.own,
    }


@v.arithmetic(workers.theorems.KV_RESERVE, _MORE, *_BOOKS)
def reserves(w: SimpleNamespace, reserve: Any = None, unreserve: Any = None) -> v.Shown:
    """Memory is kept, or not; and a failure gives it back."""
    state = _holding(w)
    try:
        done = (reserve or transit.reserve)(state, 0, w.tokens, w.under_way)
    except NoRoomError:
        return {"it did not fit": w.before + w.promised + w.tokens + w.under_way > w.capacity}
    back = (unreserve or transit.unreserve)(done, 0)
    return {
        "memory is kept, and nothing else": _places(done) == (0, 0, 0, 1, 0),
        "promised grows by that": done.promised == w.promised + w.tokens,
        "protected + promised and the step under way <= C": w.before + done.promised + w.under_way <= w.capacity,
        "nothing is used yet": done.used == w.used,
        "given back, all is as before": (back.promised == w.promised) & (back.used == w.used),
        "and nothing is kept": _places(back) == (0, 0, 0, 0, 0),
    }


@v.arithmetic(
    workers.theorems.KV_RECEIVE,
    _MORE,
    *_BOOKS,
    v.Condition(lambda w: w.came <= w.tokens),
    v.Condition(lambda w: w.used + w.tokens <= w.promised),
    v.Condition(lambda w: (w.before <= w.cached_before) & (w.cached_before + w.used <= w.capacity)),
    # What an eviction leaves: enough is gone, or all that is not pinned.
    v.Condition(lambda w: (w.before <= w.cached_after) & (w.cached_after <= w.cached_before)),
    v.Condition(
        lambda w: (w.cached_after == w.before) | (w.cached_after + w.used + w.came + w.under_way <= w.capacity)
    ),
    v.Condition(lambda w: w.used + w.tokens + w.under_way <= w.promised),
)
def receives(w: SimpleNamespace, receive: Any = None) -> v.Shown:
    """Receive the KV where `tokens` were kept, while a step is under way that computes `under_way` tokens."""
    cache: Any = Evictable(w.before, w.cached_before, w.cached_after)
    state = _holding(w, cache, incoming=w.tokens)
    receive = receive or transit.receive
    done, _ = receive(state, request_of(w), w.output, 0, w.generated, w.came, w.under_way)
    landed = done.transit.landed[0]
    return {
        "it waits with its KV": _places(done) == (0, 1, 0, 0, 1),
        "nothing more is promised": done.promised == w.promised,
        "it has what was kept": landed.promised == w.tokens,
        "what came is used": done.used == w.used + w.came,
        "and fits into that": landed.used <= landed.promised,
        "cached + used and the step under way <= C": done.cache.tree.cached_tokens + done.used + w.under_way
        <= w.capacity,
    }


@v.arithmetic(workers.theorems.KV_RESUME, _MORE, *_BOOKS, v.Condition(lambda w: w.own <= w.used))
def resumes(w: SimpleNamespace, resume: Any = None, drop: Any = None) -> v.Shown:
    """Resume a staged request where it is; and, waiting, loses its KV."""
    state = _holding(w, outgoing=Outgoing(_waiting(w, w.came), w.own))
    done, _ = with_request(resume or transit.resume)(state, 0, 0)
    dropped = (drop or transit.unqueue_landed)(done, 0)
    return {
        "it waits with its KV": _places(done) == (0, 1, 0, 0, 1),
        "nothing moves": (done.promised == w.promised) & (done.used == w.used),
        "dropped, it waits without": _places(dropped) == (0, 1, 0, 0, 0),
        "and its memory is free": (dropped.promised == w.promised - w.own) & (dropped.used == w.used - w.own),
    }


def with_request(function: Any) -> Any:
    """Return the function, in which a request that is no struct is itself when a field of it changes."""

    def changed(value: Any, **fields: Any) -> Any:
        return value if isinstance(value, SimpleNamespace) else replace(value, **fields)

    return v.with_names(function, replace=changed)


@v.arithmetic(
    workers.theorems.KV_LANDED,
    _MORE,
    *_BOOKS,
    *v.at_least(0, "after", "cached", "reserved"),
    v.Condition(lambda w: w.cached < w.prompt + w.generated),
    v.Condition(lambda w: w.came < w.prompt + w.generated),
    v.Condition(lambda w: w.cached <= w.came),
    v.Condition(lambda w: (w.came <= w.own) & (w.own <= w.promised) & (w.came <= w.used)),
)
def lands(w: SimpleNamespace, admit: Any = None) -> v.Shown:
    """`_admit` of a request that holds `own` tokens, of which the KV of `came` tokens of its context fills as many."""
    context = w.prompt + w.generated
    cache: Any = Cache(w.before, w.after, w.cached)
    # Dropping the pin that it had protects nothing more.
    cache.release = lambda _request_id: cache
    state = _queueing(w, Landed(w.own, w.came), w.came, cache)
    try:
        done = (admit or worker._admit)(state, Admission(0, 0, context - w.came, w.cached, w.reserved), 0, [])
    except InfeasiblePlanError:
        return {}
    return {
        "it runs, and holds nothing else": _places(done) == (1, 0, 0, 0, 0),
        "it computes what did not come": done.in_flight[0].remaining_tokens == context - w.came,
        "its promise takes the place of what it held": done.promised
        == w.promised - w.own + context - w.cached + w.reserved,
        "protected + promised <= C": done.cache.tree.protected_tokens + done.promised <= w.capacity,
        "what came and is not cached is used": done.used == w.used - w.cached,
    }


def claims() -> tuple[v.Claim | v.ArithmeticClaim, ...]:
    """Return the claim for any number of requests, and those about the worker's functions."""
    return (books_claim(), stages(), frees(), reserves(), receives(), resumes(), lands())


# --- seeded bugs ------------------------------------------------------------------------------------------------------


def _keeps_nothing(state: WorkerState, outgoing: Outgoing) -> WorkerState:
    books = state.transit
    return replace(state, transit=replace(books, outgoing=books.outgoing.set(outgoing.waiting.request.id, outgoing)))


def _keeps_promise(state: WorkerState, request_id: int) -> WorkerState:
    books = state.transit
    return replace(state, transit=replace(books, incoming=books.incoming.delete(request_id)))


def _unasked(state: WorkerState, request_id: int, tokens: Any, under_way: Any = 0) -> WorkerState:
    books = state.transit
    return replace(
        state, promised=state.promised + tokens, transit=replace(books, incoming=books.incoming.set(request_id, tokens))
    )


def _kept_twice(state: WorkerState, request: Any, *came: Any) -> Any:
    done, events = transit.receive(state, request, *came)
    return replace(done, promised=done.promised + came[3]), events


def _still_here(state: WorkerState, request_id: int) -> WorkerState:
    done: WorkerState = transit.sent(state, request_id)
    return replace(done, transit=state.transit)


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    held_twice = v.with_names(worker._admit, unqueue_landed=lambda state, _: state)
    return (
        v.Bug(
            "the source frees before anything has arrived", stages(v.with_names(transit.stage, _kept=_keeps_nothing))
        ),
        v.Bug("the source keeps a copy that has arrived", frees(_still_here)),
        v.Bug("a failure forgets what is kept", reserves(unreserve=_keeps_promise)),
        v.Bug("more is kept than there is", reserves(_unasked)),
        v.Bug("what lands takes memory twice", receives(_kept_twice)),
        v.Bug("a request goes on, and its staged copy stays", resumes(drop=lambda state, _: state)),
        v.Bug("what landed is held beside the admission's promise", lands(held_twice)),
    )
