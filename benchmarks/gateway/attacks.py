"""A polite client beside floods of every kind: its answers beside an attack, against those beside an honest flood.

For each attack (`tests/support/attacks/table.py`) a gateway, made-up engines, a polite closed-loop client and a flood
run twice, one after the other: the flood asks honestly for the same work, then it attacks.  The ratio of the polite
client's answers is what an attack costs it; beside it stand what the engines computed for the flood and what the
gateway charged for it.

    python benchmarks/gateway/attacks.py                      # this tree
    python benchmarks/gateway/attacks.py --tree /tmp/old      # of another tree (git worktree add /tmp/old REV)
    python benchmarks/gateway/attacks.py --only withheld,leaves --seconds 30 --json attacks.json

A busy machine makes engines slower, for both runs of an attack alike.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.attacks.floods import POLITE, World, polite_client  # noqa: E402
from tests.support.attacks.processes import engines, gateway, memory_mib  # noqa: E402
from tests.support.attacks.table import ADMIN_KEY, ATTACKS, Attack  # noqa: E402

FIELDS = """
import attrs, json, fairsched.engines.gateway.config as c
print(json.dumps([field.name for kind in (c.GatewayConfig, c.LimitConfig) for field in attrs.fields(kind)]))
"""
NEW = ("admin_keys",)
"""Settings that attacks name and that a gateway may be too old for."""
WARM_SECONDS = 3.0
"""The flood is there for so long before the polite client comes."""


class Tree:
    """A tree whose gateway is attacked; it may be older than some settings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        env = {**os.environ, "PYTHONPATH": str(path / "src")}
        command = [sys.executable, "-c", FIELDS]
        told = subprocess.run(command, env=env, cwd=path, check=True, capture_output=True, text=True).stdout
        self.unknown = [name for name in NEW if name not in json.loads(told)]


async def run(tree: Tree, attack: Attack, seconds: float) -> dict[str, Any]:
    """One run: what the polite client got, what was computed for the flood, and what was charged for it."""
    with tempfile.TemporaryDirectory() as name, engines(attack) as servers:
        folder, text = Path(name), attack.config(servers, without=tree.unknown)
        with gateway(text, folder, tree=tree.path, descriptors=attack.descriptors) as (url, pid):
            patience = aiohttp.ClientTimeout(total=None, sock_connect=5)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=patience) as http:
                world = World((url,), servers, http)
                flood = asyncio.ensure_future(attack.flood(world))
                memory = asyncio.ensure_future(_peak(pid))
                await asyncio.sleep(WARM_SECONDS)
                await polite_client(world, attack.polite_key, attack.polite_at_once, attack.polite_tokens, seconds)
                open_now, seen = world.seen["open"], dict(world.seen)
                if flood.done():
                    flood.result()
                status, ledger = await _status(url), await _ledger(servers)
                for task in (memory, flood):
                    task.cancel()
                with suppress(asyncio.CancelledError):
                    await flood
                peak = await memory
        errors = (folder / "errors.txt").read_text(errors="replace")
    others = [each for key, each in ledger.items() if key != f"sk-{POLITE}"]
    clients = status.get("clients", {})
    times = sorted(world.polite.first_token_ms)
    return {
        "answered": world.polite.answered,
        "polite_tokens": world.polite.tokens,
        "refused": dict(world.polite.refused),
        "ttft_p50_ms": round(times[len(times) // 2], 1) if times else None,
        "flood_computed_tokens": sum(each["output_tokens"] for each in others),
        "flood_charged_tokens": sum(each["output_tokens"] for name, each in clients.items() if name != POLITE),
        "flood_saw": seen,
        "still_open": open_now,
        "memory_mib": round(peak, 1),
        "tracebacks": errors.count("Traceback (most recent call last)"),
        "bound_violations": (status.get("promise") or {}).get("bound_violations"),
        "status": status,
    }


async def _peak(pid: int) -> float:
    peak = 0.0
    try:
        while True:
            peak = max(peak, memory_mib(pid))
            await asyncio.sleep(0.25)
    except asyncio.CancelledError:
        return peak


async def _status(url: str) -> dict[str, Any]:
    """What the gateway says of itself; nothing if it does not answer."""
    with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(f"{url}/gateway/status", headers={"authorization": f"Bearer {ADMIN_KEY}"}) as answer,
        ):
            return dict(await answer.json())
    return {}


async def _ledger(servers: list[str]) -> dict[str, Counter[str]]:
    """What all engines spent, by key."""
    found: dict[str, Counter[str]] = {}
    for url in servers:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/ledger") as answer:
            for key, spent in (await answer.json())["spent"].items():
                found.setdefault(key, Counter()).update(spent)
    return found


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
        f"{attacked['flood_computed_tokens']:>7}",
        f"{attacked['flood_charged_tokens']:>8}",
        f"{attacked['memory_mib']:>6.0f}",
        ", ".join(more),
    )
    return " | ".join(cells)


async def main() -> None:
    """Run the attacks that are asked for; print a table, write a file."""
    names = [each.name for each in ATTACKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose gateway (default: this one's)")
    parser.add_argument("--only", default=",".join(names), help="attacks, with commas (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the polite client a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write everything here")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    tree, runs = Tree(arguments.tree.absolute()), {}
    print(
        "finding | attack | polite's answers: honest | attacked | ratio | flood: computed | charged | MiB | polite saw"
    )
    for attack in ATTACKS:
        if attack.name in chosen:
            honest = await run(tree, attack.as_honest(), arguments.seconds)
            attacked = await run(tree, attack, arguments.seconds)
            runs[attack.name] = {"finding": attack.finding, "honest": honest, "attacked": attacked}
            print(line(attack, honest, attacked), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
