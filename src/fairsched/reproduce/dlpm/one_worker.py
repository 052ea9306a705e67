"""DLPM on one worker: the front between fairness and throughput, the number of clients, and mixed programs."""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from fairsched.engines.analysis import Run
from fairsched.model.request import Workload
from fairsched.reproduce.dlpm.systems import (
    DLPM,
    NO_SHARING,
    QUANTUM,
    unshared,
)
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row, above_zero, fewer, more
from fairsched.reproduce.runs import A10G, measured, rate, run, workload

ONE = Platform(A10G)
QUANTA = (1_024, 4_096, 16_384, 65_536)
STEPS = tuple(pairwise(QUANTA))
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


@partial(
    Row,
    id="35",
    about="the quantum moves DLPM from VTC to LPM",
    paper="dlpm",
    panel="figure 1",
    platform=ONE,
    setting="trees of thoughts of 24 clients, of which client 0 asks longer questions; quanta of 1,024 to 65,536, LPM "
    "and VTC; throughput, and Jain's index of what clients were charged; all trees come within 6 s",
    claims=(
        *(more(f"throughput {b:,}", f"throughput, Q = {b:,} over {a:,}", "a larger Q gives more") for a, b in STEPS),
        *(above_zero(f"jain {b:,}", f"Jain, Q = {a:,} less {b:,}", "a larger Q is less fair") for a, b in STEPS),
        more("rise", "throughput, the largest Q over the smallest", "more", Control(NO_SHARING, "rise, not shared")),
        Claim("to LPM", "throughput of the largest Q over LPM's", "as LPM's", 1, 1, neutral=None),
        Claim("to VTC", "Jain of the smallest Q over VTC's", "as VTC's", 1, 1, neutral=None),
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
    sweep = {quantum: run(jobs, "dlpm", on=on, params={"quantum": quantum}) for quantum in QUANTA}
    rates = {quantum: rate(found) for quantum, found in sweep.items()}
    even = {quantum: measured(found.jain_charged, "Jain's index") for quantum, found in sweep.items()}
    least, largest = QUANTA[0], QUANTA[-1]
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


def _clients(count: int) -> tuple[Claim, ...]:
    without = Control(NO_SHARING, "vtc, not shared") if count == CONTROLLED else None
    return (
        Claim(
            f"dlpm {count}", f"DLPM's service rate over LPM's, {count} clients", "close to LPM's", 1, 1, neutral=None
        ),
        fewer(f"vtc {count}", f"VTC's service rate over DLPM's, {count} clients", "lower", without),
    )


@partial(
    Row,
    id="37",
    about="5 to 50 clients at a constant rate",
    paper="dlpm",
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
    """The same trees from more and more clients."""
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


@partial(
    Row,
    id="38",
    about="clients of different programs",
    paper="dlpm",
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
    """Clients of three kinds of programs on one worker."""
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
