"""The worst wait in seconds that is proved, beside what a simulated worker and the torch worker take.

    python benchmarks/worst_wait.py [--preset torch.json] [--repeats 2] [--json FILE]

Each configuration gets the world that is built for it (`tests.support.policies.worst_wait`): the last
request of client f waits for its first token.  Presets are simulated; the torch worker is calibrated here, or by

    fairsched calibrate --model small --threads 1 --kv-capacity-tokens 2048 --batch-max 32 --chunk-max 128 \\
        --clock thread --policy dlpm --repeats 2 --out torch.json

Then it serves the world in processor time, beside the simulator with its latency model.  Columns: seconds until the
first token as proved (T-wait), as simulated and as taken by the torch worker, each with its share of what is proved;
then what the monitor says of the torch worker: how often its steps took longer than its latency model says
(StepsInTime), and waits over the bound.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.calibration import Workbench, calibrate
from fairsched.engines.calibration.drive import Driver, ThreadClock, tokens_of
from fairsched.engines.calibration.meter import StepMeter
from fairsched.engines.serving import Engine
from fairsched.engines.simulation import simulate_events
from fairsched.engines.torch import TorchSpec
from fairsched.model.events import Arrived, Event, Finished, Prefilled
from fairsched.model.machine import PRESETS, LatencyModel
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import Limits
from fairsched.policies.guarantees import GateGuarantee
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, local_policy, with_parameters

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.policies.worst_wait import worst_wait_world

POLICIES = ("dlpm", "fcfs+deficit")
PRESETS_SHOWN = {
    "llama-3.2-3b-a10g": (8_192, 1_024),
    "llama-3.1-8b-a100": (16_384, 2_048),
    "llama-3-70b-fp8-h100-tp4": (8_192, 1_024),
}
ALONE = (
    {"quantum": "512"},
    {"quantum": "512", "output_rate": "12"},
    {"quantum": "512", "output_rate": "12", "max_running": "64"},
)
"""What is set inside the batch, on an A100 with four clients."""
SHORTER = (1, 8, 64)
"""By how many tokens g's first requests end earlier: the worst of these worlds counts."""
TORCH = TorchSpec("small", threads=1, page_tokens=16, batch_max=32)
TORCH_CAPACITY, TORCH_CHUNK, TORCH_PROMPT, TORCH_OUTPUT, TORCH_QUANTUM = 2_048, 128, 128, 64, 256


@attrs.frozen
class Row:
    """One configuration, in nanoseconds."""

    machine: str
    policy: str
    proved_ns: int
    simulated_ns: int
    torch_ns: int | None = None
    slow_steps: int | None = None
    violations: int | None = None

    def line(self) -> str:
        """The row of the table."""
        torch = ["", "", ""]
        if self.torch_ns is not None:
            torch = [self._seconds(self.torch_ns), f"{self.slow_steps}", f"{self.violations}"]
        cells = [self.machine, self.policy, f"{self.proved_ns / 1e9:,.1f}", self._seconds(self.simulated_ns), *torch]
        return f"| {' | '.join(cells)} |"

    def _seconds(self, ns: int) -> str:
        return f"{ns / 1e9:,.1f} ({ns / self.proved_ns:.2f})"


def limits_of(policy: ComposedPolicy, capacity: int, prompt_tokens: int, output_tokens: int) -> Limits:
    """What the bound rests on."""
    return attrs.evolve(policy.guarantee.limits(capacity, output_tokens), prompt_tokens_max=prompt_tokens)


def first_token_ns(events: list[Event], request_id: int) -> int:
    """From the arrival of a request to its first token."""
    came = next(e.time_ns for e in events if isinstance(e, Arrived) and e.request.id == request_id)
    prefilled = (e for e in events if isinstance(e, Prefilled) and e.request_id == request_id)
    return next(e.time_ns for e in prefilled if not e.remaining_tokens) - came


def simulated(policy: ComposedPolicy, world: Workload, latency: LatencyModel, capacity: int) -> int:
    """What the last request takes in the simulator."""
    events = simulate_events(world, policy, ROUTERS["round-robin"], latency, kv_capacity_tokens=capacity)
    return first_token_ns(events, len(world.jobs) - 1)


def served(policy: ComposedPolicy, world: Workload, bench: Workbench) -> list[Event]:
    """The events of the torch worker, in processor time."""
    events: list[Event] = []
    meter = StepMeter(bench.spec.executor(bench.model, bench.kv_capacity_tokens))
    clock = ThreadClock()
    engine = Engine(
        policy,
        meter,
        kv_capacity_tokens=bench.kv_capacity_tokens,
        clients=world.clients,
        listeners=[events.extend],
        now_ns=clock.now_ns,
    )
    meter.watch(engine)
    Driver(world, tokens_of(world, bench.model.config.vocab_size), engine, meter, clock).run()
    engine.close()
    return events


def preset_row(name: str, policy_name: str) -> Row:
    """A preset, with the default parameters of a policy."""
    latency, (prompt_tokens, output_tokens) = PRESETS[name], PRESETS_SHOWN[name]
    policy, capacity = local_policy(policy_name), PRESETS[name].kv_capacity_tokens
    assert isinstance(policy, ComposedPolicy)
    worlds = [worst_wait_world(capacity, prompt_tokens, output_tokens, shorter=each) for each in SHORTER]
    limits = limits_of(policy, capacity, prompt_tokens, output_tokens)
    worst = policy.guarantee.worst_wait(worlds[0].clients, limits, latency)
    assert worst is not None
    return Row(name, policy_name, worst.first_token_ns(), max(simulated(policy, w, latency, capacity) for w in worlds))


def alone_row(chosen: dict[str, str]) -> Row:
    """Four clients inside the batch on an A100, one of which waits when its own requests have just ended."""
    latency = PRESETS["llama-3.1-8b-a100"]
    policy, capacity = with_parameters(local_policy("fcfs+in-batch"), chosen), latency.kv_capacity_tokens
    assert isinstance(policy, ComposedPolicy)
    limits = limits_of(policy, capacity, 8_192, 1_024)
    outputs = 8_704 // (policy.gate.charging.rates.output * limits.running_max)
    worlds = [
        worst_wait_world(
            capacity, 8_192, 1_024, running_max=limits.running_max, others=3, own_output_tokens=max(outputs + more, 1)
        )
        for more in (0, 1)
    ]
    worst = policy.guarantee.worst_wait(worlds[0].clients, limits, latency)
    assert worst is not None
    assert worst.with_nothing_in_flight is not None
    name = ", ".join(("fcfs+in-batch", *(f"{key}={value}" for key, value in chosen.items())))
    longest = 0
    for world in worlds:
        events = simulate_events(world, policy, ROUTERS["round-robin"], latency, kv_capacity_tokens=capacity)
        last = world.jobs[-1].request
        first_ns = last.arrival_ns + first_token_ns(events, last.id)
        ended = (each.time_ns for each in events if isinstance(each, Finished) and each.client == last.client)
        longest = max(longest, first_ns - max(each for each in ended if each < first_ns))
    return Row("A100, 4 clients", name, worst.with_nothing_in_flight.first_token_ns(), longest)


def limited_row(name: str) -> Row:
    """Four clients on an A100 that keep to limits of arrivals, all of which send what they may at once."""
    latency, policy = PRESETS["llama-3.1-8b-a100"], local_policy(name)
    assert isinstance(policy, ComposedPolicy)
    limits = limits_of(policy, latency.kv_capacity_tokens, 8_192, 1_024)
    assert isinstance(policy.guarantee, GateGuarantee)
    limited = policy.guarantee.limited_wait(4, limits, latency)
    assert limited is not None
    period_ns = -(-8_192 * 10**9 // limited.tokens_per_s)
    requests = [
        Request(4 * turn + client, client, turn * period_ns, Prompt(8_192), 1_024)
        for turn in range(6)
        for client in range(4)
    ]
    world = Workload(
        "limited", tuple(Job(each, 1_024) for each in requests), tuple(Client(i, str(i)) for i in range(4))
    )
    events = simulate_events(
        world, policy, ROUTERS["round-robin"], latency, kv_capacity_tokens=latency.kv_capacity_tokens
    )
    longest = max(first_token_ns(events, each.id) for each in requests)
    return Row("A100, 4 clients", f"{name}, arrivals limited", limited.first_token_ns, longest)


def torch_row(policy_name: str, bench: Workbench, latency: LatencyModel) -> Row:
    """The torch worker, the simulator with its latency model, and the monitor's word on the real run."""
    chosen = {"max_batched_tokens": TORCH_CHUNK, "max_running": TORCH.batch_max, "quantum": TORCH_QUANTUM}
    policy = with_parameters(local_policy(policy_name), {key: str(value) for key, value in chosen.items()})
    assert isinstance(policy, ComposedPolicy)
    more = {"running_max": TORCH.batch_max, "block_tokens": TORCH.page_tokens}
    worlds = {
        each: worst_wait_world(TORCH_CAPACITY, TORCH_PROMPT, TORCH_OUTPUT, shorter=each, **more) for each in SHORTER
    }
    waits = {each: simulated(policy, world, latency, TORCH_CAPACITY) for each, world in worlds.items()}
    world = worlds[max(SHORTER, key=lambda each: waits[each])]
    limits = limits_of(policy, TORCH_CAPACITY, TORCH_PROMPT, TORCH_OUTPUT)
    worst = policy.guarantee.worst_wait(world.clients, limits, latency)
    promise = policy.guarantee.promise(world.clients, limits, latency)
    assert worst is not None
    assert promise is not None
    events = served(policy, world, bench)
    monitor = Monitor(promise, policy.guarantee.gate_monitor(), gaps=False)
    monitor.observe_all(events)
    report = monitor.report()
    taken_ns = first_token_ns(events, len(world.jobs) - 1)
    slow = report.assumptions["StepsInTime"].violated or 0
    return Row(
        "torch", policy_name, worst.first_token_ns(), max(waits.values()), taken_ns, slow, report.wait_violations
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--preset", type=Path, help="the torch worker's latency model, from `fairsched calibrate --out`"
    )
    parser.add_argument("--repeats", type=int, default=2, help="runs of the calibration's grid (default: 2)")
    parser.add_argument("--json", type=Path, help="write the rows")
    arguments = parser.parse_args()
    print("| machine | policy | proved | simulated | torch worker | slow steps | over |\n|---|---|---|---|---|---|---|")
    rows: list[Row] = []

    def shows(row: Row) -> None:
        rows.append(row)
        print(row.line(), flush=True)

    for policy in POLICIES:
        for name in PRESETS_SHOWN:
            shows(preset_row(name, policy))
    for chosen in ALONE:
        shows(alone_row(chosen))
    for name in ("fcfs+deficit", "vtc", "fcfs+in-batch"):
        shows(limited_row(name))
    bench = Workbench.load(TORCH, kv_capacity_tokens=TORCH_CAPACITY, chunk_max=TORCH_CHUNK, clock="thread")
    if arguments.preset is None:
        latency = calibrate(bench, POLICIES[0], repeats=arguments.repeats).latency
    else:
        latency = bench.latency_of(arguments.preset, POLICIES[0])
    for policy in POLICIES:
        shows(torch_row(policy, bench, latency))
    if arguments.json is not None:
        document: list[dict[str, Any]] = [attrs.asdict(row) for row in rows]
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
