"""How running requests stand: what is known of them under an order by which they may be displaced."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from immutables import Map
from msgspec.structs import replace

from fairsched.model.decision import InFlight, WorkerView
from fairsched.model.serialization import Derived
from fairsched.policies.orders import Order
from fairsched.policies.orders.abilities import Promotes

Standing = tuple[int, int, int]
"""The rank that a waiting request must exceed to displace this one, which of equals goes first, and its id."""
Placed = tuple[int, Standing | None, int | None]
"""The group of a request that runs, its standing (None: it may not be displaced), and the clock at which that is to be
looked at again (None: never)."""
_NO_BATCH: Map[int, InFlight] = Map()


class Standings(Derived, frozen=True, eq=False, gc=False):
    """What is known of those that run and decode, under an order by which they may be displaced: by group the standing
    of each, the last in rank first, and (clock, id) of `ends`, ascending: when a rank may fall.  Of batches that run to
    their end, when a request reaches its reservation.

    `placed` says where each of them is in these two; those that are `young` produced nothing yet and are in neither.
    It was true of that batch at that clock, after so many steps with output; ranks may have risen since.
    Requests that come and leave change it, so that none of the others is looked at again; of one that is paused the
    clock stands still, and then nothing is known.
    """

    order: Order | None = None
    in_flight: Map[int, InFlight] = _NO_BATCH
    clock: int = 0
    steps: int = 0
    by_group: Map[int, tuple[Standing, ...]] = Map()
    ends: tuple[tuple[int, int], ...] = ()
    placed: Map[int, Placed] = Map()
    young: tuple[int, ...] = ()
    paused: bool = False

    def updated(
        self, order: Order, view: WorkerView, steps: int, running: Iterable[int], place: Callable[[int], Placed | None]
    ) -> "Standings":
        """Return what is known of those `running` at this view; `place` says where a request belongs now, None for one
        that is young, or enters in this step.

        O(1) where nothing changed, O(batch log batch) where nothing was known, else for each that changed O(log batch)
        and a copy of the rows that it is in.
        """
        known = self
        if not self._is_of(order, view, steps):
            known = Standings(order, young=tuple(running))
        due = [i for _, i in known.ends[: bisect_left(known.ends, (view.clock + 1,))]]
        if not due and view.in_flight is known.in_flight:
            return known
        for request_id in due:
            known = known.without(request_id)
        asked = {request_id: place(request_id) for request_id in (*known.young, *due)}
        young = tuple([request_id for request_id, placed in asked.items() if placed is None])
        found = {request_id: placed for request_id, placed in asked.items() if placed is not None}
        return known._with(found, view, steps, young)

    def _is_of(self, order: Order, view: WorkerView, steps: int) -> bool:
        """Return whether this is of the batch at an earlier time, but for requests that are young."""
        since = view.clock - self.clock
        if self.order is not order or since < 0 or view.paused or self.paused:
            return False
        # Some ranks go by the clock and some by steps with output: both went on together, or are not counted.
        together = steps - self.steps == since or not isinstance(order, Promotes)
        return together and len(view.in_flight) == len(self.placed) + len(self.entering(view))

    def _with(self, found: dict[int, Placed], view: WorkerView, steps: int, young: tuple[int, ...]) -> "Standings":
        """Return the same with some more placed."""
        by_group, groups, ends = self.by_group, dict[int, list[Standing]](), []
        for request_id, (group, standing, end) in found.items():
            if standing is not None:
                groups.setdefault(group, []).append(standing)
            if end is not None:
                ends.append((end, request_id))
        for group, more in groups.items():
            by_group = by_group.set(group, _merged(by_group.get(group, ()), more))
        return Standings(
            self.order,
            view.in_flight,
            view.clock,
            steps,
            by_group,
            _merged(self.ends, ends),
            self.placed.update(found),
            young,
            bool(view.paused),
        )

    def entering(self, view: WorkerView) -> list[int]:
        """Return young requests that are in the batch.

        The others have left it with their last chunk, and their token has not left the last stage of a pipeline.
        """
        return [request_id for request_id in self.young if request_id in view.in_flight]

    def without(self, request_id: int) -> "Standings":
        """Return the same when a request has left the batch.  A copy of the rows that it is in."""
        if self.order is None:
            return self
        if request_id in self.young:
            return replace(self, in_flight=_NO_BATCH, young=tuple([i for i in self.young if i != request_id]))
        group, standing, end = self.placed[request_id]
        by_group, ends = self.by_group, self.ends
        if standing is not None:
            by_group = by_group.set(group, _less(by_group[group], standing))
        if end is not None:
            ends = _less(ends, (end, request_id))
        placed = self.placed.delete(request_id)
        return replace(self, in_flight=_NO_BATCH, by_group=by_group, ends=ends, placed=placed)

    def entered(self, request_id: int) -> "Standings":
        """Return the same when a request was let in."""
        if self.order is None:
            return self
        return replace(self, in_flight=_NO_BATCH, young=(*self.young, request_id))

    def risen(self, group: int, now: dict[int, Standing | None]) -> "Standings":
        """Return the same with these standings of some of a group, which have risen or are none any more.  O(the
        group)."""
        placed = self.placed.mutate()
        for request_id, standing in now.items():
            placed[request_id] = group, standing, placed[request_id][2]
        row = tuple([standing for standing in self.by_group[group] if standing[2] not in now])
        row = _merged(row, [standing for standing in now.values() if standing is not None])
        return replace(self, by_group=self.by_group.set(group, row), placed=placed.finish())

    def check(self, running: Iterable[int]) -> None:
        """Raise `AssertionError` unless it is of the requests that run, and says the same of each everywhere."""
        if self.order is None:
            return
        assert sorted((*self.placed, *self.young)) == sorted(running)
        rows: dict[int, list[Standing]] = {}
        for group, standing, _ in self.placed.values():
            if standing is not None:
                rows.setdefault(group, []).append(standing)
        assert {group: row for group, row in self.by_group.items() if row} == {
            g: tuple(sorted(r)) for g, r in rows.items()
        }
        assert list(self.ends) == sorted((end, i) for i, (_, _, end) in self.placed.items() if end is not None)


Item = TypeVar("Item", bound=tuple[int, ...])

_FEW = 8


def _less(row: tuple[Item, ...], item: Item) -> tuple[Item, ...]:
    """Return a row in order without one item that is in it."""
    place = bisect_left(row, item)
    return row[:place] + row[place + 1 :]


def _merged(row: tuple[Item, ...], more: Sequence[Item]) -> tuple[Item, ...]:
    """Return a row in order with more items."""
    if len(more) > _FEW:
        return tuple(sorted((*row, *more)))
    for item in more:
        place = bisect_left(row, item)
        row = (*row[:place], item, *row[place:])
    return row


NOT_KNOWN = Standings()
