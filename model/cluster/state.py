"""The state of a cluster, what it asks of its workers, and what is always true of it.

A request is at one place: at a worker (in its queue or batch), at none because it is held, or between two workers.
A move goes through these phases:

    computing  the request is still at its source, and its target is named; memory may be kept there already
    staged     it left its source's batch, and its KV is still there; no target is named
    reserving  the target is asked to keep memory, first come first served
    sending    memory is kept, and the KV is sent; the source keeps its own
    landing    the KV was passed on and the request is the target's; the source has not been told yet
    coming     it comes without the KV of a worker: to compute again, or with KV from a checkpoint
"""

from typing import Literal

import msgspec
from immutables import Map

from fairsched.model.decision import Migration
from fairsched.model.events import NOWHERE

WorkerPhase = Literal["starting", "serving", "draining"]
MovePhase = Literal["computing", "staged", "reserving", "sending", "landing", "coming"]


class Move(msgspec.Struct, frozen=True):
    """A request that changes its worker.

    Its KV of `kv_tokens` is at `source` (`NOWHERE`: at no worker), and goes where `plan` says (None: no target is
    named).  `number` is that of the attempt (0: none).  The target keeps `reserved` tokens for it since `reserved_ns`.
    Its prefill took `prefill_ns`, with `last_tokens` in the last chunk, where it was dispatched for that alone.
    """

    request_id: int
    phase: MovePhase
    source: int = NOWHERE
    plan: Migration | None = None
    number: int = 0
    kv_tokens: int = 0
    reserved: int = 0
    reserved_ns: int = 0
    prefill_ns: int = 0
    last_tokens: int = 0

    @property
    def target(self) -> int:
        """The worker where it goes; `NOWHERE` if none is named."""
        return NOWHERE if self.plan is None else self.plan.target

    @property
    def is_staged(self) -> bool:
        """Whether the request left its source's batch, and the only KV of it is there."""
        return self.phase in ("staged", "reserving", "sending")


class ClusterState(msgspec.Struct, frozen=True):
    """Where every open request is, which of them move, and the workers that are there.

    `at` says at which worker each open request is (`NOWHERE`: it is held, or moves).  `attempts` counts transfers that
    were asked for.  Links in `cut` are down until then (None: for ever).
    """

    workers: Map[int, WorkerPhase] = Map()
    at: Map[int, int] = Map()
    moves: Map[int, Move] = Map()
    attempts: int = 0
    cut: Map[int, int | None] = Map()

    def in_order(self) -> list[Move]:
        """Return the moves in order of requests."""
        return [move for _, move in sorted(self.moves.items())]

    def never_linked(self, *workers: int) -> bool:
        """Return whether the link of any of these workers is down for ever."""
        return any(worker in self.cut and self.cut[worker] is None for worker in workers)


class LeaveBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The request goes to another worker; `with_kv`, its KV stays until it is sent."""

    request_id: int
    with_kv: bool


class ReserveKv(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Keep memory for a request whose KV is to come by transfer `number`, as soon as there is room."""

    number: int
    request_id: int
    tokens: int


class ReleaseKv(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Transfer `number` does not come: its memory is free, and it waits for none."""

    number: int
    request_id: int


class SendKv(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Send the KV of a staged request by transfer `number`; it stays here."""

    number: int
    request_id: int


class FreeKv(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The KV of a staged request is somewhere else, or needed no more."""

    request_id: int


class ResumeRequest(msgspec.Struct, frozen=True):
    """A staged request goes on at this worker, which has its KV."""

    request_id: int


class GoWithoutKv(msgspec.Struct, frozen=True):
    """The request sets out for this worker without KV; `arrive` says that it is there."""

    request_id: int


class TellFailed(msgspec.Struct, frozen=True):
    """A transfer from this worker to `target` was called off: an event for policies."""

    request_id: int
    target: int


class PlaceAgain(msgspec.Struct, frozen=True):
    """The request is held, and needs a worker."""

    request_id: int


Command = LeaveBatch | ReserveKv | ReleaseKv | SendKv | FreeKv
"""What a worker is asked."""
Effects = list[tuple[int, Command | ResumeRequest | GoWithoutKv | TellFailed | PlaceAgain]]
"""What follows from a transition, in order, each with the worker that it is about."""


def check(state: ClusterState) -> None:
    """Raise `AssertionError` unless each request and each KV is at one place, and memory is kept for what is sent."""
    for request_id, worker in state.at.items():
        assert worker == NOWHERE or worker in state.workers, (
            f"request {request_id} is at worker {worker}, which is gone"
        )
    for request_id, move in state.moves.items():
        phase, number, kept = move.phase, move.number, move.reserved
        assert request_id in state.at, f"request {request_id} moves and is over"
        where = {"computing": move.source, "landing": move.target}.get(phase, NOWHERE)
        assert state.at[request_id] == where, f"request {request_id} is {phase} and at worker {state.at[request_id]}"
        assert move.source != move.target or move.source == NOWHERE
        assert (move.plan is None) == (phase == "staged")
        assert number <= state.attempts
        assert move.source in state.workers or (phase in ("landing", "coming") and move.source == NOWHERE)
        assert not kept or move.target in state.workers, f"memory for request {request_id} is kept at a lost worker"
        assert not kept or phase in ("computing", "sending", "landing", "coming")
        assert phase not in ("sending", "landing") or kept, f"request {request_id} is sent and nothing is kept for it"
        assert bool(number) or phase in ("computing", "staged", "coming")
    numbers = [move.number for move in state.moves.values() if move.number]
    assert len(set(numbers)) == len(numbers), "two moves have one number"
