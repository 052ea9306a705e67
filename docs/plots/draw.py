"""Draw the pictures of the pages: run from the checkout's root, they are written beside this file.

python docs/plots/draw.py
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from fairsched.engines.analysis import Run, run_charging
from fairsched.engines.simulation import Cluster, RunSpec, compare, simulate_events
from fairsched.engines.simulation.runs import run_one
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.generators.demonstrations import (
    CE1_KV_TOKENS,
    CE1_QUANTUM,
)
from fairsched.model.events import Decoded, Event
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.service import backlogs, charges, concatenate, tables
from fairsched.model.service.received import service_lag
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, with_parameters
from fairsched.policies.routers import RoundRobin

FOLDER = Path(__file__).parent
STEPS = 60
QUANTA = (256, 1_024, 4_096, 16_384, 32_768, 65_536, 262_144)
LABELS_AT = ((0, -14), (0, -14), (-16, -13), (26, -3), (-24, -6), (-24, -4), (24, 6))
"""Where the labels of the quanta stand beside their points."""
PRINTED, SHIPPED, OTHER = "#c0392b", "#1f6f8b", "#7f8c8d"
STYLE = {"font.size": 9, "svg.hashsalt": "fairsched", "axes.spines.top": False, "axes.spines.right": False}


def lead_of_g(rejoin: str) -> tuple[list[int], list[int]]:
    """Steps and the largest lead of g over a waiting f so far, in `ce1`."""
    workload, policy = (
        generate("ce1", steps=STEPS),
        with_parameters(LOCAL_POLICIES["dlpm"], {"quantum": str(CE1_QUANTUM), "rejoin": rejoin}),
    )
    model = PRESETS[DEFAULT_PRESET]
    events: list[Event] = simulate_events(
        workload, policy, RoundRobin(), model, kv_capacity_tokens=CE1_KV_TOKENS, leap=False
    )
    ends_ns = [event.time_ns for event in events if isinstance(event, Decoded)][:STEPS]
    trace, charging = concatenate([tables(events)]), run_charging(policy, workload.clients)
    assert charging is not None
    grown = service_lag(charges(trace, charging), backlogs(trace), worker=0, ahead=1, behind=0).tolist()
    lead = [max((cost for time_ns, cost in grown if time_ns <= end_ns), default=0) for end_ns in ends_ns]
    return list(range(1, len(ends_ns) + 1)), lead


def draw_ce1() -> None:
    """Both rejoin rules over the counterexample, and the two bounds."""
    axes = figure()
    for rejoin, colour, label in (
        ("reset", PRINTED, "printed rule: a rejoin forgives debt"),
        ("keep", SHIPPED, "shipped rule: debt is kept"),
    ):
        axes.step(*lead_of_g(rejoin), where="post", color=colour, label=label)
    axes.axhline(20, color=OTHER, linestyle="--", linewidth=1)
    axes.text(STEPS, 20.6, "the paper's bound, 20", ha="right", color=OTHER)
    axes.axhline(14, color=OTHER, linestyle=":", linewidth=1)
    axes.text(STEPS, 14.6, "proved bound, 14", ha="right", color=OTHER)
    axes.set(
        xlabel="engine step", ylabel="largest lead of g over waiting f\n(cost units)", xlim=(0, STEPS), ylim=(0, None)
    )
    axes.legend(frameon=False, loc="upper left")
    save("ce1")


def draw_showcase() -> None:
    """Draw the run of `make run`: of each policy the largest gap so far, and the bounds."""
    runs = {run.policy: run for run in compare(generate("showcase")).runs}
    axes, until_s = figure(), 300
    for name, colour in (("fcfs", "black"), ("lpm", PRINTED), ("dlpm", SHIPPED), ("vtc", OTHER)):
        seconds, grown = runs[name].series.gap_s, runs[name].series.gap
        axes.step([*seconds, until_s], [*grown, grown[-1]], where="post", color=colour, label=name.upper())
    bound = runs["dlpm"].service_gap_bound
    assert bound is not None
    axes.axhline(bound, color=SHIPPED, linestyle="--", linewidth=1)
    said = f"DLPM's bound, {bound:,}; VTC's is {runs['vtc'].service_gap_bound:,}"
    axes.text(until_s - 3, bound * 0.85, said, color=SHIPPED, ha="right", va="top")
    axes.set(xlabel="seconds", ylabel="largest service gap of two\nwaiting clients so far (cost units)", yscale="log")
    axes.set(xlim=(0, until_s), ylim=(1_000, 10_000_000))
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.43))
    save("showcase")


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


def of(workload: Any, name: str, params: dict[str, str]) -> Run:
    """One policy over a workload, on the default worker."""
    run = RunSpec(with_parameters(LOCAL_POLICIES[name], params), name, params, ROUTERS["round-robin"])
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
    draw_showcase()
    draw_sweep()
