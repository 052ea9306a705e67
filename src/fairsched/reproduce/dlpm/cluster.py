"""D2LPM before several workers: clients that misbehave, 1 to n workers, its quantum, Preble, a central scheduler."""

from functools import partial

import attrs

from fairsched.engines.analysis import Run
from fairsched.reproduce.dlpm.systems import (
    CELLS,
    DLPM,
    LOAD,
    NO_SHARING,
    QUANTUM,
    SYSTEMS,
    Outcome,
    System,
    cells_of,
    outcome,
    under,
    unshared,
)
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row, above_zero, more
from fairsched.reproduce.runs import A10G, A100, measured, rate, run, workload

FOUR = Platform(A100, workers=4)
ABLATIONS = Platform(A10G, workers=4)
TREES = "trees S2"
EXCEPTION = "QA S2"
"""The cell that the paper itself names as the one that Preble may win."""
OTHERS: tuple[System, ...] = ("vtc", "rr+lpm", "preble")
SETTING = (
    f"trees of thoughts, judges and questions about long documents, with a client that sends more (S1) or longer (S2); "
    f"D2LPM + DLPM with Q = Q_w = {QUANTUM:,}, VTC + round robin by client, LPM + round robin, Preble (E2 + its local "
    f"scheduler); requests come at {LOAD:g} times the rate that the workers serve with LPM, measured for each seed"
)
SIZES = (
    "lengths and numbers of programs are ours; they fill each worker's memory but not more than once over, so that a "
    "run takes seconds"
)


# --- misbehaving clients ----------------------------------------------------------------------------------------------


def _throughput_claims(other: str, most: float, control: str) -> tuple[Claim, ...]:
    return (
        *(
            Claim(
                cell,
                f"{cell}: D2LPM's throughput over {other}",
                f"up to {most}",
                1,
                most,
                control=Control(NO_SHARING, control) if cell == TREES else None,
            )
            for cell in CELLS
        ),
        Claim("most", f"the most over {other}, of all cells", f"{most}", most, most),
    )


def _over(system: System, on: Platform, seed: int) -> Figures:
    """D2LPM's throughput over another's, by cell, and for trees of prompts that share nothing."""

    def figure(name: str, sharing: bool = True) -> float:
        ours, theirs = (outcome(name, each, on, seed, sharing=sharing) for each in ("d2lpm", system))
        return ours.throughput_rps / theirs.throughput_rps

    return {**cells_of(figure), "not shared": figure(TREES, sharing=False)}


@partial(
    Row,
    id="40",
    about="misbehaving clients: throughput against VTC",
    paper="dlpm",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{SETTING}; requests finished a second",
    claims=_throughput_claims("VTC's", 2.87, "not shared"),
    note=f"{SIZES}; the longer the prompts, the more VTC computes again, and our questions and trees have long ones",
    seconds=30,
)
def against_vtc(on: Platform, seed: int) -> Figures:
    """D2LPM's throughput over that of VTC with round robin by client."""
    return _over("vtc", on, seed)


@partial(
    Row,
    id="40b",
    about="misbehaving clients: throughput against LPM and round robin",
    paper="dlpm",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{SETTING}; requests finished a second",
    claims=_throughput_claims("RR + LPM's", 2.22, "not shared"),
    note=SIZES,
    seconds=30,
)
def against_round_robin(on: Platform, seed: int) -> Figures:
    """D2LPM's throughput over that of LPM with round robin."""
    return _over("rr+lpm", on, seed)


PERCENTILES = ("P50", "P99")
PREBLE_MOST = 7.18


def _latency_claims() -> tuple[Claim, ...]:
    return (
        *(
            Claim(
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
        Claim("most", "the most of all cells, P50 and P99", f"{PREBLE_MOST}", PREBLE_MOST, PREBLE_MOST),
    )


@partial(
    Row,
    id="40c",
    about="misbehaving clients: the others' latency against Preble",
    paper="dlpm",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{SETTING}; P50 and P99 of the worst well-behaved client, of programs; of questions about documents "
    "of the time to the first token",
    claims=_latency_claims(),
    note=f"{SIZES}; at this load well-behaved clients ask for more than is served, too, and a program's time is mostly "
    "decoding in a batch that all clients fill, which no order of admissions changes. Where prompts share nothing "
    "D2LPM is the faster one, since turns between clients are then all that differs",
    seconds=30,
)
def against_preble(on: Platform, seed: int) -> Figures:
    """Preble's latency of well-behaved clients over D2LPM's."""

    def figure(name: str, which: str, sharing: bool = True) -> float:
        ours, theirs = (outcome(name, each, on, seed, sharing=sharing) for each in ("d2lpm", "preble"))
        return theirs.p50_s / ours.p50_s if which == "P50" else theirs.p99_s / ours.p99_s

    found = {f"{cell} {which}": figure(cell, which) for which in PERCENTILES for cell in CELLS}
    alone = {f"not shared {which}": figure(TREES, which, sharing=False) for which in PERCENTILES}
    return {**found, **alone, "most": max(found.values())}


@partial(
    Row,
    id="40d",
    about="misbehaving clients: Jain's index of service rates",
    paper="dlpm",
    panel="evaluation, S1 and S2",
    platform=FOUR,
    setting=f"{SETTING}; Jain's index of clients' service rates over the interval in which all are active, D2LPM's "
    "less that of LPM with round robin and of Preble",
    claims=tuple(
        above_zero(f"{cell}, {other}", f"{cell}: D2LPM's less {other}'s", "fairer")
        for cell in CELLS
        for other in ("rr+lpm", "preble")
    ),
    note=f"{SIZES}; the paper's index is not known to us as a number, so only its sign is judged",
    seconds=30,
)
def evenness(on: Platform, seed: int) -> Figures:
    """D2LPM's index less those of systems that are not fair; VTC's is a figure beside them."""
    found: dict[str, float] = {}
    for cell in CELLS:
        jain = {system: _jain(outcome(cell, system, on, seed)) for system in SYSTEMS}
        found |= {f"{cell}, {other}": jain["d2lpm"] - jain[other] for other in OTHERS}
    return found


def _jain(found: Outcome) -> float:
    return measured(found.jain, "Jain's index")


# --- 1 to n workers ---------------------------------------------------------------------------------------------------

COUNTS = (1, 2, 4)
MANY = COUNTS[-1]


def _grown(on: Platform, seed: int) -> dict[System, dict[float, Outcome]]:
    platforms = [attrs.evolve(on, workers=count) for count in COUNTS]
    return {each: {one.workers: outcome(TREES, each, one, seed) for one in platforms} for each in SYSTEMS}


@partial(
    Row,
    id="50",
    about="1 to 4 workers: throughput",
    paper="dlpm",
    panel="figure 7",
    platform=FOUR,
    setting="trees of thoughts with a client of longer questions (S2) before 1, 2 and 4 workers; the rate and the "
    "number of trees grow with the workers; systems and load as in row 40",
    claims=(
        Claim(
            "collapse",
            "RR + LPM: throughput a worker, 4 workers over 1",
            "collapses as workers grow",
            0,
            0.5,
            control=Control(NO_SHARING, "collapse, not shared"),
        ),
        *(
            Claim(f"{other} {count}", f"D2LPM's throughput over {other}'s, {count} workers", f"up to {most}", 1, most)
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
    """Each system with more and more workers."""
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


@partial(
    Row,
    id="50b",
    about="2 and 4 workers: Jain's index",
    paper="dlpm",
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
    """Each system's index with more and more workers."""
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

QUANTA = (2_000, 5_000, 10_000, 20_000, 40_000)


@partial(
    Row,
    id="36",
    about="the quantum of D2LPM",
    paper="dlpm",
    panel="evaluation, Q_w",
    platform=ABLATIONS,
    setting=f"64 trees of thoughts with a client of longer questions (S2), all within 4 s; Q_w of 2,000 to 40,000, Q = "
    f"{QUANTUM:,}; throughput and Jain's index of clients' service rates",
    claims=(
        more("rise", "throughput, Q_w = 40,000 over 2,000", "rises", Control(NO_SHARING, "rise, not shared")),
        above_zero("flattens", "rise from 2,000 to 5,000 less that from 20,000 to 40,000", "flattens"),
        Claim("jain 2,000", "Jain's index, Q_w = 2,000", "0.855", 0.855, 0.855, neutral=None),
        Claim("jain 40,000", "Jain's index, Q_w = 40,000", "0.83", 0.83, 0.83, neutral=None),
        Claim("jain falls", "Jain's index, Q_w = 2,000 less 40,000", "0.025", 0.025, 0.025, neutral=0.0),
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
    found = {size: run(jobs, "dlpm", "d2lpm", on=on, params=DLPM, routing={"quantum": size}) for size in QUANTA}
    rates = [rate(each) for each in found.values()]
    even = [measured(each.jain_client, "Jain's index") for each in found.values()]
    alone = [
        rate(run(unshared(jobs), "dlpm", "d2lpm", on=on, params=DLPM, routing={"quantum": size}))
        for size in (QUANTA[0], QUANTA[-1])
    ]
    return {
        "rise": rates[-1] / rates[0],
        "rise, not shared": alone[1] / alone[0],
        "flattens": rates[1] / rates[0] - rates[-1] / rates[-2],
        "jain 2,000": even[0],
        "jain 40,000": even[-1],
        "jain falls": even[0] - even[-1],
        "throughput": {float(size): each / rates[-1] for size, each in zip(QUANTA, rates, strict=True)},
        "Jain's index": {float(size): each for size, each in zip(QUANTA, even, strict=True)},
    }


# --- Preble -----------------------------------------------------------------------------------------------------------

RATIO_ONLY = {"rebalancing": "off", "scaling": "off", "decode_share_percent": 100}
"""E2 that decides by the share of the prompt that is cached and the load alone."""
QUARTER = "falls to about a quarter"


@partial(
    Row,
    id="41",
    about="a longer prefix monopolises a worker",
    paper="dlpm",
    panel="motivation, Preble",
    platform=ABLATIONS,
    setting="4 clients of 6 trees of thoughts with 3 branches, all within 6 s, client 0 with longer questions; D2LPM + "
    f"DLPM with Q = Q_w = {QUANTUM:,}, and Preble (E2 + its local scheduler); throughput, mean time of a program",
    claims=(
        Claim(
            "throughput",
            "Preble's throughput over D2LPM's",
            QUARTER,
            0.25,
            0.25,
            control=Control("client 0's questions are longer", "throughput, as long"),
        ),
        more(
            "end to end",
            "Preble's mean time of a program over D2LPM's",
            "longer",
            Control("client 0's questions are longer", "end to end, as long"),
        ),
        Claim("ratio only", "the same throughput, of E2 without its three corrections", QUARTER, 0.25, 0.25),
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


@partial(
    Row,
    id="51",
    about="a central scheduler against D2LPM",
    paper="dlpm",
    panel="motivation, centralised DLPM",
    platform=ABLATIONS,
    setting="trees of thoughts with a client of longer questions (S2), 8 a worker and 4 a second, before 1, 4 "
    f"and 8 workers; centralised DLPM (Q = {QUANTUM:,}) before FCFS workers, D2LPM + DLPM with Q = Q_w = {QUANTUM:,}; "
    "a worker waits before each step, 100 us for the way and 20 us for each waiting request, one after the other",
    claims=(
        Claim(
            "4 workers",
            "central throughput over D2LPM's, 4 workers",
            "about 40 % less",
            0.6,
            0.6,
            control=Control("workers wait for the scheduler", "4 workers, free answers"),
        ),
        Claim("8 workers", "the same, 8 workers", "about 40 % less", 0.6, 0.6),
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
