"""Requests that go from one worker to another, with their KV or without, and KV that is under way.

A request without KV departs at once.  One with KV is *staged* first: it leaves queue or batch, and its KV stays.  Its
transfer begins when the target has reserved memory for it, and where it has none it waits behind earlier transfers to
that target.  When the KV has come, the source frees its own.  A request that was dispatched for its prefill alone is
staged by its worker; the policy may have named the target before.

A transfer fails when its target or a link fails: then the request is staged as before, and the policy is told.  If the
source fails, the request is placed anew.  When nothing else can happen any more, a request without a target goes on
where it is, and one that no target has room for is computed there again, so that no request waits for ever.
"""

from collections import deque
from typing import Protocol

import attrs
from msgspec.structs import replace

from fairsched.engines.fleet import KvLink
from fairsched.engines.simulation.event_loop import REQUEST_LANDS, EventLoop
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.model import worker as transitions
from fairsched.model.events import TransferFailed, TransferStarted
from fairsched.model.plan import Migration
from fairsched.model.request import Request
from fairsched.model.worker import NoRoomError, Waiting


class Places(Protocol):
    """Where requests are that are at no worker or at one: the dispatcher."""

    counts: dict[str, int]
    home: dict[int, SimulatedWorker]

    def over(self, request_id: int) -> bool:
        """Whether the request has ended."""

    def departs(self, request: Request, generated_tokens: int, target: int) -> None:
        """A request without KV has left its worker for that target."""


@attrs.define(eq=False)
class Move:
    """A request on its way from `source` to where `plan` says (None: the policy has named no target yet).

    It `staged` when it left queue or batch, with `waiting`; before, it computes its prompt.  The target keeps
    `reserved` tokens for it since `reserved_ns`.  A transfer under way has the number `run` (0: none is).
    """

    request_id: int
    client: int
    source: SimulatedWorker
    plan: Migration | None = None
    waiting: Waiting | None = None
    reserved: int = 0
    reserved_ns: int = 0
    run: int = 0
    prefill_ns: int = 0
    last_tokens: int = 0


class Transfers:
    """The moves of a run."""

    def __init__(self, loop: EventLoop, pool: WorkerPool, link: KvLink, places: Places) -> None:
        self._loop = loop
        self._pool = pool
        self._link = link
        self._places = places
        self._moves: dict[int, Move] = {}
        self._queues: dict[int, deque[int]] = {}
        self._moved_ns: dict[int, int] = {}
        self._busy_ns: dict[int, int] = {}
        self._cut: dict[int, int | None] = {}
        self._runs = 0

    def _in_order(self) -> list[Move]:
        """The moves in order of requests; they may change meanwhile."""
        return [move for _, move in sorted(self._moves.items())]

    # --- what a policy wants ----------------------------------------------------------------------------------------

    def migrate(self, plan: Migration) -> None:
        """Move a request now if it waits or is staged, after the current step if it runs; leave it if it cannot move.

        A request that computes its prompt for another worker moves when its first token is out.
        """
        move = self._moves.get(plan.request_id)
        if move is not None and move.waiting is not None:
            self._send_staged(move, plan)
            return
        worker = self._places.home.get(plan.request_id)
        if move is not None or worker is None or not self._can_move(plan, worker):
            self._places.counts["refused"] += 1
            return
        self._pool.interrupt(worker)
        waiting, known = worker.state.queue.get(plan.request_id), self._known(worker, plan.request_id)
        if plan.with_kv and known.prefill_only:
            self._moves[plan.request_id] = move = Move(plan.request_id, known.request.client, worker, plan)
            if plan.overlap != "none":
                self._ask_for_room(move)
        elif waiting is not None or worker.plan is None:
            self._depart(worker, plan)
            self._pool.wake(worker)
        else:
            worker.moving[plan.request_id] = plan

    def _send_staged(self, move: Move, plan: Migration) -> None:
        source = move.source.state.worker
        if move.plan is not None or plan.source != source or not self._can_reach(plan):
            self._places.counts["refused"] += 1
        elif plan.target == source:
            self._resume(move)
        elif plan.with_kv and not self._never_linked(plan):
            move.plan = plan
            self._places.counts["migrated"] += 1
            self._ask_for_room(move)
        else:
            self._places.counts["migrated"] += 1
            self._leave_kv(move, plan.target)

    def _can_move(self, plan: Migration, worker: SimulatedWorker) -> bool:
        request_id = plan.request_id
        if self._places.over(request_id) or request_id in worker.moving or request_id in worker.leaving:
            return False
        if worker.state.worker != plan.source or plan.target == plan.source:
            return False
        state = worker.state
        here = request_id in state.queue or request_id in state.running
        if not here and not (plan.with_kv and request_id in state.transit.outgoing):
            return False  # its first token is in the pipeline, and it goes on with its KV or not at all
        # A request moves once at one instant, so that it cannot go round in circles.
        return self._moved_ns.get(request_id) != self._loop.now_ns and self._can_reach(plan)

    def _can_reach(self, plan: Migration) -> bool:
        """Whether the target takes requests, and could hold this one and what is to be reserved for it."""
        workers = self._pool.workers
        if not 0 <= plan.target < len(workers) or plan.reserved_output_tokens < 0:
            return False
        target = workers[plan.target]
        if plan.target == plan.source:
            return target.phase != "absent"
        request = self._request(plan)
        fits = target.state.fits_alone(request)
        fits = fits and request.prompt.tokens + plan.reserved_output_tokens <= target.state.capacity
        return fits and target in self._pool.takers()

    def _request(self, plan: Migration) -> Request:
        move = self._moves.get(plan.request_id)
        if move is not None and move.waiting is not None:
            return move.waiting.request
        return self._known(self._places.home[plan.request_id], plan.request_id).request

    def _known(self, worker: SimulatedWorker, request_id: int) -> Waiting:
        """What a worker knows of a request, wherever that is."""
        state = worker.state
        waiting = state.queue.get(request_id)
        if waiting is not None:
            return waiting
        running = state.running.get(request_id)
        return state.transit.outgoing[request_id].waiting if running is None else running.waiting

    def _never_linked(self, plan: Migration) -> bool:
        return any(end in self._cut and self._cut[end] is None for end in (plan.source, plan.target))

    # --- departures -------------------------------------------------------------------------------------------------

    def _depart(self, worker: SimulatedWorker, plan: Migration) -> None:
        """Let a request leave batch or queue; its KV stays until it is sent, if it is to be."""
        request_id, state, now_ns = plan.request_id, worker.state, self._loop.now_ns
        waiting = state.queue.get(request_id)
        landed = request_id in state.transit.landed or state.host.kept(request_id) > 0
        kv = landed if waiting else transitions.kv_tokens(state, request_id) > 0
        self._places.counts["migrated"] += 1
        self._moved_ns[request_id] = now_ns
        if plan.with_kv and kv and not self._never_linked(plan):
            self._pool.apply(worker, transitions.stage(state, request_id, now_ns))
            self._ask_for_room(self._staged(worker, request_id, plan))
            return
        request = self._request(plan)
        done = waiting.generated_tokens if waiting else transitions.generated(state, request_id)
        del self._places.home[request_id]
        self._pool.apply(worker, transitions.depart(state, request_id, now_ns))
        self._places.departs(request, done, plan.target)

    def _staged(self, worker: SimulatedWorker, request_id: int, plan: Migration | None) -> Move:
        """Note a request that has left queue or batch with its KV at its worker."""
        del self._places.home[request_id]
        waiting = worker.state.transit.outgoing[request_id].waiting
        move = self._moves.setdefault(request_id, Move(request_id, waiting.request.client, worker, plan))
        move.waiting = waiting
        return move

    def handed_over(self, worker: SimulatedWorker, request_id: int, prefill_ns: int, last_tokens: int) -> None:
        """A request that was dispatched for its prefill alone has its first token: send it where the policy said."""
        move = self._staged(worker, request_id, None)
        move.prefill_ns, move.last_tokens = prefill_ns, last_tokens
        if move.plan is not None:
            self._places.counts["migrated"] += 1
            self._moved_ns[request_id] = self._loop.now_ns
            if not (move.reserved or self._can_reach(move.plan)):
                self._fail(move)
            elif self._never_linked(move.plan):
                self._give_back(move)
                self._leave_kv(move, move.plan.target)
            elif move.reserved:
                self._start(move)
            elif move.plan.overlap == "none":
                self._ask_for_room(move)
            else:
                self._serve(move.plan.target)

    def _resume(self, move: Move) -> None:
        """Let a staged request go on where it is."""
        source = move.source
        del self._moves[move.request_id]
        self._places.home[move.request_id] = source
        self._pool.interrupt(source)
        self._pool.apply(source, transitions.resume(source.state, move.request_id, self._loop.now_ns))
        self._pool.wake(source)

    def _leave_kv(self, move: Move, target: int) -> None:
        """Let a staged request go to a worker without its KV."""
        assert move.waiting is not None
        del self._moves[move.request_id]
        self._free(move)
        self._places.departs(move.waiting.request, move.waiting.generated_tokens, target)

    def _free(self, move: Move) -> None:
        """Free the KV of a staged request at its source."""
        source = move.source
        self._pool.interrupt(source)
        source.become(transitions.sent(source.state, move.request_id))
        self._pool.wake(source)
        self._serve(source.state.worker)

    # --- transfers --------------------------------------------------------------------------------------------------

    def _ask_for_room(self, move: Move) -> None:
        assert move.plan is not None
        self._queues.setdefault(move.plan.target, deque()).append(move.request_id)
        self._serve(move.plan.target)

    def _serve(self, number: int) -> None:
        """Begin the transfers to a worker for which it has room, in order, except from sources that are cut off."""
        queue = self._queues.get(number)
        if not queue:
            return
        target = self._pool.workers[number]
        for request_id in tuple(queue) if number not in self._cut else ():
            move = self._moves[request_id]
            assert move.plan is not None
            if move.plan.source in self._cut or not self._is_there(move):
                continue
            tokens = self._tokens(move) + move.plan.reserved_output_tokens
            self._pool.interrupt(target)
            try:
                target.become(transitions.reserve(target.state, move.request_id, tokens, target.growth[1]))
            except NoRoomError:
                break
            queue.remove(request_id)
            move.reserved, move.reserved_ns = tokens, self._loop.now_ns
            if move.waiting is not None:
                self._start(move)
        target.awaited = bool(queue)

    def _is_there(self, move: Move) -> bool:
        """Whether there will be KV to send: a request whose only token is about to come is over."""
        state, request_id = move.source.state, move.request_id
        return any(request_id in place for place in (state.queue, state.running, state.transit.outgoing))

    def _tokens(self, move: Move) -> int:
        """Tokens of KV that are sent, or will be."""
        if move.waiting is not None:
            return move.waiting.kv_tokens
        known = self._known(move.source, move.request_id)
        return known.kv_tokens if move.request_id in move.source.state.transit.outgoing else known.context_tokens

    def _start(self, move: Move) -> None:
        """Send the KV of a staged request to where memory is reserved for it."""
        assert move.plan is not None
        assert move.waiting is not None
        now_ns, link, plan = self._loop.now_ns, self._link, move.plan
        along_ns = min(move.prefill_ns, now_ns - move.reserved_ns)
        took_ns = link.visible_ns(move.waiting.kv_tokens, plan.overlap, along_ns, move.last_tokens)
        start_ns = now_ns
        if link.contended:
            start_ns = max(now_ns, self._busy_ns.get(plan.source, 0), self._busy_ns.get(plan.target, 0))
            self._busy_ns[plan.source] = self._busy_ns[plan.target] = start_ns + took_ns
        self._runs += 1
        move.run = self._runs
        kv = move.waiting.kv_tokens
        started = TransferStarted(now_ns, plan.source, move.request_id, move.client, plan.target, kv, move.reserved)
        self._pool.settle(move.source)
        self._pool.publish(move.source, [started])
        self._loop.at(start_ns + took_ns, REQUEST_LANDS, move.request_id, move.run)

    def lands(self, request_id: int, run: int) -> None:
        """The KV of a request has come: it waits at the target, and the source frees its own."""
        move = self._moves.get(request_id)
        if move is None or move.run != run:
            return
        assert move.plan is not None
        assert move.waiting is not None
        target, waiting, now_ns = self._pool.workers[move.plan.target], move.waiting, self._loop.now_ns
        del self._moves[request_id]
        self._places.home[request_id] = target
        self._moved_ns[request_id] = now_ns
        self._pool.interrupt(target)
        request = replace(waiting.request, arrival_ns=now_ns)
        done = (waiting.generated_tokens, waiting.kv_tokens)
        came = transitions.receive(target.state, request, waiting.output_tokens, now_ns, *done, target.growth[0])
        self._pool.apply(target, came)
        self._free(move)
        self._pool.wake(target)

    # --- failures ---------------------------------------------------------------------------------------------------

    def _fail(self, move: Move) -> None:
        """Call a transfer off, before it began or under way; the policy is told."""
        assert move.plan is not None
        plan, now_ns = move.plan, self._loop.now_ns
        self._give_back(move)
        move.plan = None
        if move.waiting is None:
            del self._moves[move.request_id]
        failed = TransferFailed(now_ns, plan.source, move.request_id, move.client, plan.target)
        self._pool.settle(move.source)
        self._pool.publish(move.source, [failed])

    def _give_back(self, move: Move) -> None:
        """Free what the target keeps for a move, or take it out of the line before the target."""
        assert move.plan is not None
        number = move.plan.target
        target = self._pool.workers[number]
        if move.reserved:
            self._pool.interrupt(target)
            target.become(transitions.unreserve(target.state, move.request_id))
            self._pool.wake(target)
        elif move.request_id in self._queues.get(number, ()):
            self._queues[number].remove(move.request_id)
        move.reserved, move.run = 0, 0
        self._serve(number)

    def forget(self, request_id: int) -> Waiting | None:
        """Drop a request that ended while it was between workers, or that has ended where it was; what it had."""
        self._moved_ns.pop(request_id, None)
        move = self._moves.pop(request_id, None)
        if move is None:
            return None
        if move.plan is not None:
            self._give_back(move)
        if move.waiting is not None:
            self._free(move)
        return move.waiting

    def worker_lost(self, worker: SimulatedWorker) -> list[Waiting]:
        """Call off all transfers from and to a worker that loses its memory; the staged requests that it had."""
        number = worker.state.worker
        lost = []
        moves = self._in_order()
        # Nothing begins for or from it meanwhile.
        cut, until_ns = number in self._cut, self._cut.get(number)
        self._cut[number] = None
        for move in moves:
            if move.plan is not None and number in (move.plan.source, move.plan.target):
                self._fail(move)
            if move.source is worker:
                self._moves.pop(move.request_id, None)
                if move.waiting is not None:
                    lost.append(move.waiting)
        if cut:
            self._cut[number] = until_ns
        else:
            del self._cut[number]
        return lost

    def link_fails(self, number: int, until_ns: int | None) -> None:
        """Call off the transfers over a worker's link, which is down until then (None: for ever)."""
        self._cut[number] = until_ns
        for move in self._in_order():
            if move.plan is None or number not in (move.plan.source, move.plan.target):
                continue
            target, gone = move.plan.target, until_ns is None and move.waiting is not None
            if move.reserved:
                self._fail(move)
            elif gone:
                self._give_back(move)
            if gone:
                self._leave_kv(move, target)

    def link_is_back(self, number: int) -> None:
        """Begin what waited for a worker's link."""
        if self._cut.get(number) == self._loop.now_ns:
            del self._cut[number]
            for target in sorted(self._queues):
                self._serve(target)

    def drains(self, worker: SimulatedWorker) -> None:
        """Call off the transfers to a worker that takes no more requests and has reserved nothing for them yet."""
        for move in self._in_order():
            if move.plan is not None and move.plan.target == worker.state.worker and not move.reserved:
                self._fail(move)

    def go_on(self) -> bool:
        """When nothing can happen any more, let a request go on that waits for a target or for room; return whether."""
        for move in self._in_order():
            if move.waiting is None or move.run:
                continue
            self._places.counts["stranded"] += 1
            if move.plan is None:
                self._resume(move)
            else:
                self._give_back(move)
                self._leave_kv(move, move.plan.target)
            return True
        for move in self._in_order():
            # Memory that is kept for a prefill may be what that prefill waits for.
            if move.reserved and move.waiting is None:
                self._fail(move)
                return True
        for worker in self._pool.workers:
            if self._pool.drop_landed(worker):
                self._pool.wake(worker)
                return True
        return False

    # --- after steps ------------------------------------------------------------------------------------------------

    def stay(self, worker: SimulatedWorker) -> None:
        """Call off the migrations that wait for the end of a worker's step."""
        self._places.counts["refused"] += len(worker.moving)
        worker.moving.clear()

    def let_go(self, worker: SimulatedWorker) -> None:
        """After a step, let the migrating requests depart, and begin transfers for which there is room now."""
        moving = worker.moving if worker.plan is None else {}
        for request_id, plan in moving.items():
            here = self._places.home.get(request_id) is worker and not self._places.over(request_id)
            here = here and (request_id in worker.state.queue or request_id in worker.state.running)
            if here and (not plan.with_kv or self._can_reach(plan)):
                self._depart(worker, plan)
            else:
                self._places.counts["refused"] += 1
        moving.clear()
        self._serve(worker.state.worker)
