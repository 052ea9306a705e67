"""Splitwise: its profile, the transfer of KV, the split that a search finds, and designs at equal power.

Source: Patel et al., "Splitwise" (ISCA'24), and the medians that its authors published.

Machines are DGX boxes with BLOOM-176B.  The released simulator interpolates both phases in the tokens of a batch, of
which a request that decodes is one, so a token step takes the published median whatever the batch and its context; the
rows that follow the paper do the same (`PUBLISHED`).  The medians show that steps grow with their context, which the
presets have: one row searches with them too.

The paper's fleets of equal power are 40 DGX-H100 or 70 DGX-A100.  Here they are two fifths of that, 16 or 28, so both
of its splits are whole numbers of machines, and rates are two fifths too.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.capacity import nine_slos, trial
from fairsched.engines.fleet import KvLink, WorkerSpec
from fairsched.engines.simulation import Cluster, RunSpec, Simulator
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.latency import GPUS, PRESETS, DecodePiece, LatencyModel
from fairsched.model.request import Workload
from fairsched.model.view import Role
from fairsched.policies.catalog import SplitwiseMachine
from fairsched.policies.routers import Splitwise
from fairsched.reproduce.row import Claim, Figures, Panel, Platform, Row, above_zero, more

PROMPT_MS = {512: 76, 1_024: 133, 2_048: 253, 4_096: 689}
"""Medians of BLOOM-176B on eight H100: a prompt of so many tokens."""
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


@partial(
    Row,
    id="13",
    about="prompts and outputs on one profile",
    paper="splitwise",
    panel="characterization",
    setting="BLOOM-176B on eight H100, the published medians with straight lines between them",
    claims=(
        Claim("outputs", "output tokens in the time of a prompt of 1,500", "about 6", 6, 6, neutral=None),
    ),
    seeds=1,
    seconds=1,
    quick=True,
)
def profile(on: Platform, seed: int) -> Figures:
    """Read the profile."""
    return {"outputs": prompt_ms(1_500) / TOKEN_MS}


@partial(
    Row,
    id="14",
    about="batches beyond 2,048 tokens, and capped power",
    paper="splitwise",
    panel="characterization",
    setting="BLOOM-176B on eight H100: the published medians, and the presets with and without a cap of power",
    claims=(
        Claim("at 2048", "prompt tokens a ms at 2,048", "8.1", 8.1, 8.1, neutral=None, decimals=1),
        Claim("at 4096", "prompt tokens a ms at 4,096", "5.9", 5.9, 5.9, neutral=None, decimals=1),
        Claim("fall", "throughput at 4,096 over 2,048", "it falls beyond 2,048 tokens", 0.0, 1.0, neutral=None),
        Claim("capped prompt", "a prompt of 1,500 with capped power, over without", "1.30", 1.3, 1.3, decimals=2),
        Claim("capped token", "a token step with capped power, over without", "unchanged", 1, 1, None, decimals=2),
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
    return attrs.evolve(PRESETS[name], decode=(DecodePiece(1, token_ms * 1_000_000, 0, 0),))


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
    """Return requests with the lengths of Azure's traces on Poisson arrivals, each of which declares its true output."""
    jobs = generate(f"azure-{kind}", seed=seed, requests=REQUESTS, rate=10.0, arrivals="poisson", cv=1.0)
    known = (replace(job, request=replace(job.request, max_output_tokens=job.output_tokens)) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(known))


@attrs.frozen
class Found:
    """The best of some fleets: its prompt machines, the power of `STEP` that is its highest rate, and how much of its
    nearest target it uses there."""

    prompts: int
    power: int
    used: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return STEP**self.power


def _best(jobs: Workload, design: Design, prompts: Iterable[int], machines: dict[str, LatencyModel]) -> Found:
    """Return the fleet with the highest rate that keeps all nine targets; of equals that with the most slack.

    The first is searched; each other one has to keep the targets at the best rate so far.
    """
    targets = nine_slos(machines["a100"])

    def used(cluster: Cluster) -> Callable[[int], float]:
        return lambda power: trial(at_rate(jobs, STEP**power), RUN, cluster, targets).worst

    best: Found | None = None
    for count in prompts:
        measure = used(design.fleet(count, machines))
        power = START if best is None else best.power
        worst = measure(power)
        while best is None and worst > 1:
            power -= 2
            worst = measure(power)
        if worst > 1:
            continue
        while (more_used := measure(power + 1)) <= 1:
            power, worst = power + 1, more_used
        if best is None or (power, -worst) > (best.power, -best.used):
            best = Found(count, power, worst)
    assert best is not None
    return best


START = 64
"""Searches begin at STEP to this power, 22.7 requests a second."""
SPLITS = (14, 13, 15, 12, 10, 8, 6)
"""Prompt machines of 16: the paper's split of code first, 35 of 40."""


PANELS = (
    Panel("characterization", "throughput and latency of prompts and outputs on a profile", rows=("13",)),
    Panel("evaluation", "transfer of KV, the provisioning search, designs at equal power and cost, robustness"),
)
