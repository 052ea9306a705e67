"""DLPM and D2LPM on one worker and before several: the evaluation of "Locality-aware Fair Scheduling in LLM Serving".

Source: Cao et al., 2025.  It prints no lengths, rates or quanta of its workloads, so these are ours.  The arena trace
is not embedded here, so chats are generated, with its mean lengths.  Quanta are the same in all rows that do not sweep
them, Q = Q_w = 20,000: where the paper's sweep of Q_w, 2,000 to 40,000, has flattened.  `dlpm` and `d2lpm` as they ship
are judged; `dlpm-printed` behind `d2lpm-printed`, the algorithms as printed, run beside them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Literal

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.workloads import generate
from fairsched.model.request import Client, Job, Workload
from fairsched.reproduce.row import (
    NEAR,
    Control,
    Figures,
    Panel,
    Platform,
    Printed,
    above_zero,
    fewer,
    more,
    number,
    rows_of,
)
from fairsched.reproduce.runs import (
    A10G,
    A100,
    NO_SHARING,
    WINDOW_S,
    Timelines,
    measured,
    rate,
    run,
    timelines,
    unshared,
    well_behaved,
    workload,
)

row = rows_of("dlpm")

QUANTUM = 20_000
DLPM = {"quantum": QUANTUM}
"""Parameters of DLPM at a worker, and of D2LPM's router."""
System = Literal["d2lpm", "printed", "vtc", "rr+lpm", "preble", "e2+lpm"]
SYSTEMS: dict[System, tuple[str, str]] = {
    "d2lpm": ("dlpm", "d2lpm"),
    "printed": ("dlpm-printed", "d2lpm-printed"),
    "vtc": ("vtc", "per-client-round-robin"),
    "rr+lpm": ("lpm", "round-robin"),
    "preble": ("preble", "e2"),
    "e2+lpm": ("lpm", "e2"),
}
"""The paper's compositions, a local policy and a router each, and Preble's router before workers with LPM."""
MISBEHAVES = "client 0 misbehaves"


def under(system: System, jobs: Workload, on: Platform) -> Run:
    """Return the run of a workload under one of the paper's compositions."""
    policy, router = SYSTEMS[system]
    ours = system in ("d2lpm", "printed")
    return run(jobs, policy, router, on=on, params=DLPM if ours else {}, routing=DLPM if ours else {})


def followed(system: System, jobs: Workload, on: Platform, routing: Mapping[str, object]) -> Timelines:
    """Return what a run of a workload shows over time."""
    return timelines(jobs, *SYSTEMS[system], on=on, params=DLPM if system == "d2lpm" else {}, routing=routing)


# --- cells of the evaluation ------------------------------------------------------------------------------------------


@attrs.frozen
class EvaluationCell:
    """A workload of the evaluation with a misbehaving client: its name, parameters, and how many programs of each
    client a worker gets, by the name of the parameter that says so."""

    name: str
    misbehave: str
    programs: str
    count: int
    params: tuple[tuple[str, int], ...] = ()

    def made(self, on: Platform, seed: int, rate: float) -> Workload:
        """Return the cell's workload at that rate; the number of its programs grows with the number of workers."""
        count = {self.programs: self.count * on.workers}
        return workload(self.name, self.misbehave, on=on, seed=seed, rate=rate, **count, **dict(self.params))


CELLS = {
    "trees S1": EvaluationCell("tree-of-thoughts", "more-requests", "trees", 8, (("question_tokens", 20_480),)),
    "trees S2": EvaluationCell(
        "tree-of-thoughts",
        "longer-prefix",
        "trees",
        16,
        (("question_tokens", 8_192), ("longer_question_tokens", 32_768)),
    ),
    "judge S1": EvaluationCell("llm-judge", "more-requests", "articles", 80),
    "judge S2": EvaluationCell("llm-judge", "longer-prefix", "articles", 80),
    "QA S1": EvaluationCell("long-context-qa", "more-requests", "documents", 12, (("questions", 9),)),
    "QA S2": EvaluationCell("long-context-qa", "longer-prefix", "documents", 12, (("questions", 9),)),
}
"""S1: client 0 sends more; S2: it has longer prompts.  Prefixes are several times what the workers' memory holds."""
LOAD = 1.5
"""Requests come at so many times the rate that a worker with LPM serves, measured for each cell and seed."""
AT_ONCE = 1_000.0


def loaded(cell: EvaluationCell, on: Platform, seed: int) -> Workload:
    """Return the cell's workload at `LOAD` times the rate that its workers could serve, each by itself with LPM."""
    return cell.made(on, seed, LOAD * on.workers * _saturation(cell, attrs.evolve(on, workers=1), seed))


@lru_cache(maxsize=64)
def _saturation(cell: EvaluationCell, one: Platform, seed: int) -> float:
    """Return the programs a second, in units of the workload's rate, that one worker serves if all come at once."""
    jobs = cell.made(one, seed, AT_ONCE)
    arrivals = [job.request.arrival_ns for job in jobs.jobs if not job.after]
    span_s = (max(arrivals) - min(arrivals)) / 1e9
    served_s = len(jobs.jobs) / rate(run(jobs, "lpm", on=one))
    return AT_ONCE * span_s / served_s


@attrs.frozen
class CellOutcome:
    """What the paper reports of a run: requests finished a second, Jain's index (None if the clients are never all
    active), and the mean over the well-behaved clients of their P50 and P99 in seconds, of programs (of questions: of
    the time to the first token)."""

    throughput_rps: float
    jain: float | None
    p50_s: float
    p99_s: float


def outcome(name: str, system: System, on: Platform, seed: int, without: str = "") -> CellOutcome:
    """Return what came of a cell, with its cause or `without` one; rows that look at the same cell share the run where
    they run in one process."""
    return _outcome(name, system, on, seed, without)


@lru_cache(maxsize=1_024)
def _outcome(name: str, system: System, on: Platform, seed: int, without: str) -> CellOutcome:
    cell = CELLS[name]
    jobs = loaded(attrs.evolve(cell, misbehave="none") if without == MISBEHAVES else cell, on, seed)
    found = under(system, unshared(jobs) if without == NO_SHARING else jobs, on)
    measures = [found.clients[client] for client in well_behaved(jobs)]
    waits = [each.ttft_us if name.startswith("QA") else each.program_latency_us for each in measures]
    return CellOutcome(
        rate(found),
        found.jain_client,
        fmean(measured(each.p50, "a p50") for each in waits) / 1e6,
        fmean(measured(each.p99, "a p99") for each in waits) / 1e6,
    )


ONE = Platform(A10G)
DLPM_QUANTA = (1_024, 4_096, 16_384, 65_536)
STEPS = tuple(pairwise(DLPM_QUANTA))
CLIENTS = ((5, 10), (10, 5), (25, 2), (50, 1))
"""Clients, and trees of thoughts of each: 50 trees in all."""
CONTROLLED = 25
MIXED = ("tree-of-thoughts", "llm-judge", "long-context-qa")
MIX = {
    **{f"{part}.clients": 2 for part in MIXED},
    "tree-of-thoughts.trees": 12,
    "llm-judge.articles": 90,
    "long-context-qa.document_tokens": 8_000,
}
"""Two clients of each kind of program."""


def _service(found: Run) -> float:
    return measured(found.measures.client_service_rate, "a service rate")


@row(
    id="35",
    about="the quantum moves DLPM from VTC to LPM",
    panel="figure 1",
    platform=ONE,
    setting="24 clients of 8 trees of thoughts, all within 24 s, client 0's of longer questions: 940,000 tokens for "
    "132,000 of memory; LPM, VTC, DLPM; Jain's index of what clients were charged",
    claims=(
        *(more(f"throughput {b:,}", f"throughput, Q = {b:,} over {a:,}", "a larger Q gives more") for a, b in STEPS),
        *(above_zero(f"jain {b:,}", f"Jain, Q = {a:,} less {b:,}", "a larger Q is less fair") for a, b in STEPS),
        more("rise", "throughput, the largest Q over the smallest", "more", Control(NO_SHARING, "rise, not shared")),
        number("to LPM", "throughput of the largest Q over LPM's", "as LPM's", 1, neutral=None),
        number("to VTC", "Jain of the smallest Q over VTC's", "as VTC's", 1, neutral=None),
    ),
    note="the paper prints no lengths, rates or quanta of its workloads: in all rows they are ours. At the two "
    "smallest quanta Jain's index is 0.9998 and 0.9987, with little left to lose. dlpm-printed has 0.90 to 0.94 of "
    "DLPM's throughput at 4,096, and its index",
    seconds=25,
    axes=("quantum", "share of LPM's throughput; Jain's index"),
)
def front(on: Platform, seed: int) -> Figures:
    """Quanta between VTC and LPM."""
    jobs = workload("tree-of-thoughts", "longer-prefix", on=on, seed=seed, clients=24, trees=8, rate=8.0)
    lpm, vtc = run(jobs, "lpm", on=on), run(jobs, "vtc", on=on)
    sweep = {quantum: run(jobs, "dlpm", on=on, params={"quantum": quantum}) for quantum in DLPM_QUANTA}
    rates = {quantum: rate(found) for quantum, found in sweep.items()}
    even = {quantum: measured(found.jain_charged, "Jain's index") for quantum, found in sweep.items()}
    least, largest = DLPM_QUANTA[0], DLPM_QUANTA[-1]
    printed = run(jobs, "dlpm-printed", on=on, params={"quantum": DLPM_QUANTA[1]})
    alone = unshared(jobs)
    ends = [rate(run(alone, "dlpm", on=on, params={"quantum": quantum})) for quantum in (least, largest)]
    return {
        **{f"throughput {b:,}": rates[b] / rates[a] for a, b in STEPS},
        **{f"jain {b:,}": even[a] - even[b] for a, b in STEPS},
        "rise": rates[largest] / rates[least],
        "rise, not shared": ends[1] / ends[0],
        "to LPM": rates[largest] / rate(lpm),
        "to VTC": even[least] / measured(vtc.jain_charged, "Jain's index"),
        "as printed, throughput": rate(printed) / rates[DLPM_QUANTA[1]],
        "as printed, jain": measured(printed.jain_charged, "Jain's index") / even[DLPM_QUANTA[1]],
        "throughput": {float(quantum): value / rate(lpm) for quantum, value in rates.items()},
        "Jain's index": {float(quantum): value for quantum, value in even.items()},
    }


def _clients(count: int) -> tuple[Printed, ...]:
    without = Control(NO_SHARING, "vtc, not shared") if count == CONTROLLED else None
    return (
        number(f"dlpm {count}", f"DLPM's service rate over LPM's, {count} clients", "close to LPM's", 1, neutral=None),
        fewer(f"vtc {count}", f"VTC's service rate over DLPM's, {count} clients", "lower", without),
    )


@row(
    id="37",
    about="5 to 50 clients at a constant rate",
    panel="figure 11",
    platform=ONE,
    setting="50 trees of thoughts, 4 a second, 220,000 tokens of questions for 132,000 of memory; LPM, VTC, DLPM (Q "
    f"= {QUANTUM:,}); service rate",
    claims=tuple(claim for count, _ in CLIENTS for claim in _clients(count)),
    seconds=11,
    axes=("clients", "share of LPM's service rate"),
)
def clients(on: Platform, seed: int) -> Figures:
    """Return the same trees from more and more clients."""
    figures: dict[str, float | Mapping[float, float]] = {}
    curves: dict[str, dict[float, float]] = {"dlpm": {}, "vtc": {}}
    for count, trees in CLIENTS:
        jobs = workload("tree-of-thoughts", "none", on=on, seed=seed, clients=count, trees=trees, rate=4.0)
        lpm, dlpm, vtc = _rates(jobs, on)
        figures |= {f"dlpm {count}": dlpm / lpm, f"vtc {count}": vtc / dlpm}
        curves["dlpm"][count], curves["vtc"][count] = dlpm / lpm, vtc / lpm
        if count == CONTROLLED:
            _, dlpm, vtc = _rates(unshared(jobs), on)
            figures["vtc, not shared"] = vtc / dlpm
    return figures | curves


def _rates(jobs: Workload, on: Platform) -> tuple[float, ...]:
    return tuple(_service(_alone(policy, jobs, on)) for policy in ("lpm", "dlpm", "vtc"))


def _alone(policy: str, jobs: Workload, on: Platform) -> Run:
    """Return the run of one worker under a local policy."""
    return run(jobs, policy, on=on, params=DLPM if policy == "dlpm" else {})


MEANS: dict[str, Callable[[Run], float]] = {
    "response": lambda found: measured(found.measures.ttft_us.mean, "mean response"),
    "completion": lambda found: measured(found.measures.program_latency_us.mean, "mean completion"),
}
EVEN = ("lpm", "dlpm")


def _mixed_claims() -> Iterable[Printed]:
    for mean in MEANS:
        yield more(f"{mean}, lpm", f"LPM's mean {mean} over DLPM's", "DLPM's is best")
        control = Control(NO_SHARING, f"{mean} alone")
        yield more(f"{mean}, vtc", f"VTC's mean {mean} over DLPM's", "DLPM's is best", control)
    for other in EVEN:
        yield above_zero(f"even, {other}", f"Jain of VTC less {other.upper()}'s", "VTC's is most even")


@row(
    id="38",
    about="clients of different programs",
    panel="figure 12",
    platform=ONE,
    setting="two clients each of trees of thoughts, judges, and questions about documents of 8,000 tokens, 12 "
    f"requests a second in all, more than are served; LPM, VTC, DLPM (Q = {QUANTUM:,}); mean time to the first token "
    "(response) and of programs (completion); Jain's index of charged service",
    claims=tuple(_mixed_claims()),
    note="LPM's response is 0.97 to 1.28 times DLPM's by seed, which is not explained",
    seconds=8,
)
def mixed(on: Platform, seed: int) -> Figures:
    """Return clients of three kinds of programs on one worker."""
    jobs = workload("mixed", None, on=on, seed=seed, parts="+".join(MIXED), rate=12.0, **MIX)
    ran = {policy: _alone(policy, jobs, on) for policy in ("vtc", *EVEN)}
    vtc_alone, dlpm_alone = (_alone(policy, unshared(jobs), on) for policy in ("vtc", "dlpm"))
    even = {policy: measured(found.jain_charged, "Jain's index") for policy, found in ran.items()}
    return {
        **{f"{name}, {each}": of(ran[each]) / of(ran["dlpm"]) for name, of in MEANS.items() for each in ("lpm", "vtc")},
        **{f"{name} alone": of(vtc_alone) / of(dlpm_alone) for name, of in MEANS.items()},
        **{f"even, {other}": even["vtc"] - even[other] for other in EVEN},
    }


FOUR = Platform(A100, workers=4)
ABLATIONS = Platform(A10G, workers=4)
TREES = "trees S2"
EXCEPTION = "QA S2"
"""The cell in which, the paper says, Preble has the higher throughput."""
CELL_SETTING = (
    f"trees of thoughts, judges and questions about long documents, with a client that sends more (S1) or longer (S2); "
    f"D2LPM + DLPM with Q = Q_w = {QUANTUM:,}, VTC + round robin by client, LPM + round robin, Preble (E2 + its local "
    f"scheduler); requests come at {LOAD:g} times the rate that the workers serve with LPM, measured for each seed"
)
MOST: dict[System, float] = {"vtc": 2.87, "rr+lpm": 2.22}
"""The largest printed ratios of D2LPM's throughput to others'."""
NAMES: dict[System, str] = {"vtc": "VTC", "rr+lpm": "RR + LPM", "preble": "Preble"}
UNFAIR: tuple[System, ...] = ("rr+lpm", "preble")
PERCENTILES = ("P50", "P99")


# --- misbehaving clients ----------------------------------------------------------------------------------------------


def _matches(figure: str, about: str) -> Printed:
    return Printed(figure, about, "matches or exceeds", 1 - NEAR, inf, neutral=None)


def _throughput_claims() -> Iterable[Printed]:
    for other, most in MOST.items():
        for cell in CELLS:
            control = Control(NO_SHARING, f"{other}, not shared") if cell == TREES else None
            about = f"{cell}: D2LPM's throughput over {NAMES[other]}'s"
            yield Printed(f"{cell}, {other}", about, f"up to {most}", 1, most, control=control)
        yield number(f"most, {other}", f"the most over {NAMES[other]}'s, of all cells", f"{most}", most)
    for cell in CELLS:
        about = f"{cell}: D2LPM's throughput over Preble's"
        if cell == EXCEPTION:
            yield fewer(f"{cell}, preble", about, "Preble is ahead")
        else:
            yield _matches(f"{cell}, preble", about)


def _latency_claims() -> Iterable[Printed]:
    for other, name in NAMES.items():
        for which in PERCENTILES:
            yield more(f"{which}, {other}", f"{name}'s {which} over D2LPM's, mean of all cells", "higher")
    for which in PERCENTILES:
        control = Control(MISBEHAVES, f"{which}, preble, none misbehaves")
        yield more(f"{TREES} {which}, preble", f"{TREES}: Preble's {which} over D2LPM's", "no isolation", control)
    yield number("most latency", "Preble's P50 or P99 over D2LPM's, the most of all cells", "7.18", 7.18)


def _jain_claims() -> Iterable[Printed]:
    for other in UNFAIR:
        for cell in CELLS:
            yield above_zero(f"jain {cell}, {other}", f"{cell}: Jain, D2LPM's less {NAMES[other]}'s", "fairer")
    yield above_zero("jain, vtc", "Jain, VTC's less D2LPM's, mean of all cells", "slightly less fair than VTC")
    yield above_zero("jain, groups", "Jain, Preble's less RR + LPM's, mean of all cells", "slightly better")


@row(
    id="40",
    about="misbehaving clients: throughput, latency and Jain's index",
    panel="figure 7",
    platform=FOUR,
    setting=f"{CELL_SETTING}; requests finished a second; P50 and P99, mean of the well-behaved clients, of programs "
    "and of questions' times to the first token; Jain's index of service rates while all are active",
    claims=(*_throughput_claims(), *_latency_claims(), *_jain_claims()),
    note="on trees S2 half of Preble's delay (of its log) stays when no client misbehaves, and E2 before LPM has "
    "D2LPM's latency (0.95 to 1.03 at P50, 0.93 to 1.06 at P99) and 1.66 to 1.81 times its throughput: Preble loses "
    "there by locality in its local queue too. dlpm-printed behind d2lpm-printed has 0.79 to 0.89 of D2LPM's "
    "throughput",
    seconds=100,
    seeds=3,
)
def misbehaving(on: Platform, seed: int) -> Figures:
    """Return D2LPM's throughput, the others' latencies, and differences of Jain's index, by cell."""
    found: dict[str, float] = {}
    ratios: dict[str, list[float]] = {f"{which}, {other}": [] for other in NAMES for which in PERCENTILES}
    jains: dict[str, list[float]] = {}
    for cell in CELLS:
        ran = {system: outcome(cell, system, on, seed) for system in ("d2lpm", *NAMES)}
        ours = ran["d2lpm"]
        for other in NAMES:
            found[f"{cell}, {other}"] = ours.throughput_rps / ran[other].throughput_rps
            for figure, ratio in _latencies(ran[other], ours).items():
                ratios[f"{figure}, {other}"].append(ratio)
                found[f"{cell} {figure}, {other}"] = ratio
        for system, each in ran.items():
            jains.setdefault(system, []).append(_jain(each))
        found |= {f"jain {cell}, {other}": _jain(ours) - _jain(ran[other]) for other in UNFAIR}
    for other in MOST:
        alone, theirs = (outcome(TREES, system, on, seed, NO_SHARING) for system in ("d2lpm", other))
        found[f"{other}, not shared"] = alone.throughput_rps / theirs.throughput_rps
        found[f"most, {other}"] = max(found[f"{cell}, {other}"] for cell in CELLS)
    well, theirs = (outcome(TREES, system, on, seed, MISBEHAVES) for system in ("d2lpm", "preble"))
    ours, local, printed = (outcome(TREES, system, on, seed) for system in ("d2lpm", "e2+lpm", "printed"))
    return {
        **found,
        "throughput, e2+lpm": local.throughput_rps / ours.throughput_rps,
        "as printed, throughput": printed.throughput_rps / ours.throughput_rps,
        "as printed, jain": _jain(printed) - _jain(ours),
        **{f"as printed, {which}": ratio for which, ratio in _latencies(printed, ours).items()},
        **{figure: fmean(each) for figure, each in ratios.items()},
        **{f"{which}, preble, none misbehaves": ratio for which, ratio in _latencies(theirs, well).items()},
        **{f"{which}, e2+lpm": ratio for which, ratio in _latencies(local, ours).items()},
        "most latency": max(max(ratios[f"{which}, preble"]) for which in PERCENTILES),
        "jain, vtc": fmean(jains["vtc"]) - fmean(jains["d2lpm"]),
        "jain, groups": fmean(jains["preble"]) - fmean(jains["rr+lpm"]),
    }


def _latencies(theirs: CellOutcome, ours: CellOutcome) -> dict[str, float]:
    return {"P50": theirs.p50_s / ours.p50_s, "P99": theirs.p99_s / ours.p99_s}


def _jain(found: CellOutcome) -> float:
    return measured(found.jain, "Jain's index")


# --- 1 to n workers ---------------------------------------------------------------------------------------------------

COUNTS = (1, 2, 4)
MANY = COUNTS[-1]


def _grown_claims() -> Iterable[Printed]:
    for n in COUNTS[1:]:
        for other, most in MOST.items():
            about = f"D2LPM's throughput over {NAMES[other]}'s, {n} workers"
            yield Printed(f"{other} {n}", about, f"up to {most}", 1, most)
        yield _matches(f"preble {n}", f"D2LPM's throughput over Preble's, {n} workers")
        for other in UNFAIR:
            yield above_zero(f"jain {other} {n}", f"Jain, D2LPM's less {NAMES[other]}'s, {n} workers", "fairer")


@row(
    id="50",
    about="1 to 4 workers: throughput and Jain's index",
    panel="figure 7",
    platform=FOUR,
    setting="trees S2 of row 40 before 1, 2 and 4 workers; the rate and the number of trees grow with the workers",
    claims=(
        fewer(
            "scales",
            "RR + LPM: throughput a worker, 4 workers over 1",
            "does not scale",
            Control(NO_SHARING, "scales, not shared"),
        ),
        more("lead grows", "D2LPM's lead over RR + LPM, 4 workers over 1", "RR + LPM falls behind"),
        *_grown_claims(),
    ),
    note="before two workers LPM with round robin serves as much as D2LPM on two of three seeds, which is not "
    "explained",
    seconds=30,
    seeds=3,
    axes=("workers", "requests a second"),
)
def workers(on: Platform, seed: int) -> Figures:
    """Return each system with more and more workers."""
    platforms = {count: attrs.evolve(on, workers=count) for count in COUNTS}
    ran = {
        system: {n: outcome(TREES, system, one, seed) for n, one in platforms.items()} for system in ("d2lpm", *NAMES)
    }
    found = {system: {float(n): each.throughput_rps for n, each in one.items()} for system, one in ran.items()}
    alone = [outcome(TREES, "rr+lpm", platforms[n], seed, NO_SHARING).throughput_rps for n in (1, MANY)]
    ours, robin = found["d2lpm"], found["rr+lpm"]
    return {
        **found,
        **{f"{other} {n}": ours[n] / found[other][n] for other in NAMES for n in COUNTS},
        **{f"jain {other} {n}": _jain(ran["d2lpm"][n]) - _jain(ran[other][n]) for other in UNFAIR for n in COUNTS[1:]},
        "scales": robin[MANY] / MANY / robin[1],
        "scales, not shared": alone[1] / MANY / alone[0],
        "lead grows": (ours[MANY] / robin[MANY]) / (ours[1] / robin[1]),
    }


# --- D2LPM's quantum --------------------------------------------------------------------------------------------------

ROUTER_QUANTA = (2_000, 5_000, 10_000, 20_000, 40_000)


@row(
    id="36",
    about="the quantum of D2LPM",
    panel="figure 10",
    platform=ABLATIONS,
    setting="64 trees of thoughts with a client of longer questions (S2), all within 4 s, 545,000 tokens for 528,000 "
    f"of memory; Q = {QUANTUM:,}, Q_w of 2,000 to 40,000; Jain's index of service rates",
    claims=(
        more("rise", "throughput, Q_w = 40,000 over 2,000", "rises", Control(NO_SHARING, "rise, not shared")),
        above_zero("flattens", "rise from 2,000 to 5,000 less that from 20,000 to 40,000", "flattens"),
        more("surpasses", "throughput, Q_w = 40,000 over the best of the other systems", "surpasses all others"),
        number("jain 2,000", "Jain's index, Q_w = 2,000", "0.855", 0.855, neutral=None),
        number("jain 40,000", "Jain's index, Q_w = 40,000", "0.83", 0.83, neutral=None),
        number("jain falls", "Jain's index, Q_w = 2,000 less 40,000", "0.025", 0.025, neutral=0.0),
    ),
    note="a client is charged about 70,000 units in all, so the largest Q_w is half of a run: hence the late plateau "
    "and the large fall",
    seconds=8,
    axes=("Q_w", "share of the throughput at 40,000; Jain's index"),
)
def quantum(on: Platform, seed: int) -> Figures:
    """Throughput and Jain's index by the router's quantum."""
    jobs = workload("tree-of-thoughts", "longer-prefix", on=on, seed=seed, rate=16.0, trees=8)

    def under_quantum(of: Workload, size: int) -> Run:
        return run(of, "dlpm", "d2lpm", on=on, params=DLPM, routing={"quantum": size})

    found = [under_quantum(jobs, size) for size in ROUTER_QUANTA]
    rates = [rate(each) for each in found]
    even = [measured(each.jain_client, "Jain's index") for each in found]
    alone = [rate(under_quantum(unshared(jobs), size)) for size in (ROUTER_QUANTA[0], ROUTER_QUANTA[-1])]
    return {
        "rise": rates[-1] / rates[0],
        "rise, not shared": alone[1] / alone[0],
        "flattens": rates[1] / rates[0] - rates[-1] / rates[-2],
        "surpasses": rates[-1] / max(rate(under(other, jobs, on)) for other in NAMES),
        "jain 2,000": even[0],
        "jain 40,000": even[-1],
        "jain falls": even[0] - even[-1],
        "throughput": {float(size): each / rates[-1] for size, each in zip(ROUTER_QUANTA, rates, strict=True)},
        "Jain's index": {float(size): each for size, each in zip(ROUTER_QUANTA, even, strict=True)},
    }


# --- Preble -----------------------------------------------------------------------------------------------------------

RATIO_ONLY = {"rebalancing": "off", "scaling": "off", "decode_share_percent": 100}
"""The paper's Preble: it dispatches by the share of the prompt that is cached, and the load."""
OTHER_CLIENTS = ("1", "2")


@row(
    id="41",
    about="a longer prefix monopolises a worker",
    panel="figure 9",
    platform=ABLATIONS,
    setting="3 clients of 24 trees of thoughts with 3 branches, all within 12 s, client 0's with a common header of "
    f"16,384 tokens; D2LPM + DLPM (Q = Q_w = {QUANTUM:,}), VTC + round robin by client, LPM + round robin, Preble (E2 "
    "without rebalancing, autoscaling and balancing of decoding, + its scheduler); workers that compute (in windows "
    f"of {WINDOW_S} s) and shares of the service, in the middle third of the run",
    claims=(
        number(
            "capacity",
            "Preble: the share of workers that compute, the middle third",
            "a quarter of the capacity (300 to 600 s)",
            0.25,
            control=Control("client 0's prefix is longer", "capacity, as long"),
        ),
        above_zero(
            "starved", "clients 1 and 2's share of the output, D2LPM's less Preble's", "almost zero with Preble"
        ),
        *(
            more(f"time, {other}", f"{NAMES[other]}'s execution time over D2LPM's", "D2LPM's is the shortest")
            for other in NAMES
        ),
    ),
    note="with all of E2's corrections nothing collapses: 1.06 to 1.10 times D2LPM's time. LPM with round robin "
    "takes longer on each seed, but three seeds do not make it certain",
    seconds=15,
    seeds=3,
)
def monopoly(on: Platform, seed: int) -> Figures:
    """Preble while client 0 has a longer header, and while it has not."""
    found: dict[str, float] = {}
    for end, header in (("", 16_384), (", as long", 256)):
        jobs = workload(
            "tree-of-thoughts",
            "longer-prefix",
            on=on,
            seed=seed,
            branches=3,
            clients=3,
            trees=24,
            rate=6.0,
            longer_question_tokens=4_096,
            longer_header_tokens=header,
        )
        preble = followed("preble", jobs, on, RATIO_ONLY)
        found[f"capacity{end}"] = preble.capacity(on.workers)
        if not end:
            ours, whole = followed("d2lpm", jobs, on, DLPM), followed("preble", jobs, on, {})
            found["capacity, d2lpm"] = ours.capacity(on.workers)
            found["share, preble"] = preble.share(OTHER_CLIENTS)
            found["starved"] = ours.share(OTHER_CLIENTS) - preble.share(OTHER_CLIENTS)
            found["time, all corrections"] = whole.end_s / ours.end_s
            found["time, preble"] = preble.end_s / ours.end_s
            found |= {f"time, {each}": followed(each, jobs, on, {}).end_s / ours.end_s for each in MOST}
    return found


# --- a central scheduler ----------------------------------------------------------------------------------------------

CENTRAL = (1, 4, 8)
WHOLE_QUEUE = 1_000_000
"""The paper's scheduler looks at all that waits."""
LOOKS_US = (20, 200, 400, 4_000)
"""Time to match a waiting request with a worker's tree: from ours, measured, to what Preble's scheduler takes."""
JUDGED_US = 400
OVERHEAD = 0.4


@row(
    id="51",
    about="what a central scheduler costs",
    panel="figure 4",
    platform=ABLATIONS,
    setting="trees of thoughts with a client of longer questions (S2), 8 a worker and 4 a second, before workers "
    f"with FCFS behind centralised DLPM (Q = {QUANTUM:,}); before each step a worker waits 100 us for the way and 20 "
    "to 4,000 us for each waiting request that is matched with its tree, one worker after the other; overhead: how "
    "much longer the requests take than with answers that take no time",
    claims=(
        Printed(
            "look",
            "the time to match a request, in us, with which 8 workers have an overhead of 40 %",
            "40 % at D = 8, of a scheduler in Python: between ours (20) and Preble's (4,100)",
            20,
            4_100,
            neutral=None,
        ),
        *(
            above_zero(
                f"grows to {many}", f"overhead with {JUDGED_US} us, {many} workers less {few}", "grows with workers"
            )
            for few, many in pairwise(CENTRAL)
        ),
    ),
    note="the paper's time to match a request is not printed: judged is whether a plausible one gives its overhead. "
    "From 1 to 4 workers the overhead grows on each of three seeds, by 0.05 to 0.18, which is not certain",
    seconds=35,
    seeds=3,
    axes=("time to match a request in us", "overhead"),
)
def central(on: Platform, seed: int) -> Figures:
    """Return the overhead of centralised DLPM, whose answers take more and more time, by the number of workers."""
    overhead: dict[int, dict[float, float]] = {}
    for count in CENTRAL:
        few = attrs.evolve(on, workers=count)
        lengths = {"question_tokens": 12_288, "longer_question_tokens": 32_768}
        params = {"trees": count, "rate": 4.0 * count, **lengths}
        jobs = workload("tree-of-thoughts", "longer-prefix", on=few, seed=seed, **params)
        rates: dict[int, float] = {}
        for look_us in (0, *(LOOKS_US if count == CENTRAL[-1] else (JUDGED_US,))):
            costs = {"round_trip_us": 100 if look_us else 0, "look_ns": look_us * 1_000, "lookahead": WHOLE_QUEUE}
            rates[look_us] = rate(run(jobs, "fcfs", "dlpm-central", on=few, routing={**DLPM, **costs}))
        free = rates.pop(0)
        overhead[count] = {look_us: free / each - 1 for look_us, each in rates.items()}
    most = overhead[CENTRAL[-1]]
    reached = next((pair for pair in pairwise(LOOKS_US) if most[pair[1]] >= OVERHEAD), None)
    look = inf if reached is None else float(np.interp(OVERHEAD, [most[each] for each in reached], reached))
    return {
        "look": look,
        **{f"grows to {many}": overhead[many][JUDGED_US] - overhead[few][JUDGED_US] for few, many in pairwise(CENTRAL)},
        **{f"{count} workers": each for count, each in overhead.items()},
    }


TWO = Platform(A10G, workers=2)
COMPARED: tuple[System, ...] = ("rr+lpm", "vtc", "d2lpm")
SECONDS = 200
"""How long chats begin to arrive."""
STEADY, FLOOD = 0.15, 4.0
"""Chats a second of each client, and beside them of one that floods."""
RECOVERS = SECONDS // 2
"""When client 2 stops flooding, in seconds; client 3 goes on."""
RECOVERED = RECOVERS + 40
"""From when on its requests count as those of a client that recovered."""
INNOCENT = ("0", "1")
FLOODING = ("2", "3")
BACK = "2, recovered"


def _chats(seed: int, client: int, rate: float, seconds: int, place: int) -> Iterable[Job]:
    made = generate("multi-turn", seed=seed, clients=1, sessions=round(rate * seconds), rate=rate, turns=3, think_s=5.0)
    for job in made.jobs:
        # Ids and programs of several loads beside each other.
        shift = place * 1_000_000
        request = replace(job.request, id=job.request.id + shift, client=client)
        yield replace(
            job,
            request=request,
            after=tuple(parent + shift for parent in job.after),
            program=None if job.program is None else job.program + shift,
        )


def chats(seed: int, *, flood: bool) -> Workload:
    """Return the chats of clients 0 to 3; with a flood, 2 floods in the first half, and 3 all the time."""
    loads = [(client, STEADY, SECONDS) for client in range(4)]
    if flood:
        loads += [(2, FLOOD, RECOVERS), (3, FLOOD, SECONDS)]
    parts = [_chats(seed * 10 + place, *load, place) for place, load in enumerate(loads)]
    jobs = sorted((job for part in parts for job in part), key=lambda job: (job.request.arrival_ns, job.request.id))
    places = {job.request.id: place for place, job in enumerate(jobs)}
    numbered = [
        replace(
            job,
            request=replace(job.request, id=places[job.request.id]),
            after=tuple(places[parent] for parent in job.after),
        )
        for job in jobs
    ]
    return Workload("chats with floods", numbered, tuple(Client(i, f"client-{i}") for i in range(4)))


@lru_cache(maxsize=64)
def seen(system: System, on: Platform, seed: int, flood: bool = True) -> Timelines:
    """Return what a run of the chats shows."""
    return followed(system, chats(seed, flood=flood), on, DLPM if system == "d2lpm" else {})


NO_FLOOD = "clients 2 and 3 flood"


def _flood_claims() -> Iterable[Printed]:
    for name in (*INNOCENT, BACK):
        control = Control(NO_FLOOD, f"{name}, no flood") if name in INNOCENT else None
        yield more(name, f"client {name}: LPM's p99 of the time to the first token over D2LPM's", "low", control)
    for name in FLOODING:
        yield more(f"vtc {name}", f"VTC: client {name}'s p99 over the innocent's worst", "delayed")
    yield number("vtc longest", "VTC: the longest that 2 or 3 wait, in s", "up to 80 s", 80, neutral=None)
    taken = f"LPM: service of 2 and 3 over that of 0 and 1, the first {RECOVERS} s"
    yield more("lpm", taken, "floods take the worker", Control(NO_FLOOD, "lpm, no flood"))
    kept = f"clients 0 and 1: service under D2LPM over LPM's, the first {RECOVERS} s"
    yield more("innocent", kept, "D2LPM keeps theirs", Control(NO_FLOOD, "innocent, no flood"))


@row(
    id="39",
    about="two clients flood, one recovers",
    panel="figure 8",
    platform=TWO,
    setting=f"chats of three turns of 4 clients for {SECONDS} s, with the arena's mean lengths: each begins {STEADY} "
    f"a second, client 3 {FLOOD:g} more all the time, client 2 for the first {RECOVERS} s; LPM + round robin, VTC + "
    f"round robin by client, D2LPM + DLPM (Q = Q_w = {QUANTUM:,}); p99 of the time to the first token, of client 2 "
    f"also from {RECOVERED} s on; service (prompt and twice the output tokens)",
    claims=tuple(_flood_claims()),
    note="innocent clients send so little that a p99 is their longest wait, so ratios differ much between seeds; how "
    "much clients flood is ours, and with it VTC's longest wait",
    seconds=8,
    axes=("time of arrival in s", "mean time to the first token in s"),
)
def floods(on: Platform, seed: int) -> Figures:
    """Return how long clients wait, over time and at p99, and what they are served."""
    found = {system: seen(system, on, seed) for system in COMPARED}
    quiet = {system: seen(system, on, seed, flood=False) for system in ("rr+lpm", "d2lpm")}
    vtc = found["vtc"]
    figures: dict[str, float | Mapping[float, float]] = {
        **{
            f"{system}, client {name}": each.response(name, SECONDS)
            for system, each in found.items()
            for name in "0123"
        },
        **{f"vtc {name}": vtc.p99_s(name) / max(vtc.p99_s(one) for one in INNOCENT) for name in FLOODING},
        "vtc longest": vtc.most_s(FLOODING),
        BACK: found["rr+lpm"].p99_s("2", RECOVERED) / found["d2lpm"].p99_s("2", RECOVERED),
    }
    for ran, end in ((found, ""), (quiet, ", no flood")):
        lpm, d2lpm = ran["rr+lpm"], ran["d2lpm"]
        figures |= {f"{name}{end}": lpm.p99_s(name) / d2lpm.p99_s(name) for name in INNOCENT}
        # While both floods last.
        spared = lpm.served(INNOCENT, 0, RECOVERS)
        figures[f"lpm{end}"] = lpm.served(FLOODING, 0, RECOVERS) / spared
        figures[f"innocent{end}"] = d2lpm.served(INNOCENT, 0, RECOVERS) / spared
    return figures


PANELS = (
    Panel("figure 1", "the quantum between VTC and LPM", rows=("35",)),
    Panel("figures 2, 3, 5 and 6", "examples of orders, rules and programs", impossible="nothing is measured"),
    Panel("figure 4", "what a central scheduler costs, by workers and by the length of its queue", rows=("51",)),
    Panel("figure 7", "misbehaving clients: throughput, latency and Jain's index", rows=("40", "50")),
    Panel("figure 8", "the arena trace over time: two clients flood, one recovers", rows=("39",)),
    Panel("figure 9", "a longer prefix: responses and service over time", rows=("41",)),
    Panel("figure 10", "the quantum of D2LPM", rows=("36",)),
    Panel("figure 11", "5 to 50 clients at a constant rate", rows=("37",)),
    Panel("figure 12", "clients of different programs", rows=("38",)),
    Panel("tables 2 and 3", "lengths, and what S1 and S2 are", impossible="inputs of the rows"),
)
