"""What a token costs on its way: the gateway beside other proxies, before the same source of streams.

Each proxy is one process before `_source.py`, `gateway-2` two with one account.  So many streams are open at once,
each asks again when it has its answer, and tokens come at a constant rate in all, so that more streams are slower
ones.  Proxies run in turn, all of them for one number of streams before the next number:

    NGINX=nginx ENVOY=envoy LITELLM=litellm python benchmarks/gateway/cost.py --streams 200,1000,5000 --repeat 3
    python benchmarks/gateway/cost.py --tree before=/tmp/old      # also the gateway of another tree

CPU time is the proxy's own, with its children, by what it passed on; connections and calls are in it.
"""

import argparse
import asyncio
import atexit
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import attrs
from peers import KEY, PEERS, Proxy, free_port, here, running

import fairsched

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))"
TOKENS = 20
"""Tokens of an answer."""
LATE_SECONDS = 60.0
"""An answer that is so much later than it should be counts as none."""


@attrs.define
class Seen:
    """What all streams saw."""

    answered: int = 0
    failed: int = 0
    tokens: int = 0
    first_ms: list[float] = attrs.field(factory=list)
    statuses: dict[str, int] = attrs.field(factory=dict)

    def fails(self, why: str) -> None:
        """Count a call that was not answered."""
        self.failed += 1
        self.statuses[why] = self.statuses.get(why, 0) + 1


class Caller(asyncio.Protocol):
    """A connection on which one call is made after another."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, call: bytes) -> asyncio.Future[str]:
        """Send a call; the future has "" when its answer is whole, or why it is not."""
        self.ended = asyncio.get_running_loop().create_future()
        self.began, self.first, self.tokens, self.tail = time.monotonic(), 0.0, 0, b""
        self.transport.write(call)
        return self.ended

    def data_received(self, data: bytes) -> None:
        if not self.tail and not data.startswith(b"HTTP/1.1 200"):
            self.end(data[:16].decode(errors="replace").strip())
            return
        # An event that is cut by the end of a read is counted with the next one.
        data = self.tail + data
        self.tokens += data.count(b" word")
        if self.tokens and not self.first:
            self.first = time.monotonic()
        cut = data.rfind(b" word")
        self.tail = data[cut + 5 :] if cut >= 0 else data
        # A head, too, may end in "0": the last chunk is the one behind the last event.
        if b"0\r\n\r\n" in self.tail.partition(b"[DONE]")[2]:
            self.end("" if self.tokens == TOKENS else f"{self.tokens} tokens")

    def connection_lost(self, error: Exception | None) -> None:
        self.end(f"closed: {error}")

    def end(self, why: str) -> None:
        """The answer is whole, or not."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(why)


async def load(proxy: Proxy, streams: int, rounds: int, ramp: float, interval: float, seen: Seen) -> float:
    """Have so many streams, each with some calls after each other; returns the peak of the proxy's memory, MiB."""
    host, _, port = proxy.url.removeprefix("http://").partition(":")
    words = " ".join(["lorem"] * 40)
    document = {"model": "made-up", "messages": [{"role": "user", "content": words}], "max_tokens": TOKENS}
    body = json.dumps({**document, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
    call = (head + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body
    loop = asyncio.get_running_loop()

    async def stream(i: int) -> None:
        await asyncio.sleep(ramp * i / streams)
        caller: Caller | None = None
        for _ in range(rounds):
            try:
                async with asyncio.timeout(TOKENS * interval + LATE_SECONDS):
                    if caller is None or caller.transport.is_closing():
                        _, caller = await loop.create_connection(Caller, host, int(port))
                    why = await caller.ask(call)
            except (OSError, TimeoutError) as error:
                why = type(error).__name__
            if caller is not None and caller.first:
                seen.tokens += caller.tokens
                seen.first_ms.append((caller.first - caller.began) * 1e3)
            if why:
                seen.fails(why)
                if caller is not None:
                    caller.transport.abort()
                caller = None
                await asyncio.sleep(0.5)
            else:
                seen.answered += 1
        if caller is not None:
            caller.transport.close()

    peak = 0.0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, proxy.memory_mib())
            await asyncio.sleep(0.5)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(stream(i) for i in range(streams)))
    watching.cancel()
    return peak


@contextmanager
def gateway(servers: Sequence[str], folder: Path, tree: Path = ROOT, options: Sequence[str] = ()) -> Iterator[Proxy]:
    """The gateway of a tree, with a window that holds everything."""
    port = free_port()
    lines = [f'listen = "127.0.0.1:{port}"', 'policy = "fcfs+deficit"', "[limits]", "waiting = 100000"]
    key = f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"
    lines += ["waiting_per_client = 100000", "[client.bench]", f'keys = ["{key}"]']
    for url in servers:
        lines += ["[[server]]", f'url = "{url}"', "window_tokens = 100000000", "window_requests = 100000"]
    (folder / "gateway.toml").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-c", PROGRAM, "gateway", str(folder / "gateway.toml"), *options]
    with running(command, port, folder, PYTHONPATH=str(tree / "src")) as proxy:
        yield proxy


@contextmanager
def direct(servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """No proxy: the source itself, and the CPU time of the callers."""
    yield Proxy(servers[0], os.getpid())


@contextmanager
def source(interval: float) -> Iterator[list[str]]:
    """The source of streams as a process: its addresses."""
    command = [sys.executable, str(Path(__file__).with_name("_source.py")), str(interval)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield [f"http://127.0.0.1:{port}" for port in started.stdout.readline().split()]
    finally:
        started.kill()
        started.wait()


def measured(start: Any, streams: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run of one proxy."""
    interval = streams / arguments.rate
    rounds = max(round(arguments.seconds / (TOKENS * interval)), 1)
    seen = Seen()
    with tempfile.TemporaryDirectory() as name, source(interval) as servers, start(servers, Path(name)) as proxy:
        asyncio.run(load(proxy, 1, 1, 0.0, interval, Seen()))  # what is imported at the first call is not its cost
        before = proxy.cpu_seconds()
        peak = asyncio.run(load(proxy, streams, rounds, arguments.ramp, interval, seen))
        cpu = proxy.cpu_seconds() - before
    first = sorted(seen.first_ms) or [float("nan")]
    return {
        "asked": streams * rounds,
        "answered": seen.answered,
        "failures": seen.statuses,
        "tokens": seen.tokens,
        "cpu_us_a_token": cpu * 1e6 / max(seen.tokens, 1),
        "ttft_p50_ms": first[len(first) // 2],
        "ttft_p99_ms": first[len(first) * 99 // 100],
        "memory_mib": peak,
        "load_average": os.getloadavg()[0],
    }


STREAMS, INTERVAL, RAMP, ROUNDS = 100, 0.1, 1.0, 2
"""Streams of `make bench`, seconds between a stream's tokens and until all streams have begun, calls of a stream."""


def passing(name: str) -> Callable[[], float] | None:
    """Start a proxy before a source; the work is to pass 4,000 tokens on, and what counts the proxy's own CPU time."""
    tree = Path(fairsched.__file__).parents[2]
    start: Any = partial(gateway, tree=tree) if name == "gateway" else PEERS[name]
    if here().get(name) is not None:
        return None
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    proxy = stack.enter_context(start(stack.enter_context(source(INTERVAL)), Path(folder)))

    def run() -> float:
        seen, before = Seen(), proxy.cpu_seconds()
        asyncio.run(load(proxy, STREAMS, ROUNDS, RAMP, INTERVAL, seen))
        if seen.failed:
            raise RuntimeError(f"{name}: {seen.statuses}")
        return (proxy.cpu_seconds() - before) * 1e6 / seen.tokens

    return run


FIGURES = {
    "gateway: a token is passed on, 100 streams, connections and calls included": {
        "ours": partial(passing, "gateway"),
        "a plain aiohttp proxy": partial(passing, "plain"),
        "nginx": partial(passing, "nginx"),
        "Envoy": partial(passing, "envoy"),
    }
}


def main() -> None:
    """Run the proxies that are here; print a table, write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="200", help="at once, with commas (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=2500.0, help="tokens a second in all (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run, one call at least (default: %(default)s)")
    parser.add_argument("--ramp", type=float, default=4.0, help="seconds in which streams begin (default: %(default)s)")
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs, of which the median is told (default: %(default)s)"
    )
    parser.add_argument("--tree", action="append", default=[], help="NAME=PATH: the gateway of another tree, too")
    parser.add_argument("--only", help="proxies, with commas: direct, gateway, gateway-2, plain, nginx, envoy, litellm")
    parser.add_argument("--json", type=Path, help="write every run here")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    two = ("--processes", "2")
    proxies: dict[str, Any] = {"direct": direct, "gateway": gateway, "gateway-2": partial(gateway, options=two)}
    for each in arguments.tree:
        name, _, path = each.partition("=")
        tree = Path(path).absolute()
        proxies[name] = lambda servers, folder, tree=tree: gateway(servers, folder, tree)
    for name, why in here().items():
        if why is None:
            proxies[name] = PEERS[name]
        else:
            print(f"{name} is skipped: {why}")
    chosen = arguments.only.split(",") if arguments.only else list(proxies)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for streams in map(int, arguments.streams.split(",")):
        if most < 2 * streams + 200:
            print(f"{streams} streams are skipped: {most} descriptors (ulimit -n)")
            continue
        found = runs.setdefault(str(streams), {})
        for _ in range(arguments.repeat):
            for name in chosen:
                found.setdefault(name, []).append(measured(proxies[name], streams, arguments))
        for name, each in found.items():
            middle = {key: median(run[key] for run in each) for key in each[0] if key != "failures"}
            print(
                f"{streams:>5} streams, {name:<9}: {middle['cpu_us_a_token']:6.1f} us CPU a token, TTFT p50 "
                f"{middle['ttft_p50_ms']:6.0f} ms, p99 {middle['ttft_p99_ms']:6.0f} ms, {middle['answered']:.0f} of "
                f"{middle['asked']:.0f} answered, {middle['memory_mib']:.0f} MiB, load {middle['load_average']:.1f}",
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    main()
