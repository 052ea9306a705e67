"""D2LPM before several workers: its quantum, misbehaving clients, and routers that only look for prefixes.

Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (DLPM), evaluation.
"""

from functools import partial

from fairsched.engines.analysis import Run
from fairsched.model.request import Workload
from fairsched.reproduce.row import A100, Ours, Row, Say, falls, measured, p99_s, rate, run, well_behaved, workload

WORKERS = 4
QUANTA = (2_000, 5_000, 10_000, 20_000, 40_000)
SYSTEMS = {
    "d2lpm": ("dlpm", "d2lpm"),
    "vtc": ("vtc", "per-client-round-robin"),
    "rr+lpm": ("lpm", "round-robin"),
    "e2": ("lpm", "e2"),
}
"""The paper's systems: a local policy and a router each."""
CELLS: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("trees S1", "tree-of-thoughts", "more-requests", {"rate": 1.0, "trees": 10}),
    ("trees S2", "tree-of-thoughts", "longer-prefix", {"rate": 16.0, "trees": 16}),
    ("judge S1", "llm-judge", "more-requests", {}),
    ("judge S2", "llm-judge", "longer-prefix", {}),
    ("QA S1", "long-context-qa", "more-requests", {}),
    ("QA S2", "long-context-qa", "longer-prefix", {}),
)
"""S1: client 0 sends more; S2: it has longer prompts.  Trees of S1 come at a rate that others alone would not fill."""
COLLAPSE = "trees S2"


@partial(
    Row,
    id="36",
    about="the quantum of D2LPM",
    source="DLPM, evaluation",
    paper="Q_w from 2,000 to 40,000: throughput rises, then flattens; Jain's index falls from 0.855 to 0.83",
    band="rises by a fifth or more, by less than a tenth in the last step; Jain's index falls by less than 0.1",
    why="trees of thoughts with one client of longer questions, 4 workers; DLPM's quantum is the same",
    seconds=60,
)
def quantum(say: Say) -> Ours:
    """Throughput and Jain's index by the router's quantum."""
    jobs = workload("tree-of-thoughts", "longer-prefix", rate=16.0, trees=16)
    rates, even = [], []
    for size in QUANTA:
        say(f"Q_w {size:,}")
        found = run(jobs, "dlpm", "d2lpm", workers=WORKERS, params={"quantum": size}, routing={"quantum": size})
        rates.append(rate(found))
        even.append(measured(found.jain_client, "Jain's index"))
    plateau = rates[-1] / rates[-2]
    return Ours(
        f"requests/s {' '.join(f'{one:.1f}' for one in rates)}; Jain {' '.join(f'{one:.3f}' for one in even)} with "
        f"Q_w = {', '.join(f'{size:,}' for size in QUANTA)}",
        falls(reversed(rates), 0.02) and rates[-1] > 1.2 * rates[0] and plateau < 1.1 and even[0] - even[-1] < 0.1,
        {"quanta": QUANTA, "throughput_rps": rates, "jain_client": even},
    )


def _ttft_s(found: Run, jobs: Workload) -> float:
    return max(measured(found.clients[name].ttft_us.p99, "p99") for name in well_behaved(jobs)) / 1e6


@partial(
    Row,
    id="40",
    about="misbehaving clients before 4 workers",
    source="DLPM, evaluation",
    paper="up to 2.87 times VTC's throughput, 2.22 times RR + LPM's, which collapses on S2 trees of thoughts as "
    "workers grow; latency of well-behaved clients up to 7.18 times better than Preble's; QA of S2 loses to Preble",
    band="in one cell each at least 1.5 times VTC's throughput, and p99 twice as good as E2's and as RR + LPM's; "
    "RR + LPM less than doubles from 1 to 4 workers on S2 trees",
    why="p99 is of the time to the first token: a whole program's time is mostly decoding in a batch that the "
    "misbehaving client fills too, which no order of admissions changes; E2 rebalances here, and wins QA, where "
    "documents do not fit beside each other and turns between clients evict them",
    seconds=180,
)
def misbehaving(say: Say) -> Ours:
    """Throughput, and well-behaved clients' p99, of four systems with a client that misbehaves."""
    figures: dict[str, dict[str, tuple[float, float, float]]] = {}
    for cell, name, how, params in CELLS:
        jobs = workload(name, how, **params)
        for system, (policy, router) in SYSTEMS.items():
            say(f"{cell}, {system}")
            found = run(jobs, policy, router, workers=WORKERS)
            ttft_s, program_s = _ttft_s(found, jobs), p99_s(found, well_behaved(jobs))
            figures.setdefault(cell, {})[system] = rate(found), ttft_s, program_s
    say("one worker")
    one_worker = rate(run(workload("tree-of-thoughts", "longer-prefix"), "lpm"))
    grown = figures[COLLAPSE]["rr+lpm"][0] / one_worker
    ours = {cell: found["d2lpm"] for cell, found in figures.items()}
    vtc = {cell: ours[cell][0] / found["vtc"][0] for cell, found in figures.items()}
    e2 = {cell: found["e2"][1] / ours[cell][1] for cell, found in figures.items()}
    e2_programs = {cell: found["e2"][2] / ours[cell][2] for cell, found in figures.items()}
    robin = {cell: found["rr+lpm"][1] / ours[cell][1] for cell, found in figures.items()}
    held = max(vtc.values()) >= 1.5 and max(e2.values()) >= 2 and max(robin.values()) >= 2 and grown < WORKERS / 2
    return Ours(
        "; ".join(
            f"{cell} {vtc[cell]:.2f} times VTC's throughput, {e2[cell]:.2f} ({e2_programs[cell]:.2f}) and "
            f"{robin[cell]:.2f}"
            for cell in figures
        )
        + f" (then p99 TTFT of well-behaved clients under E2, in brackets of their programs, and under "
        f"RR + LPM, over D2LPM's); on {COLLAPSE} RR + LPM grows {grown:.2f} times from 1 to {WORKERS} workers",
        held,
        {"throughput_rps_ttft_s_program_s": figures, "rr_lpm_growth": grown},
    )


@partial(
    Row,
    id="41",
    about="a longer prefix monopolises a worker",
    source="DLPM, evaluation: 4 workers, 3 branches",
    paper="Preble by matching ratio sends client 0's requests to one worker: the cluster falls to a quarter",
    band="E2 by matching ratio alone at less than half of D2LPM's throughput",
    why="a header of 16,384 tokens that all share, A100; the paper's baseline exploits by matching ratio and does "
    "not rebalance, and so do we: all work goes to one worker. E2 with its rebalancing is hardly hurt",
    seconds=60,
)
def monopoly(say: Say) -> Ours:
    """Routers that exploit what is cached, while client 0 has a longer prefix."""
    lengths = {"header_tokens": 16_384, "question_tokens": 256, "longer_question_tokens": 1_024}
    jobs = workload("tree-of-thoughts", "longer-prefix", branches=3, clients=4, trees=8, rate=8.0, **lengths)
    say("d2lpm")
    best = rate(run(jobs, "dlpm", "d2lpm", workers=WORKERS, latency=A100))
    shares = {}
    for title, router, routing in (
        ("E2 by matching ratio alone", "e2", {"rebalancing": "off", "scaling": "off"}),
        ("longest prefix", "longest-prefix", {}),
        ("E2 whole", "e2", {}),
    ):
        say(title)
        found = run(jobs, "lpm", router, workers=WORKERS, latency=A100, routing=routing)
        shares[title] = rate(found) / best
    return Ours(
        "of D2LPM's throughput: " + "; ".join(f"{title} {share:.2f}" for title, share in shares.items()),
        shares["E2 by matching ratio alone"] < 0.5,
        {"of_d2lpm": shares},
    )
