"""A polite client beside floods of every kind: its answers beside an attack, against those beside an honest flood.

For each attack a gateway, made-up engines (`_engine.py`), a polite closed-loop client and a flood run twice, one after
the other: the flood asks honestly for the same work, then it attacks.  The ratio of the polite client's answers is what
an attack costs it; beside it stand what the engines spent on the flood and what the gateway charged for it.

    python benchmarks/gateway/attacks.py                      # this tree
    python benchmarks/gateway/attacks.py --tree /tmp/old      # of another tree (git worktree add /tmp/old REV)
    python benchmarks/gateway/attacks.py --only withheld,leaves --seconds 30 --json attacks.json

A busy machine makes engines slower, for both runs of an attack alike.
"""

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LISTENING = re.compile(r"serving .*at (http://\S+) before")
PROGRAM = "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))"
FIELDS = """
import attrs, json, fairsched.engines.gateway.config as c
kinds = (c.GatewayConfig, c.LimitConfig, c.ClientConfig, c.ServerConfig)
print(json.dumps({kind.__name__: [field.name for field in attrs.fields(kind)] for kind in kinds}))
"""
POLITE = "polite"
FLOODERS = tuple(f"f{i}" for i in range(16))
WARM_SECONDS = 3.0
"""The flood is there for so long before the polite client comes."""
TOKEN = "bench-token"
BODY_BYTES = 8 << 20


# --- what runs ------------------------------------------------------------------------------------------------------


@attrs.define
class Polite:
    """What the polite client saw."""

    answered: int = 0
    tokens: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    first_token_ms: list[float] = attrs.field(factory=list)


@attrs.define
class World:
    """A gateway and its engines while they run."""

    url: str
    pid: int
    engines: dict[str, subprocess.Popen[bytes]]
    rng: random.Random
    http: aiohttp.ClientSession
    polite: Polite = attrs.field(factory=Polite)
    seen: Counter[str] = attrs.field(factory=Counter)
    """What the flood saw."""

    async def call(self, key: str, body: dict[str, Any], leaves: tuple[float, float] | None = None) -> None:
        """One call of the flood, by a caller that leaves after a time between the two, if they are given."""
        try:
            async with asyncio.timeout(None if leaves is None else self.rng.uniform(*leaves)):
                headers = {"authorization": key if " " in key else f"Bearer {key}"}
                async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                    async for _ in answer.content.iter_any():
                        pass
                    self.seen[str(answer.status)] += 1
        except TimeoutError:
            self.seen["left"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.seen[type(error).__name__] += 1
            await asyncio.sleep(0.1)


Flood = Callable[[World], Awaitable[object]]


def chat(words: str, most: int | None, **fields: Any) -> dict[str, Any]:
    """A call whose prompt makes the made-up model do what it says."""
    body = {"model": "made-up", "messages": [{"role": "user", "content": f"{words} {'lorem ' * 4}"}], **fields}
    return body if most is None else {**body, "max_tokens": most}


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def loops(count: int, body: dict[str, Any], keys: tuple[str, ...] = ("f0",), **how: Any) -> Flood:
    """Return a flood of so many closed loops, whose calls have these keys in turn."""

    async def flood(world: World) -> None:
        async def loop(i: int) -> None:
            while True:
                before = sum(world.seen[code] for code in ("200", "left", "500", "502", "504"))
                await world.call(f"sk-{keys[i % len(keys)]}", body, **how)
                if before == sum(world.seen[code] for code in ("200", "left", "500", "502", "504")):
                    # What was refused at once is asked again without a pause, but not so fast that this process stops.
                    await asyncio.sleep(0.02)

        await asyncio.gather(*(loop(i) for i in range(count)))

    return flood


HONEST = loops(32, chat("[tokens 120]", 120, **USAGE))


async def polite_client(world: World, key: str, at_once: int, tokens: int, stop: float) -> None:
    """Ask for `tokens` again and again until the time is over; a call that was refused is repeated after a pause."""
    body = chat(f"[tokens {tokens}]", tokens, **USAGE)
    seen = world.polite

    async def loop() -> None:
        while time.monotonic() < stop:
            began, count, whole = time.monotonic(), 0, False
            try:
                connector = aiohttp.TCPConnector(force_close=True)
                async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout_at(_loop_time(stop)):
                    headers = {"authorization": f"Bearer {key}"}
                    async with http.post(f"{world.url}/v1/chat/completions", json=body, headers=headers) as answer:
                        if answer.status != 200:
                            seen.refused[str(answer.status)] += 1
                            await asyncio.sleep(0.1)
                            continue
                        async for line in answer.content:
                            whole |= line.startswith(b"data: [DONE]")
                            if b'"content": "x' in line:
                                count += 1
                                if count == 1:
                                    seen.first_token_ms.append((time.monotonic() - began) * 1e3)
            except TimeoutError:
                continue
            except (aiohttp.ClientError, OSError) as error:
                seen.refused[type(error).__name__] += 1
                await asyncio.sleep(0.1)
                continue
            seen.tokens += count
            if whole:
                seen.answered += 1
            else:
                seen.refused["cut"] += 1

    await asyncio.gather(*(loop() for _ in range(at_once)))


def _loop_time(stop: float) -> float:
    return asyncio.get_running_loop().time() + stop - time.monotonic()


# --- attacks --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Attack:
    """An attack, and the honest flood that it is held against."""

    finding: int
    name: str
    says: str
    flood: Flood
    honest: Flood = HONEST
    engines: int = 1
    honest_engines: int | None = None
    """Engines of the honest run, where the attack's are not all able to serve."""
    engine: tuple[str, ...] = ()
    window_tokens: int = 1200
    config: tuple[tuple[str, Any], ...] = ()
    limits: tuple[tuple[str, Any], ...] = ()
    descriptors: int = 8192
    polite_key: str = f"sk-{POLITE}"
    polite_weight: int = 1
    polite_at_once: int = 8
    polite_tokens: int = 24


async def every_engine(world: World, document: dict[str, Any], which: slice = slice(None)) -> None:
    """Change the behaviour of some engines."""
    for url in list(world.engines)[which]:
        async with world.http.post(f"{url}/behave", json=document) as answer:
            assert answer.status == 200


def after(first: Flood, then: Flood) -> Flood:
    """Return a flood that begins with something else."""

    async def flood(world: World) -> None:
        await first(world)
        await then(world)

    return flood


async def fails_fast(world: World) -> None:
    """The last engine answers 500 at once from now on."""
    await every_engine(world, {"fails": "fast"}, slice(-1, None))


async def hangs(world: World) -> None:
    """The last engine is stopped."""
    list(world.engines.values())[-1].send_signal(signal.SIGSTOP)


async def over_quota(world: World) -> None:
    """Every engine answers 429 for the flood's key from now on."""
    await every_engine(world, {"quota": {"sk-f0": 5}})


async def fills_names(world: World) -> None:
    """1,100 random keys ask for the list of models, which is free."""

    async def ask(i: int) -> None:
        headers = {"authorization": f"Bearer free-{i}"}
        with suppress(aiohttp.ClientError, OSError):
            async with world.http.get(f"{world.url}/v1/models", headers=headers) as answer:
                world.seen[f"models {answer.status}"] += 1

    for first in range(0, 1100, 50):
        await asyncio.gather(*(ask(i) for i in range(first, first + 50)))


async def random_keys(world: World) -> None:
    """32 closed loops with another key each time."""
    body = chat("[tokens 120]", 120, **USAGE)

    async def loop() -> None:
        while True:
            await world.call(f"sk-{world.rng.randrange(1 << 60)}", body)
            await asyncio.sleep(0.005)

    await asyncio.gather(*(loop() for _ in range(32)))


def sockets(count: int, sent: bytes, drip: bytes = b"") -> Flood:
    """Return a flood of connections that send so much, and then `drip` every second."""
    open_now: set[asyncio.StreamWriter] = set()

    async def flood(world: World) -> None:
        host, _, port = world.url.removeprefix("http://").partition(":")

        async def one() -> None:
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection(host, int(port))
            except (OSError, TimeoutError):
                world.seen["not connected"] += 1
                return
            open_now.add(writer)
            try:
                writer.write(sent)
                while not reader.at_eof():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            if not await reader.read(4096):
                                break
                    writer.write(drip)
                    await writer.drain()
            except OSError:
                pass
            finally:
                world.seen["cut off"] += 1
                open_now.discard(writer)
                writer.close()

        async def beside() -> None:
            while True:
                world.seen["open"] = len(open_now)
                await asyncio.sleep(0.5)

        try:
            await asyncio.gather(HONEST(world), beside(), *(one() for _ in range(count)))
        finally:
            for writer in open_now:
                writer.transport.abort()
            open_now.clear()

    return flood


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nobody\r\n"
LARGE = HEAD + b"content-length: %d\r\n\r\n" % BODY_BYTES + b" " * (BODY_BYTES - 1)
OVER = chat("[tokens 100]", 960, **USAGE)
FAIR = chat("[tokens 100]", 100, **USAGE)
FOUR = FLOODERS[:4]

ATTACKS = (
    Attack(
        1,
        "withheld",
        "streams without usage, with a stop text of 20,000 characters",
        loops(32, chat("[tokens 120]", 120, stream=True, stop=["z" * 20_000])),
    ),
    Attack(
        1,
        "several",
        "streams without usage of an engine that sends ten tokens in an event",
        loops(32, chat("[tokens 120]", 120, stream=True)),
        engine=("--interval", "10"),
    ),
    Attack(
        2,
        "leaves",
        "callers that leave calls that are not streamed before the answer",
        loops(12, chat("[tokens 120]", 120), leaves=(1.2, 1.5)),
    ),
    Attack(2, "late-500", "answers of 500 after the work", loops(32, chat("[tokens 120] [fails late]", 120))),
    Attack(
        2,
        "time-outs",
        "calls that are not streamed and take longer than the server may be silent",
        loops(32, chat("[tokens 400]", 400)),
        honest=loops(32, chat("[tokens 400]", 400, **USAGE)),
        limits=(("read_seconds", 3.0), ("call_seconds", 3.0)),
        window_tokens=4000,
    ),
    Attack(
        3,
        "declares",
        "four clients that declare 960 tokens and stop at 100, in a window of 1,000",
        loops(32, OVER, keys=FOUR),
        honest=loops(32, FAIR, keys=FOUR),
        window_tokens=1000,
    ),
    Attack(
        3,
        "ordinary",
        "four clients that declare 512 tokens for 64, without malice",
        loops(32, chat("[tokens 64]", 512, **USAGE), keys=FOUR),
        honest=loops(32, chat("[tokens 64]", 64, **USAGE), keys=FOUR),
        window_tokens=1000,
    ),
    Attack(
        5,
        "fails-fast",
        "one of two engines answers 500 at once",
        after(fails_fast, HONEST),
        engines=2,
        honest_engines=1,
    ),
    Attack(5, "hangs", "one of two engines is stopped", after(hangs, HONEST), engines=2, honest_engines=1),
    Attack(
        6,
        "own-429",
        "both engines answer 429 for the flood's key",
        after(over_quota, HONEST),
        engines=2,
        engine=("--slots", "4"),
        window_tokens=600,
    ),
    Attack(
        6,
        "huge",
        "answers of 70 MB that are no streams",
        loops(2, chat("[tokens 8] [answers 70000000 bytes]", 8)),
        engines=2,
        engine=("--slots", "4"),
        window_tokens=600,
    ),
    Attack(7, "idle", "1,100 idle connections at 1,024 descriptors", sockets(1100, b""), descriptors=1024),
    Attack(
        7,
        "bodies",
        "150 unknown callers that hold a body of 8 MiB less a byte",
        sockets(150, LARGE),
        config=(("unknown_clients", "reject"),),
    ),
    Attack(7, "slow-heads", "300 callers that send a byte of a header a second", sockets(300, HEAD + b"x: ", b"x")),
    Attack(
        7,
        "slow-bodies",
        "300 callers that send a byte of a body a second",
        sockets(300, HEAD + b"content-length: 4000\r\n\r\n{", b" "),
        config=(("unknown_clients", "reject"),),
    ),
    Attack(
        9,
        "names",
        "1,100 random keys list models; then strangers flood, and the polite client is a stranger",
        after(fills_names, loops(32, chat("[tokens 120]", 120, **USAGE), keys=("stranger",))),
        honest=loops(32, chat("[tokens 120]", 120, **USAGE), keys=("stranger",)),
        config=(("unknown_clients", "own"),),
        polite_key="sk-another-stranger",
    ),
    Attack(9, "random-keys", "another key with every call, and the gateway's defaults", random_keys),
    Attack(
        9,
        "lower-case",
        "half of the flood's calls spell `bearer` in lower case",
        loops(
            32,
            chat("[tokens 120]", 120, **USAGE),
        ),
    ),
    Attack(
        10,
        "full-queue",
        "four clients fill a queue of 64; the polite one has weight 4 and one call at a time",
        loops(120, chat("[tokens 100]", 100, **USAGE), keys=FOUR),
        honest=loops(48, chat("[tokens 100]", 100, **USAGE), keys=FOUR),
        limits=(("waiting", 64), ("waiting_per_client", 32)),
        polite_weight=4,
        polite_at_once=1,
    ),
)


async def _both_spellings(world: World) -> None:
    body = chat("[tokens 120]", 120, **USAGE)

    async def loop(i: int) -> None:
        while True:
            await world.call(f"{('bearer', 'Bearer')[i % 2]} sk-f0", body)
            await asyncio.sleep(0.005)

    await asyncio.gather(*(loop(i) for i in range(32)))


ATTACKS = tuple(attrs.evolve(each, flood=_both_spellings) if each.name == "lower-case" else each for each in ATTACKS)


# --- a run ----------------------------------------------------------------------------------------------------------


class Tree:
    """A tree whose gateway is attacked: its settings may have other names."""

    def __init__(self, path: Path) -> None:
        self.env = {**os.environ, "PYTHONPATH": str(path / "src")}
        command = [sys.executable, "-c", FIELDS]
        told = subprocess.run(command, env=self.env, cwd=path, check=True, capture_output=True, text=True).stdout
        self.fields: dict[str, list[str]] = json.loads(told)

    def config(self, attack: Attack, urls: list[str]) -> str:
        """Return the configuration for an attack; settings that this tree does not know are left out."""
        known, limits = self.fields["GatewayConfig"], self.fields["LimitConfig"]
        lines = ['listen = "127.0.0.1:0"', 'identify = "key"', 'policy = "fcfs+deficit"', "quantum = 256"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in attack.config if name in known]
        lines.append(f'admin_token = "{TOKEN}"' if "admin_token" in known else "status = true")
        lines += ["[limits]", f"body_bytes = {BODY_BYTES}"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in attack.limits if name in limits]
        for name in (POLITE, *FLOODERS):
            weight = attack.polite_weight if name == POLITE else 1
            lines += [f"[client.{name}]", f'keys = ["sk-{name}"]', f"weight = {weight}"]
        for url in urls:
            lines += ["[[server]]", f'url = "{url}"', f"window_tokens = {attack.window_tokens}"]
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def engines(count: int, options: tuple[str, ...]) -> AsyncIterator[dict[str, subprocess.Popen[bytes]]]:
    """Engines as processes, by address."""
    command = [sys.executable, str(HERE / "_engine.py"), *options]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        yield {f"http://127.0.0.1:{int(each.stdout.readline())}": each for each in started}
    finally:
        for each in started:
            each.kill()
            each.wait()


@asynccontextmanager
async def gateway(tree: Tree, text: str, descriptors: int, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """The gateway as a process: its address and its id.  What it says of errors is in `errors.txt`."""
    path = folder / "gateway.toml"
    path.write_text(text)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with (folder / "errors.txt").open("wb") as errors:
        command = [sys.executable, "-c", PROGRAM, "gateway", str(path)]
        started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=tree.env,
            cwd=folder,
            text=True,
            preexec_fn=limited,  # noqa: PLW1509 - no thread runs here
        )
        try:
            found = LISTENING.search(line := started.stdout.readline())
            if found is None:
                raise SystemExit(f"the gateway did not start: {line}{(folder / 'errors.txt').read_text()}")
            yield found[1], started.pid
        finally:
            started.kill()
            started.wait()


def memory_mib(pid: int) -> float:
    """Memory of a process and its children."""
    text = Path(f"/proc/{pid}/status").read_text()
    own = int(text.partition("VmRSS:")[2].split()[0]) / 1024
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(memory_mib(int(child)) for child in children)


async def run(tree: Tree, attack: Attack, honest: bool, seconds: float) -> dict[str, Any]:
    """One run: what the polite client got, what was spent on the flood, and what was charged for it."""
    count = (attack.honest_engines or attack.engines) if honest else attack.engines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            engines(count, attack.engine) as servers,
            gateway(tree, tree.config(attack, list(servers)), attack.descriptors, folder) as (url, pid),
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
            ) as http,
        ):
            world = World(url, pid, servers, random.Random(attack.name), http)
            flood = asyncio.ensure_future((attack.honest if honest else attack.flood)(world))
            await asyncio.sleep(WARM_SECONDS)
            if flood.done():
                flood.result()
            stop = time.monotonic() + seconds
            client = polite_client(world, attack.polite_key, attack.polite_at_once, attack.polite_tokens, stop)
            memory = asyncio.ensure_future(_peak(pid))
            await client
            if flood.done():
                flood.result()
            status, ledger = await _status(url), await _ledger(servers)
            open_now = world.seen["open"]
            memory.cancel()
            flood.cancel()
            with suppress(asyncio.CancelledError):
                await flood
            peak = await asyncio.gather(memory, return_exceptions=True)
        errors = (folder / "errors.txt").read_text(errors="replace")
    return _document(world, ledger, status, peak[0], open_now, errors)


def _document(world: World, ledger: dict, status: dict, peak: Any, open_now: int, errors: str) -> dict[str, Any]:
    others = [each for key, each in ledger.items() if key != f"sk-{POLITE}"]
    clients = status.get("clients", {})
    charged = sum(each["output_tokens"] for name, each in clients.items() if name != POLITE)
    times = sorted(world.polite.first_token_ms)
    return {
        "answered": world.polite.answered,
        "polite_tokens": world.polite.tokens,
        "refused": dict(world.polite.refused),
        "ttft_p50_ms": round(times[len(times) // 2], 1) if times else None,
        "flood_spent_tokens": sum(each["output_tokens"] for each in others),
        "flood_slot_seconds": round(sum(each["slot_seconds"] for each in others), 2),
        "flood_charged_tokens": charged,
        "flood_saw": dict(world.seen),
        "still_open": open_now,
        "memory_mib": round(peak, 1) if isinstance(peak, float) else None,
        "tracebacks": errors.count("Traceback (most recent call last)"),
        "bound_violations": (status.get("promise") or {}).get("bound_violations"),
        "error_lines": errors.count("\n"),
    }


async def _peak(pid: int) -> float:
    peak = 0.0
    try:
        while True:
            peak = max(peak, memory_mib(pid))
            await asyncio.sleep(0.25)
    except (asyncio.CancelledError, OSError):
        return peak


async def _status(url: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(f"{url}/gateway/status", headers=headers) as answer,
        ):
            return await answer.json()
    return {}


async def _ledger(servers: dict[str, subprocess.Popen[bytes]]) -> dict[str, dict[str, float]]:
    """What all engines spent, by key; one that hangs says nothing."""
    found: dict[str, Counter[str]] = {}
    for url in servers:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http,
                http.get(f"{url}/ledger") as answer,
            ):
                for key, spent in (await answer.json())["spent"].items():
                    found.setdefault(key, Counter()).update(spent)
    return {key: dict(each) for key, each in found.items()}


def line(attack: Attack, honest: dict[str, Any], attacked: dict[str, Any]) -> str:
    """Return a row of the table."""
    ratio = attacked["answered"] / max(honest["answered"], 1)
    more = [f"{key} {value}" for key, value in attacked["refused"].items()]
    more += [f"{attacked['still_open']} still open"] if attacked["still_open"] else []
    more += [f"{attacked['tracebacks']} tracebacks"] if attacked["tracebacks"] else []
    cells = (
        f"{attack.finding:>2}",
        f"{attack.name:<12}",
        f"{honest['answered']:>6}",
        f"{attacked['answered']:>8}",
        f"{100 * ratio:>5.0f} %",
        f"{attacked['flood_spent_tokens']:>7}",
        f"{attacked['flood_charged_tokens']:>8}",
        f"{attacked['memory_mib'] or 0:>6.0f}",
        ", ".join(more),
    )
    return " | ".join(cells)


async def main() -> None:
    """Run the attacks that are asked for; print a table, write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose gateway (default: this one's)")
    parser.add_argument("--only", help="attacks, with commas between them")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the polite client a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write everything here")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    chosen = arguments.only.split(",") if arguments.only else [attack.name for attack in ATTACKS]
    unknown = set(chosen) - {attack.name for attack in ATTACKS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(each.name for each in ATTACKS)}")
    tree, runs = Tree(arguments.tree.absolute()), {}
    print(
        "finding | attack | polite's answers: honest | attacked | ratio | flood: computed | charged | MiB | polite saw"
    )
    for attack in ATTACKS:
        if attack.name in chosen:
            honest = await run(tree, attack, True, arguments.seconds)
            attacked = await run(tree, attack, False, arguments.seconds)
            runs[attack.name] = {"finding": attack.finding, "honest": honest, "attacked": attacked}
            print(line(attack, honest, attacked), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
