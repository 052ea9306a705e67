"""Rules that routers and engines of the field ship, each beside the one that it replaces.

Their papers' traces are not public, or name models that are no preset here: the workloads are the generators' nearest.
"""

from bisect import bisect
from statistics import fmean

import msgspec
import numpy as np

from fairsched.engines.analysis import Measures, Run
from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import WorkerSpec, with_account
from fairsched.model.request import Client, Slo, Workload
from fairsched.policies.batching import Batching, Chunked, FairBatching
from fairsched.policies.catalog import FCFS
from fairsched.reproduce.row import Control, Figures, Panel, Platform, Printed, fewer, more, number, rows_of
from fairsched.reproduce.runs import A100, measured, rate, run, workload

row = rows_of("field")


def _means(one: Run) -> tuple[float, float]:
    """Return means of the time to the first token, and for each token after it."""
    return measured(one.measures.ttft_us.mean, "a mean"), measured(one.measures.tpot_us.mean, "a mean")


FIGURES = ("TTFT", "TPOT")
BASELINES = {
    "join-shortest-queue": ("the fewest requests", "vLLM's", 92, 21),
    "e2": ("E2", "a production scheduler's", 52, 20),
}
"""Routers, what they stand for, and by how many per cent each figure is less at most."""
LMETRIC_CELLS = {"chats": "multi-turn", "tools": "toolbench", "agents": "agent"}


@row(
    id="83",
    about="a router by multiplication (LMetric)",
    panel="LMetric, abstract",
    platform=Platform(A100, 8),
    setting="chats, tool calls and agents at 90 % of what the workers can do, FCFS workers; `lmetric` against the "
    "fewest requests, for which vLLM's router is printed, and against E2, for which a production scheduler is",
    claims=(
        *(
            number(
                f"least {figure} over {other}",
                f"mean {figure} over that under {name}, at best",
                f"-{less} % of {printed}",
                1 - less / 100,
            )
            for other, (name, printed, *most) in BASELINES.items()
            for figure, less in zip(FIGURES, most, strict=True)
        ),
        *(
            fewer(f"{cell} {figure} over {other}", f"{cell}: mean {figure} over that under {name}", "less")
            for cell in LMETRIC_CELLS
            for other, (name, *_) in BASELINES.items()
            for figure in FIGURES
        ),
    ),
    note="printed are the largest reductions on any of the paper's workloads, of Qwen models on 16 GPUs",
    seconds=20,
)
def lmetric(on: Platform, seed: int) -> Figures:
    """Three workloads, three routers each."""
    found: dict[str, float] = {}
    for cell, name in LMETRIC_CELLS.items():
        jobs = workload(name, on=on, seed=seed)
        ours = _means(run(jobs, "fcfs", "lmetric", on=on))
        for other in BASELINES:
            theirs = _means(run(jobs, "fcfs", other, on=on))
            for figure, mine, its in zip(FIGURES, ours, theirs, strict=True):
                found[f"{cell} {figure} over {other}"] = mine / its
    for other in BASELINES:
        for figure in FIGURES:
            found[f"least {figure} over {other}"] = min(
                found[f"{cell} {figure} over {other}"] for cell in LMETRIC_CELLS
            )
    return found


ENGINE_CLAIMS = {
    "hrrn mean TTFT": ("HRRN: mean TTFT over FCFS's", "-69.09 %", 0.3091),
    "hrrn p99 TTFT": ("HRRN: p99 of TTFT over FCFS's", "-8.30 %", 0.917),
    "hrrn throughput": ("HRRN: throughput over FCFS's", "+39.58 %", 1.3958),
    "lpm mean TTFT": ("LPM: mean TTFT over FCFS's", "-32.23 %", 0.6777),
    "lpm p99 TTFT": ("LPM: p99 of TTFT over FCFS's", "+252.56 %", 3.5256),
    "lpm throughput": ("LPM: throughput over FCFS's", "+24.73 %", 1.2473),
}


@row(
    id="84",
    about="highest response ratio next (SGLang)",
    panel="HRRN, SGLang's pull request 32911",
    platform=Platform(A100),
    setting="videos and tool calls mixed, at 14 requests a second, a third above what FCFS can do; `hrrn` and LPM "
    "against FCFS",
    claims=tuple(number(figure, *claim) for figure, claim in ENGINE_CLAIMS.items()),
    note="printed of production traffic at 100 requests in flight, split over two times 8 B200: neither traffic nor "
    "machine is public. Here cold requests are short, so that LPM starves none of them",
    seconds=12,
)
def response_ratio(on: Platform, seed: int) -> Figures:
    """One workload, three orders."""
    jobs = workload("mixed", on=on, seed=seed, rate=14.0)
    runs = {name: run(jobs, name, on=on) for name in ("fcfs", "hrrn", "lpm")}
    found: dict[str, float] = {}
    for name, one in runs.items():
        first, base = one.measures.ttft_us, runs["fcfs"].measures.ttft_us
        found[f"{name} mean TTFT"] = measured(first.mean, "a mean") / measured(base.mean, "a mean")
        found[f"{name} p99 TTFT"] = measured(first.p99, "a p99") / measured(base.p99, "a p99")
        found[f"{name} throughput"] = rate(one) / rate(runs["fcfs"])
    return found


LAS_RATES = (16.0, 24.0, 32.0)
"""Calls a second; 32 seats serve about four."""


@row(
    id="88",
    about="least attained service of programs (Autellix, llm-d)",
    panel="Autellix, abstract; llm-d's pull request 1534",
    platform=Platform(A100),
    setting="chats and trees of thoughts, a program each, at four times what 32 seats can do; `las` against FCFS, and "
    "against turns of programs (`fcfs+deficit`)",
    claims=(
        Printed(
            "programs at FCFS's latency", "rate at which LAS has FCFS's mean latency, over FCFS's", "4 to 15", 4, 15
        ),
        fewer("chats over turns", "LAS: mean latency of chats over that by turns", "programs with less service first"),
    ),
    note="Autellix preempts, and names long waits of calls as the cause; here they wait for a tenth of a program's "
    "time under FCFS, and LAS charges a call when it ends, so that new trees take seats for all calls of a level. "
    "llm-d prints latencies by the size of programs beside round robin's, which we could not read",
    seconds=15,
)
def least_attained(on: Platform, seed: int) -> Figures:
    """One workload at three rates, three policies at the first."""

    def under(policy: str, rps: float) -> Run:
        return _seated(with_account(_chats_and_trees(on, seed, rps), "program"), policy, on)

    def chats_us(one: Run) -> float:
        return fmean(_latency_us(chat) for name, chat in one.clients.items() if name.startswith("multi-turn"))

    las = [under("las", rps) for rps in LAS_RATES]
    fcfs, turns = (under(name, LAS_RATES[0]) for name in ("fcfs", "fcfs+deficit"))
    at = float(np.interp(_latency_us(fcfs.measures), [_latency_us(one.measures) for one in las], LAS_RATES))
    return {"programs at FCFS's latency": at / LAS_RATES[0], "chats over turns": chats_us(las[0]) / chats_us(turns)}


def _chats_and_trees(on: Platform, seed: int, rps: float) -> Workload:
    return workload("mixed", on=on, seed=seed, parts="multi-turn+tree-of-thoughts", rate=rps, limit=1_500)


def _seated(jobs: Workload, policy: str, on: Platform) -> Run:
    return run(jobs, policy, on=on, params={"max_running": 32})


def _latency_us(of: Measures) -> float:
    return measured(of.program_latency_us.mean, "a mean")


FITTING_AGENTS = {
    **{"tasks": 64, "steps": 16, "rate": 1_000.0, "think_s": 3.0, "task_tokens": 2_000, "observation_tokens": 1_000},
    **{"output_tokens": 128, "max_output_tokens": 512},
}
LIGHT = 4
"""So many clients, those with the fewest calls, are the light ones."""


@row(
    id="89",
    about="agent fair share (SAGA)",
    panel="SAGA, ablation and attainment by tenant",
    platform=Platform(A100),
    setting="chats and trees of thoughts at four times what 32 seats can do, an account a client; `afs` against FCFS",
    claims=(
        number("programs' latency", "AFS: mean latency of programs over FCFS's", "203.4 s for 218.7 s", 203.4 / 218.7),
        fewer(
            "light clients' wait",
            "AFS: mean TTFT of the four clients with the fewest calls over FCFS's",
            "98.7 % in time for 43.2 %",
        ),
    ),
    note="printed of coding agents, and of tenants on 64 A100 against vLLM, of which agent fair share is one change of "
    "several. Urgency counts what a client has waiting: those with the most calls wait least",
    seconds=5,
)
def agent_fair_share(on: Platform, seed: int) -> Figures:
    """One workload, two policies."""
    jobs = _chats_and_trees(on, seed, LAS_RATES[0])
    fcfs, afs = (_seated(jobs, name, on) for name in ("fcfs-optimistic", "afs"))
    light = sorted((one.requests, name) for name, one in fcfs.clients.items() if one.requests)[:LIGHT]

    def wait_us(of: Run) -> float:
        return fmean(measured(of.clients[name].ttft_us.mean, "a mean") for _, name in light)

    return {
        "programs' latency": _latency_us(afs.measures) / _latency_us(fcfs.measures),
        "light clients' wait": wait_us(afs) / wait_us(fcfs),
    }


@row(
    id="96",
    about="agents that fit into memory (ThunderAgent, Concur)",
    panel="ThunderAgent and Concur, abstracts",
    platform=Platform(A100),
    setting="64 agents at once whose contexts grow from 2,000 to 20,000 tokens in 16 calls, tools of 3 s, where memory "
    "holds a third of them; `thunderagent` and `concur` against FCFS",
    claims=(
        Printed("ThunderAgent", "ThunderAgent: throughput over FCFS's", "1.5 to 3.6", 1.5, 3.6),
        number("Concur", "Concur: throughput over FCFS's", "up to 4.09", 4.09),
        more("ThunderAgent's hits", "ThunderAgent: cached share of prompts over FCFS's", "more"),
        more("Concur's hits", "Concur: cached share of prompts over FCFS's", "more"),
    ),
    note="printed of coding, routing and science agents on H100 against vLLM, and of Qwen3-32B against SGLang at best; "
    "neither traces nor Concur's thresholds are known, and a gain is bounded by what decoding costs here",
    seconds=12,
)
def agents_that_fit(on: Platform, seed: int) -> Figures:
    """One workload, three policies."""
    jobs = workload("agent", on=on, seed=seed, **FITTING_AGENTS)
    fcfs = run(jobs, "fcfs", on=on)
    found: dict[str, float] = {}
    for name, policy in {"ThunderAgent": "thunderagent", "Concur": "concur"}.items():
        one = run(jobs, policy, on=on)
        found[name] = rate(one) / rate(fcfs)
        hits = [measured(each.measures.prefix_hit_ratio, "hits") for each in (one, fcfs)]
        found[f"{name}'s hits"] = hits[0] / hits[1]
    return found


FAIR_TTFT_NS, FAIR_TPOT_NS, FAIR_SHARE = 1_000_000_000, 30_000_000, 0.9
"""Targets for the first token and for each further one, and how many requests have to keep them."""
FAIR_LOADS = tuple(2 + i / 4 for i in range(21))
"""Requests a second among which the largest load is looked for."""


def _promised(jobs: Workload) -> Workload:
    """Return the requests with targets: the first token in time, and the last one as many times a token later."""
    made = []
    for job in jobs.jobs:
        slo = Slo(FAIR_TTFT_NS, latency_ns=FAIR_TTFT_NS + (job.output_tokens - 1) * FAIR_TPOT_NS)
        made.append(msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, slo=slo)))
    return msgspec.structs.replace(jobs, jobs=tuple(made))


@row(
    id="86",
    about="a step's budget by slack (FairBatching)",
    panel="FairBatching, abstract",
    platform=Platform(A100),
    setting="Azure's conversations, Poisson arrivals, first tokens due after 1 s and others 30 ms each; "
    "`fair-batching` against FCFS in steps of as many tokens as take 30 ms; tails at 3 requests a second, the largest "
    "load at which 90 % of requests keep both targets in steps of a quarter",
    claims=(
        number("TTFT p99", "FCFS's p99 of TTFT over that under the rule", "up to 2.29", 2.29),
        number("load", "largest load over FCFS's", "+20.0 %", 1.2),
        fewer("missed", "requests that miss a target under the rule over FCFS's, at 3 a second", "no more"),
    ),
    note="the abstract names neither targets nor machines; where a burst makes all that decode late, the budget is "
    "that of the rule which it replaces",
    seconds=25,
)
def fair_batching(on: Platform, seed: int) -> Figures:
    """One load for tails, and a search for the largest."""
    rule = FairBatching(tpot_ns=FAIR_TPOT_NS)
    chunk = (FAIR_TPOT_NS - rule.step_ns) // rule.token_ns
    rules = (Chunked(max_batched_tokens=chunk), rule)

    def at(load: float, rule: Batching) -> Run:
        jobs = workload("azure-chat", on=on, seed=seed, rate=load, arrivals="poisson", requests=2_000)
        return run(_promised(jobs), FCFS(batching=rule), on=on)

    def misses(one: Run) -> float:
        return 1 - measured(one.measures.slo_attainment, "an attainment")

    theirs, ours = (at(3.0, each) for each in rules)
    largest = [bisect(FAIR_LOADS, 1 - FAIR_SHARE, key=lambda load: misses(at(load, each))) for each in rules]
    base, load = (FAIR_LOADS[max(found - 1, 0)] for found in largest)
    tail = measured(theirs.measures.ttft_us.p99, "a p99") / measured(ours.measures.ttft_us.p99, "a p99")
    return {"TTFT p99": tail, "load": load / base, "missed": misses(ours) / max(misses(theirs), 0.001)}


ADAPTERS, SLOTS = 16, 4
"""Background adapters, and how many adapters a worker holds."""


def _with_adapters(jobs: Workload, seed: int) -> Workload:
    """Return the requests with an adapter each: one in ten has the VIPs' and their priority, others any of the rest."""
    drawn = np.random.default_rng(seed)
    places = [int(drawn.integers(1, ADAPTERS + 1)) * int(drawn.random() >= 0.1) for _ in jobs.jobs]
    made = []
    for job, place in zip(jobs.jobs, places, strict=True):
        named = {"client": place, "adapter": f"adapter {place}", "priority": int(place == 0)}
        made.append(msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, **named)))
    clients = tuple(Client(place, f"adapter {place}" if place else "vip") for place in range(ADAPTERS + 1))
    return msgspec.structs.replace(jobs, jobs=tuple(made), clients=clients)


@row(
    id="92",
    about="the residency cliff of adapters (CLIMB)",
    panel="CLIMB, abstract",
    platform=Platform(A100),
    setting="Azure's conversations, Poisson arrivals at 2 requests a second, one in ten of a VIP adapter, others of 16 "
    "more; 4 slots, and a step waits 100 ms for each adapter that it loads; VIPs first (`ageing` with a boost of 0) "
    "against FCFS, both within the slots",
    claims=(
        number(
            *("VIP p99", "VIPs' p99 of TTFT over that under FCFS", "38.7 to 13.1 s", 13.1 / 38.7),
            control=Control("fetches stall all that runs", "VIP p99, loads cost nothing"),
        ),
        number("throughput", "throughput over FCFS's", "matched", 1.0, neutral=None),
        fewer("resident", "FCFS: p99 of TTFT with 17 slots over that with 4", "collapse beyond the slots"),
    ),
    note="the abstract names no targets, lengths or rates of adapters; our slots hold both policies, so that what is "
    "measured is which requests wait outside. The 100 ms are ours",
    seconds=25,
)
def residency(on: Platform, seed: int) -> Figures:
    """FCFS and VIPs first, with loads and without, and FCFS with a slot for each adapter."""
    jobs = _with_adapters(workload("azure-chat", on=on, seed=seed, rate=2.0, arrivals="poisson", requests=1_000), seed)

    def under(policy: str, load_ms: int, slots: int = SLOTS) -> Run:
        spec = WorkerSpec(on.latency, adapter_slots=slots, adapter_load_ns=load_ms * 1_000_000)
        params = {"boost_milli": 0} if policy == "ageing" else {}
        return simulate(jobs, policy, "round-robin", cluster=Cluster(on.model, (spec,)), params=params)

    def p99(one: Run, client: str = "vip") -> float:
        return measured(one.clients[client].ttft_us.p99, "a p99")

    fcfs, first, free, free_first = (under(name, load) for load in (100, 0) for name in ("fcfs", "ageing"))
    whole = under("fcfs", 100, ADAPTERS + 1)
    tails = [measured(one.measures.ttft_us.p99, "a p99") for one in (whole, fcfs)]
    return {
        "VIP p99": p99(first) / p99(fcfs),
        "VIP p99, loads cost nothing": p99(free_first) / p99(free),
        "throughput": rate(first) / rate(fcfs),
        "resident": tails[0] / tails[1],
    }


PANELS = (
    Panel("ThunderAgent and Concur, abstracts", "throughput of agents against FCFS", rows=("96",)),
    Panel("SAGA, ablation and attainment by tenant", "programs' latency, and light tenants", rows=("89",)),
    Panel("Autellix, abstract; llm-d's pull request 1534", "programs by attained service", rows=("88",)),
    Panel("LMetric, abstract", "mean latencies against vLLM's and a production scheduler", rows=("83",)),
    Panel("HRRN, SGLang's pull request 32911", "latencies and throughput against FCFS", rows=("84",)),
    Panel("FairBatching, abstract", "the tail of first tokens, and the load of a node", rows=("86",)),
    Panel("CLIMB, abstract", "VIPs' tail beyond the slots for adapters", rows=("92",)),
)
