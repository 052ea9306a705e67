"""What steps draw: more for more tokens in less time, all of the rated power at most, and near what others measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.machine import idle_nj, preset, rated_watts, step_nj

S = 10**9
CHAT = {
    "llama-3.1-8b-h100": ((1_070, 486), (5_147, 610), (9_010, 691)),
    "qwen3-8b-h100": ((962, 427), (4_315, 514), (7_719, 633)),
    "qwen3-32b-h100-tp2": ((522, 850), (2_654, 974), (5_155, 1_178)),
    "llama-3.1-70b-h100-tp4": ((470, 1_765), (2_511, 2_002), (4_915, 2_354)),
    "llama-3.1-70b-b200-tp2": ((476, 1_698), (2_598, 1_811), (5_372, 1_942)),
}
"""Output tokens a second and mean watts of all GPUs with batches of 8, 64 and 256.  Source: the ML.ENERGY leaderboard
3.0 (ml-energy/leaderboard, public/data/models, lm-arena-chat); none of these is in the fit."""


@pytest.mark.parametrize("name", CHAT)
def test_power_is_near_what_others_measured(name: str) -> None:
    """Within 20 % on H100, the kind of the fit, and within 30 % on B200."""
    latency = preset(name)
    assert latency is not None
    rates, watts = np.array(CHAT[name]).T
    drawn = step_nj(latency, rates, np.full(3, S)) / S
    assert np.abs(drawn / watts - 1).max() < (0.2 if "h100" in name else 0.3)


@given(
    st.sampled_from(["llama-3.1-8b-a100", "opt-13b-a100-tp2", "llama-3.1-70b-h100-tp4"]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**13)), min_size=1, max_size=9),
)
def test_a_step_draws_more_than_idling_and_at_most_all(name: str, steps: list[tuple[int, int]]) -> None:
    """Never less than an idle worker in the same time, never more than the rated power, and more for more tokens."""
    latency = preset(name)
    assert latency is not None
    tokens, ns = np.array(steps).T
    drawn = step_nj(latency, tokens, ns)
    for each, ran in zip(drawn.tolist(), ns.tolist(), strict=True):
        assert idle_nj(latency, ran) < each + rated_watts(latency) <= rated_watts(latency) * (ran + 1)
    assert (step_nj(latency, tokens + 1_000, ns) >= drawn).all()


def test_a_prompt_draws_nearly_all_and_a_batch_that_decodes_does_not() -> None:
    """Splitwise's figure 8 and insight VI: power grows with a prompt's tokens to the rated one; a batch's stays below
    three quarters of it."""
    latency = preset("llama-2-70b-a100")
    assert latency is not None
    rated = rated_watts(latency)
    prompts = [
        int(step_nj(latency, np.array([n]), np.array([latency.step_ns([(n, 0)], 0, 0)]))[0]) for n in (64, 4_096)
    ]
    shares = [drawn / rated / latency.step_ns([(n, 0)], 0, 0) for drawn, n in zip(prompts, (64, 4_096), strict=True)]
    assert shares[0] < shares[1]
    assert shares[1] > 0.95
    batch = latency.decode_ns(32, 32 * 1_024)
    assert int(step_nj(latency, np.array([32]), np.array([batch]))[0]) < 0.75 * rated * batch
