"""DistServe's formulas: their limits, where they cross, and loads without a mean; and the lengths of its requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.reproduce.papers.distserve import APPLICATIONS, crossover, one_instance, two_shards, two_stages

LOADS = st.floats(0.001, 0.99)


@given(LOADS, st.floats(0.1, 10.0))
def test_a_speed_up_of_one_is_one_accelerator(load: float, service: float) -> None:
    """Two that share operators without gain wait as long as one."""
    assert two_shards(service, load / service, 1.0) == pytest.approx(one_instance(service, load / service))


@given(LOADS, st.floats(0.1, 10.0))
def test_a_full_speed_up_beats_a_pipeline(load: float, service: float) -> None:
    """Two that together are twice as fast are better than a pipeline at every load."""
    rate = 2 * load / service
    assert two_shards(service, rate, 2.0) < two_stages(service, rate)


@given(st.floats(1.01, 1.99), LOADS)
def test_sharing_operators_is_better_below_the_crossover_only(speedup: float, share: float) -> None:
    """The two means are equal at the crossover, and only there."""
    load = share * speedup
    at = crossover(speedup)
    if abs(load - at) > 1e-6:
        assert (two_shards(1.0, load, speedup) < two_stages(1.0, load)) == (load < at)


@pytest.mark.parametrize(
    "overloaded", [lambda: one_instance(1, 1), lambda: two_stages(1, 2), lambda: two_shards(1, 2, 1.5)]
)
def test_a_load_beyond_saturation_has_no_mean(overloaded: object) -> None:
    """A queue that grows without end is an error, and no figure."""
    with pytest.raises(ValueError, match="no mean wait"):
        overloaded()  # type: ignore[operator]


@pytest.mark.parametrize(("place", "means"), [(0, (755.5, 200.3)), (2, (171.3, 98.2)), (3, (1_738.3, 90.7))])
def test_lengths_have_the_printed_means_and_fit_into_the_model(place: int, means: tuple[float, float]) -> None:
    """Means of many requests are the printed ones within 3 %, and prompt and output have less than 2,048 tokens."""
    prompts, outputs = APPLICATIONS[place].lengths(np.random.default_rng(0), 100_000)
    assert (prompts.mean(), outputs.mean()) == pytest.approx(means, rel=0.03)
    assert len(prompts) == len(outputs) == 100_000
    assert prompts.min() > 0 < outputs.min()
    assert (prompts + outputs).max() < 2_048


@pytest.mark.parametrize("speedup", [1.0, 2.1, 0.0])
def test_a_speed_up_of_two_accelerators_is_between_one_and_two(speedup: float) -> None:
    """There is no crossover for anything else."""
    with pytest.raises(ValueError, match="speed-up"):
        crossover(speedup)
