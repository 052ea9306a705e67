"""D-request: how long the bypass budget of a group lets others be let in before one request.

The kernel is `fairsched.policies.orders.abilities.bypass`.  Here the sort is that of the requests of one group, for any
number of them, of arrivals, of returns after a preemption and of requests that are given up.  `T` counts what was let
in since r came (or came back), `older0` who waited then and is older, `back` which older ones came back since.  An
order's scores do not occur: nothing is assumed of them.
"""

from collections.abc import Callable
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.policies.orders.abilities import D_HEAD, D_LINE, D_OLDER, D_PASSED, D_REQUEST, DUE_RESPECTED
from fairsched.verify.logic import (
    Claim,
    Clause,
    Event,
    Formula,
    Functions,
    Kind,
    Need,
    Rule,
    System,
    Term,
    World,
    Written,
    implies,
    one_step,
    only,
    same,
    spread,
    total,
)
from fairsched.verify.proofs.kernels import bypass


def _at(o: Algebra, w: World, name: str, point: str) -> Term:
    values = getattr(w, name)
    return o.pick(values, getattr(w, point), False if name in ("waits", "came") else 0)


def _count(o: Algebra, mask: Term) -> Term:
    return total(o, o.where(mask, 1, 0))


def _is(o: Algebra, w: World, point: str, other: str) -> Term:
    """Whether two points are one request."""
    return o.pick(only(o, w.place, getattr(w, point)), getattr(w, other), False)


_EXISTS = Need(lambda o, w: o.exists(w.p))
_NEW = Need(lambda o, w: o.where(_at(o, w, "came", "p"), False, True))
_WAITS = Need(lambda o, w: _at(o, w, "waits", "p"))
_RAN = Need(lambda o, w: o.where(_at(o, w, "waits", "p"), False, _at(o, w, "came", "p")))

_FIELDS = {"waits": Kind.MASK, "came": Kind.MASK, "place": Kind.VECTOR, "left": Kind.SCALAR}
_POINT = {"p": Kind.POINT}


def _events(kernel: Functions) -> tuple[Event, Event, Event, Event]:
    """Whatever may happen to the queue of a group."""

    def arrive(o: Algebra, w: World) -> Written:
        place = kernel.place(o, w.left, w.waiting)
        return {
            "waits": o.put(w.waits, w.p, True),
            "came": o.put(w.came, w.p, True),
            "place": o.put(w.place, w.p, place),
        }

    def leave(o: Algebra, w: World) -> Written:
        return {"waits": o.put(w.waits, w.p, False), "left": kernel.gone(o, w.left)}

    return (
        Event("come", arrive, _POINT, (_EXISTS, _NEW), (kernel.place,)),
        Event("come back", lambda o, w: {"waits": o.put(w.waits, w.p, True)}, _POINT, (_EXISTS, _RAN)),
        Event("let in", leave, _POINT, (_EXISTS, _WAITS), (kernel.gone,)),
        Event("give up", leave, _POINT, (_EXISTS, _WAITS), (kernel.gone,)),
    )


_KNOWN = Clause("waiting requests came", lambda o, w: implies(o, w.waits, w.came))
_NEXT = Clause(
    "the next place is after all others",
    lambda o, w: implies(o, w.came, w.left + w.waiting > w.place),
)
_EMPTY = (
    Clause("none came", lambda o, w: implies(o, w.came | w.waits, False)),
    Clause("none left", lambda o, w: same(w.left, 0)),
)


_EMPTY_QUEUE = Clause("none waits", lambda o, w: same(w.waiting, 0))
_NONE_COUNTED = (_EMPTY_QUEUE, Clause("none waits before r", lambda o, w: same(w.older, 0)))


def _measured(kernel: Functions) -> tuple[Event, Event, Event, Event]:
    """The events, where the queue's length is a number of its own, as it is in production."""
    come, back, let_in, give_up = _events(kernel)

    def counted(event: Event, more: int) -> Event:
        return event.also(waiting=lambda w: w.waiting + more)

    return counted(come, 1), counted(back, 1), counted(let_in, -1), counted(give_up, -1)


def _end(o: Algebra, w: World) -> Term:
    """The place of r, or of the request that comes next if r has not come."""
    return o.where(_at(o, w, "came", "r"), _at(o, w, "place", "r"), w.left + w.waiting)


def _is_older(o: Algebra, w: World) -> Term:
    """1 if p is older than r, as every request is until r comes, and 0 if not."""
    return o.where(_at(o, w, "place", "p") < _end(o, w), 1, 0)


def _counted(kernel: Functions) -> tuple[Event, Event, Event, Event]:
    """The measured events with `older`, a count of those who wait and are older than r."""
    come, back, let_in, give_up = _measured(kernel)

    def came(o: Algebra, w: World) -> Written:
        before_r = o.where(_is(o, w, "p", "r"), False, o.where(_at(o, w, "came", "r"), False, True))
        return {**come.step(o, w), "older": o.where(before_r, w.older + 1, w.older)}

    def and_older(event: Event, sign: int) -> Event:
        step: Rule = event.step

        def counted(o: Algebra, w: World) -> Written:
            one = _is_older(o, w)
            return {**step(o, w), "older": w.older + one if sign > 0 else w.older - one}

        return attrs.evolve(event, step=counted)

    return attrs.evolve(come, step=came), and_older(back, 1), and_older(let_in, -1), and_older(give_up, -1)


def _queue(name: str, events: tuple[Event, ...], counts: tuple[str, ...] = (), **derived: Formula) -> System:
    """The queue of a group and one request of it, r, with these counts."""
    return System(
        name,
        {"r": Kind.POINT},
        (Need(lambda o, w: o.exists(w.r)),),
        {**_FIELDS, **dict.fromkeys(("waiting", *counts), Kind.SCALAR)},
        events,
        derived,
    )


# --- places ---------------------------------------------------------------------------------------------------------


def _line(kernel: Functions) -> Claim:
    """`s` is any request that is not younger than r."""

    def between(o: Algebra, w: World) -> Term:
        return _count(o, w.came & (w.place >= _at(o, w, "place", "s")) & (w.place < _end(o, w)))

    def apart(o: Algebra, w: World) -> Term:
        s = _at(o, w, "place", "s")
        return implies(o, _at(o, w, "came", "s") & (s <= _end(o, w)), _end(o, w) - s >= w.between)

    queue = _queue("the line of a group", _measured(kernel), between=between)
    return Claim(
        D_LINE,
        attrs.evolve(
            queue.with_laws(Need(lambda o, w: o.exists(w.s))), parameters={**queue.parameters, "s": Kind.POINT}
        ),
        (*_EMPTY, _EMPTY_QUEUE),
        (_NEXT, Clause("r - s >= how many came from s on before r, or until now", apart)),
        (
            Clause(
                "r - s >= how many came from s on before r",
                lambda o, w: implies(o, _at(o, w, "came", "r"), apart(o, w)),
            ),
        ),
    )


def _passed(kernel: Functions) -> Claim:
    """`gone` counts who has left since r came, `ahead` who waited then."""
    come, back, let_in, give_up = _measured(kernel)

    def came(o: Algebra, w: World) -> Written:
        is_r = _is(o, w, "p", "r")
        return {**come.step(o, w), "gone": o.where(is_r, 0, w.gone), "ahead": o.where(is_r, w.waiting, w.ahead)}

    def exact(o: Algebra, w: World) -> Term:
        return implies(o, _at(o, w, "came", "r"), same(w.left - _at(o, w, "place", "r"), w.gone - w.ahead))

    clause = Clause("left - the place of r = gone - ahead", exact)
    leave = (event.also(gone=lambda w: w.gone + 1) for event in (let_in, give_up))
    queue = _queue("what passed r over", (attrs.evolve(come, step=came), back, *leave), ("gone", "ahead"))
    return Claim(D_PASSED, queue, (*_EMPTY, _EMPTY_QUEUE), (clause,), (clause,))


def _older(kernel: Functions) -> Claim:
    """The count is that of the requests themselves."""

    def before(o: Algebra, w: World) -> Term:
        return _count(o, w.waits & (w.place < _end(o, w)))

    exact = Clause("older = how many wait before r", lambda o, w: same(w.older, w.before))
    queue = _queue("those that wait before r", _counted(kernel), ("older",), before=before)
    return Claim(D_OLDER, queue, (*_EMPTY, *_NONE_COUNTED), (_KNOWN, _NEXT, exact), (exact,))


# --- one request ----------------------------------------------------------------------------------------------------


def _once(kernel: Functions) -> tuple[Event, ...]:
    """The counted events, with what is let in since r came; a due request is let in and no other."""
    come, back, let_in, give_up = _counted(kernel)

    def anew(event: Event, more: Callable[[Algebra, World], Any]) -> Event:
        """`event` of r begins the count again; of another it brings `more` who are older."""
        step: Rule = event.step

        def counted(o: Algebra, w: World) -> Written:
            is_r, written = _is(o, w, "p", "r"), step(o, w)
            return {
                **written,
                "T": o.where(is_r, 0, w.T),
                "older0": o.where(is_r, written["older"], w.older0),
                "back": o.where(is_r, 0, w.back + more(o, w)),
            }

        return attrs.evolve(event, step=counted)

    def first(o: Algebra, w: World) -> Written:
        oldest = o.argmin(w.place, w.waits)
        return {"oldest": oldest, "is_due": kernel.due(o, w.left, o.pick(w.place, oldest, 0), w.b)}

    def apart(o: Algebra, w: World) -> Term:
        r, s = _at(o, w, "place", "r"), _at(o, w, "place", "oldest")
        return implies(o, _at(o, w, "waits", "r"), r - s >= w.older)

    # D-older: a count of waiting requests is at least one where there is one.
    counts = Need(lambda o, w: w.older >= _is_older(o, w))
    return (
        anew(come, lambda o, w: 0),
        anew(back, _is_older),
        attrs.evolve(
            let_in.also(T=lambda w: w.T + 1).with_needs(
                Need(lambda o, w: implies(o, w.is_due, _is(o, w, "p", "oldest")), DUE_RESPECTED),
                counts,
                # D-line and D-older, of the oldest and r: a waiting request older than r came between the two.
                Need(apart),
            ),
            kernels=(*let_in.kernels, kernel.due),
            decides=first,
        ),
        give_up.with_needs(counts),
    )


def _request(kernel: Functions) -> Claim:
    def waits(o: Algebra, w: World) -> Term:
        return _at(o, w, "waits", "r")

    def place(o: Algebra, w: World) -> Term:
        return _at(o, w, "place", "r")

    def alone(o: Algebra, w: World) -> Term:
        others = o.put(w.came & spread(_at(o, w, "came", "r"), w.place), w.r, False)
        return implies(o, others, (w.place < place(o, w)) | (w.place > place(o, w)))

    queue = _queue("the requests of one group", _once(kernel), ("T", "older", "older0", "back"))
    return Claim(
        D_REQUEST,
        attrs.evolve(queue.with_laws(Need(lambda o, w: w.b >= 0)), parameters={"b": Kind.SCALAR, **queue.parameters}),
        (*_EMPTY, *_NONE_COUNTED, Clause("none came back", lambda o, w: same(w.back, 0))),
        (
            _KNOWN,
            _NEXT,
            Clause("no other request has the place of r", alone),
            Clause("back >= 0", lambda o, w: w.back >= 0),
            Clause("older >= 0", lambda o, w: w.older >= 0),
            Clause(
                "all are older until r comes", lambda o, w: o.where(_at(o, w, "came", "r"), True, w.older >= w.waiting)
            ),
            Clause(
                "left + older >= the place of r",
                lambda o, w: implies(o, _at(o, w, "came", "r"), w.left + w.older >= place(o, w)),
            ),
            Clause(
                "T - older0 <= left - the place of r, while r waits",
                lambda o, w: implies(o, waits(o, w), w.T - w.older0 <= w.left - place(o, w)),
            ),
            Clause(
                "T + older <= b + older0 + back, while r waits",
                lambda o, w: implies(o, waits(o, w), w.T + w.older <= w.b + w.older0 + w.back),
            ),
        ),
        (
            Clause(
                "T <= b + older0 + back, while r waits",
                lambda o, w: implies(o, waits(o, w), w.b + w.older0 + w.back >= w.T),
            ),
        ),
    )


# --- the head -------------------------------------------------------------------------------------------------------


def _head(kernel: Functions) -> Claim:
    """`oldest` and `best` are the scores of those two."""

    def offer(o: Algebra, w: World) -> Written:
        is_due = kernel.due(o, w.left, w.place, w.b)
        return {"head": kernel.head(o, w.best, w.oldest, is_due), "passed": w.left - w.place}

    def offered(o: Algebra, w: World) -> Term:
        return o.where(w.passed >= w.b, same(w.head, w.oldest), same(w.head, w.best))

    clause = Clause("the oldest if it was passed over b times, else the best", offered)
    return one_step(
        D_HEAD,
        "what a group offers",
        {"head": Kind.SCALAR, "passed": Kind.SCALAR},
        Event("offer", offer, kernels=(kernel.due, kernel.head)),
        (clause,),
        parameters=dict.fromkeys(("b", "left", "place", "best", "oldest"), Kind.SCALAR),
    )


def claims(kernel: Functions = bypass) -> tuple[Claim, ...]:
    """What is proved of the rule; `kernel` holds its functions."""
    return (_head(kernel), _passed(kernel), _line(kernel), _older(kernel), _request(kernel))
