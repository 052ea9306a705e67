"""Round robin, join-shortest-queue, power of two and LMetric: P-RR-1 to P-LM-2, for any number of workers.

The shipped `route` is run on unknown integers.  Its row of workers has an unknown length: `len` gives a symbol, and an
index any worker.  `min` and `draw` are what their contracts say: one of the row of which none measures less, any number
in range.  Two or three workers are named and stand for all, since the statements are about pairs.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from immutables import Map

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.request import Prompt, Request
from fairsched.policies import routers
from fairsched.verify import logic as v

_ANY: Any = SimpleNamespace(id=0, client=0)
"""A request of which nothing else matters."""


class _Row:
    """Workers 0 to `size` - 1, however many that are; `at` says how each is."""

    def __init__(self, size: Any, at: Callable[[Any], Any]) -> None:
        self.size = size
        self.at = at

    def __getitem__(self, index: Any) -> Any:
        return self.at(index)


def _size(row: _Row) -> Any:
    return row.size


# --- round robin ------------------------------------------------------------------------------------------------------


def _turn(router: Any, state: Any, size: Any) -> tuple[Any, Any]:
    view = SimpleNamespace(workers=_Row(size, lambda index: SimpleNamespace(worker=index)))
    dispatch, after = v.with_names(type(router).route, len=_size)(router, state, _ANY, view)
    return dispatch.worker, after.placed


def _spread(router: Any, count: int) -> int:
    """Return how much counts of two workers differ after so many requests of one token each."""
    state, queues = router.init(), [0, 0]
    for i in range(count):
        view = ClusterView(0, tuple(WorkerLoad(worker, queue, 0, queue, 9, 9) for worker, queue in enumerate(queues)))
        dispatch, state = router.route(state, Request(i, 0, 0, Prompt(1), 1), view)
        queues[dispatch.worker] += 1
    return abs(queues[0] - queues[1])


def _counted(worker: Any, w: SimpleNamespace) -> Any:
    return w.q + v.one_if(worker < w.r) - w.Q - v.one_if(worker < w.R)


def _a_worker(name: str) -> v.Condition:
    return v.Condition(lambda w: (getattr(w, name) >= 0) & (getattr(w, name) < w.m))


@v.arithmetic(
    routers.load_based.P_RR_1,
    ("m", "q", "r", "Q", "R", "a", "b"),
    v.Condition(lambda w: (w.m >= 1) & (w.q >= 0) & (w.Q >= 0)),
    *map(_a_worker, ("r", "R", "a", "b")),
    attained=lambda: (_spread(routers.RoundRobin(), 1), 1),
)
def round_robin(
    w: SimpleNamespace, kind: Any = routers.RoundRobin, per_client: Any = routers.PerClientRoundRobin
) -> v.Shown:
    """Before turn q m + r, worker i had q + 1 turns if i < r, or else q.

    A client's turns begin at turn Q m + R, those of all clients together at 0.
    """
    now = w.q * w.m + w.r
    worker, after = _turn(kind(), routers.load_based.TurnState(now), w.m)
    of_client, client_after = _turn(per_client(), routers.load_based.ClientTurnState(Map({0: now})), w.m)
    then = SimpleNamespace(**{**vars(w), "q": w.q + v.one_if(w.r + 1 >= w.m)})
    then.r = (w.r + 1) * v.one_if(w.r + 1 < w.m)
    difference = _counted(w.a, then) - _counted(w.b, then)
    return {
        "the next turn": (after == now + 1) & (client_after[0] == now + 1),
        "the worker at turn": worker == w.r,
        "the worker at turn, for a client": of_client == w.r,
        "a's turns are counted": _counted(w.a, then) == _counted(w.a, w) + v.one_if(w.a == w.r),
        "a and b differ by at most 1": (difference <= 1) & (difference >= -1),
    }


# --- join the shortest queue ------------------------------------------------------------------------------------------

_THREE = ("a", "b", "c")
"""Any two workers, and the one that is chosen if that is neither."""


class _NotTheLeastError(Exception):
    """What `chosen` says is not what `min` may return."""


def _joined(kind: Any, measure: str, w: SimpleNamespace) -> int:
    """Return which of the three is chosen, where `w.chosen` says which of the shortest `min` takes."""

    def least(row: tuple[WorkerLoad, ...], key: Callable[[WorkerLoad], Any]) -> WorkerLoad:
        found = row[0] if w.chosen == 0 else row[1] if w.chosen == 1 else row[2]
        if any(key(other) < key(found) for other in row):
            raise _NotTheLeastError
        return found

    late = [getattr(w, f"{name}_late") for name in _THREE]
    reported = [getattr(w, name) - behind for name, behind in zip(_THREE, late, strict=True)]
    of_requests = measure == "requests"
    view = SimpleNamespace(
        workers=tuple(
            WorkerLoad(i, queue, 0, 0, 0, 0) if of_requests else WorkerLoad(i, 0, 0, queue, 0, 0)
            for i, queue in enumerate(reported)
        )
    )
    route = v.with_names(kind.route, min=least)
    dispatch, _ = route(v.unchecked(kind, measure=measure), routers.load_based.NoRouterState(), _ANY, view)
    return int(dispatch.worker)


def shortest_queue(kind: Any = routers.JoinShortestQueue, measure: str = "requests") -> v.ArithmeticClaim:
    """Queues of a, b and c differ by at most `most`, and a request of `size` comes."""
    is_count = measure == "requests"

    def shows(w: SimpleNamespace) -> v.Shown:
        try:
            chosen = _joined(kind, measure, w)
        except _NotTheLeastError:
            return {}
        before = (w.a, w.b, w.c)
        a, b = (before[i] + (w.size if i == chosen else 0) - left for i, left in enumerate((w.a_left, w.b_left)))
        shown = {"a and b still differ by at most that": (a - b <= w.most) & (b - a <= w.most)}
        if is_count:
            raised = (before[chosen] + 1 > w.longest) & (w.a <= w.longest) & (w.b <= w.longest) & (w.c <= w.longest)
            all_equal = (w.a == w.longest) & (w.b == w.longest) & (w.c == w.longest)
            shown["the longest is raised only if all are equal"] = v.if_then(raised, all_equal)
        return shown

    pairs = (("a", "b"), ("a", "c"), ("b", "c"))
    conditions = (
        v.Condition(lambda w: (w.chosen >= 0) & (w.chosen <= 2)),
        v.Condition(lambda w: (w.a >= 0) & (w.b >= 0) & (w.c >= 0)),
        v.Condition(lambda w: (w.size >= 1) & (w.size <= w.most)),
        *((v.Condition(lambda w: w.most == 1),) if is_count else ()),
        *(v.Condition(lambda w, p=p: _apart(w, *p) <= w.most) for p in (*pairs, *((y, x) for x, y in pairs))),  # type: ignore[misc]
        *(v.Condition(lambda w, n=n: getattr(w, n) >= 0) for n in ("a_late", "b_late", "c_late", "a_left", "b_left")),  # type: ignore[misc]
        v.Condition(lambda w: (w.a_late == 0) & (w.b_late == 0) & (w.c_late == 0), routers.load_based.REPORTS_FRESH),
        v.Condition(lambda w: (w.a_left == 0) & (w.b_left == 0), routers.load_based.NOBODY_LEAVES),
    )
    names = (*_THREE, "chosen", "most", "size", "longest", "a_late", "b_late", "c_late", "a_left", "b_left")
    theorem = routers.load_based.P_JSQ_1 if is_count else routers.load_based.P_JSQ_TOKENS
    router = routers.JoinShortestQueue(measure="requests" if is_count else "tokens")
    return v.ArithmeticClaim(theorem, names, conditions, shows, attained=lambda: (_spread(router, 3), 1))


def _apart(w: SimpleNamespace, one: str, other: str) -> Any:
    return getattr(w, one) - getattr(w, other)


# --- power of two -----------------------------------------------------------------------------------------------------


def _of_two(kind: Any, w: SimpleNamespace) -> tuple[Any, list[Any]]:
    """Return where the request goes of `m` workers if `first` and `second` are drawn, and whom it looks at."""
    drawn = iter((w.first, w.second))
    seen: list[Any] = []

    def at(index: Any) -> WorkerLoad:
        seen.append(index)
        return WorkerLoad(index, w.queue if len(seen) == 1 else w.other_queue, 0, 0, 0, 0)

    names = {"len": _size, "draw": lambda _seed, _drawn, _count: next(drawn)}
    view = SimpleNamespace(workers=_Row(w.m, at))
    dispatch, _ = v.with_names(kind.route, **names)(kind(), routers.load_based.DrawState(), _ANY, view)
    return dispatch.worker, seen


@v.arithmetic(
    routers.load_based.P_P2C_1,
    ("m", "first", "second", "queue", "other_queue"),
    *v.at_least(2, "m"),
    v.Condition(lambda w: (w.first >= 0) & (w.first < w.m)),
    v.Condition(lambda w: (w.second >= 0) & (w.second < w.m - 1)),
    v.Condition(lambda w: (w.queue >= 0) & (w.other_queue >= 0)),
)
def power_of_two(w: SimpleNamespace, kind: Any = routers.PowerOfTwo) -> v.Shown:
    """Of m >= 2 workers; whom it looks at first has `queue` requests."""
    worker, seen = _of_two(kind, w)
    if len(seen) < 2:  # With one worker there is no choice.
        return {}
    one, other = seen
    return {
        "both are workers": (one >= 0) & (one < w.m) & (other >= 0) & (other < w.m),
        "the two differ": one != other,
        "the shorter queue is chosen": v.if_then(worker == one, w.queue <= w.other_queue)
        & v.if_then(worker == other, w.other_queue <= w.queue),
        "one of them is chosen": (worker == one) | (worker == other),
    }


# --- tokens missed times requests -------------------------------------------------------------------------------------


def _of_product(kind: Any, prompt: Any, missed: Any, requests: Any) -> Any:
    return kind().rank(WorkerLoad(0, requests, 0, 0, 0, 0), prompt, prompt - missed)


@v.arithmetic(
    routers.P_LM_1,
    ("n", "missed", "requests", "other_missed", "other_requests", "k"),
    *v.at_least(1, "missed", "other_missed", "k"),
    *v.at_least(0, "requests", "other_requests"),
    v.Condition(lambda w: (w.missed <= w.n) & (w.other_missed <= w.n)),
)
def least_product(w: SimpleNamespace, kind: Any = routers.LMetric) -> v.Shown:
    """A worker and another one: the first is chosen before it, where its rank is less."""
    here, _ = _of_product(kind, w.n, w.missed, w.requests)
    there, _ = _of_product(kind, w.n, w.other_missed, w.other_requests)
    more = (w.missed >= w.other_missed) & (w.requests >= w.other_requests)
    strictly = (w.missed > w.other_missed) | (w.requests > w.other_requests)
    scaled, _ = _of_product(kind, w.k * w.n, w.k * w.missed, w.requests)
    batches, _ = _of_product(kind, w.n, w.missed, w.k * (w.requests + 1) - 1)
    return {
        "more of one and no less of the other ranks later": v.if_then(more & strictly, here > there),
        "the rank counts missed tokens k times": scaled == w.k * here,
        "the rank counts requests k times": batches == w.k * here,
    }


def _warm_requests(prompt: int) -> int:
    """Return how many requests of one prompt go to the worker that holds it, before one goes to an idle worker."""
    router = routers.LMetric()
    state, queues = router.init(), [0, 0]
    while not queues[1]:
        view = ClusterView(0, tuple(WorkerLoad(i, queue, 0, 0, 9_999, 9_999) for i, queue in enumerate(queues)))
        asked = Request(sum(queues), 0, 0, Prompt.from_keys(range(prompt), tokens=prompt), 1)
        dispatch, state = router.route(state, asked, view)
        queues[dispatch.worker] += 1
    return queues[0]


@v.arithmetic(
    routers.P_LM_2,
    ("n", "missed", "requests", "other_missed", "other_requests"),
    *v.at_least(1, "missed", "other_missed"),
    *v.at_least(0, "requests", "other_requests"),
    v.Condition(lambda w: (w.missed <= w.n) & (w.other_missed <= w.n) & (w.n >= 2)),
    attained=lambda: (_warm_requests(7), 6),
)
def product_apart(w: SimpleNamespace, kind: Any = routers.LMetric) -> v.Shown:
    """The first worker is chosen, so that its rank is no larger than the other's, nor equal with more requests."""
    here, _ = _of_product(kind, w.n, w.missed, w.requests)
    there, _ = _of_product(kind, w.n, w.other_missed, w.other_requests)
    chosen = (here < there) | ((here == there) & (w.requests <= w.other_requests))
    return {"fewer than n times the other's": v.if_then(chosen, w.requests + 1 < w.n * (w.other_requests + 1))}


def _stays_near(w: SimpleNamespace) -> v.Shown:
    return {"requests differ by at most that": _warm_requests(w.prompt) <= w.most}


# --- what is false ----------------------------------------------------------------------------------------------------


def _alone_on_top(queues: list[int], chosen: int) -> bool:
    return queues.count(max(queues)) == 1 and queues[chosen] == max(queues)


class _AtLeast:
    """A worker in an order of which a worker is before itself."""

    def __init__(self, load: int) -> None:
        self.load = load

    def __lt__(self, other: "_AtLeast") -> bool:
        return self.load <= other.load


def _spared(kind: Any, is_broken: Callable[[list[int], int], bool]) -> v.Shows:
    """Return which worker power of two spares of three workers, whatever it draws."""

    def shows(w: SimpleNamespace) -> v.Shown:
        view = ClusterView(0, tuple(WorkerLoad(i, queue, 0, 0, 1, 1) for i, queue in enumerate(w.queues)))
        dispatch, _ = kind().route(routers.load_based.DrawState(w.drawn), _ANY, view)
        return {"the most loaded worker is spared": not is_broken(w.queues, dispatch.worker)}

    return shows


def _queues() -> Iterator[Mapping[str, Any]]:
    """Yield three workers with up to two requests, and eight draws."""
    for queues in product(range(3), repeat=3):
        yield from ({"queues": list(queues), "drawn": drawn} for drawn in range(0, 16, 2))


def _drawn_twice() -> Any:
    """Power of two, both draws of which are of all workers."""
    replaced = v.changed(routers.PowerOfTwo, "route", "drawn + 1, len(workers) - 1", "drawn + 1, len(workers)")
    return v.changed(replaced, "route", "other += 1", "other += 0")


def _first_of_sorted(w: SimpleNamespace) -> v.Shown:
    order = list(enumerate(w.loads))
    found = {min(each, key=lambda one: _AtLeast(one[1]))[0] for each in (order, order[::-1])}
    return {"the same worker": len(found) == 1, "no worker is before itself": not _AtLeast(0) < _AtLeast(0)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Folklore about power of two, and an order that is none."""
    return (
        v.refuted(
            "F-P2C-1",
            "power of two never picks the one most loaded worker",
            "folklore",
            _spared(_drawn_twice(), _alone_on_top),
            {"queues": [0, 1, 0], "drawn": 12},
            variant="two draws of all workers (a variant that ships nowhere)",
            instead=routers.load_based.P_P2C_1.id,
            text="queues 0, 1, 0, and worker 1 is drawn twice",
            worlds=_queues,
        ),
        v.refuted(
            "F-P2C-1-ties",
            "power of two never picks one of the most loaded workers, unless all are equal",
            "folklore",
            _spared(routers.PowerOfTwo, lambda q, i: min(q) < max(q) == q[i]),
            {"queues": [0, 1, 1], "drawn": 10},
            variant="what ships: of two that are both most loaded, one is chosen",
            instead=routers.load_based.P_P2C_1.id,
            text="queues 0, 1, 1, and both others are drawn",
            worlds=_queues,
        ),
        v.refuted(
            "F-LM-1",
            "multiplied by the batch's size, locality never leaves one worker more than a constant above an idle one",
            "LMetric (2603.15202), which claims balance without a weight",
            _stays_near,
            {"prompt": 66, "most": 64},
            variant="what ships",
            instead=routers.P_LM_2.id,
            text="65 requests for one prompt of 66 tokens go to the worker that holds it, beside an idle one",
            worlds=lambda: ({"prompt": most + 2, "most": most} for most in range(1, 65)),
        ),
        v.refuted(
            "F-LL-1",
            "workers sorted by load with `at least` begin with one that does not depend on their order",
            "Llumnix (OSDI'24), released code",
            _first_of_sorted,
            {"loads": [0, 0]},
            variant="a comparison that holds between a worker and itself",
            instead=routers.load_based.P_JSQ_1.id,
            text="two workers of load 0: whichever comes last in the list is found",
            worlds=lambda: ({"loads": [a, b]} for a in range(2) for b in range(2)),
        ),
    )


def claims() -> tuple[v.ArithmeticClaim, ...]:
    """About the routers that ship."""
    return (
        round_robin(),
        shortest_queue(),
        shortest_queue(measure="tokens"),
        power_of_two(),
        least_product(),
        product_apart(),
    )


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    by_negative = v.with_names(routers.JoinShortestQueue.route, MEASURES={"requests": _negative, "tokens": _negative})
    without_one = v.changed(routers.LMetric, "rank", "(requests + 1)", "requests")
    by_cache = v.changed(routers.LMetric, "rank", "(requests + 1)", "1")
    longest = type("Longest", (routers.JoinShortestQueue,), {"route": by_negative})
    return (
        v.Bug(
            "a turn is left out", round_robin(kind=v.changed(routers.RoundRobin, "route", "placed + 1", "placed + 2"))
        ),
        v.Bug(
            "a client's turn is not counted",
            round_robin(per_client=v.changed(routers.PerClientRoundRobin, "route", "turn + 1", "turn")),
        ),
        v.Bug("the longest queue is joined", shortest_queue(longest)),
        v.Bug("the longest queue is joined, in tokens", shortest_queue(longest, "tokens")),
        v.Bug("an idle worker ranks first, whatever it misses", least_product(without_one)),
        v.Bug("a held prompt ranks first, whatever waits there", product_apart(by_cache)),
        v.Bug(
            "one may be drawn twice",
            power_of_two(v.changed(routers.PowerOfTwo, "route", "other >= one", "other > one")),
        ),
        v.Bug(
            "the longer of the two", power_of_two(v.changed(routers.PowerOfTwo, "route", "(second) <", "(second) >"))
        ),
    )


def _negative(load: WorkerLoad) -> int:
    return -routers.load_based.MEASURES["requests"](load) - load.waiting_tokens
