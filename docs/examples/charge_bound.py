"""U and the bound of the gap, by configuration."""

import fairsched as fs
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters

PAIR = (fs.Client(0, "a"), fs.Client(1, "b"))


def promise(policy: str, clients: tuple[fs.Client, ...] = PAIR, **params: str) -> tuple[int, int | None]:
    """Return U and the bound of the service gap, with outputs of at most 1,024 tokens declared."""
    chosen = with_parameters(LOCAL_POLICIES[policy], params)
    limits = chosen.guarantee.limits(132_000, 1_024)
    return chosen.gate.charge_max(limits), chosen.guarantee.service_gap_bound(clients, limits)


assert promise("dlpm") == (263_999, 536_188)  # 2M - 1, and 2(Q + U - 1)
assert promise("vtc") == (263_999, 527_998)  # 2M - 1, and 2U
assert promise("dlpm", in_flight_cap_tokens="8192") == (16_383, 40_956)
assert promise("dlpm", reserve="optimistic") == (657_311, 1_322_812)
assert promise("dlpm", (fs.Client(0, "gold", 3), fs.Client(1, "free", 1))) == (263_999, 1_080_568)
