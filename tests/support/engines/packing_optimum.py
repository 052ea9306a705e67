"""The fewest workers for requests that are all there at once, exactly: Aladdin's integer program, by HiGHS.

Source: Aladdin, section 4.3, constraints (a) to (c), (e) in lock-step, and (f), with its variables: which worker each
request is on, and which workers are used.  For small instances, as a yardstick: the program is NP-hard.  scipy is
imported here and nowhere else for this.
"""

import attrs
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from fairsched.model.machine import Performance


@attrs.frozen
class Packing:
    """Requests to be packed, as (prompt, output) tokens, and what a worker is held to.

    Targets in ns, theta and gamma in per cent, capacity in the unit of `Performance.kv`.  `ttft_ns` None: no (c).
    """

    performance: Performance
    requests: tuple[tuple[int, int], ...]
    tpot_ns: int
    kv_capacity: int
    ttft_ns: int | None = None
    theta_percent: int = 100
    gamma_percent: int = 50


def fits_in(packing: Packing, workers: int) -> bool:
    """Whether the requests fit into so many workers."""
    n, p = len(packing.requests), packing.performance
    if not workers:
        return not n
    # One row for each constraint of a worker over its requests, with what it may be at most.
    rows, most = [], []
    theta = packing.theta_percent
    rows.append(
        [
            p.context_token_ns * (100 * prompt + packing.gamma_percent * output) + theta * p.request_ns
            for prompt, output in packing.requests
        ]
    )
    most.append(theta * (packing.tpot_ns - p.decode_constant_ns))
    if packing.ttft_ns is not None:
        rows.append([p.prefill_token_ns * prompt for prompt, _ in packing.requests])
        most.append(packing.ttft_ns - p.prefill_constant_ns)
    for end in sorted({output for _, output in packing.requests}):
        rows.append([p.kv(prompt + end) if end <= output else 0 for prompt, output in packing.requests])
        most.append(packing.kv_capacity)
    if min(most) < 0:
        return False
    limits = np.array(rows, dtype=np.float64)
    # Relative to what is allowed, so that nanoseconds and tokens are numbers of one size.
    scale = np.maximum(np.array(most, dtype=np.float64), 1.0)[:, None]
    of_worker = np.kron(np.eye(workers), limits / scale)
    placed = np.kron(np.ones(workers), np.eye(n))
    allowed = np.tile(np.array(most) / scale[:, 0], workers)
    # Workers are alike: request i is on one of the first i + 1.
    upper = np.array([float(worker <= i) for worker in range(workers) for i in range(n)])
    found = milp(
        np.zeros(workers * n),
        constraints=[LinearConstraint(of_worker, -np.inf, allowed), LinearConstraint(placed, 1.0, 1.0)],
        integrality=np.ones(workers * n),
        bounds=Bounds(0.0, upper),
    )
    if found.status not in (0, 2):
        raise ArithmeticError(f"the solver gave up: {found.message}")
    return bool(found.status == 0)
