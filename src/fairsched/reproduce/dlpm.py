"""DLPM and D2LPM on one worker and before several: the evaluation of "Locality-aware Fair Scheduling in LLM Serving".

Source: Cao et al., 2025, as far as it was available to us: what it runs and finds, without the lengths and rates of its
workloads, and without its figures' numbers where a row says so.  The arena trace is not embedded here, so chats are
generated, with its mean lengths.  Quanta are the same in all rows that do not sweep them, Q = Q_w = 20,000: where the
paper's sweep of Q_w, 2,000 to 40,000, has flattened.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import generate
from fairsched.model.events import Arrived, Decoded, Event, Prefilled
from fairsched.model.machine import PRESETS
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client, Job, Prompt, Workload
from fairsched.reproduce.row import Control, Figures, Panel, Platform, Printed, above_zero, fewer, more, number, rows_of
from fairsched.reproduce.runs import A10G, A100, measured, rate, run, well_behaved, workload

row = rows_of("dlpm")

QUANTUM = 20_000
DLPM = {"quantum": QUANTUM}
"""Parameters of DLPM at a worker, and of D2LPM's router."""
System = Literal["d2lpm", "vtc", "rr+lpm", "preble"]
SYSTEMS: dict[System, tuple[str, str]] = {
    "d2lpm": ("dlpm", "d2lpm"),
    "vtc": ("vtc", "per-client-round-robin"),
    "rr+lpm": ("lpm", "round-robin"),
    "preble": ("preble", "e2"),
}
"""The paper's compositions: a local policy and a router each."""
NO_SHARING = "prompts share prefixes"


def under(system: System, jobs: Workload, on: Platform) -> Run:
    """Return the run of a workload under one of the paper's compositions."""
    policy, router = SYSTEMS[system]
    ours = system == "d2lpm"
    return run(jobs, policy, router, on=on, params=DLPM if ours else {}, routing=DLPM if ours else {})


def unshared(jobs: Workload) -> Workload:
    """Return the same requests with prompts of the same lengths that share nothing."""
    alone = (replace(job, request=replace(job.request, prompt=Prompt(job.request.prompt.tokens))) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(alone))


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
    "trees S1": EvaluationCell("tree-of-thoughts", "more-requests", "trees", 2, (("question_tokens", 20_480),)),
    "trees S2": EvaluationCell(
        "tree-of-thoughts",
        "longer-prefix",
        "trees",
        4,
        (("question_tokens", 8_192), ("longer_question_tokens", 32_768)),
    ),
    "judge S1": EvaluationCell("llm-judge", "more-requests", "articles", 20),
    "judge S2": EvaluationCell("llm-judge", "longer-prefix", "articles", 20),
    "QA S1": EvaluationCell("long-context-qa", "more-requests", "documents", 3, (("questions", 9),)),
    "QA S2": EvaluationCell("long-context-qa", "longer-prefix", "documents", 3, (("questions", 9),)),
}
"""S1: client 0 sends more; S2: it has longer prompts."""
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
    active), and the well-behaved clients' worst P50 and P99 in seconds, of programs (of questions: of the time to the
    first token)."""

    throughput_rps: float
    jain: float | None
    p50_s: float
    p99_s: float


def outcome(name: str, system: System, on: Platform, seed: int, *, sharing: bool = True) -> CellOutcome:
    """Return what came of a cell; rows that look at the same cell share the run where they run in one process."""
    return _outcome(name, system, on, seed, sharing)


@lru_cache(maxsize=1_024)
def _outcome(name: str, system: System, on: Platform, seed: int, sharing: bool) -> CellOutcome:
    jobs = loaded(CELLS[name], on, seed)
    found = under(system, jobs if sharing else unshared(jobs), on)
    measures = [found.clients[client] for client in well_behaved(jobs)]
    waits = [each.ttft_us if name.startswith("QA") else each.program_latency_us for each in measures]
    return CellOutcome(
        rate(found),
        found.jain_client,
        max(measured(each.p50, "a p50") for each in waits) / 1e6,
        max(measured(each.p99, "a p99") for each in waits) / 1e6,
    )


def cells_of(figure: Any) -> dict[str, float]:
    """Return a figure of every cell, and the greatest of them as "most"."""
    found = {name: float(figure(name)) for name in CELLS}
    return {**found, "most": max(found.values())}


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
    setting="trees of thoughts of 24 clients, of which client 0 asks longer questions; quanta of 1,024 to 65,536, LPM "
    "and VTC; throughput, and Jain's index of what clients were charged; all trees come within 6 s",
    claims=(
        *(more(f"throughput {b:,}", f"throughput, Q = {b:,} over {a:,}", "a larger Q gives more") for a, b in STEPS),
        *(above_zero(f"jain {b:,}", f"Jain, Q = {a:,} less {b:,}", "a larger Q is less fair") for a, b in STEPS),
        more("rise", "throughput, the largest Q over the smallest", "more", Control(NO_SHARING, "rise, not shared")),
        number("to LPM", "throughput of the largest Q over LPM's", "as LPM's", 1, neutral=None),
        number("to VTC", "Jain of the smallest Q over VTC's", "as VTC's", 1, neutral=None),
    ),
    note="24 clients of 2 trees: 235,000 tokens of questions for 132,000 of memory; lengths are ours, as the paper's "
    "are not printed, and so is the platform, that of its ablations; Jain's index is over the short time in which all "
    "24 clients are active, and differs more between seeds than between quanta",
    seconds=8,
    axes=("quantum", "share of LPM's throughput; Jain's index"),
)
def front(on: Platform, seed: int) -> Figures:
    """Quanta between VTC and LPM."""
    jobs = workload("tree-of-thoughts", "longer-prefix", on=on, seed=seed, clients=24, trees=2, rate=8.0)
    lpm, vtc = run(jobs, "lpm", on=on), run(jobs, "vtc", on=on)
    sweep = {quantum: run(jobs, "dlpm", on=on, params={"quantum": quantum}) for quantum in DLPM_QUANTA}
    rates = {quantum: rate(found) for quantum, found in sweep.items()}
    even = {quantum: measured(found.jain_charged, "Jain's index") for quantum, found in sweep.items()}
    least, largest = DLPM_QUANTA[0], DLPM_QUANTA[-1]
    alone = unshared(jobs)
    ends = [rate(run(alone, "dlpm", on=on, params={"quantum": quantum})) for quantum in (least, largest)]
    return {
        **{f"throughput {b:,}": rates[b] / rates[a] for a, b in STEPS},
        **{f"jain {b:,}": even[a] - even[b] for a, b in STEPS},
        "rise": rates[largest] / rates[least],
        "rise, not shared": ends[1] / ends[0],
        "to LPM": rates[largest] / rate(lpm),
        "to VTC": even[least] / measured(vtc.jain_charged, "Jain's index"),
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
    panel="evaluation, number of clients",
    platform=ONE,
    setting=f"50 trees of thoughts, 4 a second, from 5, 10, 25 and 50 clients; LPM, VTC, and DLPM with Q = "
    f"{QUANTUM:,}; service rate",
    claims=tuple(claim for count, _ in CLIENTS for claim in _clients(count)),
    note="220,000 tokens of questions for 132,000 of memory; lengths are ours",
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
    return tuple(
        _service(run(jobs, policy, on=on, params=DLPM if policy == "dlpm" else {})) for policy in ("lpm", "dlpm", "vtc")
    )


@row(
    id="38",
    about="clients of different programs",
    panel="figure 12",
    platform=ONE,
    setting="two clients each with trees of thoughts, articles to judge, and questions about documents of 8,000 "
    f"tokens, 12 requests a second in all, more than are served; LPM, VTC, and DLPM with Q = {QUANTUM:,}; means of "
    "response (time to the first token) and completion (of programs), Jain's index of charged service",
    claims=(
        more("response, lpm", "LPM's mean response over DLPM's", "DLPM's is best"),
        more(
            "response, vtc", "VTC's mean response over DLPM's", "DLPM's is best", Control(NO_SHARING, "response alone")
        ),
        more("completion, lpm", "LPM's mean completion over DLPM's", "DLPM's is best"),
        more(
            "completion, vtc",
            "VTC's mean completion over DLPM's",
            "DLPM's is best",
            Control(NO_SHARING, "completion alone"),
        ),
        above_zero("even, lpm", "Jain of VTC less LPM's", "VTC's is most even"),
        above_zero("even, dlpm", "Jain of VTC less DLPM's", "VTC's is most even"),
    ),
    note="how many clients and which parameters is ours",
    seconds=8,
)
def mixed(on: Platform, seed: int) -> Figures:
    """Return clients of three kinds of programs on one worker."""
    jobs = workload("mixed", None, on=on, seed=seed, parts="+".join(MIXED), rate=12.0, **MIX)
    lpm, vtc, dlpm = (
        run(jobs, policy, on=on, params=DLPM if policy == "dlpm" else {}) for policy in ("lpm", "vtc", "dlpm")
    )
    alone = unshared(jobs)
    vtc_alone, dlpm_alone = run(alone, "vtc", on=on), run(alone, "dlpm", on=on, params=DLPM)
    return {
        "response, lpm": _response(lpm) / _response(dlpm),
        "response, vtc": _response(vtc) / _response(dlpm),
        "response alone": _response(vtc_alone) / _response(dlpm_alone),
        "completion, lpm": _completion(lpm) / _completion(dlpm),
        "completion, vtc": _completion(vtc) / _completion(dlpm),
        "completion alone": _completion(vtc_alone) / _completion(dlpm_alone),
        "even, lpm": _even(vtc) - _even(lpm),
        "even, dlpm": _even(vtc) - _even(dlpm),
    }


def _response(found: Run) -> float:
    return measured(found.measures.ttft_us.mean, "mean response")


def _completion(found: Run) -> float:
    return measured(found.measures.program_latency_us.mean, "mean completion")


def _even(found: Run) -> float:
    return measured(found.jain_charged, "Jain's index")


FOUR = Platform(A100, workers=4)
ABLATIONS = Platform(A10G, workers=4)
TREES = "trees S2"
EXCEPTION = "QA S2"
"""The cell that the paper itself names as the one that Preble may win."""
OTHERS: tuple[System, ...] = ("vtc", "rr+lpm", "preble")
CELL_SETTING = (
    f"trees of thoughts, judges and questions about long documents, with a client that sends more (S1) or longer (S2); "
    f"D2LPM + DLPM with Q = Q_w = {QUANTUM:,}, VTC + round robin by client, LPM + round robin, Preble (E2 + its local "
    f"scheduler); requests come at {LOAD:g} times the rate that the workers serve with LPM, measured for each seed"
)
SIZES = (
    "lengths and numbers of programs are ours; they fill each worker's memory but not more than once over, so that a "
    "run takes seconds"
)


# --- misbehaving clients ----------------------------------------------------------------------------------------------


def _throughput_claims(other: str, most: float, control: str) -> tuple[Printed, ...]:
    return (
        *(
            Printed(
                cell,
                f"{cell}: D2LPM's throughput over {other}",
                f"up to {most}",
                1,
                most,
                control=Control(NO_SHARING, control) if cell == TREES else None,
            )
            for cell in CELLS
        ),
        number("most", f"the most over {other}, of all cells", f"{most}", most),
    )


def _over(system: System, on: Platform, seed: int) -> Figures:
    """Return D2LPM's throughput over another's, by cell, and for trees of prompts that share nothing."""

    def figure(name: str, sharing: bool = True) -> float:
        ours, theirs = (outcome(name, each, on, seed, sharing=sharing) for each in ("d2lpm", system))
        return ours.throughput_rps / theirs.throughput_rps

    return {**cells_of(figure), "not shared": figure(TREES, sharing=False)}


@row(
    id="40",
    about="misbehaving clients: throughput against VTC",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{CELL_SETTING}; requests finished a second",
    claims=_throughput_claims("VTC's", 2.87, "not shared"),
    note=f"{SIZES}; the longer the prompts, the more VTC computes again, and our questions and trees have long ones",
    seconds=30,
)
def against_vtc(on: Platform, seed: int) -> Figures:
    """Return D2LPM's throughput over that of VTC with round robin by client."""
    return _over("vtc", on, seed)


@row(
    id="40b",
    about="misbehaving clients: throughput against LPM and round robin",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{CELL_SETTING}; requests finished a second",
    claims=_throughput_claims("RR + LPM's", 2.22, "not shared"),
    note=SIZES,
    seconds=30,
)
def against_round_robin(on: Platform, seed: int) -> Figures:
    """Return D2LPM's throughput over that of LPM with round robin."""
    return _over("rr+lpm", on, seed)


PERCENTILES = ("P50", "P99")
PREBLE_MOST = 7.18


def _latency_claims() -> tuple[Printed, ...]:
    return (
        *(
            Printed(
                f"{cell} {which}",
                f"{cell}: Preble's {which} over D2LPM's",
                "the paper's exception" if cell == EXCEPTION else f"up to {PREBLE_MOST}",
                0 if cell == EXCEPTION else 1,
                PREBLE_MOST,
                control=Control(NO_SHARING, f"not shared {which}") if cell == TREES else None,
            )
            for which in PERCENTILES
            for cell in CELLS
        ),
        number("most", "the most of all cells, P50 and P99", f"{PREBLE_MOST}", PREBLE_MOST),
    )


@row(
    id="40c",
    about="misbehaving clients: the others' latency against Preble",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{CELL_SETTING}; P50 and P99 of the worst well-behaved client, of programs; of questions about documents "
    "of the time to the first token",
    claims=_latency_claims(),
    note=f"{SIZES}; at this load well-behaved clients ask for more than is served, too, and a program's time is mostly "
    "decoding in a batch that all clients fill, which no order of admissions changes. Where prompts share nothing "
    "D2LPM is the faster one, since turns between clients are then all that differs",
    seconds=30,
)
def against_preble(on: Platform, seed: int) -> Figures:
    """Return Preble's latency of well-behaved clients over D2LPM's."""

    def figure(name: str, which: str, sharing: bool = True) -> float:
        ours, theirs = (outcome(name, each, on, seed, sharing=sharing) for each in ("d2lpm", "preble"))
        return theirs.p50_s / ours.p50_s if which == "P50" else theirs.p99_s / ours.p99_s

    found = {f"{cell} {which}": figure(cell, which) for which in PERCENTILES for cell in CELLS}
    alone = {f"not shared {which}": figure(TREES, which, sharing=False) for which in PERCENTILES}
    return {**found, **alone, "most": max(found.values())}


@row(
    id="40d",
    about="misbehaving clients: Jain's index of service rates",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{CELL_SETTING}; Jain's index of clients' service rates over the interval in which all are active, "
    "D2LPM's less that of LPM with round robin and of Preble",
    claims=tuple(
        above_zero(f"{cell}, {other}", f"{cell}: D2LPM's less {other}'s", "fairer")
        for cell in CELLS
        for other in ("rr+lpm", "preble")
    ),
    note=f"{SIZES}; the paper's index is not known to us as a number, so only its sign is judged",
    seconds=30,
)
def evenness(on: Platform, seed: int) -> Figures:
    """Return D2LPM's index less those of systems that are not fair; VTC's is a figure beside them."""
    found: dict[str, float] = {}
    for cell in CELLS:
        jain = {system: _jain(outcome(cell, system, on, seed)) for system in SYSTEMS}
        found |= {f"{cell}, {other}": jain["d2lpm"] - jain[other] for other in OTHERS}
    return found


def _jain(found: CellOutcome) -> float:
    return measured(found.jain, "Jain's index")


# --- 1 to n workers ---------------------------------------------------------------------------------------------------

COUNTS = (1, 2, 4)
MANY = COUNTS[-1]


def _grown(on: Platform, seed: int) -> dict[System, dict[float, CellOutcome]]:
    platforms = [attrs.evolve(on, workers=count) for count in COUNTS]
    return {each: {one.workers: outcome(TREES, each, one, seed) for one in platforms} for each in SYSTEMS}


@row(
    id="50",
    about="1 to 4 workers: throughput",
    panel="figure 7",
    platform=FOUR,
    setting="trees of thoughts with a client of longer questions (S2) before 1, 2 and 4 workers; the rate and the "
    "number of trees grow with the workers; systems and load as in row 40",
    claims=(
        Printed(
            "collapse",
            "RR + LPM: throughput a worker, 4 workers over 1",
            "collapses as workers grow",
            0,
            0.5,
            control=Control(NO_SHARING, "collapse, not shared"),
        ),
        *(
            Printed(f"{other} {count}", f"D2LPM's throughput over {other}'s, {count} workers", f"up to {most}", 1, most)
            for other, most in (("vtc", 2.87), ("rr+lpm", 2.22))
            for count in COUNTS[1:]
        ),
        more("lead grows", "D2LPM's lead over RR + LPM, 4 workers over 1", "RR + LPM falls behind"),
    ),
    note=f"{SIZES}; with collapse we mean that a worker of four serves less than half of what one alone serves",
    seconds=8,
    axes=("workers", "requests a second"),
)
def workers(on: Platform, seed: int) -> Figures:
    """Return each system with more and more workers."""
    found: dict[str, dict[float, float]] = {
        system: {count: each.throughput_rps for count, each in one.items()} for system, one in _grown(on, seed).items()
    }
    alone = [
        outcome(TREES, "rr+lpm", attrs.evolve(on, workers=count), seed, sharing=False).throughput_rps
        for count in (1, MANY)
    ]
    ours, robin = found["d2lpm"], found["rr+lpm"]
    return {
        **found,
        **{f"{other} {count}": ours[count] / found[other][count] for other in ("vtc", "rr+lpm") for count in COUNTS},
        "collapse": robin[MANY] / MANY / robin[1],
        "collapse, not shared": alone[1] / MANY / alone[0],
        "lead grows": (ours[MANY] / robin[MANY]) / (ours[1] / robin[1]),
    }


@row(
    id="50b",
    about="2 and 4 workers: Jain's index",
    panel="figure 7",
    platform=FOUR,
    setting="as row 50; Jain's index of clients' service rates over the interval in which all are active",
    claims=tuple(
        above_zero(f"{other} {count}", f"D2LPM's less {other}'s, {count} workers", "fairer")
        for other in ("rr+lpm", "preble")
        for count in COUNTS[1:]
    ),
    note="only the sign is judged, as in row 40d; on one worker a run is so short that clients need not all be active",
    seconds=8,
    axes=("workers", "Jain's index"),
)
def workers_evenness(on: Platform, seed: int) -> Figures:
    """Return each system's index with more and more workers."""
    found: dict[str, dict[float, float]] = {
        system: {count: _jain(each) for count, each in one.items() if count > 1}
        for system, one in _grown(on, seed).items()
    }
    ours = found["d2lpm"]
    return {
        **found,
        **{f"{other} {count}": ours[count] - found[other][count] for other in OTHERS for count in COUNTS[1:]},
    }


# --- D2LPM's quantum --------------------------------------------------------------------------------------------------

ROUTER_QUANTA = (2_000, 5_000, 10_000, 20_000, 40_000)


@row(
    id="36",
    about="the quantum of D2LPM",
    panel="evaluation, Q_w",
    platform=ABLATIONS,
    setting=f"64 trees of thoughts with a client of longer questions (S2), all within 4 s; Q_w of 2,000 to 40,000, Q = "
    f"{QUANTUM:,}; throughput and Jain's index of clients' service rates",
    claims=(
        more("rise", "throughput, Q_w = 40,000 over 2,000", "rises", Control(NO_SHARING, "rise, not shared")),
        above_zero("flattens", "rise from 2,000 to 5,000 less that from 20,000 to 40,000", "flattens"),
        number("jain 2,000", "Jain's index, Q_w = 2,000", "0.855", 0.855, neutral=None),
        number("jain 40,000", "Jain's index, Q_w = 40,000", "0.83", 0.83, neutral=None),
        number("jain falls", "Jain's index, Q_w = 2,000 less 40,000", "0.025", 0.025, neutral=0.0),
    ),
    note="64 trees of 545,000 tokens in all for 528,000 of memory; the paper's lengths are not known to us. A "
    "client is charged about 70,000 units in all, so the largest Q_w is half of a run: hence the "
    "late plateau and the large fall",
    seconds=8,
    axes=("Q_w", "share of the throughput at 40,000; Jain's index"),
)
def quantum(on: Platform, seed: int) -> Figures:
    """Throughput and Jain's index by the router's quantum."""
    jobs = workload("tree-of-thoughts", "longer-prefix", on=on, seed=seed, rate=16.0, trees=8)
    found = {size: run(jobs, "dlpm", "d2lpm", on=on, params=DLPM, routing={"quantum": size}) for size in ROUTER_QUANTA}
    rates = [rate(each) for each in found.values()]
    even = [measured(each.jain_client, "Jain's index") for each in found.values()]
    alone = [
        rate(run(unshared(jobs), "dlpm", "d2lpm", on=on, params=DLPM, routing={"quantum": size}))
        for size in (ROUTER_QUANTA[0], ROUTER_QUANTA[-1])
    ]
    return {
        "rise": rates[-1] / rates[0],
        "rise, not shared": alone[1] / alone[0],
        "flattens": rates[1] / rates[0] - rates[-1] / rates[-2],
        "jain 2,000": even[0],
        "jain 40,000": even[-1],
        "jain falls": even[0] - even[-1],
        "throughput": {float(size): each / rates[-1] for size, each in zip(ROUTER_QUANTA, rates, strict=True)},
        "Jain's index": {float(size): each for size, each in zip(ROUTER_QUANTA, even, strict=True)},
    }


# --- Preble -----------------------------------------------------------------------------------------------------------

RATIO_ONLY = {"rebalancing": "off", "scaling": "off", "decode_share_percent": 100}
"""E2 that decides by the share of the prompt that is cached and the load alone."""
QUARTER = "falls to about a quarter"


@row(
    id="41",
    about="a longer prefix monopolises a worker",
    panel="motivation, Preble",
    platform=ABLATIONS,
    setting="4 clients of 6 trees of thoughts with 3 branches, all within 6 s, client 0 with longer questions; D2LPM + "
    f"DLPM with Q = Q_w = {QUANTUM:,}, and Preble (E2 + its local scheduler); throughput, mean time of a program",
    claims=(
        number(
            "throughput",
            "Preble's throughput over D2LPM's",
            QUARTER,
            0.25,
            control=Control("client 0's questions are longer", "throughput, as long"),
        ),
        more(
            "end to end",
            "Preble's mean time of a program over D2LPM's",
            "longer",
            Control("client 0's questions are longer", "end to end, as long"),
        ),
        number("ratio only", "the same throughput, of E2 without its three corrections", QUARTER, 0.25),
        more("ratio only, end to end", "the same time, of E2 without its three corrections", "longer"),
    ),
    note="no collapse: each client's trees share a header of its own, so E2 has four prefixes to place and not one. "
    "Tried: all corrections of E2 on; rebalancing, autoscaling and prefill-decode balancing all off; client 0 without "
    "longer questions. The paper's text on its Preble baseline, a threshold of the matching ratio, was not available",
    seconds=10,
)
def monopoly(on: Platform, seed: int) -> Figures:
    """Preble while client 0 has longer questions, and while it has not."""
    found: dict[str, float] = {}
    for end, misbehave in (("", "longer-prefix"), (", as long", "none")):
        jobs = workload("tree-of-thoughts", misbehave, on=on, seed=seed, branches=3, clients=4, trees=6, rate=8.0)
        ours, theirs = under("d2lpm", jobs, on), under("preble", jobs, on)
        found[f"throughput{end}"] = rate(theirs) / rate(ours)
        found[f"end to end{end}"] = _mean_s(theirs) / _mean_s(ours)
        if not end:
            alone = run(jobs, "preble", "e2", on=on, routing=RATIO_ONLY)
            found["ratio only"] = rate(alone) / rate(ours)
            found["ratio only, end to end"] = _mean_s(alone) / _mean_s(ours)
    return found


def _mean_s(found: Run) -> float:
    return measured(found.measures.program_latency_us.mean, "mean") / 1e6


# --- a central scheduler ----------------------------------------------------------------------------------------------

CENTRAL = (1, 4, 8)
WHOLE_QUEUE = 1_000_000
"""The paper's scheduler looks at all that waits."""
LOOKS_US = (0, 20, 200)
"""Time for each waiting request: none, what we measure of our own scheduler, and ten times as much."""
JUDGED = 4


@row(
    id="51",
    about="a central scheduler against D2LPM",
    panel="motivation, centralised DLPM",
    platform=ABLATIONS,
    setting="trees of thoughts with a client of longer questions (S2), 8 a worker and 4 a second, before 1, 4 "
    f"and 8 workers; centralised DLPM (Q = {QUANTUM:,}) before FCFS workers, D2LPM + DLPM with Q = Q_w = {QUANTUM:,}; "
    "a worker waits before each step, 100 us for the way and 20 us for each waiting request, one after the other",
    claims=(
        number(
            "4 workers",
            "central throughput over D2LPM's, 4 workers",
            "about 40 % less",
            0.6,
            control=Control("workers wait for the scheduler", "4 workers, free answers"),
        ),
        number("8 workers", "the same, 8 workers", "about 40 % less", 0.6),
        above_zero("grows", "what waiting costs of the throughput, 8 workers less 1", "grows with the workers"),
    ),
    note="both costs are measured, by benchmarks/central.py on our own scheduler; how many workers the paper's figure "
    "is for, and what its scheduler takes for a request, is not known to us. Waiting is not what costs here: with free "
    "answers about as much is lost, and ten times our time for a request changes little, since some hundred requests "
    "wait and a step takes tens of milliseconds",
    seconds=20,
    axes=("time for a waiting request in us", "throughput over D2LPM's"),
)
def central(on: Platform, seed: int) -> Figures:
    """Centralised DLPM, whose answers take time or none, with more and more workers."""
    shares: dict[int, dict[float, float]] = {}
    for count in CENTRAL:
        few = attrs.evolve(on, workers=count)
        lengths = {"question_tokens": 12_288, "longer_question_tokens": 32_768}
        params = {"trees": count, "rate": 4.0 * count, **lengths}
        jobs = workload("tree-of-thoughts", "longer-prefix", on=few, seed=seed, **params)
        best = rate(under("d2lpm", jobs, few))
        for look_us in LOOKS_US if count == JUDGED else LOOKS_US[:2]:
            costs = {"round_trip_us": 100 if look_us else 0, "look_ns": look_us * 1_000}
            found = run(jobs, "fcfs", "dlpm-central", on=few, routing={**DLPM, "lookahead": WHOLE_QUEUE, **costs})
            shares.setdefault(count, {})[look_us] = rate(found) / best
    free, ours = LOOKS_US[:2]
    cost = {count: 1 - share[ours] / share[free] for count, share in shares.items()}
    return {
        **{f"{count} workers, by cost": share for count, share in shares.items()},
        "4 workers": shares[4][ours],
        "4 workers, free answers": shares[4][free],
        "8 workers": shares[8][ours],
        "grows": cost[8] - cost[1],
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
WINDOW_S = 20
"""Curves have a point for each such piece of time."""


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


@attrs.define
class ClientTimelines:
    """What a run shows by client: times to the first token with their arrivals, and service, in windows of time."""

    waits: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict)
    service: dict[str, dict[float, float]] = attrs.field(factory=dict)

    def p99_s(self, name: str) -> float:
        """Return a client's p99 of the time to the first token; of client 2 alone also once it has recovered."""
        waits = self.waits["2"] if name == BACK else self.waits[name]
        return float(np.percentile([wait for at, wait in waits if name != BACK or at >= RECOVERED], 99))

    def most_s(self, names: Iterable[str]) -> float:
        """Return the longest time to the first token of these clients."""
        return max(wait for name in names for _, wait in self.waits[name])

    def response(self, name: str) -> Mapping[float, float]:
        """Return a client's mean time to the first token by the window in which requests came."""
        windows: dict[float, list[float]] = {}
        for at, wait in self.waits[name]:
            if at < SECONDS:
                windows.setdefault(_window(at), []).append(wait)
        return {start: float(np.mean(windows[start])) for start in sorted(windows)}


def _window(at_s: float) -> float:
    return float(at_s // WINDOW_S * WINDOW_S)


def seen(system: System, on: Platform, seed: int, *, flood: bool = True) -> ClientTimelines:
    """Return what a run of the chats shows; the two rows share it where they run in one process."""
    return _seen(system, on, seed, flood)


@lru_cache(maxsize=64)
def _seen(system: System, on: Platform, seed: int, flood: bool) -> ClientTimelines:
    jobs = chats(seed, flood=flood)
    arrived: dict[int, tuple[str, float, int]] = {}
    found = ClientTimelines()

    def serve(client: str, at_s: float, cost: int) -> None:
        windows = found.service.setdefault(client, {})
        windows[_window(at_s)] = windows.get(_window(at_s), 0.0) + cost / WINDOW_S

    def note(events: list[Event]) -> None:
        for event in events:
            at_s = event.time_ns / 1e9
            if isinstance(event, Arrived):
                request = event.request
                arrived[request.id] = str(request.client), at_s, request.prompt.tokens
            elif isinstance(event, Prefilled) and not event.remaining_tokens:
                name, came_s, tokens = arrived[event.request_id]
                found.waits.setdefault(name, []).append((came_s, at_s - came_s))
                serve(name, at_s, tokens * COMMON.input)
            elif isinstance(event, Decoded):
                for client, count in zip(event.clients, event.tokens, strict=True):
                    serve(str(client), at_s, count * COMMON.output)

    policy, router = SYSTEMS[system]
    ours = DLPM if system == "d2lpm" else {}
    spec = RunSpec.of(policy, router, params=ours, router_params=ours)
    Simulator(jobs, spec.policy, spec.router, PRESETS[on.model], workers=on.workers, on_events=note).run()
    return found


FLOOD_SETTING = (
    f"chats of 4 clients for {SECONDS} s: each begins {STEADY} a second, client 3 {FLOOD:g} a second more all the "
    f"time, client 2 for the first {RECOVERS} s; LPM + round robin, VTC + round robin by client, D2LPM + DLPM with "
    f"Q = Q_w = {QUANTUM:,}"
)
NO_FLOOD = "clients 2 and 3 flood"


def _spared(name: str) -> Printed:
    control = Control(NO_FLOOD, f"{name}, no flood") if name in INNOCENT else None
    return more(name, f"client {name}: LPM's p99 of the time to the first token over D2LPM's", "low", control)


@row(
    id="39",
    about="two clients flood, one recovers: how long they wait",
    panel="figure 9, arena trace",
    platform=TWO,
    setting=f"{FLOOD_SETTING}; time to the first token, p99 by client, of client 2 also from {RECOVERED} s on",
    claims=(
        *(_spared(name) for name in (*INNOCENT, BACK)),
        *(more(f"vtc {name}", f"VTC: client {name}'s p99 over the innocent's worst", "delayed") for name in FLOODING),
        number("vtc longest", "VTC: the longest that 2 or 3 wait, in s", "up to 80 s", 80, neutral=None),
    ),
    note="generated chats of three turns with the arena's mean lengths; how much clients flood is ours, and so is the "
    "length of the longest wait. Innocent clients send so little that a p99 is their longest wait, so ratios differ "
    "much between seeds; row 39b has sums",
    seconds=8,
    axes=("time of arrival in s", "mean time to the first token in s"),
)
def floods(on: Platform, seed: int) -> Figures:
    """Return how long clients wait, over time and at p99."""
    found = {system: seen(system, on, seed) for system in COMPARED}
    quiet = {system: seen(system, on, seed, flood=False) for system in ("rr+lpm", "d2lpm")}
    lpm, vtc, d2lpm = found.values()
    return {
        **{f"{system}, client {name}": each.response(name) for system, each in found.items() for name in "0123"},
        **{name: lpm.p99_s(name) / d2lpm.p99_s(name) for name in (*INNOCENT, BACK)},
        **{f"{name}, no flood": quiet["rr+lpm"].p99_s(name) / quiet["d2lpm"].p99_s(name) for name in INNOCENT},
        **{f"vtc {name}": vtc.p99_s(name) / max(map(vtc.p99_s, INNOCENT)) for name in FLOODING},
        "vtc longest": vtc.most_s(FLOODING),
    }


@row(
    id="39b",
    about="two clients flood, one recovers: what they are served",
    panel="figure 9, arena trace",
    platform=TWO,
    setting=f"{FLOOD_SETTING}; client service (prompt and twice the output tokens) a second, in windows of "
    f"{WINDOW_S} s",
    claims=(
        more(
            "lpm",
            f"LPM: service of 2 and 3 over that of 0 and 1, the first {RECOVERS} s",
            "floods take the worker",
            Control(NO_FLOOD, "lpm, no flood"),
        ),
        more(
            "innocent",
            f"clients 0 and 1: service under D2LPM over LPM's, the first {RECOVERS} s",
            "D2LPM keeps theirs",
            Control(NO_FLOOD, "innocent, no flood"),
        ),
    ),
    note="the paper's curves are not known to us as numbers, so only signs are judged",
    seconds=8,
    axes=("time in s", "client service a second"),
)
def served(on: Platform, seed: int) -> Figures:
    """Return what clients are served, over time."""
    found = {system: seen(system, on, seed) for system in COMPARED}
    quiet = {system: seen(system, on, seed, flood=False) for system in ("rr+lpm", "d2lpm")}
    curves = {
        f"{system}, client {name}": {at: value for at, value in sorted(each.service[name].items()) if at < SECONDS}
        for system, each in found.items()
        for name in "0123"
    }
    return {
        **curves,
        "lpm": _early(found["rr+lpm"], FLOODING) / _early(found["rr+lpm"], INNOCENT),
        "lpm, no flood": _early(quiet["rr+lpm"], FLOODING) / _early(quiet["rr+lpm"], INNOCENT),
        "innocent": _early(found["d2lpm"], INNOCENT) / _early(found["rr+lpm"], INNOCENT),
        "innocent, no flood": _early(quiet["d2lpm"], INNOCENT) / _early(quiet["rr+lpm"], INNOCENT),
    }


def _early(each: ClientTimelines, names: Iterable[str]) -> float:
    """Return what these clients were served while both floods lasted."""
    return sum(value for name in names for at, value in each.service[name].items() if at < RECOVERS)


PANELS = (
    Panel("figure 1", "the quantum between VTC and LPM", rows=("35",)),
    Panel("motivation, Preble", "a longer prefix monopolises a worker of four", rows=("41",)),
    Panel("motivation, centralised DLPM", "workers wait for a central scheduler", rows=("51",)),
    Panel("figure 4", "which of the motivating measurements it shows is not known to us", rows=("41", "51")),
    Panel(
        "evaluation, S1 and S2",
        "misbehaving clients: throughput, latency and Jain's index of four systems on three workloads",
        rows=("40", "40b", "40c", "40d"),
    ),
    Panel("figure 7", "1 to n workers: throughput and Jain's index", rows=("50", "50b")),
    Panel("figure 9", "the arena trace over time: two clients flood, one recovers", rows=("39", "39b")),
    Panel("figure 12", "clients of different programs", rows=("38",)),
    Panel("evaluation, Q_w", "the quantum of D2LPM", rows=("36",)),
    Panel("evaluation, number of clients", "5 to 50 clients at a constant rate", rows=("37",)),
    Panel("figures 2, 3, 5, 6, 8, 10 and 11", "not known to us: examples, or panels that the rows above stand for"),
)
