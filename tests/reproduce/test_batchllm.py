"""The kernel of BatchLLM's rows reads a group's prefix once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.reproduce.papers.batchllm import QWEN_7B, WORKER, PromptSet, with_kernel
from fairsched.reproduce.row import Platform


@pytest.mark.parametrize("on", [WORKER, QWEN_7B])
@given(prefix=st.integers(0, 20_000), degree=st.integers(1, 64), own=st.integers(1, 2_000))
def test_a_group_that_decodes_reads_its_prefix_once(on: Platform, prefix: int, degree: int, own: int) -> None:
    """With the kernel a group takes what its prefix and its own tokens take, up to half a nanosecond a token."""
    batch = PromptSet(prefix, degree, own, outputs=0)
    context = degree * (prefix + own)
    kernel = with_kernel(on.latency, batch.read_share).decode_ns(degree, context)
    once = on.latency.decode_ns(degree, prefix + degree * own)
    assert abs(kernel - once) <= context / 2 + 1
