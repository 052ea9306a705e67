"""BatchLLM: what grouping saves, what an LRU cache keeps of it, and what order and token batching are worth.

Source: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Prompts come all at once; outputs of the micro-benchmarks are not stated and are 100 tokens here.
"""

from functools import partial

import numpy as np

from fairsched.model.request import Prompt
from fairsched.policies.offline import Grouping, groups_by, tree_of
from fairsched.reproduce.row import Claim, Figures, Panel, Platform, Row

# --- exact ------------------------------------------------------------------------------------------------------------


def _keys(*parts: tuple[int, int]) -> Prompt:
    """A prompt of runs (token, how many), token by token."""
    return Prompt.from_keys(np.concatenate([np.full(count, token) for token, count in parts]))


def _ratio(prompts: list[Prompt], grouping: Grouping = "exact") -> float:
    return 100 * groups_by(tree_of(prompts), grouping).saving_ratio


def _exactly(figure: str, about: str, percent: float) -> Claim:
    """A share that must come out as printed, to two decimals."""
    return Claim(figure, about, f"{percent:.2f} %", percent, percent, neutral=None, decimals=2)


@partial(
    Row,
    id="1",
    about="what one level of sharing can save",
    paper="batchllm",
    panel="evaluation, micro-benchmark",
    setting="16 prompts share 2,000 or 16,000 tokens and have 200 of their own; the saving is found by the grouping",
    claims=(
        _exactly("2000", "2,000 shared tokens", 85.23),
        _exactly("16000", "16,000 shared tokens", 92.59),
    ),
    note="printed as 85.2 and 92.6 %; the decimals are 15/16 of 2,000/2,200 and of 16,000/16,200",
    seeds=1,
    seconds=1,
    quick=True,
)
def one_level(on: Platform, seed: int) -> Figures:
    """16 prompts share all but 200 tokens."""
    return {
        str(prefix): _ratio([_keys((g, prefix), (100 + i, 200)) for g in range(4) for i in range(16)])
        for prefix in (2_000, 16_000)
    }


@partial(
    Row,
    id="2",
    about="what grouping saves on two levels",
    paper="batchllm",
    panel="evaluation, settings A and B",
    setting="50 documents of 490 (B: 400) tokens, 64 parts of 11 (101) and 2 prompts of 1,000 tokens about each",
    claims=(
        _exactly("A exact", "setting A, grouped", 48.62),
        _exactly("B exact", "setting B, grouped", 39.69),
        _exactly("B longest", "setting B by the heuristic", 25.05),
        _exactly("A all levels", "setting A, sharing on all levels", 49.17),
        _exactly("B all levels", "setting B, sharing on all levels", 44.74),
    ),
    note="printed as 48.6, 39.7 and about 25 %; the lengths are the whole numbers that give these figures, and the "
    "heuristic groups each prompt with those with which it shares most",
    seeds=1,
    seconds=3,
    quick=True,
)
def two_levels(on: Platform, seed: int) -> Figures:
    """50 documents, 64 parts of each, 2 prompts about each part, of 1,000 tokens."""
    found: dict[str, float] = {}
    for setting, document, part in (("A", 490, 11), ("B", 400, 101)):
        own = 1_000 - document - part
        batch = [
            _keys((d, document), (100 + p, part), (1_000 + q, own))
            for d in range(50)
            for p in range(64)
            for q in (0, 1)
        ]
        tree = tree_of(batch)
        found[f"{setting} exact"] = _ratio(batch)
        found[f"{setting} longest"] = _ratio(batch, "longest")
        found[f"{setting} all levels"] = 100 * tree.saved_tokens_max / tree.prompt_tokens
    return found


PANELS = (
    Panel("micro-benchmark", "what one level of sharing can save", rows=("1",)),
    Panel("settings A and B", "what grouping saves on two levels", rows=("2",)),
)
