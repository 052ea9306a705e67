"""DistServe: mean times to the first token of one prefill instance, and what moving KV needs.

Source: Zhong et al., "DistServe" (OSDI'24), sections 3.1 and 3.3.  What needs split phases is open.
"""

from functools import partial

import numpy as np

from fairsched.engines.capacity import crossover, one_instance, two_shards, two_stages
from fairsched.reproduce.row import Claim, Figures, Panel, Platform, Row

REQUESTS = 2_000_000
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of each system's saturation."""
SPEEDUP = 1.5
CROSSOVERS = {1.1: 0.236, 1.3: 0.611, 1.5: 0.936, 1.7: 1.257, 1.9: 1.626}
"""Loads up to which sharing operators is better, by speed-up; the paper prints the equations."""
OPT_66B = {"layers": 64, "hidden": 9_216}


def _within_one_percent(system: str, load: float) -> Claim:
    return Claim(
        f"{system} {load}", f"{system}, load {load}", "the formula, within 1 %", 0.99, 1.01, neutral=None, decimals=3
    )


@partial(
    Row,
    id="8",
    about="the queue before a prefill instance",
    paper="distserve",
    panel="equations 1 to 3",
    setting="2,000,000 requests of equal length on Poisson arrivals, first come first served; one accelerator, a "
    "pipeline of two, and two that share operators and are 1.5 times as fast; mean time to the first token over the "
    "formula's",
    claims=(
        *(_within_one_percent(system, load) for system in ("one", "pipeline", "shared") for load in LOADS),
        *(
            Claim(
                f"crossover {k}",
                f"crossover with speed-up {k}",
                f"{u}, where equations 2 and 3 are equal",
                u,
                u,
                neutral=None,
                decimals=3,
            )
            for k, u in CROSSOVERS.items()
        ),
    ),
    note="equation 2 was lost in print and is derived again; the second stage of a pipeline of equal stages makes no "
    "request wait, which the simulated pipeline shows",
    seconds=4,
    quick=True,
)
def prefill_queues(on: Platform, seed: int) -> Figures:
    """Simulated means over the formulas', by load."""
    rng = np.random.default_rng(seed)
    found = {f"crossover {k}": crossover(k) for k in CROSSOVERS}
    gaps = rng.exponential(1.0, REQUESTS)
    for load in LOADS:
        found[f"one {load}"] = _simulated(gaps / load, (1.0,)) / one_instance(1.0, load)
        rate = 2 * load
        found[f"pipeline {load}"] = _simulated(gaps / rate, (0.5, 0.5)) / two_stages(1.0, rate)
        rate = SPEEDUP * load
        found[f"shared {load}"] = _simulated(gaps / rate, (1 / SPEEDUP,)) / two_shards(1.0, rate, SPEEDUP)
    return found


def _simulated(gaps: np.ndarray, stages: tuple[float, ...]) -> float:
    """Return the mean time through stages in a row, each with a queue of its own (Lindley's recursion)."""
    arrivals = np.cumsum(gaps)
    leaves = arrivals
    for service in stages:
        # A request leaves a stage when all before it and itself were served since the stage last was idle.
        served = service * np.arange(1, len(leaves) + 1)
        leaves = np.maximum.accumulate(leaves - served + service) + served
    return float(np.mean(leaves - arrivals))


@partial(
    Row,
    id="12",
    about="what moving KV needs",
    paper="distserve",
    panel="section 3.3",
    setting="KV of 512 tokens of OPT-66B in 16 bits, and the link that 10 requests a second of that length need",
    claims=(
        Claim("gib", "KV of 512 tokens", "1.13 GB", 1.125, 1.13, neutral=None, decimals=3),
        Claim("gbps", "link for 10 requests a second", "90 Gbps", 90.0, 90.0, neutral=None, decimals=0),
    ),
    note="the paper's GB are 2^30 bytes",
    seeds=1,
    seconds=1,
    quick=True,
)
def kv_transfer(on: Platform, seed: int) -> Figures:
    """Bytes of keys and values."""
    kv_bytes = 2 * 2 * OPT_66B["layers"] * OPT_66B["hidden"] * 512
    return {"gib": kv_bytes / 2**30, "gbps": kv_bytes / 2**30 * 10 * 8}


PANELS = (
    Panel("equations 1 to 3", "the queue before a prefill instance", rows=("8",)),
    Panel("section 3.3", "what moving KV needs", rows=("12",)),
    Panel("evaluation", "goodput and attainment of split against joint phases, by application, rate and target"),
)
