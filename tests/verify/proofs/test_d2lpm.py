"""The bounds of D2LPM can be no smaller, in worlds of workers too."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.verify.logic import Clause
from fairsched.verify.proofs.routers import d2lpm as d2lpm_proofs
from fairsched.verify.proofs.routers import d2lpm_scenarios as d2lpm_worlds
from fairsched.verify.proofs.routers.d2lpm_scenarios import MANY, WARM_UP, WORKERS, F, G, Tick, gap_max
from fairsched.verify.solvers import Broken, prove

pytestmark = pytest.mark.kept

CLAIMS = {claim.theorem.id: claim for claim in d2lpm_proofs.claims()}


def test_a_worker_s_bound_cannot_be_left_out_of_the_sum() -> None:
    """With one unit less than the sum of the workers' bounds D2-5.1 is false: each may be reached at once."""
    claim = CLAIMS["D2-5.1"]
    tighter = Clause("ahead <= B - 1", lambda o, w: o.where(w.summed, w.ahead <= w.B - 1, True))
    invariants = (claim.invariants[0], tighter)
    assert isinstance(prove(attrs.evolve(claim, invariants=invariants, conclusions=(tighter,))), Broken)


def _played(world: Any) -> list[Tick]:
    return list(d2lpm_worlds.played(SimpleNamespace(**world)))


def test_the_gap_grows_with_the_quantum() -> None:
    """Four times the quantum, and more than twice the gap: no constant without Q_w bounds it (CD2)."""
    narrow, wide = (gap_max(_played(d2lpm_worlds.cd2(quantum, 6 * quantum)), F, G) for quantum in (50, 200))
    assert wide > 2 * narrow > 0


def test_the_gap_of_round_robin_grows_with_time() -> None:
    """Twice the time, and more than 1.6 times the gap (CD3); f never waits at worker 1."""
    short, long = _played(d2lpm_worlds.cd3(200)), _played(d2lpm_worlds.cd3(400))
    assert gap_max(long, F, G) > 1.6 * gap_max(short, F, G)
    assert all(tick.waiting[F] == {0} for tick in long[WARM_UP:])


clients = st.tuples(
    st.integers(1, 2),
    st.integers(0, 4),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 8),
    st.just(MANY),
).map(list)


@pytest.mark.nightly
def test_the_sum_of_the_bounds_holds(full_budget: bool) -> None:
    """D2-5.1 in drawn worlds: over any ticks in which f and g wait at every worker."""

    @settings(max_examples=200 if full_budget else 15, deadline=None)
    @given(st.sampled_from((0, 1, 20, 200)), st.lists(clients, min_size=2, max_size=3))
    def within(quantum: int, behaviours: list[list[Any]]) -> None:
        world = {"quantum": quantum, "ticks": 60, "clients": behaviours}
        together: list[Tick] = []
        for tick in _played(world):
            if len(tick.waiting[F]) == len(tick.waiting[G]) == WORKERS:
                together.append(tick)
                assert _since(together) <= d2lpm_worlds.bound_cost()
            else:
                together = []

    within()


def _since(ticks: list[Tick]) -> int:
    """The largest gap of an interval that begins after the first of these ticks."""
    ahead = [tick.service(F) - tick.service(G) for tick in ticks]
    return max(ahead) - min(ahead)
