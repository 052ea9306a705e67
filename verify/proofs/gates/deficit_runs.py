"""Runs that attain the deficit gate's bounds: on a worker of M = 3 tokens, with rates 1 and 2, so that U = 5.

Requests then cost 3 (one token in, one out), 4 (two in) or 5 (two out).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.gates import deficit as gates_deficit
from fairsched.verify.logic import BEGIN, RATES, Claim, RunStep, Values, Witness, World, claim_named, one, served
from fairsched.verify.proofs.gates import deficit, deficit_steps
from fairsched.verify.proofs.gates.deficit import deficit_system
from fairsched.verify.proofs.gates.deficit_steps import in_flight_system

MEMORY = 3
LONGEST = 2
CHARGE_MAX = charge_max_reserved(RATES, MEMORY, LONGEST)
QUANTUM = 4
EVEN = (QUANTUM, QUANTUM)
RANGE_BOUND = QUANTUM + CHARGE_MAX - 1
GAP_BOUND = gates_deficit.gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
OVER_THE_CAP = 5
TOKENS = {3: (1, 1), 4: (2, 1), 5: (1, 2)}
"""Input and output tokens of a request of each cost."""
F, G = 0, 1
REFILL = "refill"

Script = tuple[Any, ...]
"""A run in short: `REFILL`, `BEGIN`, a client with the costs of its requests, or a step as it is."""

GAP: Script = (REFILL, (G, 3, 5), BEGIN, (F, 3, 5), REFILL, REFILL, (F, 3, 5))
"""From q = (4, -4) to (-4, 4), where f was served 16 and g nothing."""

WEIGHTED_QUANTA = (4, 2)
WEIGHTED: Script = (
    # g reaches 1 - U = -4 from 1: a quantum of 2, a request of 3, another quantum, a request of 5.
    *(REFILL, (G, 3), (F, 4), REFILL, (G, 5), BEGIN),
    *((F, 3, 5), REFILL, REFILL, (F, 3, 4), REFILL, (F, 5)),
)
"""Three rounds of quanta 4 and 2, in which f is served 20 and g nothing."""


def _steps(script: Script) -> Iterator[RunStep]:
    for word in script:
        match word:
            case str():
                yield word, {}
            case (str(), _):
                yield word
            case (client, *costs):
                for cost in costs:
                    yield from served(2, client, *TOKENS[cost], ready=(1, 1), score=one(2, client, 1))


def _arrives(client: int) -> RunStep:
    return ("arrive", {"p": client})


_BOTH = (_arrives(F), _arrives(G))
_F_IN_DEBT: Script = (
    *(_arrives(G), ("leave the queue", {"p": G}), _arrives(F), REFILL),
    *((F, 3), REFILL, (F, 5), _arrives(G), BEGIN),
)
"""With Q_f = 2 f comes to wait with a debt of 4, and g with a whole quantum of credit."""


def _behind_f(cost: int) -> Iterator[RunStep]:
    """g is served, though f would go first."""
    return served(2, G, *TOKENS[cost], ready=(1, 1), score=(2, 1), rank=2)


def _claim(theorem: str) -> Claim:
    return claim_named(theorem, (*deficit.claims(), *deficit_steps.claims()))


def _witness(theorem: str, script: Script, bound: int, quanta: tuple[int, int] = EVEN, **more: Any) -> Witness:
    parameters: Values = {"Q": quanta, "U": (CHARGE_MAX,) * 2, "f": F, "g": G}
    witness = Witness(_claim(theorem), 2, parameters, tuple(_steps(script)), bound, {"q0": "q"})
    return attrs.evolve(witness, **more)


def deficit_witness() -> Witness:
    """D-4.1: 16, both waiting throughout."""
    return _witness("D-4.1", (*_BOTH, *GAP), GAP_BOUND)


BACK = 2
"""What is given back: a prompt of two tokens, none of them computed."""


def _given_back() -> Witness:
    """D-4.1 with B = 2: from q = (6, -4) to (-4, 6), where f was served 22 and g 2.

    A client that owes a prompt is refilled as if it had been computed; then its caller gives up.
    """

    def enters(client: int, inputs: int, back: int) -> RunStep:
        facts = {"x": inputs, "r": RATES.output, "k": back, "ready": (1, 1), "score": one(2, client, 1)}
        return ("admit", facts)

    def leaves(client: int) -> RunStep:
        return ("finish", {"p": client, "x": RATES.output})

    def spends(client: int, inputs: int) -> Script:
        return (enters(client, inputs, 0), leaves(client))

    def owes(client: int) -> Script:
        return (*spends(client, 2), enters(client, BACK, BACK))

    def gives_up(client: int) -> Script:
        return (leaves(client), ("refund", {"p": client, "x": BACK}))

    before: Script = (REFILL, *owes(F), (G, 3, 3), REFILL, *gives_up(F), *spends(G, 1), (G, 5), BEGIN)
    during: Script = ((F, 5, 5), REFILL, REFILL, *owes(G), (F, 3, 4), REFILL, *gives_up(G), (F, 5))
    plain = _witness("D-4.1", (*_BOTH, *before, *during), GAP_BOUND + 2 * BACK)
    return attrs.evolve(plain, parameters={**plain.parameters, "back": (BACK, BACK)})


def _net(w: World) -> int:
    return abs(int(w.P[F]) - int(w.W[F]))


def _capped() -> Witness:
    """D-cap: the run of D-4.1 on a worker of 10 tokens under a cap of 3, in tokens."""
    parameters: Mapping[str, Any] = {"Q": EVEN, "f": F, "g": G, "C": MEMORY, "M": 10, "L": LONGEST}

    def request(client: int, inputs: int, outputs: int) -> Iterator[RunStep]:
        yield "admit", {"e": inputs, "k": 0, "z": 0, "r": outputs, "ready": (1, 1), "score": one(2, client, 1)}
        yield "decode", {"t": one(2, client, outputs)}
        yield "finish", {"p": client, "y": inputs + outputs, "x": 0}

    def spends_all(client: int) -> list[RunStep]:
        return [*request(client, 1, 1), *request(client, 1, 2)]

    script = (*_BOTH, REFILL, *spends_all(G), BEGIN, *spends_all(F), REFILL, REFILL, *spends_all(F))
    rates = {"w_e": RATES.input, "w_q": RATES.output}
    return _witness("D-cap", script, GAP_BOUND, parameters={**parameters, **rates})


def _elastic() -> tuple[Witness, Witness]:
    """D-elastic and D-in-flight: g, alone, has 5 tokens in flight and comes to owe U(5) - 1 = 8; then both wait, f is
    served within the cap of 3, and 20 before g is."""

    def request(client: int, inputs: int, outputs: int) -> Iterator[RunStep]:
        tokens, reserved = inputs + outputs, RATES.output * outputs
        charge_max = charge_max_reserved(RATES, tokens, LONGEST)
        facts = {"x": inputs, "r": reserved, "k": 0, "e": tokens, "u": charge_max}
        yield "admit", {**facts, "ready": (1, 1), "score": one(2, client, 1)}
        yield "decode", {"d": one(2, client, reserved)}
        yield "finish", {"p": client, "x": 0, "y": tokens}

    spends_all = [*request(F, 1, 1), *request(F, 1, 2)]
    alone = (
        *(_arrives(F), REFILL, ("leave the queue", {"p": F}), _arrives(G), REFILL),
        *(*request(G, 1, 1), *request(G, 1, OVER_THE_CAP - 1), _arrives(F)),
    )
    script = (*alone, BEGIN, *spends_all, REFILL, REFILL, *request(F, 2, 1), REFILL, *spends_all)
    owed = charge_max_reserved(RATES, OVER_THE_CAP, LONGEST)
    memory = charge_max_reserved(RATES, 10, LONGEST)
    worker = {"Q": EVEN, "U": (memory, memory), "f": F, "g": G}
    gap = _witness(
        "D-elastic",
        script,
        gates_deficit.gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, owed),
        parameters={**worker, "E": CHARGE_MAX, "C": MEMORY, "S": MEMORY},
        measure=lambda w: int(w.W[F]) - int(w.W[G]),
        snapshots={"q0": "q", "V0": "V"},
        history=in_flight_system(),
    )
    owes = _witness("D-in-flight", alone, owed - 1, parameters=worker, measure=lambda w: -int(w.q[G]), snapshots={})
    return gap, owes


def _changed() -> Witness:
    """D-change: the run of D-A.1 after quanta were set while it runs."""
    return _of_any_quanta(_witness("D-change", (_sets(EVEN), *_BOTH, *GAP[:4]), RANGE_BOUND, measure=_net))


def _cut() -> Witness:
    """D-change-gap: the run of D-4.1; then g's credit is cut from 4 to 1, and it is as far behind once more."""
    again: Script = (_sets((1, 1)), _sets(EVEN), (G, 5), REFILL, REFILL, (F, 3, 5))
    return _of_any_quanta(_witness("D-change-gap", (_sets(EVEN), *_BOTH, *GAP, *again), GAP_BOUND + QUANTUM - 1))


def _sets(quanta: tuple[int, int]) -> RunStep:
    return ("configured", {"now": quanta})


def _of_any_quanta(witness: Witness) -> Witness:
    """The same where quanta are no parameter."""
    return attrs.evolve(witness, parameters={name: v for name, v in witness.parameters.items() if name != "Q"})


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the deficit gate."""
    gap, of_f = deficit_witness(), (_arrives(F), REFILL)
    both_ends = _witness(
        "D-range",
        tuple(word for word in (*_BOTH, *GAP) if word != BEGIN),
        RANGE_BOUND,
        measure=lambda w: int(w.q[G]) - int(w.q[F]),
    )
    # f joins with a debt of 4; before it is in credit g is served 12, or with a quantum of 4 for its two rounds 20.
    waiting = {"snapshots": {"q0": "q", "R0": "R"}, "history": deficit_system()}
    low, served_g = (2, 2), ((G, 4), REFILL, REFILL, (G, 3), REFILL, (G, 5))
    apart, more_served = (2, 4), (*((G, 4), REFILL) * 3, (G, 3, 5))
    return (
        both_ends,
        _witness("D-A.1", (*_BOTH, *GAP[:4]), RANGE_BOUND, measure=_net),
        _given_back(),
        gap,
        # The same run, f being the one that got nothing.
        attrs.evolve(gap, claim=_claim("D-4.2"), parameters={**gap.parameters, "f": G, "g": F}),
        _witness(
            "D-weighted",
            (*_BOTH, *WEIGHTED),
            gates_deficit.weighted_gap_cost(4, CHARGE_MAX, 2, CHARGE_MAX),
            WEIGHTED_QUANTA,
            measure=lambda w: 2 * int(w.W[F]) - 4 * int(w.W[G]),
        ),
        # The same runs, in which no client comes back, for the same constants under either rejoin rule.
        attrs.evolve(both_ends, claim=_claim("D-range-rejoin")),
        attrs.evolve(gap, claim=_claim("D-4.1-rejoin")),
        # A debt of U - 1 = 4 with Q = 4 takes two rounds.
        _witness(
            "D-wc",
            (*of_f, (F, 3, 5), REFILL, REFILL),
            (CHARGE_MAX - 1) // QUANTUM + 1,
            measure=lambda w: int(w.G[F]) // QUANTUM,
        ),
        _witness(
            "D-A.2",
            (*_F_IN_DEBT, *served_g),
            gates_deficit.gap_cost(2, CHARGE_MAX, 2, CHARGE_MAX),
            low,
            measure=lambda w: int(w.W[G]),
            **waiting,
        ),
        _witness(
            "D-A.2-weighted",
            (*_F_IN_DEBT, *more_served),
            gates_deficit.weighted_gap_cost(2, CHARGE_MAX, 4, CHARGE_MAX),
            apart,
            measure=lambda w: 2 * int(w.W[G]),
            **waiting,
        ),
        # The request of f ranks first, and g is served 10 before two rounds have left f without debt.
        _witness(
            "D-late",
            (*_F_IN_DEBT, *_behind_f(5), REFILL, REFILL, *_behind_f(5)),
            gates_deficit.late_cost(2, CHARGE_MAX, 2, CHARGE_MAX),
            low,
            measure=lambda w: 2 * int(w.H[G]),
            **waiting,
        ),
        # g has a quantum of credit, f too, and its request waits for room.
        _witness(
            "D-pass",
            (*_BOTH, REFILL, BEGIN, (G, 3, 5)),
            RANGE_BOUND,
            measure=lambda w: int(w.W[G]),
            history=deficit_system(),
        ),
        # Two requests of 3 block f twice, and (6 - 1) / 4 + 1 = 2.
        _witness(
            "D-price",
            (*of_f, (F, 3), BEGIN, (F, 3), REFILL, (F, 3)),
            (6 - 1) // QUANTUM + 1,
            measure=lambda w: int(w.N[F]) // QUANTUM,
            history=deficit_system(),
        ),
        _capped(),
        *_elastic(),
        _changed(),
        _cut(),
    )
