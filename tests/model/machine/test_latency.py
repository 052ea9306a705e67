"""The latency model to the nanosecond: a leap is its steps, and each coefficient pays for what it names."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import machine as lat
from fairsched.model.machine import PRESETS, pipelined

NATURAL = st.integers(0, 50)
PIECES = st.lists(st.tuples(st.integers(1, 30), NATURAL, NATURAL), min_size=1, max_size=4).map(
    lambda rows: tuple(lat.DecodePiece(1 + 2 * i, *row) for i, row in enumerate(rows))
)
MODELS = st.builds(
    lat.LatencyModel,
    name=st.just("drawn"),
    source=st.just("made for tests"),
    prefill_constant_ns=st.integers(1, 30),
    prefill_token_ns=NATURAL,
    prefill_attention_ps=st.integers(0, 5000),
    decode=PIECES,
    kv_capacity_tokens=st.just(64),
)


STAGES = st.integers(2, 6)


@given(
    MODELS | st.builds(pipelined, MODELS, STAGES, hop_ns=st.integers(0, 9)),
    st.integers(1, 40),
    st.integers(0, 100),
    st.integers(0, 40),
)
def test_a_leap_is_its_steps(latency: lat.LatencyModel, batch: int, context: int, steps: int) -> None:
    """A run of decode steps takes what its steps take one by one, and as many fit into a span as one by one; so it is
    with stages."""
    each = [latency.decode_ns(batch, context + i * batch) for i in range(steps)]
    assert latency.decode_run_ns(batch, context, steps) == sum(each)
    assert each == [latency.step_ns((), batch, context + i * batch) for i in range(steps)]
    if context + steps:
        for span in (sum(each), sum(each) - 1):
            if span >= 0:
                fit = latency.decode_steps_within(batch, context, span)
                assert (
                    latency.decode_run_ns(batch, context, fit) <= span < latency.decode_run_ns(batch, context, fit + 1)
                )


def test_each_coefficient_by_hand() -> None:
    """Two chunks of 3 behind 4 and 2 behind 0, alone and beside three requests that decode over 20 tokens."""
    latency = lat.LatencyModel(
        "x", "made for tests", 100, 10, 1000, (lat.DecodePiece(1, 7, 1, 2), lat.DecodePiece(3, 130, 1, 2)), 64
    )
    chunks = ((3, 4), (2, 0))
    alone = 100 + 5 * 10 + (3 * 7 + 2 * 2)
    assert latency.step_ns(chunks, 0, 0) == alone
    assert latency.step_ns((), 2, 20) == 7 + 20 + 2 * 2
    # A mixed step has the larger of the two constants, once.
    assert latency.step_ns(chunks, 2, 20) == alone + 20 + 2 * 2
    assert latency.step_ns(chunks, 3, 20) == alone + 30 + 20 + 3 * 2


@given(MODELS, STAGES, st.integers(0, 9), st.integers(1, 8), st.integers(1, 60))
def test_stages_decode_micro_batches_in_the_time_of_one(
    latency: lat.LatencyModel, stages: int, hop_ns: int, each: int, context: int
) -> None:
    """K equal micro-batches take, up to rounding, what one of them takes without stages, and K hops; as many requests
    as there are stages take it too, and fewer leave stages idle."""
    piped = pipelined(latency, stages, hop_ns=hop_ns)
    alone = latency.decode_ns(each, each * context) + stages * hop_ns
    assert alone <= piped.decode_ns(stages * each, stages * each * context) <= alone + stages * each * (context + 1)
    for batch in range(1, stages):
        one = latency.decode_ns(1, context) + stages * hop_ns
        assert one <= piped.decode_ns(batch, batch * context) <= one + batch * (context + 1)


@given(MODELS, STAGES, st.integers(0, 9), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1))
def test_prefill_passes_through_all_stages_and_leaves_each_after_its_share(
    latency: lat.LatencyModel, stages: int, hop_ns: int, chunks: list[tuple[int, int]]
) -> None:
    """A step that only prefills takes as long as without stages, and hops; all stages together are that long, rounded
    up.  Beside requests that decode it is shared among micro-batches, and never takes longer than without stages."""
    piped = pipelined(latency, stages, hop_ns=hop_ns)
    whole = piped.step_ns(chunks, 0, 0)
    assert whole == latency.step_ns(chunks, 0, 0) + stages * hop_ns
    assert 0 <= stages * piped.stage_ns(chunks) - whole < stages
    assert latency.stage_ns(chunks) == latency.step_ns(chunks, 0, 0)
    free = pipelined(latency, stages, hop_ns=0)
    assert free.step_ns(chunks, stages, 10) <= free.step_ns(chunks, 0, 0) + free.decode_ns(stages, 10)


def test_stages_hold_the_weights_once() -> None:
    """Two GPUs as stages have the memory of two less the weights of one model: as two that share tensors, up to
    rounding of the table."""
    one, two = PRESETS["opt-13b-a100"], PRESETS["opt-13b-a100-tp2"]
    piped = pipelined(one, 2)
    assert (piped.gpus, piped.stages) == (2, 2)
    assert abs(piped.kv_capacity_tokens - two.kv_capacity_tokens) < 1_000
    assert pipelined(one, 1) is one
    assert lat.decoded(lat.encoded(lat.preset_document(piped))).latency == piped


@pytest.mark.parametrize(
    ("latency", "stages", "said"),
    [
        (PRESETS["opt-13b-a100"], 0, "1 stage or more and hops of 0 ns or more, not 0 and"),
        (pipelined(PRESETS["opt-13b-a100"], 2), 2, "opt-13b-a100-pp2 has 2 stages already"),
    ],
)
def test_no_pipeline_of_nothing_or_of_pipelines(latency: lat.LatencyModel, stages: int, said: str) -> None:
    """No stage, and stages of stages, are refused with the figure."""
    with pytest.raises(ValueError, match=said):
        pipelined(latency, stages)


@pytest.mark.parametrize("name", ["llama-2-70b", "bloom-176b"])
def test_a_power_cap_slows_prompts_only(name: str) -> None:
    """Of Splitwise's machines the capped one takes 1.30 times as long for a prompt, and as long for a token."""
    fast, capped = PRESETS[f"{name}-h100"], PRESETS[f"{name}-h100-capped"]
    for tokens in (512, 1_024, 2_048, 4_096):
        ratio = capped.step_ns([(tokens, 0)], 0, 0) / fast.step_ns([(tokens, 0)], 0, 0)
        assert ratio == pytest.approx(1.30, abs=0.001)
    assert capped.decode_ns(8, 9_000) == fast.decode_ns(8, 9_000)
    assert lat.gpu_of(capped).watts < lat.gpu_of(fast).watts


@pytest.mark.parametrize(
    ("name", "medians"),
    [
        ("llama-2-70b-a100", (93, 155, 274, 661, 1_550, 7_554, 45)),
        ("llama-2-70b-h100", (54, 78, 137, 390, 845, 2_936, 31)),
        ("bloom-176b-a100", (174, 289, 540, 1_348, 3_593, 11_252, 49)),
        ("bloom-176b-h100", (76, 133, 253, 689, 1_535, 4_996, 36)),
    ],
)
def test_published_medians_are_met(name: str, medians: tuple[int, ...]) -> None:
    """Splitwise's machines are within 1 ms of each published median of a prompt of 512 to 8,192 tokens and of 64
    prompts of 512, and of that of a token."""
    latency, (*prompts, token) = PRESETS[name], medians
    for tokens, printed in zip((512, 1_024, 2_048, 4_096, 8_192, 64 * 512), prompts, strict=True):
        assert latency.step_ns([(tokens, 0)], 0, 0) / 1e6 == pytest.approx(printed, abs=1)
    assert latency.decode_ns(1, 1_024) / 1e6 == pytest.approx(token, abs=1)


def test_every_preset_says_its_machine() -> None:
    """Each preset's GPUs are a known kind that has room for weights and KV, a prompt uses 5 % to 100 % of them, and no
    step is faster than they are."""
    for latency in PRESETS.values():
        assert lat.check(latency) is latency
        deployment, gpu = latency.deployment, lat.gpu_of(latency)
        assert deployment is not None
        assert latency.gpus is not None
        kv_bytes = latency.kv_capacity_tokens * deployment.kv_token_bytes
        assert kv_bytes + deployment.weight_bytes <= 0.92 * gpu.memory_bytes * latency.gpus, latency.name
        assert 0.05 < lat.mfu(latency, 2_048, latency.step_ns([(2_048, 0)], 0, 0)) < 1, latency.name
    bare = attrs.evolve(PRESETS["opt-13b-a100"], deployment=None)
    with pytest.raises(ValueError, match="latency model opt-13b-a100 says no kind of GPU: known are a100"):
        lat.gpu_of(bare)
