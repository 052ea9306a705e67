"""Runs that attain the deficit gate's bounds: on a worker of M = 3 tokens, with rates 1 and 2, so that U = 5.

Requests then cost 3 (one token in, one out), 4 (two in) or 5 (two out).
"""

from collections.abc import Iterator
from typing import Any

import attrs

from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.gates.deficit import gap_cost, weighted_gap_cost
from fairsched.verify.logic import BEGIN, RATES, Claim, RunStep, Values, Witness, World, one, served
from fairsched.verify.proofs.gates import changes as change_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates import deficit_progress as deficit_progress_proofs
from fairsched.verify.proofs.gates import deficit_steps as deficit_kernel_proofs

MEMORY = 3
LONGEST = 2
CHARGE_MAX = charge_max_reserved(RATES, MEMORY, LONGEST)
QUANTUM = 4
F, G = 0, 1
REFILL: RunStep = ("refill", {})


def _claim(of: tuple[Claim, ...], name: str) -> Claim:
    return next(claim for claim in of if claim.theorem.id == name)


def _parameters(quantum_f: int = QUANTUM, quantum_g: int = QUANTUM, f: int = F, g: int = G) -> Values:
    return {"Q": (quantum_f, quantum_g), "U": (CHARGE_MAX,) * 2, "f": f, "g": g}


def _arrives(client: int) -> RunStep:
    return ("arrive", {"p": client})


def _request(client: int, cost: int) -> Iterator[RunStep]:
    """A request of `client` that costs 3, 4 or 5."""
    inputs, outputs = {3: (1, 1), 4: (2, 1), 5: (1, 2)}[cost]
    return served(2, client, inputs, outputs, ready=(1, 1), score=one(2, client, 1))


def _costs(client: int, *costs: int) -> list[RunStep]:
    return [step for cost in costs for step in _request(client, cost)]


def _gap_run(interval: int) -> tuple[RunStep, ...]:
    """From q = (4, -4) to (-4, 4), where client 0 was served 16 and client 1 nothing."""
    before = [_arrives(0), _arrives(1), REFILL, *_costs(1, 3, 5)]
    steps = [*_costs(0, 3, 5), REFILL, REFILL, *_costs(0, 3, 5)]
    return (*before, (BEGIN, {}), *steps[:interval])


_WHOLE = 10
_FIRST_HALF = 4


def deficit_witness() -> Witness:
    """D-4.1: 16, both waiting throughout."""
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    claim = _claim(deficit_proofs.claims(), "D-4.1")
    return Witness(claim, 2, _parameters(), _gap_run(_WHOLE), bound, {"q0": "q"})


def _one_sided() -> Witness:
    """D-4.2: the same run, f being the one who got nothing."""
    claim = _claim(deficit_proofs.claims(), "D-4.2")
    return attrs.evolve(deficit_witness(), claim=claim, parameters=_parameters(f=1, g=0))


def _range() -> Witness:
    """D-range: both ends at once, q = (-4, 4)."""

    def width(w: World) -> int:
        return int(w.q[G]) - int(w.q[F])

    claim = _claim(deficit_proofs.claims(), "D-range")
    steps = tuple(step for step in _gap_run(_WHOLE) if step[0] != BEGIN)
    return Witness(claim, 2, _parameters(), steps, QUANTUM + CHARGE_MAX - 1, measure=width)


def _either_rejoin(witness: Witness) -> Witness:
    """The same run, in which no client comes back, for the same constant under either rejoin rule."""
    claim = _claim(deficit_proofs.claims(), f"{witness.theorem.id}-rejoin")
    return attrs.evolve(witness, claim=claim)


def _net(w: World) -> int:
    return abs(int(w.P[F]) - int(w.W[F]))


def _balance() -> Witness:
    """D-A.1: f is served 8 without a refill."""
    claim = _claim(deficit_proofs.claims(), "D-A.1")
    bound = QUANTUM + CHARGE_MAX - 1
    return Witness(claim, 2, _parameters(), _gap_run(_FIRST_HALF), bound, {"q0": "q"}, _net)


def _weighted() -> Witness:
    """D-weighted: Q = (4, 2), three rounds; f is served 20, g nothing, and Q_g W_f - Q_f W_g = 40."""
    quanta = (4, 2)

    def gap(w: World) -> int:
        return quanta[1] * int(w.W[F]) - quanta[0] * int(w.W[G])

    # g reaches 1 - U = -4 from 1: a quantum of 2, a request of 3, another quantum, a request of 5.
    before = [_arrives(F), _arrives(G), REFILL, *_costs(G, 3), *_costs(F, 4), REFILL, *_costs(G, 5)]
    steps = [*_costs(F, 3, 5), REFILL, REFILL, *_costs(F, 3, 4), REFILL, *_costs(F, 5)]
    bound = weighted_gap_cost(quanta[0], CHARGE_MAX, quanta[1], CHARGE_MAX)
    claim = _claim(deficit_proofs.claims(), "D-weighted")
    run = (*before, (BEGIN, {}), *steps)
    return Witness(claim, 2, _parameters(*quanta), run, bound, {"q0": "q"}, gap)


def _rounds() -> Witness:
    """D-wc: a debt of U - 1 = 4 with Q = 4 takes two rounds."""

    def rounds(w: World) -> int:
        return int(w.G[F]) // QUANTUM

    claim = _claim(deficit_progress_proofs.claims(), "D-wc")
    steps = (_arrives(F), REFILL, *_costs(F, 3, 5), REFILL, REFILL)
    return Witness(claim, 2, _parameters(), steps, (CHARGE_MAX - 1) // QUANTUM + 1, measure=rounds)


_F_IN_DEBT: tuple[RunStep, ...] = (
    *(_arrives(G), ("leave the queue", {"p": G}), _arrives(F), REFILL),
    *(*_costs(F, 3), REFILL, *_costs(F, 5), _arrives(G)),
)
"""With Q_f = 2 f comes to wait with a debt of 4, and g with a whole quantum of credit."""


def _latency() -> Witness:
    """D-A.2 with Q = 2: f joins with a debt of 4, and g is served 12 before f is in credit and may be let in."""
    quantum = 2

    steps = [*_costs(G, 4), REFILL, REFILL, *_costs(G, 3), REFILL, *_costs(G, 5)]
    claim = _claim(deficit_progress_proofs.claims(), "D-A.2")
    return Witness(
        claim,
        2,
        _parameters(quantum, quantum),
        (*_F_IN_DEBT, (BEGIN, {}), *steps),
        gap_cost(quantum, CHARGE_MAX, quantum, CHARGE_MAX),
        {"q0": "q", "R0": "R"},
        lambda w: int(w.W[G]),
        deficit_proofs.deficit_system(),
    )


def _weighted_latency() -> Witness:
    """D-A.2-weighted with Q = (2, 4): f's debt of 4 is two rounds of g's; g is served 20, times Q_f is 40."""
    quanta = (2, 4)

    def service(w: World) -> int:
        return quanta[F] * int(w.W[G])

    steps = [step for _ in range(3) for step in (*_costs(G, 4), REFILL)]
    bound = weighted_gap_cost(quanta[F], CHARGE_MAX, quanta[G], CHARGE_MAX)
    claim = _claim(deficit_progress_proofs.claims(), "D-A.2-weighted")
    run = (*_F_IN_DEBT, (BEGIN, {}), *steps, *_costs(G, 3, 5))
    snapshots = {"q0": "q", "R0": "R"}
    return Witness(claim, 2, _parameters(*quanta), run, bound, snapshots, service, deficit_proofs.deficit_system())


def _price() -> Witness:
    """D-price: two requests of 3 block f twice, and (6 - 1) / 4 + 1 = 2."""

    def times(w: World) -> int:
        return int(w.B[F]) // QUANTUM

    before = [_arrives(F), REFILL, *_costs(F, 3)]
    steps = [*_costs(F, 3), REFILL, *_costs(F, 3)]
    claim = _claim(deficit_progress_proofs.claims(), "D-price")
    run = (*before, (BEGIN, {}), *steps)
    return Witness(
        claim, 2, _parameters(), run, (6 - 1) // QUANTUM + 1, measure=times, history=deficit_proofs.deficit_system()
    )


def _capped() -> Witness:
    """D-cap: the run of D-4.1 on a worker of 10 tokens under a cap of 3, in tokens."""
    parameters: dict[str, Any] = {"Q": (QUANTUM,) * 2, "f": F, "g": G, "C": MEMORY, "M": 10, "L": LONGEST}
    parameters |= {"w_e": RATES.input, "w_q": RATES.output}

    def request(client: int, inputs: int, outputs: int) -> Iterator[RunStep]:
        yield "admit", {"e": inputs, "k": 0, "r": outputs, "ready": (1, 1), "score": one(2, client, 1)}
        yield "decode", {"t": one(2, client, outputs)}
        yield "finish", {"p": client, "y": inputs + outputs, "x": 0}

    def spends_all(client: int) -> list[RunStep]:
        return [*request(client, 1, 1), *request(client, 1, 2)]

    steps = (
        *(_arrives(F), _arrives(G), REFILL, *spends_all(G), (BEGIN, {})),
        *(*spends_all(F), REFILL, REFILL, *spends_all(F)),
    )
    claim = _claim(deficit_kernel_proofs.claims(), "D-cap")
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(claim, 2, parameters, steps, bound, {"q0": "q"})


def _changed() -> Witness:
    """D-change: the run of D-A.1 after quanta were set while it runs."""
    claim = _claim(change_proofs.claims(), "D-change")
    parameters = {name: value for name, value in _parameters().items() if name != "Q"}
    steps = (("configured", {"now": (QUANTUM,) * 2}), *_gap_run(_FIRST_HALF))
    return Witness(claim, 2, parameters, steps, QUANTUM + CHARGE_MAX - 1, {"q0": "q"}, _net)


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the deficit gate."""
    return (
        *(_range(), _balance(), deficit_witness(), _one_sided(), _weighted()),
        *(_either_rejoin(_range()), _either_rejoin(deficit_witness())),
        *(_rounds(), _latency(), _weighted_latency(), _price(), _capped(), _changed()),
    )
