"""Faults of gateways that share an account in Redis: requests in, out, refused and cut, and the largest gap.

    python benchmarks/gateway/faults.py [--only WORD] [--quotas]

Three gateways, Redis (`redis-server` has to be installed), mock servers, and clients of weights 4 and 1 that flood all
three; see `tests/support/faults/gateway_faults.py`.  The gap is counted at the servers, at every moment, in cost units
times 4 by weight; the bound is what `fairsched gateway --check` prints, and *allowed* adds what the fault may cost and
what is charged before it is computed.  A figure of the gap differs from run to run.  With `--quotas` the flood goes on
until quotas are used up: tokens that servers computed, that were charged, that a killed gateway held, and those over a
quota (`tests/support/faults/quota_faults.py`).
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.faults.gateway_faults import FAULTS, play
from tests.support.faults.quota_faults import QUOTA_FAULTS
from tests.support.faults.quota_faults import play as play_quotas

QUOTA_CALLS = 600
"""Calls that all quotas together are enough for."""


def main() -> None:
    """Print a line for each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="faults that have it in their names")
    parser.add_argument("--quotas", action="store_true", help="the faults of gateways under quotas")
    given = parser.parse_args()
    if given.quotas:
        _print_quotas(given.only)
    else:
        _print_gaps(given.only)


def _print_quotas(only: str) -> None:
    columns = ("in", "out", "refused", "cut", "lost", "twice", "computed", "charged", "held", "over")
    print(f"{'fault':58}", *(f"{column:>8}" for column in columns))
    for fault in QUOTA_FAULTS:
        if only in fault.name:
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(play_quotas(fault, Path(folder), QUOTA_CALLS))
            uses = found.uses.values()
            figures = (found.sent, found.answered, found.refused, found.cut, len(found.lost), found.twice)
            figures += (sum(use.computed for use in uses), sum(use.used for use in uses))
            figures += (sum(use.reserved for use in uses), found.over)
            print(f"{fault.name:58}", *(f"{figure:>8,}" for figure in figures), flush=True)


def _print_gaps(only: str) -> None:
    columns = ("in", "out", "refused", "cut", "lost", "twice", "gap", "bound", "allowed", "served")
    print(f"{'fault':58}", *(f"{column:>8}" for column in columns))
    for fault in FAULTS:
        if only in fault.name:
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(play(fault, Path(folder)))
            figures = (found.sent, found.answered, found.refused, found.cut, len(found.lost), found.twice)
            figures += (found.gap, found.bound, found.allowed, found.served)
            print(f"{fault.name:58}", *(f"{figure:>8,}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
