"""Preble: what sharing prefixes across GPUs is worth, by workload, GPUs and load, and what each of its parts is worth.

Source: Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25): its text and its
published code, which says what the text leaves open.  Preble is E2 before workers with its local scheduler; the
baseline sends requests round robin to workers with SGLang's longest prefix match.  Rates are those of the paper's
axes, in requests a second.  There are as many tools, tasks, videos, documents and problems as in the code, each asked
about equally often and throughout.

`workloads.py` has the runs, `sweeps.py` and `parts.py` the rows.
"""

from fairsched.reproduce.preble.parts import ablation, autoscaling, few_tools, window
from fairsched.reproduce.preble.sweeps import (
    AGENT,
    DOCUMENTS,
    PROGRAMS,
    TOOLBENCH,
    VIDEOS,
    against_vllm,
    azure,
    eight_h100,
    four_gpus,
)
from fairsched.reproduce.row import Panel

__all__ = [
    "AGENT",
    "DOCUMENTS",
    "PANELS",
    "PROGRAMS",
    "TOOLBENCH",
    "VIDEOS",
    "ablation",
    "against_vllm",
    "autoscaling",
    "azure",
    "eight_h100",
    "few_tools",
    "four_gpus",
    "window",
]

PANELS: tuple[Panel, ...] = (
    Panel("Table 1, Fig. 6", "statistics of the five workloads", impossible="input: the generators are fitted to them"),
    Panel("Fig. 3, 2 A6000", "latency over rate, five workloads", rows=("29", "29c", "29d", "29e", "29f")),
    Panel("Fig. 3, 4 A6000", "the same on four GPUs, and latency that stays as rate and GPUs double", rows=("29b",)),
    Panel("Fig. 3, 8 H100", "the same with Llama-3-70B on two workers of four H100", rows=("29g",)),
    Panel("Fig. 4", "tools and videos mixed, arriving as Azure's requests do", rows=("42",)),
    Panel("Fig. 5", "what each part is worth", rows=("30", "30b")),
    Panel("section 3.2, autoscaling", "a prefix that is too much for one GPU gets another", rows=("44",)),
    Panel("section 3.2, window H", "results do not depend on the window", rows=("31",)),
    Panel(
        "section 4.4, global scheduler",
        "245 and 2,931 decisions a second",
        impossible="speed of the host that runs it; benchmarks/e2.py measures ours",
    ),
    Panel("Fig. 7", "times between arrivals and prompt-to-output ratio of Azure's traces"),
    Panel(
        "Figs 9, 10", "prefill and decode time by length", impossible="input: the preset mistral-7b-a6000 is their fit"
    ),
    Panel("Fig. 11", "vLLM as the backend", rows=("43",)),
    Panel("Fig. 12", "a later version of SGLang", impossible="engine versions differ in kernels; as rows 29 and 29f"),
    Panel("arXiv version 1, Figs 13, 16, 17", "not in the ICLR version, whose figures end at 12; text not found"),
)
