"""Rules that routers and engines of the field ship, each beside the one that it replaces.

Their papers' traces are not public, or name models that are no preset here: the workloads are the generators' nearest.
"""

from fairsched.engines.analysis import Run
from fairsched.reproduce.row import Figures, Panel, Platform, fewer, number, rows_of
from fairsched.reproduce.runs import A100, measured, run, workload

row = rows_of("field")


def _means(one: Run) -> tuple[float, float]:
    """Return means of the time to the first token, and for each token after it."""
    return measured(one.measures.ttft_us.mean, "a mean"), measured(one.measures.tpot_us.mean, "a mean")


FIGURES = ("TTFT", "TPOT")
BASELINES = {"join-shortest-queue": ("vLLM", 92, 21), "e2": ("a production scheduler", 52, 20)}
"""Routers with what they stand for, and by how many per cent each figure is less at most."""
LMETRIC_CELLS = {"chats": "multi-turn", "tools": "toolbench", "agents": "agent"}


@row(
    id="83",
    about="a router by multiplication (LMetric)",
    panel="LMetric, abstract",
    platform=Platform(A100, 8),
    setting="chats, tool calls and agents at 90 % of what the workers can do, FCFS workers; `lmetric` against the "
    "fewest requests, which is vLLM's own router, and against E2, for which the production scheduler stands",
    claims=(
        *(
            number(f"least {figure} over {other}", f"mean {figure} over {name}'s at best", f"-{less} %", 1 - less / 100)
            for other, (name, *most) in BASELINES.items()
            for figure, less in zip(FIGURES, most, strict=True)
        ),
        *(
            fewer(f"{cell} {figure} over {other}", f"{cell}: mean {figure} over {name}'s", "less")
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
                found[f"least {figure} over {other}"] = min(
                    mine / its, found.get(f"least {figure} over {other}", mine / its)
                )
    return found


PANELS = (Panel("LMetric, abstract", "mean latencies against vLLM's and a production scheduler", rows=("83",)),)
