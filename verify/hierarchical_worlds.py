"""Small worlds of the hierarchical gate: trees in which refills are due, and an organisation that splits itself up."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fairsched.model.algebra import NUMPY
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.policies import deficit
from fairsched.policies.deficit_progress import gap_cost
from fairsched.policies.gate import Gate
from fairsched.policies.hierarchical import ROOT

RATES = Rates(1, 2)
QUANTUM = 4
NODES_MAX = 9


@st.composite
def trees(draw: st.DrawFn) -> Mapping[str, Any]:
    """A tree whose node 0 is the root, with a deficit a node, who was seen, who waits, and quanta."""
    size = draw(st.integers(2, NODES_MAX))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size - 1, max_size=size - 1))

    known = [0, *each(st.integers(0, 1))]
    return {
        "up": [ROOT, *(draw(st.integers(0, node - 1)) for node in range(1, size))],
        "q": [1, *each(st.integers(-9, 4))],
        "known": known,
        "waits": [seen and waits for seen, waits in zip(known, [0, *each(st.integers(0, 1))], strict=True)],
        "quantum": [1, *each(st.integers(1, 5))],
    }


def refilled_alone(w: Any) -> dict[int, list[int]]:
    """For each node that has children what the deficit gate makes of them, were they all there is."""
    up = np.array(w.up)
    found = {}
    for above in sorted(set(w.up)):
        family = np.array([node for node in range(1, len(up)) if up[node] == above], dtype=np.int64)
        q, quantum = np.array(w.q)[family], np.array(w.quantum)[family]
        known, waits = np.array(w.known, dtype=bool)[family], np.array(w.waits, dtype=bool)[family]
        while deficit.refill_due(NUMPY, q, waits):
            q = deficit.refill(NUMPY, q, waits, known, quantum)
        found[above] = q.tolist()
    return found


def split_up(gate: Gate[Any], keys: int, requests: int) -> tuple[int, int]:
    """What an organisation of so many clients and one client in none were charged after so many requests of 3 units.

    All of them always have another request waiting, and the organisation's are preferred.
    """
    everybody = range(keys + 1)
    heads = np.array([1] * keys + [0], dtype=np.int64)
    state = gate.init()
    for client in range(keys):
        state = gate.placed(state, client, (("organisation", 1),))
    for client in everybody:
        state = gate.joined(state, client, heads[: client + 1], False)
    charged = [0] * (keys + 1)
    for _ in range(requests):
        turn = gate.turn(state, heads)
        client = turn.choose(heads)
        turn.admit(client, 1, 2, False)
        state = gate.released(gate.decoded(gate.after(state, turn), (client,), (1,)), client, 2)
        charged[client] += RATES.input + RATES.output
    return sum(charged[:keys]), charged[keys]


def split_bound() -> int:
    """2(Q + U - 1) for these requests, which a worker of 2 tokens takes one at a time."""
    charge_max = charge_max_reserved(RATES, 2, 1)
    return gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)
