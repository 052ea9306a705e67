"""Flips: a worker with nothing to do for long changes from one phase to the other.

Source: TetriInfer, section 3.5.  A worker whose load is below 10 % for a minute (idle for a minute in its evaluation)
is drained, and then switches in 5 to 7 ms.  New work is blocked as soon as the flip begins.  The paper does not say
what keeps a phase from losing its last worker, nor what keeps two idle workers from changing places; here a worker
flips only if another one serves its phase, and if the other phase has load.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.theorem import Theorem
from fairsched.model.view import Role, WorkerLoad

Phase = Literal["prefill", "decode"]
OTHER: dict[Role, Phase] = {"prefill": "decode", "decode": "prefill"}

P_TI_4 = Theorem(
    "P-TI-4",
    "flips leave every phase a worker that serves it and is not on its way to the other, if each has one at first and "
    "no worker fails",
    "this library; TetriInfer does not say it",
    bound="1",
)
P_TI_5 = Theorem(
    "P-TI-5",
    "from the beginning of a flip until it ends the worker is given nothing new, of either phase",
    "TetriInfer; this library",
)


class Flip(msgspec.Struct, frozen=True, gc=False):
    """A worker on its way to phase `to`: it drains, and then serves from `ready_ns` on (None: it still drains)."""

    to: Phase
    ready_ns: int | None = None


class Flips(msgspec.Struct, frozen=True):
    """Roles that were changed, by worker; flips under way; and since when workers have had little load."""

    roles: Map[int, Phase] = Map()
    under_way: Map[int, Flip] = Map()
    since_ns: Map[int, int] = Map()


NO_FLIPS = Flips()
"""Every worker has the role that it came with."""


# --- kernels ----------------------------------------------------------------------------------------------------------


def may_flip(staying: int, waiting: int, for_ns: int, patience_ns: int) -> bool:
    """Return whether a worker may leave its phase: others stay there, the other phase has `waiting` workers with load,
    and it has had little load for long."""
    return staying >= 1 and waiting >= 1 and for_ns >= patience_ns


def flipped(serving: tuple[int, int], phase: int) -> tuple[int, int]:
    """Return how many workers serve each phase after one of `phase` (0 or 1) began to flip; it serves none until it is
    ready.

    >>> flipped((2, 3), 0)
    (1, 3)
    """
    prompts, outputs = serving
    return (prompts - 1, outputs) if phase == 0 else (prompts, outputs - 1)


def arrived(serving: tuple[int, int], phase: int) -> tuple[int, int]:
    """Return how many workers serve each phase after one became ready for `phase`."""
    prompts, outputs = serving
    return (prompts + 1, outputs) if phase == 0 else (prompts, outputs + 1)


def is_little(load: WorkerLoad, percent: int) -> bool:
    """Return whether the worker holds and waits for at most so much of its memory; 0: it has nothing at all to do."""
    tokens = load.waiting_tokens + load.kv_capacity_tokens - load.kv_free_tokens
    requests = load.waiting_requests + load.running_requests
    return 100 * tokens <= percent * load.kv_capacity_tokens and (percent > 0 or requests == 0)


# --- transitions ------------------------------------------------------------------------------------------------------


def as_they_serve(flips: Flips, loads: Iterable[WorkerLoad]) -> tuple[WorkerLoad, ...]:
    """Return the workers that take new requests, with the roles that they have now."""
    if not flips.roles and not flips.under_way:
        return tuple(loads)
    return tuple(
        replace(load, role=flips.roles[load.worker]) if load.worker in flips.roles else load
        for load in loads
        if load.worker not in flips.under_way
    )


def advanced(
    flips: Flips, loads: tuple[WorkerLoad, ...], now_ns: int, percent: int, patience_ns: int, switch_ns: int
) -> Flips:
    """Return the flips after workers that drained switch, those that are ready serve, and idle ones begin.  O(workers).

    One flip begins at a time, of the worker that has had little load for longest.
    """
    for load in loads:
        flip = flips.under_way.get(load.worker)
        if flip is None:
            continue
        if flip.ready_ns is None:
            if is_little(load, 0):
                ready = replace(flip, ready_ns=now_ns + switch_ns)
                flips = replace(flips, under_way=flips.under_way.set(load.worker, ready))
        elif flip.ready_ns <= now_ns:
            flips = Flips(flips.roles.set(load.worker, flip.to), flips.under_way.delete(load.worker), flips.since_ns)
    serving = as_they_serve(flips, loads)
    flips = _timed(flips, serving, now_ns, percent)
    return flips if flips.under_way else _begun(flips, serving, now_ns, patience_ns, switch_ns)


def without_worker(flips: Flips, worker: int) -> Flips:
    """Return the flips after a worker left; one that comes again has the role that it comes with."""
    roles, under_way, since_ns = flips.roles, flips.under_way, flips.since_ns
    if worker in roles:
        roles = roles.delete(worker)
    if worker in under_way:
        under_way = under_way.delete(worker)
    if worker in since_ns:
        since_ns = since_ns.delete(worker)
    return Flips(roles, under_way, since_ns)


def _timed(flips: Flips, serving: tuple[WorkerLoad, ...], now_ns: int, percent: int) -> Flips:
    """Return the flips with the time since when each serving worker has had little load."""
    since_ns = flips.since_ns
    for load in serving:
        little = is_little(load, percent)
        if little and load.worker not in since_ns:
            since_ns = since_ns.set(load.worker, now_ns)
        elif not little and load.worker in since_ns:
            since_ns = since_ns.delete(load.worker)
    return flips if since_ns is flips.since_ns else replace(flips, since_ns=since_ns)


def _begun(flips: Flips, serving: tuple[WorkerLoad, ...], now_ns: int, patience_ns: int, switch_ns: int) -> Flips:
    for since_ns, worker, role in sorted(
        (flips.since_ns[load.worker], load.worker, load.role) for load in serving if load.worker in flips.since_ns
    ):
        if role not in OTHER:
            continue
        staying = sum(load.role in (role, "both") for load in serving) - 1
        waiting = sum(load.role == OTHER[role] and load.worker not in flips.since_ns for load in serving)
        if may_flip(staying, waiting, now_ns - since_ns, patience_ns):
            load = next(load for load in serving if load.worker == worker)
            flip = Flip(OTHER[role], now_ns + switch_ns if is_little(load, 0) else None)
            return replace(flips, under_way=flips.under_way.set(worker, flip), since_ns=flips.since_ns.delete(worker))
    return flips
