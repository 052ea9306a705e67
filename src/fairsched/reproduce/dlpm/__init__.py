"""DLPM and D2LPM on one worker and before several: the evaluation of "Locality-aware Fair Scheduling in LLM Serving".

Source: Cao et al., 2025, as far as it was available to us: what it runs and finds, without the lengths and rates of its
workloads, and without its figures' numbers where a row says so.  Read `systems` first.
"""

from fairsched.reproduce.dlpm.cluster import (
    against_preble,
    against_round_robin,
    against_vtc,
    central,
    evenness,
    monopoly,
    quantum,
    workers,
    workers_evenness,
)
from fairsched.reproduce.dlpm.floods import floods, served
from fairsched.reproduce.dlpm.one_worker import clients, front, mixed
from fairsched.reproduce.row import Panel

__all__ = [
    "PANELS", "against_preble", "against_round_robin", "against_vtc", "central", "clients", "evenness", "floods",
    "front", "mixed", "monopoly", "quantum", "served", "workers", "workers_evenness"
]  # fmt: skip

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
