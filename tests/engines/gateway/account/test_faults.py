"""Gateways, their callers, servers and a real Redis through kills and partitions, as processes.

Shares are counted where calls are served, bounds in cost units; nothing waits for a time.  `make test` plays one fault,
`make integrations` and `make nightly` all of them, and `benchmarks/gateway/faults.py` prints what comes of each.
"""

from pathlib import Path

import pytest

pytest.importorskip("redis")

from tests.support.adapters.loops import in_loop
from tests.support.faults.gateway_faults import FAULTS, Fault, play
from tests.support.faults.gateway_world import RESERVED, World
from tests.support.faults.quota_faults import QUOTA_FAULTS, QuotaFault
from tests.support.faults.quota_faults import play as play_quotas
from tests.support.faults.redis_server import BINARY

pytestmark = [pytest.mark.integration, pytest.mark.skipif(BINARY is None, reason="there is no redis-server")]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_shares_stay_within_the_bound_and_no_call_is_lost(fault: Fault, full_budget: bool, tmp_path: Path) -> None:
    """Of clients of weights 4 and 1 that flood three gateways: what servers computed for them stays as close as
    `--check` says, and what the fault may cost, at every moment.  Each call is answered whole, refused, or cut off
    because its own gateway was killed; none is computed twice."""
    if not (fault.by_day or full_budget):
        pytest.skip("runs with --full-budget")

    @in_loop
    async def run() -> None:
        found = await play(fault, tmp_path)
        assert found.gap <= found.allowed
        assert found.lost == ()
        assert found.sent == found.answered + found.refused + found.cut
        assert bool(found.cut) == bool(fault.kills)
        assert found.twice == 0
        assert found.overrun == 0
        assert "Traceback" not in found.errors

    run()


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
@in_loop
async def test_the_same_flood_breaks_the_bound_without_an_account(tmp_path: Path) -> None:
    """Where each gateway has credit of its own, clients are served by who calls where: so a bound that holds says
    something."""
    async with World.serving(tmp_path, shared=False) as world:
        await world.until(lambda: world.ledger.gap > world.bound, "the gap of gateways without an account")


@pytest.mark.nightly
@pytest.mark.parametrize("fault", QUOTA_FAULTS, ids=lambda fault: fault.name)
def test_no_fault_lets_a_client_have_a_token_over_its_quota(
    fault: QuotaFault, full_budget: bool, tmp_path: Path
) -> None:
    """Of clients that flood three gateways until their quotas of a month are used up: what servers computed, what was
    charged and held, and what was held at a time are never over a quota, and no room for a call is left.  All that was
    computed is charged, once; what a killed gateway held is charged whole, a minute after its calls are over."""
    if not (fault.by_day or full_budget):
        pytest.skip("runs with --full-budget")

    @in_loop
    async def run() -> None:
        found = await play_quotas(fault, tmp_path, 600 if full_budget else 80)
        assert found.over == 0
        assert found.lost == ()
        assert found.sent == found.answered + found.refused + found.cut
        assert bool(found.cut) == bool(fault.kills)
        assert found.twice == 0
        for name, use in found.uses.items():
            assert use.quota - (use.used + use.reserved) < RESERVED
            assert use.said == use.used <= use.computed <= use.used + use.reserved
            assert use.reserved % RESERVED == 0 == use.reserved * (not fault.kills)
            if fault.to_the_end:
                assert found.later[name].used == use.used + use.reserved
        assert sum(use.reserved for use in found.uses.values()) <= found.cut * RESERVED
        assert "Traceback" not in found.errors

    run()
