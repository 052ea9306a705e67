"""What Aladdin's scheduler believes of one worker: its requests, until when they run, and how far that was wrong.

Times are on the worker's clock of decode iterations.  Every request's KV and saved time grow by the same amount on it,
so nothing is updated while requests only decode.  A request that produced its first token at clock s has produced
clock - s; it is foreseen to leave at its `end`.

Prediction errors: a request that is still there after its end is predicted anew and runs on as `over`; one that left
before its end stays as a `Ghost` until then.  The plan believed all requests, less the first, plus the second.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import SortedTuple


class Member(msgspec.Struct, frozen=True, gc=False):
    """A request at a worker.

    It had `prompt_tokens` of context when it came there and is foreseen to produce `output_tokens` more, `most` at
    most; `generated` tokens of its context are output.  Its first token is due at `deadline_ns` (None: it is late).  It
    decodes since `start` on the worker's clock (None: not yet, and then it is taken to start at `came`), and had its
    first token at `first_ns`.
    """

    client: int
    prompt_tokens: int
    output_tokens: int
    most: int
    deadline_ns: int | None
    came: int
    generated: int = 0
    start: int | None = None
    first_ns: int = 0
    over: bool = False

    def ranked(self, request_id: int) -> tuple[int, int, int]:
        """Return its entry of `Believed.ends`: the last iteration in which it is foreseen to hold memory, its id, and
        its level; its context at iteration k is level + k."""
        begun = self.came if self.start is None else self.start
        return begun + self.output_tokens, request_id, self.prompt_tokens - begun

    def anew(self, done: int, clock: int) -> "Member":
        """Return it as it comes at `clock` to be taken up again, `done` of its output having become context."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens + done,
            output_tokens=max(self.output_tokens - done, 1),
            most=max(self.most - done, 1),
            deadline_ns=None,
            came=clock,
            generated=self.generated + done,
            start=None,
        )


class Ghost(msgspec.Struct, frozen=True, gc=False):
    """A request that ended early: the plan counts it until `end`."""

    end: int
    request_id: int
    prompt_tokens: int
    output_tokens: int

    def __lt__(self, other: "Ghost") -> bool:
        return (self.end, self.request_id) < (other.end, other.request_id)


class Sums(msgspec.Struct, frozen=True, gc=False):
    """Requests, their prompts and their foreseen outputs, in tokens."""

    batch: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def plus(self, count: int, prompt_tokens: int, output_tokens: int) -> "Sums":
        """Return a copy with so many more requests (or fewer) of these tokens."""
        return Sums(
            self.batch + count, self.prompt_tokens + count * prompt_tokens, self.output_tokens + count * output_tokens
        )


Ranked = SortedTuple[tuple[int, int]]
_NONE: Ranked = SortedTuple()


class Believed(msgspec.Struct, frozen=True):
    """One worker: its clock, its members, and sums and ranks over them.

    `ends` is (end, id, level), `deadlines` (deadline, id) of those without a first token, `saved` (`saved_from`, id) of
    those with one, and `starts` the sum of their starts.  `fresh` had their first token in the step under way.
    """

    clock: int = 0
    members: Map[int, Member] = Map()
    everybody: Sums = Sums()
    new_tokens: int = 0
    ends: SortedTuple[tuple[int, int, int]] = SortedTuple()
    deadlines: Ranked = _NONE
    saved: Ranked = _NONE
    starts: int = 0
    fresh: tuple[int, ...] = ()
    over: Sums = Sums()
    ghost: Sums = Sums()
    ghosts: SortedTuple[Ghost] = SortedTuple()

    @property
    def total(self) -> Sums:
        """Sums over all members."""
        return self.everybody

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(end, level) of all members, ends ascending: what `profile_of` takes."""
        return [(end, level) for end, _, level in self.ends]


EMPTY_WORKER = Believed()
"""A worker that has had no request yet."""


def joined(worker: Believed, request_id: int, member: Member, saves: int) -> Believed:
    """Return the worker with the request; `saves` ranks it among those that have saved time, once it has begun."""
    return _changed(worker, request_id, member, saves, 1)


def left(worker: Believed, request_id: int, saves: int) -> Believed:
    """Return the worker without the request."""
    return _changed(worker, request_id, worker.members[request_id], saves, -1)


def _changed(worker: Believed, request_id: int, member: Member, saves: int, step: int) -> Believed:
    """Return the worker with the member (`step` 1) or without it (-1)."""
    members, fresh, deadlines, saved = worker.members, worker.fresh, worker.deadlines, worker.saved
    put: Callable[[SortedTuple[Any], Any], SortedTuple[Any]]
    if step > 0:
        put, members = SortedTuple.add, members.set(request_id, member)
    else:
        put, members = SortedTuple.remove, members.delete(request_id)
        if request_id in fresh:
            fresh = tuple(i for i in fresh if i != request_id)
    if member.start is not None:
        saved = put(saved, (saves, request_id))
    elif member.deadline_ns is not None:
        deadlines = put(deadlines, (member.deadline_ns, request_id))
    size = (step, member.prompt_tokens, member.output_tokens)
    return replace(
        worker,
        members=members,
        everybody=worker.everybody.plus(*size),
        over=worker.over.plus(*size) if member.over else worker.over,
        new_tokens=worker.new_tokens + (step * member.prompt_tokens if member.start is None else 0),
        ends=put(worker.ends, member.ranked(request_id)),
        deadlines=deadlines,
        saved=saved,
        starts=worker.starts + step * (member.start or 0),
        fresh=fresh,
    )


def with_ghost(worker: Believed, request_id: int, member: Member) -> Believed:
    """Return the worker with a ghost of a request that ended before its foreseen end."""
    end, _, _ = member.ranked(request_id)
    if end <= worker.clock or member.over:
        return worker
    ghost = Ghost(end, request_id, member.prompt_tokens, member.output_tokens)
    size = (1, ghost.prompt_tokens, ghost.output_tokens)
    return replace(worker, ghosts=worker.ghosts.add(ghost), ghost=worker.ghost.plus(*size))


def without_ended_ghosts(worker: Believed) -> Believed:
    """Return the worker without the ghosts whose end has come."""
    ghosts, sums = worker.ghosts, worker.ghost
    while ghosts.size and ghosts.first().end <= worker.clock:
        ghost = ghosts.first()
        ghosts = ghosts.remove(ghost)
        sums = sums.plus(-1, ghost.prompt_tokens, ghost.output_tokens)
    return worker if ghosts is worker.ghosts else replace(worker, ghosts=ghosts, ghost=sums)


def check_worker(worker: Believed) -> None:
    """Raise `AssertionError` unless all that is summed and ranked is what the members say."""
    members = worker.members
    total, over = Sums(), Sums()
    for member in members.values():
        size = (1, member.prompt_tokens, member.output_tokens)
        total = total.plus(*size)
        over = over.plus(*size) if member.over else over
        assert member.output_tokens >= 1
        assert member.start is None or member.start <= worker.clock
    ghost = Sums()
    for each in worker.ghosts:
        ghost = ghost.plus(1, each.prompt_tokens, each.output_tokens)
    assert (total, over, ghost) == (worker.total, worker.over, worker.ghost)
    assert worker.new_tokens == sum(m.prompt_tokens for m in members.values() if m.start is None)
    assert set(worker.ends) == {m.ranked(i) for i, m in members.items()}
    due = {(m.deadline_ns, i) for i, m in members.items() if m.start is None and m.deadline_ns is not None}
    assert set(worker.deadlines) == due
    assert worker.starts == sum(m.start for m in members.values() if m.start is not None)
    assert {i for _, i in worker.saved} == {i for i, m in members.items() if m.start is not None}
    assert set(worker.fresh) <= set(members)
