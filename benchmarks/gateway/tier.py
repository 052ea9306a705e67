"""A routing tier: decisions a second of several router processes that share credit, and what a model says of 100.

    python benchmarks/gateway/tier.py [--routers N ...] [--quantum N] [--lease N] [--clients N] [--rounds N]
    python benchmarks/gateway/tier.py --virtual 8 32 100 [--quantum N] [--lease N] [--clients N]

Each router is a process with the endpoint picker that ships (window, gate, router, leases), without gRPC; all have one
account in Redis on this machine (`redis-server` has to be installed).  Clients of weights 1, 1, 2 and 4 always have
calls waiting at each of them; a call has 100 prompt and 50 output tokens, takes no time at its server, and is a
decision: it arrives, passes the gate on leased credit, gets a worker of four by join-shortest-queue, and ends.  Where
routers are more than cores, figures to trust are CPU time and store operations a decision; *cores* is what the routers
had.  *Apart* is the same with an account for each router, in turns: with more routers than cores a decision costs more
there, too, and *efficiency* is what sharing leaves.  The gap is by weight, times 4, sampled every 32 decisions of each
router.

*model* is `predicted`, a closed form, with the CPU time of a decision as measured with the first number of routers.
`--virtual` plays a tier in virtual time in which each router has a core: leases, account and the loop that writes it
are those that ship, and a router spends what it has on lease as fast as its core lets it (`_virtual_tier.py`).
"""

import argparse
import asyncio
import json
import logging
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gateway._virtual_tier import Costs, play
from fairsched.engines.adapters.endpoint_picker import Picker
from fairsched.engines.adapters.endpoint_picker.config import EndpointPool, PickedClient, PickerConfig, PickerLimits
from fairsched.engines.gateway import Usage
from fairsched.engines.gateway.config import StoreConfig
from fairsched.engines.gateway.window.leases.leasing import AGAIN_SECONDS
from fairsched.model.request import Client
from fairsched.policies.guarantees import window_limits

PROMPT, OUTPUT, UNITS = 100, 50, 200
WEIGHTS = (1, 1, 2, 4)
ENDPOINTS, REQUESTS, TOKENS = 4, 4, 600
CALLERS = ENDPOINTS * REQUESTS + 8
"""Of a client at a router: more than are in flight there, so that one always waits."""
SAMPLED = 32
PACE = 0.6
"""Writers that race get so much of what they would one after the other, since a loser waits before it reads again."""


def weights_of(clients: int) -> list[int]:
    """Weights of so many clients."""
    return [WEIGHTS[client % len(WEIGHTS)] for client in range(clients)]


# --- the model ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Predicted:
    """Of the whole tier: decisions, renewals, renewals that are written, tries that are lost and operations of the
    store a second, and whether the store is what limits it.  `decision_us`: CPU time of routers."""

    decisions: float
    renewals: float
    written: float
    lost: float
    operations: float
    decision_us: float
    store_limits: bool


def predicted(
    routers: int, weights: list[int], units: int, quantum: int, lease: int, costs: Costs, size: int
) -> Predicted:
    """Return what a tier does whose clients always wait and whose routers have a core each, with a value of `size`
    bytes in the store.

    A round gives a client its weight times the quantum, and a renewal takes a lease of it at most: a router needs one
    for as many decisions as that is worth.  It makes two, since a lease is renewed when half is spent, and asks every
    `AGAIN_SECONDS` at least, since some client has spent half; in vain it asks without a write.  Renewals are written
    one after the other, each a computation, a trip to the store and an operation there after it was read.
    """
    needs = units * math.ceil(quantum * max(weights) / lease) / (quantum * sum(weights))
    operation = costs.operation + costs.operation_byte * size
    write = costs.attempt + costs.byte * size + costs.trip + operation
    renewal, most = costs.renewal + costs.byte * size, PACE / write / routers
    polls = min(1 / (AGAIN_SECONDS + write + costs.trip), 1 / operation / routers)
    decisions = (1 - polls * renewal) / costs.decision
    if 2 * needs * decisions > polls:
        # The router rests while it waits for a renewal, since no client has credit.
        rests = needs * (write + costs.trip - costs.attempt)
        decisions = 1 / (costs.decision + 2 * needs * renewal + rests)
    limited = needs * decisions > most
    decisions = most / needs if limited else decisions
    written = min(2 * needs * decisions, most)
    renewals = max(written, 0.0 if limited else polls)
    lost = min(math.exp(min(routers * written * write, 5.0)) - 1, routers - 1.0) * written
    busy = costs.decision + (renewals * renewal + lost * costs.attempt) / decisions
    operations = renewals + written + 2 * lost
    all_of = (routers * each for each in (decisions, renewals, written, lost, operations))
    decisions, renewals, written, lost, operations = all_of
    return Predicted(decisions, renewals, written, lost, operations, busy * 1e6, limited)


def term(quantum: int, lease: int, routers: int) -> int:
    """Return the part of the gap's bound that is of quantum and leases, for weights of 1: 2(Q + (n - 1) S)."""
    return 2 * (quantum + (routers - 1) * lease)


# --- a router -------------------------------------------------------------------------------------------------------


def settings(spec: dict[str, Any]) -> PickerConfig:
    """A router's configuration."""
    store = StoreConfig(
        spec["url"], name=spec["name"], gateways=spec["routers"], lease=spec["lease"], timeout_seconds=9.0
    )
    return PickerConfig(
        EndpointPool(TOKENS, REQUESTS, tuple(f"10.0.0.{i + 1}:80" for i in range(ENDPOINTS))),
        quantum=spec["quantum"],
        store=store,
        limits=PickerLimits(wait_seconds=600.0),
        client={f"client-{i}": PickedClient(weight) for i, weight in enumerate(weights_of(spec["clients"]))},
    )


async def route(spec: dict[str, Any]) -> None:
    """Be a router until told to end: `ready`, then what was seen between the two times of a line that comes in."""
    picker = Picker(settings(spec))
    picker.see(picker.config.pool.endpoints)
    names, usage, leasing = list(picker.config.client), picker.window.usage, picker.leasing
    ids = [picker.clients[name].id for name in names]
    assert leasing is not None
    samples: list[tuple[int, list[int]]] = []
    done = 0

    def sample() -> None:
        served = [usage.prompt_tokens[each] + 2 * (usage.output_tokens[each] + usage.hold_tokens[each]) for each in ids]
        samples.append((time.monotonic_ns(), served))

    async def calls(name: str) -> None:
        nonlocal done
        while True:
            picked = await picker.pick(name, PROMPT, OUTPUT)
            await asyncio.sleep(0)
            picker.finish(picked, Usage(PROMPT, OUTPUT))
            done += 1
            if done % SAMPLED == 0:
                sample()

    tasks = [asyncio.ensure_future(leasing.run())]
    tasks += [asyncio.ensure_future(calls(name)) for name in names for _ in range(CALLERS)]
    while done < 500:
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    begin, end = map(float, line.split())
    await asyncio.sleep(begin - time.monotonic())
    samples.clear()
    before = done, leasing.counts["renewed"], time.process_time()
    await asyncio.sleep(end - time.monotonic())
    sample()
    after = done, leasing.counts["renewed"], time.process_time()
    print(json.dumps([[b - a for a, b in zip(before, after, strict=True)], samples]), flush=True)
    # The others still measure.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def bound(spec: dict[str, Any]) -> int:
    """What L-weighted says of two clients of the tier, times 4 by weight."""
    window = Picker(settings(spec)).window
    clients = tuple(Client(i, f"client-{i}", weight) for i, weight in enumerate(weights_of(spec["clients"])))
    guarantee: Any = window.guard.policy.guarantee
    tokens = ENDPOINTS * TOKENS
    found: int = guarantee.service_gap_bound(clients, window_limits(guarantee, tokens, window.terms))
    return found


def gap(samples: list[list[tuple[int, list[int]]]], weights: list[int]) -> int:
    """Return the most by which two clients' services by weight moved apart in any interval, over all routers."""
    times = np.unique(np.concatenate([[at for at, _ in each] for each in samples]))
    times = times[(times >= max(each[0][0] for each in samples)) & (times <= min(each[-1][0] for each in samples))]
    total = np.zeros((len(times), len(weights)))
    for each in samples:
        at, served = np.array([at for at, _ in each]), np.array([served for _, served in each])
        total += served[np.searchsorted(at, times, side="right") - 1]
    leads = total * max(WEIGHTS) / np.array(weights)
    return int(max(np.ptp(leads - leads[:, [i]], axis=0).max() for i in range(len(weights))))


# --- the tier -------------------------------------------------------------------------------------------------------


def store_counts(path: Path) -> tuple[int, float, int]:
    """Return the store's operations, CPU seconds and the bytes of the largest value so far."""
    from redis import Redis

    with Redis(unix_socket_path=str(path)) as server:
        said, cpu = server.info("commandstats"), server.info("cpu")
        size = max((server.strlen(key) for key in server.keys("fairsched*")), default=0)
    return said.get("cmdstat_evalsha", {}).get("calls", 0), cpu["used_cpu_user"] + cpu["used_cpu_sys"], size


def measured(spec: dict[str, Any], path: Path, seconds: float, *, apart: bool = False) -> dict[str, float]:
    """Return what a tier did: of all routers, by decision or second; `apart`: each has an account of its own."""
    specs = [{**spec, "name": f"{spec['name']}-{i if apart else 'all'}"} for i in range(spec["routers"])]
    routers = [
        subprocess.Popen(
            [sys.executable, __file__, "--route", json.dumps(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in specs
    ]
    told = [(router.stdin, router.stdout) for router in routers]
    for _, out in told:
        assert out is not None
        assert out.readline() == "ready\n"
    begin = time.monotonic() + 0.2
    for into, _ in told:
        print(begin, begin + seconds, file=into, flush=True)
    time.sleep(begin - time.monotonic())
    before = store_counts(path)
    time.sleep(begin + seconds - time.monotonic())
    after = store_counts(path)
    found = [json.loads(out.readline()) for _, out in told if out is not None]
    for into, _ in told:
        print(file=into, flush=True)
    for router in routers:
        router.communicate()
    done, renewals, cpu = (sum(each) for each in zip(*(counts for counts, _ in found), strict=True))
    operations = after[0] - before[0]
    return {
        "decisions/s": done / seconds,
        "cores": cpu / seconds,
        "CPU us": cpu / done * 1e6,
        "renewals": renewals / done,
        "store ops": operations / done,
        "store us/op": (after[1] - before[1]) / max(operations, 1) * 1e6,
        "bytes": after[2],
        "gap": gap([samples for _, samples in found], weights_of(spec["clients"])),
    }


def table(given: argparse.Namespace) -> None:
    """Print what tiers do, their rounds interleaved, and what the model says of those of the last rounds."""
    rounds: dict[int, list[dict[str, float]]] = {}
    common = {"clients": given.clients, "quantum": given.quantum, "lease": given.lease or given.quantum}
    with tempfile.TemporaryDirectory() as folder:
        path, binary = Path(folder, "redis.sock"), shutil.which("redis-server") or shutil.which("valkey-server")
        assert binary is not None, "there is no redis-server"
        quiet = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
        server = subprocess.Popen([binary, *quiet], stdout=subprocess.DEVNULL, cwd=folder)
        try:
            while not path.exists():
                time.sleep(0.05)
            for number in range(given.rounds):
                for routers in given.routers:
                    spec = {**common, "routers": routers, "url": f"unix://{path}", "name": f"{number}-{routers}"}
                    one = measured(spec, path, given.seconds)
                    apart = measured({**spec, "name": f"{spec['name']}-apart"}, path, given.seconds, apart=True)
                    one |= {"CPU us apart": apart["CPU us"], "efficiency": apart["CPU us"] / one["CPU us"]}
                    rounds.setdefault(routers, []).append(one)
        finally:
            server.kill()
            server.wait()
    for routers, found in rounds.items():
        middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
        print(f"{routers} routers:", end="")
        for name, value in middle.items():
            low, high = (pick(each[name] for each in found) for pick in (min, max))
            print(f"  {name} {value:.4g} ({low:.4g} to {high:.4g})", end="")
        spec = {**common, "routers": routers, "url": "unix:///none", "name": "none"}
        print(f"  bound {bound(spec)}")
        if routers == given.routers[0]:
            decision = middle["CPU us"] * 1e-6 - middle["renewals"] * Costs().renewal
            costs = Costs(decision=decision)
        model = predicted(
            routers,
            weights_of(given.clients),
            UNITS,
            *(given.quantum, common["lease"]),
            costs,
            int(middle["bytes"]),
        )
        seen = {
            "CPU us": model.decision_us,
            "renewals": model.renewals / model.decisions,
            "store ops": model.operations / model.decisions,
        }
        print("  model:", *(f" {name} {value:.4g} ({value / middle[name] - 1:+.0%})" for name, value in seen.items()))


def virtual(given: argparse.Namespace) -> None:
    """Print what tiers do in virtual time, and what the model says of them."""
    logging.disable()
    weights, lease, costs = weights_of(given.clients), given.lease or given.quantum, Costs()
    for routers in given.virtual:
        seen = play(routers, weights, UNITS, given.quantum, lease, costs)
        model = predicted(routers, weights, UNITS, given.quantum, lease, costs, seen.bytes)
        cost = term(given.quantum, lease, routers)
        print(
            f"{routers} routers: decisions/s {seen.decisions:,.0f}, of what cores can "
            f"{seen.decisions * costs.decision / routers:.2f}  renewals {seen.renewals:,.0f}/s, written "
            f"{seen.written:,.0f}, lost {seen.lost:,.0f}  store busy {seen.store_busy:.2f}  value {seen.bytes:,}  "
            f"2(Q + (n - 1) S) = {cost:,}, {cost / seen.decisions / UNITS:.2f} s of its work  model: "
            f"{model.decisions:,.0f} ({model.decisions / seen.decisions - 1:+.0%}"
            f"{', the store limits it' if model.store_limits else ''})",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--virtual", type=int, nargs="+", help="play tiers of so many routers in virtual time")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--quantum", type=int, default=65_536, help="of every client (65536)")
    parser.add_argument("--lease", type=int, help="the quantum")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--route", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.route is not None:
        asyncio.run(route(json.loads(given.route)))
    elif given.virtual:
        virtual(given)
    else:
        table(given)


if __name__ == "__main__":
    main()
