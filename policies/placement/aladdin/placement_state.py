"""What Aladdin believes: which requests are at which worker, which are held, and how long outputs were.

A request is held, or at a worker; what is known of one worker is a `Believed`.  Decisions are in `policy`.

**One worker**: its requests, until when they run, and how far that was wrong.

Times are on the worker's clock of decode iterations.  Every request's KV and saved time grow by the same amount on it,
so nothing is updated while requests only decode.  A request that produced its first token at clock s has produced
clock - s; it is foreseen to leave at its `end`.

Prediction errors: a request that is still there after its end is predicted anew and runs on as `over`; one that left
before its end stays as a `Ghost` until then.  The plan believed all requests, less the first, plus the second.
"""

from collections.abc import Callable
from typing import Any, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.machine import Performance
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.policies.placement.aladdin.limits import saved_from

# --- one worker -------------------------------------------------------------------------------------------------------


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


Slack = Literal["earned", "printed"]
_BITS = 5


class OutputHistory(msgspec.Struct, frozen=True):
    """How long outputs were, by (prompt's bits, output's bits): requests, and their output tokens in all.

    Aladdin (section 4.4, Algorithm 2) predicts a request anew when it outlives its prediction, with the mean output of
    requests of the same input that were longer than it is now.  Lengths are kept in powers of two, so a table of a few
    hundred numbers holds them all.
    """

    seen: Map[int, tuple[int, int]] = Map()

    def with_output(self, prompt_tokens: int, output_tokens: int) -> "OutputHistory":
        key = _key(prompt_tokens, output_tokens)
        count, total = self.seen.get(key, (0, 0))
        return OutputHistory(self.seen.set(key, (count + 1, total + output_tokens)))

    def longer_than(self, prompt_tokens: int, done_tokens: int, most_tokens: int) -> int:
        """Foreseen output of a request that has `done_tokens` already, more than that and at most `most_tokens`.

        The mean of longer ones; without any, twice of what it has.  O(1).
        """
        count = total = 0
        for bits in range(done_tokens.bit_length(), 1 << _BITS):
            n, tokens = self.seen.get((prompt_tokens.bit_length() << _BITS) | bits, (0, 0))
            # Of its own power of two some were shorter; their mean tells whether most were.
            if n and tokens > n * done_tokens:
                count, total = count + n, total + tokens
        foreseen = -(-total // count) if count else 2 * done_tokens
        return max(min(foreseen, most_tokens), done_tokens + 1)


def _key(prompt_tokens: int, output_tokens: int) -> int:
    return (prompt_tokens.bit_length() << _BITS) | output_tokens.bit_length()


class Held(msgspec.Struct, frozen=True, gc=False):
    """A request that is at no worker, with the tokens that it has from one that is gone.

    It has `prompt_tokens` to compute with them, `output_tokens` foreseen after them, and its first token is due at
    `due_ns`.
    """

    request: Request
    generated: int
    prompt_tokens: int
    output_tokens: int
    due_ns: int

    @property
    def declared_tokens(self) -> int:
        """KV that a worker has to have in all, to accept the request."""
        return self.request.prompt.tokens + self.request.max_output_tokens


class AladdinState(msgspec.Struct, frozen=True):
    """The workers as believed, each request's worker, the held requests (oldest first), and how long outputs were."""

    workers: Map[int, Believed] = Map()
    home: Map[int, int] = Map()
    held: Map[int, Held] = Map()
    waiting: SortedTuple[tuple[int, int]] = SortedTuple()
    history: OutputHistory = OutputHistory()


@attrs.frozen
class PlacementTracker:
    """Follows what happens to requests, by events and by decisions; an event O(log n).

    `lines` are the workers', the targets those of the policy, `slack` says what (d) counts as saved (`saved_from`).
    With `follows_errors` the plan is corrected when a prediction proves wrong; without, it stays.
    """

    lines: Performance
    ttft_ns: int
    tpot_ns: int
    theta_percent: int
    slack: Slack
    follows_errors: bool

    def check(self, state: AladdinState) -> None:
        """Raise `AssertionError` unless each worker is what its members say, and each request is at one place."""
        for worker in state.workers.values():
            check_worker(worker)
        assert {i: w for w, each in state.workers.items() for i in each.members} == dict(state.home)
        assert {(held.request.arrival_ns, i) for i, held in state.held.items()} == set(state.waiting)
        assert not set(state.held) & set(state.home)

    def observe(self, state: AladdinState, event: ev.Event) -> AladdinState:
        match event:
            case ev.Decoded():
                return self._decoded(state, event)
            case ev.Prefilled(remaining_tokens=0):
                return self._first_token(state, event)
            case ev.Arrived() if event.worker == ev.NOWHERE:
                return holding(self.without(state, event.request.id), self.held(event.request, event.generated_tokens))
            case ev.Arrived():
                return self._at_worker(state, event)
            case ev.Preempted():
                return self._preempted(state, event)
            case ev.Finished():
                return self._finished(state, event)
            case ev.Migrated() if state.home.get(event.request_id) != event.worker:
                return state  # It is on its way to the worker where it is believed.
            case ev.Cancelled() | ev.Rejected() | ev.Migrated():
                return self.without(state, event.request_id)
            case ev.WorkerLeft() | ev.WorkerJoined():
                return without_worker(state, event.worker)
            case _:
                return state

    def _decoded(self, state: AladdinState, event: ev.Decoded) -> AladdinState:
        """Count tokens for all that decode; requests with their first token begin.

        A step that only prefills gives a token to no other request, so the clock stands still.
        """
        worker = state.workers.get(event.worker, EMPTY_WORKER)
        fresh = worker.fresh
        alone = event.steps == 1 and len(fresh) == sum(event.tokens)
        clock = worker.clock if alone else worker.clock + event.steps
        worker = replace(worker, clock=clock, fresh=())
        for request_id in fresh:
            begun = replace(worker.members[request_id], start=clock - event.steps)
            worker = self.refiled(worker, request_id, begun)
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _first_token(self, state: AladdinState, event: ev.Prefilled) -> AladdinState:
        worker = state.workers.get(event.worker, EMPTY_WORKER)
        member = worker.members.get(event.request_id)
        if member is None or member.start is not None:
            return state
        members = worker.members.set(event.request_id, replace(member, first_ns=event.time_ns))
        worker = replace(worker, members=members, fresh=(*worker.fresh, event.request_id))
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _at_worker(self, state: AladdinState, event: ev.Arrived) -> AladdinState:
        """Believe the request at the worker where it arrived, whether or not it was sent there."""
        request_id = event.request.id
        if state.home.get(request_id) == event.worker:
            return state
        state = self.without(state, request_id)
        member = self.member(self.held(event.request, event.generated_tokens), event.time_ns)
        return self.joins(state, request_id, event.worker, member)

    def _preempted(self, state: AladdinState, event: ev.Preempted) -> AladdinState:
        """Note that the request is computed again, with what it has produced."""
        worker = state.workers.get(event.worker, EMPTY_WORKER)
        member = worker.members.get(event.request_id)
        if member is None:
            return state
        again = member.anew(event.generated_tokens - member.generated, worker.clock)
        worker = self.refiled(worker, event.request_id, again)
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _finished(self, state: AladdinState, event: ev.Finished) -> AladdinState:
        home = state.home.get(event.request_id)
        if home is None:
            return state
        member = state.workers[home].members[event.request_id]
        prompt_tokens = member.prompt_tokens - member.generated
        state = self.without(state, event.request_id)
        state = replace(state, history=state.history.with_output(prompt_tokens, event.output_tokens))
        if self.follows_errors:
            return state
        worker = with_ghost(state.workers[home], event.request_id, member)
        return replace(state, workers=state.workers.set(home, worker))

    # --- members ----------------------------------------------------------------------------------------------------

    def held(self, request: Request, generated: int) -> Held:
        foreseen = min(request.predicted_output_tokens or request.max_output_tokens, request.max_output_tokens)
        named = None if request.slo is None else request.slo.ttft_ns
        return Held(
            request,
            generated,
            prompt_tokens=request.prompt.tokens + generated,
            output_tokens=max(foreseen - generated, 1),
            due_ns=request.arrival_ns + (self.ttft_ns if named is None else named),
        )

    def member(self, held: Held, now_ns: int) -> Member:
        soonest = now_ns + self.lines.prefill_ns(held.prompt_tokens)
        return Member(
            client=held.request.client,
            prompt_tokens=held.prompt_tokens,
            output_tokens=held.output_tokens,
            most=max(held.request.max_output_tokens - held.generated, 1),
            # A deadline that even an empty worker would miss is none.
            deadline_ns=held.due_ns if soonest <= held.due_ns else None,
            came=0,
            generated=held.generated,
        )

    def saves(self, member: Member) -> int:
        """Return its rank among those that have saved time."""
        begun = member.start or 0, member.first_ns
        saved: int = saved_from(self.slack, self.theta_percent, self.tpot_ns, *begun)
        return saved

    def refiled(self, worker: Believed, request_id: int, member: Member) -> Believed:
        was = worker.members[request_id]
        # First tokens are noted before they count: its old rank is without them.
        worker = left(worker, request_id, self.saves(was))
        return joined(worker, request_id, member, self.saves(member))

    def joins(self, state: AladdinState, request_id: int, worker: int, member: Member) -> AladdinState:
        believed = state.workers.get(worker, EMPTY_WORKER)
        member = replace(member, came=believed.clock)
        believed = joined(believed, request_id, member, 0)
        return replace(state, workers=state.workers.set(worker, believed), home=state.home.set(request_id, worker))

    def without(self, state: AladdinState, request_id: int) -> AladdinState:
        held = state.held.get(request_id)
        if held is not None:
            return released(state, held)
        home = state.home.get(request_id)
        if home is None:
            return state
        worker = state.workers[home]
        worker = left(worker, request_id, self.saves(worker.members[request_id]))
        return replace(state, workers=state.workers.set(home, worker), home=state.home.delete(request_id))


# --- requests that are held ------------------------------------------------------------------------------------------


def holding(state: AladdinState, held: Held) -> AladdinState:
    """Return the state in which the request is held."""
    i, arrival_ns = held.request.id, held.request.arrival_ns
    return replace(state, held=state.held.set(i, held), waiting=state.waiting.add((arrival_ns, i)))


def released(state: AladdinState, held: Held) -> AladdinState:
    """Return the state in which it is held no more."""
    i, arrival_ns = held.request.id, held.request.arrival_ns
    return replace(state, held=state.held.delete(i), waiting=state.waiting.remove((arrival_ns, i)))


def without_worker(state: AladdinState, worker: int) -> AladdinState:
    """Return the state without the worker; its requests arrive again by themselves."""
    believed = state.workers.get(worker)
    if believed is None:
        return state
    home = state.home
    for request_id in believed.members:
        home = home.delete(request_id)
    return replace(state, workers=state.workers.delete(worker), home=home)
