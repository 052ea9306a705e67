"""The latency model to the nanosecond: a leap is its steps, and each coefficient pays for what it names."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.latency import DecodePiece, LatencyModel

NATURAL = st.integers(0, 50)
PIECES = st.lists(st.tuples(st.integers(1, 30), NATURAL, NATURAL), min_size=1, max_size=4).map(
    lambda rows: tuple(DecodePiece(1 + 2 * i, *row) for i, row in enumerate(rows))
)
MODELS = st.builds(
    LatencyModel,
    name=st.just("drawn"),
    source=st.just("made for tests"),
    prefill_constant_ns=st.integers(1, 30),
    prefill_token_ns=NATURAL,
    prefill_attention_ps=st.integers(0, 5000),
    decode=PIECES,
    kv_capacity_tokens=st.just(64),
)


@given(MODELS, st.integers(1, 12), st.integers(0, 100), st.integers(0, 40))
def test_a_leap_is_its_steps(latency: LatencyModel, batch: int, context: int, steps: int) -> None:
    """A run of decode steps takes what its steps take one by one, and as many fit into a span as one by one."""
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
    latency = LatencyModel(
        "x", "made for tests", 100, 10, 1000, (DecodePiece(1, 7, 1, 2), DecodePiece(3, 130, 1, 2)), 64
    )
    chunks = ((3, 4), (2, 0))
    alone = 100 + 5 * 10 + (3 * 7 + 2 * 2)
    assert latency.step_ns(chunks, 0, 0) == alone
    assert latency.step_ns((), 2, 20) == 7 + 20 + 2 * 2
    # A mixed step has the larger of the two constants, once.
    assert latency.step_ns(chunks, 2, 20) == alone + 20 + 2 * 2
    assert latency.step_ns(chunks, 3, 20) == alone + 30 + 20 + 3 * 2
