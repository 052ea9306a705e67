"""Whether memory stays flat: one window of the gateway under load for an hour of wall time.

    python benchmarks/gateway/soak.py [--minutes N] [--clients N] [--waiting N] [--policy NAME]

The window is called as a gateway calls it, without HTTP and with a clock of its own that runs ahead: calls arrive from
100,000 clients, 1,000 always wait, prompts are estimates that answers correct, one call in fifty breaks off at its
server, one in fifty is given up while it waits, a server leaves and comes back every minute of the window's clock, and
the account goes through its tick each second of it.  A line a minute has the calls so far, CPU time a call, resident
memory, memory in use (what Python's allocator and malloc gave out and did not get back: on Linux with glibc) and Python
objects.  Resident memory that rises over memory in use is what the allocators cannot give out again.  At the end: the
slopes of both in the second half, by least squares, with their standard errors.  Exit status 1 when one is more than
two standard errors above 1 MiB a million calls.
"""

import argparse
import ctypes
import gc
import heapq
import os
import random
import re
import resource
import sys
import tempfile
import time
from pathlib import Path

import attrs
import numpy as np

from fairsched.engines.gateway import gateway_policy
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.gateway.window import Share, Window
from fairsched.model.request import Client
from fairsched.policies.registry import ROUTERS

SERVERS, TOKENS = 8, 40_000
SECOND_NS = 10**9
FLAT_MIB = 1.0
WEIGHTS = (1, 1, 1, 2, 4)


@attrs.define(eq=False)
class Load:
    """Calls without end on one window."""

    window: Window
    clients: int
    waiting: int
    rng: random.Random
    now_ns: int = 0
    calls: int = 0
    ended: int = 0
    _next_tick: int = SECOND_NS
    _next_leave: int = 60 * SECOND_NS
    _away: int | None = None
    _waits: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    _ends: list[tuple[int, int, int, int]] = attrs.field(factory=list)

    def step(self) -> None:
        """Let calls arrive until enough wait, forward what may go, and end the next call in flight."""
        while self.window.waiting < self.waiting:
            self._arrive()
        for placement in self.window.admit(self.now_ns):
            prompt, output = self._waits.pop(placement.request_id)
            end_ns = self.now_ns + 10_000 * prompt + 20_000_000 * output
            heapq.heappush(self._ends, (end_ns, placement.request_id, prompt, output))
        if self.rng.random() < 0.02 and self._waits:
            self._give_up()
        end_ns, request_id, prompt, output = heapq.heappop(self._ends)
        while self._next_tick <= end_ns:
            self.now_ns = self._next_tick
            self.window.charge(self.now_ns)
            self._next_tick += SECOND_NS
            self._servers()
        self.now_ns = end_ns
        half = output // 2
        if half:
            self.window.produced(request_id, half, end_ns)
        if self.rng.random() < 0.02:
            self.window.cancel(request_id, end_ns)
        else:
            self.window.finish(request_id, prompt, output, end_ns)
        self.ended += 1

    def _arrive(self) -> None:
        rng, request_id = self.rng, self.calls
        prompt, most = rng.randint(20, 1_000), rng.randint(16, 512)
        # Each client calls once first, so that the second half of an hour has no new client.
        client = request_id if request_id < self.clients else rng.randrange(self.clients)
        self.window.arrive(request_id, client, prompt, most, self.now_ns)
        self._waits[request_id] = (max(prompt + rng.randint(-20, 20), 1), rng.randint(1, most))
        self.calls += 1

    def _give_up(self) -> None:
        request_id = next(iter(self._waits))
        self.window.cancel(request_id, self.now_ns)
        del self._waits[request_id]
        self.ended += 1

    def _servers(self) -> None:
        if self.now_ns < self._next_leave:
            return
        self._next_leave += 60 * SECOND_NS
        if self._away is None:
            self._away = self.rng.randrange(SERVERS)
            self.window.set_up(self._away, up=False)
        else:
            self.window.set_up(self._away, up=True)
            self._away = None


def rss_mib() -> float:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class _Mallinfo2(ctypes.Structure):
    """What malloc says of itself, in bytes: the fifth number is of blocks of their own, the eighth of all others."""

    _fields_ = [(f"number{place}", ctypes.c_size_t) for place in range(10)]


def used_mib() -> float:
    """Memory that is in use: blocks that Python's allocator and malloc gave out and did not get back."""
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = _Mallinfo2
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(stderr, 2)
        os.close(stderr)
        said.seek(0)
        blocks = re.search(rb"bytes in allocated blocks *= *([0-9,]+)", said.read())
    info = mallinfo2()
    assert blocks is not None
    return (int(blocks[1].replace(b",", b"")) + int(info.number4) + int(info.number7)) / 2**20


def slope(calls: list[int], memory: list[float]) -> tuple[float, float]:
    """Return MiB a million calls in the second half, and the standard error of that."""
    half = len(calls) // 2
    x, y = np.array(calls[half:]) / 1e6, np.array(memory[half:])
    x = x - x.mean()
    rise = float(x @ (y - y.mean()) / (x @ x))
    left = y - y.mean() - rise * x
    return rise, float(np.sqrt(left @ left / (len(x) - 2) / (x @ x)))


def main() -> None:
    """Print a line a minute, and the slope."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="of wall time (60)")
    parser.add_argument("--clients", type=int, default=100_000, help="(100000)")
    parser.add_argument("--waiting", type=int, default=1_000, help="calls that always wait (1000)")
    parser.add_argument("--policy", default="dlpm", help="(dlpm)")
    asked = parser.parse_args()
    config = GatewayConfig((ServerConfig("http://server", TOKENS),), policy=asked.policy)
    window = Window(gateway_policy(config, Path("soak")), ROUTERS[config.router], [Share(TOKENS)] * SERVERS)
    load = Load(window, asked.clients, asked.waiting, random.Random(0))
    for client in range(asked.clients):
        window.configure(Client(client, f"c{client}", weight=WEIGHTS[client % len(WEIGHTS)]), 0)
    begun, line_s = time.monotonic(), 60.0 if asked.minutes >= 10 else asked.minutes * 6.0
    counts, resident, used, last_cpu, last_calls = [], [], [], time.process_time(), 0
    titles = f"{'CPU us a call':>14} {'RSS MiB':>9} {'used MiB':>9} {'objects':>10} {'in flight':>10}"
    print(f"{'minutes':>8} {'calls':>12} {titles}")
    while (passed := time.monotonic() - begun) < asked.minutes * 60:
        while time.monotonic() - begun < passed + line_s:
            for _ in range(100):
                load.step()
        cpu = (time.process_time() - last_cpu) / (load.ended - last_calls)
        gc.collect()
        counts.append(load.ended)
        resident.append(rss_mib())
        used.append(used_mib())
        print(
            f"{(time.monotonic() - begun) / 60:8.1f} {load.ended:12,} {cpu * 1e6:14.1f} {resident[-1]:9.1f}"
            f" {used[-1]:9.1f} {len(gc.get_objects()):10,} {window.in_flight:10,}",
            flush=True,
        )
        last_cpu, last_calls = time.process_time(), load.ended
    flat = True
    for name, memory in (("resident", resident), ("in use", used)):
        rise, error = slope(counts, memory)
        print(f"second half, {name}: {rise:+.3f} MiB a million calls, standard error {error:.3f}")
        flat = flat and rise - 2 * error <= FLAT_MIB
    sys.exit(not flat)


if __name__ == "__main__":
    main()
