"""What a shared deficit promises where prefill and decode workers are apart, and what a gate at prefill alone does not.

A request passes the gate twice: at a prefill worker for its prompt, and, when its KV has landed, at a decode worker for
one token more.  Both, and every output token, are charged to one deficit of its client.  A client is *backlogged* while
a request of it waits in any worker's queue, for its prefill or, landed, for its decoding; not while all of its requests
run, are staged or are on their way.

Theorem: clients backlogged throughout differ in what both phases together charged them by at most 2(Q + U - 1)
(S-gap), where U adds up what one worker of either kind can charge (S-U-prefill, S-U-decode).  With a gate at the
prefill workers alone, or one of its own at each worker, nothing bounds the difference of decode service (F-S-1): what
is left is S-prefill (`policies.gates.deficit`).
"""

from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    GLOBAL_REFILL,
    MEM_RESERVE,
    PHASES_APART,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)
from fairsched.policies.gates.deficit import gap_cost

_NEW = "this library"
_GAP = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, REJOIN_KEEPS_DEBT, EQUAL_QUANTA, BACKLOGGED_DURING)

S_GAP = Theorem(
    "S-gap",
    "one deficit for prefill and decode workers, f and g backlogged at any of them over [t1, t2): what both phases "
    "charged differs by |(S_f + T_f) - (S_g + T_g)| <= 2(Q + U - 1) + B_f + B_g, S at prefill workers and T at decode "
    "workers",
    _NEW,
    (*_GAP, GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1), U = sum over prefill workers of (U_p - 1) + sum over decode workers of "
    "(U_d - 1) + 1; and B_f + B_g",
    bound_cost=gap_cost,
    rests_on=("D2-memory", "D2-places", "S-U-prefill", "S-U-decode"),
)
S_U_PREFILL = Theorem(
    "S-U-prefill",
    "where requests leave with their first token and w_q <= 2 w_e: an admission's charge and the first tokens of all "
    "requests of the client are at most U_p, and U_p is attained",
    _NEW,
    (MEM_RESERVE, PHASES_APART),
    bound="w_e (M - 1) + w_q",
)
S_U_DECODE = Theorem(
    "S-U-decode",
    "where requests come with their first token and all KV but that token's: an admission's charge and all outputs "
    "reserved for the client are at most U_d, and U_d is attained",
    _NEW,
    (MEM_RESERVE, PHASES_APART),
    bound="w_e + w_q (M - 2)",
)
PHASE_THEOREMS = (S_GAP, S_U_PREFILL, S_U_DECODE)
"""In the order of the report."""


def prefill_charge_max(rates: Rates, kv_capacity_tokens: int) -> int:
    """U of a worker that a request leaves with its first token: of one request all but a token is prompt.

    Where an output costs more than two inputs many short requests would be charged more; then it is the U of a worker
    for both phases.

    >>> prefill_charge_max(Rates(1, 2), 4)
    5
    """
    if rates.output > 2 * rates.input:
        return charge_max_reserved(rates, kv_capacity_tokens, kv_capacity_tokens - 1)
    return rates.input * (kv_capacity_tokens - 1) + rates.output


def decode_charge_max(rates: Rates, kv_capacity_tokens: int) -> int:
    """U of a worker to which requests come decoding: at least two tokens of context are no output of its own.

    >>> decode_charge_max(Rates(1, 2), 4)
    5
    """
    return rates.input + rates.output * (kv_capacity_tokens - 2)
