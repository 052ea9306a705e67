"""The pictures of docs/results.md: run from the checkout's root, they are written beside this file.

python docs/plots/draw.py
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from fairsched.engines.compare import Cluster, Run, charging_of, run_one
from fairsched.engines.metrics import RunResult
from fairsched.engines.simulator import simulate
from fairsched.engines.workloads.ce1 import KV_CAPACITY_TOKENS, QUANTUM
from fairsched.engines.workloads.generate import generate
from fairsched.model.events import Decoded, Event
from fairsched.model.presets import DEFAULT_PRESET, PRESETS
from fairsched.model.service import backlogs, charges, service_lag
from fairsched.model.trace import concatenate, tables
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, with_parameters
from fairsched.policies.router import RoundRobin

FOLDER = Path(__file__).parent
STEPS = 60
QUANTA = (256, 1_024, 4_096, 16_384, 32_768, 65_536, 262_144)
LABELS_AT = ((0, -14), (0, -14), (-16, -13), (26, -3), (-24, -6), (-24, -4), (24, 6))
"""Where the labels of the quanta stand beside their points."""
PRINTED, SHIPPED, OTHER = "#c0392b", "#1f6f8b", "#7f8c8d"
STYLE = {"font.size": 9, "svg.hashsalt": "fairsched", "axes.spines.top": False, "axes.spines.right": False}


def lead_of_g(name: str) -> tuple[list[int], list[int]]:
    """Steps and the largest lead of g over a waiting f so far, in `ce1`."""
    workload, policy = generate("ce1", steps=STEPS), with_parameters(LOCAL_POLICIES[name], {"quantum": str(QUANTUM)})
    model = PRESETS[DEFAULT_PRESET]
    events: list[Event] = simulate(
        workload, policy, RoundRobin(), model, kv_capacity_tokens=KV_CAPACITY_TOKENS, leap=False
    )
    ends_ns = [event.time_ns for event in events if isinstance(event, Decoded)][:STEPS]
    trace, charging = concatenate([tables(events)]), charging_of(workload, policy)
    assert charging is not None
    grown = service_lag(charges(trace, charging), backlogs(trace), worker=0, ahead=1, behind=0).tolist()
    lead = [max((cost for time_ns, cost in grown if time_ns <= end_ns), default=0) for end_ns in ends_ns]
    return list(range(1, len(ends_ns) + 1)), lead


def draw_ce1() -> None:
    """Both rejoin rules over the counterexample, and the two bounds."""
    axes = figure()
    for name, colour, label in (
        ("dlpm-printed", PRINTED, "printed rule: a rejoin forgives debt"),
        ("dlpm", SHIPPED, "shipped rule: debt is kept"),
    ):
        axes.step(*lead_of_g(name), where="post", color=colour, label=label)
    axes.axhline(20, color=OTHER, linestyle="--", linewidth=1)
    axes.text(STEPS, 20.6, "the paper's bound, 20", ha="right", color=OTHER)
    axes.axhline(14, color=OTHER, linestyle=":", linewidth=1)
    axes.text(STEPS, 14.6, "proved bound, 14", ha="right", color=OTHER)
    axes.set(
        xlabel="engine step", ylabel="largest lead of g over waiting f\n(cost units)", xlim=(0, STEPS), ylim=(0, None)
    )
    axes.legend(frameon=False, loc="upper left")
    save("ce1")


def draw_sweep() -> None:
    """DLPM between VTC and LPM: fairness and throughput by quantum."""
    workload = generate("tree-of-thoughts", misbehave="longer-prefix", clients=24, trees=8, rate=8)
    axes = figure()
    swept = [of(workload, "dlpm", {"quantum": str(quantum)}) for quantum in QUANTA]
    rps = [run.measures.throughput_rps for run in swept]
    axes.plot(rps, [run.jain_charged for run in swept], "o-", color=SHIPPED, label="DLPM, charged service")
    axes.plot(rps, [run.jain_client for run in swept], "o--", color=SHIPPED, mfc="white", label="DLPM, client service")
    for run, quantum, (dx, dy) in zip(swept, QUANTA, LABELS_AT, strict=True):
        place = run.measures.throughput_rps, run.jain_client
        axes.annotate(f"{quantum:,}", place, (dx, dy), textcoords="offset points", ha="center", fontsize=8)
    for name in ("vtc", "lpm"):
        run = of(workload, name, {})
        axes.plot(run.measures.throughput_rps, run.jain_client, "s", color=PRINTED, mfc="white")
        axes.annotate(name.upper(), (run.measures.throughput_rps, run.jain_client), (9, -3), textcoords="offset points")
    axes.legend(frameon=False, loc="lower left", title="by quantum Q")
    axes.set(xlabel="requests/s", ylabel="Jain's index", ylim=(0, 1.06), xlim=(4.5, 11))
    save("quantum")


def of(workload: Any, name: str, params: dict[str, str]) -> RunResult:
    """One policy over a workload, on the default worker."""
    run = Run(with_parameters(LOCAL_POLICIES[name], params), name, params, ROUTERS["round-robin"])
    return run_one(workload, run, Cluster(PRESETS[DEFAULT_PRESET]))[0]


def figure() -> Any:
    """Empty axes of the size that the page shows."""
    plt.rcParams.update(STYLE)
    return plt.subplots(figsize=(6.4, 3.4), layout="constrained")[1]


def save(name: str) -> None:
    """Write the picture without a date, so that equal figures give equal files."""
    plt.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close()
    print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    draw_ce1()
    draw_sweep()
