"""Runs that attain the counter gate's bounds: on a worker of M = 3 tokens, with rates 1 and 2, so that U = 5.

What one client has in flight is at most M; that all clients together have, no theorem of the gate assumes.
"""

from typing import Any

import attrs

from fairsched.model.pricing import charge_max_reserved
from fairsched.policies import counter
from fairsched.verify import change_proofs, counter_proofs, counter_wait_proofs, counter_worker_proofs
from fairsched.verify.concrete import Values
from fairsched.verify.system import Claim, World
from fairsched.verify.witness_run import INTERVAL_STARTS, RATES, Step, Witness, one, served

MEMORY = 3
CHARGE_MAX = charge_max_reserved(RATES, MEMORY, 2)


def _claim(of: tuple[Claim, ...], name: str) -> Claim:
    return next(claim for claim in of if claim.theorem.id == name)


def _turn(client: int) -> list[Step]:
    """A prompt of one token, and outputs that fill the memory: U."""
    return list(served(3, client, 1, MEMORY - 1))


def _arrives(client: int) -> Step:
    return ("arrive", {"p": client})


def _parameters(f: int, g: int) -> Values:
    return {"U": (CHARGE_MAX,) * 3, "f": f, "g": g}


def counter_witness() -> Witness:
    """V-4.4: client 0 is served 2U while client 1 waits and gets nothing.

    The kernel serves the first of equals.  Client 1 is served U while client 2 waits at 0; client 0 joins at 0, is
    served U, ties with client 1, and as the first of equals is served U again.
    """
    before = [_arrives(1), _arrives(2), *_turn(1), _arrives(0)]
    steps = (*before, (INTERVAL_STARTS, {}), *_turn(0), *_turn(2), *_turn(0))
    bound = counter.gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX)
    return Witness(_claim(counter_proofs.claims(), "V-4.4"), 3, _parameters(0, 1), steps, bound, {"c0": "c"})


def _changing() -> Witness:
    """V-change: the run of V-4.4, at the dearest price throughout."""

    def priced(step: Step) -> Step:
        name, facts = step
        return (name, {**facts, "y": facts["d"]}) if name == "decode" else step

    plain = counter_witness()
    claim = _claim(change_proofs.claims(), "V-change")
    return attrs.evolve(plain, claim=claim, steps=tuple(map(priced, plain.steps)))


def _close() -> Witness:
    """V-4.3: of two who wait at 0 one is admitted with U."""

    def ahead(w: World) -> int:
        return int(w.c[0]) + int(w.R[0]) - int(w.c[1])

    steps = (_arrives(0), _arrives(1), *_turn(0)[:1])
    return Witness(_claim(counter_proofs.claims(), "V-4.3"), 3, _parameters(0, 1), steps, CHARGE_MAX, measure=ahead)


def _overtaking_run() -> tuple[Step, ...]:
    """Client 0 (g) has U - 1 reserved and does not wait; 1 (f) stands at 2U, 2 waits at U.

    g decodes U - 1, comes back at U, is served U, ties with f once client 2 has left, and is served U again.
    """
    last = ("admit the last that waits", {"x": 1, "r": CHARGE_MAX - 1})
    before = [_arrives(0), _arrives(1), _arrives(2), last, *_turn(1), *_turn(2), *_turn(1)]
    steps: list[Step] = [("decode", {"d": one(3, 0, CHARGE_MAX - 1)}), _arrives(0), *_turn(0)]
    steps += [("leave the queue", {"p": 2}), *_turn(0)]
    return (*before, (INTERVAL_STARTS, {}), *steps)


def _one_sided() -> Witness:
    """V-4.9: f gets nothing, g 3U - 1."""
    bound = counter.one_sided_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX)
    return Witness(
        _claim(counter_wait_proofs.claims(), "V-4.9"),
        3,
        _parameters(1, 0),
        _overtaking_run(),
        bound,
        {"c0": "c", "R0": "R", "first": "queued", "met": "queued"},
        history=counter_proofs.system(),
    )


def _on_one_worker() -> Witness:
    """V-4.9-worker: the run of V-4.4, in which nobody runs beside another."""
    plain = counter_witness()
    return attrs.evolve(
        plain,
        claim=_claim(counter_worker_proofs.claims(), "V-4.9-worker"),
        parameters={**_parameters(1, 0), "U_max": CHARGE_MAX},
        bound_cost=counter.worker_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX),
        snapshots={"c0": "c", "R0": "R", "met": "queued"},
        history=counter_proofs.system(),
    )


def _latency() -> Witness:
    """V-4.11: the same run; f is never let in, and 2U + R_g(t1) = 3U - 1."""

    def service(w: World) -> int:
        return int(w.W[w.g])

    plain = _one_sided()
    claim: Any = _claim(counter_wait_proofs.claims(), "V-4.11")
    return attrs.evolve(plain, claim=claim, bound_cost=2 * CHARGE_MAX + CHARGE_MAX - 1, measure=service)


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the counter gate."""
    return (_close(), counter_witness(), _one_sided(), _on_one_worker(), _latency(), _changing())
