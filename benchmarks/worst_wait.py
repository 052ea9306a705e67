"""Worst waits for a first token: what is promised, the worst that a search finds, and what an ordinary load meets.

    python benchmarks/worst_wait.py --csv docs/explanation/promises/seconds.csv
    python benchmarks/worst_wait.py --torch [--preset torch.json] [--repeats 2]

The first writes the table of simulated machines.  Four clients send prompts of at most 8,192 tokens and outputs of at
most 1,024.  The search begins with the world that is built for it (`worst_wait_world`) and changes one thing of it
after the other, as long as the wait grows: how long the first requests of the client are, when those of others end, and
whether their prompts are cached.  The load is 400 requests of `azure-chat`, all within four seconds, or spaced as
limits of arrivals say.

The second serves such a world with the torch worker in processor time.  It is calibrated here, or by

    fairsched calibrate --model small --threads 1 --kv-capacity-tokens 2048 --batch-max 32 --chunk-max 128 \\
        --clock thread --policy dlpm --repeats 2 --out torch.json

Columns: seconds until the first token as proved (T-wait), as simulated and as taken by the torch worker, each with its
share of what is proved; then what the monitor says of the torch worker: how often its steps took longer than its
latency model says (StepsInTime), and waits over the bound.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.calibration import Workbench, calibrate
from fairsched.engines.calibration.drive import Driver, ThreadClock, tokens_of
from fairsched.engines.calibration.meter import StepMeter
from fairsched.engines.serving import Engine
from fairsched.engines.simulation import simulate_events
from fairsched.engines.torch import TorchSpec
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.events import Arrived, Event, Prefilled
from fairsched.model.machine import PRESETS, LatencyModel
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import Limits
from fairsched.policies.guarantees import GateGuarantee, LimitedWait, WorstWait
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, local_policy, with_parameters

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.policies.worst_wait import waits_to_first_tokens, worst_wait_world

POLICIES = ("dlpm", "fcfs+deficit")
SHORTER = (1, 8, 64)
"""By how many tokens others' first requests end earlier: the worst of these worlds counts."""
TORCH = TorchSpec("small", threads=1, page_tokens=16, batch_max=32)
TORCH_CAPACITY, TORCH_CHUNK, TORCH_PROMPT, TORCH_OUTPUT, TORCH_QUANTUM = 2_048, 128, 128, 64, 256

# --- simulated machines -----------------------------------------------------------------------------------------------

MACHINES = (
    *("llama-3-70b-h100-tp2", "llama-3.2-3b-a10g", "llama-3.1-8b-a100"),
    *("llama-3-70b-fp8-h100-tp4", "llama-2-70b-h100"),
)
PROMPT, OUTPUT, RUNNING, INSIDE, REQUESTS = 8_192, 1_024, 256, 64, 400
CLIENTS = tuple(Client(i, f"{i}") for i in range(4))
HEAD = ("machine", "KV tokens", "policy", "said by", "promised", "worst found", "p100 of a load")
CHOICES: dict[str, tuple[Any, ...]] = {
    "fresh": (False, True),
    "own_output_tokens": (None, 1, 4, 8, 11, 16, 32),
    "shorter": (1, 64, 1_000),
}
"""What the search changes of a world."""


def played(policy: ComposedPolicy, world: Workload, latency: LatencyModel) -> list[Event]:
    """The events of one simulated worker."""
    capacity = latency.kv_capacity_tokens
    return simulate_events(world, policy, ROUTERS["round-robin"], latency, kv_capacity_tokens=capacity)


def guaranteed(policy: ComposedPolicy, latency: LatencyModel) -> tuple[GateGuarantee, Limits]:
    """What a policy promises, and the limits."""
    assert isinstance(policy.guarantee, GateGuarantee)
    return policy.guarantee, limits_of(policy, latency.kv_capacity_tokens, PROMPT, OUTPUT)


def worst_of(policy: ComposedPolicy, latency: LatencyModel) -> WorstWait:
    """The longest wait that is proved."""
    guarantee, limits = guaranteed(policy, latency)
    worst = guarantee.worst_wait(CLIENTS, limits, latency)
    assert worst is not None
    return worst


def searched(waited: Callable[[dict[str, Any]], int]) -> int:
    """Change one thing after the other as long as the wait grows."""
    chosen: dict[str, Any] = {name: values[0] for name, values in CHOICES.items()}
    best, before = waited(chosen), -1
    while best > before:
        before = best
        for name, values in CHOICES.items():
            for value in values:
                tried = {**chosen, name: value}
                if tried != chosen and (found := waited(tried)) > best:
                    best, chosen = found, tried
    return best


def load() -> Workload:
    """Requests of four clients."""
    jobs = generate("azure-chat").jobs[:REQUESTS]
    sent = tuple(Job(_of(each.request, each.request.client % 4), min(each.output_tokens, OUTPUT)) for each in jobs)
    return at_rate(Workload("load", sent, CLIENTS), REQUESTS / 4)


def _of(request: Request, client: int, at_ns: int | None = None) -> Request:
    at_ns = request.arrival_ns if at_ns is None else at_ns
    most = min(request.max_output_tokens, OUTPUT)
    return Request(request.id, client, at_ns, request.prompt, most)


def spaced(limited: LimitedWait) -> Workload:
    """The same requests, each client's as far apart as its limit of tokens a second says."""
    due, jobs = dict.fromkeys(range(4), 0), []
    for job in load().jobs:
        client = job.request.client
        jobs.append(Job(_of(job.request, client, due[client]), job.output_tokens))
        due[client] += -(-job.request.prompt_tokens * 10**9 // limited.tokens_per_s)
    return Workload("spaced", tuple(sorted(jobs, key=lambda job: job.request.arrival_ns)), CLIENTS)


def bursts(limited: LimitedWait) -> Workload:
    """All clients send what they may at once, again and again."""
    period_ns = -(-PROMPT * 10**9 // limited.tokens_per_s)
    requests = [
        Request(4 * turn + c, c, turn * period_ns, Prompt(PROMPT), OUTPUT) for turn in range(6) for c in range(4)
    ]
    return Workload("bursts", tuple(Job(each, OUTPUT) for each in requests), CLIENTS)


def unlimited(latency: LatencyModel) -> Iterator[tuple[str, ComposedPolicy, WorstWait, bool]]:
    """What is promised whatever comes: a title, the policy, its bound, and whether the client has nothing in flight."""
    for name in ("fcfs+deficit", "vtc"):
        yield name, _policy(name, {}), worst_of(_policy(name, {}), latency), False
    inside = {"quantum": "512", "max_running": f"{INSIDE}"}
    inside["output_rate"] = f"{worst_of(_policy('fcfs+in-batch', inside), latency).dear_outputs}"
    policy = _policy("fcfs+in-batch", inside)
    worst = worst_of(policy, latency)
    yield "fcfs+in-batch, nothing in flight", policy, worst.with_nothing_in_flight or worst, True


def limited(latency: LatencyModel) -> LimitedWait | None:
    """What is promised under limits of arrivals, whatever the gate."""
    guarantee, limits = guaranteed(_policy("vtc", {}), latency)
    return guarantee.limited_wait(len(CLIENTS), limits, latency)


def promises(latency: LatencyModel) -> Iterator[tuple[str, str, int]]:
    """By policy, the theorem and nanoseconds, as in the table."""
    for title, _, bound, _ in unlimited(latency):
        yield title, bound.theorem.id, bound.first_token_ns()
    if (limits := limited(latency)) is not None:
        yield "any gate, arrivals limited", "T-limited", limits.first_token_ns


def machine_rows(name: str) -> Iterator[tuple[str, ...]]:
    """The rows of a machine."""
    latency = PRESETS[name]
    memory, found = latency.kv_capacity_tokens, []
    for _, policy, _, alone in unlimited(latency):

        def waited(choice: dict[str, Any], policy: ComposedPolicy = policy, alone: bool = alone) -> int:
            running = INSIDE if alone else RUNNING
            world = worst_wait_world(memory, PROMPT, OUTPUT, running_max=running, others=3, **choice)
            return max(waits_to_first_tokens(played(policy, world, latency), alone), default=0)

        usual = max(waits_to_first_tokens(played(policy, load(), latency), alone), default=0)
        found.append((searched(waited), usual))
    if (limits := limited(latency)) is not None:
        worlds = (bursts(limits), spaced(limits))
        worst, usual = (max(_since_arrival(played(_policy("vtc", {}), world, latency))) for world in worlds)
        found.append((worst, usual))
    for (policy_name, by, promised), each in zip(promises(latency), found, strict=True):
        yield name, f"{memory:,}", policy_name, by, f"{promised / 1e9:,.1f} s", *_shares(promised, each)


def _policy(name: str, params: dict[str, str]) -> ComposedPolicy:
    policy = with_parameters(local_policy(name), params)
    assert isinstance(policy, ComposedPolicy)
    return policy


def _since_arrival(events: list[Event]) -> list[int]:
    came = {event.request.id: event.time_ns for event in events if isinstance(event, Arrived)}
    return [e.time_ns - came[e.request_id] for e in events if isinstance(e, Prefilled) and not e.remaining_tokens]


def _shares(promised: int, found: tuple[int, ...]) -> Iterator[str]:
    for each in found:
        assert each <= promised, (promised, found)
        yield f"{each / 1e9:,.1f} s ({each / promised:.2f})"


# --- the torch worker -------------------------------------------------------------------------------------------------


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


def torch_row(policy_name: str, bench: Workbench, latency: LatencyModel) -> Row:
    """The torch worker, the simulator with its latency model, and the monitor's word on the real run."""
    chosen = {"max_batched_tokens": TORCH_CHUNK, "max_running": TORCH.batch_max, "quantum": TORCH_QUANTUM}
    policy = with_parameters(local_policy(policy_name), {key: str(value) for key, value in chosen.items()})
    assert isinstance(policy, ComposedPolicy)
    more: dict[str, Any] = {"running_max": TORCH.batch_max, "block_tokens": TORCH.page_tokens}
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


def torch_rows(preset: Path | None, repeats: int) -> Iterator[Row]:
    """Calibrate or read, and serve."""
    bench = Workbench.load(TORCH, kv_capacity_tokens=TORCH_CAPACITY, chunk_max=TORCH_CHUNK, clock="thread")
    if preset is None:
        latency = calibrate(bench, POLICIES[0], repeats=repeats).latency
    else:
        latency = bench.latency_of(preset, POLICIES[0])
    for policy in POLICIES:
        yield torch_row(policy, bench, latency)


def main() -> None:
    """Write or print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--csv", type=Path, help="file that the table of simulated machines is written to")
    kind.add_argument("--torch", action="store_true", help="serve with the torch worker")
    parser.add_argument("--preset", type=Path, help="its latency model, from `fairsched calibrate --out`")
    parser.add_argument("--repeats", type=int, default=2, help="runs of the calibration's grid (default: 2)")
    arguments = parser.parse_args()
    if arguments.torch:
        print(
            "| machine | policy | proved | simulated | torch worker | slow steps | over |", "|---" * 7 + "|", sep="\n"
        )
        for row in torch_rows(arguments.preset, arguments.repeats):
            print(row.line(), flush=True)
        return
    with arguments.csv.open("w") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEAD)
        for name in MACHINES:
            table.writerows(machine_rows(name))
            file.flush()


if __name__ == "__main__":
    main()
