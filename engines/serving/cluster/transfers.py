"""Requests between two live workers, with their KV: who may do what next, and what follows when a worker is gone.

A request that a worker *staged* is at no worker; its KV stays at its source until it has landed.  A move goes through
these phases, and each is entered by one message:

    staged     the source told that the request left its batch; the router has named no target yet
    reserving  the target was asked to keep memory, and tells when there is room, first come first served
    sending    memory is kept; the source was asked for the KV
    landing    the KV came here and was passed on; from now on the request is the target's
    (over)     the target told that it has arrived; the source is told to free its copy

If the target goes, the request is staged as before, since its KV is still at the source.  If the source goes before
the KV came here, the target frees what it kept and the request is placed anew; afterwards nothing is lost.  A caller
that gives up ends a request at once before `landing`, and at the target afterwards.  So a request is always at one
place, and tokens are told by one worker.

The KV passes through the cluster's process: one copy more than a direct way, and no state between two workers of which
neither the one nor the other knows.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Literal

import attrs

from fairsched.engines.serving.cluster.member import Call, Member, StateReplica
from fairsched.engines.serving.cluster.worker import Free, Land, Leave, Release, Reserve, Send, Submit
from fairsched.model.events import Event, TransferFailed, TransferStarted
from fairsched.model.plan import Migration

Phase = Literal["staged", "reserving", "sending", "landing"]


@attrs.define(eq=False)
class Move:
    """A request on its way, with the KV of `kv_tokens` at `source` (None: it passed through here, and the source is
    gone).  `number` is that of the attempt to bring it to `target`, as the router's `plan` says."""

    call: Call
    source: Member | None
    kv_tokens: int
    phase: Phase = "staged"
    target: Member | None = None
    plan: Migration | None = None
    number: int = 0


@attrs.define
class TransferCounts:
    """Transfers that started (memory was reserved), landed and failed, and the `bytes` of KV that were passed on.

    `refused` migrations could not be executed; `stranded` requests waited for a transfer that nothing would begin, and
    went on without it.
    """

    started: int = 0
    landed: int = 0
    failed: int = 0
    bytes: int = 0
    refused: int = 0
    stranded: int = 0


class Transfers:
    """The moves of a cluster.

    `tell` reports events to the policy state of a worker's number, `submission` is a request as it stands, and `place`
    finds a worker for one that has lost its KV; `at` says which worker has a request.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        at: MutableMapping[int, Member],
        tell: Callable[[StateReplica | None, list[Event]], None],
        submission: Callable[[Call], Submit],
        place: Callable[[Call], None],
    ) -> None:
        self.counts = TransferCounts()
        self.moves: dict[int, Move] = {}
        self._members = members
        self._at = at
        self._tell = tell
        self._submission = submission
        self._place = place
        self._number = 0

    def staged_at(self, member: Member) -> bool:
        """Whether the worker still has KV that is to be sent."""
        return any(move.source is member for move in self.moves.values())

    # --- what a router wants ----------------------------------------------------------------------------------------

    def want(self, plan: Migration) -> None:
        """Do what the router wants with a request, or count that it cannot be done.

        One that waits or runs leaves its worker first; one that was sent for its prefill alone goes on from there.
        """
        request_id = plan.request_id
        if request_id in self.moves:
            self.migrate(self.moves[request_id], plan)
            return
        member = self._at.get(request_id)
        call = None if member is None else member.calls[request_id]
        if (
            member is None
            or call is None
            or (call.cancelled or call.plan is not None)
            or (plan.source != member.worker or plan.target == member.worker)
            or not self.can_reach(plan, call)
        ):
            self.counts.refused += 1
        else:
            call.plan = plan
            if not (plan.with_kv and call.prefill_only):
                member.outbox.append(Leave(request_id, plan.with_kv))

    def stage(self, member: Member, call: Call, kv_tokens: int) -> None:
        """A worker told that a request left its batch, and that its KV stays."""
        plan, call.plan = call.plan, None
        self.moves[call.request.id] = move = Move(call, member, kv_tokens)
        if plan is not None and not self.migrate(move, plan):
            self._tell_failed(member, call, plan.target)

    def can_reach(self, plan: Migration, call: Call) -> bool:
        """Whether the target takes requests, and what is to be reserved there is sensible."""
        target = self._members.get(plan.target)
        return (
            target is not None
            and target.phase == "serving"
            and 0 <= plan.reserved_output_tokens <= call.request.max_output_tokens
        )

    def migrate(self, move: Move, plan: Migration) -> bool:
        """Bring a staged request to its next worker; False if it cannot go there, or is on its way already."""
        call, source = move.call, move.source
        if move.phase != "staged" or source is None or plan.source != source.worker:
            self.counts.refused += 1
            return False
        if plan.target == source.worker:
            self._resume(move)
        elif not self.can_reach(plan, call):
            self.counts.refused += 1
            return False
        elif plan.with_kv:
            self._number += 1
            move.phase, move.plan, move.number = "reserving", plan, self._number
            move.target = self._members[plan.target]
            tokens = move.kv_tokens + plan.reserved_output_tokens
            move.target.outbox.append(Reserve(move.number, call.request.id, tokens))
        else:
            self._leave_kv(move, self._members[plan.target])
        return True

    def _resume(self, move: Move) -> None:
        """Let a staged request go on where it is."""
        assert move.source is not None
        del self.moves[move.call.request.id]
        self.enter(move.source, move.call, Land(self._submission(move.call), b""))

    def _leave_kv(self, move: Move, target: Member) -> None:
        """Let a staged request go to a worker without its KV."""
        assert move.source is not None
        del self.moves[move.call.request.id]
        move.source.outbox.append(Free(move.call.request.id))
        self.enter(target, move.call, self._submission(move.call))

    def enter(self, member: Member, call: Call, command: Submit | Land) -> None:
        """The request is this worker's from now on."""
        member.submit(call, command)
        self._at[call.request.id] = member

    # --- what workers tell ------------------------------------------------------------------------------------------

    def granted(self, member: Member, numbers: Iterable[int]) -> None:
        """The worker keeps memory for these transfers: their KV is sent."""
        for move in self._numbered(numbers, "reserving"):
            call, source, plan = move.call, move.source, move.plan
            assert source is not None
            assert plan is not None
            move.phase = "sending"
            source.outbox.append(Send(move.number, call.request.id))
            self.counts.started += 1
            reserved, now_ns = move.kv_tokens + plan.reserved_output_tokens, source.replica.last_ns
            request_id, client = call.request.id, call.request.client
            started = TransferStarted(
                now_ns, source.worker, request_id, client, member.worker, move.kv_tokens, reserved
            )
            self._tell(source.replica, [started])

    def came(self, kv: Mapping[int, bytes]) -> None:
        """KV came here, by number of its transfer, and is passed on."""
        for move in self._numbered(kv, "sending"):
            assert move.target is not None
            move.phase = "landing"
            self.counts.bytes += len(kv[move.number])
            self.enter(move.target, move.call, Land(self._submission(move.call), kv[move.number]))

    def _numbered(self, numbers: Iterable[int], phase: Phase) -> list[Move]:
        """The moves of these attempts that are in this phase; others were called off meanwhile."""
        wanted = set(numbers)
        if not wanted:
            return []
        return [move for move in self.moves.values() if move.number in wanted and move.phase == phase]

    def arrived(self, member: Member, request_id: int) -> None:
        """A request has arrived at a worker: if its KV landed there, the source frees its own."""
        move = self.moves.get(request_id)
        if move is not None and move.phase == "landing" and move.target is member:
            del self.moves[request_id]
            self.counts.landed += 1
            if move.source is not None:
                move.source.outbox.append(Free(request_id))

    def lost(self, member: Member, request_ids: Iterable[int]) -> None:
        """A worker's executor failed, and KV of staged requests with it."""
        for request_id in request_ids:
            move = self.moves.get(request_id)
            if move is None or move.source is not member:
                continue
            member.outbox.append(Free(request_id))
            if move.phase == "landing":
                move.source = None
            else:
                self._call_off(move)
                del self.moves[request_id]
                self._place(move.call)

    # --- ends -------------------------------------------------------------------------------------------------------

    def give_up(self, request_id: int) -> Call | None:
        """A caller gave up: the request, if it is at no worker; what is kept for it is free."""
        move = self.moves.get(request_id)
        if move is None or move.phase == "landing":
            return None
        del self.moves[request_id]
        if move.source is not None:
            move.source.outbox.append(Free(request_id))
        if move.target is not None:
            move.target.outbox.append(Release(move.number, request_id))
        return move.call

    def left(self, member: Member) -> tuple[list[Call], set[int]]:
        """A worker is gone: the requests whose KV went with it, and those that it had and whose KV is elsewhere."""
        anew, back = [], set()
        for request_id, move in sorted(self.moves.items()):
            if move.source is member:
                if move.phase == "landing":
                    # What came through here is on its way to the target.
                    move.source = None
                else:
                    self._call_off(move)
                    del self.moves[request_id]
                    anew.append(move.call)
            if move.target is member:
                if move.phase == "landing" and move.source is None:
                    del self.moves[request_id]
                else:
                    if move.phase == "landing":
                        back.add(request_id)
                    self._fail(move)
        for other in self._members.values():
            for call in other.calls.values():
                if call.plan is not None and call.plan.target == member.worker:
                    call.plan = None
                    self._tell_failed(other, call, member.worker)
        return anew, back

    def drains(self, member: Member) -> None:
        """A worker takes no more requests: call off the transfers for which it has not reserved anything yet."""
        for move in [*self.moves.values()]:
            if move.target is member and move.phase == "reserving":
                self._call_off(move)

    def _call_off(self, move: Move) -> None:
        """The target, which lives, need not keep memory any more."""
        if move.target is not None:
            move.target.outbox.append(Release(move.number, move.call.request.id))
            self._fail(move)

    def _fail(self, move: Move) -> None:
        """The request is staged as before, and the router is told."""
        assert move.target is not None
        target, move.target, move.plan, move.phase = move.target, None, None, "staged"
        if move.source is not None:
            self._tell_failed(move.source, move.call, target.worker)

    def _tell_failed(self, source: Member, call: Call, target: int) -> None:
        self.counts.failed += 1
        request_id, client = call.request.id, call.request.client
        self._tell(source.replica, [TransferFailed(source.replica.last_ns, source.worker, request_id, client, target)])

    def go_on(self) -> bool:
        """When nothing can happen any more, let one request go on that waits for a target or for room; whether one did.

        One without a target goes on where it is; one that no target has room for leaves its KV behind.
        """
        for _, move in sorted(self.moves.items()):
            if move.phase == "staged":
                self.counts.stranded += 1
                self._resume(move)
                return True
            if move.phase == "reserving":
                self.counts.stranded += 1
                target = move.target
                assert target is not None
                target.outbox.append(Release(move.number, move.call.request.id))
                self._leave_kv(move, target)
                return True
        return False
