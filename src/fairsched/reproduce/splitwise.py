"""Splitwise: what its published profile says of prompts and outputs.

Source: Patel et al., "Splitwise" (ISCA'24), and the medians that its authors published.  What needs split phases is
open.
"""

from functools import partial
from itertools import pairwise

from fairsched.reproduce.row import Claim, Figures, Panel, Platform, Row

PROMPT_MS = {512: 76, 1_024: 133, 2_048: 253, 4_096: 689}
"""Medians of BLOOM-176B on eight H100: a prompt of so many tokens."""
TOKEN_MS = 36
"""And a step that gives one token."""


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
        Claim("at 2048", "prompt tokens a ms at 2,048", "8.1", 8.1, 8.1, neutral=None, decimals=1),
        Claim("at 4096", "prompt tokens a ms at 4,096", "5.9", 5.9, 5.9, neutral=None, decimals=1),
        Claim("fall", "throughput at 4,096 over 2,048", "it falls beyond 2,048 tokens", 0.0, 1.0, neutral=None),
    ),
    note="the throughputs are those of the published table, the paper shows them as a curve",
    seeds=1,
    seconds=1,
    quick=True,
)
def profile(on: Platform, seed: int) -> Figures:
    """Read the profile."""
    fast, slow = (tokens / prompt_ms(tokens) for tokens in (2_048, 4_096))
    return {"outputs": prompt_ms(1_500) / TOKEN_MS, "at 2048": fast, "at 4096": slow, "fall": slow / fast}


PANELS = (
    Panel("characterization", "throughput and latency of prompts and outputs on a profile", rows=("13",)),
    Panel("evaluation", "transfer of KV, the provisioning search, designs at equal power and cost, robustness"),
)
