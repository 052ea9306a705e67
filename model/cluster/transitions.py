"""The cluster as a pure, untimed transition system: placing, staging, transferring, losing and draining.

Each function returns the next state and what follows from it; the driver (simulator, live cluster, conformance
battery) does that, in order, and knows how long it takes.  So it is safe at any moment: the target keeps memory before
anything is sent, and the source frees its KV when that has arrived elsewhere.

If the target of a move or a link fails, the request is staged as before, and policies are told.  If its source fails
before the KV was passed on, the request is held and placed again.  When nothing else can happen any more, a request
without a target goes on where it is, and one that no target has room for is computed there again, so that no request
waits for ever.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from fairsched.model.cluster import state as st
from fairsched.model.cluster.state import ClusterState, Effects, Move
from fairsched.model.decision import Migration
from fairsched.model.events import NOWHERE

Transition = tuple[ClusterState, Effects]

# --- workers ----------------------------------------------------------------------------------------------------------


def enter(state: ClusterState, worker: int, phase: st.WorkerPhase) -> ClusterState:
    """Let a worker be in this phase.  When it begins to drain, what is `unreserved` for it is to `fail`."""
    return replace(state, workers=state.workers.set(worker, phase))


def leave(state: ClusterState, worker: int) -> ClusterState:
    """Let a worker be gone that has nothing, or lost all."""
    return replace(state, workers=state.workers.delete(worker))


def lose(state: ClusterState, worker: int, requests: Iterable[int] = ()) -> tuple[ClusterState, Effects, list[int]]:
    """Let a worker lose its memory, and these of its requests; also returns the requests that are to be placed again.

    Its KV is gone and nothing is kept there.  A request whose KV was passed on to it and is still at the source is
    staged there as before.
    """
    effects: Effects = []
    lost = set(requests)
    moves, at = state.moves, state.at
    for move in state.in_order():
        request_id, phase, target = move.request_id, move.phase, move.target
        if move.source == worker and phase == "landing":
            moves = moves.set(request_id, replace(move, source=NOWHERE))
        elif move.source == worker:
            if move.plan is not None:
                effects += _called_off(move)
            if move.is_staged:
                lost.add(request_id)
            moves = moves.delete(request_id)
        elif target != worker:
            continue
        elif phase == "coming":
            moves = moves.set(request_id, replace(move, reserved=0))
        elif phase == "landing" and move.source == NOWHERE:
            moves = moves.delete(request_id)
        else:
            lost.discard(request_id)
            if phase == "landing":
                at = at.set(request_id, NOWHERE)
            moves = moves.delete(request_id) if phase == "computing" else moves.set(request_id, _staged(move))
            effects += _told(move)
    for request_id in lost:
        at = at.set(request_id, NOWHERE)
    return replace(state, moves=moves, at=at), effects, sorted(lost)


def lose_kv(state: ClusterState, worker: int, requests: Iterable[int]) -> Transition:
    """Let a worker that lives lose the KV of these requests, which were staged there; they are placed again."""
    effects: Effects = []
    moves = state.moves
    for request_id in requests:
        move = moves.get(request_id)
        if move is None or move.source != worker or move.phase == "computing":
            continue
        effects.append((worker, st.FreeKv(request_id)))
        if move.phase == "landing":
            moves = moves.set(request_id, replace(move, source=NOWHERE))
        else:
            effects += [*(_called_off(move) if move.plan is not None else ()), (NOWHERE, st.PlaceAgain(request_id))]
            moves = moves.delete(request_id)
    return replace(state, moves=moves), effects


def link_fails(state: ClusterState, worker: int, until_ns: int | None) -> Transition:
    """Call off the transfers over a worker's link, which is down until then (None: for ever).

    If it is down for ever, their requests leave their KV behind.
    """
    state = replace(state, cut=state.cut.set(worker, until_ns))
    effects: Effects = []
    for move in state.in_order():
        over = move.plan is None or move.phase in ("landing", "coming")
        if over or worker not in (move.source, move.target):
            continue
        gone = until_ns is None and move.is_staged
        if move.reserved:
            state, called_off = fail(state, move.request_id)
            effects += called_off
        elif gone:
            effects += _released(move)
        if gone:
            state, left_behind = _without_kv(state, move)
            effects += left_behind
    return state, effects


def link_back(state: ClusterState, worker: int) -> ClusterState:
    """Let a worker's link be up again."""
    return replace(state, cut=state.cut.delete(worker))


# --- requests ---------------------------------------------------------------------------------------------------------


def hold(state: ClusterState, request_id: int) -> ClusterState:
    """Let a request be open and at no worker."""
    return replace(state, at=state.at.set(request_id, NOWHERE))


def place(state: ClusterState, request_id: int, worker: int) -> ClusterState:
    """Let a request, new or held, be at a worker."""
    return replace(state, at=state.at.set(request_id, worker))


def fetch(state: ClusterState, request_id: int, worker: int, tokens: int) -> ClusterState:
    """Let a request, new or held, come to a worker that keeps `tokens` for its KV from a checkpoint."""
    move = Move(request_id, "coming", plan=Migration(request_id, NOWHERE, worker), reserved=tokens)
    return _moved(state, move)


def arrive(state: ClusterState, request_id: int, takes: bool = True) -> ClusterState:
    """Let a request that was coming be at its target, or held if that takes none."""
    target = state.moves[request_id].target
    return replace(
        state, moves=state.moves.delete(request_id), at=state.at.set(request_id, target if takes else NOWHERE)
    )


def end(state: ClusterState, request_id: int) -> Transition:
    """Let a request be over, wherever it is; what is kept for it is free."""
    effects: Effects = []
    move, at = state.moves.get(request_id), state.at.delete(request_id)
    if move is None:
        return replace(state, at=at), effects
    if move.phase != "landing":
        effects += _released(move)
    if move.source != NOWHERE and move.phase != "computing":
        effects.append((move.source, st.FreeKv(request_id)))
    return replace(state, at=at, moves=state.moves.delete(request_id)), effects


# --- moves ------------------------------------------------------------------------------------------------------------


def migrate(state: ClusterState, plan: Migration, *, takes: bool, prefill_only: bool = False) -> Transition | None:
    """Do what a policy wants with a request; None if it cannot be done.

    The target `takes` it, as far as the driver knows.  A staged request is sent.  One at its source leaves that first;
    one that is there for its prefill alone leaves by itself, and memory is asked for at once if its KV is to go along.
    """
    request_id, move = plan.request_id, state.moves.get(plan.request_id)
    with_kv = plan.with_kv and not state.never_linked(plan.source, plan.target)
    if move is not None:
        if move.phase != "staged" or plan.source != move.source or not takes:
            return None
        if plan.target == move.source:
            return _resumed(state, move)
        return _asked(state, replace(move, plan=plan)) if with_kv else _without_kv(state, replace(move, plan=plan))
    here = plan.source in state.workers and state.at.get(request_id) == plan.source
    if not here or plan.target == plan.source or not takes:
        return None
    move = Move(request_id, "computing", plan.source, plan)
    if not (plan.with_kv and prefill_only):
        state = replace(state, moves=state.moves.set(request_id, move))
        return state, [(plan.source, st.LeaveBatch(request_id, with_kv))]
    if plan.overlap != "none":
        return _asked(state, move)
    return replace(state, moves=state.moves.set(request_id, move)), []


def left(
    state: ClusterState, request_id: int, kv_tokens: int, *, takes: bool, prefill_ns: int = 0, last_tokens: int = 0
) -> Transition:
    """Let a request leave its worker's queue or batch, where the KV of `kv_tokens` is staged (0: none is).

    `takes` says whether its target, if one is named, still does.
    """
    worker, move = state.at[request_id], state.moves.get(request_id)
    if not kv_tokens:
        if move is not None and takes:
            return _moved(state, replace(move, phase="coming", source=NOWHERE)), [
                (move.target, st.GoWithoutKv(request_id))
            ]
        moves = state.moves if move is None else state.moves.delete(request_id)
        return replace(hold(state, request_id), moves=moves), [(NOWHERE, st.PlaceAgain(request_id))]
    move = Move(request_id, "staged", worker) if move is None else move
    move = replace(move, kv_tokens=kv_tokens, prefill_ns=prefill_ns, last_tokens=last_tokens)
    if move.plan is None:
        return _moved(state, move), []
    if not (move.reserved or takes):
        return _moved(state, _staged(move)), _called_off(move)
    if state.never_linked(worker, move.target):
        state, effects = _without_kv(state, move)
        return state, _released(move) + effects
    if move.reserved:
        return _moved(state, replace(move, phase="sending")), [(worker, st.SendKv(move.number, request_id))]
    if move.number:
        return _moved(state, replace(move, phase="reserving")), []
    return _asked(state, move, "reserving")


def grant(state: ClusterState, request_id: int, tokens: int = 0, now_ns: int = 0) -> Transition:
    """Let the target keep memory for a move (0: what was asked for); the KV is sent if it is staged."""
    move = state.moves[request_id]
    move = replace(move, reserved=tokens or reserved_tokens(move), reserved_ns=now_ns)
    if move.phase == "computing":
        return replace(state, moves=state.moves.set(request_id, move)), []
    sending = replace(move, phase="sending")
    return _moved(state, sending), [(move.source, st.SendKv(move.number, request_id))]


def pass_on(state: ClusterState, request_id: int) -> ClusterState:
    """Let the KV of a request be passed on to its target: the request is there from now on."""
    move = replace(state.moves[request_id], phase="landing")
    return replace(state, moves=state.moves.set(request_id, move), at=state.at.set(request_id, move.target))


def land(state: ClusterState, request_id: int) -> Transition:
    """Let the KV of a request have arrived: the source frees its own."""
    source, state = state.moves[request_id].source, replace(state, moves=state.moves.delete(request_id))
    return state, [] if source == NOWHERE else [(source, st.FreeKv(request_id))]


def fail(state: ClusterState, request_id: int) -> Transition:
    """Call a transfer off, before it began or under way: the request is where it was, without a target."""
    move = state.moves[request_id]
    moves = state.moves.set(request_id, _staged(move)) if move.is_staged else state.moves.delete(request_id)
    return replace(state, moves=moves), _called_off(move)


def unreserved(state: ClusterState, worker: int) -> list[int]:
    """Return the requests that are to come to a worker with their KV, and for which it keeps no memory, in order."""
    asked = ("computing", "reserving")
    moves = (move for move in state.in_order() if move.target == worker and move.phase in asked)
    return [move.request_id for move in moves if not move.reserved]


def numbered(state: ClusterState, numbers: Iterable[int], phase: st.MovePhase) -> list[Move]:
    """Return the moves of these attempts that are in this phase; others were called off meanwhile."""
    wanted = set(numbers)
    return [move for move in state.in_order() if move.number in wanted and move.phase == phase] if wanted else []


def unstrand(state: ClusterState) -> Transition | None:
    """Let the first request go on that waits for a target or for room; None if there is none."""
    for move in state.in_order():
        if move.phase == "staged":
            return _resumed(state, move)
        if move.phase == "reserving":
            state, effects = _without_kv(state, move)
            return state, _released(move) + effects
    return None


def release_early(state: ClusterState) -> Transition | None:
    """Call off the first move for which memory is kept before its prefill, which may wait for it; None if there is
    none."""
    early = next((move for move in state.in_order() if move.phase == "computing" and move.reserved), None)
    return None if early is None else fail(state, early.request_id)


def reserved_tokens(move: Move) -> int:
    """Return what is to be kept for a staged request: its KV, and what its plan says for outputs."""
    return move.kv_tokens + (0 if move.plan is None else move.plan.reserved_output_tokens)


# --- how all of them do it --------------------------------------------------------------------------------------------


def _moved(state: ClusterState, move: Move) -> ClusterState:
    request_id = move.request_id
    return replace(state, moves=state.moves.set(request_id, move), at=state.at.set(request_id, NOWHERE))


def _staged(move: Move) -> Move:
    return replace(move, phase="staged", plan=None, number=0, reserved=0, reserved_ns=0)


def _asked(state: ClusterState, move: Move, phase: st.MovePhase | None = None) -> Transition:
    """Ask the target of a move for memory."""
    attempts = state.attempts + 1
    if phase is None:
        phase = "computing" if move.phase == "computing" else "reserving"
    move = replace(move, number=attempts, phase=phase)
    asked = replace(state, attempts=attempts, moves=state.moves.set(move.request_id, move))
    if phase == "reserving":
        asked = replace(asked, at=asked.at.set(move.request_id, NOWHERE))
    return asked, [(move.target, st.ReserveKv(attempts, move.request_id, reserved_tokens(move)))]


def _resumed(state: ClusterState, move: Move) -> Transition:
    request_id = move.request_id
    state = replace(state, moves=state.moves.delete(request_id), at=state.at.set(request_id, move.source))
    return state, [(move.source, st.ResumeRequest(request_id))]


def _without_kv(state: ClusterState, move: Move) -> Transition:
    """Let a staged request set out for its target without its KV."""
    request_id = move.request_id
    coming = Move(request_id, "coming", plan=move.plan)
    return _moved(state, coming), [(move.source, st.FreeKv(request_id)), (move.target, st.GoWithoutKv(request_id))]


def _released(move: Move) -> Effects:
    """Return what frees the memory that the target of a move keeps, or that it waits for."""
    return [(move.target, st.ReleaseKv(move.number, move.request_id))] if move.number or move.reserved else []


def _told(move: Move) -> Effects:
    told = move.source != NOWHERE and move.plan is not None and move.plan.with_kv
    return [(move.source, st.TellFailed(move.request_id, move.target))] if told else []


def _called_off(move: Move) -> Effects:
    return _released(move) + _told(move)
