"""Energy: joules per output token beside the leaderboard of those who measure them, and what waiting for a low carbon
intensity saves.

Sources: the ML.ENERGY leaderboard 3.0 (ml-energy/leaderboard, public/data/models, lm-arena-chat): vLLM 0.11.1 on H100,
as many requests at a time as fit a batch; FREESH (arXiv 2511.00807).
"""

import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import energy_nj
from fairsched.engines.capacity import outcomes_of
from fairsched.engines.simulation import RunSpec
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.reproduce.row import Figures, Panel, Platform, Printed, number, rows_of
from fairsched.reproduce.runs import A100, measured, run

row = rows_of("energy")

MACHINES = {
    "8B": ("llama-3.1-8b-h100", 392, {8: (0.4548, 486), 64: (0.1186, 610), 256: (0.0766, 691)}),
    "32B": ("qwen3-32b-h100-tp2", 612, {8: (1.6271, 425), 64: (0.3671, 487), 256: (0.2285, 589)}),
    "70B": ("llama-3.1-70b-h100-tp4", 352, {8: (3.7587, 441), 64: (0.7972, 500), 256: (0.4790, 589)}),
}
"""Machines, mean output tokens, and by the requests of a batch joules per output token and watts per GPU."""
PROMPT_TOKENS = 100
"""Of every prompt; the leaderboard does not say."""
ROUNDS = 24
"""Requests for each place of a batch, so many that the last ones, in batches that shrink, count little."""


def _claims() -> tuple[Printed, ...]:
    found = []
    for machine, (_, _, batches) in MACHINES.items():
        for batch, (joules, watts) in batches.items():
            name = f"{machine}, batches of {batch}"
            found.append(number(f"{name}: J/token", f"{name}: joules per output token", f"{joules}", joules, None))
            found.append(number(f"{name}: W", f"{name}: watts of a GPU", f"{watts}", watts, None))
    return tuple(found)


def _together(requests: int, output_tokens: int, seed: int) -> Workload:
    """Return requests that come at once, with exponential outputs."""
    drawn = np.random.default_rng(seed).exponential(output_tokens, requests)
    outputs = np.clip(drawn.round(), 1, 4_096).astype(int).tolist()
    jobs = tuple(Job(Request(i, 0, 0, Prompt(PROMPT_TOKENS), tokens), tokens) for i, tokens in enumerate(outputs))
    return Workload("together", jobs, (Client(0, "chat"),))


@row(
    id="90",
    about="joules per token of three models (ML.ENERGY)",
    panel="leaderboard 3.0, LM Arena chat on H100",
    platform=Platform("llama-3.1-70b-h100-tp4"),
    setting="Llama-3.1-8B on one H100, Qwen3-32B on two and Llama-3.1-70B on four, by formula, with batches of 8, "
    "64 and 256 requests that are there from the beginning",
    claims=_claims(),
    note="power is by the fit to Qwen3-14B, and all of it comes out; joules of 32B and 70B do too. Steps of 8B take "
    "longer in large batches than by the formula (26 ms for 15 at 256), and so they draw more",
    seconds=20,
)
def joules(on: Platform, seed: int) -> Figures:
    """A run for each machine and batch."""
    found: dict[str, float] = {}
    for machine, (name, output_tokens, batches) in MACHINES.items():
        there = Platform(name)
        for batch in batches:
            jobs = _together(ROUNDS * batch, output_tokens, seed)
            one = run(jobs, "fcfs-optimistic", on=there, params={"max_running": batch})
            (worker,), measures = one.workers, one.measures
            found[f"{machine}, batches of {batch}: J/token"] = measured(measures.joules_per_token, "joules")
            seconds = measures.makespan_us / 1e6 * (there.latency.gpus or 1)
            found[f"{machine}, batches of {batch}: W"] = measured(worker.energy_j, "joules") / seconds
    return found


DAY = (308, 305, 306, 313, 323, 329, 326, 314, 299, 287, 279, 275, 276, 284, 297, 315, 333, 346, 350, 346, 340, 334,
       323, 314)  # fmt: skip
"""Grams of CO2 a kWh by hour of the day: Germany's in 2020, the mean over all days (dos-group/lets-wait-awhile,
data/ger_ci.csv)."""
HOUR_S = 150
"""An hour of that day, in an hour of serving."""
RATE, DEFER_S = 0.3, 12 * HOUR_S


@row(
    id="91",
    about="energy and emissions under a price curve (FREESH)",
    panel="FREESH, abstract",
    platform=Platform(A100),
    setting="conversations for an hour at 0.3 requests a second, half of which may wait for half of it; a day of "
    "carbon intensities in that hour; `valley-filling` before `dlpm`, against the same without waiting",
    claims=(
        number("energy", "energy over that without waiting", "-28.6 %", 0.714),
        number("emissions", "grams of CO2 over those without waiting", "-45.45 %", 0.5455),
    ),
    note="FREESH moves work between sites and GPUs and lowers clocks, none of which is here: what is left is that "
    "requests that waited share batches in the valley of one grid, whose intensity falls by a fifth at most",
    seconds=20,
)
def valley(on: Platform, seed: int) -> Figures:
    """The same requests twice."""
    jobs = at_rate(generate("azure-chat", requests=round(3_600 * RATE), arrivals="poisson", seed=seed), RATE)
    waits = np.random.default_rng(seed).integers(0, 2, len(jobs.jobs)).tolist()
    marked = (
        replace(job, request=replace(job.request, priority=-may)) for job, may in zip(jobs.jobs, waits, strict=True)
    )
    jobs = replace(jobs, jobs=tuple(marked))
    prices = "+".join(f"{hour * HOUR_S}:{DAY[hour % 24]}" for hour in range(48))
    drawn, emitted = [], []
    for defer_s in (0, DEFER_S):
        spec = RunSpec.of("dlpm", "valley-filling", router_params={"prices": prices, "defer_s": str(defer_s)})
        outcomes = outcomes_of(jobs, spec, on.cluster)
        edges = [outcomes.origin + hour * HOUR_S * 10**9 for hour in range(49)]
        hours = [sum(energy_nj(outcomes.trace, [on.latency], *edges[hour : hour + 2]).values()) for hour in range(48)]
        drawn.append(sum(hours))
        emitted.append(sum(nj * DAY[hour % 24] for hour, nj in enumerate(hours)))
    return {"energy": drawn[1] / drawn[0], "emissions": emitted[1] / emitted[0]}


PANELS = (
    Panel("leaderboard 3.0, LM Arena chat on H100", "joules per token and power by batch", rows=("90",)),
    Panel("FREESH, abstract", "energy and emissions of an hour of serving", rows=("91",)),
)
