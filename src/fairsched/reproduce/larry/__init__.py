"""LARRY's order before an engine and SAL's choice among engines, on Azure's lengths and Functions-like arrivals.

No code is public, and of the paper's figures only the ranges that its text names are known to us.  Read `loads` first:
machines, baselines and what load is; `queue` has LARRY's rows, `routers` SAL's.  No two prompts share a prefix.
"""

from fairsched.reproduce.larry.queue import (
    CHAT_8B,
    CHAT_70B,
    CODE_8B,
    CODE_70B,
    alphas,
    as_printed,
    serving_capacity,
)
from fairsched.reproduce.larry.routers import SAL_4, SAL_8, SAL_70B, SAL_CODE, sal_printed
from fairsched.reproduce.row import Panel

__all__ = [
    "CHAT_8B", "CHAT_70B", "CODE_8B", "CODE_70B", "PANELS", "SAL_4", "SAL_8", "SAL_70B", "SAL_CODE", "alphas",
    "as_printed", "sal_printed", "serving_capacity"
]  # fmt: skip

PANELS = (
    Panel("TTFT and normalised TTFT at saturation", "LARRY against the baselines, chat, 8B and 70B", ("21", "21c")),
    Panel("code workload", "the same with the lengths of Azure's code trace", ("21b", "21d")),
    Panel("latency by load, serving capacity", "LARRY against the baselines", ("21e",)),
    Panel("sensitivity to alpha", "alpha of 1, 500 and 1,000", ("22",)),
    Panel("SAL, 4 and 8 servers", "SAL against P2C and Random", ("23", "23b")),
    Panel("SAL, code workload", "SAL against P2C and Random", ("23c",)),
    Panel("SAL, 70B on 8 H100", "TP4 x DP2", ("23d",)),
    Panel("generation time", "mean from arrival to the last token, SAL against P2C and Random", ("23", "23b", "23c")),
    Panel("equation 1", "what the printed sign does", ("21f",)),
    Panel("equation 2", "what the printed product does", ("66",)),
    Panel(
        "cost of the scheduler",
        "time of decisions beside a step",
        impossible="the engine's own loop on a GPU; benchmarks/decisions.py and routers.py time ours",
    ),
)
"""The panels that our specification of the paper names, by what they show; others that it has may be missing."""
