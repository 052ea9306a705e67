"""Splitwise: its profile, the transfer of KV, the split that a search finds, and designs at equal power.

Source: Patel et al., "Splitwise" (ISCA'24), and the medians that its authors published.

Machines are DGX boxes with BLOOM-176B.  The released simulator interpolates both phases in the tokens of a batch, of
which a request that decodes is one, so a token step takes the published median whatever the batch and its context; the
rows that follow the paper do the same (`PUBLISHED`).  The medians show that steps grow with their context, which the
presets have: one row searches with them too.

The paper's fleets of equal power are 40 DGX-H100 or 70 DGX-A100.  Here they are two fifths of that, 16 or 28, so both
of its splits are whole numbers of machines, and rates are two fifths too.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.capacity import SloTarget, nine_slos, outcomes_of, trial
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads import KvLink, WorkerSpec, at_rate, generate
from fairsched.model.machine import GPUS, PRESETS, AttentionFormula, Kernels, LatencyModel, TimeTable
from fairsched.model.request import Workload
from fairsched.model.view import Role
from fairsched.policies.catalog import SplitwiseMachine
from fairsched.policies.routers import Splitwise
from fairsched.reproduce.row import Figures, Panel, Platform, Printed, above_zero, more, number, rows_of

row = rows_of("splitwise")

PROMPT_MS = {512: 76, 1_024: 133, 2_048: 253, 4_096: 689}
"""Medians of BLOOM-176B on eight H100: a prompt of so many tokens."""
TOKENS = tuple(1 << i for i in range(7, 16))
"""Tokens of a batch of prompts for which there are medians."""
TOKEN_MS = 36
"""And a step that gives one token."""
KV_BYTES = 4_014_080
"""KV of a token of BLOOM-176B: keys and values of 70 layers x 14,336 in 16 bits."""
LAYERS = 70
SYNC_NS = 5_000_000
"""What is left of a layer-wise transfer on H100, as the paper measured it."""
LINK_BYTES_PER_S = 200_000_000_000
"""Eight adapters of 200 Gbit/s between two DGX-A100 or a DGX-H100 and a DGX-A100; two DGX-H100 have twice that."""


def prompt_ms(tokens: int) -> float:
    """Return the time of a prompt, between the measured lengths by straight lines."""
    for (low, low_ms), (high, high_ms) in pairwise(PROMPT_MS.items()):
        if low <= tokens <= high:
            return low_ms + (high_ms - low_ms) * (tokens - low) / (high - low)
    raise ValueError(f"{tokens} tokens are outside the profile")


@row(
    id="13",
    about="prompts and outputs on one profile",
    panel="characterization",
    setting="BLOOM-176B on eight H100, the published medians with straight lines between them",
    claims=(number("outputs", "output tokens in the time of a prompt of 1,500", "about 6", 6, neutral=None),),
    seeds=1,
    seconds=1,
    quick=True,
)
def profile(on: Platform, seed: int) -> Figures:
    """Read the profile."""
    return {"outputs": prompt_ms(1_500) / TOKEN_MS}


@row(
    id="14",
    about="batches beyond 2,048 tokens, and capped power",
    panel="characterization",
    setting="BLOOM-176B on eight H100: the published medians, and the presets with and without a cap of power",
    claims=(
        number("at 2048", "prompt tokens a ms at 2,048", "8.1", 8.1, neutral=None, decimals=1),
        number("at 4096", "prompt tokens a ms at 4,096", "5.9", 5.9, neutral=None, decimals=1),
        Printed("fall", "throughput at 4,096 over 2,048", "it falls beyond 2,048 tokens", 0.0, 1.0, neutral=None),
        number("capped prompt", "a prompt of 1,500 with capped power, over without", "1.30", 1.3, decimals=2),
        number("capped token", "a token step with capped power, over without", "unchanged", 1, None, decimals=2),
    ),
    note="the throughputs are those of the published table, the paper shows them as a curve; the factor of capped "
    "prompts is that of the published rows, the paper says that they take substantially longer",
    seeds=1,
    seconds=1,
    quick=True,
)
def limits(on: Platform, seed: int) -> Figures:
    """Read the profile and the presets."""
    fast, slow = (tokens / prompt_ms(tokens) for tokens in (2_048, 4_096))
    full, capped = PRESETS["bloom-176b-h100"], PRESETS["bloom-176b-h100-capped"]
    prompt = [machine.step_ns([(1_500, 0)], 0, 0) for machine in (capped, full)]
    token = [machine.decode_ns(16, 16_000) for machine in (capped, full)]
    return {
        "at 2048": fast,
        "at 4096": slow,
        "fall": slow / fast,
        "capped prompt": prompt[0] / prompt[1],
        "capped token": token[0] / token[1],
    }


# --- fleets -----------------------------------------------------------------------------------------------------------


def _published(name: str, token_ms: int) -> LatencyModel:
    """Return a preset whose token steps take the published median, whatever the batch."""
    latency, token_ns = PRESETS[name], token_ms * 1_000_000
    prompts = TimeTable(TOKENS, tuple(latency.step_ns(((tokens, 0),), 0, 0) - token_ns for tokens in TOKENS))
    kernels = Kernels(TimeTable((0,), (token_ns,)), AttentionFormula(0, 0, prompts), TimeTable((0,), (0,)))
    facts = latency.kv_capacity_tokens, latency.gpus, latency.deployment
    return LatencyModel.of_kernels(latency.name, latency.source, kernels, facts[0], gpus=facts[1], deployment=facts[2])


PUBLISHED = {"a100": _published("bloom-176b-a100", 49), "h100": _published("bloom-176b-h100", TOKEN_MS)}
PUBLISHED["h100-capped"] = _published("bloom-176b-h100-capped", TOKEN_MS)
"""Machines by the kind of their GPUs, as the released simulator has them."""
GROWING = {kind: PRESETS[f"bloom-176b-{kind}"] for kind in PUBLISHED}
"""The same with token steps that grow with their context."""
POWER = 16 * GPUS["h100"].power
"""The power of every fleet, in DGX-A100."""


@attrs.frozen
class Design:
    """Kinds of the prompt and the token machines, one kind for a fleet that is not split."""

    prompt: str
    token: str = ""

    def machines(self, prompts: int) -> int:
        """Return the token machines beside so many prompt machines at the fleets' power."""
        left = POWER - prompts * GPUS[self.prompt].power
        return int(left / GPUS[self.token].power + 1e-9)

    def fleet(self, prompts: int, machines: dict[str, LatencyModel]) -> Cluster:
        """Return the fleet with so many prompt machines, or machines of one kind."""
        pools: list[tuple[str, Role, int]] = [(self.prompt, "prefill", prompts), (self.token, "decode", 0)]
        if self.token:
            pools[1] = (self.token, "decode", self.machines(prompts))
        else:
            pools = [(self.prompt, "both", prompts)]
        specs = tuple(WorkerSpec(machines[kind], role=role) for kind, role, count in pools for _ in range(count))
        twice = self.prompt == "h100" and self.token.startswith("h100")
        link = KvLink(KV_BYTES, LINK_BYTES_PER_S * (1 + twice), layers=LAYERS, sync_ns=SYNC_NS)
        return Cluster(machines[self.prompt], specs, link=link)


DESIGNS = {"AA": Design("a100", "a100"), "HH": Design("h100", "h100"), "HHcap": Design("h100", "h100-capped")}
DESIGNS["HA"] = Design("h100", "a100")
RUN = RunSpec.of(SplitwiseMachine(), Splitwise())
STEP = 1.05
"""Rates that are tried are powers of this."""
REQUESTS = 1_000


def _workload(kind: str, seed: int) -> Workload:
    """Return requests with the lengths of Azure's traces on Poisson arrivals, each of which declares its output."""
    jobs = generate(f"azure-{kind}", seed=seed, requests=REQUESTS, rate=10.0, arrivals="poisson", cv=1.0)
    known = (replace(job, request=replace(job.request, max_output_tokens=job.output_tokens)) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(known))


def _apart(jobs: Workload) -> Workload:
    """Return the requests with a minute between them, so that none meets another."""
    spread = (replace(job, request=replace(job.request, arrival_ns=i * 60 * 10**9)) for i, job in enumerate(jobs.jobs))
    return replace(jobs, jobs=tuple(spread))


@attrs.frozen
class BestSplit:
    """The best of some fleets: its prompt machines, the power of `STEP` that is its highest rate, and how much of its
    nearest target it uses there."""

    prompts: int
    power: int
    used: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return STEP**self.power


@lru_cache(maxsize=16)
def _best(kind: str, seed: int, design: Design, prompts: tuple[int, ...], start: int, grows: bool = False) -> BestSplit:
    """Return the fleet with the highest rate that keeps all nine targets; of equals that with the most slack.

    The first is searched, from STEP to the power `start` on; each other one has to keep the targets at the best rate so
    far.
    """
    machines = GROWING if grows else PUBLISHED
    jobs, targets = _workload(kind, seed), nine_slos(machines["a100"])
    best: BestSplit | None = None
    for count in prompts:
        fleet = design.fleet(count, machines)
        power = start if best is None else best.power
        worst = _used(jobs, fleet, targets, power)
        while best is None and worst > 1:
            power -= 2
            worst = _used(jobs, fleet, targets, power)
        if worst > 1:
            continue
        while (next_worst := _used(jobs, fleet, targets, power + 1)) <= 1:
            power, worst = power + 1, next_worst
        if best is None or (power, -worst) > (best.power, -best.used):
            best = BestSplit(count, power, worst)
    assert best is not None
    return best


def _used(jobs: Workload, fleet: Cluster, targets: Sequence[SloTarget], power: int) -> float:
    """Return how much of its nearest target the fleet uses at a rate; above 1 it misses one."""
    return trial(at_rate(jobs, STEP**power), RUN, fleet, targets).worst


_CODE, _CHAT = (14, 13, 15, 12, 10, 8), (10, 12, 8, 14, 6)
"""Prompt machines of 16 that are tried, those of the paper's splits first: 35 and 25 of 40."""
_LENGTHS = "requests of known output with the lengths of Azure's {} on Poisson arrivals, 1,000 a seed"
_ORACLE = "the highest rate, in steps of 5 %, at which all nine targets against a quiet DGX-A100 are kept"


@row(
    id="15",
    about="the split that a search returns",
    panel="provisioning",
    setting="every split of 16 DGX-H100 into prompt and token machines (of code 14, 13, 15, 12, 10, 8 prompt machines, "
    f"of conversations 10, 12, 8, 14, 6): {_ORACLE}; {_LENGTHS.format('code and conversations')}",
    claims=(
        Printed("code", "share of prompt machines, code", "35 of 40, 27 of 30", 0.8, 1.0, neutral=None),
        Printed("chat", "share of prompt machines, conversations", "25 of 40", 0.5, 0.75, neutral=None),
        above_zero("more", "share of code less that of conversations", "code needs more prompt machines"),
    ),
    platform=Platform("bloom-176b-h100", workers=16),
    note="16 machines for the paper's 40, with rates in proportion; token steps as the released simulator has them, of "
    "one length whatever the batch, row 15b has them grow.  The highest rates of conversations hardly differ between 8 "
    "and 12 prompt machines, so their split, and its difference to that of code, vary with the seed",
    seconds=30,
)
def splits(on: Platform, seed: int) -> Figures:
    """Search both workloads."""
    return _shares(seed, grows=False)


def _shares(seed: int, grows: bool) -> Figures:
    code = _best("code", seed, DESIGNS["HH"], _CODE, 64, grows).prompts / 16
    chat = _best("chat", seed, DESIGNS["HH"], _CHAT, 60 if grows else 76, grows).prompts / 16
    return {"code": code, "chat": chat, "more": code - chat}


@row(
    id="15a",
    about="designs at equal power",
    panel="iso-power",
    setting="16 DGX-H100 or 28 DGX-A100, each design with its best split: "
    f"{_ORACLE}; baselines are the same machines in one mixed pool; {_LENGTHS.format('code and conversations')}",
    claims=(
        *(
            claim
            for kind, what in (("code", "code"), ("chat", "conversations"))
            for claim in (
                Printed(f"{kind} AA/HH", f"{what}: AA over HH", "AA has the most", 1.0, inf),
                more(f"{kind} HH/H100", f"{what}: HH over Baseline-H100"),
                more(f"{kind} AA/A100", f"{what}: AA over Baseline-A100", "up to 2.15 for one of the workloads"),
            )
        ),
        number("best AA/A100", "AA over Baseline-A100, the better of both workloads", "2.15", 2.15),
    ),
    platform=Platform("bloom-176b-h100", workers=16),
    note="as row 15; of AA fewer splits are tried, those beside the best of HH.  That AA has less than HH on code is "
    "not explained: the search of HH ends at the P99 between tokens, of requests whose token machine lent itself to a "
    "prompt, and a prompt of 7,000 tokens takes a DGX-A100 3 s",
    seconds=60,
)
def designs(on: Platform, seed: int) -> Figures:
    """Search designs and baselines."""
    found: dict[str, float] = {}
    for kind, own, other, starts in (
        ("code", _CODE, (25, 23, 21), (64, 64, 54, 51)),
        ("chat", _CHAT, (20, 18, 16), (76, 76, 74, 58)),
    ):
        hh = _best(kind, seed, DESIGNS["HH"], own, starts[0]).rate
        aa = _best(kind, seed, DESIGNS["AA"], other, starts[1]).rate
        h100 = _best(kind, seed, Design("h100"), (16,), starts[2]).rate
        a100 = _best(kind, seed, Design("a100"), (28,), starts[3]).rate
        found |= {f"{kind} AA/HH": aa / hh, f"{kind} HH/H100": hh / h100, f"{kind} AA/A100": aa / a100}
    return found | {"best AA/A100": max(found["code AA/A100"], found["chat AA/A100"])}


@row(
    id="15b",
    about="the split where token steps grow with their context",
    panel="provisioning",
    setting="row 15 with the presets' token steps, which grow by 0.7 us for each token of context, as the published "
    "medians of Llama2-70B do",
    claims=splits.claims,
    platform=Platform("bloom-176b-h100", workers=16),
    note="no panel of the paper: it shows what row 15 rests on.  A token machine that is filled has steps of twice the "
    "time, and half of the requests may not be slowed down by more than 1.25 against a DGX-A100",
    seconds=30,
)
def splits_of_growing_steps(on: Platform, seed: int) -> Figures:
    """Search both workloads."""
    return _shares(seed, grows=True)


@row(
    id="15c",
    about="machines for 70 requests a second",
    panel="provisioning",
    setting="16 DGX-H100 with their best split for code, as in row 15, in proportion to 70 requests a second; and the "
    "power of both fleets",
    claims=(
        number("machines", "DGX-H100 for 70 requests of code a second", "27 and 3", 30, neutral=None),
        number("iso-power", "DGX-A100 with the power of 40 DGX-H100", "70", 70, neutral=None, decimals=0),
    ),
    platform=Platform("bloom-176b-h100", workers=16),
    seconds=15,
)
def machines(on: Platform, seed: int) -> Figures:
    """Scale the fleet of the search."""
    found = _best("code", seed, DESIGNS["HH"], _CODE, 64)
    return {"machines": 70 * 16 / found.rate, "iso-power": 40 * GPUS["h100"].power / GPUS["a100"].power}


# --- transfers --------------------------------------------------------------------------------------------------------

LONG_TOKENS = 1_500


@row(
    id="16",
    about="what a transfer adds",
    panel="KV transfer",
    setting="one request at a time on a prompt and a token DGX-H100, and on one machine for both: lengths of Azure's "
    "code, 400 a seed; KV goes at 400 GB/s, prompts from 512 tokens on layer by layer, or all after the prefill",
    claims=(
        Printed("serial E2E", "end to end, all after the prefill", "up to 3 %", 0.0, 0.03, neutral=0.0),
        number("layers E2E", "end to end, layer by layer", "0.8 %", 0.008, neutral=0.0),
        number("serial second", "the second token, all after the prefill", "+64 %", 0.64, neutral=0.0),
        number("layers second", "the second token, layer by layer", "+16.5 %", 0.165, neutral=0.0),
        Printed("ratio", "layer by layer over after the prefill, prompts beyond 1,500", "0.35 or less", 0.0, 0.35),
    ),
    platform=Platform("bloom-176b-h100", workers=2),
    note="the synchronisation of layers takes the 5 ms that the paper measured; between DGX-H100 Table V has twice the "
    "links of DGX-A100, whose 200 GB/s the released simulator takes for all.  Shares are means over the requests",
    seconds=4,
    quick=False,
)
def transfers(on: Platform, seed: int) -> Figures:
    """Compare each request's times with those of one machine."""
    jobs = _apart(generate("azure-code", seed=seed, requests=400))
    joint = outcomes_of(jobs, RUN, Design("h100").fleet(1, PUBLISHED))
    pair = DESIGNS["HH"].fleet(14, PUBLISHED)
    pair = attrs.evolve(pair, workers=(pair.specs[0], pair.specs[-1]))
    alone_ns = (joint.finish - joint.arrival).astype(np.float64)
    visible: dict[str, np.ndarray] = {}
    figures: dict[str, float] = {}
    for name, tokens in (("serial", 1 << 22), ("layers", 512)):
        split = outcomes_of(jobs, RunSpec.of(SplitwiseMachine(), Splitwise(layers_from_tokens=tokens)), pair)
        visible[name] = (split.finish - split.arrival) - alone_ns
        figures[f"{name} E2E"] = float((visible[name] / alone_ns).mean())
        figures[f"{name} second"] = float(visible[name].mean()) / (TOKEN_MS * 1e6)
    long = joint.prompt > LONG_TOKENS
    return figures | {"ratio": float(visible["layers"][long].sum() / visible["serial"][long].sum())}


@row(
    id="17",
    about="nine targets as the oracle of a search",
    panel="Table VI",
    setting="slowdowns of the time to the first token, between tokens and to the last against the same request alone "
    "on a DGX-A100, at P50, P90 and P99; one DGX-A100 and one DGX-H100, quiet and with ever more of Azure's "
    "conversations",
    claims=(
        number("targets", "targets", "9", 9, neutral=None, decimals=0),
        number("quiet", "largest slowdown of a quiet DGX-A100, all nine", "none", 1, None, decimals=2),
        Printed("fast", "largest slowdown of a quiet DGX-H100", "none", 0.0, 1.0, neutral=None),
        number("kept", "share of the nine that are kept at half of the highest rate", "all", 1, None, decimals=2),
        Printed("missed", "share that are kept at twice that rate", "not all", 0.0, 8 / 9, neutral=None),
    ),
    platform=Platform("bloom-176b-a100"),
    note="a figure of ours: the paper prints the targets.  The highest rate is the last at which all nine are kept",
    seconds=4,
)
def oracle(on: Platform, seed: int) -> Figures:
    """Ask the oracle about fleets that must pass, and about one that must not."""
    jobs = replace(_workload("chat", seed), jobs=_workload("chat", seed).jobs[:200])
    targets = nine_slos(PUBLISHED["a100"])
    limits = np.array([limit for target in targets for _, limit in target.limits])
    a100, h100 = Design("a100").fleet(1, PUBLISHED), Design("h100").fleet(1, PUBLISHED)
    quiet = _apart(jobs)
    slowdowns = {
        kind: np.array(trial(quiet, RUN, cluster, targets).excess) * limits
        for kind, cluster in (("a100", a100), ("h100", h100))
    }
    power = -20
    while _used(jobs, a100, targets, power + 1) <= 1:
        power += 1
    kept = [
        np.mean(np.array(trial(at_rate(jobs, STEP**power * times), RUN, a100, targets).excess) <= 1)
        for times in (0.5, 2.0)
    ]
    return {
        "targets": len(targets),
        "quiet": float(slowdowns["a100"].max()),
        "fast": float(slowdowns["h100"].max()),
        "kept": float(kept[0]),
        "missed": float(kept[1]),
    }


PANELS = (
    Panel("characterization", "throughput and latency of prompts and outputs on a profile", rows=("13", "14")),
    Panel("KV transfer", "serial and layer-wise transfer: end to end, and the second token", rows=("16",)),
    Panel("Table VI", "targets as slowdowns", rows=("17",)),
    Panel("provisioning", "splits of a fleet: what a search returns", rows=("15", "15b", "15c")),
    Panel("iso-power", "designs at equal power", rows=("15a",)),
    Panel("iso-cost", "designs at equal cost; one machine has two costs in Table V (2.35 and 2.5)"),
    Panel("robustness", "a workload on the fleet of another, other models, batch jobs"),
    Panel("machines", "power, memory and time of real machines", impossible="measured on hardware"),
)
