"""CE1 as the page of DLPM tells it, in the simulator; `verify.report.refutations` finds it and all other false claims
in the rules that were printed."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import generate
from fairsched.engines.workloads.generators.demonstrations import CE1_KV_TOKENS, CE1_QUANTUM
from tests.support.scenarios import gap, lag, policy, run

PAPER_BOUND = 20
"""2(U + Q) of the DLPM paper (reconstructed) in CE1's world: Q = 1 and U = w_e L + w_q M = 1 + 2 * 4."""


def lead_of_g(rejoin: str, quantum: int, steps: int) -> dict[int, int]:
    """The largest W_g - W_f over intervals in which f waits, by the step (from 1) that raised it, in `ce1`."""
    workload, chosen = generate("ce1", steps=steps), policy("dlpm", rejoin=rejoin, quantum=quantum)
    rows = lag(workload, chosen, run(workload, chosen, CE1_KV_TOKENS), ahead=1, behind=0)
    return {step: cost for step, cost in rows if step <= steps}


def test_the_printed_rejoin_rule_breaks_d_4_2() -> None:
    """Forgiving debt at a rejoin lets g lead a waiting f by more than 20, first after 18 steps, and every four steps by
    four more: by 403 within 400, and by 803 within 800."""
    lead, longer = (lead_of_g("reset", CE1_QUANTUM, steps) for steps in (400, 800))
    assert min(step for step, cost in lead.items() if cost > PAPER_BOUND) == 18
    assert (max(lead.values()), max(longer.values())) == (403, 803)


@given(quantum=st.integers(1, 12), steps=st.integers(1, 120))
def test_the_shipped_rule_keeps_d_4_2(quantum: int, steps: int) -> None:
    """Where debt is kept, g never leads a waiting f by more than 2(Q + U - 1), however long it plays this."""
    chosen = policy("dlpm", quantum=quantum)
    bound = chosen.guarantee.service_gap_bound(
        generate("ce1", steps=steps).clients, chosen.guarantee.limits(CE1_KV_TOKENS, 3)
    )
    assert bound == 2 * (quantum + 7 - 1)
    assert max(lead_of_g("keep", quantum, steps).values()) <= bound


def test_nothing_shows_in_the_gap_between_backlogged_clients() -> None:
    """D-4.1 speaks of two clients that both wait: g hardly ever does, so that gap stays small while the lead grows."""
    workload, chosen = generate("ce1", steps=400), policy("dlpm", rejoin="reset", quantum=CE1_QUANTUM)
    assert gap(workload, chosen, run(workload, chosen, CE1_KV_TOKENS)) <= 2 * (CE1_QUANTUM + 7 - 1)
