"""Where requests and their KV are, for any number of requests, transfers and workers, whatever fails: KV-move.

Each event happens to any set of requests at once, so that a worker which dies takes all that it has with it.  What is
counted of a request: `held` by the dispatcher, `placed` in a worker's queue or batch, `staged` at a worker, and `over`;
`kv` counts its copies, `kept` the reservations for it, and `way` its transfers under way.  That the worker's functions
take these steps is shown in `fairsched.verify.proofs.memory.transit`.
"""

from collections.abc import Callable

from fairsched.model import worker
from fairsched.model.algebra import Algebra
from fairsched.verify.logic import Claim, Clause, Event, Kind, Need, System, Term, World, Written, implies, same

_WHERE = ("held", "placed", "staged", "over")


def _all(o: Algebra, w: World, **changes: int) -> dict[str, Term]:
    """Return each request of the event's set, with these counts changed by so much."""
    return {name: o.where(w.m, getattr(w, name) + change, getattr(w, name)) for name, change in changes.items()}


def _none(o: Algebra, w: World, *names: str) -> dict[str, Term]:
    """Return each request of the event's set, with none of these left."""
    return {name: o.where(w.m, 0, getattr(w, name)) for name in names}


def _each(*least: str, zero: tuple[str, ...] = ()) -> Need:
    """State that each request of the event's set counts at least one of these, and none of `zero`."""

    def holds(o: Algebra, w: World) -> Term:
        found = w.held >= w.held
        for name in least:
            found = found & (getattr(w, name) >= 1)
        for name in zero:
            found = found & (getattr(w, name) <= 0)
        return implies(o, w.m, found)

    return Need(holds)


def _happens(name: str, step: Callable[[Algebra, World], Written], need: Need) -> Event:
    return Event(name, step, {"m": Kind.MASK}, (need,), happens=lambda o, w: o.any(w.m))


def _arrives(o: Algebra, w: World) -> Written:
    """`receive` at the target and then `sent` at the source, in one instant."""
    received = _all(o, w, placed=1, kv=1, kept=-1, way=-1)
    freed = World(**{**vars(w), **received})
    return {**received, **_all(o, freed, staged=-1, kv=-1)}


def move_events() -> tuple[Event, ...]:
    """Return what happens to requests that go from worker to worker."""
    gone = ("kv", "kept", "way")
    return (
        _happens("placed", lambda o, w: _all(o, w, held=-1, placed=1), _each("held")),
        _happens("its prompt is computed", lambda o, w: _all(o, w, kv=1), _each("placed", zero=("kv",))),
        _happens("its KV is dropped where it is", lambda o, w: _none(o, w, "kv"), _each("placed")),
        _happens("staged", lambda o, w: _all(o, w, placed=-1, staged=1), _each("placed", "kv")),
        _happens("memory is kept for it", lambda o, w: _all(o, w, kept=1), _each(zero=("held", "over", "kept"))),
        _happens("its KV is sent", lambda o, w: _all(o, w, way=1), _each("staged", "kept", zero=("way",))),
        _happens("its KV arrives", _arrives, _each("way")),
        _happens("its target or a link fails", lambda o, w: _none(o, w, "kept", "way"), _each(zero=("held", "over"))),
        _happens(
            "the worker fails where it is staged",
            lambda o, w: {**_all(o, w, staged=-1, held=1), **_none(o, w, *gone)},
            _each("staged"),
        ),
        _happens(
            "the worker fails where it is placed",
            lambda o, w: {**_all(o, w, placed=-1, held=1), **_none(o, w, *gone)},
            _each("placed"),
        ),
        _happens(
            "goes on where it is staged",
            lambda o, w: {**_all(o, w, staged=-1, placed=1), **_none(o, w, "kept", "way")},
            _each("staged"),
        ),
        _happens(
            "leaves without its KV",
            lambda o, w: {**_all(o, w, staged=-1, held=1), **_none(o, w, *gone)},
            _each("staged"),
        ),
        _happens(
            "ends at its worker", lambda o, w: {**_all(o, w, placed=-1, over=1), **_none(o, w, *gone)}, _each("placed")
        ),
        _happens(
            "is cancelled on its way",
            lambda o, w: {**_all(o, w, staged=-1, over=1), **_none(o, w, *gone)},
            _each("staged"),
        ),
    )


def moves_claim(events: tuple[Event, ...] | None = None) -> Claim:
    """KV-move, about other events if any are given."""
    counts = (*_WHERE, "kv", "kept", "way")

    def somewhere(o: Algebra, w: World) -> Term:
        return same(w.held + w.placed + w.staged + w.over, 1)

    invariants = (
        *(Clause(f"{name} >= 0", lambda o, w, name=name: getattr(w, name) >= 0) for name in counts),
        Clause("a request is at one place", somewhere),
        Clause("its KV is where it is, once", lambda o, w: w.kv <= w.placed + w.staged),
        Clause("a staged request has its KV", lambda o, w: w.staged <= w.kv),
        Clause("what is kept is for a request that may come, once", lambda o, w: w.kept <= w.placed + w.staged),
        Clause("memory is kept for what is under way", lambda o, w: w.way <= w.kept),
        Clause("what is under way is still at its source", lambda o, w: w.way <= w.staged),
    )
    return Claim(
        worker.theorems.KV_MOVE,
        System("requests and KV between workers", {}, (), dict.fromkeys(counts, Kind.VECTOR), events or move_events()),
        (
            Clause("the dispatcher has all", lambda o, w: same(w.held, 1)),
            *(Clause(f"{name} = 0", lambda o, w, name=name: same(getattr(w, name), 0)) for name in counts[1:]),
        ),
        invariants,
        (
            Clause("never at two places, never at none", somewhere),
            Clause("no KV twice", lambda o, w: w.kv <= 1),
            Clause("no KV lost on its way", lambda o, w: w.way <= w.kv),
            Clause("nothing is sent to where nothing is kept", lambda o, w: w.way <= w.kept),
            Clause("nothing is kept for a request that is over", lambda o, w: w.over + w.kept <= 1),
        ),
    )


def claims() -> tuple[Claim, ...]:
    """About the order of claims that ships."""
    return (moves_claim(),)
