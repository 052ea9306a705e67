"""Faults of gateways that share an account in Redis: requests in, out, refused and cut, and the largest gap.

    python benchmarks/gateway/faults.py [--only WORD]

Three gateways, Redis (`redis-server` has to be installed), mock servers, and clients of weights 4 and 1 that flood all
three; see `tests/support/faults/gateway_faults.py`.  The gap is counted at the servers, at every moment, in cost units
times 4 by weight; the bound is what `fairsched gateway --check` prints, and *allowed* adds what the fault may cost and
what is charged before it is computed.  A figure of the gap differs from run to run.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.faults.gateway_faults import FAULTS, play


def main() -> None:
    """Print a line for each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="faults that have it in their names")
    given = parser.parse_args()
    columns = ("in", "out", "refused", "cut", "lost", "twice", "gap", "bound", "allowed", "served")
    print(f"{'fault':58}", *(f"{column:>8}" for column in columns))
    for fault in FAULTS:
        if given.only in fault.name:
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(play(fault, Path(folder)))
            figures = (found.sent, found.answered, found.refused, found.cut, len(found.lost), found.twice)
            figures += (found.gap, found.bound, found.allowed, found.served)
            print(f"{fault.name:58}", *(f"{figure:>8,}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
