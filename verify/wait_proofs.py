"""From service to time, for both gates: a bound on what each client is served while f waits bounds the wait itself.

The claim about the gate (D-A.2, V-4.11) says W_g <= B_g for every client g over an interval in which f waits and is not
let in.  What remains is the same for every gate and any number of clients: the worker delivers at least a units of
service in every unit of time (CapacityFloor), so a times the wait is at most the sum of the B_g over all clients.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CAPACITY_FLOOR, Theorem
from fairsched.policies.counter import V_411_TIME
from fairsched.policies.deficit_progress import D_A2_TIME
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, same, total


def wait_bounded(theorem: Theorem) -> Claim:
    """The claim for such a theorem: `W` is the service while f waits, `B` its bound, `owed` a times the time."""

    def passes(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"W": w.V, "owed": w.owed + w.a_dt}

    return Claim(
        theorem,
        System(
            "a worker while f waits",
            parameters={"B": Kind.VECTOR},
            laws=(Need(lambda o, w: w.B >= 0),),
            fields={"W": Kind.VECTOR, "owed": Kind.SCALAR},
            events=(
                Event(
                    "time passes and clients are served",
                    passes,
                    {"V": Kind.VECTOR, "a_dt": Kind.SCALAR},
                    (
                        Need(lambda o, w: w.a_dt >= 0),
                        Need(lambda o, w: w.V <= w.B),
                        Need(lambda o, w: w.owed + w.a_dt <= total(o, w.V), CAPACITY_FLOOR),
                    ),
                ),
            ),
            derived={"served": lambda o, w: total(o, w.W), "bound": lambda o, w: total(o, w.B)},
        ),
        (Clause("W = 0, owed = 0", lambda o, w: same(w.W, 0) & same(w.owed, 0)),),
        (Clause("W <= B", lambda o, w: w.W <= w.B), Clause("owed <= sum of W", lambda o, w: w.owed <= w.served)),
        (Clause("owed <= sum of B", lambda o, w: w.owed <= w.bound),),
    )


def claims() -> tuple[Claim, ...]:
    """One claim a gate; no kernel takes part."""
    return (wait_bounded(D_A2_TIME), wait_bounded(V_411_TIME))
