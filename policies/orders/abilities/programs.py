"""Programs between two calls: an order keeps room for the KV of programs that will soon send their next call.

An agent calls, waits for a tool, and calls again with all that it has said so far.  What its first call computed is
worth keeping only if it is still there when the next one comes, so a worker that lets in more programs than it can hold
computes the same contexts again and again.  Here each program has a record: the calls of it that run, or between two
calls what its context holds.  The rule that keeps others out is in `policies.local.programs`.

A program is a session of a client (`Request.session`), or all calls of a client that names none.  It is kept for
`keep_steps` decode steps after a call that others follow (`Request.downstream_levels`), then forgotten.
"""

from collections import Counter
from typing import Any, ClassVar, Literal

import msgspec
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.request import Request
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension

WINDOW = 4
"""How many programs are let in at first where their number is limited."""


class KeepsPrograms(Order):
    """An order that keeps room for programs between two calls."""

    keep_steps: int
    limit: ClassVar[Literal["memory", "window"]] = "memory"
    """What limits the programs in progress: the KV that they hold, or a number that grows while returning calls find
    what they computed, and is halved when they do not."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), ProgramsHeld())


class Between(msgspec.Struct, frozen=True, gc=False):
    """A program between two calls: whose it is, the KV of its context, the age of its first call, and the step at
    which it is forgotten."""

    client: int
    tokens: int
    born: int
    until: int


def program_of(request: Request) -> str:
    """Return the name of a call's program."""
    return f"{request.client}/{request.session or ''}"


def needed(queued: QueuedRequest) -> int:
    """Return the KV that a call may come to hold: its context and what is left of its declared output."""
    return queued.context_tokens + queued.output_tokens_left


class ProgramsHeld(QueueExtension[KeepsPrograms], frozen=True, gc=False):
    """What programs hold: `running` tokens of calls in progress by client, and calls in progress by program; programs
    `between` two calls, by name, and when each is `due` to be forgotten; what calls need that are `waiting`, with
    their ages; and calls that are `queued`, by program.

    `steps` counts those that produced output.  A `window` of so many programs may be in progress where their number is
    limited; `hits` returning calls found what they had computed since it last changed.
    """

    steps: int = 0
    running: Map[int, int] = Map()
    calls: Map[str, int] = Map()
    between: Map[str, Between] = Map()
    due: SortedTuple[tuple[int, str]] = SortedTuple()
    waiting: SortedTuple[tuple[int, int]] = SortedTuple()
    queued: Map[str, int] = Map()
    window: int = WINDOW
    hits: int = 0

    def joined(
        self, order: KeepsPrograms, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["ProgramsHeld", QueuedRequest]:
        """A program whose call waits holds nothing: room for it is found anew, or it pauses here."""
        name = program_of(queued.request)
        between = self.between.get(name)
        held = msgspec.structs.replace(
            self,
            waiting=self.waiting.add((needed(queued), queued.age)),
            queued=self.queued.set(name, self.queued.get(name, 0) + 1),
        )
        if between is None:
            return held, queued if queued.preemptions else msgspec.structs.replace(queued, tag=queued.age)
        kept, due = self.between.delete(name), self.due.remove((between.until, name))
        return msgspec.structs.replace(held, between=kept, due=due), msgspec.structs.replace(queued, tag=between.born)

    def left(
        self, order: KeepsPrograms, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "ProgramsHeld":
        waiting, name = self.waiting.remove((needed(queued), queued.age)), program_of(queued.request)
        return msgspec.structs.replace(self, waiting=waiting, queued=_less(self.queued, name, 1))

    def started(self, queued: QueuedRequest, extend_tokens: int) -> "ProgramsHeld":
        """Return the same after a call was let in that has to compute so much of its context.  O(log n)."""
        name, client = program_of(queued.request), queued.request.client
        window, hits = self.window, self.hits
        if queued.tag < queued.age:
            if 2 * extend_tokens <= queued.context_tokens:
                window, hits = (window + 1, 0) if hits + 1 >= window else (window, hits + 1)
            elif hits >= 0:
                window, hits = max(window // 2, 1), -(window // 2)
            else:
                hits += 1
        return msgspec.structs.replace(
            self,
            running=self.running.set(client, self.running.get(client, 0) + needed(queued)),
            calls=self.calls.set(name, self.calls.get(name, 0) + 1),
            window=window,
            hits=hits,
        )

    def ended(self, order: KeepsPrograms, queued: QueuedRequest, output_tokens: int | None) -> "ProgramsHeld":
        """Return the same after a call left the batch, with all of its output or for another reason (None).
        O(log n)."""
        request, name = queued.request, program_of(queued.request)
        running = _less(self.running, request.client, needed(queued))
        calls, between, due = _less(self.calls, name, 1), self.between, self.due
        follows = output_tokens is not None and request.downstream_levels and order.keep_steps
        if follows and name not in calls and name not in self.queued:
            assert output_tokens is not None
            until = self.steps + order.keep_steps
            kept = Between(request.client, request.prompt.tokens + output_tokens, queued.tag, until)
            between, due = between.set(name, kept), due.add((until, name))
        return msgspec.structs.replace(self, running=running, calls=calls, between=between, due=due)

    def after(self, steps: int) -> "ProgramsHeld":
        """Return the same after so many more steps with output: programs that did not come back are forgotten."""
        now, between, due = self.steps + steps, self.between, self.due
        while due.size and due.first()[0] <= now:
            between, due = between.delete(due.first()[1]), due.remove(due.first())
        return msgspec.structs.replace(self, steps=now, between=between, due=due)

    def check(self, order: KeepsPrograms, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        assert list(self.waiting) == sorted((needed(queued), queued.age) for queued, _, _ in waiting)
        # No program is between two calls while one waits or runs, and each is forgotten in time.
        assert dict(self.queued) == Counter(program_of(queued.request) for queued, _, _ in waiting)
        assert not (set(self.queued) | set(self.calls)) & set(self.between)
        assert sorted((kept.until, name) for name, kept in self.between.items()) == list(self.due)
        assert all(kept.until > self.steps for kept in self.between.values())
        assert all(count > 0 for count in (*self.running.values(), *self.calls.values()))


def _less(counts: Map[Any, int], key: Any, amount: int) -> Map[Any, int]:
    left = counts[key] - amount
    return counts.set(key, left) if left else counts.delete(key)
