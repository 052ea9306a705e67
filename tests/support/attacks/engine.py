"""The mock server as a process: it prints its port and serves until it is killed.

python tests/support/attacks/engine.py --slots 8 --step-ms 12
"""

import argparse
import asyncio
import sys

from fairsched.engines.conformance.mock_server import MockEngine, MockServer, serving


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=8, help="sequences at a time (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=12.0, help="time of a step (default: %(default)s)")
    parser.add_argument("--prefill-us", type=float, default=20.0, help="of a prompt token (default: %(default)s)")
    parser.add_argument("--interval", type=int, default=1, help="tokens in an event (default: %(default)s)")
    arguments = parser.parse_args()
    engine = MockEngine(arguments.slots, arguments.step_ms / 1e3, arguments.prefill_us / 1e6)
    async with serving(MockServer(engine, arguments.interval)) as url:
        sys.stdout.write(f"{url.rpartition(':')[2]}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
