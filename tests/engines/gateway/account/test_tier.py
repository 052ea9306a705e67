"""The model of a routing tier, and tiers in virtual time whose leases and account are those that ship."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway import tier
from benchmarks.gateway._virtual_tier import Costs, play
from benchmarks.gateway.tier import UNITS, gap, predicted, term, weights_of

WEIGHTS = weights_of(8)
routers_ = st.integers(1, 200)
quanta = st.integers(256, 1 << 20)
sizes = st.integers(0, 100_000)


@given(routers_, quanta, quanta, sizes)
def test_the_model_promises_no_more_than_cores_and_the_store_can(n: int, quantum: int, lease: int, size: int) -> None:
    """No more decisions than the cores have time for, no more writes than one after the other, each after its read.
    With twice the routers the tier does about as much at least, and with twice the quantum and lease, too."""
    costs = Costs()
    found = predicted(n, WEIGHTS, UNITS, quantum, lease, costs, size)
    assert 0 < found.decisions <= n / costs.decision
    assert found.written * (costs.trip + costs.attempt) <= 1
    assert found.written <= found.renewals <= found.operations
    assert found.decision_us >= costs.decision * 1e6
    for more in (
        predicted(2 * n, WEIGHTS, UNITS, quantum, lease, costs, size),
        predicted(n, WEIGHTS, UNITS, 2 * quantum, 2 * lease, costs, size),
    ):
        assert more.decisions >= 0.95 * found.decisions
    assert term(quantum, lease, n) == 2 * quantum + 2 * (n - 1) * lease


def test_a_tier_decides_what_the_model_says_until_the_store_limits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a large quantum eight routers do eight times what one does, and ask the store 50 times a second each at
    most; with a small one the store limits sixty, and they lose races for it, but do no less than ten."""
    monkeypatch.setattr(logging.getLogger("fairsched.gateway"), "disabled", True)
    one, eight = (play(n, WEIGHTS, UNITS, 65_536, 65_536, Costs(), 0.5) for n in (1, 8))
    assert eight.decisions > 7.5 * one.decisions
    for n, seen in ((1, one), (8, eight)):
        model = predicted(n, WEIGHTS, UNITS, 65_536, 65_536, Costs(), seen.bytes)
        assert not model.store_limits
        assert 0.8 < model.decisions / seen.decisions < 1.2
        assert seen.renewals <= n * 52
    ten, sixty = (play(n, WEIGHTS, UNITS, 2_048, 2_048, Costs(), 0.3) for n in (10, 60))
    assert predicted(60, WEIGHTS, UNITS, 2_048, 2_048, Costs(), sixty.bytes).store_limits
    assert sixty.decisions > 0.8 * ten.decisions
    assert sixty.lost < 6 * sixty.written


def test_the_gap_is_of_all_routers_together() -> None:
    """Where one router serves the first client what another serves the second, there is none."""
    one = [(0, [0, 0]), (10, [100, 0]), (20, [200, 0])]
    other = [(0, [0, 0]), (10, [0, 100]), (20, [0, 200])]
    assert gap([one, other], [1, 1]) == 0
    assert gap([one, [(0, [0, 0]), (20, [0, 0])]], [1, 1]) == 4 * 200
    assert gap([one, other], [1, 2]) == 4 * 100


def test_a_router_of_the_benchmark_is_a_picker_with_an_account() -> None:
    """Its configuration is one that ships, with the bound of all routers."""
    spec = {"url": "redis://localhost/0", "name": "x", "routers": 4, "quantum": 512, "lease": 256, "clients": 4}
    larger = spec | {"lease": 356}
    # Two clients of weight 1, in quarters.
    assert tier.bound(larger) - tier.bound(spec) == 4 * (term(512, 356, 4) - term(512, 256, 4))
